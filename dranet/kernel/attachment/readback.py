"""The links of a pod's devices as they are there now: what is told of them, whatever was planned."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_interface

from msgspec import Struct

from dranet.kernel.attachment.linkstate import (
    SELF_MADE_ROUTES,
    read_addresses,
    read_link,
    read_permanent_neighbours,
)
from dranet.kernel.attachment.locate import Side, open_pod_side
from dranet.kernel.attachment.routing import LinkRoutes, PodRules, is_in_place_of, read_link_routes
from dranet.kernel.inet import Hop
from dranet.kernel.netns import NetworkNamespace
from dranet.model.facts import Address, Link, Neighbour, Route
from dranet.model.plan import AddAddress, AddNeighbour, AddRoute, AddRule, AttachPlan
from dranet.model.status import AttachedLink, AttachedRoute


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
    """What is told of a link that was read in the pod."""
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
    """Without IPv6 link-local addresses but those of the plan: kernels before 5.18 do not say which are their
    own."""
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
