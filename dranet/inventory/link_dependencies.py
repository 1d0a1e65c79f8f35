"""Find the links that the node needs, and everything that depends on them; these are never offered.

The node needs its uplinks (the links of its default routes, and those by which rules send the traffic of
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


class Dependency(Struct, frozen=True):
    """Why a link must stay on the node."""

    root: str
    """Name of the link that the node needs: the link itself or one that it depends on."""
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


class LinkDependencies(Struct, frozen=True):
    """Everything that must stay on the node."""

    links: Mapping[str, Dependency]
    """By interface name."""
    functions: Mapping[str, Dependency]
    """Physical functions of tied virtual functions, by PCI address: without its driver, or with it in
    another namespace, a virtual function is cut off or re-made."""


def find_link_dependencies(facts: NodeFacts) -> LinkDependencies:
    """Walk from each link that the node needs along masters, ports, parents and children, to the end.

    A link that the scan missed (it came while the kernel listed them) still connects its relatives.
    """
    by_index = {link.ifindex: link for link in facts.links}
    dependencies = _roots(facts, by_index)
    if not dependencies:
        return LinkDependencies({}, {})
    relations = _relations(facts.links)
    _walk(dependencies, relations)
    dependencies |= _below_tunnels(dependencies, facts.links)
    _walk(dependencies, relations)
    links = {
        by_index[index].ifname: dependency for index, dependency in dependencies.items() if index in by_index
    }
    return LinkDependencies(links, _physical_functions(facts, dependencies))


def _roots(facts: NodeFacts, by_index: Mapping[int, Link]) -> dict[int, Dependency]:
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
    dependencies: dict[int, Dependency] = {}
    for why in untold:
        cards = (link for link in facts.links if may_carry(link))
        dependencies |= {
            link.ifindex: Dependency(link.ifname, why, is_uplink=why == UNTOLD_DEFAULT_ROUTE)
            for link in cards
        }
    for line in reversed([line for line in facts.protected_links if line.ifindex]):
        dependencies[line.ifindex] = Dependency(
            name(line.ifindex), f"carries {line.purpose} {line.address}", is_uplink=False
        )
    ways = {**uplinks.by_policy, **dict.fromkeys(uplinks.by_default, DEFAULT_ROUTE)}
    return dependencies | {
        index: Dependency(name(index), ways[index], is_uplink=True) for index in sorted(ways)
    }


def _below_tunnels(dependencies: Mapping[int, Dependency], links: Sequence[Link]) -> dict[int, Dependency]:
    """If the node's way out is a tunnel (PPPoE, WireGuard ...) and no hardware is known below it, it may be
    any that is up."""
    tied = [link for link in links if link.ifindex in dependencies]
    uplinks = [link for link in tied if dependencies[link.ifindex].why == DEFAULT_ROUTE]
    ways = uplinks or [link for link in tied if not dependencies[link.ifindex].is_uplink] or tied
    tunnels = [dependencies[link.ifindex] for link in ways if link.kind in TUNNEL_KINDS]
    if not tunnels or any(map(is_hardware, ways)):
        return {}
    candidates = (link for link in links if link.ifindex not in dependencies)
    return {link.ifindex: tunnels[0] for link in candidates if link.is_up and is_hardware(link)}


def _walk(dependencies: dict[int, Dependency], neighbours: Mapping[int, Sequence[int]]) -> None:
    queue = list(dependencies)
    while queue:
        index = queue.pop()
        for other in neighbours.get(index, ()):
            if other not in dependencies:
                dependencies[other] = dependencies[index]
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


def _physical_functions(facts: NodeFacts, dependencies: Mapping[int, Dependency]) -> dict[str, Dependency]:
    """Find physical functions, not unused virtual functions of an uplink: those may be offered."""
    functions: Mapping[str, PciFunction] = {function.address: function for function in facts.pci_functions}
    found: dict[str, Dependency] = {}
    for link in facts.links:
        if link.ifindex in dependencies and link.pci_address:
            function = functions.get(carrier(link, functions))
            if function and function.physical_function:
                found.setdefault(function.physical_function, dependencies[link.ifindex])
    return found
