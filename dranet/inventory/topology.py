"""Where devices sit in the PCIe and NUMA tree, and how far two of them are from each other.

The words are those of ``nvidia-smi topo -m`` and NCCL, by the definitions in the legend of the former (text
beside each word below) and by the way the latter searches its graph (``src/graph/paths.cc``: one switch
between two devices is PIX, a step from switch to switch makes it PXB, a step through the processor PHB).
NCCL has no NODE: what crosses from one host bridge to another it calls PHB or SYS. They are read from the
device's own record alone, so a device that a pod has keeps its distance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

from dranet.dataclass import dataclass
from dranet.model.device import Device, DeviceKind

_Path = tuple[list[str], str]
"""Root complex, bridges and function; and the name of the device at the end."""


class Distance(IntEnum):
    """Ordered: smaller is nearer."""

    PIX = 0
    """At most one PCIe bridge or switch between them: both hang on ports of the same switch, or are
    functions of one card."""
    PXB = 1
    """Several bridges or switches, all below one root port: traffic does not reach the CPU."""
    PHB = 2
    """Different root ports of one host bridge: traffic goes through the CPU's root complex."""
    NODE = 3
    """Different host bridges of one NUMA node."""
    SYS = 4
    """Different NUMA nodes: traffic crosses the link between CPUs."""

    @property
    def meaning(self) -> str:
        """What it is, for a legend."""
        return _MEANINGS[self]


_MEANINGS = {
    Distance.PIX: "the same PCIe switch (at most one bridge between them)",
    Distance.PXB: "several PCIe switches, but not the CPU",
    Distance.PHB: "the CPU's PCIe host bridge",
    Distance.NODE: "several host bridges of one NUMA node",
    Distance.SYS: "the link between NUMA nodes",
}


@dataclass(frozen=True, slots=True)
class DistanceMatrix:
    """How far each device is from each other one. ``cells[row][column]`` is symmetric; ``None`` is unknown,
    and so is the diagonal, which nobody asks for."""

    devices: tuple[Device, ...]
    cells: tuple[tuple[Distance | None, ...], ...]


@dataclass(frozen=True, slots=True)
class Nearest:
    """Those of some candidates that are nearest to a device, all at the same distance."""

    distance: Distance
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class TopologyNode:
    """One line of the tree: a NUMA node, a root complex, a bridge, or the place of devices."""

    label: str
    devices: tuple[str, ...] = ()
    """Names of the devices right here."""
    children: tuple[TopologyNode, ...] = ()


def distance(a: Device, b: Device) -> Distance | None:
    """How far ``a`` and ``b`` are from each other; symmetric; ``None`` where the facts do not say.

    With a switch, a path is ``root port, upstream port, downstream port, function``. Two functions on one
    switch part after its upstream port, which leaves each two hops below the last common bridge; NCCL
    counts the same way. Functions of one card, virtual ones among them, part at the last hop. A virtual
    machine that shows each function in a PCI domain of its own leaves only the NUMA nodes to tell by.
    """
    if not (a.pci_path and b.pci_path and a.pcie_root and b.pcie_root):
        return None
    if a.pcie_root != b.pcie_root:
        return _numa_distance(a.numa_node, b.numa_node)
    common = _common_length(a.pci_path, b.pci_path)
    if common == 0:
        return Distance.PHB
    deepest = max(len(a.pci_path), len(b.pci_path)) - common
    return Distance.PIX if deepest <= 2 else Distance.PXB


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


def _numa_distance(a: int | None, b: int | None) -> Distance | None:
    if a is None or b is None:
        return None
    return Distance.NODE if a == b else Distance.SYS


def _common_length(a: Sequence[str], b: Sequence[str]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


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
