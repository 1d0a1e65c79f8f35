"""Addresses by arithmetic: a subnet for each rail, a number for each node, a slot for each user of a device.

There is no server, no lease and no state: two drivers that read the same entry of ``ipam_file`` never give
one address to two nodes, because an address is its subnet's base plus ``offset + number * addressesPerNode +
slot``. What would overlap is refused when the file is read, as far as the file alone shows it; what only a
node shows (its number, its devices) is refused when a claim is prepared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from itertools import combinations
from typing import Any

from msgspec import Struct

from dranet.cel import CelError, DeviceExpression
from dranet.errors import ClaimError, Reason
from dranet.model.attributes import DOMAIN, SRIOV_VF_INDEX, is_qualified_name
from dranet.model.device import Device
from dranet.model.ipam_answer import IpamAnswer, IpamProblem, IpamRoute, PoolNode

Network = IPv4Network | IPv6Network
IpAddress = IPv4Address | IPv6Address

RAIL_ATTRIBUTE = f"{DOMAIN}/rail"
SOURCE = "pool"
ROUTE_METRIC = 1024
"""With the rail added: the kernel takes one route of a metric to a destination, and a pod may have a gateway
on each rail. The pod network's own routes stay preferred."""
MOST_RAILS = 256
MOST_NAMES = 65536
_MOST_ADDRESSES_PER_NODE = 4096
_RAIL = "{rail}"
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_RANGE = re.compile(r"\[([0-9]+)-([0-9]+)\]")
_MOST_DIGITS = 9
_POINT_TO_POINT = {4: 31, 6: 127}


class Numbering(Struct, frozen=True):
    """How a node gets its number; one of ``pattern``, ``within`` and ``names`` is there."""

    pattern: re.Pattern[str] | None = None
    within: Network | None = None
    names: Mapping[str, int] | None = None
    maximum: int | None = None
    """The largest number, where the file shows it."""

    def find(self, node: PoolNode) -> int:
        """Raises ValueError, with the cause, for a node that has no number."""
        number = self._find(node)
        if self.maximum is not None and number > self.maximum:
            raise ValueError(f"node {node.name} is number {number}, and nodes.max is {self.maximum}")
        return number

    def _find(self, node: PoolNode) -> int:
        if self.names is not None:
            if node.name not in self.names:
                raise ValueError(f"node {node.name} is not among nodes.names")
            return self.names[node.name]
        if self.pattern is not None:
            match = self.pattern.fullmatch(node.name)
            if match is None:
                raise ValueError(f"node {node.name} does not match nodes.pattern {self.pattern.pattern}")
            if not (match[1] or "").isascii() or not (match[1] or "").isdigit():
                raise ValueError(
                    f"node {node.name}: the group of nodes.pattern is {match[1]!r}, not a number"
                )
            return int(match[1])
        assert self.within is not None
        inside = [address for address in map(ip_address, node.addresses) if address in self.within]
        if len(inside) != 1:
            found = ", ".join(node.addresses) or "none known yet"
            raise ValueError(
                f"node {node.name} has {len(inside)} addresses within nodes.addressIn {self.within} ({found})"
            )
        return int(inside[0]) - int(self.within.network_address)


class Rail(Struct, frozen=True):
    number: int
    subnets: tuple[Network, ...]
    """At most one of each IP version."""
    gateways: tuple[IpAddress | None, ...]
    """For each subnet; point-to-point rails have one for each node instead."""
    match: DeviceExpression | None = None
    pci_address: str = ""


class AddressPool(Struct, frozen=True):
    rails: tuple[Rail, ...]
    nodes: Numbering
    attribute: str = ""
    """The attribute that has a device's rail; empty where the rails choose their devices."""
    offset: int = 0
    addresses_per_node: int = 1
    point_to_point: bool = False
    """Each node has a subnet of two addresses on each rail: a gateway and its own."""
    node_is_first: bool = False
    """Whether the node has the first of the two addresses."""
    has_gateway: bool = False
    routes: tuple[Network, ...] = ()
    routes_to_rails: bool = False

    # --- what a claim gets ---

    def find_rail(self, device: Device) -> Rail:
        """Raises ClaimError for a device of no rail, or of several."""
        if self.attribute:
            value = device.attributes.get(self.attribute)
            found = [rail for rail in self.rails if value == rail.number and not isinstance(value, bool)]
            why = f"{self.attribute} is {value}" if value is not None else f"it has no {self.attribute}"
        else:
            found, why = [rail for rail in self.rails if _is_of(device, rail)], "see rails of the pool"
        if len(found) == 1:
            return found[0]
        numbers = ", ".join(str(rail.number) for rail in found) or "none"
        raise _refusal(
            f"device {device.name} has to be of one rail, and is of {numbers}: {why}",
            f"rails are {self.rails[0].number} to {self.rails[-1].number}; correct rails in ipam_file",
        )

    def find_slots(self, device: Device, *, is_share: bool) -> range:
        """The slots that a device may have: a share of it any, a virtual function the one of its number."""
        if is_share:
            return range(self.addresses_per_node)
        index = device.attributes.get(SRIOV_VF_INDEX.qualified)
        slot = index + 1 if isinstance(index, int) else 0
        if slot >= self.addresses_per_node:
            raise _refusal(
                f"device {device.name} is virtual function {index}, which has slot {slot}, and "
                f"addressesPerNode is {self.addresses_per_node}",
                f"set addressesPerNode to at least {slot + 1}",
            )
        return range(slot, slot + 1)

    def build_answer(self, name: str, rail: Rail, number: int, slot: int) -> IpamAnswer:
        """Raises ClaimError for an address that the subnet does not have."""
        try:
            pairs = tuple(self.iter_addresses(rail, number, slot))
        except ValueError as error:
            raise _refusal(
                f"{name}: {error}", "make the subnet larger, or correct nodes or offset"
            ) from error
        gateways = tuple(str(gateway or "") for _, gateway in pairs)
        return IpamAnswer(
            name,
            SOURCE,
            "",
            tuple(cidr for cidr, _ in pairs),
            gateways,
            tuple(self._routes(rail, [gateway for _, gateway in pairs if gateway])),
        )

    def iter_addresses(self, rail: Rail, number: int, slot: int) -> Iterator[tuple[str, IpAddress | None]]:
        """Address with prefix length, and gateway. Raises ValueError."""
        for subnet, gateway in zip(rail.subnets, rail.gateways, strict=True):
            if self.point_to_point:
                yield self._pair(subnet, number)
                continue
            host = self.offset + number * self.addresses_per_node + slot
            address = _pick(subnet, host, f"node number {number}")
            if address == gateway:
                raise ValueError(f"node number {number} gets {address}, which is the gateway of {subnet}")
            yield f"{address}/{subnet.prefixlen}", gateway

    def _pair(self, subnet: Network, number: int) -> tuple[str, IpAddress | None]:
        index = self.offset + number
        if 2 * index + 1 >= subnet.num_addresses:
            raise ValueError(f"node number {number} needs pair {index} of {subnet}, which is outside it")
        first = subnet.network_address + 2 * index
        own, other = (first, first + 1) if self.node_is_first else (first + 1, first)
        length = _POINT_TO_POINT[subnet.version]
        return f"{own}/{length}", other if self.has_gateway else None

    def _routes(self, rail: Rail, gateways: Sequence[IpAddress]) -> Iterator[IpamRoute]:
        # A point-to-point link has only the switch on it: the peers of its own rail are also behind that.
        behind = [other for other in self.rails if self.point_to_point or other is not rail]
        subnets = [subnet for other in behind for subnet in other.subnets]
        destinations = [*(subnets if self.routes_to_rails else ()), *self.routes]
        for gateway in gateways:
            for destination in destinations:
                if destination.version == gateway.version:
                    yield IpamRoute(str(destination), str(gateway), metric=ROUTE_METRIC + rail.number)


def _is_of(device: Device, rail: Rail) -> bool:
    """Raises ClaimError where the rail's expression fails on the device."""
    if rail.match is None:
        return rail.pci_address in (device.pci_address, device.physical_function)
    try:
        return rail.match.matches(device.attributes)
    except CelError as error:
        raise _refusal(
            f"device {device.name}: match of rail {rail.number}: {error.message}",
            "test for the attribute before it is used",
        ) from error


def _refusal(text: str, hint: str) -> ClaimError:
    return ClaimError(f"interface.ipam: {text}", hint=hint, reason=Reason.INVALID_CONFIG)


def _pick(subnet: Network, host: int, what: str) -> IpAddress:
    """The host's address. Raises ValueError for the network's own address, for broadcast and outside it."""
    address = subnet.network_address + host if 0 <= host < subnet.num_addresses else None
    if address is None:
        raise ValueError(f"{what} needs host {host} of {subnet}, which has {subnet.num_addresses} addresses")
    is_reserved = subnet.num_addresses > 2 and (
        host == 0 or (subnet.version == 4 and host == subnet.num_addresses - 1)
    )
    if is_reserved:
        raise ValueError(f"{what} gets {address}, which no host of {subnet} may have; set offset")
    return address


# --- the file ---

_KEYS = (
    "rails",
    "subnets",
    "nodes",
    "gateway",
    "routes",
    "offset",
    "addressesPerNode",
    "pointToPoint",
)


def parse_pool(_name: str, value: object, driver: str) -> AddressPool:
    """The value of ``pool``; ``driver`` is ``device.driver`` of its expressions. Raises IpamProblem, and
    CelError where there is an expression and no engine."""
    fields = _mapping(value, _KEYS)
    for key in ("rails", "nodes"):
        if key not in fields:
            raise IpamProblem("is required", key)
    offset = _integer(fields.get("offset", 0), 0, 2**64, "offset")
    per_node = _integer(fields.get("addressesPerNode", 1), 1, _MOST_ADDRESSES_PER_NODE, "addressesPerNode")
    is_pair = _boolean(fields.get("pointToPoint", False), "pointToPoint")
    gateway = fields.get("gateway")
    if is_pair and per_node != 1:
        raise IpamProblem(
            "must be absent with pointToPoint: such a subnet has one address", "addressesPerNode"
        )
    if is_pair and gateway not in (None, "first", "last"):
        raise IpamProblem("must be first or last with pointToPoint", "gateway")
    attribute, rails = _rails(fields, driver, None if is_pair else gateway)
    to_rails, routes = _routes_of(fields.get("routes"))
    if (to_rails or routes) and gateway is None:
        raise IpamProblem("is required for routes", "gateway")
    pool = AddressPool(
        rails,
        _numbering(fields["nodes"]),
        attribute,
        offset,
        per_node,
        is_pair,
        gateway == "last",
        gateway is not None,
        routes,
        to_rails,
    )
    _check(pool)
    return pool


def _check(pool: AddressPool) -> None:
    """What the file alone shows to collide."""
    numbered = [(rail.number, subnet) for rail in pool.rails for subnet in rail.subnets]
    for (one, a), (other, b) in combinations(numbered, 2):
        if a.version == b.version and _overlap(a, b):
            raise IpamProblem(f"rail {one} has {a} and rail {other} has {b}, which overlap", "subnets")
    maximum = pool.nodes.maximum
    if maximum is None:
        return
    smallest = min(pool.nodes.names.values()) if pool.nodes.names else None
    ends = [(maximum, pool.addresses_per_node - 1)]
    ends += [(smallest, 0)] if smallest is not None else []
    is_list = pool.nodes.names is not None
    for rail in pool.rails:
        for number, slot in ends:
            try:
                tuple(pool.iter_addresses(rail, number, slot))
            except ValueError as error:
                if is_list or "which has" in str(error) or "outside" in str(error):
                    raise IpamProblem(f"rail {rail.number}: {error}", "nodes") from None
        if is_list:
            _check_gateway(pool, rail)


def _check_gateway(pool: AddressPool, rail: Rail) -> None:
    """No node of the list may get the gateway's address."""
    for subnet, gateway in zip(rail.subnets, rail.gateways, strict=True):
        if gateway is None or pool.nodes.names is None:
            continue
        host = int(gateway) - int(subnet.network_address) - pool.offset
        number = host // pool.addresses_per_node
        if host >= 0 and number in pool.nodes.names.values():
            raise IpamProblem(
                f"rail {rail.number}: node number {number} gets {gateway}, which is the gateway; set offset",
                "nodes",
            )


def _overlap(a: Network, b: Network) -> bool:
    return int(a.network_address) <= int(b.broadcast_address) and int(b.network_address) <= int(
        a.broadcast_address
    )


def _rails(fields: Mapping[str, Any], driver: str, gateway: object) -> tuple[str, tuple[Rail, ...]]:
    value = fields["rails"]
    make = _subnet_maker(fields.get("subnets"))
    if not isinstance(value, list):
        return _counted_rails(value, make, gateway)
    if not 1 <= len(value) <= MOST_RAILS:
        raise IpamProblem(f"must be 1 to {MOST_RAILS} rails", "rails")
    rails = tuple(_rail(index, entry, make, driver, gateway) for index, entry in enumerate(value))
    seen: dict[str, int] = {}
    for rail in rails:
        if rail.pci_address and seen.setdefault(rail.pci_address, rail.number) != rail.number:
            raise IpamProblem(
                f"{rail.pci_address} is rail {seen[rail.pci_address]} and {rail.number}", "rails"
            )
    return "", rails


SubnetMaker = Callable[[int, int], tuple[Network, ...]]
"""The subnets of a rail by its number and its position."""


def _counted_rails(value: object, make: SubnetMaker, gateway: object) -> tuple[str, tuple[Rail, ...]]:
    fields = {"count": value} if isinstance(value, int) else value
    if not isinstance(fields, dict):
        raise IpamProblem("must be a number of rails, a mapping with count, or a list of rails", "rails")
    known = _mapping(fields, ("count", "first", "attribute"), "rails")
    count = _integer(known.get("count"), 1, MOST_RAILS, "rails", "count")
    first = _integer(known.get("first", 0), 0, 65535, "rails", "first")
    attribute = known.get("attribute", RAIL_ATTRIBUTE)
    if not isinstance(attribute, str) or not is_qualified_name(attribute):
        raise IpamProblem("must be the qualified name of an attribute, dra.net/rail", "rails", "attribute")
    return attribute, tuple(
        _build_rail(first + index, make(first + index, index), gateway) for index in range(count)
    )


def _rail(index: int, entry: object, make: SubnetMaker, driver: str, gateway: object) -> Rail:
    path = ("rails", str(index))
    if isinstance(entry, str):
        entry = {"pciAddress": entry}
    known = _mapping(entry, ("match", "pciAddress", "subnets"), *path)
    if len(known.keys() & {"match", "pciAddress"}) != 1:
        raise IpamProblem("must have match (CEL) or pciAddress", *path)
    subnets = _explicit(known["subnets"], (*path, "subnets")) if "subnets" in known else make(index, index)
    rail = _build_rail(index, subnets, gateway)
    if "match" in known:
        return Rail(index, rail.subnets, rail.gateways, match=_expression(known["match"], driver, path))
    address = known["pciAddress"]
    if not isinstance(address, str) or not _PCI_ADDRESS.fullmatch(address):
        raise IpamProblem("must be a PCI address such as 0000:1a:00.0, in quotes", *path)
    return Rail(index, rail.subnets, rail.gateways, pci_address=address)


def _expression(value: object, driver: str, path: tuple[str, ...]) -> DeviceExpression:
    if not isinstance(value, str) or not value.strip():
        raise IpamProblem("must be a CEL expression", *path, "match")
    try:
        return DeviceExpression(value, driver)
    except CelError as error:
        if error.reason is Reason.MISSING_FEATURE:
            raise
        raise IpamProblem(error.message, *path, "match") from None


def _build_rail(number: int, subnets: tuple[Network, ...], gateway: object) -> Rail:
    versions = [subnet.version for subnet in subnets]
    if not subnets or len(set(versions)) != len(versions):
        raise IpamProblem(
            f"rail {number} needs one subnet, or one of IPv4 and one of IPv6; it has {len(subnets)}",
            "subnets",
        )
    return Rail(number, subnets, tuple(_gateway(gateway, number, subnet) for subnet in subnets))


def _gateway(value: object, rail: int, subnet: Network) -> IpAddress | None:
    if value is None:
        return None
    if value in ("first", "last"):
        if subnet.num_addresses <= 2:
            raise IpamProblem(f"{subnet} has no room for a gateway; set pointToPoint", "gateway")
        before_last = 2 if subnet.version == 4 else 1
        return subnet.network_address + (1 if value == "first" else subnet.num_addresses - before_last)
    texts = value if isinstance(value, list) else [value]
    addresses = [_address(text, rail) for text in texts]
    found = [address for address in addresses if address.version == subnet.version]
    if len(found) > 1 or any(address not in subnet for address in found):
        raise IpamProblem(f"rail {rail}: must be one address inside {subnet}", "gateway")
    return found[0] if found else None


def _address(text: object, rail: int) -> IpAddress:
    try:
        return ip_address(str(text).replace(_RAIL, str(rail)))
    except ValueError:
        raise IpamProblem("must be first, last, or an address, which may have {rail}", "gateway") from None


def _subnet_maker(value: object) -> SubnetMaker:
    """Subnets are texts with ``{rail}``, or a large one that is split: the n-th rail has the n-th part."""
    entries = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(entry, str | dict) for entry in entries):
        raise IpamProblem("must be a list of subnets", "subnets")

    def make(number: int, position: int) -> tuple[Network, ...]:
        return tuple(
            _part(entry, position) if isinstance(entry, dict) else _filled(str(entry), number)
            for entry in entries
        )

    return make


def _filled(text: str, number: int) -> Network:
    return _network(text.replace(_RAIL, str(number)), "subnets")


def _part(entry: object, position: int) -> Network:
    known = _mapping(entry, ("from", "prefixLength"), "subnets")
    whole = _network(known.get("from"), "subnets", "from")
    length = _integer(
        known.get("prefixLength"), whole.prefixlen, whole.max_prefixlen, "subnets", "prefixLength"
    )
    size = 1 << (whole.max_prefixlen - length)
    if (position + 1) * size > whole.num_addresses:
        raise IpamProblem(f"{whole} has no {position + 1} subnets of /{length}", "subnets")
    base = whole.network_address + position * size
    return ip_network(f"{base}/{length}")


def _explicit(value: object, path: tuple[str, ...]) -> tuple[Network, ...]:
    texts = value if isinstance(value, list) else [value]
    return tuple(_network(text, *path) for text in texts)


def _network(value: object, *path: str) -> Network:
    if not isinstance(value, str) or "/" not in value:
        raise IpamProblem("must be a subnet such as 10.0.0.0/16", *path)
    try:
        found = ip_network(value)
    except ValueError as error:
        raise IpamProblem(f"must be a subnet such as 10.0.0.0/16: {error}", *path) from None
    if found.is_multicast or found.is_loopback or found.is_link_local:
        raise IpamProblem(f"{found} is not for addresses of NICs", *path)
    return found


def _routes_of(value: object) -> tuple[bool, tuple[Network, ...]]:
    if value is None:
        return False, ()
    if not isinstance(value, list):
        raise IpamProblem("must be a list: rails, or destinations", "routes")
    networks = []
    for entry in value:
        if entry == "rails":
            continue
        try:
            networks.append(ip_network(entry if isinstance(entry, str) else ""))
        except ValueError as error:
            raise IpamProblem(
                f"must be rails or a destination such as 10.0.0.0/8: {error}", "routes"
            ) from None
    return "rails" in value, tuple(dict.fromkeys(networks))


def _numbering(value: object) -> Numbering:
    known = _mapping(value, ("pattern", "addressIn", "names", "max"), "nodes")
    kinds = known.keys() - {"max"}
    if len(kinds) != 1:
        raise IpamProblem("must have one of pattern, addressIn and names", "nodes")
    if "max" in known and "pattern" not in known:
        raise IpamProblem("must be absent: max is for pattern", "nodes", "max")
    if "names" in known:
        names = parse_names(known["names"])
        return Numbering(names=names, maximum=max(names.values()))
    if "addressIn" in known:
        within = _network(known["addressIn"], "nodes", "addressIn")
        return Numbering(within=within, maximum=within.num_addresses - (2 if within.version == 4 else 1))
    maximum = _integer(known["max"], 0, 2**63, "nodes", "max") if "max" in known else None
    return Numbering(pattern=_pattern(known["pattern"]), maximum=maximum)


def _pattern(value: object) -> re.Pattern[str]:
    try:
        found = re.compile(value if isinstance(value, str) else "")
    except (re.error, RecursionError, OverflowError) as error:
        raise IpamProblem(f"must be a regular expression: {error}", "nodes", "pattern") from None
    if found.groups != 1:
        raise IpamProblem(r"must have one group, the number: gpu-node-(\d+)", "nodes", "pattern")
    return found


def parse_names(value: object) -> Mapping[str, int]:
    """Names in the order of their numbers, from 1; ``gpu-[001-500]`` is 500 of them. Raises IpamProblem."""
    if not isinstance(value, list) or not value:
        raise IpamProblem("must be a list of node names", "nodes", "names")
    names: dict[str, int] = {}
    for entry in value:
        if not isinstance(entry, str) or not entry:
            raise IpamProblem("must be a list of node names", "nodes", "names")
        for name in expand_range(entry):
            if name in names:
                raise IpamProblem(f"has {name} twice", "nodes", "names")
            names[name] = len(names) + 1
            if len(names) > MOST_NAMES:
                raise IpamProblem(f"has more than {MOST_NAMES} names", "nodes", "names")
    return names


def expand_range(text: str) -> Iterator[str]:
    """``gpu-[08-10]``: gpu-08, gpu-09, gpu-10. One range at most; other texts stay as they are."""
    match = _RANGE.search(text)
    if match is None:
        yield text
        return
    first, last = match[1], match[2]
    if len(last) > _MOST_DIGITS:
        raise IpamProblem(f"a range has at most {_MOST_DIGITS} digits, not {len(last)}", "nodes", "names")
    if len(first) > len(last) or int(first) > int(last):
        raise IpamProblem(f"{match[0]} must count upwards", "nodes", "names")
    for number in range(int(first), int(last) + 1):
        yield f"{text[: match.start()]}{number:0{len(first)}}{text[match.end() :]}"


# --- values ---


def _mapping(value: object, known: Sequence[str], *path: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise IpamProblem(f"must be a mapping with keys of {', '.join(known)}", *path)
    for key in value:
        if key not in known:
            raise IpamProblem(f"unknown key; known are {', '.join(known)}", *path, key)
    return value


def _integer(value: object, least: int, most: int, *path: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise IpamProblem(f"must be a number from {least} to {most}", *path)
    return value


def _boolean(value: object, *path: str) -> bool:
    if not isinstance(value, bool):
        raise IpamProblem("must be true or false", *path)
    return value
