"""One queue, one writer: claim status and Events, coalesced and retried.

Anybody in the driver, on any thread, says what happened; the writer tells the API server. The newest word
on a claim replaces an older one that was not written yet. Writing is best effort for the pod (the kubelet
does not wait for it), so an unreachable API server delays a status and breaks nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dranet.cluster.events import ObjectRef
from dranet.errors import DranetError
from dranet.model.claim import ClaimRef
from dranet.model.status import DeviceStatus
from dranet.telemetry import Metrics

log = logging.getLogger(__name__)

MAX_QUEUED_EVENTS = 1000
"""More than that while the API server is away says nothing new."""
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class EventNote:
    """One Event to record. ``type`` is ``Normal`` or ``Warning``."""

    regarding: ObjectRef
    type: str
    reason: str
    note: str


class Writer(Protocol):
    """Who speaks to the API server. ``write_statuses`` raises ClusterError, or ProtocolError for a claim that
    cannot be read; ``write_event`` raises neither."""

    async def write_statuses(self, claim: ClaimRef, statuses: Sequence[DeviceStatus]) -> None: ...

    async def write_event(self, event: EventNote) -> None: ...


class Reporter:
    """Thread-safe front (:meth:`set_statuses`, :meth:`add_event`), one task behind (:meth:`run`)."""

    def __init__(self, writer: Writer, metrics: Metrics) -> None:
        self._writer = writer
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._statuses: OrderedDict[str, tuple[ClaimRef, Sequence[DeviceStatus]]] = OrderedDict()
        self._events: deque[EventNote] = deque(maxlen=MAX_QUEUED_EVENTS)
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def set_statuses(self, claim: ClaimRef, statuses: Sequence[DeviceStatus]) -> None:
        """Make these the claim's device statuses (all of ours at once)."""
        self._loop.call_soon_threadsafe(self._enqueue_statuses, claim, statuses)

    def add_event(self, event: EventNote) -> None:
        """Record an Event."""
        self._loop.call_soon_threadsafe(self._enqueue_event, event)

    async def run(self) -> None:
        """Write what comes, for ever. A refused write is logged and dropped, a failed one retried."""
        failures = 0
        while True:
            await self._work.wait()
            if await self._write_next():
                failures = 0
            else:
                await asyncio.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])
                failures += 1

    async def flush(self, timeout_seconds: float) -> bool:
        """Wait until everything is written; whether it was in time."""
        await asyncio.sleep(0)  # let submissions that are already on the loop's queue arrive
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _enqueue_statuses(self, claim: ClaimRef, statuses: Sequence[DeviceStatus]) -> None:
        self._statuses.pop(claim.uid, None)
        self._statuses[claim.uid] = (claim, statuses)
        self._wake()

    def _enqueue_event(self, event: EventNote) -> None:
        self._events.append(event)
        self._wake()

    def _wake(self) -> None:
        self._idle.clear()
        self._work.set()

    async def _write_next(self) -> bool:
        """Write one entry; false when it has to be tried again later."""
        if self._statuses:
            return await self._write_next_statuses()
        if self._events:
            await self._writer.write_event(self._events.popleft())
            return True
        self._work.clear()
        self._idle.set()
        return True

    async def _write_next_statuses(self) -> bool:
        uid, (claim, statuses) = next(iter(self._statuses.items()))
        del self._statuses[uid]
        try:
            await self._writer.write_statuses(claim, statuses)
        except DranetError as error:
            self._metrics.api_errors.labels(error.reason).inc()
            if error.retryable:
                self._statuses.setdefault(uid, (claim, statuses))
                return False
            log.error("claim status refused: %s", error, extra={"context": {"claim": claim}})
        return True
