"""sysfs and procfs trees made by hand, with the layout of real machines."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dranet.kernel.discovery.hardware import RDMA_CLASS, read_rdma_device, read_rdma_nodes, with_nodes
from dranet.kernel.discovery.pci import GpuReader, PciReader, list_pci_functions
from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.facts import Gpu, PciFunction, RdmaDevice

SWITCH = "pci0000:17/0000:17:01.0/0000:18:00.0"


def read_rdma_devices(sysfs: PseudoFiles) -> list[RdmaDevice]:
    nodes = read_rdma_nodes(sysfs)
    return [with_nodes(read_rdma_device(sysfs, name), nodes) for name in sysfs.entries(RDMA_CLASS)]


def read_gpus(sysfs: PseudoFiles, procfs: PseudoFiles, functions: Iterable[PciFunction]) -> list[Gpu]:
    reader = GpuReader(sysfs, procfs)
    return [reader.read(function) for function in functions if reader.is_gpu(function)]


class Tree:
    """A sysfs (or procfs) tree made by hand."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.warnings: list[str] = []
        self.files = PseudoFiles(root, self.warnings)

    def write(self, path: str, text: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + "\n")

    def write_all(self, folder: str, **attributes: str) -> None:
        for name, text in attributes.items():
            self.write(f"{folder}/{name}", text)

    def link(self, path: str, target: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def function(self, path: str, class_code: str, vendor: str, device: str, **attributes: str) -> str:
        """A PCI function at ``pci0000:00/.../address``; returns its folder."""
        home = f"devices/{path}"
        address = path.rpartition("/")[2]
        self.write_all(home, **{"class": class_code, "vendor": vendor, "device": device, **attributes})
        self.link(f"bus/pci/devices/{address}", f"../../../{home}")
        return home

    def functions(self, *also: str) -> dict[str, PciFunction]:
        reader = PciReader(self.files, also)
        found = (reader.read(address) for address in list_pci_functions(self.files))
        return {function.address: function for function in found if function is not None}

    def virtual_function(self, parent: str, address: str, index: int, device: str = "0x101e") -> str:
        """A virtual function beside its physical one, with the links of both; ``parent`` is a folder."""
        class_code = (self.root / parent / "class").read_text().strip()
        vf = self.function(
            f"{Path(parent).parent.relative_to('devices')}/{address}", class_code, "0x15b3", device
        )
        self.link(f"{parent}/virtfn{index}", f"../{address}")
        self.link(f"{vf}/physfn", f"../{Path(parent).name}")
        return vf

    def rdma_device(self, name: str, function: str, verbs: int, ndev: str = "") -> str:
        """An RDMA device below a PCI function's folder; RoCE with an interface, else InfiniBand."""
        home = f"{function}/infiniband/{name}"
        self.write_all(home, node_guid="0c42:a103:0021:1000", fw_ver="28.39.1002")
        self.write_all(
            f"{home}/ports/1",
            state="4: ACTIVE",
            link_layer="Ethernet" if ndev else "InfiniBand",
            rate="400 Gb/sec (4X NDR)",
        )
        if ndev:
            self.write(f"{home}/ports/1/gid_attrs/ndevs/0", ndev)
            self.write(f"{home}/ports/1/gid_attrs/ndevs/1", ndev)
        self.link(f"class/infiniband/{name}", f"../../{home}")
        self.write(f"class/infiniband_verbs/uverbs{verbs}/ibdev", name)
        self.write(f"class/infiniband_verbs/uverbs{verbs}/dev", f"231:{192 + verbs}")
        return home


def write_switch(tree: Tree) -> None:
    """One PCIe switch of a DGX: a NIC and a GPU below it, as on an H100 machine."""
    tree.function("pci0000:17/0000:17:01.0", "0x060400", "0x8086", "0x352a")
    tree.function(SWITCH, "0x060400", "0x1000", "0xc030")
    tree.function(f"{SWITCH}/0000:19:00.0", "0x060400", "0x1000", "0xc030")
    tree.function(f"{SWITCH}/0000:19:01.0", "0x060400", "0x1000", "0xc030")
    nic = tree.function(
        f"{SWITCH}/0000:19:00.0/0000:1a:00.0", "0x020700", "0x15b3", "0x1021",
        subsystem_vendor="0x15b3", subsystem_device="0x0041", numa_node="0",
        current_link_speed="16.0 GT/s PCIe", current_link_width="8",
        max_link_speed="32.0 GT/s PCIe", max_link_width="16",
        sriov_totalvfs="16", sriov_numvfs="2",
    )  # fmt: skip
    tree.link(f"{nic}/driver", "../../../../../../bus/pci/drivers/mlx5_core")
    tree.function(f"{SWITCH}/0000:19:01.0/0000:1b:00.0", "0x030200", "0x10de", "0x2330", numa_node="0")
