"""All hardware facts of the node, read once and kept: attributes of hardware do not change without a uevent.
Warnings are kept with the device and repeated while they hold. PCI functions and GPUs are read in ``pci``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from dranet.kernel.discovery.pci import (
    PCI_DEVICES,
    GpuReader,
    PciIds,
    PciReader,
    list_pci_functions,
    name_pci_functions,
)
from dranet.kernel.sysfs.files import (
    MOST_WARNINGS,
    PseudoFiles,
    is_pci_address,
    nearest_pci_address,
    parse_number,
)
from dranet.model.claim import GidSlot
from dranet.model.cpus import parse_cpu_list
from dranet.model.device import NamedRdma, RdmaIdentity
from dranet.model.facts import CharDevice, Gpu, Host, NumaNode, PciFunction, RdmaDevice, RdmaPort

# --- RDMA devices (``Documentation/ABI/stable/sysfs-class-infiniband``) --------------------------------
# Namespace mode and moves go through netlink (``netlink.rdma``). Management nodes (``umad``, ``issm``) belong
# to no device that is offered, and are read only for a claim that asks for them: they give a pod subnet
# management access to the whole fabric.

Slot = TypeVar("Slot")

RDMA_CLASS = "class/infiniband"
"""There as soon as the kernel's RDMA core is loaded, even while all devices are in pods."""

_VERBS_CLASS = "class/infiniband_verbs"
_CM_ENTRY = "class/misc/rdma_cm"
_MAD_CLASS = "class/infiniband_mad"
"""``umadN`` for each port and, on InfiniBand, ``issmN`` (``Documentation/infiniband/user_mad.rst``)."""

_DEVICE_FOLDER = "/dev/infiniband"

_NODE_MODE = re.compile(r"^DEVMODE=0([0-7]{1,4})$", re.MULTILINE)
_DEFAULT_MODE = 0o600
"""The mode in devtmpfs of a node whose driver sets none."""

_INFINIBAND = "InfiniBand"

_LONGEST_GAP = 16
"""Empty slots after which a table is taken to be at its end. The kernel fills the first free slot, and a
table of 256 GIDs holds a handful: to read them all costs thousands of failing reads on a machine with eight
NICs. A gap this long needs sixteen addresses taken away while a later one stayed."""

_MOST_SLOTS = 1024
"""Slots looked at in one table, whatever is in them."""

_GID = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){7}")
_GUID = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){3}")
_NO_GUID = "0000:0000:0000:0000"
"""Not assigned yet: a virtual function on InfiniBand."""
_NO_GID = ":".join(["0000"] * 8)
"""In an empty slot; some kernels fail with EINVAL instead."""


def read_rdma_nodes(sysfs: PseudoFiles) -> dict[str, CharDevice]:
    """Map RDMA device name to its ``uverbsN`` (the numbers do not follow the order of the names), and the
    empty name to ``rdma_cm``, which all devices share."""
    nodes = {}
    for number in sysfs.numbered(_VERBS_CLASS, "uverbs"):
        entry = f"uverbs{number}"
        name = sysfs.text(f"{_VERBS_CLASS}/{entry}/ibdev")
        node = _read_node(sysfs, f"{_VERBS_CLASS}/{entry}")
        if name and node:
            nodes[name] = node
    shared = _read_node(sysfs, _CM_ENTRY)
    return {**nodes, "": shared} if shared else nodes


def read_management_nodes(sysfs: PseudoFiles, rdma_device: str) -> tuple[CharDevice, ...]:
    """The ``umadN`` and ``issmN`` of all ports of one device, in the order of their names; empty without any.
    Read from the namespace that has the device: in exclusive mode no other one sees them."""
    return read_nodes_of(sysfs, rdma_device, ("umad", "issm"))


def find_rdma_device(sysfs: PseudoFiles, identity: RdmaIdentity) -> str:
    """The name by which sysfs shows a device now; empty where it shows none."""

    def read_address(name: str) -> str:
        return nearest_pci_address(sysfs.home(f"{RDMA_CLASS}/{name}"))

    def read(name: str) -> NamedRdma:
        return NamedRdma(name, _read_guid(sysfs, f"{RDMA_CLASS}/{name}/node_guid"))

    if sysfs.has(f"{RDMA_CLASS}/{identity.name}"):
        same_name = read(identity.name)
        is_same = identity.node_guid in ("", same_name.node_guid)
        if is_same and identity.pci_address in ("", read_address(identity.name)):
            return identity.name
    return identity.choose([read(name) for name in sysfs.entries(RDMA_CLASS)], read_address)


def read_nodes_of(sysfs: PseudoFiles, rdma_device: str, kinds: Collection[str]) -> tuple[CharDevice, ...]:
    """The nodes of one device of these kinds: ``uverbs``, ``umad``, ``issm``, and the shared ``rdma_cm``."""
    entries: list[str] = []
    for folder, prefixes in ((_VERBS_CLASS, ("uverbs",)), (_MAD_CLASS, ("umad", "issm"))):
        wanted = tuple(prefix for prefix in prefixes if prefix in kinds)
        entries += _entries_of(sysfs, folder, rdma_device, wanted) if wanted else ()
    entries += [_CM_ENTRY] if "rdma_cm" in kinds else []
    return tuple(node for entry in entries if (node := _read_node(sysfs, entry)) is not None)


def _entries_of(sysfs: PseudoFiles, folder: str, rdma_device: str, prefixes: tuple[str, ...]) -> list[str]:
    """Looked for at the function that carries the device, which has few; a software device has none."""
    near = f"{RDMA_CLASS}/{rdma_device}/device/{folder.removeprefix('class/')}"
    names = sysfs.entries(near) or sysfs.entries(folder)
    entries = [f"{folder}/{name}" for name in names if name.startswith(prefixes)]
    return [entry for entry in entries if sysfs.text(f"{entry}/ibdev") == rdma_device]


def _read_node(sysfs: PseudoFiles, entry: str) -> CharDevice | None:
    """The character device of a class entry, with the mode that devtmpfs gives it."""
    node = sysfs.char_device(f"{entry}/dev", f"{_DEVICE_FOLDER}/{entry.rpartition('/')[2]}")
    uevent = sysfs.whole_text(f"{entry}/uevent") if node else ""
    if node is None or not uevent:
        return node
    mode = _NODE_MODE.search(uevent)
    return replace(node, file_mode=int(mode[1], 8) & 0o777 if mode else _DEFAULT_MODE)


def with_nodes(device: RdmaDevice, nodes: dict[str, CharDevice]) -> RdmaDevice:
    return replace(device, char_devices=tuple(nodes[name] for name in (device.name, "") if name in nodes))


def read_rdma_device(sysfs: PseudoFiles, name: str) -> RdmaDevice:
    folder = f"{RDMA_CLASS}/{name}"
    pci_address = nearest_pci_address(sysfs.home(folder))
    # A software device (rxe) has no device behind it, but names the interface that it runs on.
    parent = "" if pci_address else sysfs.text(f"{folder}/parent")
    numbers = sysfs.numbered(f"{folder}/ports")
    return RdmaDevice(
        name=name,
        pci_address=pci_address,
        node_guid=_read_guid(sysfs, f"{folder}/node_guid"),
        firmware=sysfs.text(f"{folder}/fw_ver"),
        node_type=read_named(sysfs, f"{folder}/node_type"),
        system_image_guid=_read_guid(sysfs, f"{folder}/sys_image_guid"),
        board_id=sysfs.text(f"{folder}/board_id"),
        ports=tuple(_read_port(sysfs, f"{folder}/ports/{number}", number, parent) for number in numbers),
        auxiliary=any(".rdma." in entry for entry in sysfs.entries(f"{folder}/device")),
    )


def _read_port(sysfs: PseudoFiles, port: str, number: int, parent: str) -> RdmaPort:
    link_layer = sysfs.text(f"{port}/link_layer")
    is_infiniband = link_layer == _INFINIBAND
    netdevs, gid_types = _read_gids(sysfs, f"{port}/gid_attrs", is_infiniband)
    return RdmaPort(
        number=number,
        state=read_named(sysfs, f"{port}/state"),
        link_layer=link_layer,
        rate=sysfs.text(f"{port}/rate"),
        netdevs=tuple(sorted(netdevs | {parent} - {""})),
        phys_state=read_named(sysfs, f"{port}/phys_state"),
        lid=sysfs.integer(f"{port}/lid", base=16, most=0xFFFFFFFF) if is_infiniband else None,
        guid=_read_port_guid(sysfs, f"{port}/gids/0"),
        gid_types=tuple(sorted(gid_types)),
        pkeys=tuple(_read_pkeys(sysfs, f"{port}/pkeys")),
    )


def read_gid_table(sysfs: PseudoFiles, rdma_device: str) -> tuple[GidSlot, ...]:
    """Return the entries of a device's GID tables that are not empty, by port and index. ``sysfs`` must be
    one that shows the device (:func:`~dranet.kernel.namespaces.netns.open_sysfs`)."""
    return tuple(_iter_gid_slots(sysfs, rdma_device, with_types=True))


def read_gids(sysfs: PseudoFiles, rdma_device: str) -> tuple[str, ...]:
    """With RoCE the kernel fills the tables some milliseconds after an address was set."""
    return tuple(slot.gid for slot in _iter_gid_slots(sysfs, rdma_device, with_types=False))


def _iter_gid_slots(sysfs: PseudoFiles, rdma_device: str, *, with_types: bool) -> Iterator[GidSlot]:
    for port in sysfs.numbered(f"{RDMA_CLASS}/{rdma_device}/ports"):
        folder = f"{RDMA_CLASS}/{rdma_device}/ports/{port}"

        def read(index: int, folder: str = folder, port: int = port) -> GidSlot | None:
            gid = _read_id(sysfs, f"{folder}/gids/{index}", _GID, "GID")
            if gid in ("", _NO_GID):
                return None
            gid_type = sysfs.text(f"{folder}/gid_attrs/types/{index}") if with_types else ""
            return GidSlot(port, index, gid, gid_type)

        yield from _read_slots(range(_MOST_SLOTS), read)


def _read_id(sysfs: PseudoFiles, path: str, form: re.Pattern[str], kind: str) -> str:
    text = sysfs.text(path).lower()
    if text and not form.fullmatch(text):
        sysfs.warn(path, f"not a {kind}: {text[:40]!r}")
        return ""
    return text


def _read_gids(sysfs: PseudoFiles, folder: str, is_infiniband: bool) -> tuple[set[str], set[str]]:
    """Interfaces and types of the GIDs. An InfiniBand port names no interface."""
    kinds = ("types",) if is_infiniband else ("types", "ndevs")
    slots = {number for kind in kinds for number in sysfs.numbered(f"{folder}/{kind}")}

    def read(slot: int) -> dict[str, str]:
        texts = {kind: sysfs.text(f"{folder}/{kind}/{slot}") for kind in kinds}
        return {kind: text for kind, text in texts.items() if text}

    gids = list(_read_slots(sorted(slots), read))
    return {gid["ndevs"] for gid in gids if "ndevs" in gid}, {gid["types"] for gid in gids if "types" in gid}


def _read_pkeys(sysfs: PseudoFiles, folder: str) -> Iterator[str]:
    def read(slot: int) -> str:
        pkey = sysfs.integer(f"{folder}/{slot}", base=16, most=0xFFFF)
        return f"0x{pkey:04x}" if pkey else ""

    return _read_slots(sysfs.numbered(folder), read)


def _read_slots(slots: Sequence[int], read: Callable[[int], Slot | None]) -> Iterator[Slot]:
    """The slots of a table that are not empty, up to a long gap."""
    gap = 0
    for slot in slots[:_MOST_SLOTS]:
        content = read(slot)
        gap = 0 if content else gap + 1
        if content:
            yield content
        elif gap == _LONGEST_GAP:
            return


def read_named(sysfs: PseudoFiles, path: str) -> str:
    """``ACTIVE`` of ``4: ACTIVE``."""
    text = sysfs.text(path)
    return text.partition(": ")[2] or text


def _read_guid(sysfs: PseudoFiles, path: str) -> str:
    guid = _read_id(sysfs, path, _GUID, "GUID")
    return "" if guid == _NO_GUID else guid


def _read_port_guid(sysfs: PseudoFiles, path: str) -> str:
    """The interface identifier: the last 64 bits of a GID."""
    guid = _read_id(sysfs, path, _GID, "GID")[-len(_NO_GUID) :]
    return "" if guid == _NO_GUID else guid


# --- NUMA nodes, kernel and model of the machine --------------------------------------------------------
# Sources: ``Documentation/ABI/stable/sysfs-devices-node``, ``sysfs-devices-system-cpu`` (package ``-1``:
# the platform does not report it) and ``class/dmi/id``. Serial numbers and asset tags are never read.

_NODES = "devices/system/node"
_CPUS = "devices/system/cpu"

_FIRST_CPU = re.compile(r"[0-9]{1,6}")


def read_numa_nodes(sysfs: PseudoFiles) -> list[NumaNode]:
    """The online NUMA nodes, by number; empty on a kernel without NUMA."""
    return [_read_numa_node(sysfs, node) for node in sysfs.numbered(_NODES, "node")]


def read_nodes_with_memory(sysfs_root: Path) -> frozenset[int] | None:
    """Numbers of the NUMA nodes that have memory; ``None`` if the kernel does not report them. For a cpuset
    without memory the kernel gives no reason when it refuses."""
    return frozenset(parse_cpu_list(PseudoFiles(sysfs_root, []).text(f"{_NODES}/has_memory"))) or None


def _read_numa_node(sysfs: PseudoFiles, node: int) -> NumaNode:
    cpus = sysfs.text(f"{_NODES}/node{node}/cpulist")
    return NumaNode(node, cpus, _read_distances(sysfs, node), _read_socket(sysfs, cpus))


def _read_socket(sysfs: PseudoFiles, cpus: str) -> int | None:
    """Return the socket of the first CPU in a list like ``0-55,112-167``; a node has CPUs of one socket."""
    first = _FIRST_CPU.match(cpus)
    if first is None:
        return None
    socket = sysfs.integer(f"{_CPUS}/cpu{first[0]}/topology/physical_package_id", least=-1)
    return None if socket == -1 else socket


def _read_distances(sysfs: PseudoFiles, node: int) -> tuple[int, ...]:
    path = f"{_NODES}/node{node}/distance"
    text = sysfs.text(path)
    distances = [parse_number(field) for field in text.split()]
    known = tuple(distance for distance in distances if distance is not None)
    if len(known) < len(distances):
        sysfs.warn(path, f"not a list of numbers: {text[:40]!r}")
        return ()
    return known


def read_host(sysfs: PseudoFiles) -> Host:
    kernel = os.uname()
    dmi = (sysfs.text(f"class/dmi/id/{name}") for name in ("sys_vendor", "product_name"))
    return Host(
        name=kernel.nodename,
        kernel=kernel.release,
        architecture=kernel.machine,
        product=" ".join(text for text in dmi if text),
    )


class Hardware(Struct, frozen=True):
    pci_functions: tuple[PciFunction, ...] = ()
    rdma_devices: tuple[RdmaDevice, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    numa_nodes: tuple[NumaNode, ...] = ()
    host: Host = field(default=Host())


class HardwareReader:
    """Reads the hardware below ``sysfs_root`` and keeps it. For one thread at a time; reads block."""

    def __init__(self, sysfs_root: Path, procfs_root: Path, pci_ids: Path | None = None) -> None:
        self._roots = sysfs_root, procfs_root
        self._pci_ids = PciIds(pci_ids)
        self._kept = _Kept()
        self._hardware = Hardware()

    def read(
        self, warnings: list[str], changed: Collection[str] | None = None, links: Collection[str] = ()
    ) -> Hardware:
        """What is there now; ``warnings`` gets a line for each odd thing. ``changed`` names the devices to
        read again, as sysfs calls them (``0000:21:00.0``, ``renderD128``); ``None`` is all of them. ``links``
        names interfaces whose RDMA devices are read again. With neither nothing is read."""
        if changed is None:
            self._kept = _Kept()
        if changed is None or changed or links:
            is_new = _Pass(self._kept, *self._roots).read(changed, links)
            if is_new or changed is None:
                self._hardware = self._assemble()
        warnings.extend(islice(chain.from_iterable(self._kept.warnings.values()), MOST_WARNINGS))
        return self._hardware

    def _assemble(self) -> Hardware:
        kept, warnings = self._kept, list[str]()
        functions = [f for _, f in sorted(kept.functions.items()) if f is not None]
        named = name_pci_functions(functions, self._pci_ids, warnings)
        kept.warnings["names", ""] = tuple(warnings)
        return Hardware(
            pci_functions=tuple(named),
            rdma_devices=tuple(with_nodes(d, kept.rdma_nodes) for _, d in sorted(kept.rdma_devices.items())),
            gpus=tuple(kept.gpus[f.address] for f in functions if f.address in kept.gpus),
            numa_nodes=kept.numa_nodes,
            host=kept.host,
        )


class _Kept:
    def __init__(self) -> None:
        self.functions: dict[str, PciFunction | None] = {}
        """``None``: not of interest; kept so that its class is not read again."""
        self.rdma_devices: dict[str, RdmaDevice] = {}
        self.rdma_nodes: dict[str, CharDevice] = {}
        self.gpus: dict[str, Gpu] = {}
        self.numa_nodes: tuple[NumaNode, ...] = ()
        self.host = Host()
        self.warnings: dict[tuple[str, str], tuple[str, ...]] = {}


class _Pass:
    """One pass over what has to be read again. RDMA precedes PCI because it shows which functions of an
    unusual class matter; PCI precedes GPUs because it finds them."""

    def __init__(self, kept: _Kept, sysfs_root: Path, procfs_root: Path) -> None:
        self._kept = kept
        self._warnings: list[str] = []
        self._sysfs = PseudoFiles(sysfs_root, self._warnings)
        self._procfs = PseudoFiles(procfs_root, self._warnings)

    def read(self, changed: Collection[str] | None, links: Collection[str]) -> bool:
        """Bring what is kept up to date; whether there was anything to read."""
        if changed is None:
            with self._noting("machine"):
                self._kept.numa_nodes = tuple(read_numa_nodes(self._sysfs))
                self._kept.host = read_host(self._sysfs)
        addresses = {name for name in changed or () if is_pci_address(name)}
        others = None if changed is None else set(changed) - addresses
        with_rdma = self._rdma_functions()
        devices = self._stale_rdma_devices(addresses, others, links)
        self._read_rdma(devices)
        moved = with_rdma ^ self._rdma_functions()
        functions = self._read_functions(addresses, moved, is_all=changed is None)
        self._read_gpus(functions, is_all=others is None or bool(others - devices))
        return bool(devices or functions or others)

    def _drop(self, kind: str, shelf: dict[str, Any], name: str) -> None:
        shelf.pop(name, None)
        self._kept.warnings.pop((kind, name), None)

    @contextmanager
    def _noting(self, kind: str, name: str = "") -> Iterator[None]:
        """Keep the warnings of the block under ``kind`` and ``name``, in place of those before."""
        before = len(self._warnings)
        yield
        warnings = tuple(self._warnings[before:])
        if warnings:
            self._kept.warnings[kind, name] = warnings
        else:
            self._kept.warnings.pop((kind, name), None)

    def _rdma_functions(self) -> set[str]:
        return {device.pci_address for device in self._kept.rdma_devices.values()} - {""}

    def _stale_rdma_devices(
        self, addresses: set[str], others: set[str] | None, links: Collection[str]
    ) -> set[str]:
        """Names of the devices to read: new, named, at a function that changed, or behind one of ``links``.
        Those that are gone are among them."""
        known = self._kept.rdma_devices
        stale = {name for name, device in known.items() if device.pci_address in addresses}
        stale |= self._devices_behind(links)
        if others is None or others:
            with self._noting("rdma"):
                names = set(self._sysfs.entries(RDMA_CLASS))
                self._kept.rdma_nodes = read_rdma_nodes(self._sysfs) if names else {}
            stale |= names ^ known.keys()
            stale |= names & (others or set())
        return stale

    def _devices_behind(self, links: Collection[str]) -> set[str]:
        """Devices that name one of ``links`` as theirs, or share its PCI function: a port whose interface was
        in a pod names none."""
        devices = self._kept.rdma_devices.values()
        if not links or not devices:
            return set()
        netdevs = {device.name: {n for port in device.ports for n in port.netdevs} for device in devices}
        unknown = set(links).difference(*netdevs.values())
        homes = self._sysfs.links("class/net", sorted(unknown)) if unknown else {}
        functions = {nearest_pci_address(home) for home in homes.values()} - {""}
        return {
            device.name
            for device in devices
            if device.pci_address in functions or not netdevs[device.name].isdisjoint(links)
        }

    def _read_rdma(self, names: set[str]) -> None:
        for name in sorted(names):
            if not self._sysfs.has(f"{RDMA_CLASS}/{name}"):
                self._drop("rdma", self._kept.rdma_devices, name)
                continue
            with self._noting("rdma", name):
                self._kept.rdma_devices[name] = read_rdma_device(self._sysfs, name)

    def _read_functions(self, changed: set[str], moved: set[str], *, is_all: bool) -> set[str]:
        """Read the ``changed`` functions with their physical ones, those that gained or lost an RDMA device
        (``moved``) with their virtual ones, and new ones; or all. Returns the addresses of what was read or
        is gone."""
        known = self._kept.functions
        reader = PciReader(self._sysfs, self._rdma_functions())
        stale = changed | moved | {vf for pf in moved for vf in reader.read_virtual_functions(pf)}
        parents, gone = self._parents(stale), set[str]()
        if is_all or any(a not in known or not self._sysfs.has(f"{PCI_DEVICES}/{a}") for a in stale):
            with self._noting("pci"):
                listed = set(list_pci_functions(self._sysfs))
            gone = known.keys() - listed
            parents |= self._parents(gone)
            stale = (stale & listed) | (listed - known.keys())
        for address in gone:
            self._drop("pci", known, address)
        self._read_each(reader, stale)
        parents = (parents | self._parents(stale)) & (known.keys() - stale)
        self._read_each(reader, parents)
        return stale | parents | gone

    def _parents(self, addresses: set[str]) -> set[str]:
        functions = (self._kept.functions.get(address) for address in addresses)
        return {f.physical_function for f in functions if f is not None} - {""}

    def _read_each(self, reader: PciReader, addresses: set[str]) -> None:
        for address in sorted(addresses):
            with self._noting("pci", address):
                self._kept.functions[address] = reader.read(address)

    def _read_gpus(self, functions: set[str], *, is_all: bool) -> None:
        """Read the GPUs at ``functions``, or all: a device node that came or went does not name its GPU."""
        known, reader = self._kept.gpus, GpuReader(self._sysfs, self._procfs)
        stale = set(self._kept.functions) if is_all else functions
        for address in sorted(stale | known.keys()):
            function = self._kept.functions.get(address)
            if function is not None and address not in stale:
                continue
            if function is None or not reader.is_gpu(function):
                self._drop("gpu", known, address)
                continue
            with self._noting("gpu", address):
                known[address] = reader.read(function)
