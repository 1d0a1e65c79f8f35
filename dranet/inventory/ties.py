"""Which links the node lives by, and what is tied to them: the first thing that is never given away.

The node lives by its uplinks (the links of its default routes, and those by which rules send the traffic of
others, such as pods) and by its protected addresses (its own addresses and that of the API server).
A link is tied to one of them if taking it away, or taking along what belongs to it, may cut the node off.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from dranet.inventory.build import carrier
from dranet.model.facts import Link, NodeFacts, PciFunction
from dranet.model.uplinks import (
    DEFAULT_ROUTE,
    OPENVSWITCH,
    TUNNEL_KINDS,
    UNTOLD,
    UNTOLD_DEFAULT_ROUTE,
    Addresses,
    Routing,
    find_uplinks,
    has_local_parent,
    is_hardware,
    may_carry,
)


class Tie(Struct, frozen=True):
    """Why a link stays home."""

    root: str
    """Name of the link that the node lives by; the link itself or one that it is tied to."""
    why: str
    """What ``root`` does for the node: ``carries a default route``."""
    is_uplink: bool
    """It carries a default route, or traffic of others by policy routing (else a protected address)."""

    def reason_for(self, ifname: str) -> str:
        """A clause that reads after the device's name."""
        if ifname != self.root:
            part = "the node's uplink" if self.is_uplink else f"which {self.why}"
            return f"is tied to {self.root}, {part}"
        return f"is the node's uplink: {self.root} {self.why}" if self.is_uplink else self.why


class Ties(Struct, frozen=True):
    """Everything that must stay on the node."""

    links: Mapping[str, Tie]
    """By interface name."""
    functions: Mapping[str, Tie]
    """Physical functions of tied virtual functions, by PCI address: without its driver, or with it in
    another namespace, a virtual function is cut off or re-made."""


def find_ties(facts: NodeFacts) -> Ties:
    """Walk from each link that the node lives by along masters, ports, parents and children, to the end.

    A link that the scan missed (it came while the kernel listed them) still ties its relatives.
    """
    by_index = {link.ifindex: link for link in facts.links}
    ties = _roots(facts, by_index)
    if not ties:
        return Ties({}, {})
    relations = _relations(facts.links)
    _walk(ties, relations)
    ties |= _below_tunnels(ties, facts.links)
    _walk(ties, relations)
    links = {by_index[index].ifname: tie for index, tie in ties.items() if index in by_index}
    return Ties(links, _physical_functions(facts, ties))


def _roots(facts: NodeFacts, by_index: Mapping[int, Link]) -> dict[int, Tie]:
    def name(index: int) -> str:
        return by_index[index].ifname if index in by_index else f"interface {index}"

    routing = Routing(facts.default_routes, facts.rules, facts.policy_routes)
    addresses = Addresses(lambda: {link.ifindex: link.addresses for link in facts.links})
    uplinks = find_uplinks(routing, by_index.get, addresses)
    untold = [
        f"may carry {line.purpose} {line.address}, {UNTOLD}"
        for line in facts.protected_links
        if not line.ifindex
    ]
    untold += [UNTOLD_DEFAULT_ROUTE] if uplinks.untold else []
    ties: dict[int, Tie] = {}
    for why in untold:
        cards = (link for link in facts.links if may_carry(link))
        ties |= {link.ifindex: Tie(link.ifname, why, is_uplink=why == UNTOLD_DEFAULT_ROUTE) for link in cards}
    for line in reversed([line for line in facts.protected_links if line.ifindex]):
        ties[line.ifindex] = Tie(
            name(line.ifindex), f"carries {line.purpose} {line.address}", is_uplink=False
        )
    ways = {**uplinks.by_policy, **dict.fromkeys(uplinks.by_default, DEFAULT_ROUTE)}
    return ties | {index: Tie(name(index), ways[index], is_uplink=True) for index in sorted(ways)}


def _below_tunnels(ties: Mapping[int, Tie], links: Sequence[Link]) -> dict[int, Tie]:
    """If the node's way out is a tunnel (PPPoE, WireGuard ...) and no hardware is known below it, it may be
    any that is up."""
    tied = [link for link in links if link.ifindex in ties]
    uplinks = [link for link in tied if ties[link.ifindex].why == DEFAULT_ROUTE]
    ways = uplinks or [link for link in tied if not ties[link.ifindex].is_uplink] or tied
    tunnels = [ties[link.ifindex] for link in ways if link.kind in TUNNEL_KINDS]
    if not tunnels or any(map(is_hardware, ways)):
        return {}
    candidates = (link for link in links if link.ifindex not in ties)
    return {link.ifindex: tunnels[0] for link in candidates if link.is_up and is_hardware(link)}


def _walk(ties: dict[int, Tie], neighbours: Mapping[int, Sequence[int]]) -> None:
    queue = list(ties)
    while queue:
        index = queue.pop()
        for other in neighbours.get(index, ()):
            if other not in ties:
                ties[other] = ties[index]
                queue.append(other)


def _relations(links: Iterable[Link]) -> Mapping[int, Sequence[int]]:
    neighbours: dict[int, list[int]] = defaultdict(list)
    for one, other in _pairs(links):
        neighbours[one].append(other)
        neighbours[other].append(one)
    return neighbours


def _pairs(links: Iterable[Link]) -> Iterator[tuple[int, int]]:
    """A synthetic card and the function under it have one hardware address, also while the second has come
    and is not yet enslaved to the first."""
    switch_port = 0
    cards: dict[str, int] = {}
    for link in links:
        if not link.virtual and is_hardware(link) and link.mac.strip("0:"):
            yield link.ifindex, cards.setdefault(link.mac, link.ifindex)
        if link.master:
            yield link.ifindex, link.master
        if link.lower and link.link_netnsid is None and has_local_parent(link):
            yield link.ifindex, link.lower
        if link.kind == OPENVSWITCH:
            if switch_port:
                yield link.ifindex, switch_port
            switch_port = link.ifindex


def _physical_functions(facts: NodeFacts, ties: Mapping[int, Tie]) -> dict[str, Tie]:
    """Only upwards: virtual functions of an uplink that nobody uses are what SR-IOV is made for."""
    functions: Mapping[str, PciFunction] = {function.address: function for function in facts.pci_functions}
    found: dict[str, Tie] = {}
    for link in facts.links:
        if link.ifindex in ties and link.pci_address:
            function = functions.get(carrier(link, functions))
            if function and function.physical_function:
                found.setdefault(function.physical_function, ties[link.ifindex])
    return found
