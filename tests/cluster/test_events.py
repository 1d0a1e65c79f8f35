"""Events: what kubectl describe shows, counted instead of repeated, and no more than an object can bear."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.events import BURST, NORMAL, REFILL, WARNING, EventNote, EventRecorder, ObjectRef
from dranet.cluster.messages import Request, failure_from_status
from dranet.errors import ClusterError, ProtocolError, Reason
from testbed.apiserver.server import ApiServer

pytestmark = pytest.mark.socket

POD = ObjectRef("v1", "Pod", name="p", namespace="default", uid="pod-uid")
NODE = ObjectRef("v1", "Node", name="node-a", namespace="", uid="node-uid")


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, minutes: float) -> None:
        self.now += timedelta(minutes=minutes)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recorder(client: ApiClient, clock: Clock) -> EventRecorder:
    return EventRecorder(client, component="dra.net", host="node-a", now=clock)


def written(server: ApiServer) -> list[JsonObject]:
    return server.objects("events")


async def test_an_event_says_what_about_whom_from_whom_and_when(
    server: ApiServer, recorder: EventRecorder
) -> None:
    await recorder.record(EventNote(POD, WARNING, "AttachFailed", "no carrier"))
    (event,) = written(server)
    assert event["metadata"]["namespace"] == "default"
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "p",
        "namespace": "default",
        "uid": "pod-uid",
    }
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "AttachFailed", "no carrier")
    assert event["firstTimestamp"] == event["lastTimestamp"] == "2026-05-01T12:00:00Z"
    assert event["source"] == {"component": "dra.net", "host": "node-a"}
    assert event["count"] == 1


async def test_the_same_event_within_the_window_counts_up(
    server: ApiServer, recorder: EventRecorder, clock: Clock
) -> None:
    for _ in range(3):
        await recorder.record(EventNote(POD, WARNING, "AttachFailed", "no carrier"))
        clock.advance(1)
    (event,) = written(server)
    assert (event["count"], event["lastTimestamp"]) == (3, "2026-05-01T12:02:00Z")
    assert event["firstTimestamp"] == "2026-05-01T12:00:00Z"


async def test_another_note_reason_type_or_object_is_another_event(
    server: ApiServer, recorder: EventRecorder
) -> None:
    await recorder.record(EventNote(POD, WARNING, "AttachFailed", "no carrier"))
    await recorder.record(EventNote(POD, WARNING, "AttachFailed", "no address"))
    await recorder.record(EventNote(POD, WARNING, "DeviceBusy", "no carrier"))
    await recorder.record(EventNote(POD, NORMAL, "AttachFailed", "no carrier"))
    await recorder.record(EventNote(NODE, WARNING, "AttachFailed", "no carrier"))
    assert [event["count"] for event in written(server)] == [1] * 5


async def test_after_the_window_a_new_event_is_written(
    server: ApiServer, recorder: EventRecorder, clock: Clock
) -> None:
    await recorder.record(EventNote(POD, WARNING, "AttachFailed", "x"))
    clock.advance(11)
    await recorder.record(EventNote(POD, WARNING, "AttachFailed", "x"))
    assert [event["count"] for event in written(server)] == [1, 1]


async def test_an_event_that_the_cluster_has_forgotten_is_written_anew(
    server: ApiServer, client: ApiClient, recorder: EventRecorder, clock: Clock
) -> None:
    await recorder.record(EventNote(POD, WARNING, "AttachFailed", "x"))
    (event,) = written(server)
    await client.delete(paths.event("default", event["metadata"]["name"]))
    clock.advance(1)
    await recorder.record(EventNote(POD, WARNING, "AttachFailed", "x"))
    assert [event["count"] for event in written(server)] == [1]


async def test_events_of_a_node_live_in_the_default_namespace(
    server: ApiServer, recorder: EventRecorder
) -> None:
    await recorder.record(EventNote(NODE, NORMAL, "Published", "2 devices"))
    (event,) = written(server)
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["involvedObject"]


async def test_a_long_note_is_cut(server: ApiServer, recorder: EventRecorder) -> None:
    await recorder.record(EventNote(POD, NORMAL, "R", "ü" * 2000))
    (event,) = written(server)
    assert len(event["message"].encode()) <= 1024
    assert event["message"].endswith("...")


async def test_a_refusal_names_the_rule(server: ApiServer, recorder: EventRecorder) -> None:
    server.fail_next("POST", paths.events("default"), 403)
    with pytest.raises(ClusterError) as caught:
        await recorder.record(EventNote(POD, WARNING, "AttachFailed", "x"))
    assert caught.value.reason is Reason.API_FORBIDDEN
    assert "create events in the core group" in caught.value.hint


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (403, "unable to create new content in namespace default because it is being terminated"),
        (404, 'namespaces "default" not found'),
    ],
)
async def test_an_event_of_a_namespace_that_goes_away_is_nobodys_any_more(
    client: ApiClient, recorder: EventRecorder, monkeypatch: pytest.MonkeyPatch, status: int, message: str
) -> None:
    """And no right is missing: who is told so at night looks in the wrong place."""
    request = Request("POST", paths.events("default"))

    async def create(*_: object) -> JsonObject:
        raise failure_from_status(request, status, {"message": f'events "p.1" is forbidden: {message}'})

    monkeypatch.setattr(client, "create", create)
    await recorder.record(EventNote(POD, WARNING, "DetachFailed", "x"))


async def test_a_failed_count_is_made_up_for_by_the_next_one(
    server: ApiServer, recorder: EventRecorder
) -> None:
    await recorder.record(EventNote(POD, WARNING, "AttachFailed", "x"))
    server.fail_next("PATCH", paths.events("default"), 500)
    with pytest.raises(ClusterError):
        await recorder.record(EventNote(POD, WARNING, "AttachFailed", "x"))
    await recorder.record(EventNote(POD, WARNING, "AttachFailed", "x"))
    assert [event["count"] for event in written(server)] == [2]


async def test_an_object_with_a_very_long_name_gets_its_events_too(
    server: ApiServer, recorder: EventRecorder
) -> None:
    long = ObjectRef("v1", "Pod", name="p" * 199 + "-" + "q" * 50, namespace="default", uid="u")
    await recorder.record(EventNote(long, NORMAL, "R", "x"))
    assert len(written(server)) == 1


async def test_an_event_that_waited_says_when_it_happened_and_how_often(
    server: ApiServer, recorder: EventRecorder, clock: Clock
) -> None:
    first = clock.now
    clock.advance(5)
    last = clock.now
    clock.advance(30)
    note = EventNote(POD, WARNING, "AttachFailed", "no carrier", count=4, first=first, last=last)
    await recorder.record(note)
    (event,) = written(server)
    assert (event["firstTimestamp"], event["lastTimestamp"]) == (
        "2026-05-01T12:00:00Z",
        "2026-05-01T12:05:00Z",
    )
    assert event["count"] == 4
    await recorder.record(EventNote(POD, WARNING, "AttachFailed", "no carrier", count=2))
    assert [event["count"] for event in written(server)] == [6]


async def test_a_second_try_of_an_event_that_had_come_through_makes_no_second_one(
    server: ApiServer, recorder: EventRecorder, clock: Clock
) -> None:
    note = EventNote(POD, WARNING, "AttachFailed", "no carrier", first=clock.now, last=clock.now)
    server.fail_next("POST", paths.events("default"), 0)
    with pytest.raises(ClusterError):
        await recorder.record(note)
    clock.advance(1)
    await recorder.record(note)
    assert [event["count"] for event in written(server)] == [1]


async def test_an_object_gets_no_more_than_its_share(
    server: ApiServer, recorder: EventRecorder, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3 * BURST):
        await recorder.record(EventNote(POD, WARNING, "AttachFailed", f"note {number}"))
    assert len(written(server)) == BURST
    assert caplog.text.count("too many Events about p") == 1
    await recorder.record(EventNote(NODE, WARNING, "AttachFailed", "another object has its own"))
    assert len(written(server)) == BURST + 1
    clock.now += REFILL
    for number in range(3):
        await recorder.record(EventNote(POD, WARNING, "AttachFailed", f"later {number}"))
    assert len(written(server)) == BURST + 2


async def test_a_failed_write_costs_nothing_of_the_share(server: ApiServer, recorder: EventRecorder) -> None:
    server.fail_next("POST", paths.events("default"), 500, count=BURST)
    for _ in range(BURST):
        with pytest.raises(ClusterError):
            await recorder.record(EventNote(POD, WARNING, "AttachFailed", "x"))
    await recorder.record(EventNote(POD, WARNING, "AttachFailed", "x"))
    assert len(written(server)) == 1


async def test_a_clock_that_is_set_back_takes_nothing_away(
    server: ApiServer, recorder: EventRecorder, clock: Clock
) -> None:
    await recorder.record(EventNote(POD, WARNING, "AttachFailed", "x"))
    clock.advance(-600)
    await recorder.record(EventNote(POD, WARNING, "AttachFailed", "y"))
    assert len(written(server)) == 2


async def test_an_answer_that_is_no_api_object_is_a_protocol_error(
    client: ApiClient, recorder: EventRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def create(path: str, body: JsonObject) -> JsonObject:
        raise ProtocolError(f"the answer to {path} is not a JSON object, for {body['reason']}")

    monkeypatch.setattr(client, "create", create)
    with pytest.raises(ProtocolError):
        await recorder.record(EventNote(POD, WARNING, "AttachFailed", "no carrier"))
