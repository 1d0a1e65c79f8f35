"""Damaged records: the driver starts, every record that was not hit is there, and a loss is reported."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet import files
from dranet.errors import Reason, StoreError
from dranet.model.plan import RECORD_VERSION, PreparedClaim
from dranet.store.claim_store import ClaimStore
from dranet.store.record_folder import RecordFolder, encode_record, encode_row
from tests.store.test_claim_store import a_record
from tests.support.records import JsonObject, edit_record, read_texts, write_newer, write_record, write_text

CLAIMS = 6


def record(number: int) -> PreparedClaim:
    """One to seven devices."""
    plain = a_record(f"uid-{number:02}", f"pod-{number}")
    (device,) = plain.devices
    return replace(plain, devices=(device,) * (1 + 3 * (number % 3)))


@cache
def whole() -> dict[str, bytes]:
    """The files of a store with records that came, changed and went."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "claims")
        with closing(ClaimStore(path)) as store:
            store.open()
            store.put_all([a_record(f"uid-{number:02}") for number in range(CLAIMS)])
            store.put_all([record(number) for number in range(CLAIMS)], durable=False)
            store.put(a_record("gone"))
            store.delete("gone")
        return {file.name: file.read_bytes() for file in path.iterdir()}


def lay(folder: Path, content: dict[str, bytes]) -> Path:
    path = folder / "claims"
    path.mkdir()
    for name, data in content.items():
        (path / name).write_bytes(data)
    return path


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

    def missing(self) -> set[str]:
        return {record(number).claim.uid for number in range(CLAIMS)} - self.found.keys()


# --- files that the disk has damaged --------------------------------------------------------------------

DAMAGE: list[Callable[[bytes], bytes]] = [
    lambda content: bytes(len(content)),
    lambda content: b"\xff" * len(content),
    lambda content: content[: len(content) // 2],
    lambda content: content[:-1],
    lambda content: content + b"\0",
    lambda content: content[:4096] + bytes(len(content) - 4096) if len(content) > 4096 else bytes(4096),
    lambda _: b"",
    lambda _: b"null",
    lambda _: b"[" * 100_000,
]


@pytest.mark.parametrize("number", range(len(DAMAGE)))
def test_a_record_that_is_lost_costs_no_other_and_is_told(memory: Path, number: int) -> None:
    for name in sorted(whole()):
        if name == "generation":
            continue
        path = lay(memory, {**whole(), name: DAMAGE[number](whole()[name])})
        opened = Opened(path)
        assert opened.missing() == {name.removesuffix(".json")}
        assert all(found == record(int(uid[4:])) for uid, found in opened.found.items())
        assert [reason for reason, _ in opened.told] == [Reason.STORE_CORRUPT]
        assert name.removesuffix(".json") in opened.told[0][1]
        aside = [file.read_bytes() for file in path.glob("*.unreadable")]
        assert aside == [content for content in [DAMAGE[number](whole()[name])] if content], "as it was"
        assert opened.quarantined == len(aside)
        shutil.rmtree(path)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_flipped_bytes_keep_the_driver_from_its_claims(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(whole())))
    content = bytearray(whole()[name])
    version = {content.index(b"4")} if name != "generation" else set()  # there it is a newer driver's
    assert RECORD_VERSION == 4
    at = data.draw(st.integers(0, len(content) - 1))
    for place in {*range(at, min(at + data.draw(st.integers(1, 40)), len(content)))} - version:
        content[place] ^= data.draw(st.integers(1, 255))
    with TemporaryDirectory(dir="/dev/shm") as folder:
        opened = Opened(lay(Path(folder), {**whole(), name: bytes(content)}))
    assert opened.found.keys() <= {record(number).claim.uid for number in range(CLAIMS)}
    hit = name.removesuffix(".json")
    assert opened.missing() <= {hit}
    assert {uid for uid, found in opened.found.items() if found != record(int(uid[4:]))} <= {hit}
    assert bool(opened.told) == bool(opened.missing()), "a loss is told"


@settings(max_examples=50, deadline=None)
@given(garbage=st.binary(max_size=3000), generation=st.binary(max_size=100))
def test_whatever_lies_there_the_driver_starts(garbage: bytes, generation: bytes) -> None:
    content = {"uid-99.json": garbage, "stranger": garbage, "generation": generation}
    with TemporaryDirectory(dir="/dev/shm") as folder:
        opened = Opened(lay(Path(folder), content))
        assert opened.found == {}
        assert opened.quarantined == bool(garbage)


def test_a_newer_drivers_record_is_left_as_it_is_and_so_is_a_damaged_one_next_to_it(tmp_path: Path) -> None:
    path = tmp_path / "claims"
    write_text(path, "damaged", "{")
    write_newer(path)
    before = read_texts(path)
    with pytest.raises(StoreError) as caught:
        ClaimStore(path).open()
    assert caught.value.reason is Reason.STORE_NEWER
    assert read_texts(path) == before


@pytest.fixture
def unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Path]:
    """A store with a record whose file cannot be read, for that error number."""

    def spoil(number: int) -> Path:
        path = lay(tmp_path, whole())
        real = files.read_file

        def read_file(file: Path, max_bytes: int) -> bytes:
            if file.name == "uid-01.json":
                raise OSError(number, os.strerror(number))
            return real(file, max_bytes)

        monkeypatch.setattr(files, "read_file", read_file)
        return path

    return spoil


def test_a_sector_that_cannot_be_read_costs_its_record_alone_until_it_can(
    unreadable: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = unreadable(errno.EIO)
    with closing(ClaimStore(path)) as store:
        store.open()
        assert len(store.get_all()) == CLAIMS - 1
        assert (store.quarantined, store.quarantine_size) == ((), 1)
        store.put(a_record("new"))
        monkeypatch.undo()
        assert store.flush_pending()
        assert store.get("uid-01") == record(1)
        assert store.quarantine_size == 0


def test_a_process_that_may_open_no_more_files_takes_no_record_for_damaged(
    unreadable: Callable[[int], Path],
) -> None:
    path = unreadable(errno.EMFILE)
    with pytest.raises(StoreError, match="cannot read: Too many open files"):
        ClaimStore(path).open()
    assert not list(path.glob("*.unreadable"))


def test_a_look_beside_a_running_driver_sees_every_commit_and_touches_nothing(tmp_path: Path) -> None:
    path = tmp_path / "claims"
    with closing(ClaimStore(path)) as store:
        store.open()
        for number in range(30):
            store.put(record(number % CLAIMS))
            before = {file.name: file.stat().st_mtime_ns for file in path.iterdir()}
            _, rows = RecordFolder(path).read({})
            assert {uid: row.text for uid, row in rows.items()} == {
                r.claim.uid: encode_row(encode_record(r)) for r in store.get_all()
            }
            assert {file.name: file.stat().st_mtime_ns for file in path.iterdir()} == before


# --- setting aside --------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize("call", ["rename", "unlink", "fsync", "pwrite"])
def test_a_kill_while_a_record_is_set_aside_loses_no_other_and_not_the_record(
    memory: Path, call: str
) -> None:
    """At each call that changes the folder, in a process of its own."""
    path = lay(memory, {**whole(), "uid-00.json": b"damaged", "uid-09.json.tmp": b"half"})
    for nth in range(1, 12):
        child = os.fork()
        if child == 0:
            _kill_at(call, nth)
            with closing(ClaimStore(path)) as store:
                store.open()
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            break
    opened = Opened(path)
    assert opened.missing() == {"uid-00"}
    (aside,) = path.glob("*.unreadable")
    assert aside.read_bytes() == b"damaged"
    assert not list(path.glob("*.tmp"))


def _kill_at(call: str, nth: int) -> None:
    calls = iter(range(1, 100))
    real = getattr(os, call)

    def counted(*arguments: object, **named: object) -> object:
        if next(calls) == nth:
            os.kill(os.getpid(), 9)
        return real(*arguments, **named)

    setattr(os, call, counted)


def test_records_of_one_claim_that_are_set_aside_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "claims"
    for content in ("{1", "{2", "{3"):
        write_text(path, "bad", content)
        with closing(ClaimStore(path)) as store:
            store.open()
            assert store.quarantined == ("bad",)
    assert store.quarantine_size == 3
    assert [r.text for r in RecordFolder(path).read_unreadable("bad")] == ["{3", "{2", "{1"]


# --- records that cannot be read ------------------------------------------------------------------------


def spoil(path: Path, claim_uid: str, **changes: object) -> None:
    def change(document: JsonObject) -> None:
        for where, value in changes.items():
            *steps, last = where.split("__")
            holder = document
            for step in steps:
                holder = holder[int(step)] if step.isdecimal() else holder[step]  # type: ignore[index]
            holder[last] = value

    edit_record(path, claim_uid, change)


def test_what_lies_in_quarantine_is_counted_after_every_restart_until_the_claim_is_given_back(
    tmp_path: Path,
) -> None:
    path = tmp_path / "claims"
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
    path = tmp_path / "claims"
    with closing(ClaimStore(path)) as store:
        store.open()
        store.put(a_record("bad"))
    spoil(path, "bad", **changes, sandbox_id=5)
    with closing(ClaimStore(path)) as store:
        store.open()
        assert store.get("bad") is None
        assert (store.get_set_aside("bad") is not None) is is_enough


def test_a_record_that_is_no_json_keeps_nobody_from_its_claim(tmp_path: Path) -> None:
    path = tmp_path / "claims"
    write_text(path, "bad", '{"version": 1, "claim"')
    with closing(ClaimStore(path)) as store:
        store.open()
        assert store.get_set_aside("bad") is None
        store.delete("bad")
        assert store.quarantine_size == 1


def test_a_record_in_the_file_of_another_claim_is_no_record_of_it(tmp_path: Path) -> None:
    path = tmp_path / "claims"
    write_record(path, "two", encode_record(a_record("one")))
    with closing(ClaimStore(path)) as store:
        store.open()
        assert (store.get_all(), store.quarantine_size) == ((), 1)


def test_a_record_without_a_version_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "claims"
    write_text(path, "one", encode_record(a_record("one")))
    with closing(ClaimStore(path)) as store:
        store.open()
        assert (store.get_all(), store.quarantined) == ((), ("one",))
        assert store.get_set_aside("one") is not None
