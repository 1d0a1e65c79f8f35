"""What is known of the slices when the watch and our own writes tell of them in any order."""

from __future__ import annotations

from dranet.cluster.client import EventType, JsonObject, WatchEvent
from dranet.cluster.slice_view import SliceView
from dranet.cluster.watch import Snapshot


def found(uid: str, version: int, text: str = "") -> JsonObject:
    return {"metadata": {"uid": uid, "name": uid, "resourceVersion": str(version)}, "spec": {"text": text}}


def event(kind: EventType, body: JsonObject) -> WatchEvent:
    return WatchEvent(kind, body)


def texts(view: SliceView) -> dict[str, str]:
    return {item["metadata"]["uid"]: item["spec"]["text"] for item in view.get_slices()}


def test_an_own_write_counts_before_the_watch_tells_of_it_and_its_echo_is_no_news() -> None:
    view = SliceView()
    view.note_written(found("a", 10, "ours"))
    assert texts(view) == {"a": "ours"}
    assert not view.observe(event(EventType.ADDED, found("a", 10, "ours")))


def test_a_late_event_does_not_undo_an_own_write() -> None:
    view = SliceView()
    view.observe(event(EventType.ADDED, found("a", 10, "old")))
    view.note_written(found("a", 12, "ours"))
    assert not view.observe(event(EventType.MODIFIED, found("a", 11, "late")))
    assert texts(view) == {"a": "ours"}


def test_a_newer_event_wins_over_an_own_write() -> None:
    view = SliceView()
    view.note_written(found("a", 12, "ours"))
    assert view.observe(event(EventType.MODIFIED, found("a", 13, "theirs")))
    assert texts(view) == {"a": "theirs"}


def test_a_slice_that_we_deleted_does_not_come_back_by_a_late_event() -> None:
    view = SliceView()
    view.observe(event(EventType.ADDED, found("a", 10)))
    view.note_deleted("a")
    assert not view.observe(event(EventType.MODIFIED, found("a", 11)))
    assert not view.observe(event(EventType.DELETED, found("a", 12)))
    assert texts(view) == {}


def test_a_slice_that_others_deleted_is_news_even_if_it_was_ours_and_never_seen() -> None:
    view = SliceView()
    view.note_written(found("a", 10))
    assert view.observe(event(EventType.DELETED, found("a", 11)))
    assert texts(view) == {}


def test_a_snapshot_is_the_truth_but_for_own_writes_that_are_newer() -> None:
    view = SliceView()
    view.note_written(found("gone", 5))
    view.note_written(found("fresh", 30, "ours"))
    view.note_written(found("both", 31, "ours"))
    view.reset(Snapshot((found("both", 20, "listed"), found("other", 21, "listed")), "25"))
    assert texts(view) == {"fresh": "ours", "both": "ours", "other": "listed"}


def test_a_snapshot_taken_before_our_delete_does_not_bring_the_slice_back() -> None:
    view = SliceView()
    view.observe(event(EventType.ADDED, found("a", 10)))
    view.note_deleted("a")
    view.reset(Snapshot((found("a", 10),), "10"))
    assert texts(view) == {}


def test_events_from_before_a_snapshot_are_old() -> None:
    view = SliceView()
    view.reset(Snapshot((), "50"))
    assert not view.observe(event(EventType.ADDED, found("ghost", 40)))
    assert texts(view) == {}


def test_versions_that_are_no_numbers_fall_back_to_the_last_word() -> None:
    view = SliceView()
    view.note_written({"metadata": {"uid": "a", "resourceVersion": "x"}, "spec": {"text": "ours"}})
    assert view.observe(
        event(
            EventType.MODIFIED, {"metadata": {"uid": "a", "resourceVersion": "y"}, "spec": {"text": "last"}}
        )
    )
    assert texts(view) == {"a": "last"}
