"""Recorded properties of a link: how two readings differ, and the requests that restore the first. No I/O.

Each request restores one property, so that a refusal affects no other, and names the difference it removes.

Not a difference is what happens by itself: the index of a link whose old index was taken meanwhile; the
remaining lifetime of an address; address flags that an administrator does not set; the coalescing values that
an adaptive driver chooses. Neither are additions (addresses, routes, neighbours, qdiscs): a move removes them
all, so a program on the host added them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dranet.kernel.attachment.links import (
    ETHERNET_BROADCAST,
    IFLA_BROADCAST,
    IFLA_LINKMODE,
    LINK_MODE_DEFAULT,
    ODD_FLAGS,
    SIZES,
    LinkDetails,
)
from dranet.kernel.netlink import inet, rtnl
from dranet.kernel.netlink.socket import (
    Request,
    attribute,
    attribute_text,
    attribute_u8,
    attribute_u32,
    nested,
)
from dranet.kernel.netlink.tc import add_requests, format_handle
from dranet.model.facts import IFA_F_NODAD, Address, Link, Neighbour, Route
from dranet.model.plan import LinkState, TrafficControl

NOTHING = "nothing"

Item = TypeVar("Item", Address, Route, Neighbour, TrafficControl)


class Property(Struct, frozen=True):
    """One field of ``LinkState``, and what sets it: an attribute of RTM_NEWLINK, or a flag. ``up`` and
    ``token`` have neither: they are set at their own time."""

    what: str
    field: str
    encode: Callable[[LinkState], bytes] | None = None
    flag: int = 0
    is_inverted: bool = False
    """The kernel sets the flag when the field is false."""


NAME, MAC = (
    Property("name", "ifname", lambda state: attribute_text(rtnl.IFLA_IFNAME, state.ifname)),
    Property("mac", "mac", lambda state: attribute(rtnl.IFLA_ADDRESS, rtnl.mac_bytes(state.mac))),
)
PROPERTIES = (
    NAME,
    MAC,
    Property("mtu", "mtu", lambda state: attribute_u32(rtnl.IFLA_MTU, state.mtu)),
    Property("alias", "alias", lambda state: attribute(rtnl.IFLA_IFALIAS, state.alias.encode())),
    Property(
        "tx queue length",
        "tx_queue_length",
        lambda state: attribute_u32(rtnl.IFLA_TXQLEN, state.tx_queue_length),
    ),
    Property("group", "group", lambda state: attribute_u32(rtnl.IFLA_GROUP, state.group)),
    Property("up", "up"),
    Property("promiscuous", "promiscuous", flag=rtnl.IFF_PROMISC),
    Property("all-multicast", "all_multicast", flag=rtnl.IFF_ALLMULTI),
    Property("arp", "arp", flag=rtnl.IFF_NOARP, is_inverted=True),
    Property("multicast", "multicast", flag=rtnl.IFF_MULTICAST),
    Property("token", "token"),
)
"""In the order in which they are compared and requested."""


# --- differences ----------------------------------------------------------------------------------------


class Difference(Struct, frozen=True):
    """One thing that is not as recorded. ``what`` identifies it: ``mtu``, ``route 10.0.0.0/8``."""

    what: str
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"{self.what}: {self.outcome}"

    @property
    def outcome(self) -> str:
        """The second half of the line, which follows the kernel's error text where there is one."""
        return f"wanted {self.wanted}, found {self.found}"


def find_differences(wanted: LinkState, found: LinkState, details: LinkDetails) -> list[Difference]:
    """Compare everything except settings in the card (``hardware``) and programs (``restore``)."""
    return [
        *(
            Difference(item.what, _text(getattr(wanted, item.field)), _text(getattr(found, item.field)))
            for item in _differing(wanted, found)
        ),
        *_differing_values("", _joined_altnames(wanted), _joined_altnames(found)),
        *(Difference(what, "the kernel's default", value) for what, value in details.oddities.items()),
        *_differing_values("", wanted.offload_sizes, found.offload_sizes),
        *_missing(wanted.addresses, found.addresses, address_what, _address_text, _steady_address),
        *_missing(wanted.routes, found.routes, route_what, _route_text, _steady_route),
        *_missing(
            wanted.neighbours, found.neighbours, neighbour_what, lambda n: n.mac or "answered by proxy"
        ),
        *_missing(wanted.traffic_control, found.traffic_control, traffic_what, _traffic_text),
        *_differing_values("sysctl ", wanted.sysctls, found.sysctls),
    ]


def _differing(wanted: LinkState, found: LinkState) -> list[Property]:
    """Skip a MAC address that was not recorded: some tunnels have none to restore."""
    return [
        item
        for item in PROPERTIES
        if getattr(wanted, item.field) != getattr(found, item.field) and (wanted.mac or item is not MAC)
    ]


def _joined_altnames(state: LinkState) -> dict[str, str]:
    return {"alternative names": " ".join(sorted(state.altnames))}


def _differing_values(
    prefix: str, wanted: Mapping[str, object], found: Mapping[str, object]
) -> Iterator[Difference]:
    for name, value in wanted.items():
        if found.get(name) != value:
            yield Difference(f"{prefix}{name}", _text(value), _text(found.get(name)))


def _missing(
    wanted: Sequence[Item],
    found: Sequence[Item],
    what: Callable[[Item], str],
    text: Callable[[Item], str],
    steady: Callable[[Item], Item] = lambda item: item,
) -> Iterator[Difference]:
    present = [steady(item) for item in found]
    expected = [steady(item) for item in wanted]
    for item in expected:
        if item not in present:
            others = [text(other) for other in present if what(other) == what(item) and other not in expected]
            yield Difference(what(item), text(item), " and ".join(others) or NOTHING)


# --- requests -------------------------------------------------------------------------------------------


class RestoreRequest(Struct, frozen=True):
    """One request, the difference that it removes, and the route that it adds if it adds one."""

    what: str
    request: Request
    route: Route | None = None


def iter_link_requests(
    link: Link, details: LinkDetails, present: LinkState, state: LinkState
) -> Iterator[RestoreRequest]:
    """Restore the link itself, before any address. Names that a tenant gave go first: one may be its own."""
    differing = _differing(state, present)
    if link.is_up and (NAME in differing or MAC in differing or not state.up):
        # Kernels before 6.2 rename only what is down; many drivers take a MAC address only then.
        yield _set_flags("up", link, state, 0, rtnl.IFF_UP, "set down")
    for altname in link.altnames:
        if altname not in state.altnames:
            request = rtnl.delete_altnames_request(link.ifindex, [altname], state.ifname)
            yield RestoreRequest("alternative names", request)
    if NAME in differing:
        yield _set(NAME.what, link, state, attribute_text(rtnl.IFLA_IFNAME, state.ifname), operation="rename")
    for altname in state.altnames:
        if altname not in link.altnames:
            body = rtnl.link_header(link.ifindex) + nested(
                rtnl.IFLA_PROP_LIST, attribute_text(rtnl.IFLA_ALT_IFNAME, altname)
            )
            operation = f"add alternative name {altname} of"
            request = Request(rtnl.RTM_NEWLINKPROP, body, operation=operation, link=state.ifname)
            yield RestoreRequest("alternative names", request)
    for item in differing:
        if item.encode is not None and item is not NAME:
            yield _set(item.what, link, state, item.encode(state))
        elif item.flag:
            is_set = getattr(state, item.field) != item.is_inverted
            yield _set_flags(item.what, link, state, item.flag if is_set else 0, item.flag)
    yield from _iter_detail_requests(link, details, state)


def _iter_detail_requests(link: Link, details: LinkDetails, state: LinkState) -> Iterator[RestoreRequest]:
    if link.flags & ODD_FLAGS:
        yield _set_flags("flags", link, state, 0, ODD_FLAGS)
    if "link mode" in details.oddities:
        yield _set("link mode", link, state, attribute_u8(IFLA_LINKMODE, LINK_MODE_DEFAULT))
    if "broadcast address" in details.oddities:
        yield _set("broadcast address", link, state, attribute(IFLA_BROADCAST, ETHERNET_BROADCAST))
    if any(details.offload_sizes.get(size) != value for size, value in state.offload_sizes.items()):
        for size, kind in SIZES.items():  # all of them, because one may set another
            if size in state.offload_sizes:
                yield _set(size, link, state, attribute_u32(kind, state.offload_sizes[size]))


def iter_network_requests(
    link: Link, present: Sequence[Address], state: LinkState
) -> Iterator[RestoreRequest]:
    """Restore addresses, routes and neighbours in the order that the kernel needs: IPv4 addresses, "up", IPv6
    addresses (one with a lifetime gets its prefix route only on a link that is up), then routes, link-scope
    ones first."""
    there = {inet.address_key(address) for address in present}
    missing = [address for address in state.addresses if inet.address_key(address) not in there]
    ipv4 = [address for address in missing if ":" not in address.cidr]
    ipv6 = [address for address in reversed(missing) if ":" in address.cidr]  # the kernel lists newest first
    index, name = link.ifindex, state.ifname
    yield from (_add_address(link, address, state) for address in ipv4)
    if state.up:
        yield _set_flags("up", link, state, rtnl.IFF_UP, rtnl.IFF_UP)
    yield from (_add_address(link, address, state, skip_dad=True) for address in ipv6)
    for route in sorted(state.routes, key=lambda route: bool(route.gateway)):
        yield RestoreRequest(route_what(route), inet.add_route_request(index, route, name), route)
    for entry in state.neighbours:
        yield RestoreRequest(neighbour_what(entry), inet.add_neighbour_request(index, entry, name))
    # Routes could name them as source while they had the flag; now they lose it.
    yield from (_add_address(link, address, state) for address in ipv6 if not address.flags & IFA_F_NODAD)


def iter_extra_address_requests(
    link: Link, present: Sequence[Address], state: LinkState
) -> Iterator[RestoreRequest]:
    wanted = {inet.address_key(address) for address in state.addresses}
    for address in present:
        if inet.address_key(address) not in wanted:
            request = inet.delete_address_request(link.ifindex, replace(address, flags=0), state.ifname)
            yield RestoreRequest(address_what(address), request)


def iter_traffic_requests(link: Link, present: LinkState, state: LinkState) -> Iterator[RestoreRequest]:
    missing = [item for item in state.traffic_control if item not in present.traffic_control]
    requests = add_requests(link.ifindex, missing, state.ifname)
    for item, request in zip(missing, requests, strict=True):
        yield RestoreRequest(traffic_what(item), request)


def _add_address(link: Link, address: Address, state: LinkState, skip_dad: bool = False) -> RestoreRequest:
    request = inet.add_address_request(link.ifindex, address, state.ifname, skip_dad=skip_dad)
    return RestoreRequest(address_what(address), request)


def _set(what: str, link: Link, state: LinkState, encoded: bytes, operation: str = "") -> RestoreRequest:
    request = rtnl.set_link_request(
        link.ifindex, encoded, operation=operation or f"set {what}", link=state.ifname
    )
    return RestoreRequest(what, request)


def _set_flags(
    what: str, link: Link, state: LinkState, flags: int, change: int, operation: str = ""
) -> RestoreRequest:
    request = rtnl.set_link_request(
        link.ifindex, operation=operation or f"set {what}", link=state.ifname, flags=flags, change=change
    )
    return RestoreRequest(what, request)


# --- what identifies an item, and the text of the rest -------------------------------------------------


def address_what(address: Address) -> str:
    return f"address {address.cidr}" + (f" peer {address.peer}" if address.peer else "")


def _steady_address(address: Address) -> Address:
    return replace(
        address,
        flags=address.flags & inet.SETTABLE_ADDRESS_FLAGS,
        valid_seconds=None if address.valid_seconds is None else 0,
        preferred_seconds=None if address.preferred_seconds is None else 0,
    )


def _address_text(address: Address) -> str:
    label = f" label {address.label}" if address.label else ""
    broadcast = f" broadcast {address.broadcast}" if address.broadcast else ""
    lifetime = "without a lifetime" if address.valid_seconds is None else "with a lifetime"
    metric = f" metric {address.metric}" if address.metric else ""
    return f"scope {address.scope} flags {address.flags:#x}{label}{broadcast}{metric} {lifetime}"


def route_what(route: Route) -> str:
    """``route 10.0.0.0/8 table 77 metric 50``; the main table and metric 0 are omitted."""
    table = f" table {route.table}" if route.table != Route("").table else ""
    return f"route {route.destination}{table}" + (f" metric {route.metric}" if route.metric else "")


def _steady_route(route: Route) -> Route:
    return replace(route, ifindex=0, next_hops=())


def _route_text(route: Route) -> str:
    parts = (
        f"via {route.gateway}" if route.gateway else "direct",
        f"src {route.source}" if route.source else "",
        f"mtu {route.mtu}" if route.mtu else "",
        f"scope {route.scope} protocol {route.protocol} type {route.type} flags {route.flags:#x}",
    )
    return " ".join(part for part in parts if part)


def neighbour_what(neighbour: Neighbour) -> str:
    return f"{'proxy ' if neighbour.proxy else ''}neighbor {neighbour.address}"


def traffic_what(item: TrafficControl) -> str:
    return f"{item.what} {item.kind} {format_handle(item.handle)}"


def _traffic_text(item: TrafficControl) -> str:
    options = f" options {item.options}" if item.options else ""
    return f"parent {format_handle(item.parent)}{options}"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return NOTHING if value in (None, "") else str(value)
