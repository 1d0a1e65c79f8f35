"""The store that two instances of the driver share, against a real second process that may be killed."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest
from msgspec.structs import replace

from dranet import files
from dranet.errors import Reason, StoreError
from dranet.model.plan import RECORD_VERSION
from dranet.store import claim_store
from dranet.store.claim_store import ClaimStore
from tests.store.test_claim_store import a_record
from tests.support.records import (
    edit_record,
    note_change,
    read_texts,
    read_versions,
    remove_record,
    write_newer,
    write_text,
)

REPOSITORY = Path(__file__).parents[2]

PATIENT_SECONDS = 60.0
"""How long a write waits for those of others, where that is not what is tried: a disk may be slow."""

SERVE = f"""
import json, sys
from msgspec.structs import replace
from pathlib import Path
from dranet.files import FileLock
from dranet.store import claim_store
from dranet.store.claim_store import ClaimStore
from tests.store.test_claim_store import a_record
claim_store.BUSY_SECONDS = {PATIENT_SECONDS}
def use(path):
    global store, other_writer
    store, other_writer = ClaimStore(Path(path)), FileLock(Path(path + ".lock"))
    store.open()
def leave():
    store.close()
    other_writer.close()
def put(uid, netns_path="/run/netns/x"): store.put(replace(a_record(uid), netns_path=netns_path))
def put_many(prefix, count):
    for number in range(count): put(f"{{prefix}}-{{number}}")
def place_both(netns_path, times):
    for number in range(times):
        both = [replace(a_record(uid), netns_path=f"{{netns_path}}{{number}}") for uid in "ab"]
        store.put_all(both, durable=False)
def delete(uid): store.delete(uid)
def look(): return sorted(record.claim.uid for record in store.get_all())
def set_aside(): return list(store.quarantined)
def begin(): return other_writer.try_acquire()
def end(): other_writer.release()
record_is_loaded = a_record()
for line in sys.stdin:
    name, *arguments = json.loads(line)
    print(json.dumps(globals()[name](*arguments)), flush=True)
"""


class Other:
    """A second process, which can have the same store."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )

    def start(self, *call: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(call) + "\n")
        self.process.stdin.flush()

    def answer(self) -> object:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def do(self, *call: object) -> object:
        self.start(*call)
        return self.answer()

    def kill(self) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "claims"


@pytest.fixture
def store(path: Path) -> Iterator[ClaimStore]:
    with closing(ClaimStore(path)) as store:
        store.open()
        yield store


@pytest.fixture(scope="module")
def processes() -> Iterator[list[Other]]:
    """Started once: that takes longer than the tests do."""
    made = [Other() for _ in range(3)]
    yield made
    for process in made:
        process.kill()


@pytest.fixture
def other(processes: list[Other], store: ClaimStore, path: Path) -> Iterator[Other]:
    """A second process with the store open."""
    assert store.get_all() == ()
    processes[0].do("use", str(path))
    yield processes[0]
    processes[0].do("leave")


@pytest.fixture
def openers(processes: list[Other], path: Path) -> Iterator[list[Other]]:
    """Processes that have been told, at the same time, to open the file."""
    for process in processes:
        process.start("use", str(path))
    yield processes
    for process in processes:
        process.do("leave")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files of records that are read from now on."""
    read: list[str] = []
    real = files.read_file

    def read_file(path: Path, max_bytes: int) -> bytes:
        read.append(path.name)
        return real(path, max_bytes)

    monkeypatch.setattr(files, "read_file", read_file)
    return read


# --- the freshest view ----------------------------------------------------------------------------------


@pytest.mark.process
def test_what_another_process_commits_is_there_at_the_next_look(store: ClaimStore, other: Other) -> None:
    other.do("put", "a")
    assert store.get("a") == a_record("a")
    other.do("put", "a", "/elsewhere")
    assert [record.netns_path for record in store.get_by_pod("pod-1")] == ["/elsewhere"]
    store.put(a_record("b"))
    assert other.do("look") == ["a", "b"]
    other.do("delete", "a")
    assert store.get("a") is None
    assert [record.claim.uid for record in store.get_all()] == ["b"]


def test_a_look_reads_no_record_when_nobody_else_has_committed(store: ClaimStore, reads: list[str]) -> None:
    store.put(a_record("a"))
    store.put(a_record("b"))
    assert store.get("a") == a_record("a")
    assert len(store.get_all()) == 2
    assert reads == []


@pytest.mark.process
def test_only_records_that_have_changed_are_read(store: ClaimStore, other: Other, reads: list[str]) -> None:
    store.put_all([a_record("a"), a_record("b")])
    kept = store.get("a")
    other.do("put", "b", "/elsewhere")
    assert store.get("a") is kept
    changed = store.get("b")
    assert changed is not None
    assert changed.netns_path == "/elsewhere"
    assert reads == ["b.json"]


def test_of_two_writes_at_the_same_time_the_second_is_seen(store: ClaimStore, path: Path) -> None:
    """The kernel may stamp both with one time, and give the file the number of the one before it."""
    with closing(ClaimStore(path)) as other:
        other.open()
        for number in range(200):
            other.put_all([replace(a_record(), netns_path=f"/{number:03}")], durable=False)
            (seen,) = store.get_all()
            assert seen.netns_path == f"/{number:03}"


@pytest.mark.process
def test_a_look_does_not_wait_for_another_process_that_writes(store: ClaimStore, other: Other) -> None:
    store.put(a_record("a"))
    assert other.do("begin")
    assert [record.claim.uid for record in store.get_all()] == ["a"]
    other.do("end")


@pytest.mark.process
def test_records_that_change_together_are_seen_together(
    store: ClaimStore, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the writer takes; what a reader does that waits in vain is the next test."""
    monkeypatch.setattr("dranet.store.record_folder._STEP_SECONDS", 60.0)
    store.put_all([a_record("a"), a_record("b")])
    other.start("place_both", "/both", 200)
    seen = set()
    while (places := tuple(record.netns_path for record in store.get_all())) != ("/both199",) * 2:
        seen.add(places)
    assert other.answer() is None
    assert all(one == another for one, another in seen), seen


def test_a_process_that_died_while_it_replaced_records_delays_nobody_and_hides_nothing(
    store: ClaimStore, path: Path
) -> None:
    store.put(a_record("a"))
    note_change(path, by=1)
    edit_record(path, "a", lambda document: {**document, "netns_path": "/first"})
    assert [record.netns_path for record in store.get_all()] == ["/first"]
    text = read_texts(path)["a"]
    start = time.monotonic()
    for number in range(100):
        (path / "new").write_text(text.replace("/first", f"/{number}"))
        (path / "new").replace(path / "a.json")
        assert [record.netns_path for record in store.get_all()] == [f"/{number}"]
    assert time.monotonic() - start < 10, "not as long for each look as for the first"
    store.put(a_record("b"))
    assert len(store.get_all()) == 2


@pytest.mark.process
def test_who_wants_to_know_is_told_of_others_commits_and_not_of_our_own(
    store: ClaimStore, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(store._mirror, "_on_change", lambda: told.append("news"))
    store.put(a_record("mine"))
    store.get_all()
    assert told == []
    other.do("put", "theirs")
    store.delete("mine")
    store.get_all()
    assert told == ["news"]


def test_a_look_during_our_own_write_shows_what_was_before_and_waits_for_no_disk(
    store: ClaimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    news: list[str] = []
    monkeypatch.setattr(store._mirror, "_on_change", lambda: news.append("news"))
    seen: list[object] = []
    real = os.fsync

    def slow(fd: int) -> None:
        start = time.monotonic()
        seen.append((store.get_all(), time.monotonic() - start < 0.1))
        real(fd)

    monkeypatch.setattr(os, "fsync", slow)
    store.put(a_record("a"))
    assert seen == [((), True)] * 2
    assert store.get_all() == (a_record("a"),)
    assert news == []


@pytest.mark.process
def test_a_disk_that_fails_leaves_what_was_read_last(
    store: ClaimStore, other: Other, caplog: pytest.LogCaptureFixture
) -> None:
    store.put(a_record("a"))
    blind(store)
    other.do("delete", "a")
    assert store.get("a") == a_record("a")
    assert store.get("a") == a_record("a")
    assert len([line for line in caplog.messages if "memory has to do" in line]) == 1
    see(store)
    assert store.get("a") is None


def blind(store: ClaimStore) -> None:
    """Its looks fail from now on, as on a disk that fails."""

    def fail(*_: object) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    store._folder.read = fail  # type: ignore[assignment,method-assign]


def see(store: ClaimStore) -> None:
    del store._folder.read


@pytest.mark.process
def test_a_write_after_a_look_that_failed_hides_nothing_that_others_have_committed(
    store: ClaimStore, other: Other
) -> None:
    store.put(a_record("mine"))
    blind(store)
    other.do("put", "theirs")
    with pytest.raises(StoreError):
        store.put(a_record("more"))
    see(store)
    assert sorted(record.claim.uid for record in store.get_all()) == ["mine", "theirs"]


@pytest.mark.process
def test_a_claim_that_a_failed_look_does_not_show_is_not_taken_for_unknown(
    store: ClaimStore, other: Other
) -> None:
    """Unprepare would have its kubelet told that all is given back."""
    other.do("put", "theirs")
    blind(store)
    with pytest.raises(StoreError):
        store.delete("theirs")
    see(store)
    assert store.get("theirs") is not None


@pytest.mark.process
def test_who_decides_by_what_is_there_is_not_given_what_was(store: ClaimStore, other: Other) -> None:
    """A device would go to two claims: the look that failed, before a write that does not."""
    store.check_version()
    blind(store)
    other.do("put", "theirs")
    with pytest.raises(StoreError):
        store.check_version()
    see(store)
    store.check_version()


@pytest.mark.process
def test_a_store_that_is_opened_again_shows_what_others_committed_meanwhile(
    store: ClaimStore, other: Other
) -> None:
    store.put(a_record("mine"))
    store.close()
    other.do("put", "theirs")
    store.open()
    assert sorted(record.claim.uid for record in store.get_all()) == ["mine", "theirs"]


# --- writing --------------------------------------------------------------------------------------------


@pytest.mark.process
def test_processes_that_write_at_the_same_time_lose_nothing(
    store: ClaimStore, openers: list[Other], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_store, "BUSY_SECONDS", PATIENT_SECONDS)
    assert [opener.answer() for opener in openers] == [None] * 3
    for number, opener in enumerate(openers):
        opener.start("put_many", f"theirs-{number}", 40)
    for number in range(40):
        store.put(a_record(f"mine-{number}"))
    assert [opener.answer() for opener in openers] == [None] * 3
    mine = sorted(record.claim.uid for record in store.get_all())
    assert len(mine) == 160
    assert [opener.do("look") for opener in openers] == [mine] * 3


@pytest.mark.process
def test_a_process_killed_while_it_writes_holds_nobody_up(store: ClaimStore, path: Path) -> None:
    store.put(a_record("a"))
    other = Other()
    other.do("use", str(path))
    assert other.do("begin")
    other.kill()
    store.put(a_record("b"))
    assert sorted(record.claim.uid for record in store.get_all()) == ["a", "b"]


@pytest.mark.process
def test_a_write_waits_for_another_process_until_its_deadline(
    store: ClaimStore, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_store, "BUSY_SECONDS", PATIENT_SECONDS)
    assert other.do("begin")
    start = time.monotonic()
    with pytest.raises(StoreError, match=f"process {other.process.pid} is writing") as caught:
        store.put_all([a_record("a")], deadline=start + 0.1)
    assert 0.1 <= time.monotonic() - start < PATIENT_SECONDS / 2
    assert caught.value.retryable
    assert store.get_all() == ()
    other.do("end")
    store.put(a_record("a"))
    assert len(store.get_all()) == 1


@pytest.mark.process
def test_processes_that_make_the_file_at_the_same_time_all_open_it(openers: list[Other]) -> None:
    assert [opener.answer() for opener in openers] == [None] * 3
    assert [opener.do("put", f"uid-{number}") for number, opener in enumerate(openers)] == [None] * 3
    assert openers[0].do("look") == [f"uid-{number}" for number in range(3)]


@pytest.fixture
def spoilt(path: Path) -> None:
    """A file with a good and a bad record."""
    with closing(ClaimStore(path)) as store:
        store.open()
        store.put_all([a_record("good"), a_record("bad")])
    write_text(path, "bad", '{"version": 1, "claim": 5}')


@pytest.mark.process
@pytest.mark.usefixtures("spoilt")
def test_a_bad_record_is_set_aside_by_one_of_those_who_find_it(path: Path, openers: list[Other]) -> None:
    assert [opener.answer() for opener in openers] == [None] * 3
    assert sorted(str(opener.do("set_aside")) for opener in openers) == ["['bad']", "[]", "[]"]
    assert [opener.do("look") for opener in openers] == [["good"]] * 3
    assert [file.name for file in path.glob("*.unreadable")] == ["bad.1.unreadable"]


@pytest.mark.process
def test_a_record_that_turns_bad_while_we_run_is_left_for_the_next_start(
    store: ClaimStore, other: Other, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.put_all([a_record("good"), a_record("bad")])
    write_text(path, "bad", "{}")
    other.do("put", "more")
    assert sorted(record.claim.uid for record in store.get_all()) == ["good", "more"]
    other.do("delete", "more")
    assert [record.claim.uid for record in store.get_all()] == ["good"]
    assert len([line for line in caplog.messages if "cannot be read" in line]) == 1


# --- a newer driver beside us ---------------------------------------------------------------------------


def test_records_of_a_newer_driver_make_this_one_step_aside(
    store: ClaimStore, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    store.put(a_record("a"))
    store.check_version()
    write_newer(path)
    assert store.is_newer
    assert store.get_all() == (a_record("a"),), "what was before"
    writes: list[Callable[[], None]] = [lambda: store.put(a_record("b")), lambda: store.delete("a")]
    for write in (*writes, store.check_version):
        with pytest.raises(StoreError, match="newer driver") as caught:
            write()
        assert (caught.value.reason, caught.value.retryable) == (Reason.STORE_NEWER, True)
    edit_record(path, "new", lambda document: {**document, "more": 1})
    assert store.is_newer
    assert len(caplog.messages) == 1
    assert read_texts(path).keys() == {"a", "new"}


@pytest.mark.parametrize("others", [(), ("a",)])
def test_once_no_record_is_the_newer_drivers_any_driver_goes_on(
    store: ClaimStore, path: Path, others: tuple[str, ...]
) -> None:
    store.put_all([a_record(uid) for uid in others])
    write_newer(path)
    assert store.is_newer
    remove_record(path, "new")
    store.check_version()
    store.put(a_record("b"))
    assert store.get_all() == tuple(a_record(uid) for uid in (*others, "b"))


def test_a_record_keeps_its_version_until_it_is_written(path: Path) -> None:
    """The instance that is leaving goes on with its records until the new one writes any."""
    with closing(ClaimStore(path)) as store:
        store.open()
        store.put_all([a_record("a"), a_record("b"), a_record("c")])
    for uid in "abc":
        edit_record(path, uid, lambda document: {**document, "version": 1})
    with closing(ClaimStore(path)) as store:
        store.open()
        store.delete("b")
        assert read_versions(path) == {1}
        store.put(replace(a_record("a"), netns_path="/elsewhere"))
        assert read_versions(path) == {1, RECORD_VERSION}
