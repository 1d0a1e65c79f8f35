"""The hardware reader: everything once, then only what a change names."""

from __future__ import annotations

import gc
import os
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dranet.kernel.discovery.hardware import Hardware, HardwareReader
from testbed.node.hardware import load_hardware
from testbed.node.sysfs_tree import SysfsTree
from tests.kernel.trees import SWITCH, Tree, read_rdma_devices, write_switch

NIC = f"devices/{SWITCH}/0000:19:00.0/0000:1a:00.0"
GPU = f"devices/{SWITCH}/0000:19:01.0/0000:1b:00.0"

DATABASE = "10de  NVIDIA Corporation\n\t2330  H100\n15b3  Mellanox Technologies\n\t1021  ConnectX-7\n"


class Node:
    """A node with one NIC and one GPU, and its reader."""

    def __init__(self, root: Path) -> None:
        self.sys, self.proc = Tree(root / "sys"), Tree(root / "proc")
        write_switch(self.sys)
        self.sys.rdma_device("mlx5_0", NIC, verbs=3, ndev="eth4")
        self.sys.write("class/misc/rdma_cm/dev", "10:121")
        self.sys.link("class/net/eth4", f"../../{NIC}/net/eth4")
        self.sys.write("devices/system/node/node0/cpulist", "0-7")
        self.proc.write("devices", "Character devices:\n195 nvidia\n508 nvidia-uvm\n")
        self.proc.write("driver/nvidia/gpus/0000:1b:00.0/information", "Model: H100\nDevice Minor: 0")
        (root / "pci.ids").write_text(DATABASE)
        self.reader = HardwareReader(self.sys.root, self.proc.root, root / "pci.ids")
        self.warnings: list[str] = []
        self.read()

    def read(self, *changed: str, links: tuple[str, ...] = ()) -> Hardware:
        """What changes named here gives; with neither, everything anew."""
        self.warnings = []
        everything = not changed and not links
        return self.reader.read(self.warnings, None if everything else frozenset(changed), links)

    def addresses(self, *changed: str) -> list[str]:
        return [function.address for function in self.read(*changed).pci_functions]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every file and folder that is opened or looked for meanwhile."""
    opened: list[str] = []

    def counting(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(path: Any, *rest: Any, **options: Any) -> Any:
            opened.append(str(path))
            return real(path, *rest, **options)

        return call

    with monkeypatch.context() as patch:
        for name in ("open", "scandir", "stat"):
            patch.setattr(os, name, counting(name))
        yield opened


def test_all_hardware_is_read_with_names_and_nodes(node: Node) -> None:
    hardware = node.read()
    nic, gpu = hardware.pci_functions
    assert (nic.address, nic.vendor_name, nic.device_name) == (
        "0000:1a:00.0", "Mellanox Technologies", "ConnectX-7"
    )  # fmt: skip
    assert (gpu.address, gpu.device_name) == ("0000:1b:00.0", "H100")
    (device,) = hardware.rdma_devices
    assert (device.pci_address, [node.path for node in device.char_devices]) == (
        "0000:1a:00.0", ["/dev/infiniband/uverbs3", "/dev/infiniband/rdma_cm"]
    )  # fmt: skip
    assert [(gpu.pci_address, gpu.model) for gpu in hardware.gpus] == [("0000:1b:00.0", "H100")]
    assert [numa.cpus for numa in hardware.numa_nodes] == ["0-7"]
    assert hardware.host.kernel == os.uname().release
    assert node.warnings == []


def test_the_reader_gives_what_the_single_readers_give(node: Node) -> None:
    hardware = node.read()
    plain = [replace(function, vendor_name="", device_name="") for function in hardware.pci_functions]
    assert plain == list(node.sys.functions("0000:1a:00.0").values())
    assert list(hardware.rdma_devices) == read_rdma_devices(node.sys.files)


def test_a_whole_dgx_is_read_as_it_was_laid_out(tmp_path: Path) -> None:
    laid_out = load_hardware("dgx-h100")
    tree, warnings = SysfsTree(tmp_path, laid_out), list[str]()
    tree.write()
    hardware = HardwareReader(tree.sysfs_root, tree.procfs_root, tmp_path / "no.ids").read(warnings)
    placed = {function.address: function for function in laid_out.placed()}
    assert {gpu.pci_address: gpu.uuid for gpu in hardware.gpus} == {
        address: function.function.gpu.uuid
        for address, function in placed.items()
        if function.function.gpu is not None
    }
    assert {device.name: device.pci_address for device in hardware.rdma_devices} == {
        nic.nic.rdma: nic.placed.address for nic in laid_out.nics() if nic.nic.rdma
    }
    for function in hardware.pci_functions:
        expected = placed[function.address]
        assert (function.root, list(function.path)) == (expected.root, list(expected.path))
        assert function.numa_node == expected.numa_node
    assert [numa.node for numa in hardware.numa_nodes] == [socket.numa_node for socket in laid_out.sockets]
    assert len(warnings) == 1, "pci.ids is missing, and nothing else is odd"


def test_without_a_change_nothing_is_opened(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    before = node.read()
    with counted(monkeypatch) as opened:
        after = node.reader.read([], frozenset())
    assert opened == []
    assert after is before


def test_a_change_of_a_foreign_link_opens_one_folder(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.sys.link("class/net/veth1", "../../devices/virtual/net/veth1")
    before = node.read()
    with counted(monkeypatch) as opened:
        after = node.reader.read([], frozenset(), {"veth1", "veth-gone"})
    assert opened == [f"{node.sys.root}/class/net"]
    assert after is before


def test_a_change_of_one_function_reads_that_function(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.sys.write(f"{GPU}/numa_node", "1")
    node.sys.write(f"{NIC}/numa_node", "1")
    with counted(monkeypatch) as opened:
        hardware = node.read("0000:1b:00.0")
    assert [f.numa_node for f in hardware.pci_functions] == [0, 1], "only the GPU was named"
    folders = {path for path in opened if "bus/pci/devices/" in path}
    assert folders
    assert all("0000:1b:00.0" in path for path in folders)
    assert not any("infiniband" in path or "system/node" in path for path in opened)


def test_a_new_function_and_one_that_is_gone_are_found(node: Node) -> None:
    node.sys.function("pci0000:40/0000:41:00.0", "0x020000", "0x15b3", "0x1021")
    assert node.addresses("0000:41:00.0") == ["0000:1a:00.0", "0000:1b:00.0", "0000:41:00.0"]
    (node.sys.root / "bus/pci/devices/0000:1b:00.0").unlink()
    hardware = node.read("0000:1b:00.0")
    assert [function.address for function in hardware.pci_functions] == ["0000:1a:00.0", "0000:41:00.0"]
    assert hardware.gpus == ()
    assert node.warnings == []


def test_a_function_whose_event_was_lost_is_found_with_the_next_that_comes(node: Node) -> None:
    node.sys.function("pci0000:40/0000:41:00.0", "0x020000", "0x15b3", "0x1021")
    node.sys.function("pci0000:40/0000:42:00.0", "0x020000", "0x15b3", "0x1021")
    assert node.addresses("0000:42:00.0")[-2:] == ["0000:41:00.0", "0000:42:00.0"]


def test_a_virtual_function_that_comes_or_goes_reads_its_physical_function_again(node: Node) -> None:
    vf = node.sys.virtual_function(NIC, "0000:1a:00.1", index=0)
    node.sys.write(f"{NIC}/sriov_numvfs", "1")
    physical, virtual, _ = node.read("0000:1a:00.1").pci_functions
    assert (physical.sriov_num_vfs, virtual.virtual_function_index) == (1, 0)
    node.sys.write(f"{NIC}/sriov_numvfs", "0")
    (node.sys.root / "bus/pci/devices/0000:1a:00.1").unlink()
    shutil.rmtree(node.sys.root / vf)
    (node.sys.root / NIC / "virtfn0").unlink()
    physical, _ = node.read("0000:1a:00.1").pci_functions
    assert physical.sriov_num_vfs == 0
    assert node.warnings == []


def test_a_driver_that_binds_changes_the_function_and_the_gpu(node: Node) -> None:
    node.proc.write("driver/nvidia/gpus/0000:1b:00.0/information", "Model: H100\nDevice Minor: 5")
    node.sys.link(f"{GPU}/driver", "../../../../../../bus/pci/drivers/nvidia")
    hardware = node.read("0000:1b:00.0")
    assert hardware.pci_functions[1].driver == "nvidia"
    assert hardware.gpus[0].char_devices[0].path == "/dev/nvidia5"


def test_an_rdma_device_that_comes_changes_or_goes_is_found(node: Node) -> None:
    node.sys.rdma_device("mlx5_1", NIC, verbs=4)
    assert [device.name for device in node.read("mlx5_1").rdma_devices] == ["mlx5_0", "mlx5_1"]
    node.sys.write(f"{NIC}/infiniband/mlx5_0/fw_ver", "28.43")
    assert [device.firmware for device in node.read("mlx5_0").rdma_devices] == ["28.43", "28.39.1002"]
    (node.sys.root / "class/infiniband/mlx5_0").unlink()
    assert [device.name for device in node.read("mlx5_0").rdma_devices] == ["mlx5_1"]


def test_a_verbs_node_that_comes_after_its_device_is_found(node: Node) -> None:
    node.sys.rdma_device("mlx5_1", NIC, verbs=4)
    shutil.move(node.sys.root / "class/infiniband_verbs/uverbs4", node.sys.root / "later")
    assert len(node.read("mlx5_1").rdma_devices[1].char_devices) == 1, "only rdma_cm"
    shutil.move(node.sys.root / "later", node.sys.root / "class/infiniband_verbs/uverbs4")
    assert node.read("uverbs4").rdma_devices[1].char_devices[0].path == "/dev/infiniband/uverbs4"


def test_a_render_node_that_comes_belongs_to_its_gpu(node: Node) -> None:
    home = node.sys.function("pci0000:60/0000:61:00.0", "0x038000", "0x1002", "0x74a1")
    assert node.read("0000:61:00.0").gpus[1].char_devices == ()
    node.sys.write(f"{home}/drm/renderD129/dev", "226:129")
    (render,) = node.read("renderD129").gpus[1].char_devices
    assert render.path == "/dev/dri/renderD129"


def test_a_function_of_an_odd_class_comes_and_goes_with_its_rdma_device(node: Node) -> None:
    home = node.sys.function("pci0000:00/0000:00:08.0", "0x00ff00", "0x1ded", "0x107f")
    node.sys.virtual_function(home, "0000:00:08.1", index=0)
    assert node.addresses("0000:00:08.0", "0000:00:08.1") == ["0000:1a:00.0", "0000:1b:00.0"]
    node.sys.rdma_device("erdma_0", home, verbs=7)
    assert node.addresses("erdma_0")[:2] == ["0000:00:08.0", "0000:00:08.1"]
    (node.sys.root / "class/infiniband/erdma_0").unlink()
    assert node.addresses("erdma_0") == ["0000:1a:00.0", "0000:1b:00.0"]


def test_a_link_that_changes_reads_the_ports_that_belong_to_it(node: Node) -> None:
    port = f"{NIC}/infiniband/mlx5_0/ports/1"
    node.sys.write(f"{port}/state", "1: DOWN")
    node.sys.write(f"{GPU}/numa_node", "1")
    hardware = node.read(links=("eth4",))
    assert hardware.rdma_devices[0].ports[0].state == "DOWN"
    assert hardware.pci_functions[1].numa_node == 0, "nobody named the GPU"


def test_a_link_that_returns_from_a_pod_is_found_by_its_function(node: Node) -> None:
    ndevs = node.sys.root / NIC / "infiniband/mlx5_0/ports/1/gid_attrs/ndevs"
    shutil.rmtree(ndevs)
    (node.sys.root / "class/net/eth4").unlink()
    assert node.read(links=("eth4",)).rdma_devices[0].ports[0].netdevs == ()
    node.sys.write(f"{NIC}/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "net1")
    node.sys.link("class/net/net1", f"../../{NIC}/net/net1")
    assert node.read(links=("net1",)).rdma_devices[0].ports[0].netdevs == ("net1",)


def test_what_is_odd_stays_said_until_it_is_mended(node: Node) -> None:
    node.sys.write(f"{NIC}/numa_node", "many")
    node.sys.write("bus/pci/devices/rubbish/class", "0x020000")
    node.read()
    assert len(node.warnings) == 2
    told = list(node.warnings)
    node.read("0000:1b:00.0")
    assert node.warnings == told, "said again, though neither was read again"
    warnings: list[str] = []
    node.reader.read(warnings, frozenset())
    assert warnings == told
    node.sys.write(f"{NIC}/numa_node", "0")
    node.read("0000:1a:00.0")
    assert [warning for warning in node.warnings if "numa_node" in warning] == []


def test_everything_anew_forgets_what_was_kept(node: Node) -> None:
    shutil.rmtree(node.sys.root / "class/infiniband")
    shutil.rmtree(node.sys.root / "bus/pci/devices")
    hardware = node.read()
    assert (hardware.pci_functions, hardware.rdma_devices, hardware.gpus) == ((), (), ())


def test_names_that_are_no_devices_do_no_harm(node: Node) -> None:
    before = node.read()
    assert node.read("", "/", "..", "../../../etc", "0000:00:00.0", "mlx5_9", "\udcff", "a\0b") == before
    assert node.read("0000:1a:00.0", links=("", "..", "no such link")) == before
    assert node.warnings == []


@pytest.mark.slow
def test_memory_does_not_grow_over_a_thousand_reads(node: Node) -> None:
    home = node.sys.root / "bus/pci/devices/0000:1a:00.0"
    target = home.readlink()

    def read_often(times: int) -> None:
        for turn in range(times):
            home.unlink()
            node.read("0000:1a:00.0", "mlx5_0", links=("eth4",))
            home.symlink_to(target)
            node.read("0000:1a:00.0", f"renderD{turn}", links=(f"veth{turn}",))

    read_often(20)
    tracemalloc.start()
    try:
        grown = [measure_growth(lambda: read_often(200)) for _ in range(5)]
    finally:
        tracemalloc.stop()
    # What leaks does so each time; a table of the interpreter that doubles, or another thread, does not.
    assert min(grown) < 8_000, f"grew by {grown} bytes"


def measure_growth(act: Callable[[], object]) -> int:
    """Bytes that are held after it and were not before."""
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    act()
    gc.collect()
    return tracemalloc.get_traced_memory()[0] - before
