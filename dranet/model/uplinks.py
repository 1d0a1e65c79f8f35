"""Which links carry the node's traffic: the rules that the inventory and the check at attach have in common.

The inventory judges a whole scan, the check at attach asks the kernel link by link while the runtime waits;
what they hold to be an uplink must be the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from ipaddress import IPv4Interface, IPv6Interface, ip_interface, ip_network

from msgspec import Struct, field

from dranet.model.facts import Address, Link, Route, RoutingRule

RTN_UNICAST = 1

OPENVSWITCH = "openvswitch"
"""An internal port of Open vSwitch (``br-ex``) has no master, its other ports have ``ovs-system``. Which port
feeds which is known to the switch alone, so all of them are one family."""

TUNNEL_KINDS = frozenset(
    {
        "bareudp", "erspan", "geneve", "gre", "gretap", "ip6erspan", "ip6gre", "ip6gretap", "ip6tnl", "ipip",
        "ovpn", "ppp", "sit", "tun", "vti", "vti6", "vxlan", "wireguard", "xfrm",
    }
)  # fmt: skip
"""Kinds whose packets leave by another link, which the kernel does not report."""

DEFAULT_ROUTE = "carries a default route"
UNTOLD = "whose output the kernel does not report"
UNTOLD_DEFAULT_ROUTE = f"may carry a default route, {UNTOLD}"

Get = Callable[[int], Link | None]
"""The link of an ifindex; ``None``: out of sight."""


class Routing(Struct, frozen=True):
    """By what a namespace routes, as ``NodeFacts`` has it."""

    default_routes: Sequence[Route] = ()
    rules: Sequence[RoutingRule] = ()
    policy_routes: Sequence[Route] = ()


class Uplinks(Struct, frozen=True):
    """The links that carry the node's traffic."""

    by_default: frozenset[int] = frozenset()
    """ifindexes of the outputs of main-table default routes."""
    by_policy: Mapping[int, str] = field(default_factory=dict)
    """ifindex -> why, of the other outputs by which rules send traffic of others."""
    untold: bool = False
    """A default route has an output that the kernel does not report: it may be any card
    (:func:`may_carry`)."""


def find_uplinks(routing: Routing, get: Get, addresses: Addresses) -> Uplinks:
    """The links that the node's traffic, or traffic of others such as pods, leaves by.

    Args:
        routing: rules and routes of the node.
        get: the link of an ifindex.
        addresses: those of all links.
    """
    by_default = choose_uplinks(routing.default_routes, get)
    ways = list(_policy_ways(routing, get, addresses))
    by_policy = {index: why for route, why in ways for index in outputs([route]) if index not in by_default}
    routes = (*routing.default_routes, *(route for route, _ in ways))
    return Uplinks(by_default, by_policy, any(is_untold(route) for route in routes))


def choose_uplinks(default_routes: Iterable[Route], get: Get) -> frozenset[int]:
    """ifindexes of the links of each family's default routes with the lowest metric, all their next hops.

    If one of those links is down, out of sight or a tunnel, another default route of that family may carry
    the node now, so all of them count. So they do if the output of the best one is unknown.
    """
    routes = [route for route in default_routes if route.type == RTN_UNICAST]
    families = ([route for route in routes if (":" in route.destination) is ipv6] for ipv6 in (False, True))
    return frozenset().union(*(_choose(family, get) for family in families))


def _choose(routes: Sequence[Route], get: Get) -> frozenset[int]:
    lowest = min((route.metric for route in routes), default=0)
    best = [route for route in routes if route.metric == lowest]
    is_sure = not any(map(is_untold, best)) and all(is_certain(get(index)) for index in outputs(best))
    return outputs(best if is_sure else routes)


# --- policy routing ------------------------------------------------------------------------------------


class Addresses:
    """The addresses of all links, for the question whose a source is; read when it is first asked."""

    def __init__(self, read: Callable[[], Mapping[int, Iterable[Address]]]) -> None:
        self._read = read

    def owners(self, source: str) -> frozenset[int]:
        """ifindexes of the links with an address in the prefix ``source``, if all of these addresses are
        their own traffic alone: the prefix is one address, or is within the subnet of each. Else none."""
        address, _, length = source.partition("/")
        if length == ("128" if ":" in address else "32"):  # there may be one for each pod
            return frozenset(self._links_of.get(address, ()))
        try:
            prefix = ip_network(source, strict=False)
        except ValueError:  # a capture may hold any text
            return frozenset()
        inside = [(index, own) for index, own in self._interfaces if own in prefix]
        within = all(own.network.supernet_of(prefix) for _, own in inside)  # type: ignore[arg-type]
        return frozenset(index for index, _ in inside) if within else frozenset()

    @cached_property
    def _all(self) -> Sequence[tuple[int, str]]:
        return [(index, address.cidr) for index, found in self._read().items() for address in found]

    @cached_property
    def _links_of(self) -> Mapping[str, Sequence[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for index, cidr in self._all:
            found[cidr.partition("/")[0]].append(index)
        return found

    @cached_property
    def _interfaces(self) -> Sequence[tuple[int, IPv4Interface | IPv6Interface]]:
        parsed = ((index, _parse_interface(cidr)) for index, cidr in self._all)
        return [(index, own) for index, own in parsed if own is not None]


def _parse_interface(cidr: str) -> IPv4Interface | IPv6Interface | None:
    try:
        return ip_interface(cidr)
    except ValueError:
        return None


def _policy_ways(routing: Routing, get: Get, addresses: Addresses) -> Iterator[tuple[Route, str]]:
    """The routes by which rules send traffic of others, each with what its outputs do."""
    tables: dict[tuple[int, int], list[Route]] = defaultdict(list)
    for route in routing.policy_routes:
        if route.type == RTN_UNICAST:
            tables[6 if ":" in route.destination else 4, route.table].append(route)
    for rule in routing.rules:
        if routes := tables.get((rule.family, rule.table)):
            ways = list(_ways(rule, routes, get, addresses))
            yield from ((route, f"carries traffic of others by routing table {rule.table}") for route in ways)
            tables[rule.family, rule.table] = [route for route in routes if route not in ways]


def _ways(rule: RoutingRule, routes: Sequence[Route], get: Get, addresses: Addresses) -> Iterator[Route]:
    """Yield the routes of a rule that carry traffic other than that of their output.

    Traffic from one address that no link has (a pod's) makes each of them a way. Else only default routes
    are one: what leads to a single destination is no uplink in the main table either, and a rule for one
    destination makes a default route such a one.
    """
    owners: frozenset[int] = frozenset()
    if rule.source and not rule.inverted:
        found = ((index, get(index)) for index in addresses.owners(rule.source))
        owners = frozenset(index for index, link in found if link is None or not link.is_loopback)
        if not owners and rule.is_from_one_address:
            yield from (route for route in routes if not (rule.suppresses_default and is_default(route)))
            return
    if rule.suppresses_default or (rule.destination and not rule.inverted):
        return
    for route in routes:
        if is_default(route) and not all(_is_own(rule, i, owners, get) for i in outputs([route]) or (0,)):
            yield route


def _is_own(rule: RoutingRule, index: int, owners: frozenset[int], get: Get) -> bool:
    """Whether the rule is true only of traffic of the link itself: from its addresses alone, of what came in
    by it, or of sockets bound to it."""
    if rule.inverted:
        return False
    if owners == {index}:
        return True
    names = {rule.input_interface, rule.output_interface} - {""}
    link = get(index) if names else None
    return link is not None and link.ifname in names


# --- routes and links ----------------------------------------------------------------------------------


def outputs(routes: Iterable[Route]) -> frozenset[int]:
    """The ifindexes that the routes lead to, every next hop."""
    return frozenset(index for route in routes for index in (route.ifindex, *route.next_hops) if index)


def is_untold(route: Route) -> bool:
    """Whether traffic leaves by the route, and the kernel does not report by which link."""
    return route.type == RTN_UNICAST and not outputs([route])


def is_default(route: Route) -> bool:
    return route.destination.endswith("/0")


def order_outputs(default_routes: Iterable[Route]) -> tuple[int, ...]:
    """The ifindexes that default routes lead to: IPv4's first, of each family the lowest metric first."""
    routes = sorted(default_routes, key=lambda route: (":" in route.destination, route.metric))
    return tuple(dict.fromkeys(index for route in routes for index in sorted(outputs([route]))))


def is_certain(link: Link | None) -> bool:
    """Whether a link surely carries what is routed to it. Some drivers leave ``operstate`` unknown while they
    work; the carrier decides then."""
    if link is None or not link.is_up or link.kind in TUNNEL_KINDS:
        return False
    return link.carrier or link.operstate in ("up", "unknown")


def may_carry(link: Link) -> bool:
    """Whether a route without a known output may lead to this card, itself or by a link on top."""
    return is_hardware(link) and (link.is_up or link.carrier)


def is_hardware(link: Link) -> bool:
    """A card, on PCI or another bus: software links have a kind."""
    return bool(link.pci_address) or not (link.kind or link.virtual or link.is_loopback)


def has_local_parent(link: Link) -> bool:
    """With ``link_netnsid`` set, ``lower`` is an index of another namespace and names nothing here."""
    return bool(link.lower) and link.lower != link.ifindex and link.link_netnsid is None
