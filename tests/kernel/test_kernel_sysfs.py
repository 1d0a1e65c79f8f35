"""PCI, RDMA and GPU facts from small trees with the layout of real machines."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dranet.kernel.gpu import is_gpu, read_gpus
from dranet.kernel.pci import read_pci_functions
from dranet.kernel.rdma import read_rdma_devices
from dranet.kernel.scan import read_node_facts
from dranet.kernel.sysfs import PseudoFiles
from dranet.model.facts import CharDevice, PciFunction


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

    def link(self, path: str, target: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def function(self, path: str, class_code: str, vendor: str, device: str, **attributes: str) -> str:
        """A PCI function at ``pci0000:00/.../address``; returns its folder."""
        home = f"devices/{path}"
        address = path.rpartition("/")[2]
        for name, text in {"class": class_code, "vendor": vendor, "device": device, **attributes}.items():
            self.write(f"{home}/{name}", text)
        self.link(f"bus/pci/devices/{address}", f"../../../{home}")
        return home

    def functions(self, *also: str) -> dict[str, PciFunction]:
        return {function.address: function for function in read_pci_functions(self.files, also)}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "sys")


@pytest.fixture
def proc(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "proc")


SWITCH = "pci0000:17/0000:17:01.0/0000:18:00.0"


def dgx(tree: Tree) -> None:
    """One PCIe switch of a DGX: a NIC and a GPU below it, as on an H100 machine."""
    tree.function("pci0000:17/0000:17:01.0", "0x060400", "0x8086", "0x352a")
    tree.function(SWITCH, "0x060400", "0x1000", "0xc030")
    tree.function(f"{SWITCH}/0000:19:00.0", "0x060400", "0x1000", "0xc030")
    tree.function(f"{SWITCH}/0000:19:01.0", "0x060400", "0x1000", "0xc030")
    nic = tree.function(
        f"{SWITCH}/0000:19:00.0/0000:1a:00.0", "0x020700", "0x15b3", "0x1021",
        subsystem_vendor="0x15b3", subsystem_device="0x0041", numa_node="0",
        current_link_speed="32.0 GT/s PCIe", current_link_width="16", sriov_totalvfs="16", sriov_numvfs="2",
    )  # fmt: skip
    tree.link(f"{nic}/driver", "../../../../../../bus/pci/drivers/mlx5_core")
    tree.function(f"{SWITCH}/0000:19:01.0/0000:1b:00.0", "0x030200", "0x10de", "0x2330", numa_node="0")


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP, errno.ENODEV, errno.EACCES, errno.EIO])
def test_an_attribute_that_has_no_meaning_now_is_no_fact_and_a_refusal_is_a_warning(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Only a driver can make a read fail so; a tree made by hand cannot."""

    def refuse(*_: object) -> bytes:
        raise OSError(number, os.strerror(number))

    tree.write("class/net/eth0/speed", "100000")
    monkeypatch.setattr(os, "read", refuse)
    assert tree.files.text("class/net/eth0/speed") == ""
    assert bool(tree.warnings) is (number in (errno.EACCES, errno.EIO))


# --- PCI -----------------------------------------------------------------------------------------------


def test_a_nic_behind_a_switch_has_its_whole_path(tree: Tree) -> None:
    dgx(tree)
    functions = tree.functions()
    assert list(functions) == ["0000:1a:00.0", "0000:1b:00.0"], "bridges are only in the paths"
    assert functions["0000:1a:00.0"] == PciFunction(
        address="0000:1a:00.0",
        class_code=0x020700,
        vendor_id=0x15B3,
        device_id=0x1021,
        subsystem_vendor_id=0x15B3,
        subsystem_device_id=0x0041,
        driver="mlx5_core",
        numa_node=0,
        root="pci0000:17",
        path=("0000:17:01.0", "0000:18:00.0", "0000:19:00.0", "0000:1a:00.0"),
        sriov_total_vfs=16,
        sriov_num_vfs=2,
        link_speed="32.0 GT/s PCIe",
        link_width=16,
    )
    assert tree.warnings == []


def test_a_virtual_function_knows_its_parent_and_its_index(tree: Tree) -> None:
    pf = tree.function(
        "pci0000:20/0000:20:00.0/0000:21:00.0", "0x020000", "0x8086", "0x10c9", sriov_totalvfs="7"
    )
    for index, slot in enumerate(("10.0", "10.2", "10.4")):
        vf = tree.function(f"pci0000:20/0000:20:00.0/0000:21:{slot}", "0x020000", "0x8086", "0x10ca")
        tree.link(f"{pf}/virtfn{index}", f"../0000:21:{slot}")
        tree.link(f"{vf}/physfn", "../0000:21:00.0")
    tree.write(f"{pf}/virtfn_not_a_number", "")
    functions = tree.functions()
    told = {a: (f.physical_function, f.virtual_function_index) for a, f in functions.items()}
    assert told == {
        "0000:21:00.0": ("", None),
        "0000:21:10.0": ("0000:21:00.0", 0),
        "0000:21:10.2": ("0000:21:00.0", 1),
        "0000:21:10.4": ("0000:21:00.0", 2),
    }


def test_a_virtual_function_whose_parent_is_out_of_sight_has_no_index(tree: Tree) -> None:
    vf = tree.function("pci0000:20/0000:21:10.0", "0x020000", "0x8086", "0x10ca")
    tree.link(f"{vf}/physfn", "../0000:21:00.0")
    (function,) = tree.functions().values()
    assert (function.physical_function, function.virtual_function_index) == ("0000:21:00.0", None)


def test_a_domain_of_five_digits_behind_vmd_is_read_with_the_processors_root(tree: Tree) -> None:
    tree.function(
        "pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0/10000:e1:00.0", "0x020000", "0x8086", "0x1"
    )
    (function,) = tree.functions().values()
    assert function.address == "10000:e1:00.0"
    assert function.root == "pci0000:00"
    assert function.path == ("0000:00:0e.0", "10000:e0:06.0", "10000:e1:00.0")


def test_no_numa_node_and_an_unknown_link_are_no_facts(tree: Tree) -> None:
    tree.function(
        "pci0000:c0/0000:c1:00.0", "0x020000", "0x1af4", "0x1041",
        numa_node="-1", current_link_speed="Unknown", current_link_width="255",
    )  # fmt: skip
    (function,) = tree.functions().values()
    assert (function.numa_node, function.link_speed, function.link_width) == (None, "", 0)


def test_the_class_is_matched_as_24_bits(tree: Tree) -> None:
    tree.function("pci0000:00/0000:00:02.0", "0x000200", "0x1af4", "0x1009")
    assert tree.functions() == {}, "virtio-9p is no NIC"


def test_a_function_of_an_odd_class_is_read_when_it_carries_rdma(tree: Tree) -> None:
    tree.function("pci0000:00/0000:00:08.0", "0x00ff00", "0x1ded", "0x107f")
    assert list(tree.functions("0000:00:08.0")) == ["0000:00:08.0"]


def test_one_odd_function_never_hides_the_others(tree: Tree) -> None:
    dgx(tree)
    tree.link("bus/pci/devices/0000:ff:00.0", "../../../devices/pci0000:ff/0000:ff:00.0")  # leads nowhere
    (tree.root / "bus/pci/devices/not-an-address").mkdir()
    (tree.root / "devices/pci0000:aa/0000:aa:00.0/class").mkdir(parents=True)  # cannot be read as a file
    tree.link("bus/pci/devices/0000:aa:00.0", "../../../devices/pci0000:aa/0000:aa:00.0")
    tree.function("pci0000:bb/0000:bb:00.0", "0x020000", "garbage", "0x1", numa_node="many")
    tree.link("bus/pci/devices/0000:cc:00.0", "0000:cc:00.0")  # a loop
    functions = tree.functions()
    assert set(functions) == {"0000:1a:00.0", "0000:1b:00.0", "0000:bb:00.0"}
    assert (functions["0000:bb:00.0"].vendor_id, functions["0000:bb:00.0"].numa_node) == (0, None)
    for address in ("ff:00.0", "not-an-address", "aa:00.0", "bb:00.0/vendor", "bb:00.0/numa_node", "cc:00.0"):
        assert any(address in warning for warning in tree.warnings), address


# --- RDMA ----------------------------------------------------------------------------------------------


def hca(tree: Tree, name: str, function: str, verbs: int, ndev: str = "") -> str:
    home = f"{function}/infiniband/{name}"
    tree.write(f"{home}/node_guid", "0c42:a103:0021:1000")
    tree.write(f"{home}/fw_ver", "28.39.1002")
    tree.write(f"{home}/ports/1/state", "4: ACTIVE")
    tree.write(f"{home}/ports/1/link_layer", "Ethernet" if ndev else "InfiniBand")
    tree.write(f"{home}/ports/1/rate", "400 Gb/sec (4X NDR)")
    if ndev:
        tree.write(f"{home}/ports/1/gid_attrs/ndevs/0", ndev)
        tree.write(f"{home}/ports/1/gid_attrs/ndevs/1", ndev)
    (tree.root / home / "ports/1/gid_attrs/ndevs/2").mkdir(parents=True)  # errors like an empty slot
    tree.link(f"class/infiniband/{name}", f"../../{home}")
    tree.write(f"class/infiniband_verbs/uverbs{verbs}/ibdev", name)
    tree.write(f"class/infiniband_verbs/uverbs{verbs}/dev", f"231:{192 + verbs}")
    return home


def test_an_rdma_device_has_its_function_ports_and_nodes(tree: Tree) -> None:
    dgx(tree)
    nic = f"devices/{SWITCH}/0000:19:00.0/0000:1a:00.0"
    hca(tree, "mlx5_0", nic, verbs=3, ndev="eth4")
    hca(tree, "mlx5_10", nic, verbs=0)
    tree.write("class/misc/rdma_cm/dev", "10:121")
    tree.write("class/infiniband_mad/umad0/dev", "231:0")
    roce, infiniband = read_rdma_devices(tree.files)
    assert (roce.name, roce.pci_address) == ("mlx5_0", "0000:1a:00.0")
    assert (roce.node_guid, roce.firmware) == ("0c42:a103:0021:1000", "28.39.1002")
    assert roce.char_devices == (
        CharDevice("/dev/infiniband/uverbs3", 231, 195),
        CharDevice("/dev/infiniband/rdma_cm", 10, 121),
    )
    (port,) = roce.ports
    assert (port.number, port.state, port.link_layer, port.rate, port.netdevs) == (
        1, "ACTIVE", "Ethernet", "400 Gb/sec (4X NDR)", ("eth4",)
    )  # fmt: skip
    assert infiniband.ports[0].netdevs == ()
    assert infiniband.char_devices[0].path == "/dev/infiniband/uverbs0"


def test_a_software_rdma_device_has_no_function(tree: Tree) -> None:
    tree.write("devices/virtual/infiniband/rxe0/ports/1/state", "1: DOWN")
    tree.link("class/infiniband/rxe0", "../../devices/virtual/infiniband/rxe0")
    (device,) = read_rdma_devices(tree.files)
    assert (device.pci_address, device.ports[0].state, device.char_devices) == ("", "DOWN", ())


def test_a_verbs_node_with_odd_numbers_is_a_warning(tree: Tree) -> None:
    hca(tree, "mlx5_0", "devices/pci0000:17/0000:1a:00.0", verbs=0)
    tree.write("class/infiniband_verbs/uverbs0/dev", "odd")
    (device,) = read_rdma_devices(tree.files)
    assert device.char_devices == ()
    assert any("uverbs0/dev" in warning for warning in tree.warnings)


def test_erdma_is_found_through_its_rdma_device(tree: Tree) -> None:
    home = tree.function("pci0000:00/0000:00:08.0", "0x00ff00", "0x1ded", "0x107f")
    hca(tree, "erdma_0", home, verbs=0, ndev="eth1")
    facts = read_node_facts(tree.root, tree.root)
    assert [device.pci_address for device in facts.rdma_devices] == ["0000:00:08.0"]
    assert [function.address for function in facts.pci_functions] == ["0000:00:08.0"]


# --- GPUs ----------------------------------------------------------------------------------------------


def test_an_nvidia_gpu_has_model_uuid_and_the_nodes_that_cuda_needs(tree: Tree, proc: Tree) -> None:
    dgx(tree)
    proc.write(
        "driver/nvidia/gpus/0000:1b:00.0/information",
        "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 42\nGPU UUID: \t GPU-5d2c\nDevice Minor: \t 3",
    )
    proc.write("devices", "Character devices:\n195 nvidia\n508 nvidia-uvm\n\nBlock devices:\n  7 nvidia-uvm")
    (gpu,) = read_gpus(tree.files, proc.files, tree.functions().values())
    assert (gpu.pci_address, gpu.vendor, gpu.model, gpu.uuid) == (
        "0000:1b:00.0", "nvidia", "NVIDIA H100 80GB HBM3", "GPU-5d2c"
    )  # fmt: skip
    assert gpu.char_devices == (
        CharDevice("/dev/nvidia3", 195, 3),
        CharDevice("/dev/nvidiactl", 195, 255),
        CharDevice("/dev/nvidia-uvm", 508, 0),
        CharDevice("/dev/nvidia-uvm-tools", 508, 1),
    )


def test_an_nvidia_gpu_without_its_driver_is_known_but_has_no_nodes(tree: Tree, proc: Tree) -> None:
    dgx(tree)
    (gpu,) = read_gpus(tree.files, proc.files, tree.functions().values())
    assert (gpu.vendor, gpu.model, gpu.char_devices) == ("nvidia", "", ())
    assert proc.warnings == []


def test_an_amd_gpu_has_kfd_and_its_render_node(tree: Tree, proc: Tree) -> None:
    home = tree.function("pci0000:20/0000:21:00.0", "0x038000", "0x1002", "0x74a1")
    tree.write(f"{home}/drm/card1/dev", "226:1")
    tree.write(f"{home}/drm/renderD128/dev", "226:128")
    tree.write("class/kfd/kfd/dev", "510:0")
    (gpu,) = read_gpus(tree.files, proc.files, tree.functions().values())
    assert gpu.vendor == "amd"
    assert gpu.char_devices == (CharDevice("/dev/kfd", 510, 0), CharDevice("/dev/dri/renderD128", 226, 128))


def test_an_accelerator_of_another_vendor_has_its_accel_node(tree: Tree, proc: Tree) -> None:
    home = tree.function("pci0000:20/0000:21:00.0", "0x120000", "0x1da3", "0x1020")
    tree.write(f"{home}/accel/accel0/dev", "261:0")
    (gpu,) = read_gpus(tree.files, proc.files, tree.functions().values())
    assert (gpu.vendor, gpu.char_devices) == ("1da3", (CharDevice("/dev/accel/accel0", 261, 0),))


@pytest.mark.parametrize(
    ("class_code", "vendor", "offered"),
    [
        (0x030000, 0x1A03, False),  # ASPEED board VGA
        (0x030000, 0x102B, False),  # Matrox board VGA
        (0x030000, 0x10DE, True),
        (0x030000, 0x1002, True),
        (0x030200, 0x10DE, True),
        (0x038000, 0x1234, True),
        (0x120000, 0x1DA3, True),
        (0x020000, 0x10DE, False),
        (0x030100, 0x10DE, False),
    ],
)
def test_which_functions_are_gpus(class_code: int, vendor: int, offered: bool) -> None:
    assert is_gpu(PciFunction("0000:00:00.0", class_code, vendor, 1)) is offered
