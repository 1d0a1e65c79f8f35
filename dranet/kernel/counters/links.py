"""Counters of links: traffic, errors, carrier losses, and packets dropped by rate limits.

``RTM_GETSTATS`` (``linux/if_link.h``, Linux 4.7) is the lightest question there is: 200 bytes for each link
and nothing else, where the whole message of a link has 1.5 kB and takes ten times as long to make and to
read.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct, field

from dranet.kernel.attachment.traffic import BUCKET_HANDLE
from dranet.kernel.netlink.rtnl import RTM_GETLINK, decode, link_header, parse_link
from dranet.kernel.netlink.socket import NetlinkSocket, Request, parse_attributes
from dranet.kernel.netlink.tc import TCMSG, dump_qdiscs_request
from dranet.model.facts import Link
from dranet.model.health import CARRIER_LOSSES

RTM_GETSTATS = 94
IFLA_STATS_LINK_64 = 1

_STATS_HEADER = struct.Struct("=BBHII")
"""``struct if_stats_msg``: family, padding, ifindex, which statistics."""
_WORDS = struct.Struct("=16Q")
"""The first of ``struct rtnl_link_stats64``."""
_DROPPED, _MISSED = 6, 15
_WANTED_STATS = frozenset({IFLA_STATS_LINK_64})

_REQUEST = Request(
    RTM_GETSTATS,
    _STATS_HEADER.pack(0, 0, 0, 0, 1 << (IFLA_STATS_LINK_64 - 1)),
    operation="read statistics of links",
)


class Traffic(NamedTuple):
    """Counters of one link since its driver was loaded, in bytes and packets."""

    receive_packets: int
    transmit_packets: int
    receive_bytes: int
    transmit_bytes: int
    receive_errors: int
    transmit_errors: int
    receive_dropped: int
    """With what the hardware had no room for (``rx_missed_errors``), as in ``/proc/net/dev``."""
    transmit_dropped: int


def read_traffic() -> dict[int, Traffic]:
    """Return the counters of every link in the calling thread's network namespace, by ifindex.

    Raises:
        KernelError: netlink failed.
    """
    with NetlinkSocket.open() as rtnl:
        return dict(decode(_parse_traffic, payload) for payload in rtnl.dump(_REQUEST))


def _parse_traffic(payload: bytes) -> tuple[int, Traffic]:
    words = parse_attributes(payload, _STATS_HEADER.size, _WANTED_STATS)[IFLA_STATS_LINK_64]
    counted = _WORDS.unpack_from(words)
    ifindex = _STATS_HEADER.unpack_from(payload)[3]
    return ifindex, Traffic._make((*counted[:6], counted[_DROPPED] + counted[_MISSED], counted[7]))


# --- errors and carrier losses from link messages (``linux/if_link.h``) ---------------------------------
# The kernel adds its counters to notifications and to answers alike. Counters of what the receiver was
# too slow for (dropped, missed, overrun) are left out: they indicate load or foreign protocols, not a
# fault.

IFLA_STATS64, IFLA_CARRIER_DOWN_COUNT = 23, 48

_LINK_HEADER_BYTES = 16
"""``struct ifinfomsg``."""

_WANTED_COUNTERS = frozenset({IFLA_STATS64, IFLA_CARRIER_DOWN_COUNT})
_U32 = struct.Struct("=I")
_U64 = struct.Struct("=Q")

_POSITIONS = {
    "rx_errors": 4,
    "tx_errors": 5,
    "rx_crc_errors": 12,
    "rx_frame_errors": 13,
    "tx_carrier_errors": 17,
}
"""Positions of 64-bit words in ``struct rtnl_link_stats64``."""


class CountedLink(Struct, frozen=True):
    """A link and its counters as one message reports them, without what only a scan finds."""

    link: Link
    counters: Mapping[str, int] = field(default_factory=dict)
    times_off: int = 0
    """How often it was seen administratively down, for however short a time. Polling would only show the lost
    carrier."""


def parse_counted_link(payload: bytes) -> CountedLink:
    """Parse RTM_NEWLINK; raises what ``rtnl.decode`` turns into a ``KernelError``."""
    return CountedLink(parse_link(payload), parse_link_counters(payload))


def parse_link_counters(payload: bytes) -> dict[str, int]:
    """The counters of RTM_NEWLINK that it has."""
    found = parse_attributes(payload, _LINK_HEADER_BYTES, _WANTED_COUNTERS)
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


# --- packets dropped by rate limits, which a link itself does not count ---------------------------------

_TCA_STATS2, _TCA_STATS_QUEUE = 7, 3
_QUEUE = struct.Struct("=5I")
"""``struct gnet_stats_queue``: waiting packets and bytes, drops, requeues, overlimits."""


def read_limit_drops() -> dict[int, int]:
    """Packets that our token buckets have dropped, by the ifindex of the link (or of its ``ifb``)
    in the calling thread's network namespace.

    Raises:
        KernelError: netlink failed.
    """
    with NetlinkSocket.open() as rtnl:
        found = (decode(_parse_drops, payload) for payload in rtnl.dump(dump_qdiscs_request()))
        return {ifindex: drops for ifindex, drops in found if drops is not None}


def _parse_drops(payload: bytes) -> tuple[int, int | None]:
    _, ifindex, handle, _, _ = TCMSG.unpack_from(payload)
    if handle != BUCKET_HANDLE:
        return ifindex, None
    stats = parse_attributes(payload, TCMSG.size, frozenset({_TCA_STATS2})).get(_TCA_STATS2, b"")
    queue = parse_attributes(stats, 0, frozenset({_TCA_STATS_QUEUE})).get(_TCA_STATS_QUEUE, b"")
    return ifindex, int(_QUEUE.unpack_from(queue)[2]) if len(queue) >= _QUEUE.size else None
