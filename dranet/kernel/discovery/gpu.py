"""GPUs and accelerators: which PCI functions they are, and the device nodes that a container needs.

NVIDIA's numbers are from its driver's ``/proc/driver/nvidia`` and the kernel's ``devices.txt`` (major 195);
AMD compute goes through ``/dev/kfd``, its names are in ``Documentation/gpu/amdgpu/driver-misc.rst`` (Hygon's
driver is made of it, with a node ``mkfd`` beside); Habana's attributes are in
``Documentation/ABI/testing/sysfs-driver-habanalabs``; render and ``accel`` nodes are in the kernel's DRM
documentation. Display controllers of other vendors with class 0300 are the board's VGA (ASPEED, Matrox) and
not offered. Neither is what sits in the processor: graphics for a screen, NPUs of desktops.

The drivers of AWS Neuron (``device_create`` without a parent), Google's TPU and Huawei's Ascend do not say in
sysfs which node is which card: those have no nodes here, and are not offered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from dranet.kernel.sysfs import PseudoFiles, parse_number, printable
from dranet.model.facts import CharDevice, Gpu, PciFunction

_AWS, _GOOGLE, _HYGON, _NEC = 0x1D0F, 0x1AE0, 0x1D94, 0x1BCF
_INTEL, _AMD_GPU, _AMD_PROCESSOR = 0x8086, 0x1002, 0x1022

_VENDORS = {
    0x10DE: "nvidia",
    _AMD_GPU: "amd",
    _INTEL: "intel",
    0x1DA3: "habana",
    0x19E5: "huawei",
    _AWS: "aws",
    _GOOGLE: "google",
    _HYGON: "hygon",
    _NEC: "nec",
}

_VGA = 0x0300
_VGA_VENDORS = frozenset({"nvidia", "amd", "intel"})
"""Whose VGA controllers compute. That of an EC2 machine (1d0f:1111) does not."""

_DISPLAY_CLASSES = frozenset({_VGA, 0x0302, 0x0380})
_ACCELERATOR_BASE_CLASS = 0x12

_IN_INTEL_PROCESSOR = ("0000:00:02.", "0000:00:0b.")
"""Where graphics and NPU of Intel's processors are, on all of them; their virtual functions are beside."""

_COPROCESSOR, _SYSTEM_PERIPHERAL, _UNASSIGNED = 0x0B40, 0x0880, 0xFF00

ODD_CLASSES = frozenset({_COPROCESSOR, _SYSTEM_PERIPHERAL, _UNASSIGNED})
"""Classes that do not say what the function is: there only the ids tell an accelerator."""

_COPROCESSOR_VENDORS = frozenset({_HYGON, _NEC})
"""Hygon's DCU and NEC's Vector Engine. Not Intel (QAT is a crypto engine) nor NVIDIA (a chipset part)."""

_ODD_DEVICES = {
    # Inferentia, Inferentia2, Trainium, Trainium2: the ids that Amazon's Neuron driver binds to
    (_SYSTEM_PERIPHERAL, _AWS): frozenset({0x7064, 0x7065, 0x7066, 0x7067, 0x7164, 0x7264, 0x7364}),
    # TPU v2 and v3; later ones say that they are accelerators
    (_UNASSIGNED, _GOOGLE): frozenset({0x0027}),
}

_AMD_PARTITIONED = frozenset({"DPX", "TPX", "QPX", "CPX"})
"""Modes in which the nodes of the function are those of its first part; SPX is the whole."""

_NVIDIA_MAJOR = 195
_NVIDIA_CONTROL_MINOR = 255


def is_odd_accelerator(class_code: int, vendor_id: int, device_id: int) -> bool:
    """Whether a function whose class is one of ``ODD_CLASSES`` is an accelerator all the same."""
    subclass = class_code >> 8
    if subclass == _COPROCESSOR:
        return vendor_id in _COPROCESSOR_VENDORS
    return device_id in _ODD_DEVICES.get((subclass, vendor_id), ())


def is_gpu(function: PciFunction) -> bool:
    """Whether the function is a GPU or accelerator, as far as class and ids tell."""
    if function.vendor_id == _INTEL and function.address.startswith(_IN_INTEL_PROCESSOR):
        return False
    if function.base_class == _ACCELERATOR_BASE_CLASS:
        return True
    subclass = function.class_code >> 8
    if subclass == _VGA:
        return _VENDORS.get(function.vendor_id) in _VGA_VENDORS
    return subclass in _DISPLAY_CLASSES or is_odd_accelerator(
        function.class_code, function.vendor_id, function.device_id
    )


def read_gpus(sysfs: PseudoFiles, procfs: PseudoFiles, functions: Iterable[PciFunction]) -> list[Gpu]:
    """Read the GPUs among ``functions``, in their order."""
    reader = GpuReader(sysfs, procfs)
    return [reader.read(function) for function in functions if reader.is_gpu(function)]


class GpuReader:
    """Reads single GPUs. It serves one scan, since it remembers the majors of the drivers."""

    def __init__(self, sysfs: PseudoFiles, procfs: PseudoFiles) -> None:
        self._sysfs = sysfs
        self._procfs = procfs

    def is_gpu(self, function: PciFunction) -> bool:
        """Whether the function is a GPU or accelerator worth offering."""
        return is_gpu(function) and not self._is_in_amd_processor(function)

    def _is_in_amd_processor(self, function: PciFunction) -> bool:
        """Graphics of AMD's processors share their slot with other parts of the processor (its security
        processor, USB), which have another vendor id than AMD's cards and all that is on them. MI300A, a
        processor that is made for computing, is no display controller."""
        if function.vendor_id != _AMD_GPU or function.class_code >> 8 not in _DISPLAY_CLASSES:
            return False
        slot = f"bus/pci/devices/{function.address.rpartition('.')[0]}"
        vendors = (self._sysfs.integer(f"{slot}.{n}/vendor", base=16, most=0xFFFF) for n in range(1, 8))
        return _AMD_PROCESSOR in vendors

    def read(self, function: PciFunction) -> Gpu:
        """What is known about the GPU at ``function``."""
        vendor = _VENDORS.get(function.vendor_id, f"{function.vendor_id:04x}")
        if vendor == "nvidia":
            return self._read_nvidia(function)
        folder = f"bus/pci/devices/{function.address}"
        nodes = tuple(self._read_drm_nodes(folder))
        if vendor == "amd":
            return self._read_amd(function, folder, nodes)
        if vendor == "habana":
            return self._read_habana(function, folder, nodes)
        if vendor == "hygon":
            return Gpu(function.address, vendor, char_devices=self._with_shared(("kfd", "mkfd"), nodes))
        return Gpu(function.address, vendor, char_devices=nodes)

    def _read_nvidia(self, function: PciFunction) -> Gpu:
        text = self._procfs.whole_text(f"driver/nvidia/gpus/{function.address}/information")
        facts = dict(_parse_information(text))
        uuid = facts.get("GPU UUID", "")
        minor = parse_number(facts.get("Device Minor", ""))
        return Gpu(
            function.address,
            "nvidia",
            model=facts.get("Model", ""),
            uuid="" if "?" in uuid else uuid,  # question marks until the driver has started the GPU
            char_devices=() if minor is None else self._nvidia_nodes(minor),
            parts="" if minor is None else self._nvidia_parts(minor),
        )

    def _nvidia_parts(self, minor: int) -> str:
        """MIG's GPU instances; that MIG is on without any of them cannot be seen here."""
        instances = self._procfs.entries(f"driver/nvidia/capabilities/gpu{minor}/mig")
        return "MIG" if any(name.startswith("gi") for name in instances) else ""

    def _nvidia_nodes(self, minor: int) -> tuple[CharDevice, ...]:
        nodes = [
            CharDevice(f"/dev/nvidia{minor}", _NVIDIA_MAJOR, minor),
            CharDevice("/dev/nvidiactl", _NVIDIA_MAJOR, _NVIDIA_CONTROL_MINOR),
        ]
        uvm = self._majors.get("nvidia-uvm")  # a dynamic major, there once the module is loaded
        if uvm is not None:
            nodes.append(CharDevice("/dev/nvidia-uvm", uvm, 0))
            nodes.append(CharDevice("/dev/nvidia-uvm-tools", uvm, 1))
        return tuple(nodes)

    @cached_property
    def _majors(self) -> dict[str, int]:
        """Driver name to major, from the character half of ``/proc/devices``."""
        characters = self._procfs.whole_text("devices").partition("Block devices:")[0]
        fields = (line.split() for line in characters.splitlines())
        majors = ((field[1], parse_number(field[0])) for field in fields if len(field) == 2)
        return {name: major for name, major in majors if major is not None}

    def _read_amd(self, function: PciFunction, folder: str, nodes: tuple[CharDevice, ...]) -> Gpu:
        mode = self._sysfs.text(f"{folder}/current_compute_partition")
        return Gpu(
            function.address,
            "amd",
            model=self._sysfs.text(f"{folder}/product_name"),
            uuid=self._sysfs.text(f"{folder}/unique_id"),
            char_devices=self._with_shared(("kfd",), nodes),
            parts=mode if mode in _AMD_PARTITIONED else "",
        )

    def _with_shared(self, names: Sequence[str], nodes: tuple[CharDevice, ...]) -> tuple[CharDevice, ...]:
        """The nodes through which all GPUs of the vendor compute, before the GPU's own, if it has any."""
        shared = (self._sysfs.char_device(f"class/{name}/{name}/dev", f"/dev/{name}") for name in names)
        return (*filter(None, shared), *nodes) if nodes else ()

    def _read_habana(self, function: PciFunction, folder: str, nodes: tuple[CharDevice, ...]) -> Gpu:
        """Each ``accelN`` has a control node beside it, which has no device of its own in sysfs."""
        numbers = self._sysfs.numbered(f"{folder}/accel", "accel")
        names = [f"accel_controlD{number}" for number in numbers]
        controls = [self._sysfs.char_device(f"class/accel/{n}/dev", f"/dev/accel/{n}") for n in names]
        return Gpu(
            function.address,
            "habana",
            model=self._sysfs.text(f"{folder}/device_type"),
            char_devices=(*nodes, *(control for control in controls if control)),
        )

    def _read_drm_nodes(self, folder: str) -> Iterator[CharDevice]:
        """Render and accel nodes. Not ``cardN``: it sets display modes, which no compute container may."""
        for kind, prefix, place in (("drm", "renderD", "/dev/dri"), ("accel", "accel", "/dev/accel")):
            for number in self._sysfs.numbered(f"{folder}/{kind}", prefix):
                name = f"{prefix}{number}"
                node = self._sysfs.char_device(f"{folder}/{kind}/{name}/dev", f"{place}/{name}")
                if node:
                    yield node


def _parse_information(text: str) -> Iterator[tuple[str, str]]:
    """Parse lines like ``Model: \\t\\t NVIDIA H100 80GB HBM3``."""
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            yield name.strip(), printable(value.strip())
