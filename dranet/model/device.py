"""One device that the node can offer: a NIC, a virtual function, an RDMA-only device or a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from dranet.dataclass import dataclass
from dranet.model.facts import CharDevice

AttributeValue = bool | int | str | tuple[int, ...]
"""The kinds of ``resource.k8s.io/v1`` DeviceAttribute that we publish. ``bool`` is an ``int`` in Python: test
it first. A tuple is a list attribute (``ints``), which needs a feature gate of the cluster."""


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
    qualified names (``dra.net/ifName``) to values, each within the API's limits; there may be more of them
    than a slice can take (``inventory.slices`` chooses).
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
    physical_function: str = ""
    """PCI address of the SR-IOV physical function, on a virtual function."""
    numa_node: int | None = None
    rdma_device: str = ""
    char_devices: tuple[CharDevice, ...] = ()
    """RDMA or GPU nodes that the workload needs."""
    shared: bool = False
    """Several claims may hold it at once, each with a link on top of it (``allowMultipleAllocations``)."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Attributes (qualified names) that the facts give but that no slice can take, each with the reason."""
