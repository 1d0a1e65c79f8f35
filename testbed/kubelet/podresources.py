"""Devices that the kubelet counts (device plugins), and its pod resources socket: the devices of each pod.

Source of the behaviour: ``pkg/kubelet/cm/devicemanager`` and ``pkg/kubelet/apis/podresources`` of Kubernetes.
A device plugin here has ids and, optionally, a variable that names them to a container; what else it would
put into containers, a pod states itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from dranet.pb import podresources_pb2 as pb
from testbed.kubelet.claims import PodDevices
from testbed.kubelet.nouns import PodFailure
from testbed.kubelet.podspec import ContainerView, PodView

SERVICE = "v1.PodResourcesLister"
_FOLDER_MODE = 0o750

DeviceIds = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Ids by container and resource."""
_Context = grpc.aio.ServicerContext[Any, Any]


class CountedDevices:
    """Devices of plugins, which pods ask for by number; a pod keeps its ids while it lives."""

    def __init__(self) -> None:
        self._offered: dict[str, tuple[str, ...]] = {}
        self._variables: dict[str, str] = {}
        self._allocated: dict[str, DeviceIds] = {}

    def offer(self, resource: str, ids: Sequence[str], variable: str = "") -> None:
        """A device plugin has these, and sets ``variable`` to those that a container gets."""
        self._offered[resource] = tuple(ids)
        self._variables[resource] = variable

    def environment(self, pod_uid: str, container: str) -> tuple[tuple[str, str], ...]:
        """The variables of the plugins for one container."""
        devices = self.get(pod_uid).get(container, {})
        variables = ((self._variables[resource], ",".join(ids)) for resource, ids in devices.items())
        return tuple((name, value) for name, value in variables if name)

    def get(self, pod_uid: str) -> DeviceIds:
        """What the pod has."""
        return self._allocated.get(pod_uid, {})

    def give(self, pod: PodView) -> DeviceIds:
        """What its containers ask for; repeatable. A resource that no plugin has is ignored.

        Raises:
            PodFailure: there are not as many.
        """
        if pod.uid not in self._allocated:
            free = {resource: list(self._find_free(resource)) for resource in self._offered}
            self._allocated[pod.uid] = {one.name: dict(_take(one, free)) for one in pod.containers}
        return self._allocated[pod.uid]

    def take_back(self, pod_uid: str) -> None:
        """The pod has ended; repeatable."""
        self._allocated.pop(pod_uid, None)

    def _find_free(self, resource: str) -> Iterator[str]:
        allocated = (
            container.get(resource, ()) for pod in self._allocated.values() for container in pod.values()
        )
        taken = {device for ids in allocated for device in ids}
        return (device for device in self._offered[resource] if device not in taken)


def _take(container: ContainerView, free: dict[str, list[str]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for resource, count in container.counted:
        if resource in free:
            ids, free[resource] = tuple(free[resource][:count]), free[resource][count:]
            if len(ids) < count:
                raise PodFailure(
                    "UnexpectedAdmissionError",
                    f"Allocate failed due to requested number of devices unavailable for {resource}. "
                    f"Requested: {count}, Available: {len(ids)}, which is unexpected",
                )
            yield resource, ids


def build_resources(pod: PodView, allocated: DeviceIds, devices: PodDevices) -> pb.PodResources:
    """The entry of one pod."""
    return pb.PodResources(
        name=pod.name,
        namespace=pod.namespace,
        containers=[
            pb.ContainerResources(
                name=container.name,
                devices=[
                    pb.ContainerDevices(resource_name=resource, device_ids=ids)
                    for resource, ids in allocated.get(container.name, {}).items()
                ],
                dynamic_resources=_build_claims(pod, container, devices),
            )
            for container in pod.containers
        ],
    )


def _build_claims(pod: PodView, container: ContainerView, devices: PodDevices) -> list[pb.DynamicResource]:
    """The claims of every driver, in one list."""
    return [
        pb.DynamicResource(
            claim_name=pod.claim_names.get(pod_claim, ""),
            claim_namespace=pod.namespace,
            claim_resources=[
                pb.ClaimResource(driver_name=one.driver, pool_name=one.pool, device_name=one.device)
                for one in devices.get(pod_claim, ())
                if one.serves(request)
            ],
        )
        for pod_claim, request in container.claims
    ]


class PodResourcesServer:
    """Serves ``<root>/pod-resources/kubelet.sock``; ``read`` returns all pods of the node."""

    def __init__(self, root: Path, read: Callable[[], Iterable[pb.PodResources]]) -> None:
        self._socket = root / "pod-resources" / "kubelet.sock"
        self._read = read
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Serve from now on."""
        self._socket.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(SERVICE, self._build_methods())]
        )
        self._server.add_insecure_port(f"unix:{self._socket}")
        await self._server.start()

    async def stop(self) -> None:
        """Hang up. Repeatable."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)

    def _build_methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        return {
            "Get": grpc.unary_unary_rpc_method_handler(
                self._get, pb.GetPodResourcesRequest.FromString, pb.GetPodResourcesResponse.SerializeToString
            ),
            "List": grpc.unary_unary_rpc_method_handler(
                self._list,
                pb.ListPodResourcesRequest.FromString,
                pb.ListPodResourcesResponse.SerializeToString,
            ),
        }

    async def _get(self, request: pb.GetPodResourcesRequest, context: _Context) -> pb.GetPodResourcesResponse:
        wanted = (request.pod_namespace, request.pod_name)
        for pod in self._read():
            if (pod.namespace, pod.name) == wanted:
                return pb.GetPodResourcesResponse(pod_resources=pod)
        text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        await context.abort(grpc.StatusCode.UNKNOWN, text)
        raise AssertionError  # abort raises

    async def _list(self, _: pb.ListPodResourcesRequest, __: _Context) -> pb.ListPodResourcesResponse:
        return pb.ListPodResourcesResponse(pod_resources=self._read())
