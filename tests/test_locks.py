"""Locks across processes, against real second processes that are killed."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dranet.errors import StoreError
from dranet.files import FileLock, NamedLocks, is_lock_held

SECONDS = 30.0

HOLD_FILE = """
import sys
from pathlib import Path
from dranet.files import FileLock
lock = FileLock(Path(sys.argv[1]))
assert lock.try_acquire(shared="shared" in sys.argv)
print("held", flush=True)
sys.stdin.readline()
"""

COME_AND_GO = """
import sys
from pathlib import Path
from dranet.files import FileLock
print("held", flush=True)
for _ in range(2000):
    lock = FileLock(Path(sys.argv[1]))
    lock.try_acquire()
    lock.path.unlink()
    lock.close()
"""

HOLD_FILE_WITHOUT_SPACE = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
{HOLD_FILE}
print("let go" if lock.release() is None else "", flush=True)
sys.stdin.readline()
"""

HOLD_NAMES = """
import asyncio, sys
from pathlib import Path
from dranet.files import NamedLocks
async def main():
    async with NamedLocks(Path(sys.argv[1])).hold(sys.argv[2:]):
        print("held", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
asyncio.run(main())
"""

COUNT_UP = """
import asyncio, sys
from pathlib import Path
from dranet.files import NamedLocks
async def add(locks, names, counter):
    async with locks.hold(names):
        value = int(counter.read_text())
        await asyncio.sleep(0)
        counter.write_text(str(value + 1))
async def main():
    locks, counter = NamedLocks(Path(sys.argv[1])), Path(sys.argv[2])
    orders = (["a", "b", "common"], ["common", "b", "a"])
    await asyncio.gather(*(add(locks, orders[i % 2], counter) for i in range(50)))
asyncio.run(main())
"""


@contextmanager
def another_process(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """One that has printed that it holds its lock; it lets go when it is told a line, or is killed."""
    child = subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "held\n"
        yield child
    finally:
        child.kill()
        child.communicate()


def soon() -> float:
    return time.monotonic() + SECONDS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some.lock"


# --- one file -------------------------------------------------------------------------------------------


@pytest.mark.process
def test_a_lock_that_another_process_has_is_not_given_and_names_who_has_it(path: Path) -> None:
    with another_process(HOLD_FILE, str(path)) as child:
        lock = FileLock(path)
        assert not lock.try_acquire()
        assert not lock.held
        assert lock.read_holder() == child.pid


def test_who_waits_is_told_the_pod_of_who_holds_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In containers every driver is process 1."""
    holder, lock = FileLock(path), FileLock(path)
    assert lock.describe_holder() == ""
    for pod_uid, told in (("0815", f"process {os.getpid()} of pod 0815"), ("", f"process {os.getpid()}")):
        monkeypatch.setattr(FileLock, "pod_uid", pod_uid)
        assert holder.try_acquire()
        assert not lock.try_acquire()
        assert (lock.describe_holder(), lock.read_holder()) == (told, os.getpid())
        holder.release()


def test_a_lock_whose_file_was_removed_is_not_in_place(path: Path) -> None:
    lock = FileLock(path)
    assert not lock.is_in_place()
    assert lock.try_acquire()
    assert lock.is_in_place()
    path.unlink()
    assert not lock.is_in_place()
    path.touch()
    assert not lock.is_in_place()
    lock.close()


@pytest.mark.process
@pytest.mark.smoke
def test_a_killed_process_holds_nobody_up(path: Path) -> None:
    with another_process(HOLD_FILE, str(path)) as child:
        lock = FileLock(path)
        assert not lock.try_acquire()
        os.kill(child.pid, signal.SIGKILL)
        assert lock.acquire(soon())
        assert lock.held
        assert lock.read_holder() == os.getpid()


@pytest.mark.process
def test_waiting_ends_at_the_deadline(path: Path) -> None:
    with another_process(HOLD_FILE, str(path)):
        start = time.monotonic()
        assert not FileLock(path).acquire(start + 0.05)
        assert 0.05 <= time.monotonic() - start < SECONDS


@pytest.mark.process
def test_shared_locks_share_and_keep_off_one_alone(path: Path) -> None:
    with another_process(HOLD_FILE, str(path), "shared"):
        mine = FileLock(path)
        assert not mine.try_acquire()
        assert mine.try_acquire(shared=True)


@pytest.mark.process
def test_looking_whether_a_lock_is_held_makes_no_file(path: Path) -> None:
    assert not is_lock_held(path)
    assert not path.exists()
    with another_process(HOLD_FILE, str(path)):
        assert is_lock_held(path)
    assert not is_lock_held(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreError, match="lock file"):
        is_lock_held(path)


@pytest.mark.process
def test_who_looks_while_a_lock_file_goes_away_leaves_none_behind(path: Path) -> None:
    with another_process(COME_AND_GO, str(path)) as coming:
        while coming.poll() is None:
            is_lock_held(path)
    assert list(path.parent.iterdir()) == []


def test_a_released_lock_is_free_and_its_file_stays(path: Path) -> None:
    first, second = FileLock(path), FileLock(path)
    assert first.try_acquire()
    assert first.try_acquire(), "who has it keeps it"
    assert not second.try_acquire()
    first.release()
    first.release()
    assert second.try_acquire()
    second.close()
    assert first.try_acquire()
    assert path.exists()


@pytest.mark.process
def test_only_its_owner_may_read_the_file_and_no_child_inherits_the_lock(path: Path) -> None:
    lock = FileLock(path)
    assert lock.try_acquire()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    lock.close()  # does not unlock: the last descriptor does
    try:
        assert FileLock(path).acquire(soon()), (
            "its descriptors are closed a moment after the program is there"
        )
    finally:
        child.communicate(b"\n")


@pytest.mark.process
def test_a_file_that_was_removed_is_made_anew_and_locked_there(path: Path) -> None:
    """Else two processes would hold locks on two files of one name."""
    lock = FileLock(path)
    assert lock.try_acquire()
    lock.release()
    path.unlink()
    assert lock.try_acquire()
    with pytest.raises(AssertionError), another_process(HOLD_FILE, str(path)):
        pass


def test_a_file_that_cannot_be_opened_is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere"):
        FileLock(tmp_path / "nowhere" / "x.lock").try_acquire()


async def test_a_file_system_without_locks_is_named_as_that(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    with pytest.raises(StoreError, match=r"some.lock: No locks available \(use a folder on a local"):
        FileLock(path).try_acquire()
    with pytest.raises(StoreError, match="on a local file system"):
        async with NamedLocks(path).hold(["a"]):
            pytest.fail("there are no locks")


def test_a_holder_that_never_was_is_nobody(path: Path) -> None:
    assert FileLock(path).read_holder() is None
    path.write_text("not a number")
    assert FileLock(path).read_holder() is None


@pytest.mark.process
def test_a_disk_without_space_keeps_nobody_from_a_lock_and_no_lock_from_others(path: Path) -> None:
    """The process id is for messages only."""
    path.write_text("4711\n")
    with another_process(HOLD_FILE_WITHOUT_SPACE, str(path)) as child:
        mine = FileLock(path)
        assert not mine.try_acquire()
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "let go\n"
        assert mine.try_acquire()


# --- by name --------------------------------------------------------------------------------------------


@pytest.mark.process
async def test_a_name_that_another_process_holds_is_waited_for_and_others_are_not(path: Path) -> None:
    locks = NamedLocks(path)
    with another_process(HOLD_NAMES, str(path), "claim", "device") as child:
        assert locks.is_held("device")
        assert not locks.is_held("other")
        async with locks.hold(["other"]):
            assert locks.is_held("other")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), locks.hold(["other", "claim"]):
                pass
        assert not locks.is_held("other"), "who gives up holds nothing"
        os.kill(child.pid, signal.SIGKILL)
        async with asyncio.timeout(SECONDS), locks.hold(["claim", "device"]):
            assert locks.is_held("claim")
    assert not locks.is_held("claim")


async def test_two_tasks_of_one_process_exclude_each_other(path: Path) -> None:
    locks = NamedLocks(path)
    inside: list[str] = []

    async def work() -> None:
        async with locks.hold(["claim"]):
            assert not inside
            inside.append("here")
            await asyncio.sleep(0)
            inside.clear()

    await asyncio.wait_for(asyncio.gather(*(work() for _ in range(10))), SECONDS)


async def test_waiting_for_a_name_leaves_the_loop_free(path: Path) -> None:
    locks = NamedLocks(path)
    async with locks.hold(["claim"]):
        waiting = asyncio.create_task(locks.hold(["claim"]).__aenter__())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


@pytest.mark.process
async def test_who_waited_for_a_file_that_was_removed_locks_the_one_in_its_place(path: Path) -> None:
    """Else two would hold one name, each on its own file."""
    locks = NamedLocks(path)
    with another_process(HOLD_NAMES, str(path), "claim"):
        waiting = asyncio.create_task(locks.hold(["claim"]).__aenter__())
        await asyncio.sleep(0)  # it has opened the file, and waits
        await asyncio.to_thread(path.unlink)
        second = locks.hold(["claim"])
        await second.__aenter__()
    done, _ = await asyncio.wait({waiting}, timeout=0.1)
    assert not done, "the second one has it"
    await second.__aexit__(None, None, None)
    await asyncio.wait_for(waiting, SECONDS)


async def test_no_names_need_no_file(tmp_path: Path) -> None:
    async with NamedLocks(tmp_path / "nowhere" / "x.lock").hold([]):
        pass
    with pytest.raises(StoreError, match="nowhere"):
        async with NamedLocks(tmp_path / "nowhere" / "x.lock").hold(["claim"]):
            pass


@pytest.mark.process
def test_batches_of_two_processes_with_names_in_any_order_all_end_and_none_overlaps(
    path: Path, tmp_path: Path
) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    arguments = [sys.executable, "-c", COUNT_UP, str(path), str(counter)]
    children = [subprocess.Popen(arguments) for _ in range(2)]
    assert [child.wait(timeout=60) for child in children] == [0, 0]
    assert counter.read_text() == "100"
