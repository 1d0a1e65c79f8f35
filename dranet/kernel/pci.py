"""PCI functions from ``bus/pci/devices`` (``Documentation/ABI/testing/sysfs-bus-pci``).

Only what the inventory can use is read in full: network, display and accelerator functions and those that
carry an RDMA device (Alibaba's eRDMA has class 00ff). Bridges and switches appear in the paths, which come
from the link texts and cost nothing.
"""

from __future__ import annotations

from collections.abc import Collection

from dranet.kernel.sysfs import PseudoFiles, is_pci_address
from dranet.model.facts import PciFunction

_DEVICES = "bus/pci/devices"

_BASE_CLASSES = frozenset({0x02, 0x03, 0x12})
"""Network, display, processing accelerator. The base class is the top byte of 24 bits: virtio-9p is
0x000200, which is no NIC."""

_WIDEST_LINK = 32
"""Lanes. Functions without a link of their own report 0, 63 or 255."""


def read_pci_functions(sysfs: PseudoFiles, also: Collection[str] = ()) -> list[PciFunction]:
    """Read the functions of interest and those named in ``also``, sorted by address."""
    vf_indexes = _VirtualFunctionIndexes(sysfs)
    functions = []
    for address in sysfs.entries(_DEVICES):
        class_code = _read_class(sysfs, address)
        if class_code is not None and (class_code >> 16 in _BASE_CLASSES or address in also):
            functions.append(_read_function(sysfs, address, class_code, vf_indexes))
    return functions


def _read_class(sysfs: PseudoFiles, address: str) -> int | None:
    if not is_pci_address(address):
        sysfs.warnings.append(f"{_DEVICES}/{address}: not a PCI address")
        return None
    class_code = sysfs.integer(f"{_DEVICES}/{address}/class", base=16)
    if class_code is None:
        sysfs.warnings.append(f"{_DEVICES}/{address}: no class; the function is left out")
    return class_code


class _VirtualFunctionIndexes:
    """Index of each virtual function, from the ``virtfnN`` links of its physical function (there is no
    attribute for it on the VF itself). Each physical function is read once."""

    def __init__(self, sysfs: PseudoFiles) -> None:
        self._sysfs = sysfs
        self._by_physical_function: dict[str, dict[str, int]] = {}

    def read(self, physical_function: str, address: str) -> int | None:
        indexes = self._by_physical_function.get(physical_function)
        if indexes is None:
            indexes = dict(self._read_links(physical_function))
            self._by_physical_function[physical_function] = indexes
        return indexes.get(address)

    def _read_links(self, physical_function: str) -> list[tuple[str, int]]:
        folder = f"{_DEVICES}/{physical_function}"
        names = [name for name in self._sysfs.entries(folder) if name.startswith("virtfn")]
        return [
            (_last(self._sysfs.link(f"{folder}/{name}")), int(name.removeprefix("virtfn")))
            for name in names
            if name.removeprefix("virtfn").isdigit()
        ]


def _read_function(
    sysfs: PseudoFiles, address: str, class_code: int, vf_indexes: _VirtualFunctionIndexes
) -> PciFunction:
    folder = f"{_DEVICES}/{address}"
    root, path = parse_path(sysfs.link(folder), address)
    numa_node = sysfs.integer(f"{folder}/numa_node")
    physical_function = _last(sysfs.link(f"{folder}/physfn"))
    width = sysfs.integer(f"{folder}/current_link_width") or 0
    speed = sysfs.text(f"{folder}/current_link_speed")
    return PciFunction(
        address=address,
        class_code=class_code,
        vendor_id=sysfs.integer(f"{folder}/vendor", base=16) or 0,
        device_id=sysfs.integer(f"{folder}/device", base=16) or 0,
        subsystem_vendor_id=sysfs.integer(f"{folder}/subsystem_vendor", base=16) or 0,
        subsystem_device_id=sysfs.integer(f"{folder}/subsystem_device", base=16) or 0,
        driver=_last(sysfs.link(f"{folder}/driver")),
        numa_node=numa_node if numa_node is not None and numa_node >= 0 else None,
        root=root,
        path=path,
        physical_function=physical_function,
        virtual_function_index=vf_indexes.read(physical_function, address) if physical_function else None,
        sriov_total_vfs=sysfs.integer(f"{folder}/sriov_totalvfs") or 0,
        sriov_num_vfs=sysfs.integer(f"{folder}/sriov_numvfs") or 0,
        link_speed="" if speed.startswith("Unknown") else speed,
        link_width=width if width <= _WIDEST_LINK else 0,
    )


def parse_path(home: str, address: str) -> tuple[str, tuple[str, ...]]:
    """Split ``../../../devices/pci0000:20/0000:20:00.0/0000:21:00.0`` into the root and the functions
    from below it down to ``address``.

    The root is the first ``pci...`` component: behind Intel VMD a second one follows deeper down
    (``pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0``), and the way to the processor starts at the first.
    """
    components = home.split("/")
    root = next((name for name in components if name.startswith("pci") and ":" in name), "")
    path = tuple(name for name in components if is_pci_address(name))
    return root, path if path[-1:] == (address,) else (*path, address)


def _last(link: str) -> str:
    return link.rpartition("/")[2]
