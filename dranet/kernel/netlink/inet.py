"""Addresses, routes and neighbours between the rtnetlink wire and ``model.facts``; no I/O. Layouts and
numbers are those of ``linux/if_addr.h``, ``rtnetlink.h`` and ``neighbour.h``."""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_interface, ip_network

from msgspec import Struct
from msgspec.structs import replace

from dranet.errors import KernelError
from dranet.kernel.netlink.rtnl import (
    RT_TABLE_COMPAT,
    RTM_DELADDR,
    RTM_DELROUTE,
    RTM_GETADDR,
    RTM_GETNEIGH,
    RTM_GETNEXTHOP,
    RTM_GETROUTE,
    RTM_NEWADDR,
    RTM_NEWNEIGH,
    RTM_NEWROUTE,
    RTPROT_STATIC,
    decode,
    decode_all,
    mac_bytes,
    text,
    u32,
)
from dranet.kernel.netlink.socket import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    NetlinkSocket,
    Request,
    attribute,
    attribute_text,
    attribute_u32,
    nested,
    parse_attributes,
)
from dranet.model.facts import (
    IFA_F_MANAGETEMPADDR,
    IFA_F_MCAUTOJOIN,
    IFA_F_NODAD,
    IFA_F_NOPREFIXROUTE,
    RTNH_F_ONLINK,
    Address,
    Neighbour,
    Route,
)
from dranet.model.uplinks import is_untold

# linux/if_addr.h
IFA_ADDRESS, IFA_LOCAL, IFA_LABEL, IFA_BROADCAST = 1, 2, 3, 4
IFA_CACHEINFO, IFA_FLAGS, IFA_RT_PRIORITY, IFA_PROTO = 6, 8, 9, 11
IFAPROT_KERNEL_LL = 3
FOR_EVER = 0xFFFFFFFF

# linux/rtnetlink.h, routes
RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY = 1, 4, 5, 6
RTA_PREFSRC, RTA_METRICS, RTA_MULTIPATH, RTA_TABLE = 7, 8, 9, 15
RTA_VIA, RTA_ENCAP, RTA_NH_ID = 18, 22, 30
RTAX_MTU = 2
RTN_UNICAST = 1
RT_SCOPE_LINK = 253
RTM_F_CLONED, RTM_F_FIB_MATCH = 0x200, 0x2000

# linux/neighbour.h
NDA_DST, NDA_LLADDR, NDA_IFINDEX = 1, 2, 8
NUD_PERMANENT = 0x80
NTF_PROXY = 0x08

_FAMILIES = frozenset({int(socket.AF_INET), int(socket.AF_INET6)})

_ADDRESS = struct.Struct("=BBBBI")
_ROUTE = struct.Struct("=BBBBBBBBI")
_NEIGHBOUR = struct.Struct("=BxxxiHBB")
_NEXT_HOP = struct.Struct("=HBBi")
_CACHE_INFO = struct.Struct("=IIII")

_ADDRESS_ATTRIBUTES = frozenset(
    {IFA_ADDRESS, IFA_LOCAL, IFA_LABEL, IFA_BROADCAST, IFA_CACHEINFO, IFA_FLAGS, IFA_RT_PRIORITY}
)
_ROUTE_ATTRIBUTES = frozenset(
    {
        RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC, RTA_METRICS, RTA_MULTIPATH, RTA_TABLE,
        RTA_VIA,
    }
)  # fmt: skip

_OUTPUT_ATTRIBUTES = frozenset({RTA_OIF, RTA_MULTIPATH, RTA_NH_ID})

# --- addresses -----------------------------------------------------------------------------------------


def parse_address(payload: bytes, names: Mapping[int, str]) -> tuple[int, Address] | None:
    """Parse RTM_NEWADDR into (ifindex, address); ``None`` for a family other than IPv4 and IPv6. ``names``
    maps ifindex to name: a label that only repeats the name is left out."""
    family, prefix_length, header_flags, scope, ifindex = _ADDRESS.unpack_from(payload)
    if family not in _FAMILIES:
        return None
    found = parse_attributes(payload, _ADDRESS.size, _ADDRESS_ATTRIBUTES)
    near = found.get(IFA_LOCAL) or found[IFA_ADDRESS]
    far = found.get(IFA_ADDRESS, near)
    cidr, peer = f"{socket.inet_ntop(family, near)}/{prefix_length}", ""
    if near != far:
        cidr = f"{socket.inet_ntop(family, near)}/{len(near) * 8}"
        peer = f"{socket.inet_ntop(family, far)}/{prefix_length}"
    label = text(found[IFA_LABEL]) if IFA_LABEL in found else ""
    valid, preferred = _lifetimes_left(found[IFA_CACHEINFO]) if IFA_CACHEINFO in found else (None, None)
    return ifindex, Address(
        cidr=cidr,
        scope=scope,
        flags=u32(found, IFA_FLAGS) if IFA_FLAGS in found else header_flags,
        label="" if label == names.get(ifindex) else label,
        peer=peer,
        broadcast=socket.inet_ntop(family, found[IFA_BROADCAST]) if IFA_BROADCAST in found else "",
        valid_seconds=valid,
        preferred_seconds=preferred,
        metric=u32(found, IFA_RT_PRIORITY),
    )


def _lifetimes_left(cache_info: bytes) -> tuple[int | None, int | None]:
    preferred, valid, _, _ = _CACHE_INFO.unpack_from(cache_info)
    return None if valid == FOR_EVER else valid, None if preferred == FOR_EVER else preferred


def is_kernel_link_local(payload: bytes) -> bool:
    """Whether the kernel made this IPv6 link-local address by itself (``IFA_PROTO``, Linux 5.18)."""
    found = parse_attributes(payload, _ADDRESS.size, frozenset({IFA_PROTO}))
    return found.get(IFA_PROTO, b"")[:1] == bytes([IFAPROT_KERNEL_LL])


def dump_addresses_request(ifindex: int = 0) -> Request:
    body = _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, ifindex)
    return Request(RTM_GETADDR, body, operation="read addresses")


def address_key(address: Address) -> tuple[str, str]:
    """The identity of an address of one link, in canonical text."""
    local = ip_interface(address.cidr)
    return (str(local.ip), str(ip_interface(address.peer))) if address.peer else (str(local), "")


def address_body(ifindex: int, address: Address, flags: int = 0) -> bytes:
    """The body of RTM_NEWADDR and RTM_DELADDR. ``flags`` are the IFA_F bits to ask for."""
    local = ip_interface(address.cidr)
    far = ip_interface(address.peer) if address.peer else local
    family = socket.AF_INET if local.version == 4 else socket.AF_INET6
    parts = [
        _ADDRESS.pack(family, far.network.prefixlen, flags & 0xFF, address.scope, ifindex),
        attribute(IFA_LOCAL, local.packed),
        attribute(IFA_ADDRESS, far.packed),
        attribute_u32(IFA_FLAGS, flags),
    ]
    if address.broadcast:
        parts.append(attribute(IFA_BROADCAST, socket.inet_pton(family, address.broadcast)))
    if address.label:
        parts.append(attribute_text(IFA_LABEL, address.label))
    if address.metric:
        parts.append(attribute_u32(IFA_RT_PRIORITY, address.metric))
    lifetimes = (address.preferred_seconds, address.valid_seconds)
    if lifetimes != (None, None):
        seconds = (FOR_EVER if seconds is None else seconds for seconds in lifetimes)
        parts.append(attribute(IFA_CACHEINFO, _CACHE_INFO.pack(*seconds, 0, 0)))
    return b"".join(parts)


SETTABLE_ADDRESS_FLAGS = IFA_F_NODAD | IFA_F_MANAGETEMPADDR | IFA_F_NOPREFIXROUTE | IFA_F_MCAUTOJOIN


def add_address_request(ifindex: int, address: Address, link: str, skip_dad: bool = False) -> Request:
    """Add an address, or bring one that is there to these flags and lifetimes. ``skip_dad``: an IPv6 address
    is usable at once instead of tentative for a second or more."""
    flags = address.flags & SETTABLE_ADDRESS_FLAGS
    if skip_dad and ":" in address.cidr:
        flags |= IFA_F_NODAD
    body = address_body(ifindex, address, flags)
    return Request(RTM_NEWADDR, body, NLM_F_CREATE | NLM_F_REPLACE, f"add address {address.cidr}", link)


def delete_address_request(ifindex: int, address: Address, link: str) -> Request:
    body = address_body(ifindex, address)
    return Request(RTM_DELADDR, body, operation=f"remove address {address.cidr}", link=link)


# --- routes --------------------------------------------------------------------------------------------


def parse_route(payload: bytes) -> Route | None:
    """Parse RTM_NEWROUTE; ``None`` for a family other than IPv4 and IPv6 and for cached clones."""
    family, length, _, _, table, protocol, scope, kind, flags = _ROUTE.unpack_from(payload)
    if family not in _FAMILIES or flags & RTM_F_CLONED:
        return None
    found = parse_attributes(payload, _ROUTE.size, _ROUTE_ATTRIBUTES)
    any_address = bytes(4 if family == socket.AF_INET else 16)
    return Route(
        destination=f"{socket.inet_ntop(family, found.get(RTA_DST, any_address))}/{length}",
        gateway=_gateway(family, found),
        ifindex=u32(found, RTA_OIF),
        next_hops=tuple(hop[2] for hop in _iter_hops(found.get(RTA_MULTIPATH, b""))),
        source=socket.inet_ntop(family, found[RTA_PREFSRC]) if RTA_PREFSRC in found else "",
        scope=scope,
        table=u32(found, RTA_TABLE) or table,
        protocol=protocol,
        metric=u32(found, RTA_PRIORITY),
        type=kind,
        flags=flags & RTNH_F_ONLINK,
        mtu=u32(parse_attributes(found.get(RTA_METRICS, b""), 0, frozenset({RTAX_MTU})), RTAX_MTU),
    )


def route_table(payload: bytes) -> int:
    """The number of its table. Asked of every route notification."""
    if payload[4] != RT_TABLE_COMPAT:
        return payload[4]
    return u32(parse_attributes(payload, _ROUTE.size, frozenset({RTA_TABLE})), RTA_TABLE) or payload[4]


def nexthop_id(payload: bytes) -> int:
    return u32(parse_attributes(payload, _ROUTE.size, frozenset({RTA_NH_ID})), RTA_NH_ID)


def one_for_each_output(payloads: Iterable[bytes]) -> Iterator[bytes]:
    """The default routes, and of the others the first of each type and output: a table may hold a million."""
    seen: set[tuple[bytes, frozenset[tuple[int, bytes]]]] = set()
    for payload in payloads:
        found = parse_attributes(payload, _ROUTE.size, _OUTPUT_ATTRIBUTES)
        key = payload[7:8], frozenset(found.items())
        if is_default_route(payload):
            yield payload
        elif key not in seen:
            seen.add(key)
            yield payload


def is_default_route(payload: bytes) -> bool:
    """Whether the prefix has no bits; asked before parsing, a table may hold a million routes."""
    return payload[1:2] == b"\0"


def is_beyond_default_routes(payload: bytes) -> bool:
    """Whether a route of an IPv4 table comes after all default routes in a dump, which ascends by address
    (``fib_trie``). An IPv6 table ends with them."""
    if payload[1:2] == b"\0":
        return False
    found = parse_attributes(payload, _ROUTE.size, frozenset({RTA_DST}))
    return any(found.get(RTA_DST, b""))


def route_contains(payload: bytes, address: bytes) -> bool:
    """Whether the prefix of a route covers an address (4 or 16 bytes). Asked of every route notification."""
    if (payload[0] == socket.AF_INET) != (len(address) == 4):
        return False
    prefix = parse_attributes(payload, _ROUTE.size, frozenset({RTA_DST})).get(RTA_DST, bytes(len(address)))
    spare = (len(address) * 8) - payload[1]
    return int.from_bytes(prefix) >> spare == int.from_bytes(address) >> spare


def is_plain_route(payload: bytes) -> bool:
    """Whether :class:`Route` expresses all of the route: no next-hop list, encapsulation, ToS or source
    prefix."""
    _, _, source_length, tos, *_ = _ROUTE.unpack_from(payload)
    special = parse_attributes(payload, _ROUTE.size, frozenset({RTA_MULTIPATH, RTA_ENCAP}))
    return not (source_length or tos or special)


def _gateway(family: int, found: Mapping[int, bytes]) -> str:
    if RTA_GATEWAY in found:
        return socket.inet_ntop(family, found[RTA_GATEWAY])
    if RTA_VIA in found:  # an IPv4 route through an IPv6 router (RFC 5549): family, then the address
        via = found[RTA_VIA]
        return socket.inet_ntop(struct.unpack_from("=H", via)[0], via[2:])
    return ""


class Hop(Struct, frozen=True):
    ifindex: int
    gateway: str = ""
    weight: int = 1
    onlink: bool = False


def _iter_hops(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield (flags, weight, ifindex, attributes) of each ``struct rtnexthop``."""
    offset = 0
    while len(data) - offset >= _NEXT_HOP.size:
        size, flags, further, ifindex = _NEXT_HOP.unpack_from(data, offset)
        if size < _NEXT_HOP.size:
            raise ValueError(f"next hop of {size} bytes")
        yield flags, further + 1, ifindex, data[offset + _NEXT_HOP.size : offset + size]
        offset += (size + 3) & ~3


def parse_hops(payload: bytes) -> tuple[Hop, ...]:
    family = payload[0]
    found = parse_attributes(payload, _ROUTE.size, frozenset({RTA_MULTIPATH}))
    hops = []
    for flags, weight, ifindex, attributes in _iter_hops(found.get(RTA_MULTIPATH, b"")):
        gateway = _gateway(family, parse_attributes(attributes, 0, _ROUTE_ATTRIBUTES))
        hops.append(Hop(ifindex, gateway, weight, bool(flags & RTNH_F_ONLINK)))
    return tuple(hops)


def _encode_hop(family: int, hop: Hop) -> bytes:
    gateway = _encode_gateway(family, hop.gateway) if hop.gateway else b""
    flags = RTNH_F_ONLINK if hop.onlink else 0
    return _NEXT_HOP.pack(_NEXT_HOP.size + len(gateway), flags, hop.weight - 1, hop.ifindex) + gateway


def dump_routes_request(family: int, table: int = 0, ifindex: int = 0) -> Request:
    body = _ROUTE.pack(family, 0, 0, 0, 0, 0, 0, 0, 0)
    body += attribute_u32(RTA_TABLE, table) if table else b""
    body += attribute_u32(RTA_OIF, ifindex) if ifindex else b""
    return Request(RTM_GETROUTE, body, operation="read routes")


def find_route_request(address: str) -> Request:
    """Ask by which route the kernel reaches an address: the table's own entry, every next hop (Linux 4.13). A
    route that leads nowhere is a refusal (``ENETUNREACH``, ``EHOSTUNREACH``, ``EACCES``, ``EINVAL``)."""
    packed = ip_address(address).packed
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    header = _ROUTE.pack(family, len(packed) * 8, 0, 0, 0, 0, 0, 0, RTM_F_FIB_MATCH)
    return Request(RTM_GETROUTE, header + attribute(RTA_DST, packed), 0, "find the route to", address)


def add_route_request(ifindex: int, route: Route, link: str, hops: Sequence[Hop] = ()) -> Request:
    """Add a route through a link, or through each of ``hops``; EEXIST where its place is taken."""
    metrics = nested(RTA_METRICS, attribute_u32(RTAX_MTU, route.mtu)) if route.mtu else b""
    body = _route_body(ifindex, route, hops) + metrics
    return Request(RTM_NEWROUTE, body, NLM_F_CREATE | NLM_F_EXCL, f"add route {route.destination}", link)


def delete_route_request(ifindex: int, route: Route, link: str, hops: Sequence[Hop] = ()) -> Request:
    body = _route_body(ifindex, route, hops)
    return Request(RTM_DELROUTE, body, operation=f"remove route {route.destination}", link=link)


def _route_body(ifindex: int, route: Route, hops: Sequence[Hop]) -> bytes:
    destination = ip_network(route.destination)
    family = socket.AF_INET if destination.version == 4 else socket.AF_INET6
    parts = [
        _ROUTE.pack(
            family, destination.prefixlen, 0, 0, route.table if route.table < 256 else RT_TABLE_COMPAT,
            route.protocol or RTPROT_STATIC, route.scope, route.type, route.flags,
        ),
        attribute_u32(RTA_TABLE, route.table),
    ]  # fmt: skip
    if destination.prefixlen:
        parts.append(attribute(RTA_DST, destination.network_address.packed))
    if hops:
        parts.append(attribute(RTA_MULTIPATH, b"".join(_encode_hop(family, hop) for hop in hops)))
    else:
        parts.append(attribute_u32(RTA_OIF, ifindex))
    if route.gateway:
        parts.append(_encode_gateway(family, route.gateway))
    if route.source:
        parts.append(attribute(RTA_PREFSRC, socket.inet_pton(family, route.source)))
    if route.metric:
        parts.append(attribute_u32(RTA_PRIORITY, route.metric))
    return b"".join(parts)


def _encode_gateway(family: int, gateway: str) -> bytes:
    gateway_family = socket.AF_INET6 if ":" in gateway else socket.AF_INET
    packed = socket.inet_pton(gateway_family, gateway)
    if gateway_family == family:
        return attribute(RTA_GATEWAY, packed)
    return attribute(RTA_VIA, struct.pack("=H", gateway_family) + packed)


# --- neighbours ----------------------------------------------------------------------------------------


def parse_permanent_neighbour(payload: bytes, ifindex: int) -> Neighbour | None:
    """Parse RTM_NEWNEIGH; ``None`` for other links and for what the kernel learnt by itself."""
    family, link, state, flags, _ = _NEIGHBOUR.unpack_from(payload)
    if family not in _FAMILIES or link != ifindex:
        return None
    found = parse_attributes(payload, _NEIGHBOUR.size, frozenset({NDA_DST, NDA_LLADDR}))
    if flags & NTF_PROXY and NDA_DST in found:
        return Neighbour(socket.inet_ntop(family, found[NDA_DST]), "", proxy=True)
    if not state & NUD_PERMANENT or NDA_DST not in found or NDA_LLADDR not in found:
        return None
    return Neighbour(socket.inet_ntop(family, found[NDA_DST]), found[NDA_LLADDR].hex(":"))


def dump_neighbours_request(ifindex: int, proxies: bool = False) -> Request:
    """Ask for the neighbours of one link, both families, or for what it answers for on behalf of others."""
    flags = NTF_PROXY if proxies else 0
    body = _NEIGHBOUR.pack(socket.AF_UNSPEC, 0, 0, flags, 0) + attribute_u32(NDA_IFINDEX, ifindex)
    return Request(RTM_GETNEIGH, body, operation="read neighbors")


def add_neighbour_request(ifindex: int, neighbour: Neighbour, link: str) -> Request:
    family = socket.AF_INET6 if ":" in neighbour.address else socket.AF_INET
    flags = NTF_PROXY if neighbour.proxy else 0
    body = _NEIGHBOUR.pack(family, ifindex, NUD_PERMANENT, flags, RTN_UNICAST)
    body += attribute(NDA_DST, socket.inet_pton(family, neighbour.address))
    if neighbour.mac:
        body += attribute(NDA_LLADDR, mac_bytes(neighbour.mac))
    operation = f"add neighbor {neighbour.address}"
    return Request(RTM_NEWNEIGH, body, NLM_F_CREATE | NLM_F_REPLACE, operation, link)


# --- nexthop objects (``ip-nexthop(8)``, Linux 5.3) -----------------------------------------------------

NHA_ID, NHA_GROUP, NHA_OIF = 1, 2, 5

_HEADER = struct.Struct("=BBBBI")
"""``struct nhmsg``: family, scope, protocol, reserved, flags."""
_MEMBER = struct.Struct("=IBBH")
"""``struct nexthop_grp``: id, weight, its high byte, reserved."""


def parse_routes(rtnl: NetlinkSocket, payloads: Iterable[bytes], warnings: list[str]) -> list[Route]:
    """Parse RTM_NEWROUTE messages, with the outputs of their nexthop objects if they name no others. A
    unicast route that still has no output named an object that is gone, or that the kernel did not return."""

    def parse_with_object(payload: bytes) -> tuple[Route, int] | None:
        route = parse_route(payload)
        return (route, nexthop_id(payload)) if route is not None else None

    found = decode_all(parse_with_object, payloads, warnings)
    asked = {number for route, number in found if number and is_untold(route)}
    if not asked:
        return [route for route, _ in found]
    leads_to = read_outputs(rtnl, asked)
    return [
        replace(route, next_hops=leads_to[number]) if number and is_untold(route) else route
        for route, number in found
    ]


def read_outputs(rtnl: NetlinkSocket, numbers: Collection[int]) -> Mapping[int, tuple[int, ...]]:
    """Map each nexthop object to the ifindexes that it leads to; a group to those of all members. Empty if
    one of them is unknown."""
    objects = _read_objects(rtnl, numbers)
    members = {number for found in objects.values() for number in _members(found)}
    singles = _read_objects(rtnl, members - objects.keys()) | objects  # a group has no groups as members
    return {number: _outputs_of(objects.get(number, {}), singles) for number in numbers}


def _outputs_of(found: Mapping[int, bytes], singles: Mapping[int, Mapping[int, bytes]]) -> tuple[int, ...]:
    ways = [u32(singles.get(member, {}), NHA_OIF) for member in _members(found)] or [u32(found, NHA_OIF)]
    return tuple(sorted(set(ways))) if all(ways) else ()


def _members(found: Mapping[int, bytes]) -> list[int]:
    return [number for number, *_ in _MEMBER.iter_unpack(found.get(NHA_GROUP, b""))]


def _read_objects(rtnl: NetlinkSocket, numbers: Iterable[int]) -> dict[int, dict[int, bytes]]:
    ordered = sorted(numbers)
    objects: dict[int, dict[int, bytes]] = {}
    bodies = [_HEADER.pack(0, 0, 0, 0, 0) + attribute_u32(NHA_ID, number) for number in ordered]
    requests = [Request(RTM_GETNEXTHOP, body, operation="read nexthop object") for body in bodies]
    for number, outcome in zip(ordered, rtnl.batch(requests), strict=True):
        if not isinstance(outcome, KernelError) and outcome:
            objects[number] = decode(parse_nexthop, outcome[0].payload)
    return objects


def parse_nexthop(payload: bytes) -> dict[int, bytes]:
    found = parse_attributes(payload, _HEADER.size, frozenset({NHA_GROUP, NHA_OIF}))
    if len(found.get(NHA_GROUP, b"")) % _MEMBER.size:
        raise ValueError(f"nexthop group of {len(found[NHA_GROUP])} bytes")
    return found
