"""The GID tables of a pod's RDMA devices, read where they are: on the host, or in the pod's namespace."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from dranet.driver.metadata.pod_gids import list_rdma_devices
from dranet.errors import KernelError
from dranet.kernel.gid_table import read_gid_table
from dranet.kernel.netns import NetworkNamespace
from dranet.kernel.netns_sysfs import open_sysfs
from dranet.kernel.sysfs import PseudoFiles
from dranet.model.plan import PreparedClaim
from dranet.model.workload import GidSlot

log = logging.getLogger(__name__)

GidTables = Mapping[str, tuple[GidSlot, ...]]
"""By RDMA device."""


def read_gid_tables(sysfs_root: Path, records: Iterable[PreparedClaim], netns_path: str) -> GidTables:
    """Of every RDMA device that the pod's containers can use. What cannot be read is empty."""
    here, moved = list_rdma_devices(records)
    tables = {name: read_gid_table(PseudoFiles(sysfs_root, []), name) for name in here}
    if moved:
        try:
            with NetworkNamespace.open(netns_path) as netns, open_sysfs(netns) as root:
                tables |= {name: read_gid_table(PseudoFiles(root, []), name) for name in moved}
        except KernelError as error:
            log.warning("the GIDs of %s are not known: %s", ", ".join(sorted(moved)), error)
    return tables
