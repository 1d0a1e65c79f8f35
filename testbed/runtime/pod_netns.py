"""A pod's network namespace as a container runtime makes it: pinned by a bind mount on a file, ``lo`` up.

Stands in for the runtime and its CNI plugin; it knows no pods and no NRI. Works for root and for uid 0 of a
user namespace. Source: ``network_namespaces(7)``, ``unshare(2)``.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_OWN_NETNS = Path("/proc/self/ns/net")

_CLONE_NEWNET = 0x40000000
_MS_BIND = 0x1000
_MNT_DETACH = 0x2

_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_IFREQ = struct.Struct("16sH22x")

_libc = ctypes.CDLL(None, use_errno=True)


def create_netns(path: Path) -> None:
    """Make a network namespace, bring ``lo`` up in it and pin it on the new file ``path``.

    Raises:
        OSError: the kernel refused (EPERM without CAP_SYS_ADMIN); nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(exist_ok=False)
    try:
        _run_in_thread(lambda: _make_and_pin(path))
    except OSError:
        path.unlink()
        raise


def remove_netns(path: Path) -> None:
    """Unpin the namespace and remove its file; the kernel ends the namespace with its last reference.
    A path that is gone is fine."""
    if _libc.umount2(os.fsencode(path), _MNT_DETACH) != 0:
        error = _last_error(f"unmount {path}")
        if error.errno not in (errno.ENOENT, errno.EINVAL):  # gone; not a mount point
            raise error
    path.unlink(missing_ok=True)


@contextmanager
def held_netns(path: Path) -> Iterator[str | None]:
    """Another path of the namespace, which leads to it, and keeps it alive, until the block ends, also when
    ``path`` is gone; ``None`` where it is gone already, or is an empty file between unmount and removal."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        is_netns = os.fstat(handle).st_dev == _OWN_NETNS.stat().st_dev
        yield f"/proc/{os.getpid()}/fd/{handle}" if is_netns else None
    finally:
        os.close(handle)


def _make_and_pin(path: Path) -> None:
    # unshare(2) changes the calling thread for good, which is why this one ends with the call.
    if _libc.unshare(_CLONE_NEWNET) != 0:
        raise _last_error("make a network namespace")
    _set_loopback_up()
    source = f"/proc/self/task/{threading.get_native_id()}/ns/net"
    if _libc.mount(source.encode(), os.fsencode(path), None, ctypes.c_ulong(_MS_BIND), None) != 0:
        raise _last_error(f"pin the network namespace on {path}")


def _set_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        answer = fcntl.ioctl(control, _SIOCGIFFLAGS, _IFREQ.pack(b"lo", 0))
        flags = _IFREQ.unpack(answer)[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, _IFREQ.pack(b"lo", flags | _IFF_UP))


def _last_error(operation: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"cannot {operation}: {os.strerror(number)}")


def _run_in_thread(work: Callable[[], None]) -> None:
    errors: list[OSError] = []

    def run() -> None:
        try:
            work()
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="pod-netns")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
