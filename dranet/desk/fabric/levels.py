"""Levels of the network's hierarchy above a node, from wide to close, by where they are known from."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class Source(Struct, frozen=True):
    """What the place of a node is known from."""

    key: str
    title: str
    levels: tuple[tuple[str, str], ...]
    """Name of the level, and the attribute that has its value; from wide to close."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.levels)


LLDP = Source("lldp", "LLDP neighbors", (("unit", ""),))
"""One level: LLDP shows the leaf switches, and nothing above them."""


def _cloud(key: str, title: str, *names: str) -> Source:
    return Source(key, title, tuple((name, f"{key}.dra.net/{name}") for name in names))


CLOUDS = (
    _cloud("gce", "Compute Engine's placement", "block", "subBlock", "host"),
    _cloud("oke", "Oracle's placement", "hpcIslandId", "networkBlockId", "localBlockId", "rackId"),
    _cloud("azure", "Azure's placement", "interconnectGroupId", "interconnectSubgroupId", "placementGroupId"),
    _cloud("aws", "EC2's placement", *(f"networkNodeLayer{number}" for number in (1, 2, 3, 4))),
    _cloud("coreweave", "CoreWeave's placement", "fabric", "superpod", "leafgroup"),
)

CLOUD_OF_ATTRIBUTE: Mapping[str, Source] = {
    attribute: source for source in CLOUDS for _, attribute in source.levels
}
SOURCES: Mapping[str, Source] = {source.key: source for source in (LLDP, *CLOUDS)}
LEVEL_NAMES = tuple(dict.fromkeys(name for source in SOURCES.values() for name in source.names))
