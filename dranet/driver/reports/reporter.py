"""Claim status and Events: queued, coalesced, retried, and written behind the walks' backs.

Anybody in the driver, on any thread, says what happened; the tasks of :meth:`Reporter.run` tell the API
server. The newest word on a claim replaces an older one that was not written yet. Writing is best effort for
the pod (the kubelet does not wait for it), so an unreachable API server delays a status and breaks nothing.
Each claim waits for itself alone: what the server does not take for one holds up no other, nor any Event.

Writes what the reporter has to say to the API server. Implements ``driver.reports.reporter.Writer``.

The Event about a device that is farther from its GPU than need be: once for each time that the claim's
status comes to say so.

The status is written first, and a driver may die before the Event is. So whoever finds the status saying it
since a short while says it, too, under a name made of that time: where the Event exists, the API server knows
it. Neither a restart nor a second instance repeats it, and none is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from dranet.cluster.backoff import Backoff
from dranet.cluster.claim_status import key_of
from dranet.cluster.claims import apply_device_statuses, build_field_manager
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.events import WARNING, EventNote, EventRecorder, ObjectRef
from dranet.errors import ClusterError, DranetError, Reason
from dranet.failpoints import Failpoint, reached
from dranet.model.claim import Claim, ClaimRef, PodRef
from dranet.model.event_reason import EventReason
from dranet.model.status import ConditionReason, ConditionType, DeviceStatus
from dranet.telemetry import Metrics

__all__ = ["EventNote", "Reporter", "Writer"]

log = logging.getLogger(__name__)
MAX_WAITING_CLAIMS = 1000
"""A node has a few hundred at most, so the oldest words are of pods that have ended; they go first."""
MAX_WAITING_EVENTS = 1000
"""More than that while the API server is away says nothing new; the oldest go first."""
MAX_EVENT_TRIES = 8
"""Of an Event that the server answers and does not take. Without an answer it waits."""
WRITERS = 3
"""Statuses that are written at once: a request that hangs holds up no other claim."""

RETRY_SECONDS = (0.2, 60.0)
"""First and longest wait before a claim's status, or an Event, is tried again."""
REFUSED_SECONDS = (60.0, 3600.0)
"""The same while a permission is missing: somebody has to grant it first."""


class Writer(Protocol):
    """Who speaks to the API server. Both raise ClusterError for what it does not take or does not answer, and
    ProtocolError for what cannot be read."""

    async def write_statuses(self, claim: ClaimRef, statuses: Sequence[DeviceStatus]) -> None: ...

    async def write_event(self, event: EventNote) -> None: ...


class _Waiting(Struct, eq=False):
    """The newest word on a claim."""

    claim: ClaimRef
    statuses: Sequence[DeviceStatus]
    due: float = 0.0
    """By the loop's clock."""
    in_hand: bool = False
    refused: bool = False
    """A permission is missing."""
    since: float = 0.0
    """When there was something to write, by the loop's clock."""
    backoff: Backoff = field(default_factory=lambda: Backoff(*RETRY_SECONDS))
    rests_until: float = 0.0
    """A newer word may come and make this one needless."""

    @property
    def at(self) -> float:
        """When it is to be written."""
        return max(self.due, self.rests_until)


class Backlog(Struct, frozen=True):
    """What waits to be written."""

    waiting: int
    age_seconds: float
    """Of the oldest; 0 while nothing waits."""


def do_nothing(_: EventNote) -> None:
    """Nobody listens."""


class Reporter:
    """Thread-safe front (:meth:`set_statuses`, :meth:`add_event`), a few tasks behind (:meth:`run`)."""

    def __init__(self, writer: Writer, metrics: Metrics, node: ObjectRef | None = None) -> None:
        """``node`` is where a missing permission is told, beside the log."""
        self._writer = writer
        self._metrics = metrics
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        """By claim UID, the oldest word first."""
        self._events: OrderedDict[EventNote, EventNote] = OrderedDict()
        """By what they say (:func:`_sense`); the same again counts up."""
        self._events_due = 0.0
        self._event_tries = 0
        self._events_fail = False
        self._refused_namespaces: set[str] = set()
        self._news = asyncio.Event()
        """Set, and replaced, whenever there is something to look at."""
        self.on_event: Callable[[EventNote], None] = do_nothing
        """Told of each Event, on whichever thread; must be quick."""

    def set_statuses(
        self, claim: ClaimRef, statuses: Sequence[DeviceStatus], *, rest_seconds: float = 0.0
    ) -> None:
        """Make these the claim's device statuses (all of ours at once), unless others come within
        ``rest_seconds``."""
        self._loop.call_soon_threadsafe(self._enqueue_statuses, claim, statuses, rest_seconds)

    def supersede_statuses(self, claim: ClaimRef, statuses: Sequence[DeviceStatus]) -> None:
        """Make these the claim's device statuses, if others wait to be written: another instance of the
        driver has written these, and an older word of ours must not come after its."""
        self._loop.call_soon_threadsafe(self._supersede_statuses, claim, statuses)

    def add_event(self, event: EventNote) -> None:
        """Record an Event."""
        self.on_event(event)
        self._loop.call_soon_threadsafe(self._enqueue_event, event, datetime.now(UTC))

    async def run(self) -> None:
        """Write what comes, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write_events(), name="report: Events")
            for number in range(WRITERS):
                tasks.create_task(self._write_statuses(), name=f"report: statuses {number}")

    async def flush(self, timeout_seconds: float) -> bool:
        """Wait until everything is written; whether it was in time. What waits to be tried again is tried at
        once; what a missing permission holds up is not waited for."""
        await asyncio.sleep(0)  # let submissions that are already on the loop's queue arrive
        self._events_due = 0.0
        for waiting in self._waiting.values():
            waiting.due = waiting.due if waiting.refused else 0.0
            waiting.rests_until = 0.0
        self._wake()
        deadline = self._loop.time() + timeout_seconds
        while self._events or any(not waiting.refused for waiting in self._waiting.values()):
            if self._loop.time() >= deadline:
                return False
            await self._wait_news(deadline)
        return True

    def get_backlog(self, kind: str) -> Backlog:
        """Of ``status`` or ``event``. For the event loop."""
        if kind == "status":
            now = self._loop.time()
            return _measure([now - waiting.since for waiting in self._waiting.values()])
        wall = datetime.now(UTC)
        firsts = [event.first for event in self._events.values() if event.first is not None]
        return _measure([(wall - first).total_seconds() for first in firsts])

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _wait_news(self, deadline: float | None) -> None:
        """Until something is new, or the deadline."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._news.wait()
        except TimeoutError:
            return

    # --- claim status -----------------------------------------------------------------------------------

    def _enqueue_statuses(
        self, claim: ClaimRef, statuses: Sequence[DeviceStatus], rest_seconds: float = 0.0
    ) -> None:
        now = self._loop.time()
        waiting = self._waiting.setdefault(claim.uid, _Waiting(claim, statuses, since=now))
        waiting.statuses = statuses
        waiting.rests_until = now + rest_seconds
        self._waiting.move_to_end(claim.uid)
        if len(self._waiting) > MAX_WAITING_CLAIMS:
            self._waiting.popitem(last=False)
            self._metrics.reports.dropped.labels("status").inc()
        self._wake()

    def _supersede_statuses(self, claim: ClaimRef, statuses: Sequence[DeviceStatus]) -> None:
        if claim.uid in self._waiting:
            self._enqueue_statuses(claim, statuses)

    async def _write_statuses(self) -> None:
        while True:
            waiting = self._find_due()
            if waiting is None:
                free = [other.at for other in self._waiting.values() if not other.in_hand]
                await self._wait_news(min(free, default=None))
            else:
                await self._write_one(waiting)

    def _find_due(self) -> _Waiting | None:
        now = self._loop.time()
        return next((w for w in self._waiting.values() if not w.in_hand and w.at <= now), None)

    async def _write_one(self, waiting: _Waiting) -> None:
        statuses = waiting.statuses
        waiting.in_hand = True
        try:
            await self._writer.write_statuses(waiting.claim, statuses)
        except DranetError as error:
            is_settled = self._note_failure(waiting, error)
        except Exception:  # a status is not worth the NICs of a node
            log.exception("bug in a claim's status", extra={"context": {"claim": waiting.claim}})
            self._metrics.reports.dropped.labels("status").inc()
            is_settled = True
        else:
            is_settled = True
            self._note_success(waiting)
        finally:
            waiting.in_hand = False
        has_newer = waiting.statuses is not statuses
        if is_settled and not has_newer and self._waiting.get(waiting.claim.uid) is waiting:
            del self._waiting[waiting.claim.uid]
        self._wake()

    def _note_failure(self, waiting: _Waiting, error: DranetError) -> bool:
        """Whether that was the last try."""
        self._metrics.api.errors.labels(error.reason).inc()
        if error.reason is Reason.API_FORBIDDEN:
            self._note_refusal(waiting, error)
        elif not error.retryable:
            log.error("claim status refused: %s", error, extra={"context": {"claim": waiting.claim}})
            self._metrics.reports.dropped.labels("status").inc()
            return True
        asked = error.retry_after_seconds if isinstance(error, ClusterError) else 0.0
        waiting.due = self._loop.time() + max(waiting.backoff.next_seconds(), asked)
        return False

    def _note_refusal(self, waiting: _Waiting, error: DranetError) -> None:
        """Tell once for each namespace, and try again now and then: the permission may come."""
        if not waiting.refused:
            waiting.refused, waiting.backoff = True, Backoff(*REFUSED_SECONDS)
        if waiting.claim.namespace in self._refused_namespaces:
            return
        self._refused_namespaces.add(waiting.claim.namespace)
        told = f"the status of claims in {waiting.claim.namespace} cannot be written: {error}"
        log.error("%s", told)
        if self._node is not None:
            self.add_event(EventNote(self._node, WARNING, EventReason.CLAIM_STATUS_REFUSED, told))

    def _note_success(self, waiting: _Waiting) -> None:
        waiting.due, waiting.backoff = 0.0, Backoff(*RETRY_SECONDS)
        if waiting.claim.namespace in self._refused_namespaces:
            self._refused_namespaces.discard(waiting.claim.namespace)
            for other in self._waiting.values():
                if other.refused and other.claim.namespace == waiting.claim.namespace:
                    other.refused, other.due, other.backoff = False, 0.0, Backoff(*RETRY_SECONDS)

    # --- Events -----------------------------------------------------------------------------------------

    def _enqueue_event(self, event: EventNote, now: datetime) -> None:
        sense = _sense(event)
        earlier = self._events.get(sense, replace(sense, count=0, first=event.first or now))
        count = earlier.count + event.count
        self._events[sense] = replace(earlier, count=count, last=now)
        if len(self._events) > MAX_WAITING_EVENTS:
            self._events.popitem(last=False)
            self._metrics.reports.dropped.labels("event").inc()
        self._wake()

    async def _write_events(self) -> None:
        backoff = Backoff(*RETRY_SECONDS)
        while True:
            if not self._events:
                await self._wait_news(None)
            elif self._loop.time() < self._events_due:
                await self._wait_news(self._events_due)
            elif await self._write_event():
                backoff.reset()
                self._wake()
            else:
                self._events_due = self._loop.time() + backoff.next_seconds()

    async def _write_event(self) -> bool:
        """The oldest one; whether the next one may follow at once."""
        sense, event = next(iter(self._events.items()))
        try:
            await self._writer.write_event(event)
        except DranetError as error:
            self._metrics.api.errors.labels(error.reason).inc()
            if not self._events_fail:
                self._events_fail = True
                log.warning("Events cannot be written (said once until it works again): %s", error)
            self._event_tries += isinstance(error, ClusterError) and error.status != 0
            if error.retryable and self._event_tries < MAX_EVENT_TRIES:
                return False
            self._metrics.reports.dropped.labels("event").inc()
        except Exception:
            log.exception("bug in an Event about %s", event.regarding.name)
            self._metrics.reports.dropped.labels("event").inc()
        else:
            self._events_fail = False
        self._event_tries = 0
        self._take_off(sense, event)
        return True

    def _take_off(self, sense: EventNote, event: EventNote) -> None:
        """What has happened since stays."""
        newest = self._events.pop(sense, event)
        if newest.count > event.count:
            self._events[sense] = replace(newest, count=newest.count - event.count, first=event.last)


def _measure(ages: Sequence[float]) -> Backlog:
    return Backlog(len(ages), max(0.0, max(ages, default=0.0)))


def _sense(event: EventNote) -> EventNote:
    """The same for Events that say the same."""
    return replace(event, count=1, first=None, last=None)


Complete = Callable[[Claim, Sequence[DeviceStatus], Sequence[JsonObject]], Sequence[DeviceStatus]]


def as_they_are(
    _: Claim, statuses: Sequence[DeviceStatus], existing: Sequence[JsonObject]
) -> Sequence[DeviceStatus]:
    """Nothing more is known."""
    del existing
    return statuses


class ApiWriter:
    """In the name of this driver on this node, whichever instance of it."""

    def __init__(
        self,
        client: ApiClient,
        driver_name: str,
        node_name: str,
        complete: Complete = as_they_are,
        find_pod: FindPod = lambda _: None,
    ) -> None:
        """``complete`` adds to the statuses of a claim what is known when they are written; ``find_pod``
        tells by its UID which pod has its devices."""
        self._client = client
        self._field_manager = build_field_manager(driver_name, node_name)
        self._events = EventRecorder(client, component=driver_name, host=node_name)
        self._complete = complete
        self._misalignments = Misalignments(find_pod)
        self._has_told = False
        self.add_event: Callable[[EventNote], None] = do_nothing
        """Told what a write gives cause to say; it must not write it at once."""

    async def write_statuses(self, claim: ClaimRef, statuses: Sequence[DeviceStatus]) -> None:
        await apply_device_statuses(
            self._client,
            claim,
            self._field_manager,
            statuses,
            complete=self._complete,
            on_dropped=self._tell_dropped,
            on_written=self._note_written,
        )
        reached(Failpoint.ATTACH_STATUS_WRITTEN)

    def _note_written(
        self, claim: Claim, before: Sequence[JsonObject], written: Sequence[JsonObject]
    ) -> None:
        for event in self._misalignments.find(claim.ref, before, written):
            self.add_event(event)

    def _tell_dropped(self) -> None:
        if not self._has_told:
            self._has_told = True
            log.warning(
                "claims get no status of their devices: the API server drops it; its feature gate "
                "DRAResourceClaimDeviceStatus is off"
            )

    async def write_event(self, event: EventNote) -> None:
        await self._events.record(event)


HINT = "`dranet claim new` writes a claim that gets the nearest"

MAX_AGE = timedelta(minutes=30)
"""Of what the status says, to be said again. Clusters keep Events for an hour."""
MAX_TOLD = 4096
"""Devices. A node has a few hundred at most."""

FindPod = Callable[[str], PodRef | None]
"""By claim UID: the pod that has its devices."""


class _Said(NamedTuple):
    """What the status of one device says, and since when."""

    key: tuple[str, ...]
    since: datetime
    message: str


class Misalignments:
    """For one driver; remembers what it has told."""

    def __init__(self, find_pod: FindPod, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._find_pod = find_pod
        self._now = now
        self._told: OrderedDict[tuple[str, ...], None] = OrderedDict()

    def find(
        self, claim: ClaimRef, before: Sequence[JsonObject], written: Sequence[JsonObject]
    ) -> Iterator[EventNote]:
        """One for each device that is news, about the pod that has it: other pods may have reserved the
        claim, and have nothing of it. Where the pod has just ended, about the claim."""
        known = {said.key for said in map(_read, before) if said is not None}
        for said in filter(None, map(_read, written)):
            is_old = said.key in known and self._now() - said.since > MAX_AGE
            if not is_old and self._note((claim.uid, *said.key)):
                yield EventNote(
                    self._find_object(claim),
                    WARNING,
                    EventReason.MISALIGNED_TOPOLOGY,
                    f"{said.key[2]}: {said.message}; {HINT}",
                    first=said.since,
                    identity="/".join((claim.uid, *said.key)),
                )
        for entry in written:
            if _read(entry) is None:  # should it be so again, that is news
                self._told.pop((claim.uid, *key_of(entry)), None)

    def _note(self, key: tuple[str, ...]) -> bool:
        """Whether it was not told yet."""
        is_news = key not in self._told
        self._told[key] = None
        self._told.move_to_end(key)
        if len(self._told) > MAX_TOLD:
            self._told.popitem(last=False)
        return is_news

    def _find_object(self, claim: ClaimRef) -> ObjectRef:
        pod = self._find_pod(claim.uid)
        if pod is None:
            return ObjectRef("resource.k8s.io/v1", "ResourceClaim", claim.name, claim.namespace, claim.uid)
        return ObjectRef("v1", "Pod", pod.name, pod.namespace, pod.uid)


def _read(entry: JsonObject) -> _Said | None:
    """Of an entry that says that its device could be nearer; of any other ``None``."""
    wanted = (ConditionType.ALIGNED, ConditionReason.WORSE_THAN_POSSIBLE)
    for condition in entry.get("conditions") or ():
        if (condition.get("type"), condition.get("reason")) == wanted:
            since = _read_time(condition.get("lastTransitionTime"))
            return _Said(key_of(entry), since, str(condition.get("message") or ""))
    return None


def _read_time(text: object) -> datetime:
    """Very long ago where it cannot be read."""
    try:
        return datetime.fromisoformat(str(text)).astimezone(UTC)
    except ValueError:
        return datetime.fromtimestamp(0, UTC)
