"""The GIDs of a pod's RDMA devices, read where they are visible: on the host or in the pod's namespace."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from dranet.claims.metadata import pod_rdma_device
from dranet.errors import KernelError
from dranet.kernel.discovery.rdma import read_gid_table, read_gids
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.namespaces.sysfs_mount import open_sysfs
from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.plan import MoveRdma, PreparedClaim
from dranet.model.workload import GidSlot

log = logging.getLogger(__name__)

T = TypeVar("T")

Gids = Mapping[str, tuple[str, ...]]
"""By RDMA device."""


def read_pod_gids(sysfs_root: Path, records: Iterable[PreparedClaim], netns_path: str) -> Gids:
    """Return the GIDs of every RDMA device that the pod's containers can use.

    The namespace is only entered for devices that moved into it. What cannot be read has none.
    """
    return read_where_they_are(sysfs_root, records, netns_path, _read_gids)


def read_where_they_are(
    sysfs_root: Path, records: Iterable[PreparedClaim], netns_path: str, read: Callable[[Path, str], T]
) -> dict[str, T]:
    """Return what ``read`` finds of each RDMA device, by name, in the sysfs that shows it."""
    here, moved = _list_rdma_devices(records)
    found = {name: read(sysfs_root, name) for name in here}
    if moved:
        try:
            with NetworkNamespace.open(netns_path) as netns, open_sysfs(netns) as root:
                found |= {name: read(root, name) for name in moved}
        except KernelError as error:
            log.warning("the GIDs of %s are not known: %s", ", ".join(sorted(moved)), error)
    return found


def _list_rdma_devices(records: Iterable[PreparedClaim]) -> tuple[set[str], set[str]]:
    """Return names of the devices that the host shows, and of those that moved."""
    here: set[str] = set()
    moved: set[str] = set()
    for record in records:
        for prepared in record.devices:
            if name := pod_rdma_device(prepared):
                steps = prepared.plan.steps if prepared.plan is not None else ()
                (moved if any(isinstance(step, MoveRdma) for step in steps) else here).add(name)
    return here, moved


def _read_gids(root: Path, name: str) -> tuple[str, ...]:
    warnings: list[str] = []
    found = read_gids(PseudoFiles(root, warnings), name)
    for warning in warnings:
        log.debug("%s", warning)
    return found


GidTables = Mapping[str, tuple[GidSlot, ...]]
"""By RDMA device."""


def read_gid_tables(sysfs_root: Path, records: Iterable[PreparedClaim], netns_path: str) -> GidTables:
    """Return the tables of every RDMA device that the pod's containers can use; unreadable ones are
    left out."""
    return read_where_they_are(
        sysfs_root, records, netns_path, lambda root, name: read_gid_table(PseudoFiles(root, []), name)
    )
