"""Cables that are on another switch than those of the other nodes: what no node can see alone.

Nodes whose NICs are at the same PCI addresses are alike, and in a rail-optimized fabric the NIC at one
address goes to the same rail on all of them. Where switches name their rails, the rail of most nodes is
right. Where they do not, a switch that serves one address on most nodes is the leaf of that rail. In a fabric
without rails each switch serves every address alike, and nothing is found.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from dranet.desk.kubeapi.objects import JsonObject
from dranet.model import attributes as a


class Cable(Struct, frozen=True):
    """A NIC of a node, and the port that its cable leads to."""

    node: str
    device: str
    place: str
    """PCI address, or the interface's name."""
    switch: str
    """Chassis id; empty where it is not known."""
    switch_name: str = ""
    port: str = ""
    rail: int | None = None

    @property
    def text(self) -> str:
        """``rail 2, leaf-02 swp7``."""
        switch = " ".join(filter(None, (self.switch_name or self.switch, self.port)))
        rail = "" if self.rail is None else f"rail {self.rail}"
        return ", ".join(filter(None, (rail, switch)))


def read_cables(node: str, slices: Iterable[JsonObject]) -> Iterator[Cable]:
    """NICs with hardware of their own; a virtual function has the cable of its physical one."""
    for body in slices:
        for device in body["spec"].get("devices") or ():
            values = device.get("attributes") or {}
            place = _text(values, a.PCI_ADDRESS) or _text(values, a.IFNAME)
            if place and not _value(values, a.IS_SRIOV_VF) and _text(values, a.TYPE) != "gpu":
                rail = (_value(values, a.RAIL) or {}).get("int")
                yield Cable(
                    node,
                    str(device["name"]),
                    place,
                    _text(values, a.SWITCH_CHASSIS_ID),
                    _text(values, a.SWITCH_NAME),
                    _text(values, a.SWITCH_PORT_ID),
                    rail if isinstance(rail, int) else None,
                )


def _value(values: JsonObject, attribute: a.Attribute) -> JsonObject | None:
    return values.get(attribute.qualified) or values.get(attribute.name)


def _text(values: JsonObject, attribute: a.Attribute) -> str:
    return str((_value(values, attribute) or {}).get("string") or "")


def find_miscabled(cables: Iterable[Cable]) -> dict[str, tuple[str, ...]]:
    """By node: one line for each cable that is not where those of most like nodes are."""
    by_node: dict[str, list[Cable]] = defaultdict(list)
    for cable in cables:
        by_node[cable.node].append(cable)
    makes: dict[frozenset[str], list[Cable]] = defaultdict(list)
    for of_node in by_node.values():
        makes[frozenset(cable.place for cable in of_node)] += of_node
    found: dict[str, list[str]] = defaultdict(list)
    for alike in makes.values():
        for cable, why in (*_judge_rails(alike), *_judge_switches(alike)):
            found[cable.node].append(f"{cable.device} is cabled to {cable.text}; {why}")
    return {node: tuple(sorted(lines)) for node, lines in found.items()}


def _judge_rails(cables: Sequence[Cable]) -> Iterator[tuple[Cable, str]]:
    rails: dict[str, Counter[int]] = defaultdict(Counter)
    for cable in cables:
        if cable.rail is not None:
            rails[cable.place][cable.rail] += 1
    for cable in cables:
        if cable.rail is None:
            continue
        ((usual, most),) = rails[cable.place].most_common(1)
        total = rails[cable.place].total()
        if cable.rail != usual and most > 1 and 2 * most > total:
            yield cable, f"this NIC is on rail {usual} on {most} of {total} like nodes"


def _judge_switches(cables: Sequence[Cable]) -> Iterator[tuple[Cable, str]]:
    """Some nodes may not be known yet, or in part, so three things have to be so: the switch has another NIC
    of most nodes, this NIC is on another switch on more nodes, and nodes with both have them apart."""
    unnamed = [cable for cable in cables if cable.switch and cable.rail is None]
    places: dict[str, Counter[str]] = defaultdict(Counter)
    switches: dict[str, Counter[str]] = defaultdict(Counter)
    nodes: dict[str, dict[str, str]] = defaultdict(dict)
    for cable in unnamed:
        places[cable.switch][cable.place] += 1
        switches[cable.place][cable.switch] += 1
        nodes[cable.node][cable.place] = cable.switch
    for cable in unnamed:
        usual, most = min(places[cable.switch].items(), key=lambda item: (-item[1], item[0]))
        here = places[cable.switch][cable.place]
        elsewhere = max((n for s, n in switches[cable.place].items() if s != cable.switch), default=0)
        if 2 * here > most or here >= elsewhere:
            continue
        both = [n for name, n in nodes.items() if name != cable.node and {usual, cable.place} <= n.keys()]
        if 2 * sum(of_node[usual] != of_node[cable.place] for of_node in both) > len(both):
            yield cable, f"that switch has another NIC of {most} like nodes: {usual}"
