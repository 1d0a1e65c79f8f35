"""Why a GPU stays home that nobody else serves: a pod that was given it could not compute on it.

An error at Prepare would come too late: the scheduler has chosen by then, and chooses the same again.
"""

from __future__ import annotations

from collections.abc import Mapping

from dranet.model.attributes import GPU_VENDOR
from dranet.model.device import Device
from dranet.model.facts import PciFunction

_VIRTUAL_DISPLAYS = frozenset({"1234", "1414", "15ad", "1af4", "1b36"})
"""PCI vendors of the screens of virtual machines (QEMU, Microsoft, VMware, virtio, Red Hat). That of virtio
has a render node, which draws with the GPU of the machine outside, or with no GPU at all."""

_COMPUTE_NODES: Mapping[str, tuple[str, str]] = {
    "nvidia": ("/dev/nvidia-uvm", "the kernel module nvidia-uvm makes it"),
    "amd": ("/dev/kfd", "amdgpu makes it where it is built with HSA_AMD"),
}
"""By vendor: the node of all its GPUs without which CUDA, or ROCm, finds none, and who makes it."""


def find_gpu_fault(device: Device, function: PciFunction | None, parts: str) -> str:
    """Empty for a GPU that a container can use whole.

    Args:
        device: the GPU.
        function: its own.
        parts: what it is cut into, as its driver says (:class:`dranet.model.facts.Gpu`).
    """
    vendor = str(device.attributes.get(GPU_VENDOR.qualified, ""))
    if vendor in _VIRTUAL_DISPLAYS:
        return "is a display adapter of a virtual machine"
    if function is not None and function.sriov_num_vfs:
        parts = parts or f"{function.sriov_num_vfs} virtual functions"
    if parts:
        return f"is a GPU that is cut into parts ({parts})"
    paths = {node.path for node in device.char_devices}
    if not paths:
        return "is a GPU without a device node that a container could be given"
    node, maker = _COMPUTE_NODES.get(vendor, ("", ""))
    if node and node not in paths:
        return f"is a GPU, and there is no {node} to compute through: {maker}"
    return ""
