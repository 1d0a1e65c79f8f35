"""Network sysctls: the files below ``/proc/sys/net``.

They are those of the network namespace of the thread that opens them
(``Documentation/networking/ip-sysctl.rst``), so a caller enters the namespace first. Where ``/proc``
is mounted does not matter (:mod:`~dranet.kernel.sysfs.procfs`). A file is opened by path and read at once:
Prepare reads a hundred for each link.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from functools import cache

from dranet.errors import KernelError
from dranet.kernel.netlink.socket import kernel_error
from dranet.kernel.sysfs.procfs import find_node_proc

SYSCTLS = "sys/net"
"""Below ``/proc``."""
LINK_FOLDERS = ("ipv4/conf", "ipv4/neigh", "ipv6/conf", "ipv6/neigh")
"""Each has a folder for each link."""

_NO_LINK = frozenset({"all", "default", ".", ".."})
"""In each of ``LINK_FOLDERS``, but of the whole namespace; a link of such a name has no folder of its own."""

_COARSE = frozenset({"base_reachable_time", "retrans_time", "unres_qlen"})
"""Rounded forms of ``base_reachable_time_ms``, ``retrans_time_ms`` and ``unres_qlen_bytes``: writing them
would lose the exact value."""

_READ_BYTES = 4096
_WRITABLE_BY_ANY = 0o222


def read_sysctl(path: str) -> str:
    """The value of ``ipv4/conf/eth1/forwarding``, without the line's end.

    Raises:
        KernelError: the file does not exist, or its value cannot be read (EIO: ``stable_secret`` without
        one).
    """
    try:
        return _read_file(_locate(path))
    except OSError as error:
        raise _refusal("read-sysctl", path, error) from error


def write_sysctl(path: str, value: str) -> str:
    """Write one file, by its path below ``/proc/sys/net``; returns the previous value, empty if it
    cannot be read.

    Raises:
        KernelError: no such file, a value that it does not take whole, or ``/proc/sys`` is read-only.
    """
    full = _locate(path)
    before = _read_if_readable(full) or ""
    try:
        _write_file(full, value.encode())
    except OSError as error:
        raise _refusal("set-sysctl", path, error, f" to {value!r}") from error
    return before


def _write_file(full: str, value: bytes) -> None:
    descriptor = os.open(full, os.O_WRONLY | os.O_CLOEXEC)
    try:
        if not value or os.write(descriptor, value) != len(
            value
        ):  # the kernel accepts an empty write and does nothing
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    finally:
        os.close(descriptor)


def read_link_sysctls(ifname: str) -> dict[str, str]:
    """Return the writable sysctls of one link, by ``ipv4/conf/rp_filter``: the key omits the link's own
    folder.

    Omits files that are read-only or unreadable, and those that are only the rounded form of another. Empty
    for a link that does not exist.
    """
    if not ifname or "/" in ifname or ifname in _NO_LINK:
        return {}
    found: dict[str, str] = {}
    for folder in LINK_FOLDERS:
        with suppress(
            OSError
        ):  # the link has no such part (IPv6 is off, or its MTU is too small), or is gone
            found |= _read_folder(folder, ifname)
    return found


def link_sysctl_path(ifname: str, key: str) -> str:
    """The path for :func:`write_sysctl` of a key of :func:`read_link_sysctls`."""
    folder, _, name = key.rpartition("/")
    return f"{folder}/{ifname}/{name}"


def _read_folder(folder: str, ifname: str) -> dict[str, str]:
    found: dict[str, str] = {}
    place = os.open(f"{find_node_proc(SYSCTLS)}/{folder}/{ifname}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in _list_settable(folder):
            value = _read_if_readable(name, place)
            if value is not None:
                found[f"{folder}/{name}"] = value
    finally:
        os.close(place)
    return found


@cache
def _list_settable(folder: str) -> tuple[str, ...]:
    """The files that every link has in this folder, as seen on ``lo``: the kernel has one list for all.

    Raises:
        OSError: the kernel has no such folder (and is asked again the next time).
    """
    with os.scandir(f"{find_node_proc(SYSCTLS)}/{folder}/lo") as entries:
        return tuple(
            entry.name
            for entry in entries
            if entry.name not in _COARSE and entry.stat().st_mode & _WRITABLE_BY_ANY
        )


def _read_if_readable(path: str, folder: int | None = None) -> str | None:
    try:
        return _read_file(path, folder)
    except OSError:
        return None


def _read_file(path: str, folder: int | None = None) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.read(descriptor, _READ_BYTES).decode(errors="replace").strip()
    finally:
        os.close(descriptor)


def _locate(path: str) -> str:
    """The full path of one that stays below the root. The names of links may have dots.

    Raises:
        KernelError: it would leave ``/proc/sys/net`` (EINVAL).
    """
    parts = path.split("/")
    if any(part in {"", ".", ".."} or "\0" in part for part in parts):
        raise KernelError(
            f"sysctl {path!r} is not a path below /proc/sys/net", errno=errno.EINVAL, operation="set-sysctl"
        )
    return f"{find_node_proc(SYSCTLS)}/{path}"


def _refusal(operation: str, path: str, error: OSError, detail: str = "") -> KernelError:
    refusal = kernel_error(error.errno or 0, "", f"{operation} {path}{detail}")
    refusal.operation = operation
    if error.errno == errno.EROFS:
        root = find_node_proc(SYSCTLS)
        refusal.hint = (
            f"{root} is read-only for the driver: mount the node's /proc/sys/net into its container, "
            "writable, at sys/net below --procfs-root"
        )
    return refusal
