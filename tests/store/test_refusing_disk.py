"""A disk that refuses: Prepare fails and nothing else. Real file systems, full and read-only."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import pytest
from msgspec.structs import replace

from dranet import files
from dranet.driver.instances.members import NodeLock
from dranet.errors import KernelError, Reason, StoreError
from dranet.files import FileLock, NamedLocks
from dranet.model.claim import PodRef
from dranet.model.plan import PreparedClaim
from dranet.store.claim_store import ClaimStore
from tests.store.test_claim_store import a_record
from tests.support.records import read_texts, write_newer, write_text

DISK_BYTES = 2 << 20


class Disk:
    """A small file system of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "state" / "claims"

    def fill(self) -> None:
        """Until not one byte more fits."""
        with (self.folder / "filler").open("ab", buffering=0) as filler, suppress(OSError):
            while filler.write(bytes(1024)):
                pass

    def make_room(self) -> None:
        (self.folder / "filler").unlink(missing_ok=True)

    def remount(self, mode: str) -> None:
        _run("mount", "-o", f"remount,{mode}", str(self.folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "dranet-test", str(folder))
    try:
        yield Disk(folder)
    finally:
        _run("umount", "--lazy", str(folder))


@pytest.fixture
def store(disk: Disk) -> Iterator[ClaimStore]:
    with closing(ClaimStore(disk.store)) as store:
        store.open()
        yield store


def placed(uid: str = "uid-1", sandbox: str = "other") -> PreparedClaim:
    return replace(a_record(uid), sandbox_id=sandbox, netns_path=f"/run/netns/{sandbox}", netns_id="cookie 5")


def released(uid: str = "uid-1") -> PreparedClaim:
    return replace(a_record(uid), sandbox_id="", netns_path="", netns_id="")


def on_disk(path: Path) -> dict[str, PreparedClaim]:
    """As a driver that starts now would find it."""
    copy = path.parents[2] / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path.parent, copy)
    with closing(ClaimStore(copy / path.name)) as store:
        store.open()
        return {record.claim.uid: record for record in store.get_all()}


pytestmark = pytest.mark.kernel

# --- while the driver runs ------------------------------------------------------------------------------


def test_a_full_disk_fails_prepare_and_keeps_the_rest_in_memory_until_there_is_room(
    disk: Disk, store: ClaimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[Reason, str]] = []
    monkeypatch.setattr(store, "_on_trouble", lambda reason, note: told.append((reason, note)))
    store.put_all([a_record("placed"), a_record("ended"), a_record("quiet")])
    disk.fill()
    with pytest.raises(StoreError, match="No space left") as caught:
        _put_many(store)
    assert caught.value.reason is Reason.STORE_UNWRITABLE
    store.put_all([placed("placed")], durable=False)
    store.delete("ended")
    assert store.get_all() == (a_record("quiet"), placed("placed"))
    assert (store.is_writable, sorted(store.unwritten)) == (False, ["ended", "placed"])
    assert not store.flush_pending()
    assert [reason for reason, _ in told] == [Reason.STORE_UNWRITABLE], "once, however often it is tried"
    disk.make_room()
    assert store.flush_pending()
    assert (store.is_writable, store.unwritten) == (True, ())
    assert on_disk(disk.store) == {"quiet": a_record("quiet"), "placed": placed("placed")}


def _put_many(store: ClaimStore) -> None:
    """The first one does not fit."""
    for number in range(1000):
        store.put(a_record(f"new-{number}"))


def test_the_next_write_takes_along_what_was_refused(disk: Disk, store: ClaimStore) -> None:
    store.put(a_record("a"))
    disk.fill()
    store.put_all([placed("a")], durable=False)
    disk.make_room()
    store.put(a_record("b"))
    assert store.unwritten == ()
    assert on_disk(disk.store) == {"a": placed("a"), "b": a_record("b")}


def test_what_is_refused_twice_is_what_was_said_last(disk: Disk, store: ClaimStore) -> None:
    store.put(a_record())
    disk.fill()
    store.put_all([placed()], durable=False)
    store.put_all([released()], durable=False)
    assert store.get_all() == (released(),)
    store.put_all([a_record()], durable=False)
    assert store.unwritten == (), "as the disk has it"
    store.delete("uid-1")
    store.put_all([placed()], durable=False)
    disk.make_room()
    store.flush_pending()
    assert on_disk(disk.store) == {"uid-1": placed()}


@contextmanager
def refusing_to_delete() -> Iterator[None]:
    """A full disk lets files be removed; one that fails does not."""

    def refuse(path: Path) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "remove_file", refuse)
        yield


def test_after_a_kill_the_record_of_before_is_back(disk: Disk, store: ClaimStore) -> None:
    store.put_all([a_record("placed"), a_record("ended")])
    disk.fill()
    store.put_all([placed("placed")], durable=False)
    with refusing_to_delete():
        store.delete("ended")
    assert store.get_all() == (placed("placed"),)
    disk.make_room()
    assert on_disk(disk.store) == {"placed": a_record("placed"), "ended": a_record("ended")}


def test_a_full_disk_keeps_nobody_from_forgetting_a_claim(disk: Disk, store: ClaimStore) -> None:
    store.put_all([a_record("a"), a_record("b")])
    disk.fill()
    store.delete("a")
    assert (store.is_writable, store.unwritten) == (True, ())
    store.put_all([placed("b")], durable=False)
    disk.make_room()
    assert store.flush_pending()
    assert on_disk(disk.store) == {"b": placed("b")}


def test_what_can_be_written_is_written_when_the_store_is_closed(disk: Disk, store: ClaimStore) -> None:
    store.put_all([a_record("placed"), a_record("ended")])
    with refusing_to_delete():
        store.delete("ended")
    disk.fill()
    store.put_all([placed("placed")], durable=False)
    disk.make_room()
    store.close()
    assert on_disk(disk.store) == {"placed": placed("placed")}


# --- two instances --------------------------------------------------------------------------------------


@pytest.fixture
def other(disk: Disk) -> Iterator[ClaimStore]:
    """Another instance, with connections of its own."""
    with closing(ClaimStore(disk.store)) as other:
        other.open()
        yield other


def test_what_another_instance_writes_of_other_claims_loses_no_change(
    disk: Disk, store: ClaimStore, other: ClaimStore
) -> None:
    store.put_all([a_record("a"), a_record("b")])
    disk.fill()
    store.put_all([placed("a")], durable=False)
    store.delete("b")
    disk.make_room()
    other.put(a_record("theirs"))
    assert store.get_all() == (a_record("theirs"), placed("a"))
    assert sorted(store.unwritten) == ["a", "b"]
    disk.make_room()
    store.flush_pending()
    assert sorted(other.get_all(), key=str) == sorted([a_record("theirs"), placed("a")], key=str)


def test_a_claim_that_another_instance_has_deleted_stays_deleted(
    disk: Disk, store: ClaimStore, other: ClaimStore
) -> None:
    store.put(a_record())
    disk.fill()
    store.put_all([placed()], durable=False)
    disk.make_room()
    other.delete("uid-1")
    assert (store.get_all(), store.unwritten) == ((), ())
    disk.make_room()
    store.flush_pending()
    assert other.get_all() == ()


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (placed(sandbox="a"), placed(sandbox="b"), placed(sandbox="b")),
        (placed(sandbox="a"), released(), released()),
        (
            placed(sandbox="a"),
            replace(a_record(), pod_claim_name="n"),
            replace(placed(sandbox="a"), pod_claim_name="n"),
        ),
        (released(), replace(released(), pod=PodRef("default", "next", "next")), None),
        (None, placed(sandbox="b"), placed(sandbox="b")),
        (None, released(), "deleted"),
        (None, replace(a_record(), pod_claim_name="n"), "deleted"),
        (None, replace(a_record(), boot_id="next"), None),
    ],
)
def test_of_one_claim_the_other_instance_has_the_last_word_on_what_it_changed(
    disk: Disk,
    store: ClaimStore,
    other: ClaimStore,
    ours: PreparedClaim | None,
    theirs: PreparedClaim,
    expected: PreparedClaim | str | None,
) -> None:
    """``None`` is theirs as a whole."""
    store.put(a_record())
    disk.fill()
    if ours is None:
        with refusing_to_delete():
            store.delete("uid-1")
    else:
        store.put_all([ours], durable=False)
    disk.make_room()
    other.put(theirs)
    wanted = () if expected == "deleted" else (expected or theirs,)
    assert store.get_all() == wanted
    disk.make_room()
    store.flush_pending()
    assert (store.get_all(), other.get_all()) == (wanted, wanted)


def test_nothing_is_written_late_next_to_a_newer_drivers_record(store: ClaimStore, disk: Disk) -> None:
    store.put(a_record())
    disk.fill()
    store.put_all([placed()], durable=False)
    disk.make_room()
    write_newer(disk.store)
    assert not store.flush_pending()
    with pytest.raises(StoreError) as caught:
        store.delete("uid-1")
    assert caught.value.reason is Reason.STORE_NEWER


# --- at the start ---------------------------------------------------------------------------------------


def leave(disk: Disk) -> None:
    """A store with records in it."""
    with closing(ClaimStore(disk.store)) as store:
        store.open()
        store.put_all([a_record("a"), placed("b")])


@pytest.mark.parametrize("trouble", ["full", "read-only"])
@pytest.mark.parametrize("gone", ["", "generation", "lock"])
def test_a_driver_that_starts_on_such_a_disk_knows_its_claims_and_prepares_none(
    disk: Disk, trouble: str, gone: str
) -> None:
    leave(disk)
    if gone == "generation":
        (disk.store / "generation").unlink()
    elif gone == "lock":
        disk.store.with_name("claims.lock").unlink()
    is_full = trouble == "full"
    disk.fill() if is_full else disk.remount("ro")
    with closing(ClaimStore(disk.store)) as store:
        store.open()
        assert store.get_all() == (a_record("a"), placed("b"))
        with pytest.raises(StoreError) as caught:
            _put_many(store)
        assert caught.value.reason is Reason.STORE_UNWRITABLE
        assert not store.is_writable
        store.put_all([released("b")], durable=False)
        store.delete("a")
        store.check_version()
        assert [r for r in store.get_all() if r.claim.uid in "ab"] == [released("b")]
        disk.make_room() if is_full else disk.remount("rw")
        store._next_try = 0.0
        assert store.flush_pending()
        store.put(a_record("new"))
    with closing(ClaimStore(disk.store)) as store:
        store.open()
        assert store.get("a") is None
        assert store.get("b") == released("b")
        assert store.get("new") == a_record("new")


def test_rights_that_a_read_only_disk_keeps_are_no_reason_not_to_read(disk: Disk) -> None:
    leave(disk)
    disk.store.chmod(0o755)
    disk.remount("ro")
    with closing(ClaimStore(disk.store)) as store:
        store.open()
        assert store.get_all() == (a_record("a"), placed("b"))
        assert "Read-only file system" in str(store.trouble)


def test_a_record_that_cannot_be_set_aside_blocks_no_other_and_is_set_aside_late(disk: Disk) -> None:
    leave(disk)
    write_text(disk.store, "a", read_texts(disk.store)["a"].replace('"mtu":9000', '"mtu":"9000"'))
    disk.remount("ro")
    with closing(ClaimStore(disk.store)) as store:
        store.open()
        assert store.get_all() == (placed("b"),)
        assert (store.quarantined, store.quarantine_size) == ((), 1)
        disk.remount("rw")
        store._next_try = 0.0
        assert store.flush_pending()
        assert (store.quarantined, store.quarantine_size) == (("a",), 1)


def test_a_read_only_mount_keeps_nobody_from_the_locks_that_a_give_back_needs(disk: Disk) -> None:
    def take() -> None:
        lock = NodeLock(disk.folder / "devices.lock")
        with lock.hold(1, None):
            asyncio.run(_take_named(disk.folder / "work.lock"))
        with lock.close():
            pass

    take()
    disk.remount("ro")
    holder = FileLock(disk.folder / "devices.lock")
    assert holder.try_acquire()
    with pytest.raises(KernelError, match="longer than"):
        take()
    holder.close()
    take()


async def _take_named(path: Path) -> None:
    async with NamedLocks(path).hold(["claim"]):
        pass


def test_a_node_whose_disk_was_full_from_the_start_prepares_when_there_is_room(disk: Disk) -> None:
    disk.store.parent.mkdir()
    disk.fill()
    with closing(ClaimStore(disk.store)) as store:
        store.open()
        with pytest.raises(StoreError):
            store.put(a_record())
        assert store.get_all() == ()
        disk.make_room()
        store._next_try = 0.0
        store.put(a_record())
        assert store.is_writable
    assert on_disk(disk.store) == {"uid-1": a_record()}


def test_a_disk_that_never_recovers_is_told_of_once(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    leave(disk)
    disk.remount("ro")
    with caplog.at_level(logging.ERROR), closing(ClaimStore(disk.store)) as store:
        store.open()
        for _ in range(3):
            store._next_try = 0.0
            assert not store.flush_pending()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
