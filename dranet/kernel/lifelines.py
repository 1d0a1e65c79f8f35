"""By which links the node reaches, or answers at, the addresses that it cannot live without.

Its own addresses are looked for among the links. For others the kernel is asked which route it would take,
policy rules and all; of a multipath route every next hop counts.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from dranet.errors import KernelError
from dranet.kernel.inet import RTN_LOCAL, find_route_request, parse_route
from dranet.kernel.netlink import NetlinkSocket
from dranet.kernel.rtnl import decode
from dranet.model.facts import Lifeline, Link, Route


@dataclass(frozen=True, slots=True)
class LifelineTarget:
    """One address that the node cannot live without. What is no IP address has no lifeline."""

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


def find_lifelines(
    rtnl: NetlinkSocket, targets: Sequence[LifelineTarget], links: Iterable[Link]
) -> tuple[Lifeline, ...]:
    """One for each link that carries a target; none for an address that is nowhere or cannot be reached.

    Raises:
        KernelError: netlink itself failed.
    """
    own = [target for target in targets if target.is_own]
    others = [target for target in targets if not target.is_own]
    return (*_own_lifelines(own, links), *find_lifelines_by_route(rtnl, others))


def find_lifelines_by_route(rtnl: NetlinkSocket, targets: Sequence[LifelineTarget]) -> tuple[Lifeline, ...]:
    """As :func:`find_lifelines` without knowing the links: the route to an own address names its link, too.

    An address that a VRF has is not found this way.

    Raises:
        KernelError: netlink itself failed.
    """
    valid = [target for target in targets if target.packed]
    outcomes = rtnl.batch([find_route_request(target.address) for target in valid])
    found: list[Lifeline] = []
    for target, outcome in zip(valid, outcomes, strict=True):
        # A refusal says that there is no way now; when there is one, a notification tells.
        answers = () if isinstance(outcome, KernelError) else outcome
        routes = [decode(parse_route, message.payload) for message in answers]
        usable = (route for route in routes if route and (route.type == RTN_LOCAL or not target.is_own))
        found += (Lifeline(target.purpose, target.address, index) for index in sorted(outputs(usable)))
    return tuple(found)


def _own_lifelines(targets: Sequence[LifelineTarget], links: Iterable[Link]) -> Iterator[Lifeline]:
    wanted = {_as_the_kernel_prints(target.packed): target for target in targets if target.packed}
    for link in links if wanted else ():
        for address in link.addresses:
            target = wanted.get(address.cidr.partition("/")[0])
            if target is not None:
                yield Lifeline(target.purpose, target.address, link.ifindex)


def _as_the_kernel_prints(packed: bytes) -> str:
    """The text of an address as ``inet.parse_address`` gives it, whatever way it was spelled before."""
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def outputs(routes: Iterable[Route]) -> frozenset[int]:
    """The output interfaces of routes, every next hop among them."""
    return frozenset(i for route in routes for i in (route.ifindex, *route.next_hops) if i)
