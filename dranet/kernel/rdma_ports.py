"""The ports of an RDMA device, asked of the namespace that has it (``rdma/rdma_netlink.h``).

sysfs shows the devices of the namespace that it was mounted from, so that in exclusive mode it says nothing
of one that is in a pod. RDMA netlink speaks of the namespace of who asks.
"""

from __future__ import annotations

import struct

from dranet.kernel.netlink import NETLINK_RDMA, NetlinkSocket, Request, attribute_u32, parse_attributes
from dranet.kernel.rdmanl import RDMA_ATTR_DEV_INDEX, RDMA_ATTR_DEV_NAME, RDMA_NLDEV_GET
from dranet.model.facts import RdmaPort

_PORT_GET = 5 << 10 | 5
_PORT_INDEX, _LID, _PORT_STATE, _PORT_PHYSICAL_STATE = 3, 9, 12, 13

_STATES = ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
_PHYSICAL_STATES = (
    "",
    "Sleep",
    "Polling",
    "Disabled",
    "PortConfigurationTraining",
    "LinkUp",
    "LinkErrorRecovery",
)
"""As sysfs writes them (``drivers/infiniband/core/sysfs.c``)."""


def read_ports_here(name: str) -> tuple[RdmaPort, ...] | None:
    """Number, state and link layer of each port, in the calling thread's namespace; ``None`` where there is
    no such device.

    Raises:
        KernelError: the kernel has no RDMA netlink, or refused.
    """
    with NetlinkSocket.open(NETLINK_RDMA) as rdma:
        index = _find_index(rdma, name)
        if index is None:
            return None
        request = Request(
            _PORT_GET, attribute_u32(RDMA_ATTR_DEV_INDEX, index), operation="read ports", link=name
        )
        return tuple(_parse_port(payload) for payload in rdma.dump(request))


def _find_index(rdma: NetlinkSocket, name: str) -> int | None:
    wanted = frozenset({RDMA_ATTR_DEV_INDEX, RDMA_ATTR_DEV_NAME})
    for payload in rdma.dump(Request(RDMA_NLDEV_GET, b"", operation="read RDMA devices", link=name)):
        found = parse_attributes(payload, 0, wanted)
        if found.get(RDMA_ATTR_DEV_NAME, b"").rstrip(b"\0") == name.encode():
            return _u32(found.get(RDMA_ATTR_DEV_INDEX, b""))
    return None


def _parse_port(payload: bytes) -> RdmaPort:
    wanted = frozenset({_PORT_INDEX, _LID, _PORT_STATE, _PORT_PHYSICAL_STATE})
    found = parse_attributes(payload, 0, wanted)
    return RdmaPort(
        number=_u32(found.get(_PORT_INDEX, b"")) or 0,
        state=_named(_STATES, found.get(_PORT_STATE, b"")),
        phys_state=_named(_PHYSICAL_STATES, found.get(_PORT_PHYSICAL_STATE, b"")),
        link_layer="InfiniBand" if _LID in found else "Ethernet",  # only an InfiniBand port has a LID
    )


def _named(names: tuple[str, ...], value: bytes) -> str:
    return names[value[0]] if value and value[0] < len(names) else ""


def _u32(value: bytes) -> int | None:
    return int(struct.unpack("=I", value)[0]) if len(value) == 4 else None
