"""Programs of the node that matter to us, by their names, and what they were let."""

from __future__ import annotations

import re

from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.host_facts import Process

_COMM_LENGTH = 15
"""The kernel keeps so much of a program's name (``TASK_COMM_LEN``)."""

NAMES = (
    "containerd",
    "crio",
    "irqbalance",
    "NetworkManager",
    "nv-fabricmanager",
    "nvidia-persistenced",
    "systemd-networkd",
)
_BY_COMM = {name[:_COMM_LENGTH]: name for name in NAMES}
_LIMITED = frozenset({"containerd", "crio"})
"""Whose limits containers inherit."""
_KERNEL_THREADS = "kthreadd"
"""Process 2 of the node, and of no container."""
_MEMLOCK = re.compile(r"^Max locked memory\s+(unlimited|[0-9]{1,20})\s", re.MULTILINE)


def read_processes(procfs: PseudoFiles) -> tuple[Process, ...] | None:
    """``None`` where these are not the node's processes."""
    if not sees_node(procfs):
        return None
    found = []
    for pid in procfs.numbered("."):
        name = _BY_COMM.get(procfs.text(f"{pid}/comm"))
        if name is not None:
            found.append(Process(pid, name, _read_memlock(procfs, pid) if name in _LIMITED else ""))
    return tuple(found)


def sees_node(procfs: PseudoFiles) -> bool:
    """Whether these are the processes of the node, not those of a container."""
    return procfs.text("2/comm") == _KERNEL_THREADS


def _read_memlock(procfs: PseudoFiles, pid: int) -> str:
    found = _MEMLOCK.search(procfs.whole_text(f"{pid}/limits"))
    return found[1] if found else ""
