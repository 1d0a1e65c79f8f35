"""The CPUs of the node, read from sysfs when a claim wants its device served by near ones.

``Documentation/admin-guide/cputopology.rst``, ``Documentation/ABI/testing/sysfs-devices-system-cpu`` and
``Documentation/core-api/irq/irq-affinity.rst``. ``nohz_full`` says ``(null)`` where there are none.
"""

from __future__ import annotations

from dranet.kernel.discovery.host import read_numa_nodes
from dranet.kernel.sysfs import PseudoFiles
from dranet.model.cpus import CpuLayout, mask_to_cpus, parse_cpu_list, parse_cpu_mask

_CPUS = "devices/system/cpu"
_KEPT_FREE = (f"{_CPUS}/isolated", f"{_CPUS}/nohz_full", "fs/cgroup/cpuset.cpus.isolated")
"""Boot parameters, and isolated partitions of cpusets where the node's own cgroups are in sight."""


def read_cpu_layout(sysfs: PseudoFiles, procfs: PseudoFiles) -> CpuLayout:
    """Which CPUs there are now.

    Who keeps CPUs free of interrupts takes them out of the kernel's default: ``irqaffinity=``, tuned, and a
    runtime for a pod that asks for it.
    """
    online = parse_cpu_list(sysfs.text(f"{_CPUS}/online"))
    kept_free = {cpu for path in _KEPT_FREE for cpu in parse_cpu_list(sysfs.text(path))}
    if serving := read_default_cpus(procfs):
        kept_free.update(set(online).difference(serving))
    return CpuLayout(
        online=online,
        kept_free=tuple(sorted(kept_free)),
        numa_nodes=tuple(read_numa_nodes(sysfs)),
    )


def read_default_cpus(procfs: PseudoFiles) -> tuple[int, ...]:
    """Where the kernel puts an interrupt of which nobody has said more; nothing where it does not tell."""
    return mask_to_cpus(parse_cpu_mask(procfs.text("irq/default_smp_affinity")) or 0)
