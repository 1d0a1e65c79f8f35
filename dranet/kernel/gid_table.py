"""The GID tables of RDMA devices, entry by entry: ``Documentation/ABI/stable/sysfs-class-infiniband``."""

from __future__ import annotations

from collections.abc import Iterator

from dranet.kernel.discovery.rdma import RDMA_CLASS
from dranet.kernel.sysfs import PseudoFiles
from dranet.model.workload import GidSlot

_MOST_SLOTS = 1024
_LONGEST_GAP = 16
"""Empty entries in a row, after which nothing more is expected; a table may have a thousand."""
_EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"


def read_gid_table(sysfs: PseudoFiles, rdma_device: str) -> tuple[GidSlot, ...]:
    """The entries that are not empty, by port and index.

    ``sysfs`` must be one that shows the device (:func:`~dranet.kernel.netns_sysfs.open_sysfs`).
    """
    ports = f"{RDMA_CLASS}/{rdma_device}/ports"
    return tuple(
        slot for port in sysfs.numbered(ports) for slot in _read_port(sysfs, f"{ports}/{port}", port)
    )


def _read_port(sysfs: PseudoFiles, folder: str, port: int) -> Iterator[GidSlot]:
    gap = 0
    for index in range(_MOST_SLOTS):
        gid = sysfs.text(f"{folder}/gids/{index}").lower()
        if not gid or gid == _EMPTY:
            gap += 1
            if gap > _LONGEST_GAP:
                return
            continue
        gap = 0
        yield GidSlot(port, index, gid, sysfs.text(f"{folder}/gid_attrs/types/{index}"))
