"""Find other programs that give the GPUs of this node to pods: a vendor's DRA driver, or a device plugin.

A GPU that two of them offer may be given to two pods without either noticing. So if another one serves one
GPU of a vendor, all GPUs of that vendor are left to them: what a vendor's driver leaves out (a broken card,
one that is cut into parts) it leaves out for a reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field

from dranet.model.facts import Gpu

VENDOR_DRIVERS: Mapping[str, str] = {
    "gpu.nvidia.com": "nvidia",
    "gpu.amd.com": "amd",
    "gpu.intel.com": "intel",
    "gaudi.intel.com": "habana",
    "neuron.aws.com": "aws",
    "tpu.google.com": "google",
}
"""DRA drivers whose devices all mean GPUs of the vendor, with or without a published PCI address. NVIDIA's
``compute-domain.nvidia.com`` is not among them: its devices are channels between nodes."""

_PLUGIN_RESOURCES: Mapping[str, re.Pattern[str]] = {
    "nvidia": re.compile(r"nvidia\.com/(gpu(\..+)?|mig-.+)"),
    "amd": re.compile(r"amd\.com/(gpu|[sdtqc]px(_nps\d+)?)"),
    "intel": re.compile(r"gpu\.intel\.com/.+"),
    "habana": re.compile(r"habana\.ai/.+"),
    "aws": re.compile(r"aws\.amazon\.com/neuron.*"),
    "google": re.compile(r"google\.com/tpu|cloud-tpus\.google\.com/.+"),
    "huawei": re.compile(r"huawei\.com/(Ascend.+|npu)"),
    "hygon": re.compile(r"hygon\.com/dcu.*"),
    "nec": re.compile(r"nec\.com/ve"),
}
"""Extended resources that device plugins announce. Not all of ``nvidia.com/``: its network operator has NICs
there."""

_ANY_GPU = re.compile(r"[^/]+/v?gpu([-_.].*)?", re.IGNORECASE)
"""Resources of those who share out any vendor's GPUs (``volcano.sh/vgpu-number``, ``aliyun.com/gpu-mem``)."""

_VENDORS_OWN = re.compile(r"([^/]+\.)?(nvidia|amd|intel|habana|amazon|google|huawei|hygon|nec)\.[a-z]+/.*")
"""Names of vendors, which identify the GPUs that they mean, or mean none."""


class OfferedElsewhere(Protocol):
    """A device in a slice of another driver (``cluster.node_slices.NodeDevice``)."""

    @property
    def driver(self) -> str: ...
    @property
    def pci_address(self) -> str: ...
    @property
    def uuids(self) -> Sequence[str]: ...


class ServedGpus(Struct, frozen=True):
    """Whose GPUs are left to whom."""

    is_known: bool = True
    """Whether the cluster has been asked. If not, no GPU is offered yet where that matters."""
    by_vendor: Mapping[str, str] = field(default_factory=dict)
    """Vendor (as in :class:`Gpu`) -> who serves its GPUs, which reads after "left to"."""


NO_OTHER_SERVER = ServedGpus()
"""Assumed without a cluster, as for a capture: no other program serves GPUs."""

UNKNOWN = ServedGpus(is_known=False)


def find_servers(
    gpus: Iterable[Gpu],
    devices: Iterable[OfferedElsewhere],
    resources: Iterable[str],
    drivers: Iterable[str] = (),
    used: Iterable[str] = (),
) -> Mapping[str, str]:
    """Map each vendor whose GPUs another program serves on this node to that program.

    Args:
        gpus: those of this node.
        devices: that other DRA drivers offer on this node.
        resources: extended resources of the Node.
        drivers: other DRA drivers with slices here. These may be empty: a vendor's driver takes broken GPUs
            out, and pods may have them still.
        used: resources and drivers of which pods have devices, even if no program serves them now.
    """
    gpus, devices = tuple(gpus), tuple(devices)
    addresses = {gpu.pci_address: gpu.vendor for gpu in gpus}
    vendors = frozenset(addresses.values())
    uuids = {gpu.uuid.lower(): gpu.vendor for gpu in gpus if gpu.uuid}
    found: dict[str, set[str]] = {}
    for device in devices:
        named = {addresses.get(device.pci_address), *(uuids.get(uuid.lower()) for uuid in device.uuids)}
        for vendor in named & vendors:
            found.setdefault(str(vendor), set()).add(f"the DRA driver {device.driver}")
    for driver in {*drivers, *(device.driver for device in devices)}:
        for vendor in _whose(driver, vendors):
            found.setdefault(vendor, set()).add(f"the DRA driver {driver}")
    for resource in resources:
        for vendor in _whose(resource, vendors):
            found.setdefault(vendor, set()).add(f"the device plugin of {resource}")
    for name in used:
        for vendor in _whose(name, vendors) - found.keys():
            found[vendor] = {f"the pods that have devices of {name}"}
    return {vendor: _name(servers) for vendor, servers in sorted(found.items())}


def _whose(name: str, vendors: frozenset[str]) -> frozenset[str]:
    """The vendors whose GPUs a driver or an extended resource stands for, of those that are here."""
    if "/" not in name:
        return vendors & {VENDOR_DRIVERS.get(name, "")}
    if _ANY_GPU.fullmatch(name) and not _VENDORS_OWN.fullmatch(name):
        return vendors
    return frozenset(v for v, own in _PLUGIN_RESOURCES.items() if v in vendors and own.fullmatch(name))


def _name(servers: Iterable[str]) -> str:
    """A node has few; one that has many is odd, and the line is to stay readable."""
    return " and ".join(sorted(servers)[:3])
