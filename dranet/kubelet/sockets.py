"""The files of UNIX sockets: path limits, one owner per folder, and nobody else's file removed.

A gRPC server that binds over a live socket unlinks it without an error, and at its end unlinks whatever
lies at the path by then, perhaps its successor's. Two rules keep both from happening here: one process
holds a lock for its whole life, and gRPC never learns the public path (see :class:`PublishedSocket`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path

from dranet.errors import SettingsError
from dranet.settings import UNIX_PATH_MAX_BYTES

PLUGIN_DIR_MODE = 0o750


def check_socket_path(path: Path) -> None:
    """Refuse a path that ``sockaddr_un`` cannot hold (``unix(7)``).

    Raises:
        SettingsError: the path has more than 107 bytes.
    """
    size = len(os.fsencode(path))
    if size > UNIX_PATH_MAX_BYTES:
        raise SettingsError(
            f"socket path {path} has {size} bytes, a UNIX socket takes {UNIX_PATH_MAX_BYTES}",
            hint="use a shorter kubelet root or driver name",
        )


class OwnerLock:
    """An ``flock(2)`` held for the life of the process, so that two drivers never share one folder.

    The kernel drops it when the process ends, however it ends. The file stays: removing it would let a
    third process lock a new file of the same name while a second one waits on the old.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock and write our process id into it; repeatable.

        Raises:
            SettingsError: another process holds it, or the file cannot be opened.
        """
        if self._fd is not None:
            return
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SettingsError(f"cannot open lock file {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _read_holder(fd)
            os.close(fd)
            raise SettingsError(
                f"another driver{holder} holds {self.path}",
                hint="run one instance of a driver name per node, or wait until the other has ended",
            ) from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Let the lock go; repeatable."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _read_holder(fd: int) -> str:
    text = os.pread(fd, 32, 0).strip()
    return f" (pid {int(text)})" if text.isdigit() else ""


class PublishedSocket:
    """A listening socket that appears under its public name only when it already answers.

    The server binds :meth:`next_bind_path`, a hidden name beside the public one, and :meth:`publish`
    renames it. So the kubelet, which dials a name the moment it appears, never meets a socket that does
    not listen yet; gRPC, which only knows the hidden name, can unlink nothing of value; and
    :meth:`withdraw` removes the public name only while it is still our own inode. The kubelet's watcher
    ignores names that start with a dot.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._generation = 0
        self._identity: tuple[int, int] | None = None

    def next_bind_path(self) -> Path:
        """A fresh hidden name for one server; what lies there from an earlier life is removed.

        Raises:
            SettingsError: it or the public path is too long.
        """
        self._generation += 1
        hidden = self.path.with_name(f".{self.path.stem}~{self._generation % 1000}")
        check_socket_path(self.path)
        check_socket_path(hidden)
        _unlink_socket(hidden)
        return hidden

    def publish(self, bound: Path) -> None:
        """Give the bound socket its public name, in place of a stale socket of an earlier life.

        Raises:
            SettingsError: something that is not a socket lies there.
            OSError: the folder went away meanwhile.
        """
        # The removal is a step of its own: the kubelet takes remove and create for a new instance.
        _unlink_socket(self.path)
        bound.rename(self.path)
        self._identity = _read_identity(self.path)

    def is_missing(self) -> bool:
        """Whether nothing lies at the public path."""
        return _read_identity(self.path) is None

    def is_ours(self) -> bool:
        """Whether the public path is the socket we published."""
        return self._identity is not None and _read_identity(self.path) == self._identity

    def withdraw(self) -> None:
        """Remove the public name if it is still ours; repeatable."""
        if self.is_ours():
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
        self._identity = None


def _read_identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def _unlink_socket(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SettingsError(
            f"{path} is in the way and is not a socket", hint="remove it, or move the kubelet root"
        )
    path.unlink(missing_ok=True)
