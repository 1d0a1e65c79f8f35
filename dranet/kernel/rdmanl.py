"""RDMA netlink: the namespace mode of the node, and moving an RDMA device between namespaces.

Numbers are those of ``rdma/rdma_netlink.h``. A move must be asked for from the namespace that has the device:
from any other one the kernel does not know its index.
"""

from __future__ import annotations

import errno
import socket
import struct

from dranet.errors import DeviceError, KernelError
from dranet.kernel.discovery.changes import EVERYTHING, Changes
from dranet.kernel.netlink import (
    NETLINK_ADD_MEMBERSHIP,
    NETLINK_RDMA,
    SOL_NETLINK,
    Message,
    NetlinkSocket,
    Request,
    attribute_u32,
    open_raw_socket,
    parse_attributes,
    parse_messages,
)
from dranet.kernel.netns import NetworkNamespace

# The message type is the client (5, NLDEV) shifted by 10 bits, plus the command.
_NLDEV = 5 << 10
RDMA_NLDEV_GET, RDMA_NLDEV_SET, RDMA_NLDEV_SYS_GET = _NLDEV | 1, _NLDEV | 2, _NLDEV | 6
RDMA_ATTR_DEV_INDEX, RDMA_ATTR_DEV_NAME, RDMA_ATTR_NDEV_INDEX = 1, 2, 50
RDMA_ATTR_SYS_NETNS_MODE, RDMA_ATTR_NET_NS_FD = 66, 68
_NETNS_MODE_EXCLUSIVE = 0
RDMA_NL_GROUP_NOTIFY = 4
"""Multicast group of devices and their network interfaces that come and go (Linux 6.12). Renames are told by
uevents and by rtnetlink."""


def read_netns_exclusive(warnings: list[str]) -> bool:
    """Whether RDMA devices belong to one network namespace each (``rdma system``).

    ``False`` where the kernel has no RDMA netlink; another failure adds a warning and reads as shared.
    """
    try:
        with NetlinkSocket.open(NETLINK_RDMA) as rdma:
            answers = rdma.request(Request(RDMA_NLDEV_SYS_GET, b"", operation="read RDMA namespace mode"))
            return any(_is_exclusive(answer) for answer in answers)
    except KernelError as error:
        if error.errno != errno.EPROTONOSUPPORT:
            warnings.append(error.message)
        return False


def _is_exclusive(answer: Message) -> bool:
    found = parse_attributes(answer.payload, 0, frozenset({RDMA_ATTR_SYS_NETNS_MODE}))
    return found.get(RDMA_ATTR_SYS_NETNS_MODE, b"\1")[:1] == bytes([_NETNS_MODE_EXCLUSIVE])


def open_rdma_notifications() -> socket.socket | None:
    """A non-blocking socket on which :func:`parse_rdma_changes` may be read; ``None`` where there is no RDMA.

    An older kernel takes the membership and never says anything.
    """
    try:
        sock = open_raw_socket(NETLINK_RDMA)
    except KernelError:
        return None
    try:
        sock.setblocking(False)
        sock.bind((0, 0))
        sock.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, RDMA_NL_GROUP_NOTIFY)
    except OSError:
        sock.close()
        return None
    return sock


def parse_rdma_changes(chunk: bytes) -> Changes:
    """What a datagram of RDMA notifications names: devices (``mlx5_0``), and the interfaces on them.

    Raises:
        KernelError: it is malformed.
    """
    changes = Changes()
    for _, _, _, payload in parse_messages(chunk):
        found = parse_attributes(payload, 0, frozenset({RDMA_ATTR_DEV_NAME, RDMA_ATTR_NDEV_INDEX}))
        name = found.get(RDMA_ATTR_DEV_NAME, b"").rstrip(b"\0").decode(errors="replace")
        link = found.get(RDMA_ATTR_NDEV_INDEX, b"")
        links = frozenset({int(struct.unpack("=I", link)[0])} if len(link) == 4 else ())
        changes |= Changes(links, hardware=frozenset({name})) if name else EVERYTHING
    return changes


def attach_rdma(name: str, pod: NetworkNamespace) -> bool:
    """Move an RDMA device from the calling thread's namespace into ``pod``.

    Returns whether it moved; ``False`` when it was there already.

    Raises:
        DeviceError: it is in neither namespace (``DeviceNotFound``).
        KernelError: EOPNOTSUPP in shared mode and for drivers that cannot move.
    """
    if _move_from_here(name, pod):
        return True
    if has_rdma(name, pod):
        return False
    raise DeviceError(f"RDMA device {name} is neither on this node nor in the pod")


def detach_rdma(name: str, home: NetworkNamespace, pod: NetworkNamespace) -> bool:
    """Move an RDMA device from ``pod`` to ``home``; returns ``False`` when it was not in the pod.

    Raises:
        KernelError: the kernel refused.
    """
    # A socket of the pod's namespace is not enough: the kernel compares the device's namespace with that of
    # the thread that asks (ib_device_set_netns_put).
    return pod.run(lambda: _move_from_here(name, home))


def _move_from_here(name: str, target: NetworkNamespace) -> bool:
    with NetlinkSocket.open(NETLINK_RDMA) as rdma:
        return _move(rdma, name, target)


def has_rdma(name: str, netns: NetworkNamespace) -> bool:
    """Whether the RDMA device belongs to ``netns``."""
    with netns.open_netlink(NETLINK_RDMA) as rdma:
        return _find_index(rdma, name) is not None


def _move(rdma: NetlinkSocket, name: str, target: NetworkNamespace) -> bool:
    index = _find_index(rdma, name)
    if index is None:
        return False
    body = attribute_u32(RDMA_ATTR_DEV_INDEX, index) + attribute_u32(RDMA_ATTR_NET_NS_FD, target.fileno())
    rdma.request(Request(RDMA_NLDEV_SET, body, operation="move RDMA device", link=name))
    return True


def _find_index(rdma: NetlinkSocket, name: str) -> int | None:
    wanted = frozenset({RDMA_ATTR_DEV_INDEX, RDMA_ATTR_DEV_NAME})
    for payload in rdma.dump(Request(RDMA_NLDEV_GET, b"", operation="read RDMA devices", link=name)):
        found = parse_attributes(payload, 0, wanted)
        index = found.get(RDMA_ATTR_DEV_INDEX, b"")
        if found.get(RDMA_ATTR_DEV_NAME, b"").rstrip(b"\0") == name.encode() and len(index) == 4:
            return int(struct.unpack("=I", index)[0])
    return None
