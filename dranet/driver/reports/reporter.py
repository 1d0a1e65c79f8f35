"""Claim status and Events: queued, coalesced, retried and written to the API server in the background.

The newest status of a claim replaces an older one that was not written yet. The kubelet waits for none of it,
and a claim whose status is refused delays neither other claims nor Events.

An Event reports a device that is farther from its GPU than necessary, each time that the claim's status
begins to show it. The driver may die between the two. Therefore an instance that finds a recent status of
that kind writes the Event again, under a name derived from the time in the status: the API server rejects a
duplicate.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from dranet.cluster.claims import apply_device_statuses, build_field_manager, key_of
from dranet.cluster.client import ApiClient, Backoff, JsonObject
from dranet.cluster.events import NORMAL, WARNING, EventNote, EventRecorder, ObjectRef
from dranet.errors import ClusterError, DranetError, Reason
from dranet.failpoints import Failpoint, reached
from dranet.model.claim import Claim, ClaimRef, PodRef
from dranet.model.status import ConditionReason, ConditionType, DeviceStatus, EventReason
from dranet.telemetry import Metrics

log = logging.getLogger(__name__)

MAX_WAITING_CLAIMS = 1000
"""A node has a few hundred at most, so the oldest statuses are of pods that have ended. They are dropped."""
MAX_WAITING_EVENTS = 1000
"""The oldest are dropped."""
MAX_EVENT_TRIES = 8
"""For an Event that the server refuses. Without an answer it waits."""
WRITERS = 3
"""Statuses that are written at once: a request that hangs delays no other claim."""

RETRY_SECONDS = (0.2, 60.0)
"""First and longest wait before a claim's status, or an Event, is retried."""
REFUSED_SECONDS = (60.0, 3600.0)
"""The same while a permission is missing."""

HINT = "`dranet claim new` writes a claim that gets the nearest"

MAX_AGE = timedelta(minutes=30)
"""How old a misalignment in the status may be to be reported again. Clusters keep Events for an hour."""
MAX_REPORTED = 4096
"""Devices. A node has a few hundred at most."""

FindPod = Callable[[str], PodRef | None]
"""Returns the pod that has the devices of a claim, by the claim's UID."""
Complete = Callable[[Claim, Sequence[DeviceStatus], Sequence[JsonObject]], Sequence[DeviceStatus]]
"""Returns the statuses to write, from those reported and the entries that the claim has now."""


class _Waiting(Struct, eq=False):
    """The newest statuses of a claim."""

    claim: ClaimRef
    statuses: Sequence[DeviceStatus]
    due: float = 0.0
    """By the loop's clock."""
    in_hand: bool = False
    refused: bool = False
    """A permission is missing."""
    since: float = 0.0
    """Since when it waits, by the loop's clock."""
    backoff: Backoff = field(default_factory=lambda: Backoff(*RETRY_SECONDS))
    rests_until: float = 0.0
    """Newer statuses may follow and replace these."""

    @property
    def at(self) -> float:
        return max(self.due, self.rests_until)


class Backlog(Struct, frozen=True):
    waiting: int
    age_seconds: float
    """Age of the oldest; 0 while nothing waits."""


class Reporter:
    """:meth:`set_statuses` and :meth:`add_event` may be called on any thread; :meth:`run` writes."""

    def __init__(
        self,
        client: ApiClient,
        driver_name: str,
        node_name: str,
        metrics: Metrics,
        complete: Complete,
        find_pod: FindPod,
        recent: RecentEvents,
    ) -> None:
        """
        Args:
            recent: also receives every Event, for the status page.
        """
        self._client = client
        self._field_manager = build_field_manager(driver_name, node_name)
        self._recorder = EventRecorder(client, component=driver_name, host=node_name)
        self._node = ObjectRef.of_node(node_name)
        self._metrics = metrics
        self._complete = complete
        self._misalignments = Misalignments(find_pod)
        self._recent = recent
        self._loop = asyncio.get_running_loop()
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        """By claim UID, the oldest status first."""
        self._events: OrderedDict[EventNote, EventNote] = OrderedDict()
        """By their content. A repeated Event is counted."""
        self._events_due = 0.0
        self._event_tries = 0
        self._events_fail = False
        self._has_logged_dropped = False
        self._refused_namespaces: set[str] = set()
        self._news = asyncio.Event()
        """Set, and replaced, when there is something to look at."""
        waiting, oldest = metrics.reports.waiting, metrics.reports.oldest
        waiting.labels("status").set_function(lambda: self.get_backlog("status").waiting)
        waiting.labels("event").set_function(lambda: self.get_backlog("event").waiting)
        oldest.labels("status").set_function(lambda: self.get_backlog("status").age_seconds)
        oldest.labels("event").set_function(lambda: self.get_backlog("event").age_seconds)

    def set_statuses(
        self, claim: ClaimRef, statuses: Sequence[DeviceStatus], *, rest_seconds: float = 0.0
    ) -> None:
        """Make these the statuses of all our devices of the claim, unless newer ones follow within
        ``rest_seconds``."""
        self._loop.call_soon_threadsafe(self._enqueue_statuses, claim, statuses, rest_seconds)

    def supersede_statuses(self, claim: ClaimRef, statuses: Sequence[DeviceStatus]) -> None:
        """Replace the claim's device statuses if any wait to be written: another instance of the driver has
        written these, and an older status of ours must not overwrite them."""
        self._loop.call_soon_threadsafe(self._supersede_statuses, claim, statuses)

    def add_event(self, event: EventNote) -> None:
        self._recent.add_event(event)
        self._loop.call_soon_threadsafe(self._enqueue_event, event, datetime.now(UTC))

    def add_normal(self, word: str, about: ObjectRef, sentence: str) -> None:
        """Show something normal on the status page; it makes no Event."""
        self._recent.add_normal(word, about, sentence)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write_events(), name="report: Events")
            for number in range(WRITERS):
                tasks.create_task(self._write_statuses(), name=f"report: statuses {number}")

    async def flush(self, timeout_seconds: float) -> bool:
        """Wait until everything is written, and return whether it was in time.

        Retries happen at once. Statuses that lack a permission are not waited for.
        """
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
        """Return the backlog of ``status`` or ``event``. For the event loop."""
        if kind == "status":
            now = self._loop.time()
            ages = [now - waiting.since for waiting in self._waiting.values()]
        else:
            wall = datetime.now(UTC)
            ages = [(wall - event.first).total_seconds() for event in self._events.values() if event.first]
        return Backlog(len(ages), max([0.0, *ages]))

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _wait_news(self, deadline: float | None) -> None:
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
            now = self._loop.time()
            waiting = next((w for w in self._waiting.values() if not w.in_hand and w.at <= now), None)
            if waiting is None:
                free = [other.at for other in self._waiting.values() if not other.in_hand]
                await self._wait_news(min(free, default=None))
            else:
                await self._write_one(waiting)

    async def _write_one(self, waiting: _Waiting) -> None:
        statuses = waiting.statuses
        waiting.in_hand = True
        try:
            await self.write_statuses(waiting.claim, statuses)
        except DranetError as error:
            is_settled = self._note_failure(waiting, error)
        except Exception:  # a status must not end the driver
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
        """Return whether that was the last try."""
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
        """Report it once for each namespace, and keep trying rarely: the permission may be granted."""
        if not waiting.refused:
            waiting.refused, waiting.backoff = True, Backoff(*REFUSED_SECONDS)
        if waiting.claim.namespace in self._refused_namespaces:
            return
        self._refused_namespaces.add(waiting.claim.namespace)
        note = f"the status of claims in {waiting.claim.namespace} cannot be written: {error}"
        log.error("%s", note)
        self.add_event(EventNote(self._node, WARNING, EventReason.CLAIM_STATUS_REFUSED, note))

    def _note_success(self, waiting: _Waiting) -> None:
        waiting.due, waiting.backoff = 0.0, Backoff(*RETRY_SECONDS)
        if waiting.claim.namespace in self._refused_namespaces:
            self._refused_namespaces.discard(waiting.claim.namespace)
            for other in self._waiting.values():
                if other.refused and other.claim.namespace == waiting.claim.namespace:
                    other.refused, other.due, other.backoff = False, 0.0, Backoff(*RETRY_SECONDS)

    async def write_statuses(self, claim: ClaimRef, statuses: Sequence[DeviceStatus]) -> None:
        """Write the statuses of one claim now.

        Raises:
            ClusterError: the API server does not accept them, or does not answer.
            ProtocolError: its answer cannot be read.
        """
        await apply_device_statuses(
            self._client,
            claim,
            self._field_manager,
            statuses,
            complete=self._complete,
            on_dropped=self._log_dropped,
            on_written=self._report_misalignments,
        )
        reached(Failpoint.ATTACH_STATUS_WRITTEN)

    def _report_misalignments(
        self, claim: Claim, before: Sequence[JsonObject], written: Sequence[JsonObject]
    ) -> None:
        for event in self._misalignments.find(claim.ref, before, written):
            self.add_event(event)

    def _log_dropped(self) -> None:
        if not self._has_logged_dropped:
            self._has_logged_dropped = True
            log.warning(
                "claims get no status of their devices: the API server drops it; its feature gate "
                "DRAResourceClaimDeviceStatus is off"
            )

    # --- Events -----------------------------------------------------------------------------------------

    def _enqueue_event(self, event: EventNote, now: datetime) -> None:
        key = replace(event, count=1, first=None, last=None)
        earlier = self._events.get(key, replace(key, count=0, first=event.first or now))
        count = earlier.count + event.count
        self._events[key] = replace(earlier, count=count, last=now)
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
        """Write the oldest Event, and return whether the next one may follow at once."""
        key, event = next(iter(self._events.items()))
        try:
            await self.write_event(event)
        except DranetError as error:
            self._metrics.api.errors.labels(error.reason).inc()
            if not self._events_fail:
                self._events_fail = True
                log.warning("Events cannot be written (logged once until it works again): %s", error)
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
        newest = self._events.pop(key, event)
        if newest.count > event.count:  # more of them came while this one was written
            self._events[key] = replace(newest, count=newest.count - event.count, first=event.last)
        return True

    async def write_event(self, event: EventNote) -> None:
        """Write one Event now; raises like :meth:`write_statuses`."""
        await self._recorder.record(event)


class _Misalignment(NamedTuple):
    """A device that its claim's status calls worse than possible, and since when."""

    key: tuple[str, ...]
    since: datetime
    message: str


class Misalignments:
    """Finds those that have not been reported yet, for one driver."""

    def __init__(self, find_pod: FindPod, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._find_pod = find_pod
        self._now = now
        self._reported: OrderedDict[tuple[str, ...], None] = OrderedDict()

    def find(
        self, claim: ClaimRef, before: Sequence[JsonObject], written: Sequence[JsonObject]
    ) -> Iterator[EventNote]:
        """Return an Event for each device that became misaligned.

        It is about the pod that has the device, because other pods may have reserved the claim without using
        it; or about the claim, if the pod has just ended.
        """
        known = {found.key for found in map(_read, before) if found is not None}
        for found in filter(None, map(_read, written)):
            is_old = found.key in known and self._now() - found.since > MAX_AGE
            if not is_old and self._note((claim.uid, *found.key)):
                pod = self._find_pod(claim.uid)
                yield EventNote(
                    ObjectRef.of_claim(claim) if pod is None else ObjectRef.of_pod(pod),
                    WARNING,
                    EventReason.MISALIGNED_TOPOLOGY,
                    f"{found.key[2]}: {found.message}; {HINT}",
                    first=found.since,
                    identity="/".join((claim.uid, *found.key)),
                )
        for entry in written:
            if _read(entry) is None:  # if it becomes misaligned again, that is new
                self._reported.pop((claim.uid, *key_of(entry)), None)

    def _note(self, key: tuple[str, ...]) -> bool:
        is_news = key not in self._reported
        self._reported[key] = None
        self._reported.move_to_end(key)
        if len(self._reported) > MAX_REPORTED:
            self._reported.popitem(last=False)
        return is_news


def _read(entry: JsonObject) -> _Misalignment | None:
    """Return the misalignment in a status entry, or ``None``."""
    wanted = (ConditionType.ALIGNED, ConditionReason.WORSE_THAN_POSSIBLE)
    for condition in entry.get("conditions") or ():
        if (condition.get("type"), condition.get("reason")) == wanted:
            since = datetime.fromtimestamp(0, UTC)
            with suppress(ValueError):
                since = datetime.fromisoformat(str(condition.get("lastTransitionTime"))).astimezone(UTC)
            return _Misalignment(key_of(entry), since, str(condition.get("message") or ""))
    return None


MOST_KEPT = 200
LONGEST_TEXT = 400
"""Characters; what is longer ends with an ellipsis."""


class RecentEvent(Struct, frozen=True):
    """One thing that happened, once or several times in a row."""

    at: float
    """Unix seconds, of the last time."""
    kind: str
    """``Warning`` or ``Normal``, as Events have it."""
    reason: str
    about: str
    """The pod, claim or node."""
    text: str
    count: int = 1


class RecentEvents:
    """Oldest first; may be added to on any thread."""

    def __init__(self) -> None:
        self._kept: deque[RecentEvent] = deque(maxlen=MOST_KEPT)

    def add(self, kind: str, reason: str, about: str, text: str) -> None:
        """The same as the last one counts up."""
        text = text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"
        new = (kind, reason, about, text)
        count = 1
        with suppress(IndexError):
            last = self._kept.pop()
            if (last.kind, last.reason, last.about, last.text) == new:
                count += last.count
            else:
                self._kept.append(last)
        self._kept.append(RecentEvent(time.time(), *new, count=count))

    def add_event(self, event: EventNote) -> None:
        self.add(event.type, event.reason, _name(event.regarding), event.note)

    def add_normal(self, word: str, about: ObjectRef, text: str) -> None:
        self.add(NORMAL, word, _name(about), text)

    def list(self) -> Sequence[RecentEvent]:
        return tuple(self._kept)


def _name(about: ObjectRef) -> str:
    """``pod train/worker-0``; ``claim train/nics``."""
    kind = {"ResourceClaim": "claim"}.get(about.kind, about.kind.lower())
    return f"{kind} {about.namespace}/{about.name}" if about.namespace else f"{kind} {about.name}"
