"""One device that the node can offer: a NIC, a virtual function, an RDMA-only device or a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct, field

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


class RdmaIdentity(Struct, frozen=True):
    """Which RDMA device is meant, whatever its name is by now.

    The node GUID decides, then the PCI function. A record of an earlier version has neither: its name does.
    """

    name: str
    """As recorded; the device gets it again when it returns to the host."""
    node_guid: str = ""
    """Empty where none was assigned: some drivers (EFA) and fresh virtual functions have none."""
    pci_address: str = ""
    """Empty for a software device."""

    def choose(self, devices: Sequence[NamedRdma], read_pci_address: Callable[[str], str]) -> str:
        """The present name of this device among those of one namespace; empty where it is not among them.

        ``read_pci_address`` costs a look-up, and is called only where the GUID does not decide.
        """
        if not (self.node_guid or self.pci_address):
            return self.name if any(device.name == self.name for device in devices) else ""
        found = [d.name for d in devices if self.node_guid and d.node_guid == self.node_guid]
        if len(found) != 1 and self.pci_address:
            candidates = found or [device.name for device in devices]
            found = [name for name in candidates if read_pci_address(name) == self.pci_address] or found
        return self.name if self.name in found else next(iter(found), "")


class NamedRdma(NamedTuple):
    """An RDMA device of some namespace."""

    name: str
    node_guid: str


class Device(Struct, frozen=True):
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
    rdma_guid: str = ""
    """Node GUID of the RDMA device."""
    rdma_pci_address: str = ""
    """The PCI function of the RDMA device; empty for a software device on this one's link."""

    @property
    def rdma_identity(self) -> RdmaIdentity:
        """The identity of the RDMA device, which has a name."""
        return RdmaIdentity(self.rdma_device, self.rdma_guid, self.rdma_pci_address)


class TaintEffect(StrEnum):
    """What a taint does; the API's spelling."""

    NONE = "None"
    """Nothing but to be seen; not known to every server."""
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


class Taint(Struct, frozen=True):
    """One entry of ``devices[].taints``. The server sets ``timeAdded`` if it is absent."""

    key: str
    """A label key, ``dra.net/link-down``."""
    effect: TaintEffect
    value: str = ""
    """A label value; why, in one word."""
