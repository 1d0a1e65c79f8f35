"""What a kernel would show of a node's hardware: a sysfs and a procfs tree on disk.

The driver under test reads it through its ordinary settings ``sysfs_root`` and ``procfs_root``. Names,
formats and (relative) links are those of a real kernel; each directory holds what discovery tools
read. Two things differ, because files cannot do better: an empty GID entry is absent instead of failing
with EINVAL, and interfaces follow renames and moves only when ``show_links`` is called (see ``follower``).

Sources: kernel ``Documentation/ABI`` (sysfs-bus-pci, sysfs-class-net, stable/sysfs-class-infiniband),
``Documentation/admin-guide/devices.txt`` and trees of real machines.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path

from dranet.model.cpus import format_cpu_list, format_cpu_mask, parse_cpu_list
from testbed.node.hardware import Gpu, Hardware, Hca, Nic, Part, Placed, PlacedNic

_NVIDIA_MAJOR = 195
_UVERBS_MAJOR, _UVERBS_FIRST_MINOR = 231, 192
_DRM_MAJOR, _FIRST_RENDER_MINOR = 226, 128
_CHARACTER_DEVICES = (
    (1, "mem"),
    (10, "misc"),
    (_NVIDIA_MAJOR, "nvidia"),
    (_NVIDIA_MAJOR, "nvidia-modeset"),
    (_NVIDIA_MAJOR, "nvidiactl"),
    (_DRM_MAJOR, "drm"),
    (_UVERBS_MAJOR, "infiniband_verbs"),
    (508, "nvidia-uvm"),
    (509, "nvidia-nvswitch"),
    (510, "nvidia-caps"),
)

_LINK_COUNTERS = ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets", "rx_errors", "tx_errors")


@dataclass(frozen=True, slots=True)
class ShownLink:
    """A network interface as sysfs shows it; ``nic`` is ``None`` for a virtual one."""

    ifname: str
    ifindex: int
    mac: str
    nic: PlacedNic | None = None


class SysfsTree:
    """Writes ``<root>/sys`` and ``<root>/proc`` and keeps the interfaces in them current."""

    def __init__(self, root: Path, hardware: Hardware) -> None:
        self.sysfs_root = root / "sys"
        self.procfs_root = root / "proc"
        self._hardware = hardware
        self._shown: dict[str, ShownLink] = {}
        self._away: dict[str, ShownLink] = {}
        """NICs that have left, by the names that they had."""

    def write(self) -> None:
        """Write everything but the interfaces, which come with :meth:`show_links`."""
        for number, placed in enumerate(self._hardware.placed()):
            self._write_function(placed, irq=64 + number)
        self._write_virtual_functions()
        for number, device in enumerate(find_rdma_devices(self._hardware)):
            self._write_rdma(device, number)
        self._write_numa_nodes()
        self._write_rdma_cm()
        self._write_procfs()
        write_interrupts(self.sysfs_root, self.procfs_root, self._hardware)
        (self.sysfs_root / "class/net").mkdir(parents=True)

    def show_links(self, links: Iterable[ShownLink]) -> list[ShownLink]:
        """Make ``class/net`` and each NIC's ``net/`` show exactly these; returns those that are new there or
        not there any more.

        A NIC that is away keeps its entry in ``class/net``, which leads nowhere meanwhile: the kernel has it
        there at the moment in which the link is back, and we would come later.
        """
        before, wanted = self._shown, {link.ifname: link for link in links}
        gone = [link for name, link in before.items() if wanted.get(name) != link]
        new = [link for name, link in wanted.items() if before.get(name) != link]
        away = _find_away({**self._away, **{link.ifname: link for link in gone}}, wanted)
        for name in {*before, *self._away} - {*wanted, *away}:
            (self.sysfs_root / "class/net" / name).unlink()
        self._away = away
        for link in gone:
            self._hide(link)
        for link in new:
            self._show(link)
        self._shown = wanted
        return [*gone, *new]

    # PCI

    def _home(self, placed: Placed) -> Path:
        return self.sysfs_root.joinpath("devices", placed.root, *placed.path)

    def _write_function(self, placed: Placed, irq: int) -> None:
        home, part = self._home(placed), placed.part
        home.mkdir(parents=True)
        for name, text in _pci_attributes(placed, irq).items():
            _write(home / name, text)
        _link(home / "subsystem", self.sysfs_root / "bus/pci")
        _link(self.sysfs_root / "bus/pci/devices" / placed.address, home)
        if part.driver:
            folder = self.sysfs_root / "bus/pci/drivers" / part.driver
            _link(folder / placed.address, home)
            _link(home / "driver", folder)
        if gpu := placed.function.gpu:
            self._write_drm(home, gpu)

    def _write_virtual_functions(self) -> None:
        homes = {placed.address: self._home(placed) for placed in self._hardware.placed()}
        vfs = self._hardware.virtual_functions()
        for placed in self._hardware.placed():
            if placed.part.total_vfs:
                home, made = homes[placed.address], vfs.get(placed.address, ())
                _write(home / "sriov_totalvfs", str(placed.part.total_vfs))
                _write(home / "sriov_numvfs", str(len(made)))
                for index, address in enumerate(made):
                    _link(home / f"virtfn{index}", homes[address])
                    _link(homes[address] / "physfn", home)

    def _write_drm(self, home: Path, gpu: Gpu) -> None:
        # card0 is the BMC's on a real node
        for name, minor in (
            (f"card{gpu.minor + 1}", gpu.minor + 1),
            (f"renderD{_FIRST_RENDER_MINOR + gpu.minor}", _FIRST_RENDER_MINOR + gpu.minor),
        ):
            _write(home / "drm" / name / "dev", f"{_DRM_MAJOR}:{minor}")
            self._enter_class("drm", home / "drm" / name, device=home)

    def _enter_class(self, kind: str, entry: Path, device: Path | None) -> None:
        """The links that every class device has, in the kernel's order (``drivers/base/core.c``).

        The one in the class comes last: through it a reader finds the entry, which is then complete.
        """
        _link(entry / "subsystem", self.sysfs_root / "class" / kind)
        if device:
            _link(entry / "device", device)
        _link(self.sysfs_root / "class" / kind / entry.name, entry)

    # RDMA

    def _write_rdma(self, rdma: RdmaDevice, number: int) -> None:
        device = self._home(rdma.placed)
        home = device / "infiniband" / rdma.name
        for name, text in rdma.attributes.items():
            _write(home / name, text)
        (home / "ports/1/gid_attrs/ndevs").mkdir()
        self._enter_class("infiniband", home, device)
        verbs = device / "infiniband_verbs" / f"uverbs{number}"
        _write(verbs / "ibdev", rdma.name)
        _write(verbs / "dev", f"{_UVERBS_MAJOR}:{_UVERBS_FIRST_MINOR + number}")
        _write(verbs / "abi_version", "1")
        self._enter_class("infiniband_verbs", verbs, device)

    def _write_rdma_cm(self) -> None:
        home = self.sysfs_root / "devices/virtual/misc/rdma_cm"
        _write(home / "dev", "10:122")
        _write(home / "abi_version", "4")
        self._enter_class("misc", home, device=None)

    # Network interfaces

    def _net_home(self, link: ShownLink) -> Path:
        device = self._home(link.nic.placed) if link.nic else self.sysfs_root / "devices/virtual"
        return device / "net" / link.ifname

    def _show(self, link: ShownLink) -> None:
        home = self._net_home(link)
        for name, text in (
            ("address", link.mac),
            ("ifindex", str(link.ifindex)),
            ("type", "772" if link.ifname == "lo" else "1"),
            ("dev_port", "0"),
            ("uevent", f"INTERFACE={link.ifname}\nIFINDEX={link.ifindex}"),
            *((f"statistics/{counter}", "0") for counter in _LINK_COUNTERS),
        ):
            _write(home / name, text)
        for index in self._ndevs(link):
            _write(index, link.ifname)
        self._enter_class("net", home, device=self._home(link.nic.placed) if link.nic else None)

    def _hide(self, link: ShownLink) -> None:
        shutil.rmtree(self._net_home(link))  # the function's net folder stays, as with an interface in a pod
        for index in self._ndevs(link):
            index.unlink(missing_ok=True)

    def _ndevs(self, link: ShownLink) -> tuple[Path, ...]:
        """The GID entries that name the interface."""
        if link.nic is None or not link.nic.nic.rdma:
            return ()
        folder = self._home(link.nic.placed) / "infiniband" / link.nic.nic.rdma / "ports/1/gid_attrs/ndevs"
        return folder / "0", folder / "1"

    # The rest of the node

    def _write_numa_nodes(self) -> None:
        home = self.sysfs_root / "devices/system/node"
        nodes = [socket.numa_node for socket in self._hardware.sockets]
        _write(home / "online", ",".join(map(str, nodes)))
        for socket in self._hardware.sockets:
            here = home / f"node{socket.numa_node}"
            _write(here / "cpulist", socket.cpus)
            _write(here / "distance", " ".join("10" if n == socket.numa_node else "21" for n in nodes))

    def _write_procfs(self) -> None:
        _write(self.procfs_root / "sys/kernel/random/boot_id", str(uuid.uuid4()))
        devices = "\n".join(f"{major:3d} {name}" for major, name in _CHARACTER_DEVICES)
        _write(self.procfs_root / "devices", f"Character devices:\n{devices}\n\nBlock devices:\n  8 sd")
        _write(self.procfs_root / "cpuinfo", _CPUINFO)
        gpus = self.procfs_root / "driver/nvidia/gpus"
        for placed in self._hardware.placed():
            if gpu := placed.function.gpu:
                _write(gpus / placed.address / "information", _nvidia_information(placed, gpu))


def _pci_attributes(placed: Placed, irq: int) -> dict[str, str]:
    part = placed.part
    vendor, device = part.id.split(":")
    subsystem_vendor, subsystem_device = part.subsystem.split(":")
    return {
        "class": f"0x{part.class_code}",
        "vendor": f"0x{vendor}",
        "device": f"0x{device}",
        "subsystem_vendor": f"0x{subsystem_vendor}",
        "subsystem_device": f"0x{subsystem_device}",
        "revision": "0x00",
        "irq": str(irq),
        "enable": "1",
        "numa_node": str(placed.numa_node),
        "local_cpulist": placed.cpus,
        "current_link_speed": part.speed,
        "current_link_width": str(part.width),
        "max_link_speed": part.speed,
        "max_link_width": str(part.width),
        "uevent": (
            f"DRIVER={part.driver}\nPCI_CLASS={part.class_code.lstrip('0').upper()}\n"
            f"PCI_ID={part.id.upper()}\nPCI_SUBSYS_ID={part.subsystem.upper()}\n"
            f"PCI_SLOT_NAME={placed.address}"
        ),
    }


def _nvidia_information(placed: Placed, gpu: Gpu) -> str:
    return (
        f"Model: \t\t {placed.part.description}\n"
        f"IRQ:   \t\t {300 + gpu.minor}\n"
        f"GPU UUID: \t {gpu.uuid}\n"
        "Video BIOS: \t 96.00.74.00.01\n"
        "Bus Type: \t PCIe\n"
        "DMA Size: \t 52 bits\n"
        "DMA Mask: \t 0xfffffffffffff\n"
        f"Bus Location: \t {placed.address}\n"
        f"Device Minor: \t {gpu.minor}\n"
        "GPU Excluded:\t No"
    )


_CPUINFO = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143"


def _find_away(gone: Mapping[str, ShownLink], wanted: Mapping[str, ShownLink]) -> dict[str, ShownLink]:
    """Those of NICs that are on the node under no other name."""
    here = {link.nic.placed.address for link in wanted.values() if link.nic}
    return {
        name: link
        for name, link in gone.items()
        if name not in wanted and link.nic and link.nic.placed.address not in here
    }


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # as sysfs does (fs/kernfs/symlink.c): through the target's parent, so that the link names the target
    relative = Path(os.path.relpath(target.parent, path.parent), target.name)
    if path.is_symlink() and path.readlink() != relative:
        path.unlink()
    if not path.is_symlink():
        path.symlink_to(relative)


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """One entry of ``class/infiniband``: where it sits, its name, and the texts of its files."""

    placed: Placed
    name: str
    attributes: dict[str, str]


def find_rdma_devices(hardware: Hardware) -> Iterator[RdmaDevice]:
    """Every RDMA device, in the order of the file."""
    for placed in hardware.placed():
        nic, hca = placed.function.nic, placed.function.hca
        if nic and nic.rdma:
            yield RdmaDevice(placed, nic.rdma, _roce_attributes(nic, placed.part))
        if hca:
            yield RdmaDevice(placed, hca.rdma, _infiniband_attributes(hca, placed.part))


def _roce_attributes(nic: Nic, part: Part) -> dict[str, str]:
    guid = _interface_identifier(nic.mac)
    gid = _link_local(guid)
    return {
        **_attributes(nic.rdma, guid, part),
        "ports/1/link_layer": "Ethernet",
        "ports/1/lid": "0x0",
        "ports/1/gids/0": gid,
        "ports/1/gids/1": gid,
        "ports/1/gid_attrs/types/0": "IB/RoCE v1",
        "ports/1/gid_attrs/types/1": "RoCE v2",
    }


def _infiniband_attributes(hca: Hca, part: Part) -> dict[str, str]:
    return {
        **_attributes(hca.rdma, hca.guid, part),
        "ports/1/link_layer": "InfiniBand",
        "ports/1/lid": "0x11",
        "ports/1/pkeys/0": "0xffff",
        "ports/1/gids/0": _link_local(hca.guid),
        "ports/1/gid_attrs/types/0": "IB/RoCE v1",
    }


def _attributes(name: str, guid: str, part: Part) -> dict[str, str]:
    words = ":".join(guid[i : i + 4] for i in range(0, 16, 4))
    return {
        "node_type": "1: CA",
        "node_guid": words,
        "sys_image_guid": words,
        "node_desc": f"testbed {name}",
        "fw_ver": part.firmware,
        "hca_type": "MT4129",
        "ports/1/state": "4: ACTIVE",
        "ports/1/phys_state": "5: LinkUp",
        "ports/1/rate": part.rdma_rate,
        "ports/1/counters/port_rcv_data": "0",
        "ports/1/counters/port_xmit_data": "0",
        "ports/1/hw_counters/out_of_sequence": "0",
    }


def _link_local(guid: str) -> str:
    return IPv6Address(int("fe80000000000000" + guid, 16)).exploded


def _interface_identifier(mac: str) -> str:
    """Modified EUI-64 (RFC 4291, appendix A), 16 hex digits."""
    octets = bytearray.fromhex(mac.replace(":", ""))
    octets[0] ^= 2
    return (octets[:3] + b"\xff\xfe" + octets[3:]).hex()


VECTORS = 3
"""Vectors of each NIC: one for its events, one for each of two queues."""
_FIRST = 200


def write_interrupts(sysfs_root: Path, procfs_root: Path, hardware: Hardware) -> None:
    """Write those of every NIC, and the traces of other programs that might place them."""
    cpus = format_cpu_list(cpu for socket in hardware.sockets for cpu in parse_cpu_list(socket.cpus))
    _write(sysfs_root / "devices/system/cpu/online", cpus)
    _write(procfs_root / "irq/default_smp_affinity", format_cpu_mask(parse_cpu_list(cpus)))
    _write(procfs_root / "2/comm", "kthreadd")
    for nic, irq, name in _iter_interrupts(hardware):
        _write(sysfs_root / "bus/pci/devices" / nic.placed.address / "msi_irqs" / str(irq), "msix")
        folder = procfs_root / "irq" / str(irq)
        values = ("smp_affinity_list", cpus), ("affinity_hint", "0"), ("node", str(nic.placed.numa_node))
        for file, text in values:
            _write(folder / file, text)
        (folder / name).mkdir()


def read_interrupts(procfs_root: Path, hardware: Hardware) -> Iterator[str]:
    """Where each one may go, a line for each."""
    for nic, irq, _ in _iter_interrupts(hardware):
        cpus = (procfs_root / "irq" / str(irq) / "smp_affinity_list").read_text().strip()
        yield f"interrupt {irq} of {nic.nic.ifname}: cpus {cpus}"


def _iter_interrupts(hardware: Hardware) -> Iterator[tuple[PlacedNic, int, str]]:
    for place, nic in enumerate(hardware.nics()):
        for vector in range(VECTORS):
            name = f"{nic.nic.ifname}-TxRx-{vector - 1}" if vector else nic.nic.ifname
            yield nic, _FIRST + place * VECTORS + vector, name
