"""May the node spare a link, and is a link in the pod as planned? Asked of the kernel as it is now."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from ipaddress import ip_address, ip_interface
from pathlib import Path

from msgspec import Struct

from dranet.errors import DeviceError, KernelError, Reason
from dranet.kernel.attachment.links import (
    SELF_MADE_ROUTES,
    STACKED_KINDS,
    Side,
    find_link,
    find_step,
    is_same_device,
    open_host_side,
    open_pod_side,
    read_addresses,
    read_link,
    read_neighbours,
    steps_of,
)
from dranet.kernel.attachment.properties import neighbour_what, route_what
from dranet.kernel.attachment.restore import find_ipoib
from dranet.kernel.attachment.steps import is_in_vrf, is_planned_sublink
from dranet.kernel.attachment.traffic import (
    LinkRoutes,
    PodRules,
    has_rival,
    is_in,
    is_in_place_of,
    read_link_routes,
)
from dranet.kernel.discovery.hardware import RDMA_CLASS
from dranet.kernel.discovery.scan import (
    ProtectedAddress,
    read_default_routes,
    read_protected_links,
    read_routing,
)
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.netlink.inet import address_key, dump_addresses_request, parse_address
from dranet.kernel.netlink.rdma import has_rdma
from dranet.kernel.netlink.rtnl import decode_all, dump_links_request, parse_link, rule_text
from dranet.kernel.netlink.socket import NetlinkSocket, Request
from dranet.kernel.sysfs.files import PseudoFiles, nearest_pci_address
from dranet.model.facts import IFA_F_DADFAILED, Address, Link, Neighbour
from dranet.model.plan import (
    AddAddress,
    AddNeighbour,
    AddRoute,
    AddRule,
    AttachPlan,
    CreateLink,
    JoinVrf,
    LinkState,
    MoveLink,
    MoveRdma,
    SetUp,
    Step,
)
from dranet.model.status import AttachedLink, AttachedRoute
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

# --- the node's uplink ----------------------------------------------------------------------------------
# The rules are those of ``inventory.link_dependencies``, asked again at attach because routes change. The
# node needs its default routes, the routes of policy routing for traffic of others, and its protected
# addresses. A link is tied to them if either depends on what the other depends on.

MASTER_KINDS = frozenset({"bond", "bridge", "team", "vrf", OPENVSWITCH})

_DEFAULT_ROUTE = "default route"


class UplinkRules(Struct, frozen=True):
    """What :class:`UplinkGuard` has to know of the node beyond netlink."""

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
    """Refuses links that the node needs, in the calling thread's network namespace, which must be that of
    ``rtnl``. Routes are read at the first check, once per attach."""

    def __init__(self, rtnl: NetlinkSocket, rules: UplinkRules) -> None:
        self._rtnl = rtnl
        self._addresses = rules.protected_addresses
        self._sysfs = PseudoFiles(rules.sysfs_root, [])
        self._links: dict[int, Link | None] = {}
        self._foundation: _Foundation | None = None

    def check(self, link: Link) -> None:
        """Refuse the uplink and what is tied to it (``DeviceIsUplink``)."""
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
        """The same for an RDMA device, whose interfaces (IPoIB) would be lost to the node."""
        for link in self._read_links_on(nearest_pci_address(self._sysfs.home(f"{RDMA_CLASS}/{name}"))):
            self.check(link)

    def _read_foundation(self) -> _Foundation:
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
            hidden=_hidden_way(carriers, uplinks.by_policy.values()),
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
        if link.kind in MASTER_KINDS:
            ports = self._dump(dump_links_request(master=link.ifindex))
            yield from (port for port in ports if port.master == link.ifindex)
        if link.kind == OPENVSWITCH:
            others = self._dump(dump_links_request(OPENVSWITCH))
            yield from (other for other in others if other.kind == OPENVSWITCH)

    def _dump(self, request: Request) -> Iterable[Link]:
        """A kernel that does not filter lists them all."""
        links = decode_all(parse_link, self._rtnl.dump(request), [])
        self._links |= {link.ifindex: link for link in links}
        return links

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


def _hidden_way(carriers: Sequence[tuple[Link, str]], by_policy: Collection[str]) -> str:
    """The purpose of a tunnel that has no card, or an empty text: of the links of the default routes, or else
    those of the routes to protected addresses."""
    ways = (
        [pair for pair in carriers if pair[1] == _DEFAULT_ROUTE]
        or [pair for pair in carriers if pair[1] not in by_policy]
        or carriers
    )
    tunnels = [purpose for link, purpose in ways if link.kind in TUNNEL_KINDS]
    return tunnels[0] if tunnels and not any(is_hardware(link) for link, _ in ways) else ""


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


# --- attached links as they are now ---------------------------------------------------------------------


class SeenLink(Struct, frozen=True):
    """A link in the pod, with what its plan has something of: nothing else costs a look."""

    link: Link
    addresses: tuple[Address, ...]
    routes: LinkRoutes = ()
    neighbours: tuple[Neighbour, ...] = ()


def look_at(plan: AttachPlan, pod: Side, link: Link | None) -> SeenLink | None:
    """``None`` where there is no link."""
    if link is None:
        return None
    return SeenLink(
        link,
        read_addresses(pod.rtnl, link),
        read_link_routes(pod, link) if steps_of(plan, AddRoute) else (),
        read_neighbours(pod.rtnl, link, proxies=False) if steps_of(plan, AddNeighbour) else (),
    )


def _look_at_planned(plan: AttachPlan, pod: Side) -> SeenLink | None:
    return look_at(plan, pod, read_link(pod.rtnl, ifname=plan.pod_ifname))


def read_attached(plans: Sequence[AttachPlan], netns: NetworkNamespace) -> tuple[AttachedLink, ...]:
    """One entry for each plan whose link is in ``netns`` under its planned name."""
    with open_pod_side(netns) as pod:
        rules = PodRules(pod)
        found = [(plan, _look_at_planned(plan, pod)) for plan in plans if plan.pod_ifname]
        return tuple(describe(plan, seen, rules) for plan, seen in found if seen is not None)


def describe(plan: AttachPlan, seen: SeenLink, rules: PodRules) -> AttachedLink:
    link = seen.link
    return AttachedLink(
        plan.device,
        link.ifname,
        link.mac,
        link.mtu,
        _list_addresses(plan, seen.addresses),
        routes=_list_routes(plan, seen.routes),
        rules=rules.find_present(steps_of(plan, AddRule)),
    )


def _list_addresses(plan: AttachPlan, addresses: Sequence[Address]) -> tuple[str, ...]:
    """Omit IPv6 link-local addresses that the plan does not have: kernels before 5.18 do not mark those that
    they create."""
    planned = {ip_interface(step.address.cidr).ip for step in steps_of(plan, AddAddress)}
    found = (ip_interface(address.cidr) for address in addresses)
    return tuple(str(a) for a in found if a.version == 4 or not a.ip.is_link_local or a.ip in planned)


def _list_routes(plan: AttachPlan, routes: LinkRoutes) -> tuple[AttachedRoute, ...]:
    planned = [step.route for step in steps_of(plan, AddRoute)]
    found = (
        AttachedRoute(route.destination, tuple(hop.gateway for hop in ways if hop.gateway), route.table)
        for route, ways in routes
        if route.protocol not in SELF_MADE_ROUTES or any(is_in_place_of(route, other) for other in planned)
    )
    return tuple(sorted(found, key=lambda r: (r.table, ":" in r.destination, r.destination, r.gateways)))


def find_drift(plan: AttachPlan, pod: Side, seen: SeenLink | None, rules: PodRules) -> str:
    """Return the first difference between the link in the pod and its plan, as a clause; empty if none."""
    if seen is None or seen.link.ifname != plan.pod_ifname:
        return "the link is not in the pod"
    found = (_find_step_drift(step, plan, pod, seen.link) for step in plan.steps)
    return (
        next(filter(None, found), "")
        or _find_address_drift(plan, seen.addresses)
        or _find_routing_drift(plan, pod, seen, rules)
    )


def _find_step_drift(step: Step, plan: AttachPlan, pod: Side, link: Link) -> str:
    match step:
        case MoveLink() if plan.host is not None and not is_same_device(link, plan, plan.host):
            return f"the link {link.ifname} is another device"
        case CreateLink() if not is_planned_sublink(link, step):
            return f"the link {link.ifname} is not the {step.kind} on {step.parent_ifname}"
        case MoveLink() | CreateLink() if step.mtu not in (None, link.mtu):
            return f"the MTU is {link.mtu}, not {step.mtu}"
        case MoveLink() | CreateLink() if step.mac not in (None, link.mac):
            return f"the MAC address is {link.mac}, not {step.mac}"
        case SetUp() if not link.is_up:
            return "the link is not up"
        case JoinVrf() if not is_in_vrf(pod, link, step):
            return f"the link is not in the VRF {step.name}"
    return ""


def _find_address_drift(plan: AttachPlan, addresses: Sequence[Address]) -> str:
    present = {address_key(address): address for address in addresses}
    planned = {address_key(step.address): step.address.cidr for step in steps_of(plan, AddAddress)}
    missing = [cidr for key, cidr in planned.items() if key not in present]
    if missing:
        return f"without address {', '.join(missing)}"
    # IPv6 only: the bit has no meaning for IPv4 addresses.
    duplicates = {key for key, a in present.items() if ":" in a.cidr and a.flags & IFA_F_DADFAILED}
    in_use = [cidr for key, cidr in planned.items() if key in duplicates]
    return f"another host on the network has {', '.join(in_use)}" if in_use else ""


def _find_routing_drift(plan: AttachPlan, pod: Side, seen: SeenLink, rules: PodRules) -> str:
    """Report missing items only. A route or neighbour that a process of the pod replaced is the pod's
    choice."""
    present = {ip_address(neighbour.address) for neighbour in seen.neighbours}
    for step in plan.steps:
        match step:
            case AddRoute() if not is_in(seen.routes, pod, seen.link, step) and not has_rival(pod, step):
                return f"without {route_what(step.route)}"
            case AddNeighbour() if ip_address(step.neighbour.address) not in present:
                return f"without {neighbour_what(step.neighbour)}"
    missing = rules.find_missing(steps_of(plan, AddRule))
    return f"without the rule {rule_text(missing[0])}" if missing else ""


def verify(plans: Sequence[AttachPlan], netns: NetworkNamespace) -> tuple[str, ...]:
    """Names of the devices that are not in ``netns`` as planned: absent, another device, down, with another
    MTU or MAC address, outside of their VRF, or without an address, a route, a rule or a neighbour."""
    with open_pod_side(netns) as pod:
        rules = PodRules(pod)
        return tuple(plan.device for plan in plans if not _is_attached(plan, pod, rules))


def _is_attached(plan: AttachPlan, pod: Side, rules: PodRules) -> bool:
    if not _has_rdma(plan, pod):
        return False
    return not _has_link(plan) or not find_drift(plan, pod, _look_at_planned(plan, pod), rules)


def _has_rdma(plan: AttachPlan, pod: Side) -> bool:
    return all(has_rdma(step.identity, pod.netns) for step in steps_of(plan, MoveRdma))


def _has_link(plan: AttachPlan) -> bool:
    return plan.host is not None or plan.is_on_top


# --- presence -------------------------------------------------------------------------------------------
# Less strict than drift: what a pod changed on its own link does not matter.


def find_absent(plans: Sequence[AttachPlan], netns: NetworkNamespace) -> tuple[str, ...]:
    with open_pod_side(netns) as pod:
        names = {plan.pod_ifname for plan in plans}
        return tuple(plan.device for plan in plans if not _is_present(plan, pod, names))


def find_lost(plans: Sequence[AttachPlan], netns: NetworkNamespace) -> tuple[str, ...]:
    """Names of the devices whose link is neither in ``netns`` nor in the calling thread's namespace:
    attaching them would fail."""
    moved = _list_moved(plans)
    with open_host_side() as home, open_pod_side(netns) as pod:
        return tuple(plan.device for plan, host in moved if find_link(plan, host, home, pod) is None)


def _list_moved(plans: Sequence[AttachPlan]) -> list[tuple[AttachPlan, LinkState]]:
    return [(plan, plan.host) for plan in plans if plan.host is not None and not plan.is_on_top]


def _is_present(plan: AttachPlan, pod: Side, names: Collection[str]) -> bool:
    """``names`` are those that the pod's links have by their plans."""
    if not _has_rdma(plan, pod):
        return False
    if not _has_link(plan):
        return True
    link = read_link(pod.rtnl, ifname=plan.pod_ifname)
    if link is not None and _is_planned(link, plan):
        return True
    links = decode_all(parse_link, pod.rtnl.dump(dump_links_request()), [])
    return any(_is_renamed(link, plan, names) for link in links)


def _is_planned(link: Link, plan: AttachPlan) -> bool:
    creation = find_step(plan, CreateLink)
    if creation is not None:
        return is_planned_sublink(link, creation)
    return plan.host is None or is_same_device(link, plan, plan.host)


def _is_renamed(link: Link, plan: AttachPlan, names: Collection[str]) -> bool:
    """The pod may also rename its link. A bond, a VLAN and the like have the address of a link below them,
    which may be gone."""
    is_wearing = not plan.is_on_top and link.kind in (*STACKED_KINDS, "bond", "bridge", "team")
    return link.ifname not in names and not is_wearing and _is_planned(link, plan)


def find_strayed(plans: Sequence[AttachPlan]) -> tuple[str, ...]:
    """Names of the devices whose link is in the calling thread's namespace, and as the kernel brings one back
    from a namespace that died: under another name, or down and without the addresses that it had."""
    moved, remade = _list_moved(plans), [plan for plan in plans if plan.ipoib]
    if not (moved or remade):
        return ()
    with open_host_side() as home:
        found = [(plan, find_link(plan, host, home, None), host) for plan, host in moved]
        return (
            *(plan.device for plan, there, host in found if there and _has_strayed(there.link, host, home)),
            *(plan.device for plan in remade if _has_bare_ipoib(plan, home)),
        )


def find_down(plans: Sequence[AttachPlan]) -> tuple[str, ...]:
    """Names of the devices whose link is down in the calling thread's namespace, and was up at Prepare."""
    moved = [(plan, plan.host) for plan in plans if plan.host is not None and plan.host.up]
    if not moved:
        return ()
    with open_host_side() as home:
        found = [(plan, find_link(plan, host, home, None)) for plan, host in moved]
        return tuple(plan.device for plan, there in found if there is not None and not there.link.is_up)


def _has_bare_ipoib(plan: AttachPlan, home: Side) -> bool:
    """Whether the RDMA device is home and the interfaces that the kernel made again are not as recorded."""
    step = next((step for step in steps_of(plan, MoveRdma) if has_rdma(step.identity, home.netns)), None)
    if step is None:
        return False
    found = [(find_ipoib(home, state, step.pci_address), state.link) for state in plan.ipoib]
    return any(link is not None and _has_strayed(link, host, home) for link, host in found)


def _has_strayed(link: Link, host: LinkState, home: Side) -> bool:
    return link.ifname != host.ifname or _is_bare(link, host, home)


def _is_bare(link: Link, host: LinkState, home: Side) -> bool:
    """An administrator who sets a link down leaves its IPv4 addresses. Without any the answer is unknown."""
    had = {address.cidr for address in host.addresses if ":" not in address.cidr}
    if link.is_up or not host.up or not had:
        return False
    return had.isdisjoint(address.cidr for address in read_addresses(home.rtnl, link))
