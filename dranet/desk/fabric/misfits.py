"""What does not fit in the cabling. A link is judged by the same NIC of the other nodes of its unit, and by
the other NICs of its node; there is no plan of the data center to compare with.

``dranet fabric`` calls it with all links of a cluster. With the links of one node alone it finds what a node
shows by itself: a NIC without neighbour, a slower link, two NICs on one leaf.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from dranet.desk.fabric.links import Link, choose_fabric_links, group_by_node, name_switches, natural_key
from dranet.desk.fabric.units import Expectation, Place, Unit, find_units
from dranet.terminal import count_of


class MisfitKind(StrEnum):
    """CamelCase, for programs."""

    SWAPPED = "SwappedCables"
    OTHER_LEAF = "OtherLeaf"
    SHARED_LEAF = "SharedLeaf"
    NOT_CABLED = "NoNeighbour"
    RAIL = "RailContradictsLeaf"
    SPEED = "SpeedDiffers"


class Misfit(Struct, frozen=True):
    """One thing that does not fit, and how to fix it."""

    kind: MisfitKind
    links: tuple[Link, ...]
    """The links that it is about; of two swapped cables both."""
    text: str
    fix: str
    nodes: tuple[str, ...]


def find_misfits(links: Iterable[Link]) -> tuple[Misfit, ...]:
    """All misfits, by kind and node."""
    return _Judge(tuple(links)).judge()


class _Wrong(NamedTuple):
    """A link that is on another leaf than expected."""

    link: Link
    expected: Expectation


class _Judge:
    def __init__(self, links: Sequence[Link]) -> None:
        self._names = name_switches(links)
        self._fabric = {node: choose_fabric_links(own) for node, own in group_by_node(links).items()}
        self._units = find_units(links)
        self._unit_of = {node: unit for unit in self._units for node in unit.nodes}

    def judge(self) -> tuple[Misfit, ...]:
        wrong = list(self._find_wrong())
        misplaced = {(one.link.node, one.link.device) for one in wrong}
        found = (
            *self._judge_leaves(wrong),
            *self._judge_shared(),
            *self._judge_missing(),
            *self._judge_rails(misplaced),
            *self._judge_speeds(),
        )
        order = list(MisfitKind)
        return tuple(sorted(found, key=lambda one: (order.index(one.kind), natural_key(one.nodes[0]))))

    # --- leaves ------------------------------------------------------------------------------------------

    def _find_wrong(self) -> Iterator[_Wrong]:
        for unit in self._units:
            for node in unit.nodes:
                for link in self._fabric[node]:
                    expected = unit.leaves.get(link.place)
                    if link.is_cabled and expected and link.switch != expected.switch:
                        yield _Wrong(link, expected)

    def _judge_leaves(self, wrong: Sequence[_Wrong]) -> Iterator[Misfit]:
        """Two links that are each where the other should be are swapped."""
        pairs = _find_swaps(wrong)
        paired = {id(one) for pair in pairs for one in pair}
        yield from (self._describe_swap(one, other) for one, other in pairs)
        yield from (self._describe_other_leaf(one) for one in wrong if id(one) not in paired)

    def _describe_swap(self, one: _Wrong, other: _Wrong) -> Misfit:
        first, second = one.link, other.link
        nodes = tuple(dict.fromkeys((first.node, second.node)))
        names = [link.name if len(nodes) == 1 else f"{link.node} {link.name}" for link in (first, second)]
        ports = self._where(first), self._where(second)
        text = f"the cables of {names[0]} ({ports[0]}) and {names[1]} ({ports[1]}) are swapped"
        at_the_node = "at the node, or " if len(nodes) == 1 else ""
        fix = f"exchange the two cables {at_the_node}at {ports[0]} and {ports[1]}"
        text += _doubt(one.expected)
        return Misfit(MisfitKind.SWAPPED, (first, second), text, fix, nodes)

    def _describe_other_leaf(self, one: _Wrong) -> Misfit:
        link, expected = one.link, one.expected
        leaf = self._names[expected.switch]
        most = f"on {expected.nodes} of {count_of(expected.of, 'node')} of its unit"
        text = f"{link.name} is on {self._where(link)}; {most} it is on {leaf}{_doubt(expected)}"
        return Misfit(
            MisfitKind.OTHER_LEAF,
            (link,),
            text,
            f"move its cable from {self._where(link)} to {leaf}",
            (link.node,),
        )

    def _judge_shared(self) -> Iterator[Misfit]:
        """Two NICs of every node of a unit on one leaf, while most others have a leaf of their own."""
        for unit in self._units:
            places: dict[str, list[Place]] = defaultdict(list)
            for place, expected in unit.leaves.items():
                places[expected.switch].append(place)
            shared = {leaf: same for leaf, same in places.items() if len(same) > 1}
            if len(places) - len(shared) <= sum(map(len, shared.values())):
                continue
            for leaf, same in shared.items():
                yield self._describe_shared(unit, leaf, same)

    def _describe_shared(self, unit: Unit, leaf: str, places: Sequence[Place]) -> Misfit:
        nodes = [node for node in unit.nodes if self._count_on(node, leaf) > 1]
        first = nodes[0] if nodes else unit.nodes[0]
        links = tuple(link for link in self._fabric[first] if link.place in places)
        names = " and ".join(link.name for link in links)
        text = (
            f"{names} are both on {self._names[leaf]}"
            if len(links) == 2
            else f"{names} are all on {self._names[leaf]}"
        )
        others = f" on {count_of(len(unit.nodes), 'node')} of the unit" if len(unit.nodes) > 1 else ""
        return Misfit(
            MisfitKind.SHARED_LEAF,
            links,
            f"{text}{others}, while most other NICs have a leaf of their own",
            "connect each rail to a leaf of its own, or check the plan of the fabric",
            tuple(nodes or unit.nodes),
        )

    def _count_on(self, node: str, leaf: str) -> int:
        return sum(link.switch == leaf for link in self._fabric[node])

    # --- links without neighbour, rails, speeds ----------------------------------------------------------

    def _judge_missing(self) -> Iterator[Misfit]:
        """A node without any neighbour has no LLDP: that is no misfit."""
        for node, fabric in self._fabric.items():
            unit = self._unit_of.get(node)
            for link in fabric:
                if link.is_cabled:
                    continue
                expected = unit.leaves.get(link.place) if unit else None
                others = sum(other.is_cabled for other in fabric)
                if expected or 2 * others > len(fabric):
                    yield self._describe_missing(link, expected, others)

    def _describe_missing(self, link: Link, expected: Expectation | None, others: int) -> Misfit:
        if expected:
            leaf = self._names[expected.switch]
            most = f"{count_of(expected.nodes, 'other node')} of its unit {_has(expected.nodes)} it on {leaf}"
            fix = f"check cable and transceiver between {link.name} and {leaf}, and LLDP on that port"
        else:
            most = f"{count_of(others, 'other NIC')} of this model {_has(others)} one"
            fix = f"check the cable and the transceiver of {link.name}, and LLDP on the switch port"
        state = " and its link is down" if link.speed_mbps is None else ""
        text = f"{link.name} has no LLDP neighbor{state}; {most}"
        return Misfit(MisfitKind.NOT_CABLED, (link,), text, fix, (link.node,))

    def _judge_rails(self, misplaced: set[tuple[str, str]]) -> Iterator[Misfit]:
        """A leaf with one rail on most of its links, and a link with another."""
        by_leaf: dict[str, Counter[int]] = defaultdict(Counter)
        links = [
            link
            for own in self._fabric.values()
            for link in own
            if link.is_cabled and link.rail is not None and (link.node, link.device) not in misplaced
        ]
        for link in links:
            by_leaf[link.switch][_rail(link)] += 1
        for link in links:
            rail, number = by_leaf[link.switch].most_common(1)[0]
            if link.rail != rail and 2 * number > by_leaf[link.switch].total():
                leaf = self._names[link.switch]
                text = f"{link.name} has rail {link.rail}, but {leaf} has rail {rail} on {number} other links"
                fix = f"correct the rule that numbers the rails, or move its cable from {self._where(link)}"
                yield Misfit(MisfitKind.RAIL, (link,), text, fix, (link.node,))

    def _judge_speeds(self) -> Iterator[Misfit]:
        """Other than the same NIC of the unit's nodes; of a node without peers, than its other NICs."""
        for unit in self._units:
            speeds: dict[Place, Counter[int]] = defaultdict(Counter)
            is_alone = len(unit.nodes) == 1
            for node in unit.nodes:
                for link in self._fabric[node]:
                    if link.speed_mbps:
                        speeds[_peers(link, is_alone)][link.speed_mbps] += 1
            for node in unit.nodes:
                for link in self._fabric[node]:
                    if misfit := self._judge_speed(link, speeds[_peers(link, is_alone)], is_alone):
                        yield misfit

    def _judge_speed(self, link: Link, speeds: Counter[int], is_alone: bool) -> Misfit | None:
        if not link.speed_mbps or len(speeds) < 2:
            return None
        usual, number = speeds.most_common(1)[0]
        if link.speed_mbps == usual or 2 * number <= speeds.total():
            return None
        peers = count_of(number, "other NIC") if is_alone else f"{count_of(number, 'node')} of its unit"
        verb = "run" if is_alone else "have it"
        speed = describe_speed(link.speed_mbps)
        text = f"{link.name} runs at {speed}; {peers} {verb} at {describe_speed(usual)}"
        at = f" at {self._where(link)}" if link.is_cabled else ""
        fix = f"check transceiver, cable and the port's speed{at}"
        return Misfit(MisfitKind.SPEED, (link,), text, fix, (link.node,))

    def _where(self, link: Link) -> str:
        return " ".join(filter(None, (self._names[link.switch], link.port)))


def _find_swaps(wrong: Sequence[_Wrong]) -> list[tuple[_Wrong, _Wrong]]:
    """Pairs that exchange their leaves: first those of one node, then those of two."""
    pairs: list[tuple[_Wrong, _Wrong]] = []
    left = list(wrong)
    for is_of_one_node in (True, False):
        waiting: dict[tuple[str, str, str], list[_Wrong]] = defaultdict(list)
        for one in left:
            node = one.link.node if is_of_one_node else ""
            if others := waiting[node, one.expected.switch, one.link.switch]:
                pairs.append((others.pop(0), one))
            else:
                waiting[node, one.link.switch, one.expected.switch].append(one)
        left = [one for ones in waiting.values() for one in ones]
    return pairs


def _doubt(expected: Expectation) -> str:
    return "" if expected.is_certain else ", or those of the other nodes are: as many have it either way"


def _peers(link: Link, is_alone: bool) -> Place:
    return (link.model, "") if is_alone else link.place


def _rail(link: Link) -> int:
    return link.rail if link.rail is not None else -1


def _has(number: int) -> str:
    return "has" if number == 1 else "have"


def describe_speed(mbps: int) -> str:
    """``400G``, ``2500M``."""
    return f"{mbps // 1000}G" if mbps % 1000 == 0 else f"{mbps}M"


def misfits_by_node(misfits: Iterable[Misfit]) -> Mapping[str, Sequence[Misfit]]:
    found: dict[str, list[Misfit]] = defaultdict(list)
    for misfit in misfits:
        for node in misfit.nodes:
            found[node].append(misfit)
    return found
