"""The tables of ``dranet fabric``, and the same as a document for programs."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from dranet.desk.fabric.fabric import Fabric, Place
from dranet.desk.fabric.hostlist import compress
from dranet.desk.fabric.labels import build_labels
from dranet.desk.fabric.links import Link, choose_fabric_links, count_switches, natural_key
from dranet.desk.fabric.misfits import Misfit, describe_speed, misfits_by_node
from dranet.terminal import PROSE, Screen, count_of, cut, format_table, printable

MOST_MISFITS = 40
"""More of them are counted in a table; json and yaml have all."""
_MOST_NAMES = 60
_NONE = "-"
_Row = tuple[str, ...]


def render(fabric: Fabric, screen: Screen, *, is_wide: bool) -> Iterator[str]:
    """A row for each unit, whatever the number of its nodes; then the misfits."""
    by_node = misfits_by_node(fabric.misfits)
    if fabric.places:
        yield from _render_places(fabric, by_node, screen)
    if is_wide:
        for place in fabric.places:
            if place.unit is not None:
                yield from _render_nics(fabric, place, screen)
    yield from _render_misfits(fabric.misfits, screen)
    yield from ("",) if fabric.places or fabric.misfits else ()
    width = min(screen.columns or PROSE, PROSE)
    for text in _summarize(fabric):
        yield from textwrap.wrap(printable(text), width)


def _render_places(fabric: Fabric, by_node: Mapping[str, Sequence[Misfit]], screen: Screen) -> Iterator[str]:
    groups = _group_places(fabric)
    rows = [_row(fabric, name, places, by_node) for name, places in groups]
    header = ("UNIT", "NODES", "NAMES", "NICS", "RAILS", "SPEED", "LEAVES", "MISFITS")
    heading, *lines = format_table(header, rows, screen.columns)
    yield from map(screen.bold, heading)
    for row, of_row in zip(rows, lines, strict=True):
        yield from of_row if row[-1] == _NONE else map(screen.yellow, of_row)


def _group_places(fabric: Fabric) -> list[tuple[str, list[Place]]]:
    """Units, and places of a cloud; those with one node each, as hosts have, by the level above."""
    found: list[tuple[str, list[Place]]] = []
    for source in fabric.sources:
        places = fabric.places_of(source)
        is_single = all(len(place.nodes) == 1 for place in places) and len(places) > 1
        groups: dict[str, list[Place]] = defaultdict(list)
        for place in places:
            above = "/".join(filter(None, place.path[:-1])) if is_single else ""
            groups[above or place.name].append(place)
        found += groups.items()
    return found


def _row(fabric: Fabric, name: str, places: Sequence[Place], by_node: Mapping[str, Sequence[Misfit]]) -> _Row:
    nodes = [node for place in places for node in place.nodes]
    links = [link for node in nodes for link in choose_fabric_links(fabric.nodes[node].links)]
    cabled = sum(link.is_cabled for link in links)
    leaves = {fabric.switches[one] for place in places if place.unit for one in place.unit.switches}
    misfits = {id(misfit) for node in nodes for misfit in by_node.get(node, ())}
    return (
        name,
        str(len(nodes)),
        cut(compress(nodes), _MOST_NAMES),
        f"{cabled}/{len(links)}" if links else _NONE,
        describe_rails(links),
        describe_speeds(links),
        cut(compress(leaves), _MOST_NAMES) or _NONE,
        str(len(misfits) or _NONE),
    )


def describe_rails(links: Collection[Link]) -> str:
    """``0-7``."""
    rails = sorted({link.rail for link in links if link.rail is not None and link.rail >= 0})
    return compress(map(str, rails)).strip("[]") or _NONE


def describe_speeds(links: Collection[Link]) -> str:
    speeds = sorted({link.speed_mbps for link in links if link.speed_mbps}, reverse=True)
    return ", ".join(map(describe_speed, speeds)) or _NONE


def _render_nics(fabric: Fabric, place: Place, screen: Screen) -> Iterator[str]:
    """Where each NIC of a unit should be, and on how many nodes it is there."""
    assert place.unit is not None
    by_place: dict[tuple[str, str], list[Link]] = defaultdict(list)
    for node in place.nodes:
        for link in choose_fabric_links(fabric.nodes[node].links):
            by_place[link.place].append(link)
    rows = []
    for key, links in sorted(by_place.items(), key=lambda item: natural_key(item[1][0].name)):
        expected = place.unit.leaves.get(key)
        names = sorted({link.name for link in links}, key=natural_key)
        on_leaf = sum(link.switch == expected.switch for link in links) if expected else 0
        rows.append(
            (
                cut(",".join(names), _MOST_NAMES),
                key[1],
                describe_rails(links),
                describe_speeds(links),
                fabric.switches[expected.switch] if expected else _NONE,
                f"{on_leaf}/{len(links)}",
            )
        )
    yield from ("", screen.bold(printable(f"unit {place.name}")))
    heading, *lines = format_table(("NIC", "SLOT", "RAIL", "SPEED", "LEAF", "NODES"), rows, screen.columns)
    yield from map(screen.bold, heading)
    for row, of_row in zip(rows, lines, strict=True):
        there, _, all_of_them = row[-1].partition("/")
        yield from of_row if there == all_of_them else map(screen.yellow, of_row)


def _render_misfits(misfits: Sequence[Misfit], screen: Screen) -> Iterator[str]:
    if not misfits:
        return
    shown = misfits[:MOST_MISFITS]
    rows = [(one.kind, cut(compress(one.nodes), _MOST_NAMES), f"{one.text}; {one.fix}") for one in shown]
    heading, *lines = format_table(("MISFIT", "NODE", "WHAT, AND WHAT TO DO"), rows, screen.columns)
    yield ""
    yield from map(screen.bold, heading)
    yield from (screen.yellow(line) for of_row in lines for line in of_row)
    if len(misfits) > len(shown):
        yield f"and {len(misfits) - len(shown)} more: -o json has all"


def _summarize(fabric: Fabric) -> Iterator[str]:
    placed = sum(len(place.nodes) for place in fabric.places)
    parts = [f"{count_of(placed, 'node')} in {count_of(len(fabric.places), 'unit')}"]
    if fabric.switches:
        parts.append(count_switches(fabric.switches))
    parts.append(count_of(len(fabric.misfits), "misfit") if fabric.misfits else "no misfits")
    if placed:
        yield f"{', '.join(parts)}; known from {' and '.join(source.title for source in fabric.sources)}"
    else:
        yield "no node has an LLDP neighbor or a placement in a cloud"
    if fabric.unplaced:
        yield f"place unknown: {count_of(len(fabric.unplaced), 'node')} ({_names(fabric.unplaced)})"
    if fabric.conflicts:
        yield f"devices of one node name different places: {_names(fabric.conflicts)}"


def _names(names: Sequence[str]) -> str:
    return cut(compress(names), _MOST_NAMES)


def render_node(fabric: Fabric, name: str, driver: str, screen: Screen) -> Iterator[str]:
    """Each NIC of a node with its switch port, the node's labels, and its misfits."""
    node = fabric.nodes[name]
    misfits = misfits_by_node(fabric.misfits).get(name, ())
    odd = {link.device for misfit in misfits for link in misfit.links if link.node == name}
    yield screen.bold(printable(f"node {name}"))
    links = sorted(node.links, key=lambda link: natural_key(link.name))
    if links:
        rows = [_link_row(fabric, link) for link in links]
        header = ("NIC", "DEVICE", "RAIL", "SPEED", "SWITCH", "PORT")
        heading, *lines = format_table(header, rows, screen.columns)
        yield from map(screen.bold, heading)
        for link, of_row in zip(links, lines, strict=True):
            yield from map(screen.yellow, of_row) if link.device in odd else of_row
    labels = build_labels(fabric, driver)[name]
    yield from (f"label {key}={value}" for key, value in labels.items())
    if not labels:
        yield "place unknown: no LLDP neighbor and no placement in a cloud"
    yield from _render_misfits(misfits, screen)


def _link_row(fabric: Fabric, link: Link) -> _Row:
    return (
        link.name,
        link.device,
        _NONE if link.rail is None else str(link.rail),
        describe_speed(link.speed_mbps) if link.speed_mbps else _NONE,
        fabric.switches[link.switch] if link.is_cabled else _NONE,
        link.port or _NONE,
    )


def to_document(fabric: Fabric, driver: str, names: Sequence[str] = ()) -> dict[str, Any]:
    """For programs; of these nodes, by default of all."""
    wanted = set(names or fabric.nodes)
    labels = build_labels(fabric, driver)
    misfits = [misfit for misfit in fabric.misfits if wanted & set(misfit.nodes)]
    unit_of = {node: place.name for place in fabric.places for node in place.nodes}
    return {
        "summary": {
            "nodes": len(fabric.nodes),
            "units": len(fabric.places),
            "switches": len(fabric.switches),
            "misfits": len(fabric.misfits),
        },
        "units": [_describe_place(fabric, place) for place in fabric.places if wanted & set(place.nodes)],
        "nodes": [
            {
                "name": node.name,
                "unit": unit_of.get(node.name),
                "labels": dict(labels[node.name]),
                "links": [_describe_link(fabric, link) for link in node.links],
            }
            for node in fabric.nodes.values()
            if node.name in wanted
        ],
        "switches": [
            {"name": name, "chassisId": switch}
            for switch, name in sorted(fabric.switches.items(), key=lambda item: natural_key(item[1]))
        ],
        "misfits": [_describe_misfit(misfit) for misfit in misfits],
        "placeUnknown": [node for node in fabric.unplaced if node in wanted],
        "contradictingPlacements": [node for node in fabric.conflicts if node in wanted],
    }


def _describe_place(fabric: Fabric, place: Place) -> dict[str, Any]:
    leaves = place.unit.switches if place.unit else ()
    return {
        "name": place.name,
        "source": place.source.key,
        "levels": dict(place.levels),
        "nodes": list(place.nodes),
        "leaves": sorted((fabric.switches[leaf] for leaf in leaves), key=natural_key),
    }


def _describe_link(fabric: Fabric, link: Link) -> dict[str, Any]:
    return {
        "device": link.device,
        "ifName": link.ifname or None,
        "rail": link.rail,
        "speedMbps": link.speed_mbps,
        "switch": fabric.switches.get(link.switch),
        "switchPort": link.port or None,
    }


def _describe_misfit(misfit: Misfit) -> dict[str, Any]:
    return {
        "kind": str(misfit.kind),
        "nodes": list(misfit.nodes),
        "links": [{"node": link.node, "device": link.device} for link in misfit.links],
        "text": misfit.text,
        "fix": misfit.fix,
    }
