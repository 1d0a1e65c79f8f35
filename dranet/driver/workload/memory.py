"""Which NUMA nodes memory can come from: ``Documentation/ABI/stable/sysfs-devices-node``."""

from __future__ import annotations

from pathlib import Path

from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.cpus import parse_cpu_list

_HAS_MEMORY = "devices/system/node/has_memory"


def read_nodes_with_memory(sysfs_root: Path) -> frozenset[int] | None:
    """By number; ``None`` where the kernel does not tell. A processor whose slots are empty has none, and a
    cpuset without memory is refused by the kernel, when it is too late to say why."""
    nodes = parse_cpu_list(PseudoFiles(sysfs_root, []).text(_HAS_MEMORY))
    return frozenset(nodes) or None
