"""Is a link the node's way to the world, or tied to it? Asked again at attach, because routes change.

The uplink is every link with a main-table default route. Tied to it are the links that share a master or a
lower link with it: slaves of a bond, ports of a bridge, a VLAN and what it stands on, a macvlan.
"""

from __future__ import annotations

from dranet.errors import DeviceError, Reason
from dranet.kernel.linkstate import read_link
from dranet.kernel.netlink import NetlinkSocket
from dranet.kernel.scan import read_default_routes
from dranet.model.facts import Link


class UplinkGuard:
    """Refuses the uplink and its relatives. Routes are read at the first question, once per attach."""

    def __init__(self, rtnl: NetlinkSocket) -> None:
        self._rtnl = rtnl
        self._foundation: frozenset[int] | None = None

    def check(self, link: Link) -> None:
        """Pass a link that is free to leave the node.

        Raises:
            DeviceError: it is the uplink or tied to it (``DeviceIsUplink``).
        """
        if self._foundation is None:
            self._foundation = self._read_uplinks()
        if self._foundation and self._read_below(link.ifindex, link) & self._foundation:
            raise DeviceError(
                f"link {link.ifname} is the node's uplink or tied to it (default route)",
                hint="the node would lose its network; choose another device",
                reason=Reason.DEVICE_IS_UPLINK,
            )

    def _read_uplinks(self) -> frozenset[int]:
        """The uplinks and everything they stand on."""
        indexes: set[int] = set()
        for route in read_default_routes(self._rtnl, []):
            for ifindex in (route.ifindex, *route.next_hops):
                if ifindex and ifindex not in indexes:
                    indexes |= self._read_below(ifindex)
        return frozenset(indexes)

    def _read_below(self, ifindex: int, link: Link | None = None) -> set[int]:
        """The link, its masters and its lower links, all the way."""
        seen: set[int] = set()
        waiting = [ifindex]
        while waiting:
            current = waiting.pop()
            if current in seen:
                continue
            seen.add(current)
            known = link if link is not None and link.ifindex == current else read_link(self._rtnl, current)
            if known is not None:
                lower = known.lower if known.link_netnsid is None else None
                waiting += [index for index in (known.master, lower) if index]
        return seen
