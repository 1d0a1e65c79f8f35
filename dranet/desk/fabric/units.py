"""Units: the nodes that are cabled to the same leaf switches, and the leaf that each of their NICs should be
on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from dranet.desk.fabric.links import (
    Link,
    NaturalKey,
    choose_fabric_links,
    group_by_node,
    name_switches,
    natural_key,
)

Place = tuple[str, str]


class Expectation(Struct, frozen=True):
    """The leaf on which the same NIC of most nodes is."""

    switch: str
    nodes: int
    """As many have it there ..."""
    of: int
    """... of as many that are cabled."""

    @property
    def is_certain(self) -> bool:
        return 2 * self.nodes > self.of


class Unit(Struct, frozen=True):
    """Nodes with the same leaf switches, sorted."""

    nodes: tuple[str, ...]
    leaves: Mapping[Place, Expectation]
    """For each NIC of the fabric."""

    @property
    def switches(self) -> frozenset[str]:
        return frozenset(expected.switch for expected in self.leaves.values())


def find_units(links: Iterable[Link]) -> tuple[Unit, ...]:
    """Group the nodes whose fabric NICs have a neighbour.

    A node belongs to the nodes with whom it shares most leaves, provided that these are more than half of its
    own: one cable in the wrong switch moves no node.
    """
    links = tuple(links)
    fabric = {node: choose_fabric_links(same) for node, same in group_by_node(links).items()}
    names = name_switches(links)
    sets: dict[frozenset[str], list[str]] = defaultdict(list)
    for node, own in fabric.items():
        if leaves := frozenset(link.switch for link in own if link.is_cabled):
            sets[leaves].append(node)
    units = [_make_unit(nodes, fabric) for nodes in _join(sets)]
    return tuple(sorted(units, key=lambda unit: sort_key(unit, names)))


def sort_key(unit: Unit, names: Mapping[str, str]) -> tuple[NaturalKey, NaturalKey]:
    """By the first leaf, then by the first node."""
    first = min((natural_key(names[switch]) for switch in unit.switches), default=())
    return first, natural_key(unit.nodes[0])


def _join(sets: Mapping[frozenset[str], Sequence[str]]) -> list[list[str]]:
    """The most frequent sets of leaves come first, and the others join the one that they share most with."""
    ordered = sorted(sets, key=lambda leaves: (-len(sets[leaves]), -len(leaves), sorted(leaves)))
    groups: list[list[str]] = []
    with_leaf: dict[str, list[int]] = defaultdict(list)
    for leaves in ordered:
        shared = Counter(group for leaf in leaves for group in with_leaf[leaf])
        best, number = max(shared.items(), key=lambda item: (item[1], -item[0]), default=(0, 0))
        if 2 * number > len(leaves):
            groups[best] += sets[leaves]
            continue
        for leaf in leaves:
            with_leaf[leaf].append(len(groups))
        groups.append(list(sets[leaves]))
    return groups


def _make_unit(nodes: Iterable[str], fabric: Mapping[str, Sequence[Link]]) -> Unit:
    nodes = sorted(nodes, key=natural_key)
    found: dict[Place, Counter[str]] = defaultdict(Counter)
    for node in nodes:
        for link in fabric[node]:
            if link.is_cabled:
                found[link.place][link.switch] += 1
    leaves = {place: _expect(switches) for place, switches in sorted(found.items())}
    return Unit(tuple(nodes), leaves)


def _expect(switches: Counter[str]) -> Expectation:
    """Return the most frequent leaf; among equals the one of the first node, which a Counter has first."""
    switch, nodes = switches.most_common(1)[0]
    return Expectation(switch, nodes, switches.total())
