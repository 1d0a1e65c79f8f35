"""PCI, RDMA and GPU facts from small trees with the layout of real machines."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dranet.kernel.discovery.hardware import read_host, read_numa_nodes
from dranet.kernel.discovery.pci import is_gpu
from dranet.kernel.discovery.scan import NodeScanner
from dranet.kernel.sysfs.files import nearest_pci_address
from dranet.model.facts import CharDevice, NumaNode, PciFunction, RdmaPort
from tests.kernel.trees import SWITCH, Tree, read_gpus, read_rdma_devices, write_switch


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "sys")


@pytest.fixture
def proc(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "proc")


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
    write_switch(tree)
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
        link_speed="16.0 GT/s PCIe",
        link_width=8,
        max_link_speed="32.0 GT/s PCIe",
        max_link_width=16,
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
        max_link_speed="Unknown", max_link_width="63",
    )  # fmt: skip
    (function,) = tree.functions().values()
    assert (function.numa_node, function.link_speed, function.link_width) == (None, "", 0)
    assert (function.max_link_speed, function.max_link_width) == ("", 0)
    assert tree.warnings == []


def test_the_class_is_matched_as_24_bits(tree: Tree) -> None:
    tree.function("pci0000:00/0000:00:02.0", "0x000200", "0x1af4", "0x1009")
    assert tree.functions() == {}, "virtio-9p is no NIC"


def test_a_function_of_an_odd_class_is_read_when_it_carries_rdma(tree: Tree) -> None:
    tree.function("pci0000:00/0000:00:08.0", "0x00ff00", "0x1ded", "0x107f")
    assert list(tree.functions("0000:00:08.0")) == ["0000:00:08.0"]


def test_one_odd_function_never_hides_the_others(tree: Tree) -> None:
    write_switch(tree)
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


VMBUS = "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:01/47505500-0001-0000-3130-444531334632"


def test_a_function_behind_vmbus_has_the_root_that_azure_gives_it(tree: Tree) -> None:
    tree.function(f"{VMBUS}/pci0001:00/0001:00:02.0", "0x020000", "0x15b3", "0x101a")
    (function,) = tree.functions().values()
    assert (function.root, function.path) == ("pci0001:00", ("0001:00:02.0",))


@pytest.mark.parametrize(
    ("home", "address"),
    [
        (f"../../devices/{VMBUS}/net/eth0", ""),
        (f"../../devices/{VMBUS}/pci0001:00/0001:00:02.0/net/eth1", "0001:00:02.0"),
        ("../../devices/platform/a003e00.virtio_mmio/virtio0/net/eth0", ""),
        ("../../devices/pci0000:80/0000:80:02.0/0000:83:00.0/virtio6/net/eth0", "0000:83:00.0"),
        ("../../devices/pci0000:17/0000:17:01.0/0000:1a:00.0/mlx5_core.sf.4/net/p0s1", "0000:1a:00.0"),
        ("../../devices/pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.0/net/usb0", "0000:00:14.0"),
        ("../../devices/virtual/net/dummy0", ""),
    ],
)
def test_the_nearest_function_of_an_interface_is_found_on_every_bus(home: str, address: str) -> None:
    assert nearest_pci_address(home) == address


def pf_without_links(tree: Tree, offset: str, stride: str) -> None:
    tree.function(
        "pci0000:20/0000:21:00.0", "0x020000", "0x8086", "0x10c9", sriov_offset=offset, sriov_stride=stride
    )


@pytest.mark.parametrize(
    ("slot", "offset", "stride", "index"),
    [
        ("0000:21:10.0", "128", "2", 0),
        ("0000:21:10.6", "128", "2", 3),
        ("0000:21:10.1", "128", "2", None),  # between two
        ("0000:21:0f.6", "128", "2", None),  # before the first
        ("0000:22:10.0", "128", "2", 128),  # on the next bus
        ("0000:21:10.0", "128", "0", 0),
        ("0000:21:10.2", "128", "0", None),
        ("0000:21:10.0", "odd", "2", None),
    ],
)
def test_the_index_is_computed_where_the_parent_has_no_links(
    tree: Tree, slot: str, offset: str, stride: str, index: int | None
) -> None:
    pf_without_links(tree, offset, stride)
    vf = tree.function(f"pci0000:20/{slot}", "0x020000", "0x8086", "0x10ca")
    tree.link(f"{vf}/physfn", "../0000:21:00.0")
    assert tree.functions()[slot].virtual_function_index == index


def test_virtual_functions_of_an_odd_class_follow_their_parent(tree: Tree) -> None:
    pf = tree.function("pci0000:00/0000:00:08.0", "0x00ff00", "0x1ded", "0x107f")
    tree.virtual_function(pf, "0000:00:08.1", index=0)
    tree.function("pci0000:00/0000:00:09.0", "0x00ff00", "0x1ded", "0x107f")
    functions = tree.functions("0000:00:08.0")
    assert list(functions) == ["0000:00:08.0", "0000:00:08.1"]
    assert functions["0000:00:08.1"].virtual_function_index == 0


def test_a_parent_that_is_no_address_is_no_parent(tree: Tree) -> None:
    vf = tree.function("pci0000:20/0000:21:10.0", "0x020000", "0x8086", "0x10ca")
    tree.link(f"{vf}/physfn", "../../..")
    assert tree.functions()["0000:21:10.0"].physical_function == ""


@pytest.mark.parametrize(
    ("class_code", "vendor", "device", "listed"),
    [
        ("0x088000", "0x1d0f", "0x7364", True),  # Trainium2 says that it is a system peripheral
        ("0x088000", "0x1d0f", "0x0065", False),
        ("0x088000", "0x8086", "0x7364", False),  # one of the hundreds of parts of a Xeon
        ("0x0b4000", "0x1d94", "0x6210", True),  # Hygon K100_AI
        ("0x0b4000", "0x8086", "0x37c8", False),  # QAT
        ("0xff0000", "0x1ae0", "0x0027", True),  # TPU v3
        ("0xff0000", "0x1ae0", "0x001f", False),
    ],
)
def test_an_accelerator_of_an_odd_class_is_known_by_its_ids(
    tree: Tree, class_code: str, vendor: str, device: str, listed: bool
) -> None:
    tree.function("pci0000:00/0000:00:1e.0", class_code, vendor, device)
    functions = tree.functions().values()
    assert [f.address for f in functions] == ["0000:00:1e.0"] * listed
    assert all(is_gpu(function) for function in functions)


# --- RDMA ----------------------------------------------------------------------------------------------


def test_an_rdma_device_has_its_function_ports_and_nodes(tree: Tree) -> None:
    write_switch(tree)
    nic = f"devices/{SWITCH}/0000:19:00.0/0000:1a:00.0"
    tree.rdma_device("mlx5_0", nic, verbs=3, ndev="eth4")
    tree.rdma_device("mlx5_10", nic, verbs=0)
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
    tree.rdma_device("mlx5_0", "devices/pci0000:17/0000:1a:00.0", verbs=0)
    tree.write("class/infiniband_verbs/uverbs0/dev", "odd")
    (device,) = read_rdma_devices(tree.files)
    assert device.char_devices == ()
    assert any("uverbs0/dev" in warning for warning in tree.warnings)


def test_erdma_is_found_through_its_rdma_device(tree: Tree) -> None:
    home = tree.function("pci0000:00/0000:00:08.0", "0x00ff00", "0x1ded", "0x107f")
    tree.rdma_device("erdma_0", home, verbs=0, ndev="eth1")
    facts = NodeScanner(tree.root, tree.root).read()
    assert [device.pci_address for device in facts.rdma_devices] == ["0000:00:08.0"]
    assert [function.address for function in facts.pci_functions] == ["0000:00:08.0"]


def test_an_infiniband_device_tells_its_identity_and_its_place_in_the_fabric(tree: Tree) -> None:
    home = tree.rdma_device("ibp26s0", "devices/pci0000:17/0000:1a:00.0", verbs=0)
    tree.write_all(
        home,
        node_type="1: CA",
        sys_image_guid="0c42:a103:0021:1000",
        board_id="MT_0000000838",
        hca_type="MT4129",
    )
    port = f"{home}/ports/1"
    tree.write_all(port, phys_state="5: LinkUp", lid="0x1c")
    tree.write(f"{port}/gids/0", "fe80:0000:0000:0000:0c42:A103:0065:7b22")
    tree.write(f"{port}/gid_attrs/types/0", "IB/RoCE v1")
    tree.write(f"{port}/gid_attrs/ndevs/0", "eth9")  # an InfiniBand port has no interface, whatever is here
    for slot, pkey in {0: "0x7fff", 1: "0x0000", 2: "0xffff", 10: "0x8001"}.items():
        tree.write(f"{port}/pkeys/{slot}", pkey)
    (device,) = read_rdma_devices(tree.files)
    assert (device.node_type, device.system_image_guid) == ("CA", "0c42:a103:0021:1000")
    assert (device.board_id, device.firmware) == ("MT_0000000838", "28.39.1002")
    assert device.ports == (
        RdmaPort(
            1, "ACTIVE", "InfiniBand", "400 Gb/sec (4X NDR)", (), "LinkUp", 0x1C, "0c42:a103:0065:7b22",
            ("IB/RoCE v1",), ("0x7fff", "0xffff", "0x8001"),
        ),
    )  # fmt: skip
    assert tree.warnings == []


def test_a_roce_port_has_no_lid_and_the_types_of_all_its_gids(tree: Tree) -> None:
    home = tree.rdma_device("mlx5_0", "devices/pci0000:17/0000:1a:00.0", verbs=0, ndev="eth4")
    tree.write(f"{home}/ports/1/lid", "0x0")
    for slot, kind in {0: "IB/RoCE v1", 1: "RoCE v2", 7: "RoCE v2"}.items():
        tree.write(f"{home}/ports/1/gid_attrs/types/{slot}", kind)
    tree.write(f"{home}/ports/1/gid_attrs/ndevs/7", "vlan40")
    (device,) = read_rdma_devices(tree.files)
    assert device.ports[0].lid is None
    assert device.ports[0].gid_types == ("IB/RoCE v1", "RoCE v2")
    assert device.ports[0].netdevs == ("eth4", "vlan40")


@pytest.mark.parametrize(("slot", "is_found"), [(16, True), (17, False)])
def test_a_gid_table_is_read_up_to_a_gap_of_sixteen(tree: Tree, slot: int, is_found: bool) -> None:
    types = (
        f"{tree.rdma_device('mlx5_0', 'devices/pci0000:17/0000:1a:00.0', verbs=0)}/ports/1/gid_attrs/types"
    )
    for empty in range(256):
        tree.write(f"{types}/{empty}", "")
    tree.write(f"{types}/0", "IB/RoCE v1")
    tree.write(f"{types}/{slot}", "RoCE v2")
    (device,) = read_rdma_devices(tree.files)
    assert device.ports[0].gid_types == ("IB/RoCE v1", "RoCE v2")[: 1 + is_found]


def test_a_guid_that_nobody_has_given_is_no_fact(tree: Tree) -> None:
    home = tree.rdma_device("mlx5_9", "devices/pci0000:17/0000:1a:00.1", verbs=0)
    tree.write_all(home, node_guid="0000:0000:0000:0000", sys_image_guid="no guid")
    tree.write(f"{home}/ports/1/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0000")
    (device,) = read_rdma_devices(tree.files)
    assert (device.node_guid, device.system_image_guid, device.ports[0].guid) == ("", "", "")
    assert len(tree.warnings) == 1
    assert tree.warnings[0].endswith("sys_image_guid: not a GUID: 'no guid'")


def test_a_software_rdma_device_names_its_interface_as_its_parent(tree: Tree) -> None:
    tree.write("devices/virtual/infiniband/rxe0/ports/1/link_layer", "Ethernet")
    tree.write("devices/virtual/infiniband/rxe0/parent", "eth3")
    tree.link("class/infiniband/rxe0", "../../devices/virtual/infiniband/rxe0")
    (device,) = read_rdma_devices(tree.files)
    assert (device.pci_address, device.ports[0].netdevs) == ("", ("eth3",))


# --- GPUs ----------------------------------------------------------------------------------------------


def test_an_nvidia_gpu_has_model_uuid_and_the_nodes_that_cuda_needs(tree: Tree, proc: Tree) -> None:
    write_switch(tree)
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
    write_switch(tree)
    (gpu,) = read_gpus(tree.files, proc.files, tree.functions().values())
    assert (gpu.vendor, gpu.model, gpu.char_devices) == ("nvidia", "", ())
    assert proc.warnings == []


def test_an_amd_gpu_has_kfd_and_its_render_node(tree: Tree, proc: Tree) -> None:
    home = tree.function("pci0000:20/0000:21:00.0", "0x038000", "0x1002", "0x74a1")
    tree.write(f"{home}/drm/card1/dev", "226:1")
    tree.write(f"{home}/drm/renderD128/dev", "226:128")
    tree.write("class/kfd/kfd/dev", "510:0")
    tree.write_all(
        home, unique_id="56dec8ebf3d4e6a5", product_name="AMD Instinct MI300X OAM", serial_number="1"
    )
    (gpu,) = read_gpus(tree.files, proc.files, tree.functions().values())
    assert (gpu.vendor, gpu.model, gpu.uuid) == ("amd", "AMD Instinct MI300X OAM", "56dec8ebf3d4e6a5")
    assert gpu.char_devices == (CharDevice("/dev/kfd", 510, 0), CharDevice("/dev/dri/renderD128", 226, 128))


def test_a_dcu_has_both_nodes_that_it_shares_and_without_its_own_driver_none(tree: Tree, proc: Tree) -> None:
    home = tree.function("pci0000:20/0000:21:00.0", "0x0b4000", "0x1d94", "0x54b7")
    tree.write("class/kfd/kfd/dev", "510:0")
    tree.write("class/mkfd/mkfd/dev", "509:0")
    (gpu,) = read_gpus(tree.files, proc.files, tree.functions().values())
    assert (gpu.vendor, gpu.char_devices) == ("hygon", ())
    tree.write(f"{home}/drm/renderD128/dev", "226:128")
    (gpu,) = read_gpus(tree.files, proc.files, tree.functions().values())
    assert [node.path for node in gpu.char_devices] == ["/dev/kfd", "/dev/mkfd", "/dev/dri/renderD128"]


def test_an_accelerator_of_another_vendor_has_its_accel_node(tree: Tree, proc: Tree) -> None:
    home = tree.function("pci0000:20/0000:21:00.0", "0x120000", "0x1ed2", "0x0000")
    tree.write(f"{home}/accel/accel0/dev", "261:0")
    (gpu,) = read_gpus(tree.files, proc.files, tree.functions().values())
    assert (gpu.vendor, gpu.char_devices) == ("1ed2", (CharDevice("/dev/accel/accel0", 261, 0),))


def test_a_gaudi_has_its_control_node_and_its_model(tree: Tree, proc: Tree) -> None:
    home = tree.function("pci0000:20/0000:21:00.0", "0x120000", "0x1da3", "0x1020", device_type="GAUDI2")
    tree.write(f"{home}/accel/accel3/dev", "261:3")
    tree.write("class/accel/accel_controlD3/dev", "508:3")
    tree.write("class/accel/accel_controlD4/dev", "508:4")  # of another card
    (gpu,) = read_gpus(tree.files, proc.files, tree.functions().values())
    assert (gpu.vendor, gpu.model) == ("habana", "GAUDI2")
    assert gpu.char_devices == (
        CharDevice("/dev/accel/accel3", 261, 3),
        CharDevice("/dev/accel/accel_controlD3", 508, 3),
    )


def test_a_gpu_that_its_driver_has_not_started_has_no_uuid_yet(tree: Tree, proc: Tree) -> None:
    write_switch(tree)
    proc.write(
        "driver/nvidia/gpus/0000:1b:00.0/information", "GPU UUID: GPU-????????-????\nDevice Minor: \u00b2"
    )
    (gpu,) = read_gpus(tree.files, proc.files, tree.functions().values())
    assert (gpu.uuid, gpu.char_devices) == ("", ())


@pytest.mark.parametrize(
    ("class_code", "vendor", "offered"),
    [
        (0x030000, 0x1A03, False),  # ASPEED board VGA
        (0x030000, 0x102B, False),  # Matrox board VGA
        (0x030000, 0x10DE, True),
        (0x030000, 0x1002, True),
        (0x030200, 0x10DE, True),
        (0x038000, 0x1234, True),
        (0x030000, 0x1D0F, False),  # the VGA of an EC2 machine
        (0x120000, 0x1DA3, True),
        (0x020000, 0x10DE, False),
        (0x030100, 0x10DE, False),
    ],
)
def test_which_functions_are_gpus(class_code: int, vendor: int, offered: bool) -> None:
    assert is_gpu(PciFunction("0000:00:00.0", class_code, vendor, 1)) is offered


@pytest.mark.parametrize(
    ("address", "class_code", "vendor", "offered"),
    [
        ("0000:00:02.0", 0x030000, 0x8086, False),
        ("0000:00:02.1", 0x030000, 0x8086, False),  # a virtual function of it
        ("0000:00:02.0", 0x038000, 0x8086, False),  # without a screen
        ("0000:00:0b.0", 0x120000, 0x8086, False),  # the NPU
        ("0000:03:00.0", 0x030000, 0x8086, True),  # a card
        ("0000:00:02.0", 0x030200, 0x10DE, True),  # passed through to a virtual machine
    ],
)
def test_what_is_in_intels_processors_is_no_gpu(
    address: str, class_code: int, vendor: int, offered: bool
) -> None:
    assert is_gpu(PciFunction(address, class_code, vendor, 1)) is offered


@pytest.mark.parametrize(
    ("class_code", "beside", "offered"),
    [
        ("0x030000", "0x1022", False),  # the processor's security processor, or its USB
        ("0x038000", "0x1022", False),
        ("0x030000", "0x1002", True),  # sound and USB on a card
        ("0x120000", "0x1022", True),  # MI300A
    ],
)
def test_graphics_in_amds_processors_are_told_by_what_else_is_in_their_slot(
    tree: Tree, proc: Tree, class_code: str, beside: str, offered: bool
) -> None:
    tree.function("pci0000:00/0000:c5:00.0", class_code, "0x1002", "0x164e")
    tree.function("pci0000:00/0000:c5:00.2", "0x108000", beside, "0x1649")
    assert bool(read_gpus(tree.files, proc.files, tree.functions().values())) is offered
    assert tree.warnings == []


# --- the machine ---------------------------------------------------------------------------------------


def test_numa_nodes_have_their_cpus_distances_and_socket(tree: Tree) -> None:
    nodes = "devices/system/node"
    tree.write_all(f"{nodes}/node0", cpulist="0-55,112-167", distance="10 21 80")
    tree.write_all(f"{nodes}/node1", cpulist="56-111,168-223", distance="21 10 80")
    tree.write_all(f"{nodes}/node10", cpulist="", distance="80 80 10")  # memory of a GPU: no CPUs
    tree.write("devices/system/cpu/cpu0/topology/physical_package_id", "0")
    tree.write("devices/system/cpu/cpu56/topology/physical_package_id", "-1")
    tree.write(f"{nodes}/online", "0-1,10")
    assert read_numa_nodes(tree.files) == [
        NumaNode(0, "0-55,112-167", (10, 21, 80), 0),
        NumaNode(1, "56-111,168-223", (21, 10, 80), None),
        NumaNode(10, "", (80, 80, 10), None),
    ]
    assert tree.warnings == []


def test_distances_that_are_no_numbers_are_a_warning(tree: Tree) -> None:
    tree.write("devices/system/node/node0/distance", "10 near")
    assert read_numa_nodes(tree.files) == [NumaNode(0)]
    assert tree.warnings == [
        f"{tree.root}/devices/system/node/node0/distance: not a list of numbers: '10 near'"
    ]


def test_the_host_tells_its_model_but_never_a_serial_number(tree: Tree) -> None:
    dmi = "class/dmi/id"
    tree.write_all(
        dmi, sys_vendor="NVIDIA", product_name="DGXH100", product_serial="S3CRET", product_uuid="S3CRET"
    )
    host, kernel = read_host(tree.files), os.uname()
    assert host.product == "NVIDIA DGXH100"
    assert (host.name, host.kernel, host.architecture) == (kernel.nodename, kernel.release, kernel.machine)
    assert "S3CRET" not in repr(host)


def test_an_nvidia_gpu_with_mig_instances_is_in_parts(tree: Tree, proc: Tree) -> None:
    write_switch(tree)
    proc.write("driver/nvidia/gpus/0000:1b:00.0/information", "Device Minor: 3")
    proc.write("driver/nvidia/capabilities/mig/config", "DeviceFileMinor: 1")
    proc.write("driver/nvidia/capabilities/gpu2/mig/gi1/access", "DeviceFileMinor: 2")
    (gpu,) = read_gpus(tree.files, proc.files, tree.functions().values())
    assert gpu.parts == "", "the instances are another GPU's"
    proc.write("driver/nvidia/capabilities/gpu3/mig/gi0/ci0/access", "DeviceFileMinor: 3")
    (gpu,) = read_gpus(tree.files, proc.files, tree.functions().values())
    assert gpu.parts == "MIG"
    assert proc.warnings == []


@pytest.mark.parametrize(("mode", "parts"), [("SPX", ""), ("CPX", "CPX"), ("UNKNOWN", ""), ("", "")])
def test_an_amd_gpu_in_a_partitioned_mode_is_in_parts(tree: Tree, proc: Tree, mode: str, parts: str) -> None:
    home = tree.function("pci0000:20/0000:21:00.0", "0x120000", "0x1002", "0x74a1")
    tree.write(f"{home}/current_compute_partition", mode)
    (gpu,) = read_gpus(tree.files, proc.files, tree.functions().values())
    assert gpu.parts == parts
