"""Nexthop objects (``ip-nexthop(8)``, Linux 5.3): what a route leads to that names one instead of a link.

Numbers are those of ``linux/nexthop.h``. With ``net.ipv4.nexthop_compat_mode=0`` the kernel tells of such a
route the object's number alone (``Documentation/networking/ip-sysctl.rst``); that is set where routing
daemons have many routes.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace

from dranet.errors import KernelError
from dranet.kernel.inet import nexthop_id, parse_route
from dranet.kernel.netlink import NetlinkSocket, Request, attribute_u32, parse_attributes
from dranet.kernel.rtnl import RTM_GETNEXTHOP, decode, decode_all, u32
from dranet.model.facts import Route
from dranet.model.uplinks import is_untold

NHA_ID, NHA_GROUP, NHA_OIF = 1, 2, 5

_HEADER = struct.Struct("=BBBBI")
"""``struct nhmsg``: family, scope, protocol, reserved, flags."""
_MEMBER = struct.Struct("=IBBH")
"""``struct nexthop_grp``: id, weight, its high byte, reserved."""


def parse_routes(rtnl: NetlinkSocket, payloads: Iterable[bytes], warnings: list[str]) -> list[Route]:
    """Parse RTM_NEWROUTE messages, with the outputs of their nexthop objects where they tell no others.

    A unicast route that still has no output named an object that is gone by now, or that the kernel refused
    to tell of.

    Raises:
        KernelError: netlink itself failed.
    """
    found = decode_all(_parse_with_object, payloads, warnings)
    asked = {number for route, number in found if number and is_untold(route)}
    if not asked:
        return [route for route, _ in found]
    leads_to = read_outputs(rtnl, asked)
    return [
        replace(route, next_hops=leads_to[number]) if number and is_untold(route) else route
        for route, number in found
    ]


def _parse_with_object(payload: bytes) -> tuple[Route, int] | None:
    route = parse_route(payload)
    return (route, nexthop_id(payload)) if route is not None else None


def read_outputs(rtnl: NetlinkSocket, numbers: Collection[int]) -> Mapping[int, tuple[int, ...]]:
    """Nexthop object -> the ifindexes that it leads to, of a group those of every member. Empty where one of
    them cannot be told.

    Raises:
        KernelError: netlink itself failed.
    """
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
    """The attributes of each object that the kernel tells of."""
    ordered = sorted(numbers)
    objects: dict[int, dict[int, bytes]] = {}
    for number, outcome in zip(ordered, rtnl.batch([_get_request(n) for n in ordered]), strict=True):
        if not isinstance(outcome, KernelError) and outcome:
            objects[number] = decode(parse_nexthop, outcome[0].payload)
    return objects


def parse_nexthop(payload: bytes) -> dict[int, bytes]:
    """Parse RTM_NEWNEXTHOP: the attributes that say where it leads."""
    found = parse_attributes(payload, _HEADER.size, frozenset({NHA_GROUP, NHA_OIF}))
    if len(found.get(NHA_GROUP, b"")) % _MEMBER.size:
        raise ValueError(f"nexthop group of {len(found[NHA_GROUP])} bytes")
    return found


def _get_request(number: int) -> Request:
    body = _HEADER.pack(0, 0, 0, 0, 0) + attribute_u32(NHA_ID, number)
    return Request(RTM_GETNEXTHOP, body, operation="read nexthop object", link=str(number))
