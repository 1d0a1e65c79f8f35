"""RDMA netlink: the namespace mode of the node, and moving an RDMA device between namespaces.

Numbers are those of ``rdma/rdma_netlink.h``. A move must be asked for from the namespace that has the device:
from any other one the kernel does not know its index.
"""

from __future__ import annotations

import errno
import struct

from dranet.errors import DeviceError, KernelError
from dranet.kernel.netlink import (
    NETLINK_RDMA,
    Message,
    NetlinkSocket,
    Request,
    attribute_u32,
    parse_attributes,
)
from dranet.kernel.netns import NetworkNamespace

# The message type is the client (5, NLDEV) shifted by 10 bits, plus the command.
_NLDEV = 5 << 10
RDMA_NLDEV_GET, RDMA_NLDEV_SET, RDMA_NLDEV_SYS_GET = _NLDEV | 1, _NLDEV | 2, _NLDEV | 6
RDMA_ATTR_DEV_INDEX, RDMA_ATTR_DEV_NAME = 1, 2
RDMA_ATTR_SYS_NETNS_MODE, RDMA_ATTR_NET_NS_FD = 66, 68
_NETNS_MODE_EXCLUSIVE = 0


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


def attach_rdma(name: str, pod: NetworkNamespace) -> bool:
    """Move an RDMA device from the calling thread's namespace into ``pod``.

    Returns whether it moved; ``False`` when it was there already.

    Raises:
        DeviceError: it is in neither namespace (``DeviceNotFound``).
        KernelError: EOPNOTSUPP in shared mode and for drivers that cannot move.
    """
    with NetlinkSocket.open(NETLINK_RDMA) as rdma:
        if _move(rdma, name, pod):
            return True
    if has_rdma(name, pod):
        return False
    raise DeviceError(f"RDMA device {name} is neither on this node nor in the pod")


def detach_rdma(name: str, home: NetworkNamespace, pod: NetworkNamespace) -> bool:
    """Move an RDMA device from ``pod`` to ``home``; returns ``False`` when it was not in the pod.

    Raises:
        KernelError: the kernel refused.
    """
    with pod.open_netlink(NETLINK_RDMA) as rdma:
        return _move(rdma, name, home)


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
