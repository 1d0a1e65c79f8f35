"""What ``rtnl.parse_link`` leaves out of a link message, because a scan has no use for it.

Layouts and numbers are those of ``linux/if_link.h``; no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv6Address

from msgspec import Struct

from dranet.kernel.netlink import parse_attributes
from dranet.kernel.rtnl import (
    IFF_ALLMULTI,
    IFF_MULTICAST,
    IFF_NOARP,
    IFF_PROMISC,
    OFFLOAD_SIZES,
    link_header,
    parse_ipv6_token,
    u32,
)
from dranet.model.facts import Link

# linux/if.h
IFF_DEBUG, IFF_NOTRAILERS, IFF_PORTSEL, IFF_AUTOMEDIA, IFF_DYNAMIC = 0x4, 0x20, 0x2000, 0x4000, 0x8000
ODD_FLAGS = IFF_DEBUG | IFF_NOTRAILERS | IFF_PORTSEL | IFF_AUTOMEDIA | IFF_DYNAMIC
"""An administrator can set these too, and does not; a tenant might."""
SETTABLE_FLAGS = IFF_NOARP | IFF_MULTICAST | IFF_PROMISC | IFF_ALLMULTI | ODD_FLAGS
"""All that ``ip link set`` changes, but for ``IFF_UP``. Of promiscuity the kernel tells here what an
administrator asked for (``dev->gflags``); packet sockets and bridges only count in ``IFLA_PROMISCUITY``."""

# linux/if_link.h
IFLA_BROADCAST, IFLA_LINKMODE, IFLA_GSO_MAX_SEGS = 2, 17, 40
SIZES = {**OFFLOAD_SIZES, "gso_max_segs": IFLA_GSO_MAX_SEGS}
"""In the order to set them: ``gso_max_size`` of up to 64 KiB sets that of IPv4, too."""

LINK_MODE_DEFAULT = 0
"""``IF_LINK_MODE_DEFAULT``: in operation with the carrier, not when an authenticator says so."""
ETHERNET_BROADCAST = b"\xff" * 6
_ETHERNET = 1

_WANTED = frozenset({IFLA_BROADCAST, IFLA_LINKMODE, *SIZES.values()})
_HEADER_BYTES = len(link_header())


class LinkDetails(Struct, frozen=True):
    """``offload_sizes`` and ``token`` as :class:`~dranet.model.plan.LinkState` has them. The rest has no word
    there: a link of a node has the kernel's default."""

    offload_sizes: Mapping[str, int]
    token: str = ""
    odd_flags: int = 0
    link_mode: int = LINK_MODE_DEFAULT
    broadcast: str = ""
    """Empty where it is that of every Ethernet link, or the link is of another type."""

    @property
    def oddities(self) -> Mapping[str, str]:
        """What is not the kernel's default though nothing can record it, by what it is."""
        found = {
            "flags": f"{self.odd_flags:#x}" if self.odd_flags else "",
            "link mode": str(self.link_mode) if self.link_mode != LINK_MODE_DEFAULT else "",
            "broadcast address": self.broadcast,
        }
        return {what: value for what, value in found.items() if value}


def parse_link_details(payload: bytes, link: Link) -> LinkDetails:
    """Parse what is left of the RTM_NEWLINK that ``link`` was parsed from."""
    found = parse_attributes(payload, _HEADER_BYTES, _WANTED)
    broadcast = found.get(IFLA_BROADCAST, ETHERNET_BROADCAST)
    has_odd_broadcast = link.arp_type == _ETHERNET and broadcast != ETHERNET_BROADCAST
    return LinkDetails(
        offload_sizes={name: u32(found, kind) for name, kind in SIZES.items() if kind in found},
        token=_canonical(parse_ipv6_token(payload)),
        odd_flags=link.flags & ODD_FLAGS,
        link_mode=found.get(IFLA_LINKMODE, b"\0")[0],
        broadcast=broadcast.hex(":") if has_odd_broadcast else "",
    )


def _canonical(token: str) -> str:
    """``::5:6`` as claims and people write it; the C library says ``::0.5.0.6``."""
    return str(IPv6Address(token)) if token else ""
