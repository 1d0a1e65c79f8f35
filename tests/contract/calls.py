"""The kubelet's calls, one by one and as raw as they go over the wire, with the kubelet's own deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from dranet.model.claim import ClaimRef
from dranet.pb import dra_v1_pb2 as dra
from dranet.pb import health_v1_pb2 as health
from dranet.pb import registration_pb2 as registration

DIAL_SECONDS = 10.0
GET_INFO_SECONDS = 1.0
NOTIFY_SECONDS = 5.0
CALL_SECONDS = 45.0
DEADLINE = 20.0
"""For what no test waits for unless it fails."""

SERVICES = {
    version: f"k8s.io.kubelet.pkg.apis.dra.{version}" for version in ("v1.DRAPlugin", "v1beta1.DRAPlugin")
}
HEALTH_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")

# A connection of this call alone, also to a socket that another one has just failed to reach.
_OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)

_Answer = TypeVar("_Answer", bound=Message)
HealthStream = AsyncIterator[health.NodeWatchResourcesResponse]


def refs(*uids: str) -> list[ClaimRef]:
    """Claims of the default namespace, named after their UIDs."""
    return [ClaimRef("default", f"claim-{uid}", uid) for uid in uids]


@asynccontextmanager
async def connected(path: Path) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"unix:{path}", options=_OWN_CONNECTION) as channel:
        yield channel


async def ask(path: Path, method: str, request: Message, answer: type[_Answer], seconds: float) -> _Answer:
    """One call on a connection of its own; dialling has its own patience."""
    async with connected(path) as channel:
        if await asyncio.to_thread(path.exists):
            await asyncio.wait_for(channel.channel_ready(), DIAL_SECONDS)
        return await ask_on(channel, method, request, answer, seconds)


async def ask_on(
    channel: grpc.aio.Channel, method: str, request: Message, answer: type[_Answer], seconds: float
) -> _Answer:
    call: grpc.aio.UnaryUnaryMultiCallable[Message, _Answer] = channel.unary_unary(
        f"/{method}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=answer.FromString,
    )
    return await call(request, timeout=seconds)


class Calls:
    """Calls to the two sockets of one driver instance."""

    def __init__(self, registration_socket: Path, dra_socket: Path) -> None:
        self.registration_socket = registration_socket
        self.dra_socket = dra_socket

    async def get_info(self, seconds: float = GET_INFO_SECONDS) -> registration.PluginInfo:
        method = "pluginregistration.Registration/GetInfo"
        request = registration.InfoRequest()
        return await ask(self.registration_socket, method, request, registration.PluginInfo, seconds)

    async def notify(self, *, registered: bool, error: str = "") -> None:
        method = "pluginregistration.Registration/NotifyRegistrationStatus"
        status = registration.RegistrationStatus(plugin_registered=registered, error=error)
        answer = registration.RegistrationStatusResponse
        await ask(self.registration_socket, method, status, answer, NOTIFY_SECONDS)

    async def prepare(
        self, claims: list[ClaimRef], version: str = "v1.DRAPlugin", seconds: float = CALL_SECONDS
    ) -> dra.NodePrepareResourcesResponse:
        request = dra.NodePrepareResourcesRequest(claims=_to_wire(claims))
        method = f"{SERVICES[version]}/NodePrepareResources"
        return await ask(self.dra_socket, method, request, dra.NodePrepareResourcesResponse, seconds)

    async def prepare_each(self, claims: list[ClaimRef]) -> list[dra.NodePrepareResourcesResponse]:
        """A call for each claim, all at the same time and on one connection, as for many pods."""
        method, answer = f"{SERVICES['v1.DRAPlugin']}/NodePrepareResources", dra.NodePrepareResourcesResponse
        requests = [dra.NodePrepareResourcesRequest(claims=_to_wire([ref])) for ref in claims]
        async with connected(self.dra_socket) as channel:
            calls = (ask_on(channel, method, request, answer, CALL_SECONDS) for request in requests)
            return await asyncio.gather(*calls)

    async def unprepare(
        self, claims: list[ClaimRef], version: str = "v1.DRAPlugin", seconds: float = CALL_SECONDS
    ) -> dra.NodeUnprepareResourcesResponse:
        request = dra.NodeUnprepareResourcesRequest(claims=_to_wire(claims))
        method = f"{SERVICES[version]}/NodeUnprepareResources"
        return await ask(self.dra_socket, method, request, dra.NodeUnprepareResourcesResponse, seconds)

    @asynccontextmanager
    async def watch_health(self, service: str = HEALTH_SERVICES[0]) -> AsyncIterator[HealthStream]:
        """The stream, while the block runs."""
        async with connected(self.dra_socket) as channel:
            call = channel.unary_stream(
                f"/{service}/NodeWatchResources",
                request_serializer=health.NodeWatchResourcesRequest.SerializeToString,
                response_deserializer=health.NodeWatchResourcesResponse.FromString,
            )(health.NodeWatchResourcesRequest(), timeout=DEADLINE)
            try:
                yield aiter(call)
            finally:
                call.cancel()


def _to_wire(claims: list[ClaimRef]) -> list[dra.Claim]:
    return [dra.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid) for ref in claims]


async def eventually(condition: Callable[[], object]) -> None:
    """Wait until ``condition`` holds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE
    while not condition():
        assert loop.time() < deadline, "waited too long"
        await asyncio.sleep(0.005)
