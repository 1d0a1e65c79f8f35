"""What to ask of the kernel so that a link becomes as recorded: requests as data, where something differs.

Each wish is one request of its own, so that a refusal does not take another property with it, and knows which
difference it mends (``differences``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dranet.kernel.attachment.differences import address_what, neighbour_what, route_what, traffic_what
from dranet.kernel.attachment.linkstate import (
    ETHERNET_BROADCAST,
    IFLA_BROADCAST,
    IFLA_LINKMODE,
    LINK_MODE_DEFAULT,
    ODD_FLAGS,
    SIZES,
    LinkDetails,
)
from dranet.kernel.netlink.inet import (
    IFA_F_NODAD,
    add_address_request,
    add_neighbour_request,
    add_route_request,
    address_key,
    delete_address_request,
)
from dranet.kernel.netlink.rtnl import (
    IFF_ALLMULTI,
    IFF_MULTICAST,
    IFF_NOARP,
    IFF_PROMISC,
    IFF_UP,
    IFLA_ADDRESS,
    IFLA_ALT_IFNAME,
    IFLA_GROUP,
    IFLA_IFALIAS,
    IFLA_IFNAME,
    IFLA_MTU,
    IFLA_PROP_LIST,
    IFLA_TXQLEN,
    RTM_NEWLINKPROP,
    delete_altnames_request,
    link_header,
    mac_bytes,
    set_link_request,
)
from dranet.kernel.netlink.socket import (
    Request,
    attribute,
    attribute_text,
    attribute_u8,
    attribute_u32,
    nested,
)
from dranet.kernel.netlink.tc import add_requests
from dranet.model.facts import Address, Link, Route
from dranet.model.plan import LinkState


class Wish(Struct, frozen=True):
    """One request, what of the link it mends, and the route that it adds where it is one."""

    what: str
    request: Request
    route: Route | None = None


def iter_link_wishes(link: Link, details: LinkDetails, state: LinkState) -> Iterator[Wish]:
    """The link itself, before any address. Names that a tenant gave go first: one may be the link's own."""
    index, name = link.ifindex, state.ifname
    renamed, other_mac = link.ifname != name, bool(state.mac) and link.mac != state.mac
    if link.is_up and (renamed or other_mac or not state.up):
        # Kernels before 6.2 rename only what is down; many drivers take a MAC address only then.
        yield Wish("up", _flags_request(link, name, 0, IFF_UP, "set down"))
    for altname in link.altnames:
        if altname not in state.altnames:
            yield Wish("alternative names", delete_altnames_request(index, [altname], name))
    if renamed:
        yield _set(link, name, "name", "rename", attribute_text(IFLA_IFNAME, name))
    for altname in state.altnames:
        if altname not in link.altnames:
            yield Wish("alternative names", _add_altname_request(index, altname, name))
    if other_mac:
        yield _set(link, name, "mac", "set mac", attribute(IFLA_ADDRESS, mac_bytes(state.mac)))
    yield from _iter_property_wishes(link, state)
    yield from _iter_flag_wishes(link, state)
    yield from _iter_detail_wishes(link, details, state)


def _iter_property_wishes(link: Link, state: LinkState) -> Iterator[Wish]:
    name = state.ifname
    if link.mtu != state.mtu:
        yield _set(link, name, "mtu", "set mtu", attribute_u32(IFLA_MTU, state.mtu))
    if link.alias != state.alias:
        yield _set(link, name, "alias", "set alias", attribute(IFLA_IFALIAS, state.alias.encode()))
    if link.tx_queue_length != state.tx_queue_length:
        length = attribute_u32(IFLA_TXQLEN, state.tx_queue_length)
        yield _set(link, name, "tx queue length", "set tx queue length", length)
    if link.group != state.group:
        yield _set(link, name, "group", "set group", attribute_u32(IFLA_GROUP, state.group))


def _iter_flag_wishes(link: Link, state: LinkState) -> Iterator[Wish]:
    wanted = (
        ("promiscuous", IFF_PROMISC, state.promiscuous),
        ("all-multicast", IFF_ALLMULTI, state.all_multicast),
        ("arp", IFF_NOARP, not state.arp),
        ("multicast", IFF_MULTICAST, state.multicast),
        ("flags", ODD_FLAGS, False),
    )
    for what, flags, is_set in wanted:
        if bool(link.flags & flags) != is_set:
            request = _flags_request(link, state.ifname, flags if is_set else 0, flags, f"set {what}")
            yield Wish(what, request)


def _iter_detail_wishes(link: Link, details: LinkDetails, state: LinkState) -> Iterator[Wish]:
    name = state.ifname
    if "link mode" in details.oddities:
        mode = attribute_u8(IFLA_LINKMODE, LINK_MODE_DEFAULT)
        yield _set(link, name, "link mode", "set link mode", mode)
    if "broadcast address" in details.oddities:
        address = attribute(IFLA_BROADCAST, ETHERNET_BROADCAST)
        yield _set(link, name, "broadcast address", "set broadcast address", address)
    if any(details.offload_sizes.get(size) != value for size, value in state.offload_sizes.items()):
        for size, kind in SIZES.items():  # all of them, as one may set another
            if size in state.offload_sizes:
                yield _set(link, name, size, f"set {size}", attribute_u32(kind, state.offload_sizes[size]))


def iter_network_wishes(link: Link, present: Sequence[Address], state: LinkState) -> Iterator[Wish]:
    """In the order the kernel needs: IPv4 before up, IPv6 after it (an address with a lifetime gets its
    prefix route only on a link that is up), then routes, link-scope ones first."""
    there = {address_key(address) for address in present}
    missing = [address for address in state.addresses if address_key(address) not in there]
    ipv4 = [address for address in missing if ":" not in address.cidr]
    ipv6 = [address for address in reversed(missing) if ":" in address.cidr]  # the kernel lists newest first
    index, name = link.ifindex, state.ifname
    yield from (_add_address(link, address, state) for address in ipv4)
    if state.up:
        yield Wish("up", _flags_request(link, name, IFF_UP, IFF_UP, "set up"))
    yield from (_add_address(link, address, state, skip_dad=True) for address in ipv6)
    for route in sorted(state.routes, key=lambda route: bool(route.gateway)):
        yield Wish(route_what(route), add_route_request(index, route, name), route)
    for entry in state.neighbours:
        yield Wish(neighbour_what(entry), add_neighbour_request(index, entry, name))
    # Now that routes could name them as source: without the mark, as they were.
    yield from (_add_address(link, address, state) for address in ipv6 if not address.flags & IFA_F_NODAD)


def iter_extra_address_wishes(link: Link, present: Sequence[Address], state: LinkState) -> Iterator[Wish]:
    """Take off the addresses that nobody recorded."""
    wanted = {address_key(address) for address in state.addresses}
    for address in present:
        if address_key(address) not in wanted:
            request = delete_address_request(link.ifindex, replace(address, flags=0), state.ifname)
            yield Wish(address_what(address), request)


def iter_traffic_wishes(link: Link, present: LinkState, state: LinkState) -> Iterator[Wish]:
    """Qdiscs and classes that are not there, or are others."""
    missing = [item for item in state.traffic_control if item not in present.traffic_control]
    requests = add_requests(link.ifindex, missing, state.ifname)
    yield from (Wish(traffic_what(item), request) for item, request in zip(missing, requests, strict=True))


def _add_address(link: Link, address: Address, state: LinkState, skip_dad: bool = False) -> Wish:
    request = add_address_request(link.ifindex, address, state.ifname, skip_dad=skip_dad)
    return Wish(address_what(address), request)


def _set(link: Link, name: str, what: str, operation: str, encoded: bytes) -> Wish:
    return Wish(what, set_link_request(link.ifindex, encoded, operation=operation, link=name))


def _flags_request(link: Link, name: str, flags: int, change: int, operation: str) -> Request:
    return set_link_request(link.ifindex, operation=operation, link=name, flags=flags, change=change)


def _add_altname_request(ifindex: int, altname: str, link: str) -> Request:
    body = link_header(ifindex) + nested(IFLA_PROP_LIST, attribute_text(IFLA_ALT_IFNAME, altname))
    return Request(RTM_NEWLINKPROP, body, operation=f"add alternative name {altname} of", link=link)
