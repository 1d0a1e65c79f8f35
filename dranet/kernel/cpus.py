"""The CPUs of the node, read from sysfs when a claim wants its device served by near ones.

``Documentation/admin-guide/cputopology.rst`` and ``Documentation/ABI/testing/sysfs-devices-system-cpu``.
``nohz_full`` says ``(null)`` where there are none.
"""

from __future__ import annotations

from dranet.kernel.discovery.host import read_numa_nodes
from dranet.kernel.sysfs import PseudoFiles
from dranet.model.cpus import CpuLayout, parse_cpu_list

_CPUS = "devices/system/cpu"
_KEPT_FREE = (f"{_CPUS}/isolated", f"{_CPUS}/nohz_full", "fs/cgroup/cpuset.cpus.isolated")
"""Boot parameters, and isolated partitions of cpusets where the node's own cgroups are in sight."""


def read_cpu_layout(sysfs: PseudoFiles) -> CpuLayout:
    """Which CPUs there are now."""
    kept_free = {cpu for path in _KEPT_FREE for cpu in parse_cpu_list(sysfs.text(path))}
    return CpuLayout(
        online=parse_cpu_list(sysfs.text(f"{_CPUS}/online")),
        kept_free=tuple(sorted(kept_free)),
        numa_nodes=tuple(read_numa_nodes(sysfs)),
    )
