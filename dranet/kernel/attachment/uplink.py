"""May the node spare a link? Asked again at attach, because routes change.

The rules are those of the inventory (``inventory.ties``), read from the kernel as it is now. The node
needs its default routes, the routes of policy routing for traffic of others, and its protected addresses.
A link is tied to them if either depends on what the other depends on. Links are looked up one by one: a node
has a thousand, and the runtime is waiting.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct

from dranet.errors import DeviceError, KernelError, Reason
from dranet.kernel.attachment.linkstate import read_link
from dranet.kernel.attachment.locate import open_pod_side
from dranet.kernel.discovery.protected_addresses import ProtectedAddress, read_protected_links
from dranet.kernel.discovery.rdma import RDMA_CLASS
from dranet.kernel.discovery.scan import read_default_routes, read_routing
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.netlink.inet import dump_addresses_request, parse_address
from dranet.kernel.netlink.rtnl import decode_all, dump_links_request, parse_link
from dranet.kernel.netlink.socket import NetlinkSocket, Request
from dranet.kernel.sysfs.files import PseudoFiles, nearest_pci_address
from dranet.model.facts import Address, Link
from dranet.model.uplinks import (
    OPENVSWITCH,
    TUNNEL_KINDS,
    UNTOLD,
    UNTOLD_DEFAULT_ROUTE,
    Addresses,
    find_uplinks,
    is_hardware,
    may_carry,
    order_outputs,
)

log = logging.getLogger(__name__)

MASTER_KINDS = frozenset({"bond", "bridge", "team", "vrf", OPENVSWITCH})

_DEFAULT_ROUTE = "default route"


class UplinkRules(Struct, frozen=True):
    """What the check has to know of the node beyond netlink."""

    protected_addresses: tuple[ProtectedAddress, ...] = ()
    sysfs_root: Path = Path("/sys")


class _Foundation(Struct, frozen=True):
    """The links that the node needs, each with its purpose."""

    links: Mapping[int, str]
    macs: Mapping[str, str]
    """Purposes by MAC address of its cards: a synthetic card and the function under it share one, also while
    the function is not yet enslaved."""
    hidden: str
    """The purpose of a tunnel, if that is the way out and no card is known below it: any may be."""
    untold: str = ""
    """The purpose of a route whose output the kernel does not report: it may be any card."""

    def __bool__(self) -> bool:
        return bool(self.links or self.untold)

    def purpose_of(self, link: Link) -> str:
        """Empty for what the node can spare."""
        if link.ifindex in self.links or not is_hardware(link):
            return self.links.get(link.ifindex, "")
        hidden = self.hidden if link.is_up else ""
        return self.macs.get(link.mac, "") or hidden or (self.untold if may_carry(link) else "")


class UplinkGuard:
    """Refuses links that the node needs. Routes are read at the first check, once per attach.

    For the calling thread's network namespace, which must be that of ``rtnl``.
    """

    def __init__(self, rtnl: NetlinkSocket, rules: UplinkRules) -> None:
        self._rtnl = rtnl
        self._addresses = rules.protected_addresses
        self._sysfs = PseudoFiles(rules.sysfs_root, [])
        self._links: dict[int, Link | None] = {}
        self._foundation: _Foundation | None = None

    def check(self, link: Link) -> None:
        """Pass a link that is free to leave the node.

        Raises:
            DeviceError: it is the uplink or tied to it (``DeviceIsUplink``).
        """
        if self._foundation is None:
            self._foundation = self._read_foundation()
        for reached in self._read_below((link, *self._read_function(link)) if self._foundation else ()):
            purpose = self._foundation.purpose_of(reached)
            if purpose:
                raise DeviceError(
                    f"link {link.ifname} is the node's uplink or tied to it ({purpose})",
                    hint="the node would lose its network; choose another device",
                    reason=Reason.DEVICE_IS_UPLINK,
                )

    def check_rdma(self, name: str) -> None:
        """Pass an RDMA device whose interfaces (IPoIB) may be lost to the node.

        Raises:
            DeviceError: as :meth:`check`.
        """
        for link in self._read_links_on(nearest_pci_address(self._sysfs.home(f"{RDMA_CLASS}/{name}"))):
            self.check(link)

    def _read_foundation(self) -> _Foundation:
        """Find the links below the node's protected links, and the links on top of them."""
        protected = read_protected_links(self._rtnl, self._addresses)
        uplinks = find_uplinks(read_routing(self._rtnl, []), self._read, Addresses(self._read_addresses))
        kept = {line.ifindex: line.purpose for line in protected if line.ifindex}
        kept |= {**uplinks.by_policy, **dict.fromkeys(uplinks.by_default, _DEFAULT_ROUTE)}
        untold = [UNTOLD_DEFAULT_ROUTE] if uplinks.untold else []
        untold += [f"{line.purpose}, {UNTOLD}" for line in protected if not line.ifindex]
        below = {index: self._read_below(self._known([index])) for index in kept}
        carriers = [(link, kept[index]) for index, links in below.items() for link in links]
        return _Foundation(
            links=kept | {link.ifindex: purpose for link, purpose in carriers},
            macs={
                link.mac: purpose for link, purpose in carriers if is_hardware(link) and link.mac.strip("0:")
            },
            hidden=_hidden_way(_ways_out(carriers, uplinks.by_policy.values())),
            untold=next(iter(untold), ""),
        )

    def _read_addresses(self) -> Mapping[int, Sequence[Address]]:
        found: dict[int, list[Address]] = defaultdict(list)
        payloads = self._rtnl.dump(dump_addresses_request())
        for ifindex, address in decode_all(partial(parse_address, names={}), payloads, []):
            found[ifindex].append(address)
        return found

    def _read_below(self, links: Iterable[Link]) -> Collection[Link]:
        """The links, their masters with all ports, and their lower links, all the way."""
        seen: dict[int, Link] = {}
        waiting = list(links)
        while waiting:
            link = waiting.pop()
            if link.ifindex not in seen:
                seen[link.ifindex] = link
                lower = link.lower if link.link_netnsid is None else None
                waiting += self._known(index for index in (link.master, lower) if index)
                waiting += self._read_family(link)
        return seen.values()

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
        if not link.kind:
            address = nearest_pci_address(self._sysfs.home(f"class/net/{link.ifname}"))
            if not address and link.parent_bus == "pci":
                address = link.parent_device
            yield from self._read_links_on(address, but=link.ifname)

    def _read_links_on(self, address: str, but: str = "") -> Iterator[Link]:
        for ifname in _ifnames_on(self._sysfs, address) if address else ():
            link = read_link(self._rtnl, ifname=ifname) if ifname != but else None
            if link is not None:
                yield link

    def _known(self, ifindexes: Iterable[int]) -> list[Link]:
        links = (self._read(ifindex) for ifindex in ifindexes)
        return [link for link in links if link is not None]

    def _read(self, ifindex: int) -> Link | None:
        if ifindex not in self._links:
            self._links[ifindex] = read_link(self._rtnl, ifindex)
        return self._links[ifindex]


def _ways_out(carriers: Sequence[tuple[Link, str]], by_policy: Collection[str]) -> Sequence[tuple[Link, str]]:
    """Return the links of the default routes, or else those of the routes to protected addresses."""
    by_default = [pair for pair in carriers if pair[1] == _DEFAULT_ROUTE]
    return by_default or [pair for pair in carriers if pair[1] not in by_policy] or carriers


def _hidden_way(carriers: Sequence[tuple[Link, str]]) -> str:
    """Return the purpose of a tunnel that has no card, or an empty text."""
    tunnels = [purpose for link, purpose in carriers if link.kind in TUNNEL_KINDS]
    return tunnels[0] if tunnels and not any(is_hardware(link) for link, _ in carriers) else ""


def _ifnames_on(sysfs: PseudoFiles, address: str) -> Iterator[str]:
    function = f"bus/pci/devices/{address}"
    entries = sysfs.entries(function)
    for folder in ("", *(f"/{name}" for name in entries if name.startswith("virtfn"))):
        yield from sysfs.entries(f"{function}{folder}/net")
        for name in sysfs.entries(f"{function}{folder}") if folder else entries:
            if name.startswith("virtio"):
                yield from sysfs.entries(f"{function}{folder}/{name}/net")


def read_pod_uplink(netns_path: str) -> str:
    """Return the interface of the pod's default route, IPv4's first; empty if it has none."""
    try:
        with NetworkNamespace.open(netns_path) as netns, open_pod_side(netns) as pod:
            routes = pod.run(lambda: read_default_routes(pod.rtnl, []))
            links = (read_link(pod.rtnl, index) for index in order_outputs(routes))
            return next((link.ifname for link in links if link is not None), "")
    except KernelError as error:
        log.warning("the default route of the pod at %s is not known: %s", netns_path, error)
        return ""
