"""The kubelet's side of the plugin sockets: register, prepare, unprepare, watch health."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from dranet.model.claim import ClaimRef
from dranet.pb import dra_v1_pb2, health_v1_pb2, registration_pb2
from testbed.kubelet.nouns import KubeletDevice, KubeletOptions, NotServed, PluginFailure

# Channels of this kubelet alone, so that two drivers of a test never share a connection; back within a
# second. What gRPC calls the least backoff is how long one attempt to connect may take.
_CHANNEL_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

_SERVICES = {
    version: f"k8s.io.kubelet.pkg.apis.dra.{version}" for version in ("v1.DRAPlugin", "v1beta1.DRAPlugin")
}

_Answer = TypeVar("_Answer", bound=Message)


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """What a plugin reported about itself, checked: the service to call, and the health service if any."""

    driver: str
    endpoint: Path
    service: str
    health_service: str


class RegistrationClient:
    """One conversation with a registration socket."""

    def __init__(self, socket: Path, options: KubeletOptions) -> None:
        self._socket = socket
        self._options = options
        self._channel = _open_channel(socket)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def fetch_info(self) -> registration_pb2.PluginInfo:
        """Dial and ask.

        Raises:
            PluginFailure: no answer in time.
        """
        try:
            await asyncio.wait_for(self._channel.channel_ready(), self._options.dial_seconds)
        except TimeoutError as error:
            raise PluginFailure(f"failed to dial {self._socket}") from error
        return await self._ask(
            "GetInfo",
            registration_pb2.InfoRequest(),
            registration_pb2.PluginInfo,
            self._options.get_info_seconds,
        )

    async def notify(self, *, registered: bool, error: str = "") -> None:
        """Report the outcome.

        Raises:
            PluginFailure: it did not arrive, or the plugin did not like it.
        """
        status = registration_pb2.RegistrationStatus(plugin_registered=registered, error=error)
        answer = registration_pb2.RegistrationStatusResponse
        await self._ask("NotifyRegistrationStatus", status, answer, self._options.notify_seconds)

    async def _ask(self, method: str, request: Message, answer: type[_Answer], seconds: float) -> _Answer:
        return await _ask(
            self._channel, f"pluginregistration.Registration/{method}", request, answer, seconds
        )


def judge_info(info: registration_pb2.PluginInfo, socket: Path, options: KubeletOptions) -> PluginInfo:
    """Take the first service of the *plugin's* list that this kubelet knows.

    Raises:
        PluginFailure: not a DRA plugin, or nothing in common.
    """
    if info.type != "DRAPlugin":
        raise PluginFailure(f"no handler registered for plugin type: {info.type} at socket {socket}")
    if not info.name:
        raise PluginFailure("DRA driver name is empty")
    offered = list(info.supported_versions)
    service = next((version for version in offered if version in options.known_services), None)
    if service is None:
        raise PluginFailure(
            f"none of the DRA gRPC services supported by the plugin ({', '.join(offered) or 'none'}) is known"
        )
    watchable = [version for version in options.known_health_services if version in offered]
    if options.asks_unadvertised_health:
        watchable += options.known_health_services
    health = next(iter(watchable), "")
    return PluginInfo(info.name, Path(info.endpoint or socket), _SERVICES[service], health)


class PluginClient:
    """A registered plugin. ``connected`` follows its connection; ``on_connected`` hears of each change."""

    def __init__(
        self, info: PluginInfo, options: KubeletOptions, on_connected: Callable[[PluginClient], None]
    ) -> None:
        self.info = info
        self.connected = False
        self._options = options
        self._on_connected = on_connected
        self._channel = _open_channel(info.endpoint)
        self._follower: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        """Connect, and reconnect whenever the connection ends."""
        self._follower = asyncio.create_task(self._follow(), name=f"connection of {self.info.driver}")

    async def close(self) -> None:
        """Hang up. Repeatable."""
        self._closed = True
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.wait({self._follower})
            self._follower = None
        self.connected = False
        await self._channel.close()

    async def prepare(self, refs: Sequence[ClaimRef]) -> dict[str, tuple[KubeletDevice, ...]]:
        """Devices by claim UID.

        Raises:
            PluginFailure: the call failed, an entry is missing or unknown, or a claim has an error.
        """
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=_claims(refs))
        response = await self._ask("NodePrepareResources", request, dra_v1_pb2.NodePrepareResourcesResponse)
        _check_entries(
            refs, {uid: entry.error for uid, entry in response.claims.items()}, "NodePrepareResources"
        )
        return {
            uid: tuple(_device(self.info.driver, device) for device in entry.devices)
            for uid, entry in response.claims.items()
        }

    async def unprepare(self, refs: Sequence[ClaimRef]) -> None:
        """Unprepare every claim of ``refs``.

        Raises:
            PluginFailure: as :meth:`prepare`.
        """
        request = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=_claims(refs))
        response = await self._ask(
            "NodeUnprepareResources", request, dra_v1_pb2.NodeUnprepareResourcesResponse
        )
        _check_entries(
            refs, {uid: entry.error for uid, entry in response.claims.items()}, "NodeUnprepareResources"
        )

    async def watch_health(self) -> AsyncGenerator[Sequence[health_v1_pb2.DeviceHealth], None]:
        """Snapshots until the stream ends.

        Raises:
            NotServed: the plugin has no such service.
            PluginFailure: the stream broke.
        """
        self._check_open("health stream")
        method: grpc.aio.UnaryStreamMultiCallable[Message, health_v1_pb2.NodeWatchResourcesResponse]
        method = self._channel.unary_stream(
            f"/{self.info.health_service}/NodeWatchResources",
            request_serializer=_serialize,
            response_deserializer=health_v1_pb2.NodeWatchResourcesResponse.FromString,
        )
        call = method(health_v1_pb2.NodeWatchResourcesRequest())
        try:
            async for response in call:
                yield response.devices
        except grpc.aio.AioRpcError as error:
            unserved = error.code() is grpc.StatusCode.UNIMPLEMENTED
            failure = NotServed if unserved else PluginFailure
            raise failure(f"health stream: {_describe(error)}") from error
        except asyncio.CancelledError:
            _check_not_cancelled()
            raise PluginFailure("health stream: the connection was closed") from None
        finally:
            call.cancel()

    def _check_open(self, what: str) -> None:
        """gRPC takes a call on a closed channel for a bug; here the plugin left after it was looked up."""
        if self._closed:
            raise PluginFailure(f"{what}: the connection was closed")

    async def _ask(self, method: str, request: Message, answer: type[_Answer]) -> _Answer:
        self._check_open(method)
        return await _ask(
            self._channel, f"{self.info.service}/{method}", request, answer, self._options.call_seconds
        )

    async def _follow(self) -> None:
        """The first attempt counts as a change even when it fails: a plugin that was never connected is as
        absent as one that left."""
        state, is_known = self._channel.get_state(try_to_connect=True), False
        while True:
            connected = state is grpc.ChannelConnectivity.READY
            failed = state is grpc.ChannelConnectivity.TRANSIENT_FAILURE
            if connected != self.connected or (failed and not is_known):
                self.connected, is_known = connected, True
                self._on_connected(self)
            await self._channel.wait_for_state_change(state)
            state = self._channel.get_state(try_to_connect=True)


def _open_channel(socket: Path) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"unix:{socket}", options=_CHANNEL_OPTIONS)


async def _ask(
    channel: grpc.aio.Channel, method: str, request: Message, answer: type[_Answer], seconds: float
) -> _Answer:
    call: grpc.aio.UnaryUnaryMultiCallable[Message, _Answer] = channel.unary_unary(
        f"/{method}", request_serializer=_serialize, response_deserializer=answer.FromString
    )
    name = method.rpartition("/")[2]
    try:
        return await call(request, timeout=seconds)
    except grpc.aio.AioRpcError as error:
        raise PluginFailure(f"{name}: {_describe(error)}") from error
    except asyncio.CancelledError:
        _check_not_cancelled()
        raise PluginFailure(f"{name}: the connection was closed") from None


def _check_not_cancelled() -> None:
    """When a channel is closed under a call, gRPC cancels the task that waits for the call; only a task
    that was really cancelled must end."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _describe(error: grpc.aio.AioRpcError) -> str:
    return f"rpc error: code = {error.code().name} desc = {error.details()}"


def _claims(refs: Sequence[ClaimRef]) -> list[dra_v1_pb2.Claim]:
    return [dra_v1_pb2.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid) for ref in refs]


def _device(driver: str, device: dra_v1_pb2.Device) -> KubeletDevice:
    return KubeletDevice(
        driver=driver,
        pool=device.pool_name,
        device=device.device_name,
        request_names=tuple(device.request_names),
        cdi_ids=tuple(device.cdi_device_ids),
    )


def _check_entries(refs: Sequence[ClaimRef], errors: dict[str, str], method: str) -> None:
    """An answer must have an entry for each claim and no other; the first error ends the round."""
    wanted = {ref.uid: ref for ref in refs}
    for uid, error in errors.items():
        if uid not in wanted:
            raise PluginFailure(f"{method} returned a result for an unknown claim {uid}")
        if error:
            raise PluginFailure(f"{method} failed for ResourceClaim {wanted[uid].name}: {error}")
    if skipped := len(wanted.keys() - errors.keys()):
        raise PluginFailure(f"{method} skipped {skipped} ResourceClaims")
