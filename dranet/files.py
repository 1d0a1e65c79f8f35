"""The driver's own files and folders, safe even if another program has been there first.

Folders that a setting names are followed wherever they lead: they are the operator's word. What the driver
makes *below* them has names of its own, and is opened without following a symbolic link, without waiting for
the other end of a pipe, and only where it is what the driver makes there. Anything else is left as it is,
and named in an :class:`OSError`, so that each room maps it as it maps a disk that refuses. Modes hold
whatever the umask is. ``open(2)``, ``umask(2)``, ``fifo(7)``; owners and modes: docs/user/files.md.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from dranet.failpoints import Failpoint, reached

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

    Raises:
        NotOurs: it is no folder, or belongs to another user, which could put anything there.
        OSError: the disk refuses.
    """
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
    """Before names in a folder of the driver's own are used.

    Raises:
        FileNotFoundError: nothing is there.
        NotOurs: it is no folder.
    """
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotOurs(_kind(found.st_mode), folder)


def open_file(path: Path, flags: int, mode: int = FILE_MODE) -> int:
    """The descriptor of a regular file that has no other name.

    ``flags`` as in ``open(2)``; ``O_TRUNC`` would come before the look at what it is.

    Raises:
        NotOurs: something else is there.
        OSError: as ``open(2)``.
    """
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
    """What is in a file of the driver's own, at most so many bytes of it.

    Raises:
        OSError: as :func:`open_file`.
    """
    with os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        return file.read(max_bytes)


def touch(path: Path) -> None:
    """Let a file be there.

    Raises:
        OSError: as :func:`open_file`.
    """
    os.close(open_file(path, os.O_WRONLY | os.O_CREAT))


def make_file(path: Path, mode: int = FILE_MODE) -> None:
    """Let a file be there, with no more rights than ``mode``.

    Raises:
        NotOurs: something other than a file is there.
        OSError: the disk refuses.
    """
    try:
        descriptor = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        tighten_file(path, mode)
    else:
        with os.fdopen(descriptor, "wb"):
            os.fchmod(descriptor, mode)


def tighten_file(path: Path, mode: int = FILE_MODE) -> None:
    """Take the rights away from a file that ``mode`` does not give; nothing there is fine.

    Raises:
        NotOurs: something other than a file is there.
        OSError: the disk refuses.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    _check_kind(found, path)
    if found.st_mode & _ALL_RIGHTS & ~mode:
        path.chmod(found.st_mode & mode)


def replace_file(
    path: Path, temporary: Path, content: bytes, mode: int = FILE_MODE, *, durable: bool = False
) -> None:
    """Readers see the old file or the new one; where ``durable``, also after a power cut.

    ``temporary`` is a name on the same file system that no two writers use at a time; what a crash left there
    is removed.

    Raises:
        NotOurs: something else than a file has one of the names.
        OSError: the disk refuses.
    """
    stage_file(path, temporary, content, mode, durable=durable)
    reached(Failpoint.PREPARE_FILE_STAGED)
    temporary.replace(path)
    if durable:
        sync_folder(path.parent)


def stage_file(
    path: Path, temporary: Path, content: bytes, mode: int = FILE_MODE, *, durable: bool = False
) -> None:
    """Write what is to replace the file at ``path``, under a temporary name.

    Raises:
        NotOurs: something other than a file has one of the names.
        OSError: the disk refuses.
    """
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
    """Remove a file of the driver's own; nothing there is fine.

    Raises:
        NotOurs: something else is there, and stays.
        OSError: the disk refuses.
    """
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
    descriptor = open_file(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
