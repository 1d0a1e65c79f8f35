"""Try the calls that the driver needs, where they change nothing.

A seccomp profile cannot be read back, so it is asked. For ``dranet doctor``; names are those of the rules of
the profile.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

from dranet.errors import KernelError
from dranet.kernel.discovery.programs import iter_program_ids
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.namespaces.sysfs_mount import open_sysfs
from dranet.kernel.netlink.socket import open_raw_socket
from dranet.kernel.refusals import is_refusal

_PROTOCOLS = (socket.NETLINK_ROUTE, 15, 16, 20)
"""Routing, uevents, generic, RDMA; a kernel without one returns another error."""


def try_calls() -> dict[str, str]:
    """What the kernel refused, by the name of the rule in the profile: the refusal in words."""
    return dict(_try_each())


def _try_each() -> Iterator[tuple[str, str]]:
    for name, call in _TRIALS.items():
        try:
            call()
        except (KernelError, OSError) as error:
            if is_refusal(error.errno):
                yield name, str(error)


def _enter_own_namespace() -> None:
    with NetworkNamespace.current() as own:
        own.run(lambda: None)


def _open_netlink() -> None:
    for protocol in _PROTOCOLS:
        try:
            open_raw_socket(protocol).close()
        except KernelError as error:
            if is_refusal(error.errno):
                raise


def _open_packet_socket() -> None:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0).close()


def _list_programs() -> None:
    next(iter_program_ids(), None)


def _mount_own_sysfs() -> None:
    with NetworkNamespace.current() as own, open_sysfs(own):
        pass


_TRIALS: dict[str, Callable[[], None]] = {
    "socket-netlink": _open_netlink,
    "setns": _enter_own_namespace,
    "mount-sysfs": _mount_own_sysfs,
    "bpf": _list_programs,
    "socket-packet": _open_packet_socket,
}
