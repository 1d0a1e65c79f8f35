"""NUMA nodes of GPUs on machines whose addresses follow a published convention.

This is for slices in which neither GPUs nor NICs publish where a GPU is, as those of DraNet and NVIDIA's
driver. It is an assumption: a machine may have the addresses of another one. This driver's NICs publish the
places that the kernel reports, and then nothing is assumed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

_GRACE = re.compile("00([01])[89]:")

_Convention = Callable[[str], int | None]
"""PCI address -> NUMA node; ``None`` for an address that the machine does not have."""


@dataclass(frozen=True, slots=True)
class Platform:
    """A kind of machine, the rule for its GPUs, and the page that has the rule."""

    name: str
    source: str
    numa_node_of: _Convention


@dataclass(frozen=True, slots=True, eq=False)
class Assumption:
    """The NUMA node of each GPU by its address, and the platform that it is assumed of."""

    platform: Platform
    numa_nodes: Mapping[str, int]


def _domains(*nodes: Sequence[int]) -> _Convention:
    """Each GPU alone in a PCI domain: the domains of NUMA node 0, of 1 ..."""
    known = {f"{domain:04x}:00:00.0": node for node, domains in enumerate(nodes) for domain in domains}
    return known.get


def _grace(address: str) -> int | None:
    """A Grace processor has sixteen PCI domains, and its GPUs are in the ninth and tenth of them."""
    domain = _GRACE.match(address)
    return int(domain[1], 16) if domain else None


PLATFORMS = (
    Platform(
        "Azure ND H100 v5",
        "topology/ndv5-topo.xml of Azure/azhpc-images",
        _domains((0x1, 0x2, 0x3, 0x8), (0x9, 0xA, 0xB, 0xC)),
    ),
    Platform(
        "Azure ND A100 v4",
        "topology/ndv4-topo.xml of Azure/azhpc-images",
        _domains((0x3, 0x4), (0x1, 0x2), (0xD, 0xE), (0xB, 0xC)),
    ),
    Platform(
        "NVIDIA GB200 and GB300",
        "the tables of DraNet's examples for OCI GB200 and Azure GB300",
        _grace,
    ),
)
"""The most specific first."""


def assume_numa_nodes(addresses: Collection[str]) -> Assumption | None:
    """The first platform that has all of these GPUs, on several NUMA nodes."""
    for platform in PLATFORMS:
        found = {address: platform.numa_node_of(address) for address in addresses}
        known = {address: node for address, node in found.items() if node is not None}
        if len(known) == len(addresses) and len(set(known.values())) > 1:
            return Assumption(platform, known)
    return None
