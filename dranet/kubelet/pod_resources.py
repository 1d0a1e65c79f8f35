"""What the kubelet gave to a pod: a client of its pod resources socket (``v1.PodResourcesLister``), the one
place where a device plugin's allocation can be read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import grpc
import grpc.aio

from dranet.errors import ProtocolError
from dranet.model.claim import AllocationResult, PodRef
from dranet.pb import podresources_pb2 as pb

SERVICE = "v1.PodResourcesLister"
TIMEOUT_SECONDS = 5.0
MAX_MESSAGE_BYTES = 16 << 20
"""The answer to List contains every pod of the node."""
MAX_DEVICES = 1024
"""Limit for one pod and each kind."""

_Answer = TypeVar("_Answer", pb.GetPodResourcesResponse, pb.ListPodResourcesResponse)


class PodDevices(NamedTuple):
    ids: tuple[tuple[str, str], ...] = ()
    """Resource name with the id that its device plugin has for it."""
    results: tuple[AllocationResult, ...] = ()
    """Devices of DRA drivers."""


class PodResources:
    """The kubelet behind a socket. Nothing is open between two questions."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def read(self, pod: PodRef) -> PodDevices:
        """What the pod has.

        Raises:
            ProtocolError: to be tried again: no socket, no answer, a refusal, or the kubelet does not know
                the pod, as one that has just started.
        """
        async with self._connect(f"pod {pod}") as channel:
            found = await self._get(channel, pod)
        if found is None:
            raise ProtocolError(f"the kubelet does not know pod {pod}", retryable=True)
        return _parse(found)

    async def read_givers(self) -> frozenset[str]:
        """Names of all extended resources and DRA drivers of which any pod of the node has devices.

        Raises:
            ProtocolError: to be tried again: no socket, no answer, or a refusal.
        """
        async with self._connect("the node's pods") as channel:
            pods = await _list(channel)
        return frozenset(sorted({name for pod in pods for name in _find_givers(pod)})[:MAX_DEVICES])

    @asynccontextmanager
    async def _connect(self, whose: str) -> AsyncIterator[grpc.aio.Channel]:
        if not self._socket.exists():
            raise ProtocolError(f"the kubelet has no socket {self._socket}", retryable=True)
        options = [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)]
        try:
            async with grpc.aio.insecure_channel(f"unix:{self._socket}", options=options) as channel:
                yield channel
        except grpc.aio.AioRpcError as error:
            why = f"{error.code().name}: {error.details()}"
            raise ProtocolError(
                f"the kubelet does not report the resources of {whose}: {why}", retryable=True
            ) from error

    async def _get(self, channel: grpc.aio.Channel, pod: PodRef) -> pb.PodResources | None:
        """By ``Get``; by ``List`` where the kubelet has not got it, or it is switched off."""
        get = channel.unary_unary(
            f"/{SERVICE}/Get",
            request_serializer=pb.GetPodResourcesRequest.SerializeToString,
            response_deserializer=pb.GetPodResourcesResponse.FromString,
        )
        request = pb.GetPodResourcesRequest(pod_name=pod.name, pod_namespace=pod.namespace)
        try:
            answer: pb.GetPodResourcesResponse | None = await get(request, timeout=TIMEOUT_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise
            wanted, pods = (pod.namespace, pod.name), await _list(channel)
            return next((item for item in pods if (item.namespace, item.name) == wanted), None)
        found = _readable(answer).pod_resources
        return found if (found.namespace, found.name) == (pod.namespace, pod.name) else None


async def _list(channel: grpc.aio.Channel) -> Sequence[pb.PodResources]:
    ask = channel.unary_unary(
        f"/{SERVICE}/List",
        request_serializer=pb.ListPodResourcesRequest.SerializeToString,
        response_deserializer=pb.ListPodResourcesResponse.FromString,
    )
    answer: pb.ListPodResourcesResponse | None = await ask(
        pb.ListPodResourcesRequest(), timeout=TIMEOUT_SECONDS
    )
    return _readable(answer).pod_resources


def _readable(answer: _Answer | None) -> _Answer:
    """gRPC has ``None`` for bytes that are no such message."""
    if answer is None:
        raise ProtocolError("the kubelet's pod resources cannot be read", retryable=True)
    return answer


def _find_givers(pod: pb.PodResources) -> Iterator[str]:
    """Devices of no number are a plugin's word for none, not for a device."""
    for container in pod.containers:
        yield from (devices.resource_name for devices in container.devices if devices.device_ids)
        for claim in container.dynamic_resources:
            yield from (item.driver_name for item in claim.claim_resources if item.driver_name)


def _parse(pod: pb.PodResources) -> PodDevices:
    ids: dict[tuple[str, str], None] = {}
    results: dict[AllocationResult, None] = {}
    for container in pod.containers:
        for devices in container.devices:
            ids |= {(devices.resource_name, device): None for device in devices.device_ids}
        for claim in container.dynamic_resources:
            for item in claim.claim_resources:
                if item.driver_name:
                    results[AllocationResult("", item.driver_name, item.pool_name, item.device_name)] = None
    return PodDevices(tuple(ids)[:MAX_DEVICES], tuple(results)[:MAX_DEVICES])
