"""PCI functions from ``bus/pci/devices`` (``Documentation/ABI/testing/sysfs-bus-pci``), their names, GPUs.
Only what the inventory can use is read in full: network, display and accelerator functions, those that carry
an RDMA device (Alibaba's eRDMA has class 00ff), and the virtual functions of all these."""

from __future__ import annotations

import io
import os
import re
import stat
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dranet.kernel.sysfs.files import PseudoFiles, is_pci_address, parse_number, printable
from dranet.model.facts import CharDevice, Gpu, PciFunction

# --- names of vendors and devices from ``pci.ids`` (``pci.ids(5)``) ------------------------------------
# Manifests select devices by these texts, so they are returned exactly as the file has them. The database has
# 1.4 MB and 36,000 lines, of which a node needs ten: it is read for the wanted ids only, and again only for a
# new id or a changed file.

_PATH_VARIABLE = "PCIDB_PATH"
"""As DraNet has it."""

_DEFAULT_PATHS = tuple(
    Path(f"{path}{suffix}")
    for path in ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids", "/var/lib/pciutils/pci.ids")
    for suffix in ("", ".gz")
)

_GZIP_MAGIC = b"\x1f\x8b"

_LONGEST_LINE = 1024
"""Bytes. The longest line of the real file has 195; what has more is no entry."""

_PIECE_BYTES = 64 * 1024

_VENDOR = re.compile(rb"\n([0-9a-f]{4})  ([^\n]*)")
_DEVICE_OR_END = re.compile(rb"\n(?:\t([0-9a-f]{4})  ([^\n]*)|[^\t#\n])")
"""A device of the vendor, or the line after its last one."""

_MOST_BYTES = 8 << 20
"""Six times the real file; a bound on the time that a file which never ends, or unpacks to no end, takes."""


class PciName(Struct, frozen=True):
    vendor: str = ""
    device: str = ""


class PciIds:
    """Names by ``(vendor id, device id)``, from the database at ``path``, else at ``$PCIDB_PATH``, else where
    distributions keep it."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._edition: tuple[str, int, int] | None = None
        """Which file was read, and as of when: its path, time and size."""
        self._names: dict[tuple[int, int], PciName] = {}
        self._warnings: tuple[str, ...] = ()

    def read_names(
        self, wanted: Collection[tuple[int, int]], warnings: list[str]
    ) -> Mapping[tuple[int, int], PciName]:
        """The name of each wanted id. A database that is missing or broken is one warning."""
        if wanted:
            edition = self._find_edition()
            if edition is None:
                self._names, self._warnings = {}, (self._describe_missing(),)
            elif edition != self._edition or not set(wanted) <= self._names.keys():
                self._names, self._warnings = _read_names(edition[0], wanted)
            self._edition = edition
            warnings += self._warnings
        return {ids: self._names.get(ids, PciName()) for ids in wanted}

    def _find_edition(self) -> tuple[str, int, int] | None:
        for path in self._places():
            try:
                found = path.stat()
            except (OSError, ValueError):
                continue
            return str(path), found.st_mtime_ns, found.st_size
        return None

    def _places(self) -> tuple[Path, ...]:
        chosen = self._path or Path(os.environ.get(_PATH_VARIABLE, ""))
        return (chosen,) if chosen != Path() else _DEFAULT_PATHS

    def _describe_missing(self) -> str:
        places = ", ".join(repr(str(place)) for place in self._places())
        return (
            f"no PCI ID database at {places}: vendors and devices have no names; "
            f"install the Debian package pci.ids or set ${_PATH_VARIABLE}"
        )


def _read_names(
    path: str, wanted: Collection[tuple[int, int]]
) -> tuple[dict[tuple[int, int], PciName], tuple[str, ...]]:
    search = _Search(wanted)
    try:
        with ExitStack() as files:
            search.run(_read_lines(_open(path, files)))
    except (OSError, EOFError, zlib.error) as error:  # a torn gzip file gives each of these
        problem = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return search.names, (f"{path!r}: {problem}: some vendors and devices may have no names",)
    return search.names, ()


def _open(path: str, files: ExitStack) -> io.BufferedIOBase:
    """Open the database, plain or compressed, without waiting for what is no file (a FIFO)."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    plain = files.enter_context(os.fdopen(fd, "rb"))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError("not a file")
    if not plain.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC):
        return plain
    from gzip import GzipFile  # costs what only a compressed database has to pay

    return files.enter_context(GzipFile(fileobj=plain))


def _read_lines(database: io.BufferedIOBase) -> Iterator[bytes]:
    """Pieces of whole lines, each line with its end *before* it, as the patterns want it. What is too long
    for a line loses its middle."""
    size, rest = 0, b"\n"
    while piece := database.read(_PIECE_BYTES):
        size += len(piece)
        if size > _MOST_BYTES:
            raise OSError(f"only the first {_MOST_BYTES} bytes are read")
        piece = rest + piece
        end = piece.rfind(b"\n")
        yield piece[:end]
        rest = piece[end:][: _LONGEST_LINE + 1]
    yield rest


class _Search:
    """One way through the database. The patterns pass over the lines of no interest, which are most."""

    def __init__(self, wanted: Collection[tuple[int, int]]) -> None:
        self.names = dict.fromkeys(wanted, PciName())
        self._devices: dict[int, set[int]] = {}
        for vendor_id, device_id in wanted:
            self._devices.setdefault(vendor_id, set()).add(device_id)
        self._vendor_id, self._vendor, self._left = 0, "", set[int]()

    def run(self, pieces: Iterable[bytes]) -> None:
        """Take the names, up to the end or until nothing is left to find."""
        for piece in pieces:
            at = 0
            while (self._left or self._devices) and (found := self._pattern.search(piece, at)):
                at = self._take_device(found) if self._left else self._take_vendor(found)

    @property
    def _pattern(self) -> re.Pattern[bytes]:
        return _DEVICE_OR_END if self._left else _VENDOR

    def _take_vendor(self, found: re.Match[bytes]) -> int:
        """Name the vendor's devices, if wanted, and look for them next; where to go on."""
        self._vendor_id = int(found[1], 16)
        self._left = self._devices.pop(self._vendor_id, set())
        self._vendor = _name(found[2]) if self._left else ""  # a node has two or three of 1,850 vendors
        for device_id in self._left:
            self.names[self._vendor_id, device_id] = PciName(self._vendor)
        return found.end()

    def _take_device(self, found: re.Match[bytes]) -> int:
        """Name the device, if wanted, or leave the vendor at its end; where to go on."""
        if found[1] is None:
            self._left = set()
            return found.start()
        device_id = int(found[1], 16)
        if device_id in self._left:
            self._left.discard(device_id)
            self.names[self._vendor_id, device_id] = PciName(self._vendor, _name(found[2]))
        return found.end()


def _name(text: bytes) -> str:
    return printable(text.rstrip(b"\r").decode(errors="replace")) if len(text) <= _LONGEST_LINE else ""


# --- GPUs and accelerators, and the device nodes that a container needs ---------------------------------
# NVIDIA's numbers are from its driver's ``/proc/driver/nvidia`` and the kernel's ``devices.txt`` (major
# 195). AMD compute uses ``/dev/kfd`` (``Documentation/gpu/amdgpu/driver-misc.rst``); Hygon's driver
# derives from it and adds ``mkfd``. Habana's attributes are in ``Documentation/ABI/testing/sysfs-driver-
# habanalabs``, render and ``accel`` nodes in the kernel's DRM documentation. Not offered: display
# controllers of other vendors with class 0300, which are the board's VGA (ASPEED, Matrox); graphics and
# NPUs inside the processor; and AWS Neuron, Google's TPU and Huawei's Ascend, whose drivers do not show
# in sysfs which node belongs to which card.

_AWS, _GOOGLE, _HYGON, _NEC = 0x1D0F, 0x1AE0, 0x1D94, 0x1BCF
_INTEL, _AMD_GPU, _AMD_PROCESSOR = 0x8086, 0x1002, 0x1022

_VENDORS = {
    0x10DE: "nvidia", _AMD_GPU: "amd", _INTEL: "intel", 0x1DA3: "habana", 0x19E5: "huawei", _AWS: "aws",
    _GOOGLE: "google", _HYGON: "hygon", _NEC: "nec",
}  # fmt: skip

_VGA = 0x0300
_VGA_VENDORS = frozenset({"nvidia", "amd", "intel"})
"""Whose VGA controllers compute. That of an EC2 machine (1d0f:1111) does not."""

_DISPLAY_CLASSES = frozenset({_VGA, 0x0302, 0x0380})
_ACCELERATOR_BASE_CLASS = 0x12

_IN_INTEL_PROCESSOR = ("0000:00:02.", "0000:00:0b.")
"""Where graphics and NPU of Intel's processors are, on all of them; their virtual functions have other
slots."""

_COPROCESSOR, _SYSTEM_PERIPHERAL, _UNASSIGNED = 0x0B40, 0x0880, 0xFF00

ODD_CLASSES = frozenset({_COPROCESSOR, _SYSTEM_PERIPHERAL, _UNASSIGNED})
"""Classes that do not show what the function is: only the ids identify an accelerator."""

_COPROCESSOR_VENDORS = frozenset({_HYGON, _NEC})
"""Hygon's DCU and NEC's Vector Engine. Not Intel (QAT is a crypto engine) nor NVIDIA (a chipset part)."""

_ODD_DEVICES = {
    # Inferentia, Inferentia2, Trainium, Trainium2: the ids that Amazon's Neuron driver binds to
    (_SYSTEM_PERIPHERAL, _AWS): frozenset({0x7064, 0x7065, 0x7066, 0x7067, 0x7164, 0x7264, 0x7364}),
    # TPU v2 and v3; later ones have the class of accelerators
    (_UNASSIGNED, _GOOGLE): frozenset({0x0027}),
}

_AMD_PARTITIONED = frozenset({"DPX", "TPX", "QPX", "CPX"})
"""Modes in which the nodes of the function are those of its first part; SPX is the whole."""

_NVIDIA_MAJOR = 195
_NVIDIA_CONTROL_MINOR = 255


def is_odd_accelerator(class_code: int, vendor_id: int, device_id: int) -> bool:
    subclass = class_code >> 8
    if subclass == _COPROCESSOR:
        return vendor_id in _COPROCESSOR_VENDORS
    return device_id in _ODD_DEVICES.get((subclass, vendor_id), ())


def is_gpu(function: PciFunction) -> bool:
    """Whether the function is a GPU or accelerator, judging by class and ids."""
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


class GpuReader:
    """Reads single GPUs. It serves one scan, since it remembers the majors of the drivers."""

    def __init__(self, sysfs: PseudoFiles, procfs: PseudoFiles) -> None:
        self._sysfs = sysfs
        self._procfs = procfs

    def is_gpu(self, function: PciFunction) -> bool:
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
        """Each ``accelN`` also has a control node, which has no device of its own in sysfs."""
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
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            yield name.strip(), printable(value.strip())


# --- PCI functions --------------------------------------------------------------------------------------

PCI_DEVICES = "bus/pci/devices"

_BASE_CLASSES = frozenset({0x02, 0x03, 0x12})
"""Network, display, processing accelerator. The base class is the top byte of 24 bits: virtio-9p is
0x000200, which is no NIC."""

_WIDEST_LINK = 32
"""Lanes. Functions without a link of their own report 0, 63 or 255."""

_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")

_MOST_ID = 0xFFFF


def list_pci_functions(sysfs: PseudoFiles) -> list[str]:
    addresses = []
    for name in sysfs.entries(PCI_DEVICES):
        if is_pci_address(name):
            addresses.append(name)
        else:
            sysfs.warn(f"{PCI_DEVICES}/{name}", "not a PCI address")
    return addresses


def name_pci_functions(
    functions: Iterable[PciFunction], pci_ids: PciIds, warnings: list[str]
) -> list[PciFunction]:
    functions = tuple(functions)
    names = pci_ids.read_names({(f.vendor_id, f.device_id) for f in functions}, warnings)
    named = ((function, names[function.vendor_id, function.device_id]) for function in functions)
    return [replace(f, vendor_name=name.vendor, device_name=name.device) for f, name in named]


class PciReader:
    """Reads single functions. It serves one scan, because it caches physical functions."""

    def __init__(self, sysfs: PseudoFiles, also: Collection[str] = ()) -> None:
        self._sysfs = sysfs
        self._also = frozenset(also)
        self._virtual_functions: dict[str, dict[str, int]] = {}

    def read(self, address: str) -> PciFunction | None:
        """The function at ``address``; ``None`` if it is not of interest or has no class."""
        class_code = self._read_class(address)
        if class_code is None:
            self._sysfs.warn(f"{PCI_DEVICES}/{address}", "no class; the function is left out")
        elif self._is_wanted(address, class_code):
            return self._read_function(address, class_code)
        return None

    def _read_class(self, address: str) -> int | None:
        return self._sysfs.integer(f"{PCI_DEVICES}/{address}/class", base=16, most=0xFFFFFF)

    def _read_id(self, address: str, name: str) -> int:
        return self._sysfs.integer(f"{PCI_DEVICES}/{address}/{name}", base=16, most=_MOST_ID) or 0

    def _is_wanted(self, address: str, class_code: int) -> bool:
        return (
            class_code >> 16 in _BASE_CLASSES
            or address in self._also
            or (class_code >> 8 in ODD_CLASSES and self._is_odd_accelerator(address, class_code))
            or (class_code in self._classes_of_also and self._read_parent(address) in self._also)
        )

    def _is_odd_accelerator(self, address: str, class_code: int) -> bool:
        vendor_id, device_id = self._read_id(address, "vendor"), self._read_id(address, "device")
        return is_odd_accelerator(class_code, vendor_id, device_id)

    @cached_property
    def _classes_of_also(self) -> frozenset[int | None]:
        """Virtual functions have the class of their physical function (PCIe base specification, SR-IOV), so
        that only functions of these classes need be asked for their parent."""
        return frozenset(self._read_class(address) for address in self._also)

    def _read_parent(self, address: str) -> str:
        parent = _last(self._sysfs.link(f"{PCI_DEVICES}/{address}/physfn"))
        return parent if is_pci_address(parent) else ""

    def _read_function(self, address: str, class_code: int) -> PciFunction:
        sysfs, folder = self._sysfs, f"{PCI_DEVICES}/{address}"
        root, path = parse_path(sysfs.link(folder), address)
        numa_node = sysfs.integer(f"{folder}/numa_node", least=-1, most=_MOST_ID)
        parent = self._read_parent(address)
        return PciFunction(
            address=address,
            class_code=class_code,
            vendor_id=self._read_id(address, "vendor"),
            device_id=self._read_id(address, "device"),
            subsystem_vendor_id=self._read_id(address, "subsystem_vendor"),
            subsystem_device_id=self._read_id(address, "subsystem_device"),
            driver=_last(sysfs.link(f"{folder}/driver")),
            numa_node=numa_node if numa_node != -1 else None,
            root=root,
            path=path,
            physical_function=parent,
            virtual_function_index=self._read_index(parent, address) if parent else None,
            sriov_total_vfs=sysfs.integer(f"{folder}/sriov_totalvfs", most=_MOST_ID) or 0,
            sriov_num_vfs=sysfs.integer(f"{folder}/sriov_numvfs", most=_MOST_ID) or 0,
            link_speed=self._read_speed(f"{folder}/current_link_speed"),
            link_width=self._read_width(f"{folder}/current_link_width"),
            max_link_speed=self._read_speed(f"{folder}/max_link_speed"),
            max_link_width=self._read_width(f"{folder}/max_link_width"),
        )

    def _read_speed(self, path: str) -> str:
        speed = self._sysfs.text(path)
        return "" if speed.startswith("Unknown") else speed

    def _read_width(self, path: str) -> int:
        width = self._sysfs.integer(path) or 0
        return width if width <= _WIDEST_LINK else 0

    def _read_index(self, parent: str, address: str) -> int | None:
        """Index of a virtual function: from the ``virtfnN`` links of its physical function, which is read
        once; by arithmetic where it has no such link. There is no attribute for it on the VF itself."""
        index = self.read_virtual_functions(parent).get(address)
        return index if index is not None else self._compute_index(parent, address)

    def read_virtual_functions(self, parent: str) -> dict[str, int]:
        if parent not in self._virtual_functions:
            folder = f"{PCI_DEVICES}/{parent}"
            indexes = {f"virtfn{index}": index for index in self._sysfs.numbered(folder, "virtfn")}
            targets = self._sysfs.links(folder, indexes)
            found = {_last(target): indexes[name] for name, target in targets.items()}
            self._virtual_functions[parent] = found
        return self._virtual_functions[parent]

    def _compute_index(self, parent: str, address: str) -> int | None:
        """VF ``n`` has the routing ID of its PF, plus the first VF's offset, plus ``n`` strides."""
        offset = self._sysfs.integer(f"{PCI_DEVICES}/{parent}/sriov_offset", most=_MOST_ID)
        stride = self._sysfs.integer(f"{PCI_DEVICES}/{parent}/sriov_stride", most=_MOST_ID)
        if offset is None or stride is None:
            return None
        way = _routing_id(address) - _routing_id(parent) - offset
        if stride == 0:  # with a single VF it has no meaning
            return 0 if way == 0 else None
        return way // stride if way >= 0 and way % stride == 0 else None


def _routing_id(address: str) -> int:
    domain, bus, rest = address.split(":")
    device, _, function = rest.partition(".")
    return int(domain, 16) << 16 | int(bus, 16) << 8 | int(device, 16) << 3 | int(function, 16)


def parse_path(home: str, address: str) -> tuple[str, tuple[str, ...]]:
    """Split ``../../../devices/pci0000:20/0000:20:00.0/0000:21:00.0`` into the root and the functions
    from below it down to ``address``.

    The root is the first ``pci...`` component: behind Intel VMD a second one follows deeper down
    (``pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0``), and the way to the processor starts at the first.
    On Azure it is below the VMBus channel: ``devices/LNXSYSTM:00/.../VMBUS:01/<guid>/pci0001:00``.
    """
    components = home.split("/")
    root = next((name for name in components if _ROOT.fullmatch(name)), "")
    path = tuple(name for name in components if is_pci_address(name))
    return root, path if path[-1:] == (address,) else (*path, address)


def _last(link: str) -> str:
    return link.rpartition("/")[2]
