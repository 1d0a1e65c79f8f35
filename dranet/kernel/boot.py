"""Which boot this is: kernel state recorded in another boot is gone. And how long ago it was."""

from __future__ import annotations

import math
import time
from pathlib import Path

from dranet.errors import KernelError


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
