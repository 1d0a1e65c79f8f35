"""The sysfs and procfs trees: what discovery tools read has a real kernel's names, formats and links."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from testbed.node.hardware import load_hardware
from testbed.node.sysfs_tree import ShownLink, SysfsTree

GPU = "0000:1b:00.0"
NIC = "0000:18:00.0"
TWO_NIC = load_hardware("two-nic")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> SysfsTree:
    tree = SysfsTree(tmp_path_factory.mktemp("tree"), load_hardware("dgx-h100"))
    tree.write()
    return tree


@pytest.fixture
def small(tmp_path: Path) -> SysfsTree:
    tree = SysfsTree(tmp_path, TWO_NIC)
    tree.write()
    return tree


def read(path: Path) -> str:
    return path.read_text().rstrip("\n")


class TestPci:
    def test_every_function_is_on_the_bus_with_a_relative_link_to_its_home(self, tree: SysfsTree) -> None:
        link = tree.sysfs_root / "bus/pci/devices" / GPU
        assert str(link.readlink()) == (
            "../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1b:00.0"
        )
        assert len(list((tree.sysfs_root / "bus/pci/devices").iterdir())) == 64

    def test_attributes_have_the_kernels_formats(self, tree: SysfsTree) -> None:
        home = tree.sysfs_root / "bus/pci/devices" / GPU
        names = ("class", "vendor", "device", "numa_node", "current_link_speed", "current_link_width")
        assert [read(home / name) for name in names] == [
            "0x030200",
            "0x10de",
            "0x2330",
            "0",
            "32.0 GT/s PCIe",
            "16",
        ]

    def test_driver_and_subsystem_links_name_their_target(self, tree: SysfsTree) -> None:
        home = tree.sysfs_root / "bus/pci/devices" / NIC
        assert (home / "driver").readlink().name == "mlx5_core"
        assert (home / "subsystem").readlink().name == "pci"
        assert (home / "driver" / NIC / "vendor").exists()

    def test_no_link_dangles_or_is_absolute(self, tree: SysfsTree) -> None:
        for folder, names, files in os.walk(tree.sysfs_root):
            for path in (Path(folder, name) for name in [*names, *files]):
                if path.is_symlink():
                    assert path.exists(), path
                    assert not path.readlink().is_absolute(), path

    def test_the_distance_between_numa_nodes_is_told(self, tree: SysfsTree) -> None:
        node = tree.sysfs_root / "devices/system/node"
        assert [read(node / f"node{n}/distance") for n in (0, 1)] == ["10 21", "21 10"]


class TestRdma:
    def test_an_rdma_device_leads_to_its_function_and_its_verbs_node(self, tree: SysfsTree) -> None:
        device = tree.sysfs_root / "class/infiniband/mlx5_3"
        assert (device / "device").resolve().name == "0000:40:00.0"
        verbs = [
            v for v in (tree.sysfs_root / "class/infiniband_verbs").iterdir() if read(v / "ibdev") == "mlx5_3"
        ]
        assert [(v.name, read(v / "dev")) for v in verbs] == [("uverbs2", "231:194")]
        assert read(tree.sysfs_root / "class/misc/rdma_cm/dev") == "10:122"

    def test_a_port_says_what_it_is(self, tree: SysfsTree) -> None:
        port = tree.sysfs_root / "class/infiniband/mlx5_0/ports/1"
        assert [read(port / n) for n in ("state", "link_layer", "rate")] == [
            "4: ACTIVE",
            "Ethernet",
            "400 Gb/sec (4X NDR)",
        ]
        assert read(port / "gids/0") == "fe80:0000:0000:0000:ba3f:d2ff:fe6a:0018"

    def test_the_node_guid_comes_from_the_mac(self, tree: SysfsTree) -> None:
        assert read(tree.sysfs_root / "class/infiniband/mlx5_0/node_guid") == "ba3f:d2ff:fe6a:0018"


class TestProcfs:
    def test_a_gpu_tells_its_model_uuid_and_minor(self, tree: SysfsTree) -> None:
        lines = (tree.procfs_root / "driver/nvidia/gpus" / GPU / "information").read_text().splitlines()
        facts = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
        assert facts["Model"] == "NVIDIA H100 80GB HBM3"
        assert facts["GPU UUID"].startswith("GPU-")
        assert facts["Device Minor"] == "0"

    def test_character_devices_are_listed_as_the_kernel_does(self, tree: SysfsTree) -> None:
        lines = (tree.procfs_root / "devices").read_text().splitlines()
        assert lines[0] == "Character devices:"
        assert "195 nvidia" in lines
        assert " 10 misc" in lines

    def test_a_boot_has_its_id(self, tree: SysfsTree) -> None:
        assert len(read(tree.procfs_root / "sys/kernel/random/boot_id")) == 36


class TestInterfaces:
    def shown(self, name: str, *, number: int = 1, index: int = 7) -> ShownLink:
        nic = TWO_NIC.nics()[number]
        return ShownLink(name, index, nic.nic.mac, nic)

    def names(self, tree: SysfsTree) -> set[str]:
        return {p.name for p in (tree.sysfs_root / "class/net").iterdir() if p.exists()}

    def entries(self, tree: SysfsTree) -> set[str]:
        return {p.name for p in (tree.sysfs_root / "class/net").iterdir()}

    def test_a_nic_hangs_on_its_function_and_a_virtual_link_does_not(self, small: SysfsTree) -> None:
        assert small.show_links([self.shown("eth7"), ShownLink("lo", 1, "00:00:00:00:00:00")])
        entries = small.sysfs_root / "class/net"
        assert str((entries / "lo").readlink()) == "../../devices/virtual/net/lo"
        assert not (entries / "lo/device").exists()
        assert (entries / "eth7/device").resolve().name == "0000:23:00.0"
        assert str((entries / "eth7/device").readlink()) == "../../../0000:23:00.0"

    def test_a_rename_leaves_no_trace_of_the_old_name(self, small: SysfsTree) -> None:
        small.show_links([self.shown("eth7")])
        assert small.show_links([self.shown("net1")])
        function = small.sysfs_root / "bus/pci/devices/0000:23:00.0"
        assert self.names(small) == {"net1"}
        assert [p.name for p in (function / "net").iterdir()] == ["net1"]
        assert read(function / "infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0") == "net1"

    def test_a_nic_that_left_leaves_its_function_without_an_interface(self, small: SysfsTree) -> None:
        small.show_links([self.shown("eth7")])
        assert small.show_links([])
        function = small.sysfs_root / "bus/pci/devices/0000:23:00.0"
        assert self.names(small) == set()
        assert [*(function / "net").iterdir()] == []  # the folder stays, as the kernel has it (Linux 6.12)
        assert list((function / "infiniband/mlx5_0/ports/1/gid_attrs/ndevs").iterdir()) == []

    def test_who_asks_for_a_nic_in_the_moment_of_its_return_finds_its_function(
        self, small: SysfsTree
    ) -> None:
        small.show_links([self.shown("eth7"), self.shown("b", number=2)])
        small.show_links([self.shown("b", number=2)])
        assert self.names(small) == {"b"}
        assert "0000:23:00.0/net/eth7" in str((small.sysfs_root / "class/net/eth7").readlink())
        small.show_links([self.shown("dev9"), self.shown("b", number=2)])
        assert self.entries(small) == {"dev9", "b"}

    def test_the_name_of_a_nic_that_is_away_may_be_taken(self, small: SysfsTree) -> None:
        small.show_links([self.shown("eth7")])
        small.show_links([])
        small.show_links([self.shown("eth7", number=2)])
        assert (small.sysfs_root / "class/net/eth7/device").resolve().name == "0000:83:00.0"
        small.show_links([ShownLink("eth7", 9, "00:00:00:00:00:09")])
        assert "devices/virtual" in str((small.sysfs_root / "class/net/eth7").readlink())
        small.show_links([])
        assert self.entries(small) == set()

    def test_two_nics_may_swap_their_names(self, small: SysfsTree) -> None:
        small.show_links([self.shown("a"), self.shown("b", number=2)])
        small.show_links([self.shown("b"), self.shown("a", number=2)])
        assert (small.sysfs_root / "class/net/b/device").resolve().name == "0000:23:00.0"
        assert (small.sysfs_root / "class/net/a/device").resolve().name == "0000:83:00.0"

    def test_the_same_links_again_change_nothing(self, small: SysfsTree) -> None:
        small.show_links([self.shown("eth7")])
        assert not small.show_links([self.shown("eth7")])

    def test_a_reader_never_finds_an_interface_that_is_half_there(self, small: SysfsTree) -> None:
        """It reads while the NIC is renamed again and again, each time to a name that is new."""
        entries, finished, halves = small.sysfs_root / "class/net", threading.Event(), list[str]()

        def read_on() -> None:
            while not finished.is_set():
                for entry in entries.iterdir():
                    whole = (entry / "device").exists()
                    if not whole and entry.is_symlink():
                        halves.append(entry.name)

        reader = threading.Thread(target=read_on)
        reader.start()
        for number in range(300):
            small.show_links([self.shown(f"eth{number}")])
        finished.set()
        reader.join()
        assert halves == []
