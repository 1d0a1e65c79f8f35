"""The reporter: newest status wins, each claim waits for itself, what may still be written is not lost."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from dranet.cluster.client import ApiClient
from dranet.cluster.events import EventNote, ObjectRef
from dranet.cluster.transport import access_from_url
from dranet.driver.reports import reporter as report
from dranet.driver.reports.reporter import RecentEvents, Reporter
from dranet.errors import ClusterError, DranetError, ProtocolError, Reason
from dranet.model.claim import ClaimRef
from dranet.model.status import DeviceStatus, EventReason
from dranet.telemetry import Metrics
from tests.support.waiting import until

CLAIM, OTHER = ClaimRef("default", "claim", "uid"), ClaimRef("default", "other", "uid-2")
POD = ObjectRef("v1", "Pod", "p", "default", "u")
NOTE = EventNote(POD, "Warning", "Reason", "note")
AWAY = ClusterError("away", retryable=True)
BROKEN = ClusterError("broken", status=500, retryable=True)
FORBIDDEN = ClusterError("no", status=403, reason=Reason.API_FORBIDDEN, hint="the RBAC rule it takes: x")
DEADLINE_SECONDS = 10.0


def a_status(device: str) -> DeviceStatus:
    return DeviceStatus(driver="dra.net", pool="node", device=device, conditions=())


class RecordingWriter:
    """Keeps what it is given, after the errors that it was told to raise: for all, or for one claim."""

    def __init__(self, *failures: DranetError, of_events: Sequence[DranetError] = ()) -> None:
        self.failures: list[Exception] = list(failures)
        self.event_failures: list[Exception] = list(of_events)
        self.always: dict[str, DranetError] = {}
        """By claim UID: what it fails with as long as that stands here."""
        self.hanging: dict[str, asyncio.Event] = {}
        """By claim UID: what a write waits for."""
        self.tries: Counter[str] = Counter()
        self.written: list[tuple[ClaimRef, Sequence[DeviceStatus]]] = []
        self.events: list[EventNote] = []
        self.event_tries = 0

    async def write_statuses(self, claim: ClaimRef, statuses: Sequence[DeviceStatus]) -> None:
        self.tries[claim.uid] += 1
        if claim.uid in self.hanging:
            await self.hanging[claim.uid].wait()
        if claim.uid in self.always:
            raise self.always[claim.uid]
        if self.failures:
            raise self.failures.pop(0)
        self.written.append((claim, statuses))

    async def write_event(self, event: EventNote) -> None:
        self.event_tries += 1
        if self.event_failures:
            raise self.event_failures.pop(0)
        self.events.append(event)

    @property
    def devices(self) -> list[str]:
        return [one.device for _, statuses in self.written for one in statuses]

    @property
    def told(self) -> list[tuple[str, int]]:
        return [(event.note, event.count) for event in self.events]


class RecordingReporter(Reporter):
    """Hands everything to a :class:`RecordingWriter`."""

    def __init__(self, writer: RecordingWriter, metrics: Metrics | None = None) -> None:
        client = ApiClient(access_from_url("http://127.0.0.1:9"))
        super().__init__(
            client,
            "dra.net",
            "node-1",
            metrics or Metrics(),
            lambda _claim, statuses, _existing: statuses,
            lambda _claim_uid: None,
            RecentEvents(),
        )
        self._writer = writer

    async def write_statuses(self, claim: ClaimRef, statuses: Sequence[DeviceStatus]) -> None:
        await self._writer.write_statuses(claim, statuses)

    async def write_event(self, event: EventNote) -> None:
        await self._writer.write_event(event)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RETRY_SECONDS", (0.001, 0.002))


@asynccontextmanager
async def running(writer: RecordingWriter, metrics: Metrics | None = None) -> AsyncIterator[Reporter]:
    reporter = RecordingReporter(writer, metrics)
    task = asyncio.create_task(reporter.run())
    try:
        yield reporter
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


# --- claim status --------------------------------------------------------------------------------------


async def test_only_the_newest_word_on_a_claim_is_written() -> None:
    writer = RecordingWriter()
    async with running(writer) as reporter:
        reporter.set_statuses(CLAIM, [a_status("old")])
        reporter.set_statuses(CLAIM, [a_status("new")])
        assert await reporter.flush(DEADLINE_SECONDS)
    assert writer.written == [(CLAIM, [a_status("new")])]


async def test_a_word_that_rests_makes_way_for_the_next_one_which_does_not_wait() -> None:
    writer = RecordingWriter()
    async with running(writer) as reporter:
        reporter.set_statuses(CLAIM, [a_status("prepared")], rest_seconds=3600)
        reporter.set_statuses(OTHER, [a_status("of another")])
        await until(lambda: writer.devices == ["of another"])
        reporter.set_statuses(CLAIM, [a_status("attached")])
        await until(lambda: writer.devices == ["of another", "attached"])


async def test_a_word_that_rests_is_written_before_the_end() -> None:
    writer = RecordingWriter()
    async with running(writer) as reporter:
        reporter.set_statuses(CLAIM, [a_status("prepared")], rest_seconds=3600)
        assert await reporter.flush(DEADLINE_SECONDS)
    assert writer.devices == ["prepared"]


async def test_a_newer_word_that_comes_during_a_write_is_written_after_it() -> None:
    writer = RecordingWriter()
    writer.hanging[CLAIM.uid] = asyncio.Event()
    async with running(writer) as reporter:
        reporter.set_statuses(CLAIM, [a_status("first")])
        await until(lambda: writer.tries[CLAIM.uid] == 1)
        reporter.set_statuses(CLAIM, [a_status("second")])
        await asyncio.sleep(0)
        assert writer.tries[CLAIM.uid] == 1, "one write at a time for each claim"
        writer.hanging[CLAIM.uid].set()
        assert await reporter.flush(DEADLINE_SECONDS)
    assert writer.devices == ["first", "second"]


async def test_what_another_instance_has_written_is_not_followed_by_an_older_word_of_ours() -> None:
    writer = RecordingWriter()
    writer.hanging[CLAIM.uid] = asyncio.Event()
    async with running(writer) as reporter:
        reporter.set_statuses(CLAIM, [a_status("prepared")])
        await until(lambda: writer.tries[CLAIM.uid] == 1)
        reporter.supersede_statuses(CLAIM, [a_status("attached")])
        reporter.supersede_statuses(OTHER, [a_status("of nobody")])
        await asyncio.sleep(0)
        writer.hanging[CLAIM.uid].set()
        assert await reporter.flush(DEADLINE_SECONDS)
    assert writer.devices == ["prepared", "attached"]


async def test_it_may_be_called_from_any_thread() -> None:
    writer = RecordingWriter()
    async with running(writer) as reporter:
        thread = threading.Thread(target=reporter.set_statuses, args=(CLAIM, [a_status("a")]))
        thread.start()
        await asyncio.to_thread(thread.join)
        assert await reporter.flush(DEADLINE_SECONDS)
    assert writer.written == [(CLAIM, [a_status("a")])]


async def test_a_failed_write_is_tried_again() -> None:
    writer = RecordingWriter(*[AWAY] * 3)
    async with running(writer) as reporter:
        reporter.set_statuses(CLAIM, [a_status("a")])
        await until(lambda: bool(writer.written))
    assert writer.written == [(CLAIM, [a_status("a")])]
    assert writer.tries[CLAIM.uid] == 4


async def test_the_newest_word_is_what_is_tried_again() -> None:
    writer = RecordingWriter()
    writer.always[CLAIM.uid] = AWAY
    async with running(writer) as reporter:
        reporter.set_statuses(CLAIM, [a_status("old")])
        await until(lambda: writer.tries[CLAIM.uid] > 1)
        reporter.set_statuses(CLAIM, [a_status("new")])
        tries = writer.tries[CLAIM.uid]
        await until(lambda: writer.tries[CLAIM.uid] > tries + 1)  # the try that was under way is over
        del writer.always[CLAIM.uid]
        assert await reporter.flush(DEADLINE_SECONDS)
    assert writer.devices == ["new"]


async def test_a_status_that_fails_for_ever_delays_neither_other_statuses_nor_events() -> None:
    writer = RecordingWriter()
    writer.always[CLAIM.uid] = BROKEN
    async with running(writer) as reporter:
        reporter.set_statuses(CLAIM, [a_status("never")])
        reporter.set_statuses(OTHER, [a_status("fine")])
        reporter.add_event(NOTE)
        await until(lambda: bool(writer.written and writer.events))
        await until(lambda: writer.tries[CLAIM.uid] > 3)
    assert writer.devices == ["fine"]


async def test_a_request_that_hangs_holds_up_no_other_claim() -> None:
    writer = RecordingWriter()
    writer.hanging[CLAIM.uid] = asyncio.Event()
    async with running(writer) as reporter:
        reporter.set_statuses(CLAIM, [a_status("hangs")])
        reporter.set_statuses(OTHER, [a_status("fine")])
        await until(lambda: bool(writer.written))
    assert writer.devices == ["fine"]


async def test_each_wait_is_longer_than_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RETRY_SECONDS", (0.01, 3600.0))
    writer = RecordingWriter()
    writer.always[CLAIM.uid] = BROKEN
    async with running(writer) as reporter:
        reporter.set_statuses(CLAIM, [a_status("never")])
        started = asyncio.get_running_loop().time()
        await until(lambda: writer.tries[CLAIM.uid] == 6)
        assert asyncio.get_running_loop().time() - started >= (0.01 + 0.02 + 0.04 + 0.08 + 0.16) / 2


async def test_a_server_that_asks_for_patience_gets_it() -> None:
    writer = RecordingWriter(
        ClusterError("busy", status=429, retryable=True, retry_after_seconds=0.1), ProtocolError("odd")
    )
    async with running(writer) as reporter:
        started = asyncio.get_running_loop().time()
        reporter.set_statuses(CLAIM, [a_status("a")])
        await until(lambda: not writer.failures)
        assert asyncio.get_running_loop().time() - started >= 0.1


async def test_what_the_server_does_not_accept_is_dropped_and_the_next_one_goes_on() -> None:
    metrics = Metrics()
    writer = RecordingWriter(ClusterError("no", status=422, reason=Reason.API_INVALID))
    async with running(writer, metrics) as reporter:
        reporter.set_statuses(CLAIM, [a_status("invalid")])
        reporter.set_statuses(OTHER, [a_status("fine")])
        assert await reporter.flush(DEADLINE_SECONDS)
    assert writer.written == [(OTHER, [a_status("fine")])]
    assert b'dranet_reports_dropped_total{kind="status"} 1.0' in metrics.render()


async def test_a_claim_that_cannot_be_read_costs_its_own_status_only() -> None:
    writer = RecordingWriter(ProtocolError("claim: field 'status' is a list, not a dict"))
    async with running(writer) as reporter:
        reporter.set_statuses(CLAIM, [a_status("odd")])
        reporter.set_statuses(OTHER, [a_status("fine")])
        assert await reporter.flush(DEADLINE_SECONDS)
    assert writer.written == [(OTHER, [a_status("fine")])]


async def test_a_bug_in_one_status_or_event_costs_that_one_and_not_the_driver(
    caplog: pytest.LogCaptureFixture,
) -> None:
    writer = RecordingWriter()
    writer.failures = [ValueError("no address"), TypeError("not JSON serializable")]
    writer.event_failures = [KeyError("uid")]
    async with running(writer) as reporter:
        for number in range(4):
            reporter.set_statuses(ClaimRef("default", "c", f"uid-{number}"), [a_status(f"nic-{number}")])
        reporter.add_event(NOTE)
        reporter.add_event(replace(NOTE, note="another"))
        assert await reporter.flush(DEADLINE_SECONDS)
    assert writer.devices == ["nic-2", "nic-3"]
    assert writer.told == [("another", 1)]
    assert len([line for line in caplog.messages if line.startswith("bug in")]) == 3


async def test_no_more_claims_wait_than_there_is_room_for_and_the_oldest_word_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report, "MAX_WAITING_CLAIMS", 3)
    writer = RecordingWriter()
    reporter = RecordingReporter(writer)
    for number in range(5):
        reporter.set_statuses(replace(CLAIM, uid=f"uid-{number}"), [a_status(f"device-{number}")])
    reporter.set_statuses(replace(CLAIM, uid="uid-2"), [a_status("device-2, newer")])
    await asyncio.sleep(0)
    task = asyncio.create_task(reporter.run())
    assert await reporter.flush(DEADLINE_SECONDS)
    task.cancel()
    assert writer.devices == ["device-3", "device-4", "device-2, newer"]


# --- a missing permission ------------------------------------------------------------------------------


async def test_a_missing_permission_is_told_once_and_not_asked_for_again_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    writer = RecordingWriter()
    writer.always = {CLAIM.uid: FORBIDDEN, OTHER.uid: FORBIDDEN}
    async with running(writer) as reporter:
        reporter.set_statuses(CLAIM, [a_status("a")])
        reporter.set_statuses(OTHER, [a_status("b")])
        assert await reporter.flush(DEADLINE_SECONDS), "nobody waits for what only an operator can mend"
        reporter.set_statuses(CLAIM, [a_status("newer")])
        assert await reporter.flush(DEADLINE_SECONDS)
        await until(lambda: bool(writer.events))
    assert writer.tries == {CLAIM.uid: 1, OTHER.uid: 1}
    (event,) = writer.events
    assert (event.regarding.kind, event.reason) == ("Node", EventReason.CLAIM_STATUS_REFUSED)
    assert "the RBAC rule it takes: x" in event.note
    assert caplog.text.count("the RBAC rule it takes") == 1


async def test_what_was_refused_is_written_once_the_permission_is_there() -> None:
    writer = RecordingWriter()
    writer.always[CLAIM.uid] = FORBIDDEN
    async with running(writer) as reporter:
        reporter.set_statuses(CLAIM, [a_status("refused")])
        await until(lambda: writer.tries[CLAIM.uid] == 1)
        writer.always.clear()
        reporter.set_statuses(OTHER, [a_status("of the next pod")])
        await until(lambda: len(writer.written) == 2)
    assert writer.devices == ["of the next pod", "refused"]


async def test_a_permission_in_one_namespace_says_nothing_of_another() -> None:
    writer = RecordingWriter()
    elsewhere = ClaimRef("team", "c", "uid-3")
    writer.always = {CLAIM.uid: FORBIDDEN}
    async with running(writer) as reporter:
        reporter.set_statuses(CLAIM, [a_status("refused")])
        await until(lambda: writer.tries[CLAIM.uid] == 1)
        reporter.set_statuses(elsewhere, [a_status("fine")])
        await until(lambda: bool(writer.written))
        assert await reporter.flush(DEADLINE_SECONDS)
    assert writer.tries[CLAIM.uid] == 1


# --- Events --------------------------------------------------------------------------------------------


async def test_events_are_written_in_order() -> None:
    writer = RecordingWriter()
    async with running(writer) as reporter:
        for number in range(3):
            reporter.add_event(replace(NOTE, note=f"note {number}"))
        assert await reporter.flush(DEADLINE_SECONDS)
    assert writer.told == [("note 0", 1), ("note 1", 1), ("note 2", 1)]


async def test_events_wait_for_a_server_that_is_away_and_say_when_they_happened() -> None:
    writer = RecordingWriter(of_events=[AWAY] * 20)
    async with running(writer) as reporter:
        reporter.add_event(NOTE)
        await until(lambda: bool(writer.events))
    (event,) = writer.events
    assert event.first is not None
    assert event.first == event.last
    assert writer.event_tries == 21


async def test_the_same_event_again_counts_up_while_it_waits() -> None:
    writer = RecordingWriter()
    reporter = RecordingReporter(writer)
    for _ in range(3):
        reporter.add_event(NOTE)
    reporter.add_event(replace(NOTE, note="another"))
    await asyncio.sleep(0)
    task = asyncio.create_task(reporter.run())
    assert await reporter.flush(DEADLINE_SECONDS)
    task.cancel()
    assert writer.told == [("note", 3), ("another", 1)]


async def test_an_event_that_comes_again_during_its_write_is_not_lost() -> None:
    class Again(RecordingWriter):
        async def write_event(self, event: EventNote) -> None:
            if not self.events:
                reporter.add_event(NOTE)
                await asyncio.sleep(0)
            await super().write_event(event)

    writer = Again()
    async with running(writer) as reporter:
        reporter.add_event(NOTE)
        await until(lambda: len(writer.events) == 2)
    assert writer.told == [("note", 1), ("note", 1)]


async def test_an_event_that_the_server_does_not_take_is_given_up_and_the_next_one_goes_on() -> None:
    metrics = Metrics()
    writer = RecordingWriter(of_events=[BROKEN] * report.MAX_EVENT_TRIES)
    async with running(writer, metrics) as reporter:
        reporter.add_event(NOTE)
        reporter.add_event(replace(NOTE, note="next"))
        await until(lambda: bool(writer.events))
    assert writer.told == [("next", 1)]
    assert b'dranet_reports_dropped_total{kind="event"} 1.0' in metrics.render()


async def test_trouble_with_events_is_logged_once_until_it_works_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    writer = RecordingWriter(of_events=[FORBIDDEN] * 3)
    async with running(writer) as reporter:
        for number in range(4):
            reporter.add_event(replace(NOTE, note=f"note {number}"))
        assert await reporter.flush(DEADLINE_SECONDS)
    assert writer.told == [("note 3", 1)]
    assert caplog.text.count("Events cannot be written") == 1
    assert "the RBAC rule it takes: x" in caplog.text


async def test_no_more_events_wait_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MAX_WAITING_EVENTS", 2)
    writer = RecordingWriter()
    reporter = RecordingReporter(writer)
    for number in range(4):
        reporter.add_event(replace(NOTE, note=f"note {number}"))
    await asyncio.sleep(0)
    task = asyncio.create_task(reporter.run())
    assert await reporter.flush(DEADLINE_SECONDS)
    task.cancel()
    assert writer.told == [("note 2", 1), ("note 3", 1)]


# --- at stop, and when there is nothing to do ----------------------------------------------------------


async def test_flush_says_when_time_was_too_short() -> None:
    writer = RecordingWriter()
    writer.always[CLAIM.uid] = AWAY
    async with running(writer) as reporter:
        reporter.set_statuses(CLAIM, [a_status("a")])
        assert not await reporter.flush(0.01)


async def test_flush_does_not_wait_for_the_next_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RETRY_SECONDS", (3600.0, 3600.0))
    writer = RecordingWriter(AWAY, of_events=[AWAY])
    async with running(writer) as reporter:
        reporter.set_statuses(CLAIM, [a_status("a")])
        reporter.add_event(NOTE)
        await until(lambda: not writer.failures and not writer.event_failures)
        assert await reporter.flush(DEADLINE_SECONDS)
    assert (writer.devices, writer.told) == (["a"], [("note", 1)])


async def test_nothing_wakes_up_while_there_is_nothing_to_do() -> None:
    async with running(RecordingWriter()) as reporter:
        reporter.set_statuses(CLAIM, [a_status("a")])
        assert await reporter.flush(DEADLINE_SECONDS)
        timers = vars(asyncio.get_running_loop())["_scheduled"]
        assert [timer for timer in timers if not timer.cancelled()] == []
