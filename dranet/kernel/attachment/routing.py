"""Routes and policy rules of a pod: what is there already, and what does not go with its link.

A route goes with the link that it leads through, unless it has several ways; a rule belongs to the namespace.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from ipaddress import ip_address, ip_network

from msgspec.structs import replace

from dranet.errors import KernelError
from dranet.kernel.attachment.linkstate import iter_routes, read_link
from dranet.kernel.attachment.locate import Side
from dranet.kernel.netlink.inet import (
    RT_SCOPE_LINK,
    RTN_UNICAST,
    Hop,
    add_route_request,
    delete_route_request,
    dump_routes_request,
    parse_hops,
    parse_route,
)
from dranet.kernel.netlink.policy_rules import (
    add_rule_request,
    canonical_rule,
    delete_rule_request,
    dump_rules_request,
    parse_rule,
)
from dranet.kernel.netlink.rtnl import decode, decode_all
from dranet.kernel.netlink.socket import NetlinkSocket, Request
from dranet.model.facts import RTNH_F_ONLINK, Link, Route
from dranet.model.plan import AddRoute, AddRule

_IPV6_METRIC = 1024
"""What the kernel gives an IPv6 route without one (``IP6_RT_PRIO_USER``)."""

REPEATED_ROUTE = (errno.EEXIST, errno.EHOSTUNREACH)
"""How the kernel may refuse a route that is there. It looks for the gateway of an IPv6 route first, and by a
rule for the link finds the route itself, which has a gateway (``ip6_route_check_nh``)."""

LinkRoutes = tuple[tuple[Route, tuple[Hop, ...]], ...]
"""Each with where it leads."""

# --- routes ---------------------------------------------------------------------------------------------


def route_request(ifindex: int, route: Route, link: str, hops: Sequence[Hop] = ()) -> Request:
    """Add a route of a plan. An IPv4 route without a gateway reaches its neighbours directly: link scope, or
    the kernel takes no gateway from behind it."""
    return add_route_request(ifindex, _with_scope(route, hops), link, hops)


def _with_scope(route: Route, hops: Sequence[Hop]) -> Route:
    is_direct = not (route.gateway or hops) and route.type == RTN_UNICAST and ":" not in route.destination
    return replace(route, scope=RT_SCOPE_LINK) if is_direct and route.scope == 0 else route


def has_same_route(pod: Side, ifindex: int, route: Route, hops: Sequence[Hop] = ()) -> bool:
    """Whether exactly this route is present, from any program."""
    wanted = _with_scope(replace(route, ifindex=ifindex), hops)
    manner = _manner(wanted, _ways(wanted, hops))
    return any(_manner(found, ways) == manner for found, ways in _iter_in_place_of(pod, wanted))


def read_link_routes(pod: Side, link: Link) -> LinkRoutes:
    """Every route through a link of the pod: a dump for each IP version, which the kernel filters."""
    found = ((route, decode(parse_hops, payload)) for route, payload in iter_routes(pod.rtnl, link))
    return tuple((route, _ways(route, hops)) for route, hops in found)


def is_in(routes: LinkRoutes, pod: Side, link: Link, step: AddRoute) -> bool:
    """Whether the route of a plan is among those that were read of its link."""
    try:
        hops = _find_hops(pod, link.ifindex, step)
    except KernelError:  # a next hop's link is gone, and the route went with it
        return False
    wanted = _with_scope(replace(step.route, ifindex=link.ifindex), hops)
    manner = _manner(wanted, _ways(wanted, hops))
    return any(is_in_place_of(found, wanted) and _manner(found, ways) == manner for found, ways in routes)


def has_rival(pod: Side, step: AddRoute) -> bool:
    """Whether the pod has another route in the place of this one: this one could not be added."""
    return any(True for _ in _iter_in_place_of(pod, step.route))


def _dump_table(pod: Side, family: int, table: int) -> list[bytes]:
    try:
        return pod.rtnl.dump(dump_routes_request(family, table))
    except KernelError as error:
        if error.errno == errno.ENOENT:  # no route was ever in the table
            return []
        raise


def is_in_place_of(found: Route, wanted: Route) -> bool:
    """Whether two routes have destination, table and metric in common: the kernel has one of them."""
    return _place(found) == _place(wanted)


def _ways(route: Route, hops: Sequence[Hop]) -> tuple[Hop, ...]:
    """Where a route leads: the kernel keeps one way as a route without a list, and forgets its weight."""
    if len(hops) > 1:
        return tuple(hops)
    onlink = bool(route.flags & RTNH_F_ONLINK)
    return (replace(hops[0], weight=1) if hops else Hop(route.ifindex, route.gateway, onlink=onlink),)


def describe_rival(pod: Side, route: Route) -> str:
    """How the route leads that has the place of ``route``: ``via 10.244.0.1 dev eth0``; empty without one."""
    for _, (hop, *_) in _iter_in_place_of(pod, route):
        link = read_link(pod.rtnl, hop.ifindex)
        way = [f"via {hop.gateway}"] if hop.gateway else []
        way += [f"dev {link.ifname}"] if link is not None else []
        return " ".join(way)
    return ""


def _iter_in_place_of(pod: Side, route: Route) -> Iterator[tuple[Route, tuple[Hop, ...]]]:
    """Routes with the destination, table and metric of this one, each with its ways."""
    family = socket.AF_INET6 if ":" in route.destination else socket.AF_INET
    for payload in _dump_table(pod, family, route.table):
        found = decode(parse_route, payload)
        # A kernel without the family answers for all.
        if payload[0] == family and found is not None and is_in_place_of(found, route):
            yield found, _ways(found, decode(parse_hops, payload))


def _place(route: Route) -> tuple[object, ...]:
    network = ip_network(route.destination)
    return network, route.table, route.metric or (_IPV6_METRIC if network.version == 6 else 0)


def _manner(route: Route, ways: Sequence[Hop]) -> tuple[object, ...]:
    """Everything that distinguishes two routes of one place, independent of the spelling of addresses."""
    scope = 0 if ":" in route.destination else route.scope
    source = ip_address(route.source) if route.source else None
    return frozenset(map(_way, ways)), len(ways), source, scope, route.type, route.mtu


def _way(hop: Hop) -> tuple[object, ...]:
    return hop.ifindex, ip_address(hop.gateway) if hop.gateway else None, hop.weight, hop.onlink


def add_multipath_route(pod: Side, ifindex: int, ifname: str, step: AddRoute) -> bool:
    """Add a route with several ways; returns ``False`` where it was there already.

    Raises:
        KernelError: one of its links is not in the pod (ENODEV), or the kernel refused.
    """
    hops = _find_hops(pod, ifindex, step)
    try:
        pod.rtnl.request(route_request(0, step.route, ifname, hops))
    except KernelError as refusal:
        if refusal.errno in REPEATED_ROUTE and has_same_route(pod, 0, step.route, hops):
            return False
        raise
    return True


def _find_hops(pod: Side, ifindex: int, step: AddRoute) -> tuple[Hop, ...]:
    """The ways of a route of a plan, by the links that the pod has now.

    Raises:
        KernelError: one of its links is not in the pod (ENODEV).
    """
    return tuple(
        Hop(_find_ifindex(pod, hop.ifname, ifindex), hop.gateway, hop.weight, hop.onlink)
        for hop in step.next_hops
    )


def _find_ifindex(pod: Side, ifname: str, own: int) -> int:
    link = read_link(pod.rtnl, ifname=ifname) if ifname else None
    if ifname and link is None:
        raise KernelError(
            f"next hop through {ifname}: the pod has no link of that name",
            errno=errno.ENODEV,
            operation="add route",
            hint="nextHops[].interface is a name in the pod",
        )
    return own if link is None else link.ifindex


def remove_multipath_route(pod: Side, ifname: str, step: AddRoute) -> None:
    """Remove a route with several ways, known by its place and gateways; its links may have new names.

    Raises:
        KernelError: the kernel refused.
    """
    wanted = {ip_address(hop.gateway) for hop in step.next_hops}
    for found, ways in _iter_in_place_of(pod, step.route):
        if {ip_address(hop.gateway) for hop in ways if hop.gateway} == wanted:
            pod.rtnl.request(delete_route_request(0, found, ifname, ways))


# --- rules ----------------------------------------------------------------------------------------------


class PodRules:
    """The policy rules of a pod's namespace, read once for each IP version, however many devices ask.

    A rule of an IP version that the kernel does not have has no packets to be for: it is left out, and not
    missed.
    """

    def __init__(self, pod: Side) -> None:
        self._pod = pod
        self._present: dict[int, list[AddRule] | None] = {}

    def add(self, steps: Iterable[AddRule], link: str, added: Callable[[AddRule], None]) -> None:
        """Add the rules that are not there; ``added`` is called with each that now is.

        Raises:
            KernelError: the kernel refused one.
        """
        missing = self.find_missing(steps)
        refusals: list[KernelError] = []
        outcomes = self._pod.rtnl.batch([add_rule_request(rule, link) for rule in missing])
        for rule, outcome in zip(missing, outcomes, strict=True):
            if not isinstance(outcome, KernelError):
                added(rule)
            elif outcome.errno != errno.EEXIST:
                refusals.append(outcome)
            (self._read(rule.family) or []).append(rule)
        if refusals:
            raise refusals[0]

    def find_missing(self, steps: Iterable[AddRule]) -> list[AddRule]:
        """Those of the rules that the pod lacks."""
        wanted = dict.fromkeys(map(canonical_rule, steps))
        present = {rule: self._read(rule.family) for rule in wanted}
        return [rule for rule, found in present.items() if found is not None and not _find_same(found, rule)]

    def find_present(self, steps: Iterable[AddRule]) -> tuple[AddRule, ...]:
        """Return those of the rules that the pod has, as the kernel reports them."""
        found = (_find_same(self._read(rule.family) or (), rule) for rule in map(canonical_rule, steps))
        return tuple(dict.fromkeys(rule for rule in found if rule is not None))

    def _read(self, family: int) -> list[AddRule] | None:
        if family not in self._present:
            rules = read_rules(self._pod.rtnl, family)
            self._present[family] = None if rules is None else list(rules)
        return self._present[family]


def remove_rules(pod: Side, rules: Iterable[AddRule], link: str) -> None:
    """Remove rules that :meth:`PodRules.add` added; those that are gone already are passed over.

    Raises:
        KernelError: the kernel refused one; the others are removed.
    """
    wanted = tuple(map(canonical_rule, rules))
    present = {family: read_rules(pod.rtnl, family) or () for family in {rule.family for rule in wanted}}
    doomed = dict.fromkeys(
        found for rule in wanted for found in present[rule.family] if _is_same(found, rule)
    )
    for outcome in pod.rtnl.batch([delete_rule_request(rule, link) for rule in doomed]):
        if isinstance(outcome, KernelError) and outcome.errno != errno.ENOENT:
            raise outcome


def read_rules(rtnl: NetlinkSocket, family: int) -> tuple[AddRule, ...] | None:
    """Return the policy rules of a namespace, of IP version 4 or 6, that :class:`AddRule` can express;
    ``None`` if the kernel does not have the family.

    Raises:
        KernelError: netlink failed.
    """
    try:
        payloads = rtnl.dump(dump_rules_request(family))
    except KernelError as error:
        if error.errno in (errno.EAFNOSUPPORT, errno.EOPNOTSUPP):
            return None
        raise
    return tuple(decode_all(parse_rule, payloads, []))


def _find_same(present: Iterable[AddRule], rule: AddRule) -> AddRule | None:
    return next((found for found in present if _is_same(found, rule)), None)


def _is_same(found: AddRule, wanted: AddRule) -> bool:
    """Without a priority any will do: the kernel chose it."""
    return found == (wanted if wanted.priority else replace(wanted, priority=found.priority))
