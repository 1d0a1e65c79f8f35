"""The fabric as a whole: units of nodes, their place in the hierarchy, switches, and what does not fit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct, field

from dranet.desk.fabric.levels import CLOUDS, LLDP, Source
from dranet.desk.fabric.links import Link, NaturalKey, name_switches, natural_key
from dranet.desk.fabric.misfits import Misfit, find_misfits
from dranet.desk.fabric.read import NodeReading, iter_links, read_nodes
from dranet.desk.fabric.units import Unit, find_units
from dranet.desk.kubeapi.objects import JsonObject


class Place(Struct, frozen=True):
    """Nodes that the network cannot distinguish: on the same leaf switches, or in one closest level of a
    cloud."""

    source: Source
    path: tuple[str, ...]
    """A value for each level of the source, from wide to close; empty where it is unknown."""
    nodes: tuple[str, ...]
    unit: Unit | None = None
    """For nodes with LLDP neighbours."""

    @property
    def name(self) -> str:
        return "/".join(filter(None, self.path))

    @property
    def levels(self) -> Mapping[str, str]:
        """Value by name of the level."""
        return {level: value for level, value in zip(self.source.names, self.path, strict=True) if value}


class Fabric(Struct, frozen=True):
    nodes: Mapping[str, NodeReading] = field(default_factory=dict)
    """Sorted by name."""
    places: tuple[Place, ...] = ()
    unplaced: tuple[str, ...] = ()
    """Nodes whose slices show neither an LLDP neighbour nor a placement."""
    switches: Mapping[str, str] = field(default_factory=dict)
    """Names by identity."""
    misfits: tuple[Misfit, ...] = ()
    conflicts: tuple[str, ...] = ()
    """Nodes whose devices contradict each other about their placement."""

    @property
    def links(self) -> Iterator[Link]:
        return iter_links(self.nodes.values())

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(dict.fromkeys(place.source for place in self.places))

    def places_of(self, source: Source) -> tuple[Place, ...]:
        return tuple(place for place in self.places if place.source == source)


def read_fabric(slices: Collection[JsonObject], driver: str) -> Fabric:
    """The fabric that the driver's slices show."""
    return build_fabric(read_nodes(slices, driver))


def build_fabric(readings: Collection[NodeReading]) -> Fabric:
    ordered = sorted(readings, key=lambda node: natural_key(node.name))
    nodes = {node.name: node for node in ordered}
    links = tuple(iter_links(ordered))
    switches = name_switches(links)
    cabled = tuple(_place_units(find_units(links), switches))
    with_leaf = {name for place in cabled for name in place.nodes}
    others = [node for node in ordered if node.name not in with_leaf]
    clouds = tuple(_place_in_clouds(others))
    placed = with_leaf | {name for place in clouds for name in place.nodes}
    return Fabric(
        nodes,
        (*cabled, *clouds),
        tuple(name for name in nodes if name not in placed),
        switches,
        find_misfits(links),
        tuple(node.name for node in others if _contradicts_itself(node)),
    )


def _place_units(units: Sequence[Unit], switches: Mapping[str, str]) -> Iterator[Place]:
    """A unit is called after its first leaf that no other unit is called after."""
    taken: set[str] = set()
    for unit in units:
        names = sorted((switches[switch] for switch in unit.switches), key=natural_key)
        name = next((name for name in names if name not in taken), f"{names[0]} {unit.nodes[0]}")
        taken.add(name)
        yield Place(LLDP, (name,), unit.nodes, unit)


def _place_in_clouds(nodes: Sequence[NodeReading]) -> Iterator[Place]:
    found: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for node in nodes:
        for source in CLOUDS:
            path = _find_path(node, source)
            if any(path):
                found[source.key, path].append(node.name)
                break
    for source in CLOUDS:
        paths = sorted((path for key, path in found if key == source.key), key=_path_key)
        yield from (Place(source, path, tuple(found[source.key, path])) for path in paths)


def _path_key(path: tuple[str, ...]) -> tuple[NaturalKey, ...]:
    return tuple(map(natural_key, path))


def _find_path(node: NodeReading, source: Source) -> tuple[str, ...]:
    """Where the devices of a node contradict each other, the level is unknown."""
    values = (node.placement.get(attribute, frozenset()) for _, attribute in source.levels)
    return tuple(min(found) if len(found) == 1 else "" for found in values)


def _contradicts_itself(node: NodeReading) -> bool:
    return any(len(values) > 1 for values in node.placement.values())
