"""How those who give GPUs to containers name them: variables, mounts, CDI devices, ids of device plugins.

From the documentation of NVIDIA's container toolkit and device plugin, AMD's container toolkit and device
plugin, and Habana's container runtime. Names alone; which GPU of the node is meant is found out by
:mod:`dranet.driver.alignment.observations`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

NVIDIA, AMD, HABANA = "nvidia", "amd", "habana"

GPU_VARIABLES: Mapping[str, str] = {
    "NVIDIA_VISIBLE_DEVICES": NVIDIA,
    "AMD_VISIBLE_DEVICES": AMD,
    "HABANA_VISIBLE_DEVICES": HABANA,
}
"""Environment variables with the vendor whose GPUs they name: UUIDs or indices with commas between. Not those
by which a process chooses among the GPUs of its container: ``CUDA_VISIBLE_DEVICES`` and
``ROCR_VISIBLE_DEVICES`` count from 0 there."""

_NODE_PREFIXES = (
    "/dev/nvidia",
    "/dev/dri/",
    "/dev/accel/",
    "/dev/davinci",
    "/dev/neuron",
    "/dev/ve",
    "/dev/hl",
)

_SHARED_NODES = frozenset(
    {
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
        "/dev/kfd",
        "/dev/mkfd",
    }
)

_MOUNT_FOLDER = "/var/run/nvidia-container-devices/"
"""NVIDIA's device plugin may name GPUs by mounts of /dev/null to files of their names below it."""

_CDI_ANNOTATION = "cdi.k8s.io/"
_CDI_NAME = re.compile(r"(?P<vendor>[a-z0-9.-]+)/(?P<kind>[A-Za-z0-9_.-]+)=(?P<device>.+)")
_CDI_VENDORS: Mapping[str, str] = {"nvidia.com": NVIDIA, "amd.com": AMD, "habana.ai": HABANA}
_CDI_KINDS = frozenset({"gpu", "mig", "gaudi"})
"""The kinds under which whole GPUs are named as their vendor's tools name them. A DRA driver's own specs
(``k8s.gpu.nvidia.com/device``, ``/claim``) have names of its own, and their GPUs are found by the claim."""

_RESOURCE_VENDORS: Mapping[str, str] = {
    "nvidia.com": NVIDIA,
    "amd.com": AMD,
    "habana.ai": HABANA,
    "gpu.intel.com": "intel",
}
_RESOURCE_KINDS = re.compile(r"gpu|mig-.+|gaudi|i915|xe|gpu\.shared|[sdtqc]px(_nps\d+)?")

_MAX_NAMES = 64


def is_gpu_variable(name: str) -> bool:
    """Whether an environment variable names GPUs."""
    return name in GPU_VARIABLES


def may_be_gpu_node(path: str) -> bool:
    """Whether a device node may be a GPU's, by where it is."""
    return path.startswith(_NODE_PREFIXES)


def is_shared_node(path: str) -> bool:
    """Whether all GPUs of a vendor have the device node in common: it tells none from the others."""
    return path in _SHARED_NODES


def names_gpus(destination: str) -> bool:
    """Whether a mount there names a GPU."""
    return destination.startswith(_MOUNT_FOLDER)


def find_mount_name(destination: str) -> str:
    """The GPU that the mount names: ``GPU-...``, ``all``; also below ``cdi/nvidia.com/gpu/``."""
    return destination.removeprefix(_MOUNT_FOLDER).rpartition("/")[2]


def find_cdi_names(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Qualified names of CDI devices in a container's annotations."""
    listed = (value for key, value in annotations.items() if key.startswith(_CDI_ANNOTATION))
    return tuple(name for value in listed for name in split_names(value))


def parse_cdi_name(name: str) -> tuple[str, str] | None:
    """Vendor and the name that it has for its GPU; ``None`` for what is no GPU, or not told by its name."""
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
