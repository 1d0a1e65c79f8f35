"""What a link still lacks of its recorded state. Pure: two readings are compared.

No difference are, because they change by themselves: the index of a link whose old one was taken meanwhile;
the lifetimes of an address, as long as it still has some; those flags of an address that are not set by an
administrator; what coalescing works with while a driver adapts it (``ethtool.difference``). Carrier and speed
are not recorded in the first place. What a link has beyond its record (addresses, routes, neighbours, qdiscs)
is no difference either: a move takes all of that off, so somebody on the host added it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dranet.kernel.attachment.linkstate import LinkDetails
from dranet.kernel.netlink.inet import (
    IFA_F_MANAGETEMPADDR,
    IFA_F_MCAUTOJOIN,
    IFA_F_NODAD,
    IFA_F_NOPREFIXROUTE,
)
from dranet.kernel.netlink.tc import format_handle
from dranet.model.facts import Address, Neighbour, Route
from dranet.model.plan import LinkState, TrafficControl

NOTHING = "nothing"

_ADDRESS_FLAGS = IFA_F_NODAD | IFA_F_MANAGETEMPADDR | IFA_F_NOPREFIXROUTE | IFA_F_MCAUTOJOIN
"""Those that an administrator sets."""

_PROPERTIES = {
    "name": "ifname",
    "mac": "mac",
    "mtu": "mtu",
    "alias": "alias",
    "tx queue length": "tx_queue_length",
    "group": "group",
    "up": "up",
    "promiscuous": "promiscuous",
    "all-multicast": "all_multicast",
    "arp": "arp",
    "multicast": "multicast",
    "token": "token",
}

Item = TypeVar("Item", Address, Route, Neighbour, TrafficControl)


class Difference(Struct, frozen=True):
    """One thing that is not as recorded. ``what`` tells it from others: ``mtu``, ``route 10.0.0.0/8``."""

    what: str
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"{self.what}: {self.outcome}"

    @property
    def outcome(self) -> str:
        """The second half of the line, for where the kernel's own words are the first."""
        return f"wanted {self.wanted}, found {self.found}"


def find_differences(wanted: LinkState, found: LinkState, details: LinkDetails) -> list[Difference]:
    """In what the link falls behind its record; ethtool's settings and programs have their own functions."""
    return [
        *_differing_properties(wanted, found),
        *(Difference(what, "the kernel's default", value) for what, value in details.oddities.items()),
        *_differing_values("", wanted.offload_sizes, found.offload_sizes),
        *_missing(wanted.addresses, found.addresses, address_what, _say_address, _steady_address),
        *_missing(wanted.routes, found.routes, route_what, _say_route, _steady_route),
        *_missing(wanted.neighbours, found.neighbours, neighbour_what, _say_neighbour),
        *_missing(wanted.traffic_control, found.traffic_control, traffic_what, _say_traffic),
        *_differing_values("sysctl ", wanted.sysctls, found.sysctls),
    ]


def _differing_properties(wanted: LinkState, found: LinkState) -> Iterator[Difference]:
    for what, name in _PROPERTIES.items():
        before, now = getattr(wanted, name), getattr(found, name)
        if before != now and (before or name != "mac"):  # some tunnels have no address to give back
            yield Difference(what, _say(before), _say(now))
    if sorted(wanted.altnames) != sorted(found.altnames):
        yield Difference("alternative names", _say_names(wanted.altnames), _say_names(found.altnames))


def _differing_values(
    prefix: str, wanted: Mapping[str, object], found: Mapping[str, object]
) -> Iterator[Difference]:
    for name, value in wanted.items():
        if found.get(name) != value:
            yield Difference(f"{prefix}{name}", _say(value), _say(found.get(name)))


def _missing(
    wanted: Sequence[Item],
    found: Sequence[Item],
    what: Callable[[Item], str],
    say: Callable[[Item], str],
    steady: Callable[[Item], Item] = lambda item: item,
) -> Iterator[Difference]:
    """The wanted items that are not there, each with what is in its place."""
    present = [steady(item) for item in found]
    expected = [steady(item) for item in wanted]
    for item in expected:
        if item not in present:
            others = [say(other) for other in present if what(other) == what(item) and other not in expected]
            yield Difference(what(item), say(item), " and ".join(others) or NOTHING)


# --- what tells items apart, and the rest of them in words ----------------------------------------------


def address_what(address: Address) -> str:
    """``address 10.0.0.5/24``."""
    return f"address {address.cidr}" + (f" peer {address.peer}" if address.peer else "")


def _steady_address(address: Address) -> Address:
    return replace(
        address,
        flags=address.flags & _ADDRESS_FLAGS,
        valid_seconds=None if address.valid_seconds is None else 0,
        preferred_seconds=None if address.preferred_seconds is None else 0,
    )


def _say_address(address: Address) -> str:
    label = f" label {address.label}" if address.label else ""
    broadcast = f" broadcast {address.broadcast}" if address.broadcast else ""
    lifetime = "for ever" if address.valid_seconds is None else "with a lifetime"
    metric = f" metric {address.metric}" if address.metric else ""
    return f"scope {address.scope} flags {address.flags:#x}{label}{broadcast}{metric} {lifetime}"


def route_what(route: Route) -> str:
    """``route 10.0.0.0/8 table 77 metric 50``; main table and no metric are not said."""
    table = f" table {route.table}" if route.table != Route("").table else ""
    return f"route {route.destination}{table}" + (f" metric {route.metric}" if route.metric else "")


def _steady_route(route: Route) -> Route:
    return replace(route, ifindex=0, next_hops=())


def _say_route(route: Route) -> str:
    parts = (
        f"via {route.gateway}" if route.gateway else "direct",
        f"src {route.source}" if route.source else "",
        f"mtu {route.mtu}" if route.mtu else "",
        f"scope {route.scope} protocol {route.protocol} type {route.type} flags {route.flags:#x}",
    )
    return " ".join(part for part in parts if part)


def neighbour_what(neighbour: Neighbour) -> str:
    """``neighbour 10.0.0.9``, ``proxy neighbour 10.0.0.9``."""
    return f"{'proxy ' if neighbour.proxy else ''}neighbour {neighbour.address}"


def _say_neighbour(neighbour: Neighbour) -> str:
    return neighbour.mac or "answered for"


def traffic_what(item: TrafficControl) -> str:
    """``qdisc htb 1:`` or ``class htb 1:10``."""
    return f"{item.what} {item.kind} {format_handle(item.handle)}"


def _say_traffic(item: TrafficControl) -> str:
    options = f" options {item.options}" if item.options else ""
    return f"parent {format_handle(item.parent)}{options}"


def _say(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return NOTHING if value in (None, "") else str(value)


def _say_names(names: Sequence[str]) -> str:
    return " ".join(sorted(names)) or NOTHING
