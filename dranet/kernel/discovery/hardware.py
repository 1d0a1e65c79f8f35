"""All hardware facts of the node, read once and kept: PCI functions, RDMA devices, GPUs, NUMA nodes, host.

Attributes of hardware do not change without a uevent, while a scan may be asked for many times a second. So
each device is read when it appears, and again when a change names it. Its warnings are kept with it and
repeated while they hold.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from dranet.kernel.discovery.pci import (
    PCI_DEVICES,
    GpuReader,
    PciReader,
    list_pci_functions,
    name_pci_functions,
)
from dranet.kernel.discovery.pciids import PciIds
from dranet.kernel.discovery.rdma import RDMA_CLASS, read_rdma_device, read_rdma_nodes, with_nodes
from dranet.kernel.sysfs.files import (
    MOST_WARNINGS,
    PseudoFiles,
    is_pci_address,
    nearest_pci_address,
    parse_number,
)
from dranet.model.cpus import parse_cpu_list
from dranet.model.facts import CharDevice, Gpu, Host, NumaNode, PciFunction, RdmaDevice

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
    """Return the numbers of NUMA nodes that have memory; ``None`` if the kernel does not report them.

    A processor with empty slots has none, and the kernel refuses a cpuset without memory, giving no reason
    (``Documentation/ABI/stable/sysfs-devices-node``).
    """
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
    """Name, kernel, architecture, and maker and model if the firmware reports them."""
    kernel = os.uname()
    dmi = (sysfs.text(f"class/dmi/id/{name}") for name in ("sys_vendor", "product_name"))
    return Host(
        name=kernel.nodename,
        kernel=kernel.release,
        architecture=kernel.machine,
        product=" ".join(text for text in dmi if text),
    )


class Hardware(Struct, frozen=True):
    """The hardware part of ``NodeFacts``; tuples are sorted by address, name or number."""

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
        """What is there now; ``warnings`` gets a line for each odd thing, also of what was read before.

        ``changed`` names the devices to read again, as sysfs calls them (``0000:21:00.0``, ``mlx5_0``,
        ``renderD128``), come, gone or changed; ``None`` is all of them. ``links`` names interfaces that came,
        went or changed: the RDMA devices that they belong to are read again. With neither nothing is read.
        """
        if changed is None:
            self._kept = _Kept()
        if changed is None or changed or links:
            self._refresh(changed, links)
        warnings.extend(islice(chain.from_iterable(self._kept.warnings.values()), MOST_WARNINGS))
        return self._hardware

    def _refresh(self, changed: Collection[str] | None, links: Collection[str]) -> None:
        is_new = _Pass(self._kept, *self._roots).read(changed, links)
        if is_new or changed is None:
            self._hardware = self._assemble()

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
    """What has been read, by name in sysfs, and what was odd about it, by kind and name."""

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
            self._read_machine()
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

    def _read_machine(self) -> None:
        with self._noting("machine"):
            self._kept.numa_nodes = tuple(read_numa_nodes(self._sysfs))
            self._kept.host = read_host(self._sysfs)

    # RDMA

    def _rdma_functions(self) -> set[str]:
        return {device.pci_address for device in self._kept.rdma_devices.values()} - {""}

    def _stale_rdma_devices(
        self, addresses: set[str], others: set[str] | None, links: Collection[str]
    ) -> set[str]:
        """Names of the devices to read: new, named, at a function that changed, or behind one of ``links``.

        Those that are gone are among them.
        """
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

    # PCI

    def _read_functions(self, changed: set[str], moved: set[str], *, is_all: bool) -> set[str]:
        """Read the ``changed`` functions with their physical functions, those that gained or lost an RDMA
        device (``moved``) with their virtual functions, and any that is new; or all of them.

        The addresses of what was read or is gone.
        """
        known = self._kept.functions
        reader = PciReader(self._sysfs, self._rdma_functions())
        stale = changed | moved | {vf for pf in moved for vf in reader.read_virtual_functions(pf)}
        parents, gone = self._parents(stale), set[str]()
        if is_all or any(self._is_news(address) for address in stale):
            listed = self._list_functions()
            gone = known.keys() - listed
            parents |= self._parents(gone)
            stale = (stale & listed) | (listed - known.keys())
        for address in gone:
            self._drop("pci", known, address)
        self._read_each(reader, stale)
        parents = (parents | self._parents(stale)) & (known.keys() - stale)
        self._read_each(reader, parents)
        return stale | parents | gone

    def _is_news(self, address: str) -> bool:
        return address not in self._kept.functions or not self._sysfs.has(f"{PCI_DEVICES}/{address}")

    def _list_functions(self) -> set[str]:
        with self._noting("pci"):
            return set(list_pci_functions(self._sysfs))

    def _parents(self, addresses: set[str]) -> set[str]:
        functions = (self._kept.functions.get(address) for address in addresses)
        return {f.physical_function for f in functions if f is not None} - {""}

    def _read_each(self, reader: PciReader, addresses: set[str]) -> None:
        for address in sorted(addresses):
            with self._noting("pci", address):
                self._kept.functions[address] = reader.read(address)

    # GPUs

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
