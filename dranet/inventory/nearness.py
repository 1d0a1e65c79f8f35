"""What is near a device: the GPUs in the PCIe tree, and the NUMA nodes of its socket.

Both are what alignment asks for. They are worked out from the facts of one scan and published with the
device, so that a selector can use them without a look at the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dranet.inventory.topology import Nearest, nearest
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import NumaNode, PciFunction

_Place = tuple[tuple[str, ...], int, str, int | None]
"""Bridges above a function and its depth, root complex, NUMA node: all that a distance depends on."""


class NearestGpus:
    """The GPUs of one scan; worked out once for each place, because a port's virtual functions share it."""

    def __init__(self, gpus: Sequence[Device]) -> None:
        self._gpus = gpus
        self._known: dict[_Place, Nearest | None] = {}

    def of(self, function: PciFunction) -> Nearest | None:
        """All GPUs at the smallest distance; ``None`` where there is no GPU, or no place is known."""
        if not self._gpus:
            return None
        place = (function.path[:-1], len(function.path), function.root, function.numa_node)
        if place not in self._known:
            self._known[place] = nearest(_as_device(function), self._gpus)
        return self._known[place]


def near_numa_nodes(nodes: Iterable[NumaNode]) -> Mapping[int, tuple[int, ...]]:
    """Each NUMA node -> itself and then, sorted, the nearest other nodes of its socket.

    As the list form of ``resource.kubernetes.io/numaNode`` wants it (KEP-6072): of the other nodes those at
    the smallest distance that there is, less those of another socket. A node whose distances or socket are
    not known has only itself, because a list that is too long would match what is far away.
    """
    unique = {entry.node: entry for entry in sorted(nodes, key=repr)}  # the same one if a node is told twice
    ordered = sorted(unique.values(), key=lambda entry: entry.node)
    return {entry.node: (entry.node, *_neighbours(entry, ordered)) for entry in ordered}


def _neighbours(own: NumaNode, ordered: Sequence[NumaNode]) -> list[int]:
    if own.socket is None or len(own.distances) != len(ordered):
        return []
    pairs = zip(own.distances, ordered, strict=True)
    others = [(far, other) for far, other in pairs if other.node != own.node]
    smallest = min((far for far, _ in others), default=0)
    return [other.node for far, other in others if far == smallest and other.socket in (own.socket, None)]


def _as_device(function: PciFunction) -> Device:
    return Device(
        function.address,
        DeviceKind.NIC,
        pci_path=function.path,
        pcie_root=function.root,
        numa_node=function.numa_node,
    )
