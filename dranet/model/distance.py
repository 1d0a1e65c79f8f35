"""How far two devices are from each other, by their places in the PCIe and NUMA tree.

The words are those of ``nvidia-smi topo -m`` and NCCL, by the definitions in the legend of the former (text
next to each word below) and by the way the latter searches its graph (``src/graph/paths.cc``: one switch
between two devices is PIX, a step from switch to switch makes it PXB, a step through the processor PHB).
NCCL has no NODE: what crosses from one host bridge to another it calls PHB or SYS. They are read from the
places alone, so a device that a pod has keeps its distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol


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


class Placed(Protocol):
    """What has a place: a :class:`~dranet.model.device.Device`, or what is known of another driver's."""

    @property
    def pci_path(self) -> tuple[str, ...]:
        """Bridges and switch ports from below the root down to the function itself."""

    @property
    def pcie_root(self) -> str:
        """``pci0000:15``; empty where it is not on PCI."""

    @property
    def numa_node(self) -> int | None:
        """``None`` where the platform does not report it."""


def distance(a: Placed, b: Placed) -> Distance | None:
    """How far ``a`` and ``b`` are from each other; symmetric; ``None`` where the facts are missing.

    With a switch, a path is ``root port, upstream port, downstream port, function``. Two functions on one
    switch part after its upstream port, which leaves each two hops below the last common bridge; NCCL
    counts the same way. Functions of one card, virtual ones among them, part at the last hop. A virtual
    machine that shows each function in a PCI domain of its own leaves only the NUMA nodes for comparison.
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


def _numa_distance(a: int | None, b: int | None) -> Distance | None:
    if a is None or b is None:
        return None
    return Distance.NODE if a == b else Distance.SYS


def _common_length(a: Sequence[str], b: Sequence[str]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
