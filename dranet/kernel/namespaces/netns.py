"""Network namespaces: a descriptor that keeps one alive, sockets opened inside it, and its sysfs. ``setns``
changes the calling thread for good, so a namespace is entered only in a fresh thread that ends with the visit
(never in a pooled one, never by fork)."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, Self, TypeVar

from dranet.errors import KernelError, Reason
from dranet.kernel.netlink.socket import NETLINK_ROUTE, NetlinkSocket, explain_refusal, open_raw_socket
from dranet.kernel.sysfs.files import closing_fd, find_node_proc, find_path_of_process

log = logging.getLogger(__name__)

CLONE_NEWNET = 0x40000000
"""``linux/sched.h``."""
NS_GET_NSTYPE = 0xB703
"""``linux/nsfs.h``: answers ``CLONE_NEWNET`` for a network namespace, ENOTTY for a plain file."""

_libc = ctypes.CDLL(None, use_errno=True)

T = TypeVar("T")

_NO_MOUNT = "mount this folder of the node into the driver's container at the same path"
_NO_PROPAGATION = "if its pod runs, mount its folder with mountPropagation: HostToContainer"


class NetworkNamespace:
    """An open network namespace, which the kernel keeps alive. Equality is identity of the namespace, not of
    the path that led to it. Whatever goes inside raises ``KernelError`` where it cannot be entered."""

    def __init__(self, fd: int, path: str = "") -> None:
        """Take over ``fd``; it is closed by :meth:`close`, and at once where it is not of a network namespace
        (``NetworkNamespaceGone``)."""
        self._fd = fd
        self.path = path
        try:
            _check_is_network_namespace(fd, path)
            status = os.fstat(fd)
        except BaseException:
            os.close(fd)
            raise
        self.identity = (status.st_dev, status.st_ino)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open by path: ``/run/netns/NAME``, ``/proc/PID/ns/net`` (of the node's processes).
        ``NetworkNamespaceGone``: the path is gone or no longer a namespace; with any other reason it may well
        live."""
        try:
            fd = os.open(find_path_of_process(str(path)), os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError, ProcessLookupError) as error:
            has_folder = Path(path).parent.exists() or str(path).startswith("/proc/")
            hint = "" if has_folder else _NO_MOUNT
            raise _gone(f"{path}: {error.strerror}", error.errno or 0, hint) from error
        except OSError as error:
            raise KernelError(
                f"network namespace {path}: {error.strerror}",
                errno=error.errno or 0,
                operation="open network namespace",
                hint=explain_refusal(error.errno or 0, "SYS_PTRACE"),
            ) from error
        return cls(fd, str(path))

    @classmethod
    def from_fd(cls, fd: int) -> Self:
        """A namespace from a descriptor that stays the caller's: it is duplicated."""
        return cls(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 0))

    @classmethod
    def current(cls) -> Self:
        return cls.open("/proc/thread-self/ns/net")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def fileno(self) -> int:
        return self._fd

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NetworkNamespace) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    def __repr__(self) -> str:
        return f"NetworkNamespace({self.path!r}, inode={self.identity[1]})"

    def enter_for_good(self) -> None:
        """Take the calling thread inside. It must be a fresh one that ends with what it does there."""
        _enter(self._fd)

    def run(self, function: Callable[[], T]) -> T:
        """Call ``function`` in a fresh thread inside the namespace and return what it returns."""
        with self.enter() as visit:
            return visit.run(function)

    @contextmanager
    def enter(self) -> Iterator[Visit]:
        """Keep one thread inside the namespace, for several calls in a row. The first call raises the error
        if the namespace cannot be entered."""
        visit = Visit(self._fd)
        try:
            yield visit
        finally:
            visit.end()

    def open_netlink(self, protocol: int = NETLINK_ROUTE) -> NetlinkSocket:
        return NetlinkSocket(self.run(lambda: open_raw_socket(protocol)))


class Visit:
    """A thread inside a namespace that runs what it is given, one function at a time. Made by
    :meth:`NetworkNamespace.enter`; for one caller, not safe for several threads."""

    def __init__(self, fd: int) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._stay, args=(fd,), name="netns", daemon=True)
        self._thread.start()

    def run(self, function: Callable[[], T]) -> T:
        """Call ``function`` inside and return what it returns; it may itself use :meth:`run`."""
        if threading.current_thread() is self._thread:
            return function()
        outcome: Future[T] = Future()
        self._calls.put((outcome, function))
        return outcome.result()

    def end(self) -> None:
        self._calls.put(None)
        self._thread.join()

    def _stay(self, fd: int) -> None:
        entered: Future[None] = Future()
        _settle(entered, partial(_enter, fd))
        refusal = entered.exception()
        while (call := self._calls.get()) is not None:
            outcome, function = call
            if refusal is None:
                _settle(outcome, function)
            else:
                outcome.set_exception(refusal)


def _settle(outcome: Future[T], function: Callable[[], T]) -> None:
    """Carry what ``function`` returns or raises out of the thread that calls it."""

    def carry(_: object, error: BaseException | None, __: object) -> bool:
        if error is not None:
            outcome.set_exception(error)
        return True

    with ExitStack() as stack:
        stack.push(carry)
        outcome.set_result(function())


def _enter(fd: int) -> None:
    if _libc.setns(fd, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise KernelError(
            f"enter network namespace: {os.strerror(number)}",
            errno=number,
            operation="enter network namespace",
            hint=explain_refusal(number, "SYS_ADMIN", "setns"),
        )


def _check_is_network_namespace(fd: int, path: str) -> None:
    try:
        kind = fcntl.ioctl(fd, NS_GET_NSTYPE)
    except OSError as error:
        raise _gone(f"{path or fd}: not a namespace any more", error.errno or 0, _NO_PROPAGATION) from error
    if kind != CLONE_NEWNET:
        raise _gone(f"{path or fd}: a namespace, but not a network namespace", errno.EINVAL)


def _gone(message: str, number: int, hint: str = "") -> KernelError:
    return KernelError(
        f"network namespace {message}",
        errno=number,
        operation="open network namespace",
        reason=Reason.NETNS_GONE,
        hint=hint,
    )


# --- identity across reuse ------------------------------------------------------------------------------
# Paths (``/proc/PID/ns/net``) are reused, and so are, at once, the inode numbers of namespaces that
# ended. The kernel's cookie is unique until the node reboots.

SO_NETNS_COOKIE = 71
"""``asm-generic/socket.h``, Linux 5.14: 64 bits that are given once a boot (``net_gen_cookie``)."""
_COOKIE_BYTES = 8


def read_netns_id(netns: NetworkNamespace) -> str:
    """``cookie 4711``; from an older kernel ``inode 4:4026532321``, which the next namespace may have. Costs
    one entry into the namespace."""
    try:
        return f"cookie {netns.run(_read_cookie)}"
    except OSError as error:
        if error.errno == errno.ENOPROTOOPT:
            device, inode = netns.identity
            return f"inode {device}:{inode}"
        raise KernelError(
            f"network namespace {netns.path}: {error.strerror}",
            errno=error.errno or 0,
            operation="read network namespace cookie",
        ) from error


def open_netns(path: str, netns_id: str) -> NetworkNamespace | None:
    """The namespace at a path that was noted with its name earlier; ``None`` where it is gone. What is there
    under the same path is another pod's then. An empty ``netns_id`` is of a record without one."""
    if not path:
        return None
    try:
        opened = NetworkNamespace.open(path)
    except KernelError as error:
        if error.reason is not Reason.NETNS_GONE:
            raise
        log.debug("no namespace at %s: %s", path, error)
        return None
    try:
        found = read_netns_id(opened)
    except BaseException:
        opened.close()
        raise
    if netns_id in ("", found):
        return opened
    log.debug("at %s is namespace %s, not %s", path, found, netns_id)
    opened.close()
    return None


def _read_cookie() -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
        return int.from_bytes(
            probe.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, _COOKIE_BYTES), sys.byteorder
        )


# --- search for a namespace whose path is gone ----------------------------------------------------------
# A namespace ends with its last process, mount and descriptor. A process that hangs in a driver, or that
# the runtime did not end, keeps it and the NICs in it after its path is gone. A container sees the node's
# processes if their ``/proc`` is mounted into it, and their namespaces with ``CAP_SYS_PTRACE``.

_NAMED = Path("/run/netns")
"""Where ``ip netns`` and the runtimes mount them."""


@contextmanager
def find_netns(netns_id: str, near: str = "") -> Iterator[NetworkNamespace | None]:
    """Open the namespace with this id (``read_netns_id``); ``None`` if no process or mount of it is found,
    nor a mount in the folder of ``near``. Enters each namespace of the node, a third of a millisecond
    each."""
    found = _find(netns_id, near) if netns_id else None
    if found is None:
        yield None
        return
    with found:
        log.info("a namespace whose path is gone lives on: %s is %s", found.path, netns_id)
        yield found


def _find(netns_id: str, near: str) -> NetworkNamespace | None:
    with NetworkNamespace.current() as own:
        seen = {own.identity}
    for path in _iter_paths(near):
        with suppress(OSError, KernelError):  # it ended meanwhile, or is not for us
            status = path.stat()
            identity = status.st_dev, status.st_ino
            if stat.S_ISREG(status.st_mode) and identity not in seen:  # opening a pipe would block
                seen.add(identity)
                if (match := open_netns(str(path), netns_id)) is not None:
                    return match
    return None


def _iter_paths(near: str) -> Iterator[Path]:
    folders = {_NAMED, Path(near).parent} if near else {_NAMED}
    for folder in folders:
        yield from _list(folder)
    processes = Path(find_node_proc("self")).parent
    yield from (process / "ns/net" for process in _list(processes) if process.name.isdigit())


def _list(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


# --- sysfs as a pod sees it, in a private mount that no other process can find -------------------------
# sysfs shows the network and RDMA devices of the namespace in which it was mounted, to every reader. To read
# a device in a pod, sysfs is mounted there on a file descriptor, outside the tree of mounts (``fsopen(2)``,
# ``fsmount(2)``, Linux 5.2).
# All mounts of one namespace's sysfs are of one file system, and that is read-only where a container runtime
# was the first to mount it, for the pod's first container. A writer makes it writable meanwhile; the
# containers' own mounts are read-only themselves.

_FSOPEN, _FSCONFIG, _FSMOUNT, _FSPICK = 430, 431, 432, 433
"""The same on every architecture since these numbers are given out together."""
_FSOPEN_CLOEXEC = _FSMOUNT_CLOEXEC = _FSPICK_CLOEXEC = 1
_FSPICK_EMPTY_PATH = 8
_FSCONFIG_SET_FLAG, _FSCONFIG_CMD_CREATE, _FSCONFIG_CMD_RECONFIGURE = 0, 6, 7
_READ_ONLY = 0x1
_PLAIN = 0x2 | 0x4 | 0x8
"""``MOUNT_ATTR_RDONLY``; ``NOSUID``, ``NODEV``, ``NOEXEC``."""


class Place(Protocol):
    """A network namespace, entered or not (``netns.NetworkNamespace``, ``attachment.links.Side``)."""

    def run(self, function: Callable[[], T]) -> T:
        """Call ``function`` inside."""
        ...


@contextmanager
def open_sysfs(place: Place, *, writable: bool = False) -> Iterator[Path]:
    """Yield the root of a sysfs that shows the devices in ``place``, for the time of the context."""
    fd = place.run(lambda: _mount_sysfs(_PLAIN if writable else _PLAIN | _READ_ONLY))
    with closing_fd(fd), _made_writable(fd) if writable else nullcontext():
        yield Path(f"/proc/self/fd/{fd}")


@contextmanager
def _made_writable(mount: int) -> Iterator[None]:
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
    with closing_fd(_call(_FSPICK, mount, b"", _FSPICK_CLOEXEC | _FSPICK_EMPTY_PATH)) as context:
        _call(_FSCONFIG, context, _FSCONFIG_SET_FLAG, flag, None, 0)
        _call(_FSCONFIG, context, _FSCONFIG_CMD_RECONFIGURE, None, None, 0)


@contextmanager
def open_configfs() -> Iterator[Path | None]:
    """The root of the node's configfs, mounted in the same way; ``None`` where the kernel has none loaded."""
    try:
        fd = _mount(b"configfs", _PLAIN)
    except KernelError as error:
        if error.errno != errno.ENODEV:
            raise
        yield None
        return
    with closing_fd(fd):
        yield Path(f"/proc/self/fd/{fd}")


def _mount_sysfs(attributes: int) -> int:
    try:
        return _mount(b"sysfs", attributes)
    except KernelError as refusal:
        refusal.message = f"mount sysfs in a pod's namespace: {os.strerror(refusal.errno)}"
        raise


def _mount(kind: bytes, attributes: int) -> int:
    with closing_fd(_call(_FSOPEN, kind, _FSOPEN_CLOEXEC)) as context:
        _call(_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0)
        return _call(_FSMOUNT, context, _FSMOUNT_CLOEXEC, attributes)


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
