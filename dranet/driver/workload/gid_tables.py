"""The GID tables of a pod's RDMA devices, read where they are: on the host, or in the pod's namespace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from dranet.driver.metadata.pod_gids import read_where_they_are
from dranet.kernel.gid_table import read_gid_table
from dranet.kernel.sysfs import PseudoFiles
from dranet.model.plan import PreparedClaim
from dranet.model.workload import GidSlot

GidTables = Mapping[str, tuple[GidSlot, ...]]
"""By RDMA device."""


def read_gid_tables(sysfs_root: Path, records: Iterable[PreparedClaim], netns_path: str) -> GidTables:
    """Of every RDMA device that the pod's containers can use. What cannot be read is not there."""
    return read_where_they_are(
        sysfs_root, records, netns_path, lambda root, name: read_gid_table(PseudoFiles(root, []), name)
    )
