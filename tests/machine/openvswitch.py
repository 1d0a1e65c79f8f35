"""An Open vSwitch made by generic netlink alone; it forwards nothing, as no program tells it what to do.

Numbers are those of ``linux/openvswitch.h``.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from dranet.kernel.netlink.socket import (
    NetlinkSocket,
    Request,
    attribute,
    attribute_text,
    attribute_u32,
    iter_attributes,
)
from tests.machine import kernel_view

_NETLINK_GENERIC, _GENL_ID_CTRL = 16, 16
_GETFAMILY, _FAMILY_ID, _FAMILY_NAME = 3, 1, 2
_NEW, _DELETE = 1, 2
_DP_NAME, _DP_UPCALL_PID = 1, 2
_PORT_TYPE, _PORT_NAME, _PORT_UPCALL_PID = 2, 3, 5
_NETDEV, _INTERNAL = 1, 2


@contextmanager
def open_vswitch(bridge: str, port: str) -> Iterator[None]:
    """``ovs-system`` with ``port`` and the internal port ``bridge``, as ovs-vswitchd makes them."""
    kernel_view.run("modprobe", "openvswitch")
    with NetlinkSocket.open(_NETLINK_GENERIC) as netlink:
        datapaths, ports = _family(netlink, "ovs_datapath"), _family(netlink, "ovs_vport")
        name, nobody = attribute_text(_DP_NAME, "ovs-system"), attribute_u32(_DP_UPCALL_PID, 0)
        _ask(netlink, datapaths, _NEW, 0, name + nobody)
        system = socket.if_nametoindex("ovs-system")
        try:
            for ifname, kind in ((bridge, _INTERNAL), (port, _NETDEV)):
                described = attribute_u32(_PORT_TYPE, kind) + attribute_text(_PORT_NAME, ifname)
                _ask(netlink, ports, _NEW, system, described + attribute_u32(_PORT_UPCALL_PID, 0))
            yield
        finally:
            _ask(netlink, datapaths, _DELETE, system, b"")


def _family(netlink: NetlinkSocket, name: str) -> int:
    body = struct.pack("=BBH", _GETFAMILY, 1, 0) + attribute(_FAMILY_NAME, name.encode() + b"\0")
    (answer,) = netlink.request(Request(_GENL_ID_CTRL, body, operation=f"find {name}"))
    return int(struct.unpack("=H", dict(iter_attributes(answer.payload, 4))[_FAMILY_ID])[0])


def _ask(netlink: NetlinkSocket, family: int, command: int, datapath: int, attributes: bytes) -> None:
    header = struct.pack("=BBHi", command, 1, 0, datapath)
    netlink.request(Request(family, header + attributes, operation=f"Open vSwitch command {command}"))
