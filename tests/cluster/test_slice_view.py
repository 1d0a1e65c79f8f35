"""What is known of the slices when the watch and our own writes tell of them in any order."""

from __future__ import annotations

from dranet.cluster.client import EventType, JsonObject, Snapshot, WatchEvent
from dranet.cluster.slices import SliceView

NOW = 100.0


def found(uid: str, version: int, text: str = "") -> JsonObject:
    return {"metadata": {"uid": uid, "name": uid, "resourceVersion": str(version)}, "spec": {"text": text}}


def event(kind: EventType, body: JsonObject) -> WatchEvent:
    return WatchEvent(kind, body)


def listed(*items: JsonObject, version: int, asked_at: float) -> Snapshot:
    return Snapshot(items, str(version), asked_at)


def texts(view: SliceView) -> dict[str, str]:
    return {item["metadata"]["uid"]: item["spec"]["text"] for item in view.slices}


def test_an_own_write_counts_before_the_watch_tells_of_it_and_its_echo_is_no_news() -> None:
    view = SliceView()
    view.learn(found("a", 10, "ours"), NOW)
    assert texts(view) == {"a": "ours"}
    assert not view.observe(event(EventType.ADDED, found("a", 10, "ours")), NOW)


def test_a_late_event_does_not_undo_an_own_write() -> None:
    view = SliceView()
    view.observe(event(EventType.ADDED, found("a", 10, "old")), NOW)
    view.learn(found("a", 12, "ours"), NOW)
    assert not view.observe(event(EventType.MODIFIED, found("a", 11, "late")), NOW)
    assert texts(view) == {"a": "ours"}


def test_a_newer_event_wins_over_an_own_write() -> None:
    view = SliceView()
    view.learn(found("a", 12, "ours"), NOW)
    assert view.observe(event(EventType.MODIFIED, found("a", 13, "theirs")), NOW)
    assert texts(view) == {"a": "theirs"}


def test_a_slice_that_we_deleted_does_not_come_back_by_a_late_event() -> None:
    view = SliceView()
    view.observe(event(EventType.ADDED, found("a", 10)), NOW)
    view.note_deleted("a", NOW)
    assert not view.observe(event(EventType.MODIFIED, found("a", 11)), NOW)
    assert not view.observe(event(EventType.DELETED, found("a", 12)), NOW)
    assert texts(view) == {}


def test_a_slice_that_others_deleted_is_news_even_if_it_was_ours_and_never_seen() -> None:
    view = SliceView()
    view.learn(found("a", 10), NOW)
    assert view.observe(event(EventType.DELETED, found("a", 11)), NOW)
    assert texts(view) == {}


def test_a_list_is_the_truth_but_for_what_was_learned_since_it_was_asked_for() -> None:
    view = SliceView()
    view.learn(found("gone", 5), NOW - 2)
    view.learn(found("fresh", 30, "ours"), NOW)
    view.learn(found("both", 31, "ours"), NOW)
    view.observe(event(EventType.ADDED, found("seen", 32, "told")), NOW)
    snapshot = listed(found("both", 20, "listed"), found("other", 21, "listed"), version=25, asked_at=NOW - 1)
    view.reset(snapshot)
    assert texts(view) == {"fresh": "ours", "both": "ours", "seen": "told", "other": "listed"}


def test_a_list_that_knows_more_of_a_slice_than_an_own_write_wins() -> None:
    view = SliceView()
    view.learn(found("a", 10, "ours"), NOW)
    view.reset(listed(found("a", 11, "theirs"), version=12, asked_at=NOW - 1))
    assert texts(view) == {"a": "theirs"}


def test_a_list_asked_for_before_our_delete_does_not_bring_the_slice_back() -> None:
    view = SliceView()
    view.observe(event(EventType.ADDED, found("a", 10)), NOW - 2)
    view.note_deleted("a", NOW)
    view.reset(listed(found("a", 10), version=10, asked_at=NOW - 1))
    assert texts(view) == {}


def test_nor_does_a_list_that_is_slower_than_the_news_of_a_delete_by_others() -> None:
    view = SliceView()
    view.observe(event(EventType.ADDED, found("a", 10)), NOW - 2)
    view.observe(event(EventType.DELETED, found("a", 12)), NOW)
    view.reset(listed(found("a", 10), version=11, asked_at=NOW - 1))
    assert texts(view) == {}


def test_events_from_before_a_list_are_old() -> None:
    view = SliceView()
    view.reset(listed(version=50, asked_at=NOW))
    assert not view.observe(event(EventType.ADDED, found("ghost", 40)), NOW)
    assert texts(view) == {}


def test_after_a_restore_from_a_backup_lower_versions_are_the_truth() -> None:
    view = SliceView()
    view.reset(listed(found("a", 4000), version=5000, asked_at=NOW))
    view.learn(found("b", 5001, "ours"), NOW + 1)
    view.reset(listed(found("a", 2000, "restored"), version=3000, asked_at=NOW + 2))
    assert texts(view) == {"a": "restored"}
    assert view.observe(event(EventType.ADDED, found("c", 3001, "new")), NOW + 3)


def test_versions_that_are_no_numbers_fall_back_to_the_last_word() -> None:
    view = SliceView()
    view.learn({"metadata": {"uid": "a", "resourceVersion": "x"}, "spec": {"text": "ours"}}, NOW)
    last = {"metadata": {"uid": "a", "resourceVersion": "y"}, "spec": {"text": "last"}}
    assert view.observe(event(EventType.MODIFIED, last), NOW)
    assert texts(view) == {"a": "last"}


def test_what_is_remembered_does_not_grow_with_what_others_do() -> None:
    view = SliceView()
    for number in range(1000):
        view.observe(event(EventType.ADDED, found(f"{number}", 2 * number + 1)), NOW * number)
        view.observe(event(EventType.DELETED, found(f"{number}", 2 * number + 2)), NOW * number)
    assert len(view._gone_at) + len(view._learned_at) < 20
