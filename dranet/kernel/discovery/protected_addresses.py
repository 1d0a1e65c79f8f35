"""Find the links through which the node reaches its protected addresses, or that have them.

Its own addresses are searched among the links. For other addresses the kernel returns the route that it would
take, including policy rules; every next hop of a multipath route counts.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from ipaddress import ip_address

from msgspec import Struct

from dranet.errors import KernelError
from dranet.kernel.netlink.inet import dump_addresses_request, find_route_request, parse_address, parse_routes
from dranet.kernel.netlink.rtnl import decode_all
from dranet.kernel.netlink.socket import NetlinkSocket
from dranet.model.facts import Address, Link, ProtectedLink
from dranet.model.uplinks import is_untold, outputs


class ProtectedAddress(Struct, frozen=True):
    """One address that the node must keep reaching. A text that is not an IP address has no link."""

    purpose: str
    """Reads after "carries": ``the route to the API server``, ``the node's address``."""
    address: str
    is_own: bool
    """Find the link that has the address; else ask the kernel for the route to it."""

    @property
    def packed(self) -> bytes:
        """4 or 16 bytes; empty for what is no address."""
        try:
            return ip_address(self.address).packed
        except ValueError:
            return b""


def find_protected_links(
    rtnl: NetlinkSocket, targets: Sequence[ProtectedAddress], links: Iterable[Link]
) -> tuple[ProtectedLink, ...]:
    """Return one entry for each link that carries a target. Unreachable addresses have none.

    Raises:
        KernelError: netlink itself failed.
    """
    addresses = ((link.ifindex, address) for link in links for address in link.addresses)
    return (*_at_own(targets, addresses), *_by_route(rtnl, targets))


def read_protected_links(
    rtnl: NetlinkSocket, targets: Sequence[ProtectedAddress]
) -> tuple[ProtectedLink, ...]:
    """As :func:`find_protected_links` without knowing the links: the kernel is asked for their addresses.

    Raises:
        KernelError: netlink itself failed.
    """
    own = [target.packed for target in targets if target.is_own and target.packed]
    payloads = rtnl.dump(dump_addresses_request()) if own else []
    worth = (payload for payload in payloads if any(packed in payload for packed in own))
    return (
        *_at_own(targets, decode_all(partial(parse_address, names={}), worth, [])),
        *_by_route(rtnl, targets),
    )


def _at_own(
    targets: Iterable[ProtectedAddress], addresses: Iterable[tuple[int, Address]]
) -> Iterator[ProtectedLink]:
    wanted = {_as_the_kernel_prints(t.packed): t for t in targets if t.is_own and t.packed}
    for ifindex, address in addresses if wanted else ():
        target = wanted.get(address.cidr.partition("/")[0])
        if target is not None:
            yield ProtectedLink(target.purpose, target.address, ifindex)


def _by_route(rtnl: NetlinkSocket, targets: Iterable[ProtectedAddress]) -> Iterator[ProtectedLink]:
    """A refusal means that there is no route now; a notification reports a new one."""
    others = [target for target in targets if target.packed and not target.is_own]
    outcomes = rtnl.batch([find_route_request(target.address) for target in others])
    for target, outcome in zip(others, outcomes, strict=True):
        answers = () if isinstance(outcome, KernelError) else outcome
        routes = parse_routes(rtnl, (message.payload for message in answers), [])
        ways = outputs(routes) | ({0} if any(map(is_untold, routes)) else set())
        yield from (ProtectedLink(target.purpose, target.address, index) for index in sorted(ways))


def _as_the_kernel_prints(packed: bytes) -> str:
    """The text of an address as ``inet.parse_address`` gives it, whatever way it was spelled before."""
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)
