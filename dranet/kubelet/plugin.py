"""What the kubelet calls on the driver's own socket: Prepare and Unprepare, and the stream of devices'
health.

Wire: ``k8s.io.kubelet.pkg.apis.dra.{v1,v1beta1}.DRAPlugin``. Both versions have the same messages except
``share_id``, which v1beta1 has not, so the v1 classes speak both. ``v1.DRAResourceHealth`` and
``v1alpha1.DRAResourceHealth`` (KEP-4680) are equal on the wire. The protocol's promises are kept here (an
entry for every UID, one call at a time for a claim, work that outlives an impatient caller); all decisions
are the :class:`ClaimHandler`'s.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakValueDictionary

import grpc
import grpc.aio
from msgspec import Struct
from msgspec.structs import replace

from dranet.errors import DranetError
from dranet.kubelet.sockets import UnixServer
from dranet.model.claim import ClaimRef
from dranet.pb import dra_v1_pb2 as pb
from dranet.pb import health_v1_pb2 as health_pb
from dranet.terminal import cut_bytes

log = logging.getLogger(__name__)


class KubeletCapabilities(Struct, frozen=True):
    """What the kubelet has shown that it can do: seen in its calls, as it names no version. Times are unix
    seconds, ``None``: it never happened; services are named as at registration, empty: none yet."""

    asked_at: float | None = None
    """When it last asked who we are (``GetInfo``)."""
    registered: bool | None = None
    """Its last word; ``None`` since our registration socket was last made."""
    registered_at: float | None = None
    """When that word came."""
    registration_error: str = ""
    dra_service: str = ""
    """The version of the DRA service that it called last."""
    prepared_at: float | None = None
    """When it last called Prepare with a claim."""
    unprepared_at: float | None = None
    health_service: str = ""
    """The version of the health service that it opened last."""
    health_streams: int = 0
    """Health streams that are open now."""
    health_opened_at: float | None = None


class KubeletObserver:
    """Collects :class:`KubeletCapabilities`. For the event loop alone; ``clock`` gives unix seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.capabilities = KubeletCapabilities()

    def asked(self) -> None:
        self.capabilities = replace(self.capabilities, asked_at=self._clock())

    def notified(self, *, registered: bool, error: str) -> None:
        news = {"registered": registered, "registered_at": self._clock(), "registration_error": error}
        self.capabilities = replace(self.capabilities, **news)

    def reset(self) -> None:
        """Our registration socket was made again: whether the kubelet has registered it is not known yet."""
        news = {"registered": None, "registered_at": None, "registration_error": ""}
        self.capabilities = replace(self.capabilities, **news)

    def prepares(self, service: str) -> None:
        """``NodePrepareResources`` with at least one claim."""
        self.capabilities = replace(self.capabilities, dra_service=service, prepared_at=self._clock())

    def unprepares(self, service: str) -> None:
        """``NodeUnprepareResources`` with at least one claim."""
        self.capabilities = replace(self.capabilities, dra_service=service, unprepared_at=self._clock())

    @contextmanager
    def watches_health(self, service: str) -> Iterator[None]:
        """One ``NodeWatchResources`` stream, while it is open."""
        self.capabilities = replace(self.capabilities, health_service=service, health_opened_at=self._clock())
        self._count_streams(1)
        try:
            yield
        finally:
            self._count_streams(-1)

    def _count_streams(self, change: int) -> None:
        streams = self.capabilities.health_streams + change
        self.capabilities = replace(self.capabilities, health_streams=streams)


HEALTH_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""Newest first. Both the gRPC service name and the name advertised at registration."""

HEALTH_RESEND_SECONDS = 10.0
HEALTH_TIMEOUT_SECONDS = 30
"""The kubelet turns a device that it has not heard of in this time into Unknown, by its own clock: so
everything is sent on subscription, on a change, and again every :data:`HEALTH_RESEND_SECONDS`."""
MESSAGE_MAX_BYTES = 1024
"""The kubelet's limit, in characters; it fits however they are counted."""


class DeviceHealthFact(Struct, frozen=True):
    """Health of one published device. ``healthy`` is ``None`` where it is not known."""

    pool: str
    device: str
    healthy: bool | None
    message: str = ""


class HealthSource(Protocol):
    def snapshot(self) -> Sequence[DeviceHealthFact]: ...


async def wait_or_pass(changed: asyncio.Event, seconds: float) -> None:
    """Return when ``changed`` is set, or after ``seconds``."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await changed.wait()


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

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        return [self._service(service) for service in HEALTH_SERVICES]

    def notify(self) -> None:
        for changed in self._watchers:
            changed.set()

    def close(self) -> None:
        """End every stream; the kubelet then forgets our devices' health."""
        self._closed = True
        self.notify()

    def _service(self, name: str) -> grpc.GenericRpcHandler:
        method = grpc.unary_stream_rpc_method_handler(
            functools.partial(self._watch, service=name),
            health_pb.NodeWatchResourcesRequest.FromString,
            health_pb.NodeWatchResourcesResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(name, {"NodeWatchResources": method})

    async def _watch(
        self,
        _request: health_pb.NodeWatchResourcesRequest,
        _context: object,
        service: str = HEALTH_SERVICES[0],
    ) -> AsyncIterator[health_pb.NodeWatchResourcesResponse]:
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            with self._observer.watches_health(service):
                while not self._closed:
                    changed.clear()
                    now = int(self._clock())
                    devices = [_health_to_wire(fact, now) for fact in self._source.snapshot()]
                    yield health_pb.NodeWatchResourcesResponse(devices=devices)
                    await self._wait(changed, HEALTH_RESEND_SECONDS)
        finally:
            self._watchers.discard(changed)


def _health_to_wire(fact: DeviceHealthFact, now: int) -> health_pb.DeviceHealth:
    return health_pb.DeviceHealth(
        device=health_pb.DeviceIdentifier(pool_name=fact.pool, device_name=fact.device),
        health=_STATUS[fact.healthy],
        last_updated_time=now,
        health_check_timeout_seconds=HEALTH_TIMEOUT_SECONDS,
        message=cut_bytes(fact.message, MESSAGE_MAX_BYTES),
    )


_STATUS = {None: health_pb.UNKNOWN, True: health_pb.HEALTHY, False: health_pb.UNHEALTHY}


class ClaimLocks:
    """Locks by claim UID; a lock that is neither held nor waited for takes no memory."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def hold(self, uids: Iterable[str]) -> AsyncIterator[None]:
        """Hold all of them, taken in one order, so that two batches cannot block each other."""
        async with AsyncExitStack() as held:
            for uid in sorted(set(uids)):
                lock = self._locks.setdefault(uid, asyncio.Lock())
                await held.enter_async_context(lock)
            yield


UID_MAX_CHARACTERS = 128
"""An API server's UIDs have 36. With what is put around it a file name of 255 bytes still holds it."""
NAME_MAX_CHARACTERS = 253
"""Limit of an object's name and of a namespace (``k8s.io/apimachinery/pkg/util/validation``: DNS
subdomain)."""

_UID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_SHOWN_CHARACTERS = 80


def sort_refs(refs: Sequence[ClaimRef]) -> tuple[tuple[ClaimRef, ...], Mapping[str, str]]:
    """The claims to work on, each once, and by UID why another one cannot be worked on.

    A UID that comes twice, for the same claim, is one claim; for two, none of them can be trusted.
    """
    good: dict[str, ClaimRef] = {}
    bad: dict[str, str] = {}
    for ref in refs:
        if ref.uid in bad:
            continue
        complaint = _find_fault(ref)
        if not complaint and good.setdefault(ref.uid, ref) != ref:
            complaint = f"two claims have the UID {ref.uid}: {good.pop(ref.uid)} and {ref}"
        if complaint:
            bad[ref.uid] = complaint
    return tuple(good.values()), bad


def _find_fault(ref: ClaimRef) -> str:
    """Empty if an API server could have made it."""
    texts = (
        ("UID", ref.uid, _UID, UID_MAX_CHARACTERS),
        ("name", ref.name, _NAME, NAME_MAX_CHARACTERS),
        ("namespace", ref.namespace, _NAME, NAME_MAX_CHARACTERS),
    )
    for what, text, pattern, most in texts:
        if len(text) > most or not pattern.fullmatch(text):
            return f"{text[:_SHOWN_CHARACTERS]!r} cannot be the {what} of a claim"
    return ""


KUBELET_TIMEOUT_SECONDS = 45.0
"""The kubelet's patience with one call (``pkg/kubelet/cm/dra``)."""
ANSWER_SECONDS = 30.0
"""We answer before that, also for a claim whose work is not done: a named reason is better than a timeout."""

READ_SECONDS = 0.1
"""For a caller to read an answer that was sent; gRPC does not report when it has. One that takes longer may
lose it, and asks again."""
CANCEL_SECONDS = 2.0
"""For what undoes itself when it is cancelled; no caller waits for it any longer."""


class DraVersion(Struct, frozen=True):
    """One version of the service. The name advertised at registration is *not* the gRPC service's."""

    advertised: str
    service: str
    has_share_id: bool


DRA_VERSIONS = (
    DraVersion("v1.DRAPlugin", "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", has_share_id=True),
    DraVersion("v1beta1.DRAPlugin", "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin", has_share_id=False),
)
"""Newest first, as the kubelet takes the first one that it knows."""


class PreparedDeviceAnswer(Struct, frozen=True):
    """One allocated device of a claim, as the kubelet wants it back.

    ``request_names`` are main requests (``nic`` for ``nic/fast``), empty for every container of the claim.
    ``cdi_ids`` are fully qualified and resolvable already. ``share_id`` repeats the allocation's, if any.
    """

    request_names: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...] = ()
    share_id: str | None = None


class PrepareOutcome(Struct, frozen=True):
    """The answer for one claim: its devices, or why not. A text in ``error`` fails this claim alone."""

    devices: tuple[PreparedDeviceAnswer, ...] = ()
    error: str = ""


class ClaimHandler(Protocol):
    """Handler of the calls. Never called twice at a time for one claim; other claims may run concurrently.

    Neither call is cancelled because the kubelet gave up: it would repeat it anyway. A raised
    :class:`DranetError` fails every claim of the call with its text; anything else is a bug.
    """

    async def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, PrepareOutcome]:
        """Outcome by claim UID, one for each of ``refs``. Repeated calls give the same devices."""
        ...

    async def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, str]:
        """Error text by claim UID, one for each of ``refs``; empty is success, also for unknown claims."""
        ...


_Outcome = TypeVar("_Outcome")
_Context = grpc.aio.ServicerContext[Any, Any]


class DraPluginServer(UnixServer):
    """Serves every version of DRAPlugin, and the health stream if there is one, on one socket."""

    def __init__(
        self,
        socket: Path,
        handler: ClaimHandler,
        health: HealthService | None = None,
        *,
        observer: KubeletObserver | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._handler = handler
        self._health = health
        self._observer = observer or KubeletObserver()
        self._answer_seconds = answer_seconds
        self._locks = ClaimLocks()
        self._in_flight: dict[asyncio.Task[Any], float] = {}
        self._unanswered: set[asyncio.Future[None]] = set()
        """One for each call whose caller cannot have read the answer yet."""
        self._refusal = ""
        handlers = [self._service(version) for version in DRA_VERSIONS]
        if health is not None:
            handlers += health.handlers()
        super().__init__(socket, handlers, grace_seconds=KUBELET_TIMEOUT_SECONDS)

    @property
    def supported_versions(self) -> tuple[str, ...]:
        """What registration may advertise: exactly what is served."""
        versions = tuple(version.advertised for version in DRA_VERSIONS)
        return versions if self._health is None else versions + HEALTH_SERVICES

    def list_calls(self) -> list[tuple[str, float]]:
        """Calls being worked on, also those that their caller has given up: each with its claims, and for how
        many seconds."""
        now = time.monotonic()
        return [(task.get_name(), now - since) for task, since in tuple(self._in_flight.items())]

    def refuse(self, reason: str) -> None:
        """From now on every claim of a Prepare fails with ``reason``; Unprepare still works."""
        self._refusal = reason

    async def drain(self, timeout_seconds: float) -> bool:
        """Wait until no call is in flight, and callers had time to read our answers: a caller that learns
        that we leave hangs up, and loses what it has not read. False if ``timeout_seconds`` were not
        enough."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while waits_for := {*self._in_flight, *self._unanswered}:
                    await asyncio.wait(waits_for)
        except TimeoutError:
            return False
        return True

    async def stop(self, grace_seconds: float = 1.0) -> None:
        """End the health streams, cancel what was not drained, remove our socket. Repeatable."""
        if self._health is not None:
            self._health.close()
        for task in self._in_flight:
            task.cancel()
        await self.drain(CANCEL_SECONDS)
        await super().stop(grace_seconds)

    def _service(self, version: DraVersion) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            version.service,
            {
                "NodePrepareResources": grpc.unary_unary_rpc_method_handler(
                    functools.partial(self._prepare, version=version),
                    pb.NodePrepareResourcesRequest.FromString,
                    pb.NodePrepareResourcesResponse.SerializeToString,
                ),
                "NodeUnprepareResources": grpc.unary_unary_rpc_method_handler(
                    functools.partial(self._unprepare, version=version),
                    pb.NodeUnprepareResourcesRequest.FromString,
                    pb.NodeUnprepareResourcesResponse.SerializeToString,
                ),
            },
        )

    async def _prepare(
        self, request: pb.NodePrepareResourcesRequest, context: _Context, *, version: DraVersion
    ) -> pb.NodePrepareResourcesResponse:
        if request.claims:
            self._observer.prepares(version.advertised)
        refs = await _parse_refs(request.claims, context)
        good, bad = sort_refs(refs)
        outcomes = {uid: _failed(why) for uid, why in bad.items()}
        if self._refusal:
            outcomes |= {ref.uid: _failed(self._refusal) for ref in good}
        else:
            outcomes |= await self._run(self._handler.prepare, good, _failed, context)
        has_share_id = version.has_share_id
        return pb.NodePrepareResourcesResponse(
            claims={uid: _to_wire(outcome, has_share_id=has_share_id) for uid, outcome in outcomes.items()}
        )

    async def _unprepare(
        self, request: pb.NodeUnprepareResourcesRequest, context: _Context, *, version: DraVersion
    ) -> pb.NodeUnprepareResourcesResponse:
        if request.claims:
            self._observer.unprepares(version.advertised)
        refs = await _parse_refs(request.claims, context)
        good, bad = sort_refs(refs)
        # Nothing was ever prepared for the bad ones, and Unprepare of the unknown succeeds.
        errors = dict.fromkeys(bad, "") | await self._run(self._handler.unprepare, good, str, context)
        return pb.NodeUnprepareResourcesResponse(
            claims={uid: pb.NodeUnprepareResourceResponse(error=error) for uid, error in errors.items()}
        )

    async def _run(
        self,
        call: Callable[[Sequence[ClaimRef]], Awaitable[Mapping[str, _Outcome]]],
        refs: Sequence[ClaimRef],
        failed: Callable[[str], _Outcome],
        context: _Context,
    ) -> dict[str, _Outcome]:
        """Run the handler in a task of its own, which goes on when the caller gives up or time is over."""
        if not refs:
            return {}  # a liveness probe
        self._expect_answer(context)
        started = asyncio.Event()
        task = asyncio.create_task(self._call_in_turn(call, refs, started), name=_describe(call, refs))
        self._in_flight[task] = time.monotonic()
        task.add_done_callback(self._finish)
        try:
            done, _ = await asyncio.wait({task}, timeout=self._answer_seconds)
        finally:
            # Given up, by the caller or by us: what has not begun would only pile up behind what has.
            if not started.is_set():
                task.cancel()
        if not done:
            late = f"not done after {self._answer_seconds:g} s"
            why = f"{late}; the work goes on, and the kubelet's next call finds what it made"
            return {ref.uid: failed(why) for ref in refs}
        return await _read_result(task, refs, failed, context)

    def _expect_answer(self, context: _Context) -> None:
        loop = asyncio.get_running_loop()
        answered = loop.create_future()
        self._unanswered.add(answered)

        def note(_: object) -> None:
            """gRPC has sent it, or has lost its caller."""
            loop.call_later(READ_SECONDS, self._forget_answer, answered)

        context.add_done_callback(cast("Any", note))  # which it calls by position, against its stubs

    def _forget_answer(self, answered: asyncio.Future[None]) -> None:
        self._unanswered.discard(answered)
        answered.set_result(None)

    async def _call_in_turn(
        self,
        call: Callable[[Sequence[ClaimRef]], Awaitable[Mapping[str, _Outcome]]],
        refs: Sequence[ClaimRef],
        started: asyncio.Event,
    ) -> Mapping[str, _Outcome]:
        async with self._locks.hold(ref.uid for ref in refs):
            started.set()
            return await call(refs)

    def _finish(self, task: asyncio.Task[Any]) -> None:
        self._in_flight.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, DranetError):
            log.error("bug in %s", task.get_name(), exc_info=error)


async def _read_result(
    task: asyncio.Task[Mapping[str, _Outcome]],
    refs: Sequence[ClaimRef],
    failed: Callable[[str], _Outcome],
    context: _Context,
) -> dict[str, _Outcome]:
    """The handler's answer with an entry for every claim and no other, as the kubelet demands it."""
    if task.cancelled():
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the driver is stopping")
    error = task.exception()
    if isinstance(error, DranetError):
        return {ref.uid: failed(str(error)) for ref in refs}
    if error is not None:
        await context.abort(grpc.StatusCode.INTERNAL, f"bug in the driver: {type(error).__name__}: {error}")
    return _complete(task.result(), refs, failed)


def _complete(
    answer: Mapping[str, _Outcome], refs: Sequence[ClaimRef], failed: Callable[[str], _Outcome]
) -> dict[str, _Outcome]:
    unknown = answer.keys() - {ref.uid for ref in refs}
    if unknown:
        names = ", ".join(sorted(unknown))
        log.error("bug in the driver: it answered for claims that were not asked for: %s", names)
    silence = {ref.uid: failed(f"bug in the driver: no answer for claim {ref}") for ref in refs}
    return {uid: answer.get(uid, nothing) for uid, nothing in silence.items()}


async def _parse_refs(claims: Sequence[pb.Claim], context: _Context) -> list[ClaimRef]:
    if not all(claim.uid for claim in claims):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a claim without uid")
    return [ClaimRef(namespace=claim.namespace, name=claim.name, uid=claim.uid) for claim in claims]


def _failed(error: str) -> PrepareOutcome:
    return PrepareOutcome(error=error)


def _to_wire(outcome: PrepareOutcome, *, has_share_id: bool) -> pb.NodePrepareResourceResponse:
    if outcome.error:
        return pb.NodePrepareResourceResponse(error=outcome.error)
    devices = [
        pb.Device(
            request_names=list(device.request_names),
            pool_name=device.pool,
            device_name=device.device,
            cdi_device_ids=list(device.cdi_ids),
            share_id=device.share_id if has_share_id else None,
        )
        for device in outcome.devices
    ]
    return pb.NodePrepareResourceResponse(devices=devices)


def _describe(call: Callable[..., object], refs: Sequence[ClaimRef]) -> str:
    name = getattr(call, "__name__", "call")
    return f"{name} of {', '.join(f'{ref} ({ref.uid})' for ref in refs)}"
