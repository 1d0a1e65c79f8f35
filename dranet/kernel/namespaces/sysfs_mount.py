"""sysfs as a pod sees it, in a private mount that no other process can find.

sysfs shows the network and RDMA devices of the namespace in which it was mounted, to every reader. To read a
device in a pod, sysfs is mounted there on a file descriptor, outside the tree of mounts (``fsopen(2)``,
``fsmount(2)``, Linux 5.2).

All mounts of one namespace's sysfs are of one file system, and that is read-only where a container runtime
was the first to mount it, for the pod's first container. A writer makes it writable meanwhile; the
containers' own mounts are read-only themselves.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Protocol, TypeVar

from dranet.errors import KernelError
from dranet.kernel.refusals import explain_refusal

_FSOPEN, _FSCONFIG, _FSMOUNT, _FSPICK = 430, 431, 432, 433
"""The same on every architecture since these numbers are given out together."""
_FSOPEN_CLOEXEC = _FSMOUNT_CLOEXEC = _FSPICK_CLOEXEC = 1
_FSPICK_EMPTY_PATH = 8
_FSCONFIG_SET_FLAG, _FSCONFIG_CMD_CREATE, _FSCONFIG_CMD_RECONFIGURE = 0, 6, 7
_READ_ONLY = 0x1
_PLAIN = 0x2 | 0x4 | 0x8
"""``MOUNT_ATTR_RDONLY``; ``NOSUID``, ``NODEV``, ``NOEXEC``."""

T = TypeVar("T")

_libc = ctypes.CDLL(None, use_errno=True)


class Place(Protocol):
    """A network namespace, entered or not (``netns.NetworkNamespace``, ``attachment.links.Side``)."""

    def run(self, function: Callable[[], T]) -> T:
        """Call ``function`` inside."""
        ...


@contextmanager
def open_sysfs(place: Place, *, writable: bool = False) -> Iterator[Path]:
    """Yield the root of a sysfs that shows the devices in ``place``, for the time of the context.

    Raises:
        KernelError: the namespace could not be entered, or the kernel refused the mount.
    """
    fd = place.run(lambda: _mount_sysfs(_PLAIN if writable else _PLAIN | _READ_ONLY))
    try:
        with _made_writable(fd) if writable else nullcontext():
            yield Path(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


@contextmanager
def _made_writable(mount: int) -> Iterator[None]:
    """Make the file system below a mount writable for the time of the context."""
    if not os.fstatvfs(mount).f_flag & os.ST_RDONLY:
        yield
        return
    _reconfigure(mount, b"rw")
    try:
        yield
    finally:
        with suppress(KernelError):  # another process is writing there
            _reconfigure(mount, b"ro")


def _reconfigure(mount: int, flag: bytes) -> None:
    context = _call(_FSPICK, mount, b"", _FSPICK_CLOEXEC | _FSPICK_EMPTY_PATH)
    try:
        _call(_FSCONFIG, context, _FSCONFIG_SET_FLAG, flag, None, 0)
        _call(_FSCONFIG, context, _FSCONFIG_CMD_RECONFIGURE, None, None, 0)
    finally:
        os.close(context)


@contextmanager
def open_configfs() -> Iterator[Path | None]:
    """The root of the node's configfs, mounted in the same way; ``None`` where the kernel has none loaded.

    Raises:
        KernelError: the kernel refused the mount.
    """
    try:
        fd = _mount(b"configfs", _PLAIN)
    except KernelError as error:
        if error.errno != errno.ENODEV:
            raise
        yield None
        return
    try:
        yield Path(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def _mount_sysfs(attributes: int) -> int:
    """In the calling thread's network namespace; returns a descriptor of the root."""
    try:
        return _mount(b"sysfs", attributes)
    except KernelError as refusal:
        refusal.message = f"mount sysfs in a pod's namespace: {os.strerror(refusal.errno)}"
        raise


def _mount(kind: bytes, attributes: int) -> int:
    context = _call(_FSOPEN, kind, _FSOPEN_CLOEXEC)
    try:
        _call(_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0)
        return _call(_FSMOUNT, context, _FSMOUNT_CLOEXEC, attributes)
    finally:
        os.close(context)


def _call(number: int, *arguments: bytes | int | None) -> int:
    result: int = _libc.syscall(number, *arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise KernelError(
            f"mount a file system of the kernel: {os.strerror(number)}",
            errno=number,
            operation="mount",
            hint=explain_refusal(number, "SYS_ADMIN", "fsopen, fsconfig, fsmount and fspick"),
        )
    return result
