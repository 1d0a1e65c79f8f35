"""Give a link on the host the state that Prepare recorded.

What to ask of the kernel is worked out as data and sent in one batch; only what differs is asked for, so
that a link that is already as it was is left alone.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dranet.errors import KernelError
from dranet.kernel.attachment.linkstate import has_route, read_addresses
from dranet.kernel.inet import (
    IFA_F_NODAD,
    add_address_request,
    add_neighbour_request,
    add_route_request,
    address_key,
    delete_address_request,
)
from dranet.kernel.netlink import NetlinkSocket, Request, attribute, attribute_text, attribute_u32
from dranet.kernel.rtnl import (
    IFF_ALLMULTI,
    IFF_PROMISC,
    IFF_UP,
    IFLA_ADDRESS,
    IFLA_GROUP,
    IFLA_IFALIAS,
    IFLA_IFNAME,
    IFLA_MTU,
    IFLA_TXQLEN,
    mac_bytes,
    set_link_request,
)
from dranet.model.facts import Address, Link, Route
from dranet.model.plan import LinkState


@dataclass(frozen=True, slots=True)
class _Wish:
    """One request, and the route that it adds where it is one."""

    request: Request
    route: Route | None = None


def restore_link(rtnl: NetlinkSocket, link: Link, state: LinkState) -> list[str]:
    """Bring ``link`` to ``state`` as far as the kernel lets it; returns what went wrong, one line each.

    Raises:
        KernelError: netlink itself failed.
    """
    wishes = tuple(_iter_wishes(link, read_addresses(rtnl, link), state))
    outcomes = rtnl.batch([wish.request for wish in wishes])
    return [
        outcome.message
        for wish, outcome in zip(wishes, outcomes, strict=True)
        if isinstance(outcome, KernelError) and not _is_there_already(rtnl, link, wish, outcome)
    ]


def _is_there_already(rtnl: NetlinkSocket, link: Link, wish: _Wish, refusal: KernelError) -> bool:
    return refusal.errno == errno.EEXIST and wish.route is not None and has_route(rtnl, link, wish.route)


def _iter_wishes(link: Link, present: Sequence[Address], state: LinkState) -> Iterator[_Wish]:
    """In the order the kernel needs: IPv4 before up, IPv6 after it (an address with a lifetime gets its
    prefix route only on a link that is up), then routes, link-scope ones first."""
    there = {address_key(address) for address in present}
    missing = [address for address in state.addresses if address_key(address) not in there]
    ipv4 = [address for address in missing if ":" not in address.cidr]
    ipv6 = [address for address in reversed(missing) if ":" in address.cidr]  # the kernel lists newest first
    index, name = link.ifindex, state.ifname
    yield from map(_Wish, _iter_link_requests(link, state))
    if link.ifname != name:
        yield from (_Wish(delete_address_request(index, extra, name)) for extra in _extras(present, state))
    yield from (_Wish(add_address_request(index, address, name)) for address in ipv4)
    if state.up:
        yield _Wish(_flags_request(link, name, IFF_UP, IFF_UP, "set up"))
    yield from (_Wish(add_address_request(index, address, name, skip_dad=True)) for address in ipv6)
    for route in sorted(state.routes, key=lambda route: bool(route.gateway)):
        yield _Wish(add_route_request(index, route, name), route)
    yield from (_Wish(add_neighbour_request(index, entry, name)) for entry in state.neighbours)
    # Now that routes could name them as source: without the mark, as they were.
    yield from (_Wish(add_address_request(index, a, name)) for a in ipv6 if not a.flags & IFA_F_NODAD)


def _iter_link_requests(link: Link, state: LinkState) -> Iterator[Request]:
    """Name and properties, one request each so that one refusal does not take the next with it."""
    index, name = link.ifindex, state.ifname
    renamed, other_mac = link.ifname != name, bool(state.mac) and link.mac != state.mac
    if link.is_up and (renamed or other_mac or not state.up):
        # Kernels before 6.2 rename only what is down; many drivers take a MAC address only then.
        yield _flags_request(link, name, 0, IFF_UP, "set down")
    properties = (
        (renamed, "rename", attribute_text(IFLA_IFNAME, name)),
        (other_mac, "set mac", attribute(IFLA_ADDRESS, mac_bytes(state.mac))),
        (link.mtu != state.mtu, "set mtu", attribute_u32(IFLA_MTU, state.mtu)),
        (link.alias != state.alias, "set alias", attribute(IFLA_IFALIAS, state.alias.encode())),
        (
            link.tx_queue_length != state.tx_queue_length,
            "set tx queue length",
            attribute_u32(IFLA_TXQLEN, state.tx_queue_length),
        ),
        (link.group != state.group, "set group", attribute_u32(IFLA_GROUP, state.group)),
    )
    for differs, operation, encoded in properties:
        if differs:
            yield set_link_request(index, encoded, operation=operation, link=name)
    if link.flags & (IFF_PROMISC | IFF_ALLMULTI):
        yield _flags_request(link, name, 0, IFF_PROMISC | IFF_ALLMULTI, "clear promiscuous mode")


def _flags_request(link: Link, name: str, flags: int, change: int, operation: str) -> Request:
    return set_link_request(link.ifindex, operation=operation, link=name, flags=flags, change=change)


def _extras(present: Sequence[Address], state: LinkState) -> list[Address]:
    """Addresses that nobody recorded, on a link that came back by itself under another name."""
    wanted = {address_key(address) for address in state.addresses}
    return [replace(address, flags=0) for address in present if address_key(address) not in wanted]
