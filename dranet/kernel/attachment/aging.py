"""What time has left of a recorded link state when the host gets the link back. Pure.

An address with a lifetime is lent, by a DHCP server or by a router. Its time goes on while a pod has the
link. When that is over another host may have the address, so it is not restored (RFC 2131, 4.4.5; RFC 4862,
5.5.4). The host does not lose what it would have kept: for the programs that asked for the address
(systemd-networkd, NetworkManager, dhcpcd, the kernel) the link that returns is a new one, and they ask again.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface

from msgspec.structs import replace

from dranet.kernel.inet import RTNH_F_ONLINK, RTPROT_RA
from dranet.model.facts import Address, Route
from dranet.model.plan import LinkState


def age_state(state: LinkState, now: float) -> LinkState:
    """The state with what is left of its lifetimes, ``now`` seconds after boot; without addresses whose time
    is over, the routes that need them, and routes that a program makes of router advertisements."""
    elapsed = 0 if state.read_at is None else max(0, int(now - state.read_at))
    aged = [_age(address, elapsed) for address in state.addresses]
    left = tuple(address for address in aged if address.valid_seconds != 0)
    ended = [address for address in aged if address.valid_seconds == 0]
    routes = [route for route in state.routes if route.protocol != RTPROT_RA]
    on_link = {route.destination for route in routes if not route.gateway}
    reached = [*map(_interface, left), *map(ip_interface, on_link)]
    kept = (route for route in routes if not _needs(route, [*map(_interface, ended)], reached))
    return replace(state, addresses=left, routes=tuple(kept))


def _age(address: Address, elapsed: int) -> Address:
    valid, preferred = address.valid_seconds, address.preferred_seconds
    return replace(
        address,
        valid_seconds=None if valid is None else max(0, valid - elapsed),
        preferred_seconds=None if preferred is None else max(0, preferred - elapsed),
    )


def _needs(
    route: Route,
    ended: Collection[IPv4Interface | IPv6Interface],
    reached: Collection[IPv4Interface | IPv6Interface],
) -> bool:
    """Whether a route has an ended address as its source, or its gateway was reached by such a one alone."""
    if route.source and ip_address(route.source) in {interface.ip for interface in ended}:
        return True
    if not route.gateway or route.flags & RTNH_F_ONLINK:
        return False
    gateway = ip_address(route.gateway)
    return _is_in(gateway, ended) and not _is_in(gateway, reached)


def _is_in(gateway: object, interfaces: Collection[IPv4Interface | IPv6Interface]) -> bool:
    return any(gateway in interface.network for interface in interfaces)


def _interface(address: Address) -> IPv4Interface | IPv6Interface:
    return ip_interface(address.peer or address.cidr)
