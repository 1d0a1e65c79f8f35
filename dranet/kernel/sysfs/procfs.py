"""Where the node's own ``/proc`` is: a container's has its processes alone, and lets no sysctl be written.

Told once, at the start, from the setting ``procfs_root``; who reads hardware facts has that root by itself.
Where the root has not what is asked for (a tree made by hand has no sysctls), it is our own ``/proc``.
"""

from __future__ import annotations

import math
import os
import re
import time
from functools import cache
from pathlib import Path

from dranet.errors import KernelError
from dranet.kernel.sysfs.files import PseudoFiles, parse_number
from dranet.model.workload import Processor

_OWN = Path("/proc")
_OF_PROCESS = re.compile(r"/proc/(\d+/.*)")


class _NodeProc:
    root = _OWN


def use_node_proc(root: Path) -> None:
    """From now on the node's ``/proc`` is looked for at ``root``."""
    _NodeProc.root = root
    _find.cache_clear()


def find_node_proc(part: str) -> str:
    """The path of a part of it: ``sys/net``."""
    return _find(_NodeProc.root, part)


def find_path_of_process(path: str) -> str:
    """Where a path that the runtime tells (``/proc/PID/ns/net``) is for us. In a container our own ``/proc``
    has other processes by the same numbers: 1 is the driver itself, on the node's network."""
    found = _OF_PROCESS.fullmatch(path)
    if found and os.path.lexists(_NodeProc.root / "self"):  # a tree made by hand has no processes
        return str(_NodeProc.root / found.group(1))
    return path


@cache
def _find(root: Path, part: str) -> str:
    return str((root if (root / part).exists() else _OWN) / part)


# --- boot -----------------------------------------------------------------------------------------------


def read_boot_id(procfs_root: Path) -> str:
    """The kernel's random id of this boot (``random(4)``), 36 characters.

    Raises:
        KernelError: it cannot be read.
    """
    path = procfs_root / "sys/kernel/random/boot_id"
    try:
        boot_id = path.read_text().strip()
    except OSError as error:
        raise KernelError(
            f"{path}: {error.strerror}",
            errno=error.errno or 0,
            operation="read boot id",
            hint=f"mount the node's /proc at {procfs_root}, read-only, or set --procfs-root to where it is",
        ) from error
    if not boot_id:
        raise KernelError(f"{path}: empty", operation="read boot id")
    return boot_id


def read_uptime(procfs_root: Path) -> float:
    """Seconds since the machine has booted (``proc_uptime(5)``); infinite where nothing tells."""
    try:
        return float((procfs_root / "uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return math.inf


def read_boot_clock() -> float:
    """Seconds since boot, those of a suspend included: the same clock after a restart of the driver, whatever
    becomes of the time of day."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# --- processor ------------------------------------------------------------------------------------------

_VENDOR, _FAMILY, _MODEL = "vendor_id", "cpu family", "model"


def read_processor(procfs_root: Path) -> Processor:
    """What is not told is empty: ARM has other names for it."""
    told: dict[str, str] = {}
    for line in PseudoFiles(procfs_root, []).whole_text("cpuinfo").splitlines():
        name, _, value = line.partition(":")
        told.setdefault(name.strip(), value.removeprefix(" "))
    return Processor(
        told.get(_VENDOR, ""), parse_number(told.get(_FAMILY, "")), parse_number(told.get(_MODEL, ""))
    )
