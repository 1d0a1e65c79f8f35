"""A name for a network namespace that no later one gets.

A path is used again (``/proc/PID/ns/net``), and so is, at once, the inode number of a namespace that has
ended. The kernel's cookie is not, as long as the node runs.
"""

from __future__ import annotations

import errno
import logging
import socket
import sys

from dranet.errors import KernelError, Reason
from dranet.kernel.netns import NetworkNamespace

log = logging.getLogger(__name__)

SO_NETNS_COOKIE = 71
"""``asm-generic/socket.h``, Linux 5.14: 64 bits that are given once a boot (``net_gen_cookie``)."""
_COOKIE_BYTES = 8


def read_netns_id(netns: NetworkNamespace) -> str:
    """``cookie 4711``; from an older kernel ``inode 4:4026532321``, which the next namespace may have.

    Costs one entry into the namespace.

    Raises:
        KernelError: the namespace could not be entered, or no socket be made there.
    """
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
    under the same path is another pod's then. An empty ``netns_id`` is of a record without one.

    Raises:
        KernelError: what is there cannot be opened or entered.
    """
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
    """Of the calling thread's namespace, by a socket that needs no address family but the cheapest."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
        return int.from_bytes(
            probe.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, _COOKIE_BYTES), sys.byteorder
        )
