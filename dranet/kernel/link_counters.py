"""What a link's own message tells of errors and lost carriers (``linux/if_link.h``).

The same message comes as a notification and as an answer, and the kernel puts its counters into both unless
it is told not to. Counters of what a receiver was too slow for (dropped, missed, overrun) are left out:
they tell of load and of foreign protocols, not of a fault.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from msgspec import Struct, field

from dranet.kernel.netlink import Request, parse_attributes
from dranet.kernel.rtnl import RTM_GETLINK, link_header, parse_link
from dranet.model.facts import Link
from dranet.model.health import CARRIER_LOSSES

IFLA_STATS64, IFLA_CARRIER_DOWN_COUNT = 23, 48

_HEADER_BYTES = 16
"""``struct ifinfomsg``."""

_WANTED = frozenset({IFLA_STATS64, IFLA_CARRIER_DOWN_COUNT})
_U32 = struct.Struct("=I")
_U64 = struct.Struct("=Q")

_POSITIONS = {
    "rx_errors": 4,
    "tx_errors": 5,
    "rx_crc_errors": 12,
    "rx_frame_errors": 13,
    "tx_carrier_errors": 17,
}
"""Of 64-bit words in ``struct rtnl_link_stats64``."""


class SeenLink(Struct, frozen=True):
    """A link as its message tells, without what only a scan finds out."""

    link: Link
    counters: Mapping[str, int] = field(default_factory=dict)
    times_off: int = 0
    """How often it was seen to be switched off, however short that was. Who only looks now and then sees the
    lost carrier alone."""


def parse_seen_link(payload: bytes) -> SeenLink:
    """Parse RTM_NEWLINK; raises what ``rtnl.decode`` turns into a ``KernelError``."""
    return SeenLink(parse_link(payload), parse_link_counters(payload))


def parse_link_counters(payload: bytes) -> dict[str, int]:
    """The counters of RTM_NEWLINK that it has."""
    found = parse_attributes(payload, _HEADER_BYTES, _WANTED)
    counters: dict[str, int] = {}
    words = found.get(IFLA_STATS64, b"")
    for name, position in _POSITIONS.items():
        if len(words) >= (position + 1) * _U64.size:
            counters[name] = int(_U64.unpack_from(words, position * _U64.size)[0])
    if len(losses := found.get(IFLA_CARRIER_DOWN_COUNT, b"")) == _U32.size:
        counters[CARRIER_LOSSES] = int(_U32.unpack(losses)[0])
    return counters


def get_counted_link_request(ifindex: int) -> Request:
    """Ask for one link with its counters."""
    return Request(RTM_GETLINK, link_header(ifindex), operation="get link", link=str(ifindex))
