"""One device that the node can offer (NIC, virtual function, RDMA-only device, GPU), and the GPUs of a pod.

A pod's GPUs may be from any driver or device plugin. Names of GPUs in variables, mounts, CDI devices and
device plugins are those of the documentation of NVIDIA's container toolkit and device plugin, AMD's
container toolkit and device plugin, and Habana's container runtime. Which GPU of the node is meant is found
by :mod:`dranet.driver.alignment.pod_gpus`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct, field

from dranet.model.facts import CharDevice

AttributeValue = bool | int | str | tuple[int | str, ...]
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


MEGABIT = 1_000_000
"""In bits per second: the unit of link speeds and of the rates of virtual functions."""


class Bandwidth(Struct, frozen=True):
    """The capacity of a shared device (KEP-5075) or of a virtual function, in bits per second."""

    total: int
    default: int | None
    """What a claim takes of a shared device if it asks for none; ``None``: each claim has all of it."""


class CounterUse(Struct, frozen=True):
    """One entry of ``devices[].consumesCounters`` (KEP-4815), of the set's only counter."""

    counter_set: str
    amount: int
    total: int
    """What the set has: a physical function takes all, and each virtual function one."""


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
    bandwidth: Bandwidth | None = None
    """What claims can ask for, and shares are counted by."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Attributes (qualified names) that the facts give but that no slice can take, each with the reason."""
    rdma_guid: str = ""
    """Node GUID of the RDMA device."""
    rdma_pci_address: str = ""
    """The PCI function of the RDMA device; empty for a software device on this one's link."""
    vf_index: int | None = None
    """Number of the virtual function at its ``physical_function``."""
    counters: CounterUse | None = None
    """What it takes of a counter set that a physical function shares with its virtual functions."""

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


class GpuSource(StrEnum):
    """Where it is known from that a pod has a GPU; the first of several counts."""

    CLAIM = "Claim"
    OTHER_DRIVERS_CLAIM = "OtherDriversClaim"
    CDI = "CDI"
    ENVIRONMENT = "Environment"
    MOUNTS = "Mounts"
    DEVICE_NODES = "DeviceNodes"
    POD_RESOURCES = "PodResources"

    @property
    def meaning(self) -> str:
        """What it is, for a legend."""
        return _MEANINGS[self]


_MEANINGS = {
    GpuSource.CLAIM: "a device of this driver in one of the pod's claims",
    GpuSource.OTHER_DRIVERS_CLAIM: "a device of another driver in one of the pod's claims, found in the "
    "slices of that driver",
    GpuSource.CDI: "a CDI device that the container was given",
    GpuSource.ENVIRONMENT: "an environment variable by which device plugins name GPUs",
    GpuSource.MOUNTS: "a mount by which a device plugin names GPUs",
    GpuSource.DEVICE_NODES: "a device node in the container",
    GpuSource.POD_RESOURCES: "the kubelet's pod resources socket",
}


class PodGpu(Struct, frozen=True):
    """One GPU of a pod."""

    device: Device
    """As this driver knows it, published or not."""
    source: GpuSource
    holder: str = ""
    """The claim or the container, where it helps: ``claim train/gpus``, ``container main``."""

    @property
    def name(self) -> str:
        return self.device.name


class Doubt(Struct, frozen=True):
    """A GPU, or what may be one, without a known place on this node: a clause that reads after the pod."""

    text: str
    is_other_driver: bool = False
    """A device of another driver whose slices do not publish its place."""


class GpusOfPod(Struct, frozen=True):
    """All that is known of a pod's GPUs, in the order of PCI addresses."""

    gpus: tuple[PodGpu, ...] = ()
    doubts: tuple[Doubt, ...] = ()


NVIDIA, AMD, HABANA = "nvidia", "amd", "habana"

GPU_VARIABLES: Mapping[str, str] = {
    "NVIDIA_VISIBLE_DEVICES": NVIDIA,
    "AMD_VISIBLE_DEVICES": AMD,
    "HABANA_VISIBLE_DEVICES": HABANA,
}
"""Environment variables with the vendor whose GPUs they name: UUIDs or indices with commas between. Not those
by which a process chooses among the GPUs of its container: ``CUDA_VISIBLE_DEVICES`` and
``ROCR_VISIBLE_DEVICES`` count from 0 there."""

_NODE_PREFIXES = tuple(
    f"/dev/{prefix}" for prefix in ("nvidia", "dri/", "accel/", "davinci", "neuron", "ve", "hl")
)

SHARED_GPU_NODES = frozenset(
    f"/dev/{name}"
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "kfd", "mkfd")
)
"""Device nodes that all GPUs of a vendor share, so that they identify none of them."""

_MOUNT_FOLDER = "/var/run/nvidia-container-devices/"
"""NVIDIA's device plugin may name GPUs by mounts of /dev/null to files of their names below it."""

_CDI_ANNOTATION = "cdi.k8s.io/"
_CDI_NAME = re.compile(r"(?P<vendor>[a-z0-9.-]+)/(?P<kind>[A-Za-z0-9_.-]+)=(?P<device>.+)")
_CDI_VENDORS: Mapping[str, str] = {"nvidia.com": NVIDIA, "amd.com": AMD, "habana.ai": HABANA}
_CDI_KINDS = frozenset({"gpu", "mig", "gaudi"})
"""The kinds under which whole GPUs are named as their vendor's tools name them. A DRA driver's own specs
(``k8s.gpu.nvidia.com/device``, ``/claim``) have names of its own, and their GPUs are found by the claim."""

_RESOURCE_VENDORS: Mapping[str, str] = {**_CDI_VENDORS, "gpu.intel.com": "intel"}
_RESOURCE_KINDS = re.compile(r"gpu|mig-.+|gaudi|i915|xe|gpu\.shared|[sdtqc]px(_nps\d+)?")

_MAX_NAMES = 64


def may_be_gpu_node(path: str) -> bool:
    """Whether a device node may be a GPU's, by where it is."""
    return path.startswith(_NODE_PREFIXES)


def names_gpus(destination: str) -> bool:
    return destination.startswith(_MOUNT_FOLDER)


def find_mount_name(destination: str) -> str:
    """The GPU that the mount names: ``GPU-...``, ``all``; also below ``cdi/nvidia.com/gpu/``."""
    return destination.removeprefix(_MOUNT_FOLDER).rpartition("/")[2]


def find_cdi_names(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Qualified names of CDI devices in a container's annotations."""
    listed = (value for key, value in annotations.items() if key.startswith(_CDI_ANNOTATION))
    return tuple(name for value in listed for name in split_names(value))


def parse_cdi_name(name: str) -> tuple[str, str] | None:
    """Vendor and the name that it has for its GPU; ``None`` for what is not a GPU, or not identified by its
    name."""
    found = _CDI_NAME.fullmatch(name)
    if found is None or found["kind"] not in _CDI_KINDS:
        return None
    domain = ".".join(found["vendor"].split(".")[-2:])  # also k8s.device-plugin.nvidia.com
    vendor = _CDI_VENDORS.get(domain)
    return None if vendor is None else (vendor, found["device"])


def find_resource_vendor(resource: str) -> str:
    """Whose GPUs an extended resource counts; empty for anything else."""
    domain, _, kind = resource.partition("/")
    return _RESOURCE_VENDORS.get(domain, "") if _RESOURCE_KINDS.fullmatch(kind) else ""


def split_names(value: str) -> Iterator[str]:
    """A list with commas; no longer than any node has GPUs."""
    names = (name.strip() for name in value.split(",")[:_MAX_NAMES])
    return (name for name in names if name)
