"""Addresses, routes, rules and neighbours in the pod: the claim's, a DHCP server's and the host's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface, ip_network

from msgspec.structs import replace

from dranet.claims.plan.inputs import PlanInput, is_ipv6
from dranet.model.facts import (
    IFA_F_DADFAILED,
    IFA_F_MANAGETEMPADDR,
    IFA_F_NODAD,
    IFA_F_NOPREFIXROUTE,
    IFA_F_TEMPORARY,
    RTNH_F_ONLINK,
    TABLE_MAIN,
    Address,
    Neighbour,
    Route,
)
from dranet.model.ipam import IpamRoute
from dranet.model.parameters.interface import (
    RESERVED_TABLES,
    SCOPE_LINK,
    SCOPE_UNIVERSE,
    RouteConfig,
    RuleConfig,
)
from dranet.model.plan import AddNeighbour, AddRoute, AddRule, DhcpLease, NextHop

_KEPT_ADDRESS_FLAGS = IFA_F_NODAD | IFA_F_MANAGETEMPADDR | IFA_F_NOPREFIXROUTE
"""The flags that a user sets; the others are state that the kernel will establish again."""

_SLAAC_PREFIX_LENGTH = 64
_ETHERNET_MAC_BYTES = 6

_LEASE_FOR_EVER = 0xFFFFFFFF
"""RFC 2131, section 3.3."""


def plan_addresses(inputs: PlanInput) -> tuple[Address, ...]:
    """In the order in which they are added: the first IPv4 address of a subnet is the primary one.

    IPv6 addresses are usable at once (``IFA_F_NODAD``) unless the claim wants those it names to be checked:
    their owner has assigned them, and a pod would wait a second for each check.
    """
    interface = inputs.config.interface
    if interface.dhcp:
        return (_leased_address(inputs.lease),) if inputs.lease else ()
    cidrs = inputs.ipam.addresses if inputs.ipam else interface.addresses
    if cidrs is not None:
        no_dad = 0 if interface.ipv6.duplicate_address_detection else IFA_F_NODAD
        return tuple(Address(cidr, flags=no_dad if is_ipv6(cidr) else 0) for cidr in cidrs)
    inherited = (a for a in inputs.host.addresses if inputs.moves and _is_inheritable(a, inputs))
    return tuple(_inherited(address, inputs) for address in inherited)


def _leased_address(lease: DhcpLease) -> Address:
    """Valid for the time of the lease, so that the kernel drops an address that is not renewed."""
    seconds = None if lease.lease_seconds >= _LEASE_FOR_EVER else lease.lease_seconds
    return Address(lease.address, valid_seconds=seconds, preferred_seconds=seconds)


def _is_inheritable(address: Address, inputs: PlanInput) -> bool:
    """Global and in use. Privacy addresses are left out: the kernel makes new ones in the pod."""
    if is_ipv6(address.cidr):
        is_switched_off = inputs.config.interface.ipv6.enabled is False
        if is_switched_off or address.flags & (IFA_F_TEMPORARY | IFA_F_DADFAILED):
            return False
    return address.scope == SCOPE_UNIVERSE


def _inherited(address: Address, inputs: PlanInput) -> Address:
    """Without its label, which repeats the host's name, without a search for duplicates of it, and permanent:
    the host's DHCP client or daemon that renewed it cannot follow it into the pod."""
    no_dad = IFA_F_NODAD if is_ipv6(address.cidr) else 0
    kept = replace(address, label="", flags=address.flags & _KEPT_ADDRESS_FLAGS | no_dad)
    if _is_renewed_in_pod(address, inputs):
        return kept
    return replace(kept, valid_seconds=None, preferred_seconds=None)


def _is_renewed_in_pod(address: Address, inputs: PlanInput) -> bool:
    """Whether the pod's kernel renews it by itself, from router advertisements (RFC 4862).

    The kernel marks addresses that it makes of these with ``IFA_F_MANAGETEMPADDR`` (``addrconf_prefix_rcv``).
    In the pod it makes them of the hardware address (``addr_gen_mode`` is 0 in a new namespace), and renews
    only an address that it would make. Whether the link listens to routers is read when it is in the pod
    (``kernel.attachment.steps``).
    """
    interface = inputs.config.interface
    mac = interface.hardware_addr or inputs.host.mac
    return (
        is_ipv6(address.cidr)
        and bool(address.flags & IFA_F_MANAGETEMPADDR)
        and interface.ipv6.token is None
        and interface.ipv6.accept_ra != 0
        and _is_made_from(mac, address)
    )


def _is_made_from(mac: str, address: Address) -> bool:
    """Whether the address has the modified EUI-64 of a hardware address (RFC 4291, appendix A)."""
    raw = bytes.fromhex(mac.replace(":", ""))
    local = ip_interface(address.cidr)
    if len(raw) != _ETHERNET_MAC_BYTES or local.network.prefixlen != _SLAAC_PREFIX_LENGTH:
        return False
    identifier = bytes([raw[0] ^ 0x02]) + raw[1:3] + b"\xff\xfe" + raw[3:]
    return IPv6Address(address.cidr.partition("/")[0]).packed[8:] == identifier


def check_addresses(inputs: PlanInput) -> Iterator[str]:
    """The kernel has an IPv6 address once on a link, whatever its prefix length. "<field path>: ..."."""
    seen: set[str] = set()
    for index, cidr in enumerate(inputs.config.interface.addresses or ()):
        address = cidr.partition("/")[0]
        if is_ipv6(cidr) and address in seen:
            yield f"interface.addresses[{index}]: {address} is named twice, with different prefix lengths"
        seen.add(address)
    if inputs.ipam and any(map(is_ipv6, inputs.ipam.addresses)):
        is_off = inputs.config.interface.ipv6.enabled is False
        why = "interface.ipv6.enabled is false" if is_off else inputs.ipv6_blocker
        if why:
            yield f"interface.ipam: {inputs.ipam.name} gives IPv6 addresses, and {why}"


def ip_of(address: Address) -> str:
    return str(ip_interface(address.cidr).ip)


DHCP_METRIC = 1024
"""Metric of routes from a DHCP server, and of default routes from IPAM, as in systemd-networkd: the pod
network's default route has none (0) and stays the preferred one, and so does what the claim itself names."""

_RTPROT_KERNEL, _RTPROT_STATIC, _RTPROT_RA, _RTPROT_DHCP = 2, 4, 9, 16
_RTN_UNICAST = 1
_IPV6_METRIC = 1024
"""``IP6_RT_PRIO_USER``: what the kernel makes of no metric."""
_DEFAULT_DESTINATIONS = ("0.0.0.0/0", "::/0")
_DIRECT = str(IPv4Address(0))
"""As a router in option 121: the destination is on the link itself (RFC 3442)."""

_RouteKey = tuple[str, int, int]


def plan_routes(inputs: PlanInput) -> tuple[AddRoute, ...]:
    """On-link routes first, because a gateway must be reachable when its route is added; multipath last.

    The claim's routes replace those of DHCP, IPAM or the host to the same destination in the same table.
    """
    own = _configured_routes(inputs)
    taken = {(step.route.destination, step.route.table) for step in own}
    others = [*_leased_routes(inputs), *_ipam_routes(inputs), *_inherited_routes(inputs, own)]
    kept = (AddRoute(route) for route in others if (route.destination, route.table) not in taken)
    return tuple(sorted((*own, *kept), key=_rank))


def _rank(step: AddRoute) -> int:
    if step.next_hops:
        return 2
    return 1 if step.route.gateway else 0


def _configured_routes(inputs: PlanInput) -> list[AddRoute]:
    return [_configured(route, inputs) for route in inputs.config.routes]


def _configured(route: RouteConfig, inputs: PlanInput) -> AddRoute:
    """A next hop by another link may be of any claim of the pod, or the pod network's."""
    own = (None, "", inputs.pod_ifname)
    hops = (
        NextHop(hop.gateway, "" if hop.interface in own else hop.interface or "", hop.weight, hop.onlink)
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
        flags=RTNH_F_ONLINK if route.onlink else 0,
        mtu=route.mtu or 0,
    )
    return AddRoute(made, tuple(hops))


def _leased_routes(inputs: PlanInput) -> list[Route]:
    """Those of option 121; without it a default route through the first router (RFC 3442)."""
    lease = inputs.lease
    if lease is None:
        return []
    offered = lease.classless_routes or [("0.0.0.0/0", router) for router in lease.routers[:1]]
    routers: dict[str, str] = {}
    for destination, router in offered:
        routers.setdefault(destination, router)
    near = [lease.address, *(to for to, router in lease.classless_routes if router == _DIRECT)]
    return [_leased(destination, router, inputs.table, near) for destination, router in routers.items()]


def _leased(destination: str, router: str, table: int, near: Iterable[str]) -> Route:
    """A router outside the lease's subnet is taken to be on the link: clouds give out /32 addresses."""
    route = Route(destination, table=table, protocol=_RTPROT_DHCP, metric=DHCP_METRIC)
    if router == _DIRECT:
        return replace(route, scope=SCOPE_LINK)
    is_near = any(ip_address(router) in ip_network(prefix, strict=False) for prefix in near)
    return replace(route, gateway=router, flags=0 if is_near else RTNH_F_ONLINK)


def _ipam_routes(inputs: PlanInput) -> list[Route]:
    """As the source gives them; one to the same destination in the same table comes once."""
    if inputs.ipam is None:
        return []
    near = [*inputs.ipam.addresses, *(r.destination for r in inputs.ipam.routes if not r.gateway)]
    routes = [_route_of_ipam(route, inputs, near) for route in inputs.ipam.routes]
    return list({_key(route): route for route in reversed(routes)}.values())[::-1]


def _route_of_ipam(route: IpamRoute, inputs: PlanInput, near: Iterable[str]) -> Route:
    """A gateway outside the addresses' subnets is taken to be on the link."""
    metric = DHCP_METRIC if route.destination in _DEFAULT_DESTINATIONS else 0
    made = Route(
        route.destination,
        table=inputs.table if inputs.config.interface.vrf else route.table or inputs.table,
        protocol=_RTPROT_STATIC,
        metric=metric if route.metric is None else route.metric,
        mtu=route.mtu or 0,
    )
    if not route.gateway:
        return replace(made, scope=SCOPE_LINK)
    gateway = ip_address(route.gateway)
    is_near = gateway.is_link_local or any(gateway in ip_network(prefix, strict=False) for prefix in near)
    return replace(made, gateway=route.gateway, flags=0 if is_near else RTNH_F_ONLINK)


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
        if not route.gateway or route.flags & RTNH_F_ONLINK or reach.has(route.gateway, route.table):
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
    return replace(route, ifindex=0, source=source, table=table, flags=route.flags & RTNH_F_ONLINK)


class _Reach:
    """Which gateways the kernel finds directly on the link, by its addresses and on-link routes."""

    def __init__(self, inputs: PlanInput, steps: Iterable[AddRoute]) -> None:
        addresses = plan_addresses(inputs)
        self.subnets = ", ".join(a.peer or a.cidr for a in addresses)
        self._own = {ip_address(ip_of(address)) for address in addresses}
        prefixes = [(a.peer or a.cidr, inputs.table) for a in addresses if not a.flags & IFA_F_NOPREFIXROUTE]
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


def check_routes(inputs: PlanInput) -> Iterator[str]:
    """What the kernel would refuse when the pod starts. Problems read "<field path>: ..."."""
    reach = _Reach(inputs, plan_routes(inputs))
    yield from _check_repetitions(inputs)
    for index, (route, step) in enumerate(zip(inputs.config.routes, _configured_routes(inputs), strict=True)):
        path = f"routes[{index}]"
        yield from _check_gateways(path, route, step, reach)
        if route.source in _tentative(inputs):  # the kernel refuses such a source
            yield (
                f"{path}.source: {route.source} is not usable while the kernel looks for duplicates of it; "
                "leave interface.ipv6.duplicateAddressDetection out"
            )
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
                f"{where}: {gateway} is not a neighbor by any address of the interface {near}; add an "
                "address or a route with scope 253 for it, or set onlink"
            )


def _tentative(inputs: PlanInput) -> set[str]:
    """IPv6 addresses that the kernel checks for duplicates first."""
    return {ip_of(a) for a in plan_addresses(inputs) if is_ipv6(a.cidr) and not a.flags & IFA_F_NODAD}


def plan_rules(inputs: PlanInput) -> tuple[AddRule, ...]:
    """One step for each rule and IP version, without repetitions."""
    own = (_rule(rule, version) for rule in inputs.config.rules for version in rule.families)
    steps = (*own, *_iter_inherited(inputs))
    return tuple(dict.fromkeys(step for step in steps if step.family == 4 or inputs.node_has_ipv6))


def _rule(rule: RuleConfig, version: int) -> AddRule:
    return AddRule(
        family=6 if version == 6 else 4,
        table=rule.table or TABLE_MAIN,
        priority=rule.priority or 0,
        source=rule.source or "",
        destination=rule.destination or "",
        mark=rule.mark,
        mask=rule.mask,
        input_interface=rule.input_interface or "",
        output_interface=rule.output_interface or "",
    )


def _iter_inherited(inputs: PlanInput) -> Iterator[AddRule]:
    """The host's rules that are about the link: that look up a table which comes along with it, or are for
    packets from an address of the pod, or that come in or go out here. A VRF brings its own."""
    if not inputs.inherits_routing or inputs.config.interface.vrf:
        return
    tables = find_policy_tables(inputs)
    sources = {ip_network(ip_of(address)) for address in plan_addresses(inputs)}
    for rule in inputs.host_rules:
        is_about_link = (
            (rule.family, rule.table) in tables
            or (rule.source and ip_network(rule.source) in sources)
            or inputs.host.ifname in (rule.input_interface, rule.output_interface)
        )
        is_for_all = not (rule.source or rule.destination or rule.input_interface or rule.output_interface)
        # With a default route in its table, such a rule would take all packets from the pod network.
        takes_all = is_for_all and tables.get((rule.family, rule.table), False)
        if is_about_link and not takes_all and _may_travel(rule, inputs):
            names = {inputs.host.ifname: inputs.pod_ifname}
            yield replace(
                rule,
                input_interface=names.get(rule.input_interface, rule.input_interface),
                output_interface=names.get(rule.output_interface, rule.output_interface),
            )


def _may_travel(rule: AddRule, inputs: PlanInput) -> bool:
    """Not with a firewall mark, which network plugins of the node give; not about another of its links."""
    if rule.family == 6 and inputs.config.interface.ipv6.enabled is False:
        return False
    links = {rule.input_interface, rule.output_interface} - {"", "lo"}  # lo: what the namespace sends itself
    return rule.mark is None and links <= {inputs.host.ifname}


def check_rules(inputs: PlanInput) -> Iterator[str]:
    """Rules for an IP version that the node lacks. Problems read "<field path>: ..."."""
    for index, rule in enumerate(inputs.config.rules):
        if rule.families == (6,) and not inputs.node_has_ipv6:
            yield f"rules[{index}]: the node has no IPv6"


def plan_neighbours(inputs: PlanInput) -> tuple[AddNeighbour, ...]:
    """The neighbours that the claim names, and the permanent ones of the host at other addresses."""
    own = [Neighbour(n.destination, n.hardware_addr) for n in inputs.config.neighbors]
    taken = {ip_address(neighbour.address) for neighbour in own}
    others = (
        n for n in inputs.host.neighbours if ip_address(n.address) not in taken and _is_usable(n, inputs)
    )
    return tuple(map(AddNeighbour, (*own, *others)))


def _is_usable(neighbour: Neighbour, inputs: PlanInput) -> bool:
    """Addresses that the link answers for (``proxy``) stay: the host forwards for them."""
    has_no_ipv6 = inputs.config.interface.ipv6.enabled is False or inputs.ipv6_blocker
    return (
        inputs.inherits_routing and not neighbour.proxy and not (is_ipv6(neighbour.address) and has_no_ipv6)
    )


def check_neighbours(inputs: PlanInput) -> Iterator[str]:
    """Yield hardware addresses of another link layer, and IPv6 neighbours without IPv6: "<field path>:
    ..."."""
    for index, neighbour in enumerate(inputs.config.neighbors):
        path, mac = f"neighbors[{index}]", inputs.host.mac
        if mac and len(neighbour.hardware_addr) != len(mac):
            yield f"{path}.hardwareAddr: the device has hardware addresses like {mac}"
        if is_ipv6(neighbour.destination) and inputs.ipv6_blocker:
            yield f"{path}.destination: {inputs.ipv6_blocker}"
