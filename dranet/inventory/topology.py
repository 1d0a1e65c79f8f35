"""Where devices sit in the PCIe and NUMA tree: the tree, all distances at once, and what is nearest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from dranet.model.device import Device, DeviceKind
from dranet.model.distance import Distance, distance
from dranet.model.facts import NumaNode, PciFunction

_Path = tuple[list[str], str]
"""Root complex, bridges and function; and the name of the device at the end."""


class DistanceMatrix(Struct, frozen=True):
    """How far each device is from each other one. ``cells[row][column]`` is symmetric; ``None`` is unknown,
    and fills the unused diagonal."""

    devices: tuple[Device, ...]
    cells: tuple[tuple[Distance | None, ...], ...]


class Nearest(Struct, frozen=True):
    """Those of some candidates that are nearest to a device, all at the same distance."""

    distance: Distance
    devices: tuple[Device, ...]


class TopologyNode(Struct, frozen=True):
    """One line of the tree: a NUMA node, a root complex, a bridge, or the place of devices."""

    label: str
    devices: tuple[str, ...] = ()
    """Names of the devices right here."""
    children: tuple[TopologyNode, ...] = ()


def matrix(devices: Iterable[Device]) -> DistanceMatrix:
    """All distances, GPUs first as ``nvidia-smi`` prints them, else in the given order."""
    ordered = tuple(sorted(devices, key=lambda device: device.kind is not DeviceKind.GPU))
    cells = tuple(tuple(None if a is b else distance(a, b) for b in ordered) for a in ordered)
    return DistanceMatrix(ordered, cells)


def nearest(device: Device, candidates: Iterable[Device]) -> Nearest | None:
    """The nearest of ``candidates`` in their order; ``None`` where no distance is known."""
    known = [(far, other) for other in candidates if (far := distance(device, other)) is not None]
    best = min((far for far, _ in known), default=None)
    return None if best is None else Nearest(best, tuple(other for far, other in known if far == best))


def short_names(devices: Iterable[Device]) -> Mapping[str, str]:
    """Device name -> ``GPU0``, ``NIC0`` ..., counted in the given order; an RDMA-only device is a NIC."""
    names: dict[str, str] = {}
    count: dict[str, int] = defaultdict(int)
    for device in devices:
        word = "GPU" if device.kind is DeviceKind.GPU else "NIC"
        names[device.name] = f"{word}{count[word]}"
        count[word] += 1
    return names


def topology_tree(devices: Iterable[Device]) -> tuple[TopologyNode, ...]:
    """NUMA nodes -> root complexes -> bridges -> devices; devices without PCI last, under their own label."""
    by_numa: dict[tuple[bool, int], list[Device]] = defaultdict(list)
    plain: list[str] = []
    for device in devices:
        if device.pci_path and device.pcie_root:
            by_numa[device.numa_node is None, device.numa_node or 0].append(device)
        else:
            plain.append(device.name)
    trees = [
        TopologyNode("NUMA node unknown" if unknown else f"NUMA node {node}", (), _roots(members))
        for (unknown, node), members in sorted(by_numa.items())
    ]
    if plain:
        trees.append(TopologyNode("no PCI", tuple(sorted(plain))))
    return tuple(trees)


def _roots(devices: Iterable[Device]) -> tuple[TopologyNode, ...]:
    return _branch([([device.pcie_root, *device.pci_path], device.name) for device in devices])


def _branch(paths: Iterable[_Path]) -> tuple[TopologyNode, ...]:
    """One node for each first element, with the rest of its paths below it."""
    grouped: dict[str, list[_Path]] = defaultdict(list)
    for (head, *rest), name in paths:
        grouped[head].append((rest, name))
    return tuple(
        TopologyNode(
            label,
            devices=tuple(sorted(name for rest, name in members if not rest)),
            children=_branch([(rest, name) for rest, name in members if rest]),
        )
        for label, members in sorted(grouped.items())
    )


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

    The list form of ``resource.kubernetes.io/numaNode`` (KEP-6072) wants the other nodes at the smallest
    distance, without those of another socket. A node whose distances or socket are not known has only itself,
    because a list that is too long would match what is far away.
    """
    unique = {entry.node: entry for entry in sorted(nodes, key=repr)}  # the same one if a node occurs twice
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
