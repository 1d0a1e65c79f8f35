"""One device that the node can offer: a NIC, a virtual function, an RDMA-only device or a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dranet.model.facts import CharDevice

AttributeValue = bool | int | str
"""The scalar kinds of ``resource.k8s.io/v1`` DeviceAttribute that we publish. ``bool`` is an ``int`` in
Python: test it first."""


class DeviceKind(StrEnum):
    """What a device is; decides what attaching it means."""

    NIC = "nic"
    """Has a network interface (and perhaps an RDMA device)."""
    RDMA = "rdma"
    """An RDMA device without a network interface: nothing to move but the RDMA link."""
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class Device:
    """One allocatable entry of a ResourceSlice.

    ``name`` is stable across renames and restarts (PCI address where there is one). ``attributes`` maps
    qualified names (``dra.net/ifName``) to values within the API's limits.
    """

    name: str
    kind: DeviceKind
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    ifname: str = ""
    """Current name on the host; empty while a pod has the link, and for devices without one."""
    pci_address: str = ""
    pci_path: tuple[str, ...] = ()
    """Bridges and switch ports from below the root down to the function itself."""
    pcie_root: str = ""
    numa_node: int | None = None
    rdma_device: str = ""
    char_devices: tuple[CharDevice, ...] = ()
    """RDMA or GPU nodes that the workload needs."""
