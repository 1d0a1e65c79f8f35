"""The driver's own files, folders and lock files, safe even if another program has been there first.

Folders that a setting names are followed wherever they lead. What the driver makes *below* them has names of
its own, and is opened without following a symbolic link, without waiting for the other end of a pipe, and
only where it is what the driver makes there. Anything else is left as it is, and raised as :class:`NotOurs`;
a disk that refuses, as OSError. Modes hold whatever the umask is. ``open(2)``, ``umask(2)``, ``fifo(7)``;
owners and modes: docs/operations/files.md.

Two instances of the driver on one node share folders. The kernel drops their locks when a process ends,
however it ends (``flock(2)``; ``fcntl(2)``, "Open file description locks"). Lock files stay: if one were
removed, a third process could lock a new file of the same name while a second one waits on the old. Locks are
asked for until a deadline, because the kernel's own wait has none. They raise
:class:`~dranet.errors.StoreError` if their file cannot be opened or locked.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import logging
import os
import stat
import struct
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from dranet.errors import StoreError
from dranet.failpoints import Failpoint, reached

log = logging.getLogger(__name__)

FOLDER_MODE = 0o700
FILE_MODE = 0o600
UMASK = 0o077
"""Umask of the process: a file without an explicit mode is for its owner alone."""

_ALL_RIGHTS = 0o777
_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device node"),
    (stat.S_ISBLK, "a device node"),
)


class NotOurs(OSError):
    """A name of the driver's is taken by something that the driver does not make there; ``strerror`` names
    the place, what it is, and the remedy."""

    def __init__(self, what: str, path: Path) -> None:
        super().__init__(
            errno.EPERM, f"{path} is {what}, which the driver did not make: move it away", str(path)
        )


def make_folder(folder: Path, mode: int = FOLDER_MODE, *, is_setting: bool = False) -> None:
    """Make a folder of the driver's own, or take the rights away from it that ``mode`` does not give.
    ``is_setting``: the operator has named it, so it may be reached by a link, and its parents are also made.
    :class:`NotOurs` is also raised for a folder of another user: it could hold anything."""
    if is_setting:
        folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        _tighten(folder, mode, folder.stat() if is_setting else folder.lstat())
    else:
        folder.chmod(mode)


def _tighten(folder: Path, mode: int, found: os.stat_result) -> None:
    if not stat.S_ISDIR(found.st_mode):
        raise NotOurs(_kind(found.st_mode), folder)
    if found.st_uid != os.geteuid():
        raise NotOurs(f"a folder of user {found.st_uid}", folder)
    if found.st_mode & _ALL_RIGHTS & ~mode:
        folder.chmod(found.st_mode & mode)


def check_folder(folder: Path) -> None:
    """Before names in a folder of the driver's own are used; FileNotFoundError if nothing is there."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotOurs(_kind(found.st_mode), folder)


def open_file(path: Path, flags: int, mode: int = FILE_MODE) -> int:
    """The descriptor of a regular file that has no other name. ``flags`` as in ``open(2)``; ``O_TRUNC`` would
    come before the look at what it is."""
    safe = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | safe, mode)
    except OSError:
        _check_file(path)  # names what is in the way
        raise
    try:
        _check_kind(os.fstat(descriptor), path)
    except NotOurs:
        os.close(descriptor)
        raise
    return descriptor


def read_file(path: Path, max_bytes: int) -> bytes:
    """What is in a file of the driver's own, at most so many bytes of it."""
    with os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        return file.read(max_bytes)


def touch(path: Path) -> None:
    """Let a file be there."""
    os.close(open_file(path, os.O_WRONLY | os.O_CREAT))


def make_file(path: Path, mode: int = FILE_MODE) -> None:
    """Let a file be there, with no more rights than ``mode``."""
    try:
        descriptor = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        found = path.lstat()
        _check_kind(found, path)
        if found.st_mode & _ALL_RIGHTS & ~mode:
            path.chmod(found.st_mode & mode)
    else:
        with os.fdopen(descriptor, "wb"):
            os.fchmod(descriptor, mode)


def replace_file(
    path: Path, temporary: Path, content: bytes, mode: int = FILE_MODE, *, durable: bool = False
) -> None:
    """Readers see the old file or the new one; where ``durable``, also after a power cut. ``temporary`` is a
    name on the same file system that no two writers use at a time; what a crash left there is removed."""
    stage_file(path, temporary, content, mode, durable=durable)
    reached(Failpoint.PREPARE_FILE_STAGED)
    temporary.replace(path)
    if durable:
        sync_folder(path.parent)


def save(path: Path, content: bytes) -> bool:
    """Replace a file that only saves work at the next start; its folder may be missing. Best effort: logs a
    refusal, and returns whether it was written. Not for two writers at a time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
        replace_file(path, path.with_suffix(".new"), content)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error)
        return False
    return True


def stage_file(
    path: Path, temporary: Path, content: bytes, mode: int = FILE_MODE, *, durable: bool = False
) -> None:
    """Write what is to replace the file at ``path``, under a temporary name."""
    _check_file(path)
    remove_file(temporary)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(content)
        if durable:
            file.flush()
            os.fsync(descriptor)


def remove_file(path: Path) -> None:
    """Remove a file of the driver's own; nothing there is fine."""
    _check_file(path)
    path.unlink(missing_ok=True)


def hint_for(error: OSError, otherwise: str) -> str:
    """The hint for an error; :class:`NotOurs` contains its own."""
    return "" if isinstance(error, NotOurs) else otherwise


def is_file(path: Path) -> bool:
    """Whether a regular file is there. A disk that does not answer has none."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _check_file(path: Path) -> None:
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    if not stat.S_ISREG(found.st_mode):
        raise NotOurs(_kind(found.st_mode), path)


def _check_kind(found: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NotOurs(_kind(found.st_mode), path)
    if found.st_nlink > 1:  # what is written here would be written there
        raise NotOurs("a file that has another name, too (a hard link)", path)


def _kind(mode: int) -> str:
    return next((name for is_kind, name in _KINDS if is_kind(mode)), "a file")


def sync_file(path: Path) -> None:
    """Make the content of a file survive a power cut."""
    _sync(open_file(path, os.O_RDONLY))


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    _sync(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_FIRST_WAIT_SECONDS = 0.0005
_LONGEST_WAIT_SECONDS = 0.01
"""What a lock is asked for again after, at most. Holders have it for milliseconds, seldom for seconds."""

_HOLDER_BYTES = 256
_FLOCK = struct.Struct("hhqqi0q")
"""``struct flock`` on 64-bit Linux: type, whence, start, length, pid (0 for these locks)."""


class FileLock:
    """An ``flock(2)`` on one file, shared or exclusive. Not thread-safe: threads must first hold an
    in-process lock. The file is opened once and stays open until :meth:`close`; when another file has taken
    its place, that one is opened."""

    pod_uid: ClassVar[str] = ""
    """The pod of this process, which sets it when it starts, for the messages of processes that wait for its
    locks: a process id means nothing in another container. Empty: in no pod."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self.held = False

    def is_in_place(self) -> bool:
        """Whether the file that is open here is still the one at the path, so that others meet our lock. A
        disk that does not answer moves no files."""
        try:
            return self._fd is not None and _is_at(self._fd, self.path)
        except OSError:
            return True

    def try_acquire(self, *, shared: bool = False) -> bool:
        """Take the lock if it is free; a held one stays as it is, shared or not. An exclusive holder writes
        its process id and pod into the file, for :meth:`describe_holder`."""
        if self.held:
            return True
        with _lock_errors(self.path):
            self.held = self._try(fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        return self.held

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
        """Take the lock as soon as it is free, but not after ``deadline`` (``time.monotonic()``). Blocks the
        thread; asks at least once; returns whether it has the lock."""
        for wait in _waits():
            if self.try_acquire(shared=shared):
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(wait, left))
        raise AssertionError("waits never end")

    def release(self) -> None:
        if self.held and self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        self.held = False

    def close(self) -> None:
        """Let the lock and the file go; repeatable, and the next ``try_acquire`` opens it again."""
        if self._fd is not None:
            os.close(self._fd)  # the kernel drops the lock with it
        self._fd, self.held = None, False

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
        try:
            text = read_file(self.path, _HOLDER_BYTES).decode(errors="replace")
        except OSError:
            return "", ""
        pid, _, pod_uid = text.strip().partition(" ")
        return pid, pod_uid


def is_lock_held(path: Path) -> bool:
    """Whether another process holds this lock. Looking makes no file: without a file the lock is free. Shares
    the lock for a moment, so a process that wants it exclusively asks more than once."""
    with _lock_errors(path):
        try:
            fd = open_file(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
    return False


class NamedLocks:
    """Exclusive locks by name on one file, for the tasks of an event loop and across processes. A name is a
    byte of the file, by 62 bits of its hash, so that two names do not meet. Every :meth:`hold` opens the file
    again, so that two of one process exclude each other as well."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @asynccontextmanager
    async def hold(self, names: Iterable[str]) -> AsyncIterator[None]:
        """Hold the locks of all names, taken in one order, so that two batches cannot block each other. Waits
        without blocking the loop and without a limit; cancel it to give up."""
        offsets = sorted({_offset_of(name) for name in names})
        fd = await self._lock_all(offsets) if offsets else None
        try:
            yield
        finally:
            if fd is not None:
                os.close(fd)

    def is_held(self, name: str) -> bool:
        """Whether the lock of that name is held, in this process or another."""
        fd = self._open()
        try:
            request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _offset_of(name), 1, 0)
            with _lock_errors(self._path):
                kind, *_ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, request))
        finally:
            os.close(fd)
        return bool(kind != fcntl.F_UNLCK)

    def _open(self) -> int:
        with _lock_errors(self._path):
            return _open_lock_file(self._path)

    async def _lock_all(self, offsets: Iterable[int]) -> int:
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
            with _lock_errors(self._path):
                if _try_lock_byte(fd, offset):
                    return
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


def _waits() -> Iterator[float]:
    wait = _FIRST_WAIT_SECONDS
    while True:
        yield wait
        wait = min(2 * wait, _LONGEST_WAIT_SECONDS)


def _open_lock_file(path: Path) -> int:
    try:
        return open_file(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
    return open_file(path, os.O_RDONLY)  # flock(2) does not mind, and NICs still come back


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


@contextmanager
def _lock_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        on_disk = "is its folder a writable mount with free space?"
        hint = "use a folder on a local file system" if error.errno in _NO_LOCKS else on_disk
        raise StoreError(f"lock file {path}: {error.strerror}", hint=hint_for(error, hint)) from error
