"""The machine itself: its NUMA nodes, its kernel and its model.

Sources: ``Documentation/ABI/stable/sysfs-devices-node`` and ``sysfs-devices-system-cpu`` (``-1`` is a package
that the platform does not tell), and ``class/dmi/id``. Serial numbers and asset tags are never read.
"""

from __future__ import annotations

import os
import re

from dranet.kernel.sysfs import PseudoFiles, parse_number
from dranet.model.facts import Host, NumaNode

_NODES = "devices/system/node"
_CPUS = "devices/system/cpu"

_FIRST_CPU = re.compile(r"[0-9]{1,6}")


def read_numa_nodes(sysfs: PseudoFiles) -> list[NumaNode]:
    """The online NUMA nodes, by number; empty on a kernel without NUMA."""
    return [_read_numa_node(sysfs, node) for node in sysfs.numbered(_NODES, "node")]


def _read_numa_node(sysfs: PseudoFiles, node: int) -> NumaNode:
    cpus = sysfs.text(f"{_NODES}/node{node}/cpulist")
    return NumaNode(node, cpus, _read_distances(sysfs, node), _read_socket(sysfs, cpus))


def _read_socket(sysfs: PseudoFiles, cpus: str) -> int | None:
    """Of the first CPU in a list like ``0-55,112-167``; a node has CPUs of one socket."""
    first = _FIRST_CPU.match(cpus)
    if first is None:
        return None
    socket = sysfs.integer(f"{_CPUS}/cpu{first[0]}/topology/physical_package_id", least=-1)
    return None if socket == -1 else socket


def _read_distances(sysfs: PseudoFiles, node: int) -> tuple[int, ...]:
    path = f"{_NODES}/node{node}/distance"
    text = sysfs.text(path)
    distances = [parse_number(field) for field in text.split()]
    known = tuple(distance for distance in distances if distance is not None)
    if len(known) < len(distances):
        sysfs.warn(path, f"not a list of numbers: {text[:40]!r}")
        return ()
    return known


def read_host(sysfs: PseudoFiles) -> Host:
    """Name, kernel, architecture, and maker and model where the firmware tells them."""
    kernel = os.uname()
    dmi = (sysfs.text(f"class/dmi/id/{name}") for name in ("sys_vendor", "product_name"))
    return Host(
        name=kernel.nodename,
        kernel=kernel.release,
        architecture=kernel.machine,
        product=" ".join(text for text in dmi if text),
    )
