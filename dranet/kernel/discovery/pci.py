"""PCI functions from ``bus/pci/devices`` (``Documentation/ABI/testing/sysfs-bus-pci``).

Only what the inventory can use is read in full: network, display and accelerator functions, those that carry
an RDMA device (Alibaba's eRDMA has class 00ff), and the virtual functions of all these. Bridges and switches
appear in the paths, which come from the link texts and cost nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import cached_property

from msgspec.structs import replace

from dranet.kernel.discovery.gpu import ODD_CLASSES, is_odd_accelerator
from dranet.kernel.discovery.pciids import PciIds
from dranet.kernel.sysfs import PseudoFiles, is_pci_address
from dranet.model.facts import PciFunction

PCI_DEVICES = "bus/pci/devices"

_BASE_CLASSES = frozenset({0x02, 0x03, 0x12})
"""Network, display, processing accelerator. The base class is the top byte of 24 bits: virtio-9p is
0x000200, which is no NIC."""

_WIDEST_LINK = 32
"""Lanes. Functions without a link of their own report 0, 63 or 255."""

_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")

_MOST_ID = 0xFFFF


def read_pci_functions(
    sysfs: PseudoFiles, also: Collection[str] = (), pci_ids: PciIds | None = None
) -> list[PciFunction]:
    """Read the functions of interest and those named in ``also``, sorted by address; with vendor and device
    names where ``pci_ids`` is given."""
    reader = PciReader(sysfs, also)
    found = (reader.read(address) for address in list_pci_functions(sysfs))
    functions = [function for function in found if function is not None]
    return name_pci_functions(functions, pci_ids, sysfs.warnings) if pci_ids else functions


def list_pci_functions(sysfs: PseudoFiles) -> list[str]:
    """The addresses of all functions, sorted."""
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
    """The functions with ``vendor_name`` and ``device_name``."""
    functions = tuple(functions)
    names = pci_ids.read_names({(f.vendor_id, f.device_id) for f in functions}, warnings)
    named = ((function, names[function.vendor_id, function.device_id]) for function in functions)
    return [replace(f, vendor_name=name.vendor, device_name=name.device) for f, name in named]


class PciReader:
    """Reads single functions. It serves one scan, since it remembers what physical functions told it."""

    def __init__(self, sysfs: PseudoFiles, also: Collection[str] = ()) -> None:
        self._sysfs = sysfs
        self._also = frozenset(also)
        self._virtual_functions: dict[str, dict[str, int]] = {}

    def read(self, address: str) -> PciFunction | None:
        """The function at ``address``; ``None`` where it is not of interest or tells no class."""
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
        """The physical function of a virtual one; else empty."""
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
        """Addresses and indexes of the virtual functions that a physical one links to."""
        indexes = self._virtual_functions.get(parent)
        if indexes is None:
            indexes = self._virtual_functions[parent] = self._read_virtual_functions(parent)
        return indexes

    def _read_virtual_functions(self, parent: str) -> dict[str, int]:
        folder = f"{PCI_DEVICES}/{parent}"
        indexes = {f"virtfn{index}": index for index in self._sysfs.numbered(folder, "virtfn")}
        targets = self._sysfs.links(folder, indexes)
        return {_last(target): indexes[name] for name, target in targets.items()}

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
    """Domain, bus, device (5 bits) and function (3 bits) as one number."""
    domain, bus, rest = address.split(":")
    device, _, function = rest.partition(".")
    return int(domain, 16) << 16 | int(bus, 16) << 8 | int(device, 16) << 3 | int(function, 16)


def parse_path(home: str, address: str) -> tuple[str, tuple[str, ...]]:
    """Split ``../../../devices/pci0000:20/0000:20:00.0/0000:21:00.0`` into the root and the functions
    from below it down to ``address``.

    The root is the first ``pci...`` component: behind Intel VMD a second one follows deeper down
    (``pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0``), and the way to the processor starts at the first.
    On Azure it stands below the VMBus channel: ``devices/LNXSYSTM:00/.../VMBUS:01/<guid>/pci0001:00``.
    """
    components = home.split("/")
    root = next((name for name in components if _ROOT.fullmatch(name)), "")
    path = tuple(name for name in components if is_pci_address(name))
    return root, path if path[-1:] == (address,) else (*path, address)


def _last(link: str) -> str:
    return link.rpartition("/")[2]
