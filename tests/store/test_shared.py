"""The store that two instances of the driver share, against a real second process that may be killed."""

from __future__ import annotations

import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet.errors import Reason, StoreError
from dranet.store import claim_store
from dranet.store.claim_store import SCHEMA_VERSION, ClaimStore
from tests.store.test_claim_store import a_record

REPOSITORY = Path(__file__).parents[2]

PATIENT_SECONDS = 60.0
"""How long a write waits for those of others, where that is not what is tried: a disk may be slow."""

SERVE = f"""
import json, sys, sqlite3
from msgspec.structs import replace
from pathlib import Path
from dranet.store import claim_store
from dranet.store.claim_store import SCHEMA_VERSION, ClaimStore
from tests.store.test_claim_store import a_record
claim_store.BUSY_SECONDS = {PATIENT_SECONDS}
def use(path):
    global store, raw
    store, raw = ClaimStore(Path(path)), sqlite3.connect(path, isolation_level=None)
    store.open()
def leave():
    store.close()
    raw.close()
def put(uid, netns_path="/run/netns/x"): store.put(replace(a_record(uid), netns_path=netns_path))
def put_many(prefix, count):
    for number in range(count): put(f"{{prefix}}-{{number}}")
def delete(uid): store.delete(uid)
def look(): return sorted(record.claim.uid for record in store.get_all())
def set_aside(): return list(store.quarantined)
def execute(sql): raw.execute(sql)
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
    return tmp_path / "claims.db"


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


def trace(store: ClaimStore) -> list[str]:
    """Statements of the connection that reads, from now on."""
    statements: list[str] = []
    assert store._mirror._db is not None
    store._mirror._db.set_trace_callback(statements.append)
    return statements


# --- the freshest view ----------------------------------------------------------------------------------


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


def test_a_look_reads_no_record_when_nobody_else_has_committed(store: ClaimStore) -> None:
    store.put(a_record("a"))
    statements = trace(store)
    store.put(a_record("b"))
    assert store.get("a") == a_record("a")
    assert len(store.get_all()) == 2
    assert set(statements) == {"PRAGMA data_version"}


def test_only_records_that_have_changed_are_decoded(store: ClaimStore, other: Other) -> None:
    store.put_all([a_record("a"), a_record("b")])
    kept = store.get("a")
    other.do("put", "b", "/elsewhere")
    assert store.get("a") is kept
    changed = store.get("b")
    assert changed is not None
    assert changed.netns_path == "/elsewhere"


def test_a_look_does_not_wait_for_another_process_that_writes(store: ClaimStore, other: Other) -> None:
    store.put(a_record("a"))
    other.do("execute", "BEGIN IMMEDIATE")
    other.do("execute", "DELETE FROM prepared")
    assert [record.claim.uid for record in store.get_all()] == ["a"]
    other.do("execute", "COMMIT")
    assert store.get_all() == ()


def test_who_wants_to_know_is_told_of_others_commits_and_not_of_our_own(
    store: ClaimStore, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(store, "_on_foreign_change", lambda: told.append("news"))
    store.put(a_record("mine"))
    store.get_all()
    assert told == []
    other.do("put", "theirs")
    store.delete("mine")
    store.get_all()
    assert told == ["news"]


def test_a_disk_that_fails_leaves_what_was_read_last(
    store: ClaimStore, other: Other, caplog: pytest.LogCaptureFixture
) -> None:
    store.put(a_record("a"))
    assert store._mirror._db is not None
    store._mirror._db.execute("PRAGMA busy_timeout=0")
    store._mirror._db.set_progress_handler(lambda: 1, 1)  # SQLite gives up each statement
    other.do("delete", "a")
    assert store.get("a") == a_record("a")
    assert store.get("a") == a_record("a")
    assert len([line for line in caplog.messages if "memory has to do" in line]) == 1
    store._mirror._db.set_progress_handler(None, 0)
    assert store.get("a") is None


def blind(store: ClaimStore) -> None:
    """Its looks fail from now on, as on a disk that hangs."""
    assert store._mirror._db is not None
    store._mirror._db.execute("PRAGMA busy_timeout=0")
    store._mirror._db.set_progress_handler(lambda: 1, 1)


def see(store: ClaimStore) -> None:
    assert store._mirror._db is not None
    store._mirror._db.set_progress_handler(None, 0)


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


def test_who_decides_by_what_is_there_is_not_given_what_was(store: ClaimStore, other: Other) -> None:
    """A device would go to two claims: the look that failed, before a write that does not."""
    store.check_version()
    blind(store)
    other.do("put", "theirs")
    with pytest.raises(StoreError):
        store.check_version()
    see(store)
    store.check_version()


def test_a_version_is_not_lowered_on_the_word_of_a_look_that_failed(
    store: ClaimStore, other: Other, path: Path
) -> None:
    """Records of this version would be in a file that says that any driver may go on with it."""
    store.put(a_record("mine"))
    blind(store)
    other.do("put", "theirs")
    with pytest.raises(StoreError):
        store.delete("mine")
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


def test_a_store_that_is_opened_again_shows_what_others_committed_meanwhile(
    store: ClaimStore, other: Other
) -> None:
    store.put(a_record("mine"))
    store.close()
    other.do("put", "theirs")
    store.open()
    assert sorted(record.claim.uid for record in store.get_all()) == ["mine", "theirs"]


# --- writing --------------------------------------------------------------------------------------------


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


def test_a_process_killed_within_a_transaction_holds_nobody_up(store: ClaimStore, path: Path) -> None:
    store.put(a_record("a"))
    other = Other()
    other.do("use", str(path))
    other.do("execute", "BEGIN IMMEDIATE")
    other.do("execute", "DELETE FROM prepared")
    other.kill()
    store.put(a_record("b"))
    assert sorted(record.claim.uid for record in store.get_all()) == ["a", "b"]


def test_a_write_waits_for_another_process_until_its_deadline(
    store: ClaimStore, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_store, "BUSY_SECONDS", PATIENT_SECONDS)
    other.do("execute", "BEGIN IMMEDIATE")
    start = time.monotonic()
    with pytest.raises(StoreError, match="another process is writing") as caught:
        store.put_all([a_record("a")], deadline=start + 0.1)
    assert 0.1 <= time.monotonic() - start < PATIENT_SECONDS / 2
    assert caught.value.retryable
    assert store.get_all() == ()
    other.do("execute", "ROLLBACK")
    store.put(a_record("a"))
    assert len(store.get_all()) == 1


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
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE prepared SET record = '{\"claim\": 5}' WHERE claim_uid = 'bad'")


@pytest.mark.usefixtures("spoilt")
def test_a_bad_record_is_set_aside_by_one_of_those_who_find_it(path: Path, openers: list[Other]) -> None:
    assert [opener.answer() for opener in openers] == [None] * 3
    assert sorted(str(opener.do("set_aside")) for opener in openers) == ["['bad']", "[]", "[]"]
    assert [opener.do("look") for opener in openers] == [["good"]] * 3
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT claim_uid FROM quarantine").fetchall() == [("bad",)]


def test_a_record_that_turns_bad_while_we_run_is_left_for_the_next_start(
    store: ClaimStore, other: Other, caplog: pytest.LogCaptureFixture
) -> None:
    store.put_all([a_record("good"), a_record("bad")])
    other.do("execute", "UPDATE prepared SET record = '{}' WHERE claim_uid = 'bad'")
    other.do("put", "more")
    assert sorted(record.claim.uid for record in store.get_all()) == ["good", "more"]
    other.do("delete", "more")
    assert [record.claim.uid for record in store.get_all()] == ["good"]
    assert len([line for line in caplog.messages if "cannot be read" in line]) == 1


# --- a newer driver beside us ---------------------------------------------------------------------------


def become_newer(other: Other) -> None:
    """As a later driver that has prepared a claim."""
    other.do("execute", "BEGIN")
    other.do("execute", """INSERT OR REPLACE INTO prepared VALUES ('new', '{"unheard": "of"}')""")
    other.do("execute", f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    other.do("execute", "COMMIT")


def test_records_of_a_newer_driver_make_this_one_step_aside(
    store: ClaimStore, other: Other, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    store.put(a_record("a"))
    store.check_version()
    become_newer(other)
    assert store.is_newer
    assert store.get_all() == (a_record("a"),), "what was before"
    writes: list[Callable[[], None]] = [lambda: store.put(a_record("b")), lambda: store.delete("a")]
    for write in (*writes, store.check_version):
        with pytest.raises(StoreError, match="newer driver") as caught:
            write()
        assert (caught.value.reason, caught.value.retryable) == (Reason.STORE_NEWER, True)
    other.do("execute", "UPDATE prepared SET record = '{}' WHERE claim_uid = 'new'")
    assert store.is_newer
    assert len(caplog.messages) == 1
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM prepared").fetchall() == [(2,)]


def test_a_file_that_the_newer_driver_has_emptied_is_anybodys_again(store: ClaimStore, other: Other) -> None:
    become_newer(other)
    assert store.is_newer
    other.do("execute", "BEGIN")
    other.do("execute", "DELETE FROM prepared")
    other.do("execute", "PRAGMA user_version=1")
    other.do("execute", "COMMIT")
    store.check_version()
    store.put(a_record("a"))
    assert store.get_all() == (a_record("a"),)


def test_opening_and_emptying_change_no_version_before_there_is_need(path: Path) -> None:
    """The instance that is on its way out goes on with its records until the new one writes any."""

    def version() -> int:
        with closing(sqlite3.connect(path)) as db:
            return int(db.execute("PRAGMA user_version").fetchone()[0])

    with closing(ClaimStore(path)) as store:
        store.open()
        store.put_all([a_record("a"), a_record("b")])
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version=1")
    with closing(ClaimStore(path)) as store:
        store.open()
        assert version() == 1
        store.delete("b")
        assert version() == 1
        store.put(replace(a_record("a"), netns_path="/elsewhere"))
        assert version() == SCHEMA_VERSION
