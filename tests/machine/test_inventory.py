"""What is published of the machine equals what it is made of and what the kernel and its tools show."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from dranet.model.device import Device, DeviceKind
from dranet.model.facts import NodeFacts, distance
from testbed.machine.hardware import MACHINE, Function
from tests.machine import kernel_view

pytestmark = pytest.mark.machine

FUNCTIONS = tuple(MACHINE.functions())
NICS = tuple(function for function in FUNCTIONS if function.model.is_nic)
GPUS = tuple(function for function in FUNCTIONS if function.model.is_gpu)
BARE = {MACHINE.function(f"{r.card}/{r.vf}").address for r in MACHINE.rdma if r.bare}
"""Functions whose driver was taken away, so that their RDMA device has no interface."""


def by_name(function: Function) -> str:
    return function.name


def device_name(function: Function) -> str:
    kind = "gpu" if function.model.is_gpu else "pci"
    return f"{kind}-{function.address.replace(':', '-').replace('.', '-')}"


def attribute(device: Device, name: str) -> object:
    return device.attributes.get(name)


# --- the stage itself -----------------------------------------------------------------------------------


@pytest.mark.parametrize("function", FUNCTIONS, ids=by_name)
def test_the_machine_is_made_as_described(function: Function) -> None:
    read = kernel_view.attribute
    address = function.address
    assert kernel_view.home(address) == (function.root, *function.path)
    assert int(read(address, "class"), 16) == function.model.class_code
    assert int(read(address, "vendor"), 16) == function.model.vendor_id
    assert int(read(address, "device"), 16) == function.model.device_id
    assert read(address, "numa_node") == str(-1 if function.numa_node is None else function.numa_node)
    assert kernel_view.link_name(address, "driver") == ("" if address in BARE else function.model.driver)
    assert kernel_view.link_name(address, "physfn") == function.physical_function
    assert (read(address, "sriov_totalvfs") or "0") == str(function.total_vfs)
    assert (read(address, "sriov_numvfs") or "0") == str(function.num_vfs)
    if function.vf_index is not None:
        virtfn = f"virtfn{function.vf_index}"
        assert kernel_view.link_name(function.physical_function, virtfn) == address


# --- PCI functions --------------------------------------------------------------------------------------


def test_every_network_and_display_function_is_found_and_no_other(facts: NodeFacts) -> None:
    shown = {a for a, record in kernel_view.lspci().items() if _class(record)[:2] in ("02", "03")}
    assert {f.address for f in facts.pci_functions if f.base_class in (0x02, 0x03)} == shown
    assert shown == {function.address for function in FUNCTIONS}
    assert facts.warnings == ()


def _class(record: Mapping[str, str]) -> str:
    return record["Class"].rpartition("[")[2].rstrip("]")


@pytest.mark.parametrize("function", FUNCTIONS, ids=by_name)
def test_a_pci_functions_facts_equal_sysfs(facts: NodeFacts, function: Function) -> None:
    (found,) = [f for f in facts.pci_functions if f.address == function.address]
    read = kernel_view.attribute
    address = function.address
    assert (found.root, *found.path) == kernel_view.home(address)
    assert found.class_code == int(read(address, "class"), 16)
    assert (found.vendor_id, found.device_id) == (
        int(read(address, "vendor"), 16),
        int(read(address, "device"), 16),
    )
    assert found.numa_node == function.numa_node
    assert found.driver == kernel_view.link_name(address, "driver")
    assert found.physical_function == kernel_view.link_name(address, "physfn")
    assert found.virtual_function_index == function.vf_index
    assert found.sriov_total_vfs == int(read(address, "sriov_totalvfs") or 0)
    assert found.sriov_num_vfs == int(read(address, "sriov_numvfs") or 0)
    assert found.link_speed in (read(address, "current_link_speed"), "")


@pytest.mark.parametrize("function", FUNCTIONS, ids=by_name)
def test_lspci_names_the_same_driver_and_numa_node(facts: NodeFacts, function: Function) -> None:
    (found,) = [f for f in facts.pci_functions if f.address == function.address]
    record = kernel_view.lspci()[function.address]
    assert record.get("Driver", "") == found.driver
    assert record.get("NUMANode") == (None if found.numa_node is None else str(found.numa_node))


def test_the_names_of_vendor_and_device_are_those_of_pci_ids(facts: NodeFacts) -> None:
    told = {f.address: (f.vendor_name, f.device_name) for f in facts.pci_functions}
    shown = kernel_view.lspci()
    for function in FUNCTIONS:
        record = shown[function.address]
        expected = tuple(record[field].rpartition(" [")[0] for field in ("Vendor", "Device"))
        # lspci writes "Vendor" and "Device" for what the database does not know.
        assert told[function.address] == tuple("" if x in ("Vendor", "Device") else x for x in expected)


def test_numa_nodes_and_their_distances_equal_sysfs(facts: NodeFacts) -> None:
    for node, expected in enumerate(MACHINE.numa_distances):
        folder = Path(f"/sys/devices/system/node/node{node}")
        assert facts.numa_nodes[node].node == node
        assert facts.numa_nodes[node].cpus == (folder / "cpulist").read_text().strip()
        assert facts.numa_nodes[node].distances == expected
        assert (folder / "distance").read_text().split() == [str(x) for x in expected]
    assert len(facts.numa_nodes) == len(MACHINE.numa_distances)


def test_the_kernel_release_is_that_of_uname(facts: NodeFacts) -> None:
    assert (facts.host.kernel, facts.host.architecture) == (os.uname().release, os.uname().machine)


# --- published devices ----------------------------------------------------------------------------------


def test_the_devices_are_named_after_the_functions_of_the_machine(devices: dict[str, Device]) -> None:
    assert {n for n, d in devices.items() if d.pci_address} == {device_name(f) for f in FUNCTIONS}
    assert [n for n, d in devices.items() if d.kind is DeviceKind.GPU] == [device_name(f) for f in GPUS]


@pytest.mark.parametrize("function", FUNCTIONS, ids=by_name)
def test_a_device_is_published_where_it_is(devices: dict[str, Device], function: Function) -> None:
    device = devices[device_name(function)]
    assert (device.pcie_root, device.pci_path) == (function.root, function.path)
    assert device.numa_node == function.numa_node
    assert attribute(device, "resource.kubernetes.io/pcieRoot") == kernel_view.home(function.address)[0]
    assert attribute(device, "resource.kubernetes.io/pciBusID") == function.address
    assert attribute(device, "resource.kubernetes.io/numaNode") == function.numa_node
    assert attribute(device, "dra.net/numaNode") == function.numa_node


def test_a_card_without_proximity_has_no_numa_attribute_at_all(devices: dict[str, Device]) -> None:
    without = [f for f in FUNCTIONS if f.numa_node is None]
    assert {f.name for f in without} == {"chipset", "virtio1"}
    for function in without:
        assert kernel_view.attribute(function.address, "numa_node") == "-1"
        assert not [x for x in devices[device_name(function)].attributes if x.endswith("/numaNode")]


@pytest.mark.parametrize("function", [f for f in NICS if f.address not in BARE], ids=by_name)
def test_a_nic_is_published_with_its_interface(devices: dict[str, Device], function: Function) -> None:
    device = devices[device_name(function)]
    ifname = kernel_view.ifname(function.address)
    (shown,) = kernel_view.ip("link", "show", "dev", ifname)
    driver = kernel_view.ethtool_driver(ifname)
    assert device.kind is DeviceKind.NIC
    assert device.ifname == attribute(device, "dra.net/ifName") == ifname != ""
    assert attribute(device, "dra.net/mac") == shown["address"]
    assert attribute(device, "dra.net/mtu") == shown["mtu"]
    assert attribute(device, "dra.net/state") == shown["operstate"].lower()
    assert attribute(device, "dra.net/driver") == driver["driver"]
    assert driver["bus-info"] == function.address
    if function.mac:
        assert shown["address"] == function.mac


@pytest.mark.parametrize("function", [f for f in NICS if f.total_vfs], ids=by_name)
def test_a_physical_function_says_how_many_virtual_ones_it_has(
    devices: dict[str, Device], function: Function
) -> None:
    device = devices[device_name(function)]
    assert attribute(device, "dra.net/sriov") is True
    assert attribute(device, "dra.net/sriovVfs") == int(
        kernel_view.attribute(function.address, "sriov_numvfs")
    )
    assert device.physical_function == ""


@pytest.mark.parametrize("function", [f for f in NICS if f.vf_index is not None], ids=by_name)
def test_a_virtual_function_names_its_physical_one_and_its_index(
    devices: dict[str, Device], function: Function
) -> None:
    device = devices[device_name(function)]
    assert device.physical_function == kernel_view.link_name(function.address, "physfn")
    assert attribute(device, "dra.net/isSriovVf") is True
    assert attribute(device, "dra.net/sriovPfAddress") == function.physical_function
    assert attribute(device, "dra.net/sriovVfIndex") == function.vf_index


def test_distances_follow_switch_root_and_numa_node(devices: dict[str, Device]) -> None:
    def between(nic: str, gpu: str) -> str:
        far = distance(*(devices[device_name(MACHINE.function(name))] for name in (nic, gpu)))
        assert far is not None
        return far.name

    assert between("switched", "gpu1") == "PIX"
    assert between("igb0", "gpu0") == "PHB"
    assert between("igb0", "gpu2") == "SYS"
    assert between("virtio0", "gpu2") == "PHB"


def test_the_nodes_of_a_gpu_are_the_ones_in_dev(devices: dict[str, Device]) -> None:
    device = devices[device_name(MACHINE.function("gpu1"))]
    folder = kernel_view.SYS_PCI / device.pci_address / "drm"
    expected = sorted(entry.name for entry in folder.iterdir() if entry.name.startswith("renderD"))
    assert [Path(node.path).name for node in device.char_devices] == expected != []
    for node in device.char_devices:
        number = Path(node.path).stat().st_rdev
        assert (node.major, node.minor) == (os.major(number), os.minor(number))


# --- RDMA -----------------------------------------------------------------------------------------------


def test_every_rdma_device_is_found_with_what_the_rdma_tool_says(facts: NodeFacts) -> None:
    told = {device.name: device for device in facts.rdma_devices}
    shown = {entry["ifname"]: entry for entry in kernel_view.rdma("dev", "show")}
    assert told.keys() == shown.keys() == {rdma.name for rdma in MACHINE.rdma}
    for name, entry in shown.items():
        assert told[name].node_guid == entry["node_guid"]
        assert told[name].system_image_guid == entry["sys_image_guid"]
        assert told[name].node_type.upper() == entry["node_type"].upper()
        assert told[name].firmware == entry.get("fw", "")


def test_every_rdma_port_is_what_the_rdma_tool_says(facts: NodeFacts) -> None:
    told = {device.name: device.ports for device in facts.rdma_devices}
    for entry in kernel_view.rdma("link", "show"):
        (port,) = told[entry["ifname"]]
        assert port.number == entry["port"]
        assert port.state == entry["state"]
        assert port.phys_state.upper() == entry["physical_state"].replace("_", "").upper()
        assert port.netdevs == ((entry["netdev"],) if "netdev" in entry else ())
        assert port.lid == entry.get("lid")


@pytest.mark.parametrize("stand_in", MACHINE.rdma, ids=lambda rdma: rdma.name)
def test_an_rdma_device_belongs_to_the_function_and_link_it_was_made_on(
    facts: NodeFacts, devices: dict[str, Device], stand_in: object
) -> None:
    rdma = next(r for r in MACHINE.rdma if r is stand_in)
    function = MACHINE.function(rdma.card if rdma.vf is None else f"{rdma.card}/{rdma.vf}")
    device = devices[device_name(function)]
    (found,) = [r for r in facts.rdma_devices if r.name == rdma.name]
    folder = Path("/sys/class/infiniband", rdma.name, "ports/1")
    assert found.pci_address == ("" if rdma.soft else function.address)
    assert kernel_view.rdma_names(function.address) == ([] if rdma.soft else [rdma.name])
    assert device.rdma_device == rdma.name == attribute(device, "dra.net/rdmaDevice")
    assert attribute(device, "dra.net/rdma") is True
    assert attribute(device, "dra.net/rdmaLinkLayer") == (folder / "link_layer").read_text().strip()
    assert attribute(device, "dra.net/rdmaLinkLayer") == rdma.link_layer
    assert (folder / "state").read_text().strip().endswith(f": {attribute(device, 'dra.net/rdmaPortState')}")
    assert device.kind is (DeviceKind.RDMA if rdma.bare else DeviceKind.NIC)
    verbs = [
        path.name for path in Path("/sys/class/infiniband_verbs").glob("uverbs*") if _ibdev(path) == rdma.name
    ]
    assert [node.path for node in device.char_devices if "uverbs" in node.path] == [
        f"/dev/infiniband/{name}" for name in verbs
    ]


def _ibdev(folder: Path) -> str:
    return (folder / "ibdev").read_text().strip()


def test_no_other_device_claims_rdma(devices: dict[str, Device]) -> None:
    claiming = {device.rdma_device for device in devices.values() if device.rdma_device}
    assert claiming == {rdma.name for rdma in MACHINE.rdma}
    assert len([device for device in devices.values() if device.rdma_device]) == len(claiming)


def test_the_namespace_mode_of_rdma_is_read(facts: NodeFacts) -> None:
    # Not as JSON: newer tools print text all the same.
    assert kernel_view.run("rdma", "system", "show").startswith("netns exclusive ")
    assert facts.rdma_netns_exclusive is True
