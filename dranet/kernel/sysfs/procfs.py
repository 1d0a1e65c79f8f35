"""The node's ``/proc``: where it is, and what it has about boot and processor.

A container's own ``/proc`` has only its processes, and its sysctls are read-only. The root is set once at the
start from the setting ``procfs_root``; readers of hardware facts get it as an argument. What the root does
not have (a tree made by hand has no sysctls) is read from the driver's own ``/proc``.
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
    """Translate a path from the runtime (``/proc/PID/ns/net``). In a container, the driver's own ``/proc``
    has other processes with the same numbers: 1 is the driver itself, on the node's network."""
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
    """Seconds since the machine has booted (``proc_uptime(5)``); infinite if unknown."""
    try:
        return float((procfs_root / "uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return math.inf


def read_boot_clock() -> float:
    """Seconds since boot, including suspends: the same clock after a restart of the driver, independent of
    the time of day."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# --- processor ------------------------------------------------------------------------------------------

_VENDOR, _FAMILY, _MODEL = "vendor_id", "cpu family", "model"


def read_processor(procfs_root: Path) -> Processor:
    """Read the first processor (``proc_cpuinfo(5)``). Missing fields are empty: ARM has other names."""
    fields: dict[str, str] = {}
    for line in PseudoFiles(procfs_root, []).whole_text("cpuinfo").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.removeprefix(" "))
    return Processor(
        fields.get(_VENDOR, ""), parse_number(fields.get(_FAMILY, "")), parse_number(fields.get(_MODEL, ""))
    )
