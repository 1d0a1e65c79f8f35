"""GPUs and accelerators: which PCI functions they are, and the device nodes that a container needs.

NVIDIA's numbers are from its driver's ``/proc/driver/nvidia`` and the kernel's ``devices.txt`` (major 195);
AMD compute goes through ``/dev/kfd``; render and ``accel`` nodes are in the kernel's DRM documentation.
Display controllers of other vendors with class 0300 are the board's VGA (ASPEED, Matrox) and not offered.
"""

from __future__ import annotations

from collections.abc import Iterable

from dranet.kernel.sysfs import PseudoFiles
from dranet.model.facts import CharDevice, Gpu, PciFunction

_VENDORS = {0x10DE: "nvidia", 0x1002: "amd", 0x8086: "intel"}

_VGA = 0x0300
_DISPLAY_CLASSES = frozenset({_VGA, 0x0302, 0x0380})
_ACCELERATOR_BASE_CLASS = 0x12

_NVIDIA_MAJOR = 195
_NVIDIA_CONTROL_MINOR = 255


def is_gpu(function: PciFunction) -> bool:
    """Whether the function is a GPU or accelerator worth offering."""
    if function.base_class == _ACCELERATOR_BASE_CLASS:
        return True
    subclass = function.class_code >> 8
    return subclass in _DISPLAY_CLASSES and (subclass != _VGA or function.vendor_id in _VENDORS)


def read_gpus(sysfs: PseudoFiles, procfs: PseudoFiles, functions: Iterable[PciFunction]) -> list[Gpu]:
    """Read the GPUs among ``functions``, in their order."""
    found = [function for function in functions if is_gpu(function)]
    majors = _read_majors(procfs) if any(_VENDORS.get(f.vendor_id) == "nvidia" for f in found) else {}
    return [_read_gpu(sysfs, procfs, function, majors) for function in found]


def _read_gpu(sysfs: PseudoFiles, procfs: PseudoFiles, function: PciFunction, majors: dict[str, int]) -> Gpu:
    vendor = _VENDORS.get(function.vendor_id, f"{function.vendor_id:04x}")
    if vendor == "nvidia":
        return _read_nvidia(procfs, function, majors)
    nodes = _read_drm_nodes(sysfs, function.address)
    if vendor == "amd" and nodes:
        kfd = sysfs.char_device("class/kfd/kfd/dev", "/dev/kfd")
        nodes = [*([kfd] if kfd else []), *nodes]
    return Gpu(function.address, vendor, char_devices=tuple(nodes))


def _read_nvidia(procfs: PseudoFiles, function: PciFunction, majors: dict[str, int]) -> Gpu:
    text = procfs.whole_text(f"driver/nvidia/gpus/{function.address}/information")
    facts = dict(_parse_information(text))
    minor = facts.get("Device Minor", "")
    nodes = _nvidia_nodes(int(minor), majors) if minor.isdigit() else ()
    return Gpu(function.address, "nvidia", facts.get("Model", ""), facts.get("GPU UUID", ""), nodes)


def _parse_information(text: str) -> Iterable[tuple[str, str]]:
    """Parse lines like ``Model: \\t\\t NVIDIA H100 80GB HBM3``."""
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            yield name.strip(), value.strip()


def _nvidia_nodes(minor: int, majors: dict[str, int]) -> tuple[CharDevice, ...]:
    nodes = [
        CharDevice(f"/dev/nvidia{minor}", _NVIDIA_MAJOR, minor),
        CharDevice("/dev/nvidiactl", _NVIDIA_MAJOR, _NVIDIA_CONTROL_MINOR),
    ]
    if "nvidia-uvm" in majors:  # a dynamic major, there once the module is loaded
        nodes.append(CharDevice("/dev/nvidia-uvm", majors["nvidia-uvm"], 0))
        nodes.append(CharDevice("/dev/nvidia-uvm-tools", majors["nvidia-uvm"], 1))
    return tuple(nodes)


def _read_majors(procfs: PseudoFiles) -> dict[str, int]:
    """Map driver name to major, from the character half of ``/proc/devices``."""
    characters = procfs.whole_text("devices").partition("Block devices:")[0]
    fields = (line.split() for line in characters.splitlines())
    return {field[1]: int(field[0]) for field in fields if len(field) == 2 and field[0].isdigit()}


def _read_drm_nodes(sysfs: PseudoFiles, address: str) -> list[CharDevice]:
    """Render and accel nodes. Not ``cardN``: it sets display modes, which no compute container may."""
    nodes = []
    for folder, prefix, place in (("drm", "renderD", "/dev/dri"), ("accel", "accel", "/dev/accel")):
        parent = f"bus/pci/devices/{address}/{folder}"
        for entry in sysfs.entries(parent):
            node = entry.startswith(prefix) and sysfs.char_device(f"{parent}/{entry}/dev", f"{place}/{entry}")
            if node:
                nodes.append(node)
    return nodes
