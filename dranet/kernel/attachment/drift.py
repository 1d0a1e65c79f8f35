"""Compare a link in the pod with its plan: after an attach, and before each container starts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from ipaddress import ip_address, ip_interface

from msgspec import Struct

from dranet.kernel.attachment.ipoib import find_ipoib
from dranet.kernel.attachment.linkstate import (
    SELF_MADE_ROUTES,
    STACKED_KINDS,
    read_addresses,
    read_link,
    read_permanent_neighbours,
)
from dranet.kernel.attachment.locate import Side, find_link, is_same_device, open_host_side, open_pod_side
from dranet.kernel.attachment.properties import neighbour_what, route_what
from dranet.kernel.attachment.routing import (
    LinkRoutes,
    PodRules,
    has_rival,
    is_in,
    is_in_place_of,
    read_link_routes,
)
from dranet.kernel.attachment.sublink import is_in_vrf, is_planned_sublink, planned_creation
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.netlink.inet import Hop, address_key
from dranet.kernel.netlink.policy_rules import rule_text
from dranet.kernel.netlink.rdma import has_rdma
from dranet.kernel.netlink.rtnl import decode_all, dump_links_request, parse_link
from dranet.model.facts import IFA_F_DADFAILED, Address, Link, Neighbour, Route
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

# --- attached links as they are now ---------------------------------------------------------------------


class SeenLink(Struct, frozen=True):
    """A link in the pod, with what its plan has something of: nothing else costs a look."""

    link: Link
    addresses: tuple[Address, ...]
    routes: LinkRoutes = ()
    neighbours: tuple[Neighbour, ...] = ()


def look_at(plan: AttachPlan, pod: Side, link: Link | None) -> SeenLink | None:
    """Read what a plan has set of a link; ``None`` where there is no link.

    Raises:
        KernelError: netlink failed.
    """
    if link is None:
        return None
    has_routes = any(isinstance(step, AddRoute) for step in plan.steps)
    has_neighbours = any(isinstance(step, AddNeighbour) for step in plan.steps)
    return SeenLink(
        link,
        read_addresses(pod.rtnl, link),
        read_link_routes(pod, link) if has_routes else (),
        read_permanent_neighbours(pod.rtnl, link) if has_neighbours else (),
    )


def read_attached(plans: Sequence[AttachPlan], netns: NetworkNamespace) -> tuple[AttachedLink, ...]:
    """One entry for each plan whose link is in ``netns`` under its planned name.

    Raises:
        KernelError: the namespace could not be entered, or netlink failed.
    """
    with open_pod_side(netns) as pod:
        rules = PodRules(pod)
        found = [_read(plan, pod, rules) for plan in plans if plan.pod_ifname]
    return tuple(link for link in found if link is not None)


def _read(plan: AttachPlan, pod: Side, rules: PodRules) -> AttachedLink | None:
    seen = look_at(plan, pod, read_link(pod.rtnl, ifname=plan.pod_ifname))
    return None if seen is None else describe(plan, seen, rules)


def describe(plan: AttachPlan, seen: SeenLink, rules: PodRules) -> AttachedLink:
    """Describe a link that was read in the pod, for the claim's status."""
    link = seen.link
    return AttachedLink(
        plan.device,
        link.ifname,
        link.mac,
        link.mtu,
        _list_addresses(plan, seen.addresses),
        routes=_list_routes(plan, seen.routes),
        rules=rules.find_present(step for step in plan.steps if isinstance(step, AddRule)),
    )


def _list_addresses(plan: AttachPlan, addresses: Sequence[Address]) -> tuple[str, ...]:
    """Omit IPv6 link-local addresses that the plan does not have: kernels before 5.18 do not mark those that
    they create."""
    planned = {ip_interface(s.address.cidr).ip for s in plan.steps if isinstance(s, AddAddress)}
    found = (ip_interface(address.cidr) for address in addresses)
    return tuple(str(a) for a in found if a.version == 4 or not a.ip.is_link_local or a.ip in planned)


def _list_routes(plan: AttachPlan, routes: LinkRoutes) -> tuple[AttachedRoute, ...]:
    """Without those that the kernel makes by itself from an address or a router advertisement."""
    planned = [step.route for step in plan.steps if isinstance(step, AddRoute)]
    found = (
        _describe_route(route, ways)
        for route, ways in routes
        if route.protocol not in SELF_MADE_ROUTES or any(is_in_place_of(route, other) for other in planned)
    )
    return tuple(sorted(found, key=lambda r: (r.table, ":" in r.destination, r.destination, r.gateways)))


def _describe_route(route: Route, ways: Sequence[Hop]) -> AttachedRoute:
    return AttachedRoute(route.destination, tuple(hop.gateway for hop in ways if hop.gateway), route.table)


def find_drift(plan: AttachPlan, pod: Side, seen: SeenLink | None, rules: PodRules) -> str:
    """Return the first difference between the link in the pod and its plan, as a clause; empty if none.

    Compares the link message, the addresses, and the routes, rules and neighbours that the plan has. A VRF
    takes one more look-up.

    Raises:
        KernelError: netlink failed.
    """
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
    planned = {address_key(s.address): s.address.cidr for s in plan.steps if isinstance(s, AddAddress)}
    missing = [cidr for key, cidr in planned.items() if key not in present]
    if missing:
        return f"without address {', '.join(missing)}"
    in_use = [cidr for key, cidr in planned.items() if _is_duplicate(present[key])]
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
    missing = rules.find_missing(step for step in plan.steps if isinstance(step, AddRule))
    return f"without the rule {rule_text(missing[0])}" if missing else ""


def _is_duplicate(address: Address) -> bool:
    """IPv6 only: the bit has no meaning for IPv4 addresses."""
    return ":" in address.cidr and bool(address.flags & IFA_F_DADFAILED)


# --- presence -------------------------------------------------------------------------------------------
# Less strict than drift: what a pod changed on its own link does not matter.


def find_absent(plans: Sequence[AttachPlan], netns: NetworkNamespace) -> tuple[str, ...]:
    """Return the names of the devices that are not in ``netns``, whatever the names of their links.

    Raises:
        KernelError: the namespace could not be entered, or netlink failed.
    """
    with open_pod_side(netns) as pod:
        names = {plan.pod_ifname for plan in plans}
        return tuple(plan.device for plan in plans if not _is_present(plan, pod, names))


def find_lost(plans: Sequence[AttachPlan], netns: NetworkNamespace) -> tuple[str, ...]:
    """Return the names of the devices whose link is neither in ``netns`` nor in the calling thread's
    namespace: attaching them would fail.

    Raises:
        KernelError: as :func:`find_absent`.
    """
    moved = [(plan, plan.host) for plan in plans if plan.host is not None and not plan.is_on_top]
    with open_host_side() as home, open_pod_side(netns) as pod:
        return tuple(plan.device for plan, host in moved if find_link(plan, host, home, pod) is None)


def _is_present(plan: AttachPlan, pod: Side, names: Collection[str]) -> bool:
    """``names`` are those that the pod's links have by their plans."""
    if not all(has_rdma(step.identity, pod.netns) for step in plan.steps if isinstance(step, MoveRdma)):
        return False
    if plan.host is None and planned_creation(plan) is None:
        return True
    link = read_link(pod.rtnl, ifname=plan.pod_ifname)
    if link is not None and _is_planned(link, plan):
        return True
    links = decode_all(parse_link, pod.rtnl.dump(dump_links_request()), [])
    return any(_is_renamed(link, plan, names) for link in links)


def _is_planned(link: Link, plan: AttachPlan) -> bool:
    creation = planned_creation(plan)
    if creation is not None:
        return is_planned_sublink(link, creation)
    return plan.host is None or is_same_device(link, plan, plan.host)


def _is_renamed(link: Link, plan: AttachPlan, names: Collection[str]) -> bool:
    """The pod may also rename its link. A bond, a VLAN and the like have the address of a link below them,
    which may be gone."""
    is_wearing = planned_creation(plan) is None and link.kind in (*STACKED_KINDS, "bond", "bridge", "team")
    return link.ifname not in names and not is_wearing and _is_planned(link, plan)


def find_strayed(plans: Sequence[AttachPlan]) -> tuple[str, ...]:
    """Names of the devices whose link is in the calling thread's namespace, and as the kernel brings one back
    from a namespace that died: under another name, or down and without the addresses that it had.

    Raises:
        KernelError: netlink failed.
    """
    moved = [(plan, plan.host) for plan in plans if plan.host is not None and not plan.is_on_top]
    remade = [plan for plan in plans if plan.ipoib]
    if not (moved or remade):
        return ()
    with open_host_side() as home:
        return (
            *(plan.device for plan, host in moved if _has_strayed(plan, host, home)),
            *(plan.device for plan in remade if _has_bare_ipoib(plan, home)),
        )


def find_down(plans: Sequence[AttachPlan]) -> tuple[str, ...]:
    """Names of the devices whose link is down in the calling thread's namespace, and was up at Prepare.

    Raises:
        KernelError: netlink failed.
    """
    moved = [(plan, plan.host) for plan in plans if plan.host is not None and plan.host.up]
    if not moved:
        return ()
    with open_host_side() as home:
        found = [(plan, find_link(plan, host, home, None)) for plan, host in moved]
        return tuple(plan.device for plan, there in found if there is not None and not there.link.is_up)


def _has_strayed(plan: AttachPlan, host: LinkState, home: Side) -> bool:
    found = find_link(plan, host, home, None)
    return found is not None and (found.link.ifname != host.ifname or _is_bare(found.link, host, home))


def _has_bare_ipoib(plan: AttachPlan, home: Side) -> bool:
    """Whether the RDMA device is home and the interfaces that the kernel made again are not as recorded."""
    for step in plan.steps:
        if isinstance(step, MoveRdma) and has_rdma(step.identity, home.netns):
            found = [(find_ipoib(home, state, step.pci_address), state.link) for state in plan.ipoib]
            return any(
                link is not None and (link.ifname != host.ifname or _is_bare(link, host, home))
                for link, host in found
            )
    return False


def _is_bare(link: Link, host: LinkState, home: Side) -> bool:
    """An administrator who sets a link down leaves its IPv4 addresses. Without any the answer is unknown."""
    had = {address.cidr for address in host.addresses if ":" not in address.cidr}
    if link.is_up or not host.up or not had:
        return False
    return had.isdisjoint(address.cidr for address in read_addresses(home.rtnl, link))
