"""Routes through the link in the pod: the claim's, a DHCP server's and the host's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from ipaddress import IPv4Address, ip_address, ip_network

from msgspec.structs import replace

from dranet.claims.plan.addresses import IFA_F_NODAD, IFA_F_NOPREFIXROUTE, ip_of, plan_addresses
from dranet.claims.plan.inputs import PlanInput, is_ipv6
from dranet.model.facts import TABLE_MAIN, Address, Route
from dranet.model.parameters.routing import RESERVED_TABLES, SCOPE_LINK, SCOPE_UNIVERSE, RouteConfig
from dranet.model.plan import AddRoute, DhcpLease, NextHop

DHCP_METRIC = 1024
"""Metric of routes from a DHCP server, as in systemd-networkd: the pod network's default route has none (0)
and stays the preferred one, and so does what the claim itself names."""

_RTPROT_KERNEL, _RTPROT_STATIC, _RTPROT_RA, _RTPROT_DHCP = 2, 4, 9, 16
_RTN_UNICAST = 1
_RTNH_F_ONLINK = 4
_IPV6_METRIC = 1024
"""``IP6_RT_PRIO_USER``: what the kernel makes of no metric."""
_DEFAULT_DESTINATIONS = ("0.0.0.0/0", "::/0")
_DIRECT = str(IPv4Address(0))
"""As a router in option 121: the destination is on the link itself (RFC 3442)."""

_RouteKey = tuple[str, int, int]


def plan_routes(inputs: PlanInput) -> tuple[AddRoute, ...]:
    """On-link routes first, because a gateway must be reachable when its route is added; multipath last.

    The claim's routes replace those of DHCP or of the host to the same destination in the same table.
    """
    own = _configured_routes(inputs)
    taken = {(step.route.destination, step.route.table) for step in own}
    others = [*_leased_routes(inputs), *_inherited_routes(inputs, own)]
    kept = (AddRoute(route) for route in others if (route.destination, route.table) not in taken)
    return tuple(sorted((*own, *kept), key=_rank))


def _rank(step: AddRoute) -> int:
    if step.next_hops:
        return 2
    return 1 if step.route.gateway else 0


def _configured_routes(inputs: PlanInput) -> list[AddRoute]:
    return [_configured(route, inputs) for route in inputs.config.routes]


def _configured(route: RouteConfig, inputs: PlanInput) -> AddRoute:
    hops = (
        NextHop(hop.gateway, _other_link(hop.interface, inputs), hop.weight, hop.onlink)
        for hop in route.next_hops
    )
    made = Route(
        destination=route.destination,
        gateway=route.gateway or "",
        source=route.source or "",
        scope=route.scope or SCOPE_UNIVERSE,
        table=route.table or inputs.table,
        protocol=_RTPROT_STATIC,
        metric=route.metric or 0,
        flags=_RTNH_F_ONLINK if route.onlink else 0,
        mtu=route.mtu or 0,
    )
    return AddRoute(made, tuple(hops))


def _other_link(ifname: str | None, inputs: PlanInput) -> str:
    """Empty for the device's own link. Another one may be of any claim of the pod, or the pod network's."""
    return ifname if ifname and ifname != inputs.pod_ifname else ""


def _leased_routes(inputs: PlanInput) -> list[Route]:
    """Those of option 121; without it a default route through the first router (RFC 3442)."""
    lease = inputs.lease
    if lease is None:
        return []
    offered = lease.classless_routes or [("0.0.0.0/0", router) for router in lease.routers[:1]]
    pairs: dict[str, str] = {}
    for destination, router in offered:
        pairs.setdefault(destination, router)
    return [_leased(destination, router, inputs.table, _near(lease)) for destination, router in pairs.items()]


def _near(lease: DhcpLease) -> list[str]:
    """The prefixes that the lease puts on the link."""
    return [lease.address, *(to for to, router in lease.classless_routes if router == _DIRECT)]


def _leased(destination: str, router: str, table: int, near: Iterable[str]) -> Route:
    """A router outside the lease's subnet is taken to be on the link: clouds give out /32 addresses."""
    route = Route(destination, table=table, protocol=_RTPROT_DHCP, metric=DHCP_METRIC)
    if router == _DIRECT:
        return replace(route, scope=SCOPE_LINK)
    is_near = any(ip_address(router) in ip_network(prefix, strict=False) for prefix in near)
    return replace(route, gateway=router, flags=0 if is_near else _RTNH_F_ONLINK)


def _inherited_routes(inputs: PlanInput, own: Sequence[AddRoute]) -> list[Route]:
    """The host's routes that the pod can use: the kernel refuses one whose gateway it does not reach.

    A source address that the link does not have is left out.
    """
    if not inputs.inherits_routing:
        return []
    sources = {ip_of(a) for a in plan_addresses(inputs)} - _tentative(inputs)
    routes = [_portable(route, sources, inputs) for route in _iter_portable(inputs)]
    reach = _Reach(inputs, [*own, *map(AddRoute, routes)])
    found: dict[_RouteKey, Route] = {}
    for route in routes:
        if not route.gateway or route.flags & _RTNH_F_ONLINK or reach.has(route.gateway, route.table):
            found.setdefault(_key(route), route)
    return list(found.values())


def find_policy_tables(inputs: PlanInput) -> dict[tuple[int, int], bool]:
    """The tables of the host's policy routing that have routes for the pod: (IP version, table), and whether
    one of the routes is a default route."""
    tables: dict[tuple[int, int], bool] = {}
    for route in _iter_portable(inputs):
        key = 6 if is_ipv6(route.destination) else 4, route.table
        if route.table not in RESERVED_TABLES:
            tables[key] = tables.get(key, False) or route.destination in _DEFAULT_DESTINATIONS
    return tables


def _iter_portable(inputs: PlanInput) -> Iterator[Route]:
    """The host's routes that may leave it, before a look at gateways.

    Those of the main table belong to the host's addresses: they stay where the pod has others. Tables of
    policy routing come along in any case, as in DraNet, if the pod has an address of their IP version.
    """
    interface = inputs.config.interface
    versions = {is_ipv6(address.cidr) for address in plan_addresses(inputs)}
    for route in inputs.host.routes:
        has_place = not interface.has_own_addresses or (
            route.table != TABLE_MAIN and is_ipv6(route.destination) in versions
        )
        if has_place and _is_portable(route, inputs):
            yield route


def _is_portable(route: Route, inputs: PlanInput) -> bool:
    """Not the default route of the main table or of a VRF: the first is the pod network's, and links that
    share the second would each bring one. None that the kernel or a router makes by itself."""
    interface = inputs.config.interface
    is_default = route.destination in _DEFAULT_DESTINATIONS
    if (is_default and (route.table in RESERVED_TABLES or interface.vrf)) or route.next_hops:
        return False
    if is_ipv6(route.destination) and (interface.ipv6.enabled is False or inputs.ipv6_blocker):
        return False
    makes_itself = route.table == TABLE_MAIN and route.protocol in (_RTPROT_KERNEL, _RTPROT_RA)
    return route.type == _RTN_UNICAST and not makes_itself


def _portable(route: Route, sources: set[str], inputs: PlanInput) -> Route:
    """Without what is true on the host alone: the index, link-state flags, another link's address.

    A VRF has one table, which is then that of all its routes.
    """
    source = route.source if route.source in sources else ""
    table = inputs.table if inputs.config.interface.vrf else route.table
    return replace(route, ifindex=0, source=source, table=table, flags=route.flags & _RTNH_F_ONLINK)


class _Reach:
    """Which gateways the kernel finds directly on the link, by its addresses and on-link routes."""

    def __init__(self, inputs: PlanInput, steps: Iterable[AddRoute]) -> None:
        addresses = plan_addresses(inputs)
        self.subnets = ", ".join(_subnet(address) for address in addresses)
        self._own = {ip_address(ip_of(address)) for address in addresses}
        prefixes = [(_subnet(a), inputs.table) for a in addresses if not a.flags & IFA_F_NOPREFIXROUTE]
        prefixes += [(s.route.destination, s.route.table) for s in steps if _rank(s) == 0]
        self._networks = [(ip_network(prefix, strict=False), table) for prefix, table in prefixes]
        self._table = inputs.table

    def has(self, gateway: str, table: int) -> bool:
        """Looked up in the route's own table, then as any packet of the link is."""
        address = ip_address(gateway)
        if address in self._own:
            return False
        if address.version == 6 and address.is_link_local:
            return True
        return any(address in network for network, where in self._networks if where in (table, self._table))


def _subnet(address: Address) -> str:
    return address.peer or address.cidr


def check_routes(inputs: PlanInput) -> Iterator[str]:
    """What the kernel would refuse when the pod starts. Problems read "<field path>: ..."."""
    reach = _Reach(inputs, plan_routes(inputs))
    yield from _check_repetitions(inputs)
    for index, (route, step) in enumerate(zip(inputs.config.routes, _configured_routes(inputs), strict=True)):
        path = f"routes[{index}]"
        yield from _check_gateways(path, route, step, reach)
        yield from _check_source(path, route, inputs)
        if is_ipv6(route.destination) and inputs.ipv6_blocker:
            yield f"{path}.destination: {inputs.ipv6_blocker}"


def _check_repetitions(inputs: PlanInput) -> Iterator[str]:
    seen: dict[_RouteKey, int] = {}
    for index, step in enumerate(_configured_routes(inputs)):
        first = seen.setdefault(_key(step.route), index)
        if first != index:
            yield (
                f"routes[{index}]: has the destination, table and metric of routes[{first}]; give it another "
                "metric, or use nextHops"
            )


def _key(route: Route) -> _RouteKey:
    """Return what distinguishes routes for the kernel."""
    metric = route.metric or (_IPV6_METRIC if is_ipv6(route.destination) else 0)
    return route.destination, route.table, metric


def _check_gateways(path: str, route: RouteConfig, step: AddRoute, reach: _Reach) -> Iterator[str]:
    gateways = [(f"{path}.gateway", route.gateway)] if route.gateway and not route.onlink else []
    gateways += [
        (f"{path}.nextHops[{index}].gateway", hop.gateway)
        for index, hop in enumerate(step.next_hops)
        if not hop.onlink and not hop.ifname
    ]
    for where, gateway in gateways:
        if not reach.has(gateway, step.route.table):
            near = f"({reach.subnets})" if reach.subnets else "(it has no address)"
            yield (
                f"{where}: {gateway} is not a neighbour by any address of the interface {near}; add an "
                "address or a route with scope 253 for it, or set onlink"
            )


def _check_source(path: str, route: RouteConfig, inputs: PlanInput) -> Iterator[str]:
    """The kernel refuses a route whose IPv6 source is still being checked for duplicates."""
    if route.source in _tentative(inputs):
        yield (
            f"{path}.source: {route.source} is not usable while the kernel looks for duplicates of it; leave "
            "interface.ipv6.duplicateAddressDetection out"
        )


def _tentative(inputs: PlanInput) -> set[str]:
    """IPv6 addresses that the kernel checks for duplicates first."""
    return {ip_of(a) for a in plan_addresses(inputs) if is_ipv6(a.cidr) and not a.flags & IFA_F_NODAD}
