"""A device plugin that gives ids to containers and nothing else, the first ones first.

Source: the kubelet's device plugin API v1beta1 (``k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio

from e2e.pb import deviceplugin_pb2 as pb

VERSION = "v1beta1"
_REGISTRATION = "/v1beta1.Registration/Register"
_SERVICE = "v1beta1.DevicePlugin"
_REGISTER_SECONDS = 10.0
_Context = grpc.aio.ServicerContext[Any, Any]


class DevicePlugin:
    """One resource; ``async with`` serves it and registers it with the kubelet of ``root``."""

    def __init__(self, root: Path, resource: str, ids: Sequence[str]) -> None:
        self._folder = root / "device-plugins"
        self._resource = resource
        self._ids = tuple(ids)
        self._endpoint = f"{resource.replace('/', '-')}.sock"
        self._server = grpc.aio.server()
        self._ending = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(_SERVICE, self._build_methods())]
        )
        self._server.add_insecure_port(f"unix:{self._folder / self._endpoint}")
        await self._server.start()
        await self._register()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ending.set()
        await self._server.stop(grace=1)

    async def _register(self) -> None:
        async with grpc.aio.insecure_channel(f"unix:{self._folder / 'kubelet.sock'}") as channel:
            register = channel.unary_unary(
                _REGISTRATION,
                request_serializer=pb.RegisterRequest.SerializeToString,
                response_deserializer=pb.Empty.FromString,
            )
            request = pb.RegisterRequest(
                version=VERSION, endpoint=self._endpoint, resource_name=self._resource, options=_OPTIONS
            )
            await register(request, timeout=_REGISTER_SECONDS)

    def _build_methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        unary = grpc.unary_unary_rpc_method_handler
        return {
            "GetDevicePluginOptions": unary(_get_options, pb.Empty.FromString, pb.Options.SerializeToString),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self._list, pb.Empty.FromString, pb.ListAndWatchResponse.SerializeToString
            ),
            "GetPreferredAllocation": unary(
                self._prefer,
                pb.PreferredAllocationRequest.FromString,
                pb.PreferredAllocationResponse.SerializeToString,
            ),
            "Allocate": unary(
                _allocate, pb.AllocateRequest.FromString, pb.AllocateResponse.SerializeToString
            ),
        }

    async def _list(self, _: pb.Empty, __: _Context) -> AsyncIterator[pb.ListAndWatchResponse]:
        """One answer, and an open stream: the ids do not change."""
        yield pb.ListAndWatchResponse(devices=[pb.Device(id=one, health="Healthy") for one in self._ids])
        await self._ending.wait()

    async def _prefer(
        self, request: pb.PreferredAllocationRequest, _: _Context
    ) -> pb.PreferredAllocationResponse:
        chosen = [self._choose(container) for container in request.containers]
        return pb.PreferredAllocationResponse(containers=[pb.ContainerIds(ids=ids) for ids in chosen])

    def _choose(self, container: pb.ContainerPreference) -> list[str]:
        available = set(container.available_ids)
        return [one for one in self._ids if one in available][: container.size]


_OPTIONS = pb.Options(get_preferred_allocation_available=True)


async def _get_options(_: pb.Empty, __: _Context) -> pb.Options:
    return _OPTIONS


async def _allocate(request: pb.AllocateRequest, _: _Context) -> pb.AllocateResponse:
    return pb.AllocateResponse(containers=[pb.ContainerAnswer() for _ in request.containers])
