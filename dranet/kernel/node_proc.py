"""Where the node's own ``/proc`` is: a container's has its processes alone, and lets no sysctl be written.

Told once, at the start, from the setting ``procfs_root``; who reads hardware facts has that root by itself.
Where the root has not what is asked for (a tree made by hand has no sysctls), it is our own ``/proc``.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

_OWN = Path("/proc")
_OF_PROCESS = re.compile(r"/proc/(\d+/.*)")


class _Told:
    root = _OWN


def use_node_proc(root: Path) -> None:
    """From now on the node's ``/proc`` is looked for at ``root``."""
    _Told.root = root
    _find.cache_clear()


def find_node_proc(part: str) -> str:
    """The path of a part of it: ``sys/net``."""
    return _find(_Told.root, part)


def find_path_of_process(path: str) -> str:
    """Where a path that the runtime tells (``/proc/PID/ns/net``) is for us. In a container our own ``/proc``
    has other processes by the same numbers: 1 is the driver itself, on the node's network."""
    found = _OF_PROCESS.fullmatch(path)
    if found and os.path.lexists(_Told.root / "self"):  # a tree made by hand has no processes
        return str(_Told.root / found.group(1))
    return path


@cache
def _find(root: Path, part: str) -> str:
    return str((root if (root / part).exists() else _OWN) / part)
