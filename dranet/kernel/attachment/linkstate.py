"""One link, its addresses, routes and neighbours, as Prepare records them and as release gives them back.

The rest of what is recorded is read in ``record``.
What the kernel makes by itself from an address (connected, local and multicast routes, the IPv6 link-local
address, what a router advertises) is left out: it comes back by itself. A link whose state cannot be
said in a ``LinkState``, or that other links stand on, is refused: it could not be given back.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from functools import partial
from ipaddress import ip_address, ip_network

from dranet.errors import DeviceError, KernelError, Reason
from dranet.kernel.inet import (
    IFA_F_TEMPORARY,
    RT_TABLE_LOCAL,
    RT_TABLE_MAIN,
    RTA_METRICS,
    RTAX_MTU,
    RTPROT_KERNEL,
    RTPROT_RA,
    RTPROT_REDIRECT,
    dump_addresses_request,
    dump_neighbours_request,
    dump_routes_request,
    is_kernel_link_local,
    is_plain_route,
    parse_address,
    parse_permanent_neighbour,
    parse_route,
)
from dranet.kernel.netlink import (
    NetlinkSocket,
    attribute_text,
    attribute_u32,
    iter_attributes,
    parse_attributes,
)
from dranet.kernel.rtnl import (
    IFLA_INFO_KIND,
    IFLA_LINK,
    decode,
    dump_links_request,
    get_link_request,
    parse_link,
)
from dranet.model.facts import Address, Link, Neighbour, Route

# linux/rtnetlink.h
RTA_FLOW, RTA_PREF, RTA_TTL_PROPAGATE, RTA_NH_ID = 11, 20, 26, 30
_UNSAID_ATTRIBUTES = frozenset({RTA_METRICS, RTA_FLOW, RTA_PREF, RTA_TTL_PROPAGATE, RTA_NH_ID})
_ROUTE_HEADER_BYTES = 12

SELF_MADE_ROUTES = frozenset({RTPROT_KERNEL, RTPROT_RA, RTPROT_REDIRECT})
"""Protocols of routes that the kernel makes by itself."""

STACKED_KINDS = ("vlan", "macvlan", "macvtap", "ipvlan", "ipvtap")
"""Links that go on to carry the node's traffic over the link below them when that is a pod's."""


def read_link(rtnl: NetlinkSocket, ifindex: int = 0, ifname: str = "") -> Link | None:
    """One link by index or name (an alternative name will do); ``None`` where there is none.

    Raises:
        KernelError: netlink failed for another reason.
    """
    if not (ifindex or ifname):
        return None
    try:
        answers = rtnl.request(get_link_request(ifindex, ifname))
    except KernelError as error:
        if is_no_such_link(error):
            return None
        raise
    return decode(parse_link, answers[0].payload) if answers else None


def is_no_such_link(error: KernelError) -> bool:
    """Whether a refused look-up means that the link is not there (an impossible name is ERANGE)."""
    return error.errno in (errno.ENODEV, errno.ERANGE)


def check_is_free(rtnl: NetlinkSocket, link: Link) -> None:
    """Refuse a link that others depend on.

    Raises:
        DeviceError: it is enslaved to a bridge, bond or VRF, or carries VLANs or the like (``DeviceBusy``).
    """
    if link.master is not None:
        master = read_link(rtnl, link.master)
        name = master.ifname if master else str(link.master)
        raise DeviceError(f"link {link.ifname} is enslaved to {name}", reason=Reason.DEVICE_BUSY)
    upper = next(_iter_stacked(rtnl, link), None)
    if upper is not None:
        raise DeviceError(
            f"link {link.ifname} carries {upper.ifname} ({upper.kind}), which would go on to use it",
            reason=Reason.DEVICE_BUSY,
        )


def _iter_stacked(rtnl: NetlinkSocket, link: Link) -> Iterator[Link]:
    names_it = attribute_u32(IFLA_LINK, link.ifindex)
    for kind in STACKED_KINDS:
        payloads = rtnl.dump(dump_links_request(kind))
        for payload in filter(lambda payload: names_it in payload, payloads):  # to parse all takes long
            other = decode(parse_link, payload)
            if other.kind in STACKED_KINDS and other.lower == link.ifindex and other.link_netnsid is None:
                yield other
        names_kind = attribute_text(IFLA_INFO_KIND, kind)
        if any(names_kind not in payload for payload in payloads):
            return  # a kernel without this kind does not filter: these were all links there are


def read_addresses(rtnl: NetlinkSocket, link: Link) -> tuple[Address, ...]:
    """Addresses in the kernel's order, primary before secondary, without those it makes by itself."""
    parse = partial(parse_address, names={link.ifindex: link.ifname})
    found: list[Address] = []
    for payload in rtnl.dump(dump_addresses_request(link.ifindex)):
        parsed = decode(parse, payload)
        # The index is compared again: kernels before 5.0 ignore the filter.
        if parsed and parsed[0] == link.ifindex and not _is_self_made(parsed[1], payload):
            found.append(parsed[1])
    return tuple(found)


def _is_self_made(address: Address, payload: bytes) -> bool:
    is_privacy_address = ":" in address.cidr and bool(address.flags & IFA_F_TEMPORARY)
    return is_privacy_address or is_kernel_link_local(payload)


def read_routes(rtnl: NetlinkSocket, link: Link) -> tuple[Route, ...]:
    """Routes through the link in any table but ``local``, without those the kernel makes by itself.

    Raises:
        DeviceError: one is more than ``Route`` can say (``DeviceBusy``). Not one that a program made of a
            router advertisement: it makes it again when the link is back.
    """
    found = list(_iter_made_routes(rtnl, link))
    for route, is_sayable in found:
        if not is_sayable and route.protocol != RTPROT_RA:
            raise _not_restorable(link, route)
    return tuple(route for route, is_sayable in found if is_sayable)


def read_sayable_routes(rtnl: NetlinkSocket, link: Link) -> tuple[Route, ...]:
    """As :func:`read_routes`, passing over what ``Route`` cannot say."""
    return tuple(route for route, is_sayable in _iter_made_routes(rtnl, link) if is_sayable)


def _iter_made_routes(rtnl: NetlinkSocket, link: Link) -> Iterator[tuple[Route, bool]]:
    """Routes that somebody made, each with whether ``Route`` says all of it."""
    for route, payload in iter_routes(rtnl, link):
        if is_made_route(route):
            yield route, is_plain_route(payload) and not _has_more(payload)


def is_made_route(route: Route) -> bool:
    """Whether another than the kernel made a route.

    The kernel puts what it makes of addresses and router advertisements into the tables main and local. In
    another table these protocols are of programs: systemd-networkd's ``RouteTable=`` for router
    advertisements, scripts that copy a connected route.
    """
    if route.table == RT_TABLE_LOCAL:
        return False
    return route.table != RT_TABLE_MAIN or route.protocol not in SELF_MADE_ROUTES


def _has_more(payload: bytes) -> bool:
    """Whether a route has what ``Route`` has no word for: a nexthop object, realms, a router preference, or
    metrics beyond the MTU (a window, a lock)."""
    found = parse_attributes(payload, _ROUTE_HEADER_BYTES, _UNSAID_ATTRIBUTES)
    metrics = iter_attributes(found.get(RTA_METRICS, b""))
    return (
        bool({RTA_NH_ID, RTA_FLOW, RTA_TTL_PROPAGATE} & found.keys())
        or any(found.get(RTA_PREF, b""))
        or any(kind != RTAX_MTU and any(value) for kind, value in metrics)
    )


def has_route(rtnl: NetlinkSocket, link: Link, wanted: Route) -> bool:
    """Whether the link already has this very route, whoever made it."""
    return any(
        is_plain_route(payload) and _is_same(route, wanted) for route, payload in iter_routes(rtnl, link)
    )


def _is_same(route: Route, wanted: Route) -> bool:
    # The kernel gives an IPv6 route without a metric 1024 (IP6_RT_PRIO_USER).
    metrics = {wanted.metric} if wanted.metric else {0, 1024 if ":" in wanted.destination else 0}
    return _route_key(route) == _route_key(wanted) and route.metric in metrics


def _route_key(route: Route) -> tuple[object, ...]:
    """What tells routes through one link apart, whatever the spelling of the addresses."""
    gateway = ip_address(route.gateway) if route.gateway else None
    source = ip_address(route.source) if route.source else None
    return ip_network(route.destination), gateway, source, route.table, route.type


def iter_routes(rtnl: NetlinkSocket, link: Link) -> Iterator[tuple[Route, bytes]]:
    """Every route through a link, whoever made it, with its message; the kernel filters."""
    for family in (socket.AF_INET, socket.AF_INET6):
        for payload in rtnl.dump(dump_routes_request(family, ifindex=link.ifindex)):
            route = decode(parse_route, payload)
            # A kernel without the family answers for all; kernels before 5.0 ignore the filter.
            if payload[0] == family and route is not None and _is_through(route, link.ifindex):
                yield route, payload


def _not_restorable(link: Link, route: Route) -> DeviceError:
    return DeviceError(
        f"link {link.ifname} carries the route {route.destination}, which could not be given back",
        hint="it has several next hops or a nexthop object, an encapsulation, a ToS, a source prefix, realms "
        "or metrics beyond the MTU",
        reason=Reason.DEVICE_BUSY,
    )


def _is_through(route: Route, ifindex: int) -> bool:
    return route.ifindex == ifindex or ifindex in route.next_hops


def read_neighbours(rtnl: NetlinkSocket, link: Link) -> tuple[Neighbour, ...]:
    """The permanent neighbours of the link, and the addresses that it answers for."""
    return read_permanent_neighbours(rtnl, link) + _read_neighbours(rtnl, link, proxies=True)


def read_permanent_neighbours(rtnl: NetlinkSocket, link: Link) -> tuple[Neighbour, ...]:
    """Those of both IP versions."""
    return _read_neighbours(rtnl, link, proxies=False)


def _read_neighbours(rtnl: NetlinkSocket, link: Link, *, proxies: bool) -> tuple[Neighbour, ...]:
    payloads = rtnl.dump(dump_neighbours_request(link.ifindex, proxies))
    found = (
        decode(lambda data: parse_permanent_neighbour(data, link.ifindex), payload) for payload in payloads
    )
    return tuple(neighbour for neighbour in found if neighbour is not None)
