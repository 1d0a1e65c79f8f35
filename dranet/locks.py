"""Locks that reach across processes: two instances of the driver on one node share its folders.

The kernel keeps them with an open file description and drops them when the process ends, however it ends
(``flock(2)``; ``fcntl(2)``, "Open file description locks"). Lock files stay: if one were removed, a
third process could lock a new file of the same name while a second one waits on the old. All is taken without
blocking and asked for again until a deadline, because the kernel's own wait has none.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import struct
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import ClassVar

from dranet import files
from dranet.errors import StoreError

_FIRST_WAIT_SECONDS = 0.0005
_LONGEST_WAIT_SECONDS = 0.01
"""What a lock is asked for again after, at most. Holders have it for milliseconds, seldom for seconds."""

_HOLDER_BYTES = 256
_FLOCK = struct.Struct("hhqqi0q")
"""``struct flock`` on 64-bit Linux: type, whence, start, length, pid (0 for these locks)."""


class FileLock:
    """An ``flock(2)`` on one file, shared or exclusive.

    Not thread-safe: threads must first hold an in-process lock. The file is opened once and stays open
    until :meth:`close`; when another file has taken its place, that one is opened.
    """

    pod_uid: ClassVar[str] = ""
    """The pod of this process, which sets it when it starts, for the messages of processes that wait for its
    locks: a process id means nothing in another container. Empty: in no pod."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._held = False

    @property
    def held(self) -> bool:
        return self._held

    def is_in_place(self) -> bool:
        """Whether the file that is open here is still the one at the path, so that others meet our lock. A
        disk that does not answer moves no files."""
        try:
            return self._fd is not None and _is_at(self._fd, self.path)
        except OSError:
            return True

    def try_acquire(self, *, shared: bool = False) -> bool:
        """Take the lock if it is free; a lock that is already held stays as it is, shared or not.

        An exclusive holder writes its process id and pod into the file, for :meth:`describe_holder`.

        Raises:
            StoreError: the file cannot be opened or locked.
        """
        if self._held:
            return True
        try:
            self._held = self._try(fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        except OSError as error:
            raise _unusable(self.path, error) from error
        return self._held

    def _try(self, kind: int) -> bool:
        while True:
            fd = self._open()
            try:
                fcntl.flock(fd, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if _is_at(fd, self.path):
                break
            self.close()  # the file was removed or replaced: the lock on it excludes no process
        if kind == fcntl.LOCK_EX:
            _write_holder(fd)
        return True

    def _open(self) -> int:
        if self._fd is None:
            self._fd = _open_lock_file(self.path)
        return self._fd

    def acquire(self, deadline: float, *, shared: bool = False) -> bool:
        """Take the lock as soon as it is free, but not after ``deadline`` (``time.monotonic()``).

        Blocks the thread. Returns whether it has the lock; asks at least once.

        Raises:
            StoreError: the file cannot be opened or locked.
        """
        for wait in _waits():
            if self.try_acquire(shared=shared):
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(wait, left))
        raise AssertionError("waits never end")

    def release(self) -> None:
        """Let the lock go; repeatable."""
        if self._held and self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._held = False

    def close(self) -> None:
        """Let the lock and the file go; repeatable, and the next ``try_acquire`` opens it again."""
        if self._fd is not None:
            os.close(self._fd)  # the kernel drops the lock with it
        self._fd, self._held = None, False

    def read_holder(self) -> int | None:
        """Process id of the last one that had the lock alone, for messages: in a container of its own it is
        another process's number here. ``None`` if it was never held."""
        pid, _ = self._read_holder()
        return int(pid) if pid.isdecimal() else None

    def describe_holder(self) -> str:
        """``process 7``, or ``process 7 of pod UID``; empty if it was never held."""
        pid, pod_uid = self._read_holder()
        return f"process {pid}{pod_uid and f' of pod {pod_uid}'}" if pid.isdecimal() else ""

    def _read_holder(self) -> tuple[str, str]:
        """Process id and pod UID; what is not there is empty."""
        try:
            text = files.read_file(self.path, _HOLDER_BYTES).decode(errors="replace")
        except OSError:
            return "", ""
        pid, _, pod_uid = text.strip().partition(" ")
        return pid, pod_uid


def is_lock_held(path: Path) -> bool:
    """Whether another process holds this lock. Looking makes no file: without a file the lock is free.

    Shares the lock for a moment, so a process that wants it exclusively asks more than once.

    Raises:
        StoreError: the file cannot be opened or locked.
    """
    try:
        fd = files.open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        raise _unusable(path, error) from error
    finally:
        os.close(fd)
    return False


class NamedLocks:
    """Exclusive locks by name on one file, for the tasks of an event loop and across processes.

    A name is a byte of the file, by 62 bits of its hash, so that two names do not meet. Every :meth:`hold`
    opens the file again, so that two of one process exclude each other as well.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @asynccontextmanager
    async def hold(self, names: Iterable[str]) -> AsyncIterator[None]:
        """Hold the locks of all names, taken in one order, so that two batches cannot block each other.

        Waits without blocking the loop and without a limit; cancel it to give up.

        Raises:
            StoreError: the file cannot be opened or locked.
        """
        offsets = sorted({_offset_of(name) for name in names})
        fd = await self._lock_all(offsets) if offsets else None
        try:
            yield
        finally:
            if fd is not None:
                os.close(fd)

    def is_held(self, name: str) -> bool:
        """Whether the lock of that name is held, in this process or another.

        Raises:
            StoreError: the file cannot be opened or asked.
        """
        fd = self._open()
        try:
            return _is_byte_locked(fd, _offset_of(name))
        except OSError as error:
            raise _unusable(self._path, error) from error
        finally:
            os.close(fd)

    def _open(self) -> int:
        try:
            return _open_lock_file(self._path)
        except OSError as error:
            raise _unusable(self._path, error) from error

    async def _lock_all(self, offsets: Iterable[int]) -> int:
        """The descriptor that has the locks."""
        while True:
            fd = self._open()
            try:
                for offset in offsets:
                    await self._lock(fd, offset)
                is_ours = _is_at(fd, self._path)
            except BaseException:
                os.close(fd)
                raise
            if is_ours:
                return fd
            os.close(fd)  # the file was removed or replaced meanwhile: locks on it exclude no process

    async def _lock(self, fd: int, offset: int) -> None:
        for wait in _waits():
            try:
                if _try_lock_byte(fd, offset):
                    return
            except OSError as error:
                raise _unusable(self._path, error) from error
            await asyncio.sleep(wait)


def _offset_of(name: str) -> int:
    """Any byte that an ``off_t`` can name; the file need not be that long."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) >> 2


def _try_lock_byte(fd: int, offset: int) -> bool:
    request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, request)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):  # POSIX allows either
            return False
        if error.errno == errno.EBADF:
            return True  # a read-only mount, where no process can prepare, and restores have the lock above
        raise
    return True


def _is_byte_locked(fd: int, offset: int) -> bool:
    request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0)
    kind, *_ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, request))
    return bool(kind != fcntl.F_UNLCK)


def _waits() -> Iterator[float]:
    wait = _FIRST_WAIT_SECONDS
    while True:
        yield wait
        wait = min(2 * wait, _LONGEST_WAIT_SECONDS)


def _open_lock_file(path: Path) -> int:
    try:
        return files.open_file(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
    return files.open_file(path, os.O_RDONLY)  # flock(2) does not mind, and NICs still come back


def _is_at(fd: int, path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    opened = os.fstat(fd)
    return (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino)


def _write_holder(fd: int) -> None:
    """For messages only, so a disk that is full is no reason to go without the lock."""
    text = f"{os.getpid()} {FileLock.pod_uid}".strip().encode() + b"\n"
    with suppress(OSError):
        if os.pread(fd, len(text) + 1, 0) != text:  # a lock that is taken often writes nothing most times
            os.ftruncate(fd, 0)
            os.pwrite(fd, text, 0)


_NO_LOCKS = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""Where the file system has no such locks, or none to give (``flock(2)``, ``fcntl(2)``)."""


def _unusable(path: Path, error: OSError) -> StoreError:
    on_disk = "is its folder a writable mount with free space?"
    hint = "use a folder on a local file system" if error.errno in _NO_LOCKS else on_disk
    return StoreError(f"lock file {path}: {error.strerror}", hint=files.hint_for(error, hint))
