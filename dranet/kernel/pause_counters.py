"""Priority flow control of a link: which priorities may be paused, and how often that was asked for.

The kernel's DCB interface (``linux/dcbnl.h``, IEEE 802.1Qaz) tells it in one message of rtnetlink, where the
driver has it (mlx5, mlx4, bnxt, ice, i40e and others).
"""

from __future__ import annotations

import struct

from msgspec import Struct

from dranet.kernel.netlink import Request, attribute_text, parse_attributes

RTM_GETDCB = 78
_CMD_IEEE_GET = 21
_ATTR_IFNAME, _ATTR_IEEE, _IEEE_PFC = 1, 13, 2
_HEADER = struct.Struct("=BBH")
"""``struct dcbmsg``: family, command, padding."""
_PFC = struct.Struct("@BBBxH2x8Q8Q")
"""``struct ieee_pfc``: capacity, enabled, MACsec bypass, delay, then frames sent and received by priority."""


class Pauses(Struct, frozen=True):
    """Of one priority that has flow control."""

    priority: int
    transmitted: int
    """Frames by which we asked the other side to wait."""
    received: int


def get_pauses_request(ifname: str) -> Request:
    """Ask for one link's; EOPNOTSUPP where its driver has no such thing."""
    body = _HEADER.pack(0, _CMD_IEEE_GET, 0) + attribute_text(_ATTR_IFNAME, ifname)
    return Request(RTM_GETDCB, body, operation="read flow control", link=ifname)


def find_flow_control(payload: bytes) -> bytes:
    """``struct ieee_pfc`` of an answer; empty where it does not speak of it."""
    ieee = parse_attributes(payload, _HEADER.size, frozenset({_ATTR_IEEE})).get(_ATTR_IEEE, b"")
    return parse_attributes(ieee, 0, frozenset({_IEEE_PFC})).get(_IEEE_PFC, b"")


def parse_pauses(payload: bytes) -> tuple[Pauses, ...]:
    """The priorities that have flow control; raises what ``rtnl.decode`` turns into a ``KernelError``."""
    told = find_flow_control(payload)
    if len(told) < _PFC.size:
        return ()
    _, enabled, _, _, *frames = _PFC.unpack_from(told)
    return tuple(
        Pauses(priority, frames[priority], frames[8 + priority])
        for priority in range(8)
        if enabled >> priority & 1
    )
