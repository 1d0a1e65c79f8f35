"""Events: what kubectl describe shows, counted instead of repeated, and never a reason to fail."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.events import NORMAL, WARNING, EventRecorder, ObjectRef
from dranet.errors import ProtocolError
from dranet.testbed.apiserver.server import ApiServer

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
    await recorder.record(POD, WARNING, "AttachFailed", "no carrier")
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
        await recorder.record(POD, WARNING, "AttachFailed", "no carrier")
        clock.advance(1)
    (event,) = written(server)
    assert (event["count"], event["lastTimestamp"]) == (3, "2026-05-01T12:02:00Z")
    assert event["firstTimestamp"] == "2026-05-01T12:00:00Z"


async def test_another_note_reason_type_or_object_is_another_event(
    server: ApiServer, recorder: EventRecorder
) -> None:
    await recorder.record(POD, WARNING, "AttachFailed", "no carrier")
    await recorder.record(POD, WARNING, "AttachFailed", "no address")
    await recorder.record(POD, WARNING, "DeviceBusy", "no carrier")
    await recorder.record(POD, NORMAL, "AttachFailed", "no carrier")
    await recorder.record(NODE, WARNING, "AttachFailed", "no carrier")
    assert [event["count"] for event in written(server)] == [1] * 5


async def test_after_the_window_a_new_event_is_written(
    server: ApiServer, recorder: EventRecorder, clock: Clock
) -> None:
    await recorder.record(POD, WARNING, "AttachFailed", "x")
    clock.advance(11)
    await recorder.record(POD, WARNING, "AttachFailed", "x")
    assert [event["count"] for event in written(server)] == [1, 1]


async def test_an_event_that_the_cluster_has_forgotten_is_written_anew(
    server: ApiServer, client: ApiClient, recorder: EventRecorder, clock: Clock
) -> None:
    await recorder.record(POD, WARNING, "AttachFailed", "x")
    (event,) = written(server)
    await client.delete(paths.event("default", event["metadata"]["name"]))
    clock.advance(1)
    await recorder.record(POD, WARNING, "AttachFailed", "x")
    assert [event["count"] for event in written(server)] == [1]


async def test_events_of_a_node_live_in_the_default_namespace(
    server: ApiServer, recorder: EventRecorder
) -> None:
    await recorder.record(NODE, NORMAL, "Published", "2 devices")
    (event,) = written(server)
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["involvedObject"]


async def test_a_long_note_is_cut(server: ApiServer, recorder: EventRecorder) -> None:
    await recorder.record(POD, NORMAL, "R", "ü" * 2000)
    (event,) = written(server)
    assert len(event["message"].encode()) <= 1024
    assert event["message"].endswith("...")


async def test_trouble_is_logged_once_and_goes_no_further(
    server: ApiServer, recorder: EventRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    server.fail_next("POST", paths.events("default"), 403, count=3)
    for number in range(3):
        await recorder.record(POD, WARNING, "AttachFailed", f"note {number}")
    assert len(caplog.records) == 1
    assert "create events in the core group" in caplog.text
    await recorder.record(POD, WARNING, "AttachFailed", "works again")
    assert len(written(server)) == 1


async def test_a_failed_count_is_made_up_for_by_the_next_one(
    server: ApiServer, recorder: EventRecorder
) -> None:
    await recorder.record(POD, WARNING, "AttachFailed", "x")
    server.fail_next("PATCH", paths.events("default"), 500)
    await recorder.record(POD, WARNING, "AttachFailed", "x")
    await recorder.record(POD, WARNING, "AttachFailed", "x")
    assert [event["count"] for event in written(server)] == [2]


async def test_an_object_with_a_very_long_name_gets_its_events_too(
    server: ApiServer, recorder: EventRecorder
) -> None:
    long = ObjectRef("v1", "Pod", name="p" * 199 + "-" + "q" * 50, namespace="default", uid="u")
    await recorder.record(long, NORMAL, "R", "x")
    assert len(written(server)) == 1


async def test_an_answer_that_is_no_api_object_goes_no_further(
    client: ApiClient, recorder: EventRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def create(path: str, body: JsonObject) -> JsonObject:
        raise ProtocolError(f"the answer to {path} is not a JSON object, for {body['reason']}")

    monkeypatch.setattr(client, "create", create)
    await recorder.record(POD, WARNING, "AttachFailed", "no carrier")
