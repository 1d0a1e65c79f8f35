"""A network namespace whose path is gone, found by who still lives in it or has it mounted elsewhere.

A namespace ends with its last process, mount and descriptor. A process of the pod that hangs in a driver, or
one that a runtime did not end, keeps it, with the NICs in it, after its path is gone. A container sees the
processes of the node where their ``/proc`` is mounted into it, and their namespaces with ``CAP_SYS_PTRACE``.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dranet.errors import KernelError
from dranet.kernel.netns import NetworkNamespace
from dranet.kernel.netns_id import open_netns
from dranet.kernel.node_proc import find_node_proc

log = logging.getLogger(__name__)

_NAMED = Path("/run/netns")
"""Where ``ip netns`` and the runtimes mount them."""


@contextmanager
def find_netns(netns_id: str, near: str = "") -> Iterator[NetworkNamespace | None]:
    """Open the namespace that ``read_netns_id`` names so; ``None`` where nobody is found in it.

    Enters each namespace of the node that it has rights for, a third of a millisecond each. ``near`` is a
    path beside which namespaces are mounted, too.
    """
    found = _find(netns_id, near) if netns_id else None
    if found is None:
        yield None
        return
    with found:
        log.info("a namespace whose path is gone lives on: %s is %s", found.path, netns_id)
        yield found


def _find(netns_id: str, near: str) -> NetworkNamespace | None:
    with NetworkNamespace.current() as own:
        seen = {own.identity}
    for path in _iter_paths(near):
        with suppress(OSError, KernelError):  # it ended meanwhile, or is not for us
            status = path.stat()
            identity = status.st_dev, status.st_ino
            if stat.S_ISREG(status.st_mode) and identity not in seen:  # to open a pipe takes for ever
                seen.add(identity)
                if (match := open_netns(str(path), netns_id)) is not None:
                    return match
    return None


def _iter_paths(near: str) -> Iterator[Path]:
    folders = {_NAMED, Path(near).parent} if near else {_NAMED}
    for folder in folders:
        yield from _list(folder)
    processes = Path(find_node_proc("self")).parent
    yield from (process / "ns/net" for process in _list(processes) if process.name.isdigit())


def _list(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
