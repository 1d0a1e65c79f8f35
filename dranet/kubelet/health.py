"""The health stream: what the kubelet shows as ``allocatedResourcesStatus`` of a pod's containers.

Wire: ``v1.DRAResourceHealth`` and its equal on the wire ``v1alpha1.DRAResourceHealth`` (KEP-4680). The
kubelet stamps its own time of arrival and turns every device that it has not heard of for
:data:`HEALTH_TIMEOUT_SECONDS` into Unknown, so a change-only stream would be wrong: everything is sent on
subscription, on a change, and again every :data:`HEALTH_RESEND_SECONDS`.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

import grpc
from msgspec import Struct

from dranet.kubelet.capabilities import KubeletObserver
from dranet.pb import health_v1_pb2 as pb

HEALTH_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""Newest first. Both the gRPC service name and the name advertised at registration."""

HEALTH_RESEND_SECONDS = 10.0
HEALTH_TIMEOUT_SECONDS = 30
MESSAGE_MAX_BYTES = 1024


class DeviceHealthFact(Struct, frozen=True):
    """Health of one published device. ``healthy`` is ``None`` where it is not known."""

    pool: str
    device: str
    healthy: bool | None
    message: str = ""


class HealthSource(Protocol):
    """Source of the devices' health; answers from memory."""

    def snapshot(self) -> Sequence[DeviceHealthFact]: ...


async def wait_or_pass(changed: asyncio.Event, seconds: float) -> None:
    """Return when ``changed`` is set, or after ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            await changed.wait()
    except TimeoutError:
        return


class HealthService:
    """One stream for each kubelet that watches; all show the same ``source``.

    ``clock`` gives unix seconds; ``wait`` returns at a change or after some seconds.
    """

    def __init__(
        self,
        source: HealthSource,
        *,
        clock: Callable[[], float] = time.time,
        wait: Callable[[asyncio.Event, float], Awaitable[None]] = wait_or_pass,
        observer: KubeletObserver | None = None,
    ) -> None:
        self._observer = observer or KubeletObserver()
        self._source = source
        self._clock = clock
        self._wait = wait
        self._watchers: set[asyncio.Event] = set()
        self._closed = False

    @property
    def watchers(self) -> int:
        """How many streams are open."""
        return len(self._watchers)

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Both versions of the service. The v1 messages are byte for byte those of v1alpha1."""
        return [self._service(service) for service in HEALTH_SERVICES]

    def notify(self) -> None:
        """Something changed: every stream sends a snapshot now."""
        for changed in self._watchers:
            changed.set()

    def close(self) -> None:
        """End every stream; the kubelet then forgets our devices' health."""
        self._closed = True
        self.notify()

    def _service(self, name: str) -> grpc.GenericRpcHandler:
        method = grpc.unary_stream_rpc_method_handler(
            functools.partial(self._watch, service=name),
            pb.NodeWatchResourcesRequest.FromString,
            pb.NodeWatchResourcesResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(name, {"NodeWatchResources": method})

    async def _watch(
        self,
        _request: pb.NodeWatchResourcesRequest,
        _context: object,
        service: str = HEALTH_SERVICES[0],
    ) -> AsyncIterator[pb.NodeWatchResourcesResponse]:
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            with self._observer.watches_health(service):
                while not self._closed:
                    changed.clear()
                    yield self._response()
                    await self._wait(changed, HEALTH_RESEND_SECONDS)
        finally:
            self._watchers.discard(changed)

    def _response(self) -> pb.NodeWatchResourcesResponse:
        now = int(self._clock())
        return pb.NodeWatchResourcesResponse(
            devices=[_to_wire(fact, now) for fact in self._source.snapshot()]
        )


def _to_wire(fact: DeviceHealthFact, now: int) -> pb.DeviceHealth:
    return pb.DeviceHealth(
        device=pb.DeviceIdentifier(pool_name=fact.pool, device_name=fact.device),
        health=_STATUS[fact.healthy],
        last_updated_time=now,
        health_check_timeout_seconds=HEALTH_TIMEOUT_SECONDS,
        message=cut_message(fact.message),
    )


_STATUS = {None: pb.UNKNOWN, True: pb.HEALTHY, False: pb.UNHEALTHY}


def cut_message(text: str) -> str:
    """At most 1024 bytes of UTF-8, whole characters, so that it fits whether bytes or characters are counted;
    what is longer ends in three dots, as the kubelet itself would cut it."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= MESSAGE_MAX_BYTES:
        return encoded.decode()
    return encoded[: MESSAGE_MAX_BYTES - 3].decode(errors="ignore") + "..."
