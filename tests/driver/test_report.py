"""The one writer: newest status wins, retries, drops, never blocks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from dranet.cluster.events import ObjectRef
from dranet.driver import report
from dranet.driver.report import EventNote, Reporter
from dranet.errors import ClusterError, DranetError, ProtocolError, Reason
from dranet.model.claim import ClaimRef
from dranet.model.status import DeviceStatus
from dranet.telemetry import Metrics

CLAIM = ClaimRef("default", "claim", "uid")


def a_status(device: str) -> DeviceStatus:
    return DeviceStatus(driver="dra.net", pool="node", device=device, conditions=())


class RecordingWriter:
    """Keeps what it is given; fails with the errors it was told to, one after the other."""

    def __init__(self, *failures: DranetError) -> None:
        self.failures = list(failures)
        self.written: list[tuple[ClaimRef, Sequence[DeviceStatus]]] = []
        self.events: list[EventNote] = []

    async def write_statuses(self, claim: ClaimRef, statuses: Sequence[DeviceStatus]) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.written.append((claim, statuses))

    async def write_event(self, event: EventNote) -> None:
        self.events.append(event)


@asynccontextmanager
async def running(writer: RecordingWriter) -> AsyncIterator[Reporter]:
    reporter = Reporter(writer, Metrics())
    task = asyncio.create_task(reporter.run())
    try:
        yield reporter
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_only_the_newest_word_on_a_claim_is_written() -> None:
    writer = RecordingWriter()
    async with running(writer) as reporter:
        reporter.set_statuses(CLAIM, [a_status("old")])
        reporter.set_statuses(CLAIM, [a_status("new")])
        assert await reporter.flush(5)
    assert writer.written == [(CLAIM, [a_status("new")])]


async def test_it_may_be_called_from_any_thread() -> None:
    writer = RecordingWriter()
    async with running(writer) as reporter:
        thread = threading.Thread(target=reporter.set_statuses, args=(CLAIM, [a_status("a")]))
        thread.start()
        await asyncio.to_thread(thread.join)
        assert await reporter.flush(5)
    assert writer.written == [(CLAIM, [a_status("a")])]


async def test_a_failed_write_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RETRY_SECONDS", (0.001,))
    writer = RecordingWriter(*[ClusterError("away", retryable=True)] * 3)
    async with running(writer) as reporter:
        reporter.set_statuses(CLAIM, [a_status("a")])
        assert await reporter.flush(5)
    assert writer.written == [(CLAIM, [a_status("a")])]


async def test_a_refused_write_is_dropped_and_the_next_one_goes_on() -> None:
    other = ClaimRef("default", "other", "uid-2")
    writer = RecordingWriter(ClusterError("no", status=403, reason=Reason.API_FORBIDDEN))
    async with running(writer) as reporter:
        reporter.set_statuses(CLAIM, [a_status("refused")])
        reporter.set_statuses(other, [a_status("fine")])
        assert await reporter.flush(5)
    assert writer.written == [(other, [a_status("fine")])]


async def test_events_are_written_in_order() -> None:
    writer = RecordingWriter()
    notes = [
        EventNote(ObjectRef("v1", "Pod", "p", "default", "u"), "Warning", "Reason", f"note {number}")
        for number in range(3)
    ]
    async with running(writer) as reporter:
        for note in notes:
            reporter.add_event(note)
        assert await reporter.flush(5)
    assert writer.events == notes


async def test_flush_says_when_time_was_too_short() -> None:
    writer = RecordingWriter(ClusterError("away", retryable=True))
    async with running(writer) as reporter:
        reporter.set_statuses(CLAIM, [a_status("a")])
        assert not await reporter.flush(0.01)


async def test_a_claim_that_cannot_be_read_costs_its_own_status_only() -> None:
    other = ClaimRef("default", "other", "uid-2")
    writer = RecordingWriter(ProtocolError("claim: field 'status' is a list, not a dict"))
    async with running(writer) as reporter:
        reporter.set_statuses(CLAIM, [a_status("odd")])
        reporter.set_statuses(other, [a_status("fine")])
        assert await reporter.flush(5)
    assert writer.written == [(other, [a_status("fine")])]
