"""May the node spare a link? Asked again at attach, because routes change.

The rules are those of the inventory (``inventory.ties``), read from the kernel as it is now: the node lives
by its default routes and by its lifelines, and a link is tied to them if either stands on what the other
stands on. Links are looked up one by one: a node has a thousand, and the runtime is waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dranet.errors import DeviceError, Reason
from dranet.kernel.lifelines import LifelineTarget, find_lifelines_by_route, outputs
from dranet.kernel.linkstate import read_link
from dranet.kernel.netlink import NetlinkSocket, Request
from dranet.kernel.rtnl import decode_all, dump_links_request, parse_link
from dranet.kernel.scan import read_default_routes
from dranet.kernel.sysfs import PseudoFiles, nearest_pci_address
from dranet.model.facts import Link, Route

OPENVSWITCH = "openvswitch"
"""Which of its ports feeds which is known to the switch alone, so all of them are one family."""

MASTER_KINDS = frozenset({"bond", "bridge", "team", "vrf", OPENVSWITCH})

TUNNEL_KINDS = frozenset(
    {
        "gre", "gretap", "ip6gre", "ip6gretap", "ip6tnl", "ipip", "ovpn", "ppp", "sit", "tun", "vti", "vti6",
        "wireguard", "xfrm",
    }
)  # fmt: skip
"""What goes in here comes out of another link, which the kernel does not tell."""


@dataclass(frozen=True, slots=True)
class UplinkRules:
    """What the check has to know of the node beyond netlink."""

    lifelines: tuple[LifelineTarget, ...] = ()
    sysfs_root: Path = Path("/sys")


class UplinkGuard:
    """Refuses what the node lives by. Routes are read at the first question, once per attach.

    For the calling thread's network namespace, which must be that of ``rtnl``.
    """

    def __init__(self, rtnl: NetlinkSocket, rules: UplinkRules) -> None:
        self._rtnl = rtnl
        self._rules = rules
        self._links: dict[int, Link | None] = {}
        self._foundation: Mapping[int, str] | None = None

    def check(self, link: Link) -> None:
        """Pass a link that is free to leave the node.

        Raises:
            DeviceError: it is the uplink or tied to it (``DeviceIsUplink``).
        """
        if self._foundation is None:
            self._foundation = self._read_foundation()
        for reached in self._read_below((link, *self._read_function(link)) if self._foundation else ()):
            if reached in self._foundation:
                raise DeviceError(
                    f"link {link.ifname} is the node's uplink or tied to it ({self._foundation[reached]})",
                    hint="the node would lose its network; choose another device",
                    reason=Reason.DEVICE_IS_UPLINK,
                )

    def _read_foundation(self) -> Mapping[int, str]:
        """Everything that the node's vital links stand on, and what stands on it: ifindex -> its purpose."""
        lifelines = find_lifelines_by_route(self._rtnl, self._rules.lifelines)
        vital = {line.ifindex: line.purpose for line in lifelines}
        vital |= dict.fromkeys(self._read_uplinks(), "default route")
        foundation: dict[int, str] = {}
        for ifindex, purpose in vital.items():
            below = self._read_below(self._known([ifindex])) | {ifindex}
            foundation |= dict.fromkeys(below, purpose)
        return foundation

    def _read_uplinks(self) -> frozenset[int]:
        routes = read_default_routes(self._rtnl, [])
        families = ([r for r in routes if (":" in r.destination) is family] for family in (False, True))
        return frozenset(index for own in families for index in self._choose(own))

    def _choose(self, routes: Sequence[Route]) -> frozenset[int]:
        """The outputs of the best routes of one family; of all of them where the best may not be in use."""
        best = outputs(r for r in routes if r.metric == min(route.metric for route in routes))
        certain = all(is_certain(self._read(index)) for index in best)
        return best if certain else outputs(routes)

    def _read_below(self, links: Iterable[Link]) -> set[int]:
        """The links, their masters with all ports, and their lower links, all the way."""
        seen: set[int] = set()
        waiting = list(links)
        while waiting:
            link = waiting.pop()
            if link.ifindex not in seen:
                seen.add(link.ifindex)
                lower = link.lower if link.link_netnsid is None else None
                waiting += self._known(index for index in (link.master, lower) if index)
                waiting += self._read_family(link)
        return seen

    def _read_family(self, link: Link) -> Iterator[Link]:
        """The ports of a master, and the other links of an Open vSwitch."""
        if link.kind in MASTER_KINDS:
            yield from self._dump(dump_links_request(master=link.ifindex), master=link.ifindex)
        if link.kind == OPENVSWITCH:
            yield from self._dump(dump_links_request(OPENVSWITCH), kind=OPENVSWITCH)

    def _dump(self, request: Request, *, master: int = 0, kind: str = "") -> Iterator[Link]:
        """A kernel that does not filter lists them all."""
        for link in decode_all(parse_link, self._rtnl.dump(request), []):
            if (master and link.master == master) or (kind and link.kind == kind):
                self._links[link.ifindex] = link
                yield link

    def _read_function(self, link: Link) -> Iterator[Link]:
        """What goes, or is cut off, with the PCI function of a link: its other links, and those of its
        virtual functions."""
        if link.kind:
            return
        sysfs = PseudoFiles(self._rules.sysfs_root, [])
        address = nearest_pci_address(sysfs.home(f"class/net/{link.ifname}"))
        if not address and link.parent_bus == "pci":
            address = link.parent_device
        for ifname in _ifnames_on(sysfs, address) if address else ():
            other = read_link(self._rtnl, ifname=ifname) if ifname != link.ifname else None
            if other is not None:
                yield other

    def _known(self, ifindexes: Iterable[int]) -> list[Link]:
        links = (self._read(ifindex) for ifindex in ifindexes)
        return [link for link in links if link is not None]

    def _read(self, ifindex: int) -> Link | None:
        if ifindex not in self._links:
            self._links[ifindex] = read_link(self._rtnl, ifindex)
        return self._links[ifindex]


def is_certain(link: Link | None) -> bool:
    """Whether a link surely carries what is routed to it; some drivers leave ``operstate`` unknown."""
    if link is None or not link.is_up or link.kind in TUNNEL_KINDS:
        return False
    return link.carrier or link.operstate in ("up", "unknown")


def _ifnames_on(sysfs: PseudoFiles, address: str) -> Iterator[str]:
    function = f"bus/pci/devices/{address}"
    entries = sysfs.entries(function)
    for folder in ("", *(f"/{name}" for name in entries if name.startswith("virtfn"))):
        yield from sysfs.entries(f"{function}{folder}/net")
        for name in sysfs.entries(f"{function}{folder}") if folder else entries:
            if name.startswith("virtio"):
                yield from sysfs.entries(f"{function}{folder}/{name}/net")
