"""The kubelet's side of the Container Runtime Interface, reduced to what the testbed asks.

Talks gRPC to containerd's socket; one method here is one call there. A refusal becomes ``RuntimeFailure``
with the runtime's own text, because that is what a kubelet would show its user.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from testbed.pb import cri_pb2 as pb
from testbed.runtime.contract import RuntimeFailure

_SERVICE = "/runtime.v1.RuntimeService/"

_CALL_SECONDS = 30.0

_CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.default_authority", "localhost"),  # a socket path is no valid :authority, and Go refuses it
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.use_local_subchannel_pool", 1),  # another containerd at the same path must not get old connections
)

_Response = TypeVar("_Response", bound=Message)

CallListener = Callable[[str, float], None]
"""Called for each call that succeeded, with its method and the seconds from the request to the answer."""


def ignore_call(_method: str, _seconds: float) -> None:
    """The default listener."""


class CriClient:
    """One connection. Every call raises :class:`RuntimeFailure` when it is refused or takes 30 s."""

    def __init__(self, socket: Path, on_call: CallListener = ignore_call) -> None:
        self._on_call = on_call
        self._channel = grpc.aio.insecure_channel(f"unix:{socket}", options=_CHANNEL_OPTIONS)

    async def close(self) -> None:
        await self._channel.close()

    async def fetch_version(self) -> pb.VersionResponse:
        """The runtime's name and version, in its own words."""
        return await self._call("Version", pb.VersionRequest(), pb.VersionResponse)

    async def run_pod_sandbox(self, config: pb.PodSandboxConfig) -> str:
        request = pb.RunPodSandboxRequest(config=config)
        response = await self._call("RunPodSandbox", request, pb.RunPodSandboxResponse)
        return response.pod_sandbox_id

    async def stop_pod_sandbox(self, sandbox_id: str) -> None:
        request = pb.StopPodSandboxRequest(pod_sandbox_id=sandbox_id)
        await self._call("StopPodSandbox", request, pb.StopPodSandboxResponse)

    async def remove_pod_sandbox(self, sandbox_id: str) -> None:
        request = pb.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id)
        await self._call("RemovePodSandbox", request, pb.RemovePodSandboxResponse)

    async def fetch_pod_sandbox_status(self, sandbox_id: str) -> pb.PodSandboxStatusResponse:
        """With the runtime's own details under ``info["info"]``, as JSON."""
        request = pb.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
        return await self._call("PodSandboxStatus", request, pb.PodSandboxStatusResponse)

    async def list_pod_sandboxes(self) -> Sequence[pb.PodSandbox]:
        response = await self._call("ListPodSandbox", pb.ListPodSandboxRequest(), pb.ListPodSandboxResponse)
        return response.items

    async def create_container(
        self, sandbox_id: str, container: pb.ContainerConfig, sandbox: pb.PodSandboxConfig
    ) -> str:
        request = pb.CreateContainerRequest(
            pod_sandbox_id=sandbox_id, config=container, sandbox_config=sandbox
        )
        response = await self._call("CreateContainer", request, pb.CreateContainerResponse)
        return response.container_id

    async def start_container(self, container_id: str) -> None:
        request = pb.StartContainerRequest(container_id=container_id)
        await self._call("StartContainer", request, pb.StartContainerResponse)

    async def stop_container(self, container_id: str, grace_seconds: int) -> None:
        request = pb.StopContainerRequest(container_id=container_id, timeout=grace_seconds)
        await self._call("StopContainer", request, pb.StopContainerResponse)

    async def remove_container(self, container_id: str) -> None:
        request = pb.RemoveContainerRequest(container_id=container_id)
        await self._call("RemoveContainer", request, pb.RemoveContainerResponse)

    async def fetch_container_status(self, container_id: str) -> pb.ContainerStatus:
        request = pb.ContainerStatusRequest(container_id=container_id)
        return (await self._call("ContainerStatus", request, pb.ContainerStatusResponse)).status

    async def fetch_container_pid(self, container_id: str) -> int:
        """The pid of its first process, in our own process namespace."""
        request = pb.ContainerStatusRequest(container_id=container_id, verbose=True)
        answer = await self._call("ContainerStatus", request, pb.ContainerStatusResponse)
        return int(json.loads(answer.info["info"])["pid"])

    async def exec_sync(self, container_id: str, command: Sequence[str]) -> pb.ExecSyncResponse:
        request = pb.ExecSyncRequest(container_id=container_id, cmd=command, timeout=int(_CALL_SECONDS))
        return await self._call("ExecSync", request, pb.ExecSyncResponse)

    async def _call(self, method: str, request: Message, response: type[_Response]) -> _Response:
        call = self._channel.unary_unary(
            _SERVICE + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        begin = time.perf_counter()
        try:
            answer: _Response = await call(request, timeout=_CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise RuntimeFailure(f"{method}: {error.details() or error.code().name}") from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise RuntimeFailure(f"{method}: the connection was closed meanwhile") from None
        self._on_call(method, time.perf_counter() - begin)
        return answer
