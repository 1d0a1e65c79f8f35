"""A damaged store: the driver starts, every record that was not hit is there, and a loss is told."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.errors import Reason, StoreError
from dranet.model.plan import PreparedClaim
from dranet.store.claim_store import SCHEMA_VERSION, ClaimStore
from dranet.store.file import PAGE_BYTES, Content, read_image, read_log
from dranet.store.record_json import encode_record
from dranet.store.salvage import find_damaged, replace_damaged
from tests.store.test_claim_store import a_record

CLAIMS = 12
MOST_ON_A_PAGE = 8
"""Of a record that is longer than a page, at least an eighth of a page lies beside its key."""
VERSION_BYTES = range(60, 64)
"""Of the file's header: with another number there it is a newer driver's."""


def record(number: int) -> PreparedClaim:
    """From those that fit into a page, to those with many overflow pages."""
    plain = a_record(f"uid-{number:02}", f"pod-{number}")
    (device,) = plain.devices
    return replace(plain, devices=(device,) * (1 + 3 * (number % 3)))


@cache
def files(*, in_log: bool) -> dict[str, bytes]:
    """A store with records that came, changed and went: all in the database, or half of them in the log."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "claims.db")
        with closing(ClaimStore(path)) as store:
            store.open()
            store.put_all([record(number) for number in range(0, CLAIMS, 2)])
            store.put_all([a_record(f"gone-{number}") for number in range(8)])
        with closing(ClaimStore(path)) as store:
            store.open()
            for number in range(1, CLAIMS, 2):
                store.put(record(number))
            for number in range(8):
                store.delete(f"gone-{number}")
            if in_log:
                return read_files(path)
        return read_files(path)


def read_files(path: Path) -> dict[str, bytes]:
    found = (path, path.with_name("claims.db-wal"))
    return {file.name: file.read_bytes() for file in found if file.exists()}


def lay(folder: Path, content: dict[str, bytes]) -> Path:
    for name, data in content.items():
        (folder / name).write_bytes(data)
    return folder / "claims.db"


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder for what is done so often that a disk would take minutes to sync it."""
    with TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


class Opened:
    """What a driver that starts makes of the files."""

    def __init__(self, path: Path) -> None:
        self.told: list[tuple[Reason, str]] = []
        store = ClaimStore(path, on_trouble=lambda reason, note: self.told.append((reason, note)))
        with closing(store):
            store.open()
            self.found = {r.claim.uid: r for r in store.get_all()}
            self.quarantined = store.quarantine_size
            store.put(a_record("new"))
            assert store.get("new") == a_record("new"), "and it can be used"
        self.damaged = find_damaged(path)

    def missing(self) -> set[str]:
        return {record(number).claim.uid for number in range(CLAIMS)} - self.found.keys()


def is_fair(name: str, place: int) -> bool:
    """Not where a flip makes the file a newer driver's."""
    return name.endswith("-wal") or place not in VERSION_BYTES


def wrong(opened: Opened) -> list[str]:
    """Claims that are not as they were."""
    return [uid for uid, found in opened.found.items() if found != record(int(uid.removeprefix("uid-")))]


# --- every page -----------------------------------------------------------------------------------------


def pages() -> int:
    return len(files(in_log=False)["claims.db"]) // PAGE_BYTES


def test_a_page_that_is_lost_costs_no_record_on_another_and_is_told(memory: Path) -> None:
    whole = files(in_log=False)
    lost = 0
    for page in range(pages()):
        content = (b"\0", b"\xff", b"\x0a")[page % 3]
        folder = memory / str(page)
        folder.mkdir()
        data = bytearray(whole["claims.db"])
        data[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = content * PAGE_BYTES
        path = lay(folder, {"claims.db": bytes(data)})
        opened = Opened(path)
        assert wrong(opened) == []
        assert len(opened.missing()) <= MOST_ON_A_PAGE, f"page {page}"
        assert "gone-1" not in opened.found, "what was deleted stays so"
        if opened.missing():
            lost += 1
            assert Reason.STORE_CORRUPT in {reason for reason, _ in opened.told}, f"page {page}"
            assert opened.damaged or opened.quarantined
        for file in opened.damaged:
            assert file.read_bytes() == bytes(data), "set aside as it was"
        shutil.rmtree(folder)
    assert lost > pages() // 4


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_flipped_bytes_keep_the_driver_from_its_claims(data: st.DataObject) -> None:
    whole = files(in_log=data.draw(st.booleans()))
    name = data.draw(st.sampled_from(sorted(whole)))
    content = bytearray(whole[name])
    header = st.integers(0, 120)
    anywhere = st.integers(0, len(content) - 1)
    at = data.draw(st.one_of(anywhere, header).filter(lambda n: is_fair(name, n)))
    for place in range(at, min(at + data.draw(st.integers(1, 40)), len(content))):
        if is_fair(name, place):
            content[place] ^= data.draw(st.integers(1, 255))
    with TemporaryDirectory(dir="/dev/shm") as folder:
        opened = Opened(lay(Path(folder), {**whole, name: bytes(content)}))
    strangers = opened.found.keys() - {record(number).claim.uid for number in range(CLAIMS)}
    assert strangers == set()
    assert len(opened.missing()) <= MOST_ON_A_PAGE
    if opened.missing():
        assert opened.told, "a loss is told"


@settings(max_examples=25, deadline=None)
@given(garbage=st.binary(max_size=3000), log=st.binary(max_size=9000))
def test_whatever_lies_there_the_driver_starts(garbage: bytes, log: bytes) -> None:
    with TemporaryDirectory(dir="/dev/shm") as folder:
        opened = Opened(lay(Path(folder), {"claims.db": garbage, "claims.db-wal": log}))
        assert opened.found == {}
        assert bool(opened.damaged) == bool(garbage)


def test_a_newer_drivers_file_is_left_as_it_is_even_if_its_tables_are_others(tmp_path: Path) -> None:
    path = tmp_path / "claims.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE claims_of_tomorrow (id TEXT)")
        db.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(StoreError) as caught:
        ClaimStore(path).open()
    assert caught.value.reason is Reason.STORE_NEWER
    assert path.read_bytes() == before
    assert find_damaged(path) == []


# --- the log --------------------------------------------------------------------------------------------


def test_a_log_that_a_power_cut_has_torn_is_no_damage_and_has_every_commit_before(memory: Path) -> None:
    whole = files(in_log=True)
    log = whole["claims.db-wal"]
    frame = PAGE_BYTES + 24
    ends = [32, *range(32 + frame, len(log) + 1, frame)]
    cuts = sorted({cut for end in ends for cut in (end, end + frame // 2) if cut <= len(log)} | {0, 7, 40})
    counts = []
    for cut in cuts[::3] + cuts[-1:]:
        folder = memory / str(cut)
        folder.mkdir()
        opened = Opened(lay(folder, {**whole, "claims.db-wal": log[:cut]}))
        assert (opened.told, opened.damaged) == ([], [])
        own = {uid: found for uid, found in opened.found.items() if uid.startswith("uid-")}
        assert own == {uid: record(int(uid[4:])) for uid in own}
        odd = sorted(int(uid[4:]) for uid in own if int(uid[4:]) % 2)
        assert odd == list(range(1, 2 * len(odd), 2)), "in the order of their commits, none left out"
        counts.append(len(odd))
        shutil.rmtree(folder)
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, CLAIMS // 2)


def test_every_frame_that_is_damaged_within_the_log_is_noticed_and_the_later_ones_count(
    memory: Path,
) -> None:
    whole = files(in_log=True)
    log = whole["claims.db-wal"]
    frame = PAGE_BYTES + 24
    for start in range(32, len(log) - frame, 3 * frame):
        data = bytearray(log)
        data[start + 200] ^= 0x55
        image = read_log(bytes(data))
        assert image.damage, f"frame at {start}"
        folder = memory / str(start)
        folder.mkdir()
        opened = Opened(lay(folder, {**whole, "claims.db-wal": bytes(data)}))
        assert opened.told
        assert len(opened.missing()) <= MOST_ON_A_PAGE
        assert opened.missing() <= {f"uid-{number:02}" for number in range(CLAIMS)}
        shutil.rmtree(folder)


def test_a_look_beside_a_running_driver_sees_every_commit_and_touches_nothing(tmp_path: Path) -> None:
    path = tmp_path / "claims.db"
    with closing(ClaimStore(path)) as store:
        store.open()
        for number in range(30):
            store.put(record(number % CLAIMS))
            if number % 10 == 0:
                with closing(sqlite3.connect(path)) as db:
                    db.execute("PRAGMA wal_checkpoint(RESTART)")
            files_before = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
            with closing(sqlite3.connect(":memory:")) as seen:
                content = read_image(path)
                seen.deserialize(content.content[:18] + b"\1\1" + content.content[20:])
                rows = dict(seen.execute("SELECT claim_uid, record FROM prepared"))
            assert rows == {r.claim.uid: encode_record(r) for r in store.get_all()}
            assert {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()} == files_before


# --- how a salvage ends ---------------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[Path]:
    content = bytearray(files(in_log=False)["claims.db"])
    content[PAGE_BYTES : PAGE_BYTES * 2] = bytes(PAGE_BYTES)  # the root of the records
    path = lay(tmp_path, {"claims.db": bytes(content)})
    yield path
    assert not path.with_name("claims.db.salvaged").exists()


@pytest.mark.parametrize("step", ["rename", "unlink", "fsync"])
def test_a_kill_within_a_salvage_loses_nothing_of_it(damaged: Path, step: str) -> None:
    """At each call that changes the folder, in a process of its own."""
    for nth in range(1, 12):
        child = os.fork()
        if child == 0:
            _kill_at(step, nth)
            with closing(ClaimStore(damaged)) as store:
                store.open()
            os._exit(0)
        was_killed = os.waitpid(child, 0)[1] != 0
        if not was_killed:
            break
    opened = Opened(damaged)
    assert len(opened.missing()) <= MOST_ON_A_PAGE
    assert len(opened.found) >= CLAIMS - MOST_ON_A_PAGE
    assert opened.damaged


def _kill_at(step: str, nth: int) -> None:
    calls = iter(range(1, 100))
    real = getattr(os, step)

    def counted(*arguments: object, **named: object) -> object:
        if next(calls) == nth:
            os.kill(os.getpid(), 9)
        return real(*arguments, **named)

    setattr(os, step, counted)


def test_only_one_of_several_instances_salvages(damaged: Path) -> None:
    gate, opener = os.pipe()
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            os.close(opener)
            os.read(gate, 1)
            with closing(ClaimStore(damaged)) as store:
                store.open()
                os._exit(0 if len(store.get_all()) >= CLAIMS - MOST_ON_A_PAGE else 1)
        children.append(child)
    os.close(opener)
    os.close(gate)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert len(find_damaged(damaged)) == 1


def test_damaged_files_do_not_fill_the_disk(damaged: Path) -> None:
    for _ in range(6):
        content = damaged.read_bytes()
        image = read_image(damaged)
        replace_damaged(damaged, Content(image.version))
        damaged.write_bytes(content)
    assert len(find_damaged(damaged)) == 3


# --- records that cannot be read ------------------------------------------------------------------------


def spoil(path: Path, claim_uid: str, **changes: object) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        (text,) = db.execute("SELECT record FROM prepared WHERE claim_uid = ?", (claim_uid,)).fetchone()
        document = json.loads(text)
        for where, value in changes.items():
            *steps, last = where.split("__")
            holder = document
            for step in steps:
                holder = holder[int(step)] if step.isdecimal() else holder[step]
            holder[last] = value
        text = json.dumps(document)
        db.execute("UPDATE prepared SET record = ? WHERE claim_uid = ?", (text, claim_uid))


def test_what_lies_in_quarantine_is_counted_after_every_restart_until_the_claim_is_given_back(
    tmp_path: Path,
) -> None:
    path = tmp_path / "claims.db"
    with closing(ClaimStore(path)) as store:
        store.open()
        store.put_all([a_record("good"), a_record("bad")])
    spoil(path, "bad", devices__0__plan__steps=[{"step": "from-the-future"}, {"step": "set-up"}])
    opened = Opened(path)
    assert opened.quarantined == 1
    assert [reason for reason, _ in opened.told] == [Reason.STORE_CORRUPT]
    with closing(ClaimStore(path)) as store:
        store.open()
        assert (store.quarantined, store.quarantine_size) == ((), 1)
        assert store.get("bad") is None
        aside = store.get_set_aside("bad")
        assert aside is not None
        (device,) = aside.devices
        assert device.plan is not None
        assert (device.plan.host, aside.netns_path) == (a_record().plans[0].host, "/run/netns/x")
        assert [step.step for step in device.plan.steps] == ["set-up"]
        store.delete("bad")
        assert store.quarantine_size == 0


@pytest.mark.parametrize(
    ("changes", "is_enough"),
    [
        ({"devices__0__plan__host__mtu": "many"}, False),
        ({"devices__0__plan__host__routes": [{"destination": 5}, {"no": "route"}]}, True),
        ({"devices__0__plan__host__alias": 5}, True),
        ({"devices__0__device__kind": "toaster"}, False),
        ({"netns_path": ""}, False),
        ({"pod": None}, False),
        ({"devices": []}, False),
        ({"boot_id": 7}, False),
    ],
)
def test_a_give_back_gets_what_can_be_read_or_nothing(
    tmp_path: Path, changes: dict[str, object], is_enough: bool
) -> None:
    path = tmp_path / "claims.db"
    with closing(ClaimStore(path)) as store:
        store.open()
        store.put(a_record("bad"))
    spoil(path, "bad", **changes, sandbox_id=5)
    with closing(ClaimStore(path)) as store:
        store.open()
        assert store.get("bad") is None
        assert (store.get_set_aside("bad") is not None) is is_enough


def test_a_record_in_the_row_of_another_claim_is_no_record_of_it(tmp_path: Path) -> None:
    path = tmp_path / "claims.db"
    with closing(ClaimStore(path)) as store:
        store.open()
        store.put(a_record("one"))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE prepared SET claim_uid = 'two'")
    with closing(ClaimStore(path)) as store:
        store.open()
        assert (store.get_all(), store.quarantine_size) == ((), 1)
