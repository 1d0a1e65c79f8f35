"""Facts become devices: merged by PCI function, named for good, and blind to what a pod has."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.inventory.build import build_devices
from dranet.inventory.offer import take_inventory
from dranet.inventory.policy import DEFAULT_POLICY, Policy
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import (
    Address,
    CharDevice,
    Gpu,
    Link,
    NodeFacts,
    NumaNode,
    PciFunction,
    RdmaDevice,
    RdmaPort,
)

NIC_ADDRESS = "0000:1a:00.0"
UVERBS = CharDevice("infiniband/uverbs0", 231, 192)


def pci(address: str = NIC_ADDRESS, **changes: Any) -> PciFunction:
    function = PciFunction(
        address=address,
        class_code=0x020000,
        vendor_id=0x15B3,
        device_id=0x1021,
        driver="mlx5_core",
        numa_node=0,
        root="pci0000:17",
        path=("0000:17:01.0", address),
    )
    return replace(function, **changes)


def link(ifname: str = "eth1", ifindex: int = 5, address: str = NIC_ADDRESS, **changes: Any) -> Link:
    made = Link(
        ifindex=ifindex,
        ifname=ifname,
        mac="02:00:00:00:00:01",
        mtu=9000,
        flags=1,
        operstate="up",
        parent_bus="pci" if address else "",
        parent_device=address,
        pci_address=address,
    )
    return replace(made, **changes)


def rdma(
    name: str = "mlx5_0", address: str = NIC_ADDRESS, layer: str = "Ethernet", **changes: Any
) -> RdmaDevice:
    port = RdmaPort(1, state="ACTIVE", link_layer=layer, rate="400 Gb/sec (4X NDR)")
    return replace(RdmaDevice(name, address, ports=(port,), char_devices=(UVERBS,)), **changes)


def build(
    held: dict[str, Device] | None = None, policy: Policy = DEFAULT_POLICY, **facts: Any
) -> dict[str, Device]:
    return {d.name: d for d in build_devices(replace(NodeFacts(), **facts), held or {}, policy)}


def test_a_pci_function_its_link_and_its_rdma_device_make_one_device() -> None:
    devices = build(pci_functions=(pci(),), links=(link(),), rdma_devices=(rdma(),))

    assert list(devices) == ["pci-0000-1a-00-0"]
    device = devices["pci-0000-1a-00-0"]
    assert (device.kind, device.ifname, device.rdma_device) == (DeviceKind.NIC, "eth1", "mlx5_0")
    assert (device.pcie_root, device.numa_node, device.char_devices) == ("pci0000:17", 0, (UVERBS,))
    assert device.attributes["dra.net/ifName"] == "eth1"
    assert device.attributes["dra.net/rdma"] is True
    assert device.attributes["dra.net/rdmaRateGbps"] == 400
    assert device.attributes["resource.kubernetes.io/pcieRoot"] == "pci0000:17"
    assert device.attributes["resource.kubernetes.io/pciBusID"] == NIC_ADDRESS


@pytest.mark.parametrize("driver", ["", "vfio-pci", "uio_pci_generic", "igb_uio", "pci-stub"])
def test_a_function_that_no_kernel_network_driver_runs_is_a_device_that_stays_home(driver: str) -> None:
    facts = NodeFacts(pci_functions=(pci(driver=driver),))
    (decision,) = take_inventory(facts, {})
    assert (decision.device.name, decision.published) == ("pci-0000-1a-00-0", False)
    assert decision.reason.startswith(f"is bound to {driver}" if driver else "has no driver")


def test_a_function_of_another_class_is_no_device() -> None:
    assert build(pci_functions=(pci(class_code=0x010802, driver="nvme"),)) == {}


def test_a_virtio_link_belongs_to_its_pci_function() -> None:
    nic = link(parent_bus="virtio", parent_device="virtio3")

    assert build(pci_functions=(pci(driver="virtio-pci"),), links=(nic,))["pci-0000-1a-00-0"].ifname == "eth1"


def test_a_usb_adapter_is_a_device_of_its_own_and_not_its_host_controller() -> None:
    controller = pci("0000:00:14.0", class_code=0x0C0330, driver="xhci_hcd")
    adapters = [
        link(f"usb{i}", 10 + i, "0000:00:14.0", parent_bus="usb", parent_device=f"1-{i}:1.0") for i in (1, 2)
    ]

    assert list(build(pci_functions=(controller,), links=tuple(adapters))) == ["usb1", "usb2"]


def test_of_several_links_on_a_function_the_functions_own_oldest_one_stands_for_it() -> None:
    representor = link("eth9", 4, parent_device="mlx5_core.sf.2")
    older, newer = link("enp26s0f0np0", 6), link("enp26s0f0npf0vf0", 7)

    for links in ((representor, older, newer), (newer, older, representor)):
        assert build(pci_functions=(pci(),), links=links)["pci-0000-1a-00-0"].ifname == "enp26s0f0np0"


def test_of_a_dual_port_card_the_first_port_stands_for_the_function() -> None:
    ports = (RdmaPort(1, netdevs=("ens1",)), RdmaPort(2, netdevs=("ens1d1",)))
    devices = build(
        pci_functions=(pci(driver="mlx4_core"),),
        links=(link("ens1d1", 5), link("ens1", 4)),
        rdma_devices=(RdmaDevice("mlx4_0", NIC_ADDRESS, ports=ports),),
    )

    assert [(d.name, d.ifname, d.rdma_device) for d in devices.values()] == [
        ("pci-0000-1a-00-0", "ens1", "mlx4_0")
    ]


@pytest.mark.parametrize(
    "other",
    [
        link("eth7", 3, phys_port_name="pf0vf3", phys_switch_id="0c42"),
        link("eth7", 3, phys_port_name="c1pf0sf88", phys_switch_id="0c42"),
        link("eth7", 3, parent_bus="auxiliary", parent_device="mlx5_core.sf.2"),
    ],
)
def test_representors_and_sub_functions_never_stand_for_the_function_nor_are_devices(other: Link) -> None:
    uplink = link("enp26s0f0np0", 6, phys_port_name="p0", phys_switch_id="0c42")

    assert build(pci_functions=(pci(),), links=(other, uplink))["pci-0000-1a-00-0"].ifname == "enp26s0f0np0"
    alone = build(pci_functions=(pci(),), links=(other,))
    assert [(d.name, d.ifname, d.kind) for d in alone.values()] == [("pci-0000-1a-00-0", "", DeviceKind.NIC)]


def test_a_link_on_the_auxiliary_bus_of_its_function_is_the_functions_own() -> None:
    nic = link("eth1", 5, parent_bus="auxiliary", parent_device="ionic.eth.0")

    assert build(pci_functions=(pci(),), links=(nic,))["pci-0000-1a-00-0"].ifname == "eth1"


@pytest.mark.parametrize(
    ("bus", "parent"),
    [("vmbus", "f8615163-df3e-46c5-913f-f2d2f965ed0e"), ("virtio", "virtio0"), ("auxiliary", "mana.eth.0")],
)
def test_a_nic_on_a_bus_without_pci_is_hardware_and_named_by_its_link(bus: str, parent: str) -> None:
    device = build(links=(link("eth1", 5, "", parent_bus=bus, parent_device=parent),))["eth1"]

    assert device.kind is DeviceKind.NIC
    assert device.attributes["dra.net/virtual"] is False
    assert device.attributes["dra.net/type"] == "device"
    assert device.attributes["dra.net/sriov"] is False
    assert "dra.net/pciAddress" not in device.attributes


def test_an_ipoib_interface_is_offered_with_its_adapter_or_stays_by_the_operators_choice() -> None:
    facts: dict[str, Any] = {
        "pci_functions": (pci(class_code=0x020700),),
        "links": (
            link("ib0", 8, kind="ipoib", arp_type=32),
            link("ib0.8001", 9, kind="ipoib", arp_type=32, lower=8),
            link("ib9", 10, "", kind="ipoib", arp_type=32),
        ),
        "rdma_devices": (rdma(layer="InfiniBand"),),
    }
    moved, stays = build(**facts), build(policy=Policy(move_ib_interfaces=False), **facts)

    assert [(d.name, d.kind, d.ifname) for d in moved.values()] == [
        ("pci-0000-1a-00-0", DeviceKind.NIC, "ib0"),
        ("ib9", DeviceKind.NIC, "ib9"),
    ]
    assert [(d.name, d.kind, d.ifname) for d in stays.values()] == [("pci-0000-1a-00-0", DeviceKind.RDMA, "")]
    assert "dra.net/ifName" not in stays["pci-0000-1a-00-0"].attributes


def test_without_ipoib_interfaces_a_roce_nic_is_still_no_rdma_only_device() -> None:
    facts: dict[str, Any] = {"pci_functions": (pci(),), "rdma_devices": (rdma(),)}
    policy = Policy(move_ib_interfaces=False)

    assert build(policy=policy, **facts, links=(link(),))["pci-0000-1a-00-0"].ifname == "eth1"
    assert build(policy=policy, **facts)["pci-0000-1a-00-0"].kind is DeviceKind.NIC


def test_a_child_interface_does_not_stand_for_the_function() -> None:
    child, parent = link("ib0.8001", 3, lower=8, kind="ipoib"), link("ib0", 8, kind="ipoib")

    assert build(pci_functions=(pci(),), links=(child, parent))["pci-0000-1a-00-0"].ifname == "ib0"


def test_an_infiniband_adapter_without_link_is_rdma_only() -> None:
    device = build(pci_functions=(pci(class_code=0x020700),), rdma_devices=(rdma(layer="InfiniBand"),))

    assert device["pci-0000-1a-00-0"].kind is DeviceKind.RDMA
    assert "dra.net/ifName" not in device["pci-0000-1a-00-0"].attributes


def test_rdma_on_a_function_of_class_00ff_is_rdma_only_even_over_ethernet() -> None:
    function = pci(class_code=0x00FF00, driver="erdma")

    assert (
        build(pci_functions=(function,), rdma_devices=(rdma(),))["pci-0000-1a-00-0"].kind is DeviceKind.RDMA
    )


def test_a_roce_nic_whose_link_is_out_of_sight_is_not_taken_for_rdma_only() -> None:
    device = build(pci_functions=(pci(),), rdma_devices=(rdma(),))["pci-0000-1a-00-0"]

    assert (device.kind, device.ifname) == (DeviceKind.NIC, "")


def test_a_software_rdma_device_joins_its_interface() -> None:
    port = RdmaPort(1, link_layer="Ethernet", netdevs=("dummy0",))
    devices = build(
        links=(link("dummy0", 9, "", kind="dummy", virtual=True),),
        rdma_devices=(RdmaDevice("rxe0", ports=(port,)),),
    )

    assert list(devices) == ["dummy0"]
    assert devices["dummy0"].rdma_device == "rxe0"


def test_software_rdma_on_a_pci_nic_joins_it_and_is_no_device_of_its_own() -> None:
    rxe = RdmaDevice("rxe0", ports=(RdmaPort(1, link_layer="Ethernet", netdevs=("eth1",)),))
    devices = build(pci_functions=(pci(driver="e1000e"),), links=(link(),), rdma_devices=(rxe,))

    assert {name: device.rdma_device for name, device in devices.items()} == {"pci-0000-1a-00-0": "rxe0"}


def test_an_adapters_own_rdma_device_goes_before_software_rdma_on_it() -> None:
    rxe = RdmaDevice("a-rxe0", ports=(RdmaPort(1, netdevs=("eth1",)),))
    devices = build(pci_functions=(pci(),), links=(link(),), rdma_devices=(rxe, rdma()))

    assert {name: device.rdma_device for name, device in devices.items()} == {"pci-0000-1a-00-0": "mlx5_0"}


def test_an_rdma_device_of_its_own_is_one_whose_interface_is_not_here() -> None:
    rxe = RdmaDevice("rxe0", ports=(RdmaPort(1, link_layer="InfiniBand", netdevs=("elsewhere",)),))

    assert list(build(links=(link("dummy0", 9, "", kind="dummy"),), rdma_devices=(rxe,))) == [
        "dummy0",
        "rdma-rxe0",
    ]


def test_a_held_device_keeps_everything_but_its_interface_name() -> None:
    facts: dict[str, Any] = {"pci_functions": (pci(),), "rdma_devices": (rdma(),)}
    recorded = build(**facts, links=(link(),))["pci-0000-1a-00-0"]

    # In the pod: the link is gone, function and RDMA device are still seen (shared RDMA mode).
    assert build({recorded.name: recorded}, **facts) == {recorded.name: replace(recorded, ifname="")}


def test_a_held_device_that_has_not_moved_yet_is_not_offered_a_second_time() -> None:
    facts: dict[str, Any] = {"pci_functions": (pci(),), "rdma_devices": (rdma(),), "links": (link(),)}
    recorded = build(**facts)["pci-0000-1a-00-0"]

    assert build({recorded.name: recorded}, **facts) == {recorded.name: replace(recorded, ifname="")}


@pytest.mark.parametrize("taken", ["pci-0000-1a-00-0", "gpu-0000-1a-00-0"])
def test_of_an_accelerator_with_a_network_port_a_pod_may_have_one_and_another_the_other(taken: str) -> None:
    """As Gaudi: one function, of class 12, with links of its own."""
    accelerator = pci(class_code=0x120000, driver="habanalabs")
    gpus = (Gpu(NIC_ADDRESS, "intel"),)
    free = build(pci_functions=(accelerator,), links=(link(),), gpus=gpus)

    assert list(free) == ["pci-0000-1a-00-0", "gpu-0000-1a-00-0"]
    links = (link(),) if free[taken].kind is DeviceKind.GPU else ()
    after = build({taken: free[taken]}, pci_functions=(accelerator,), links=links, gpus=gpus)
    assert after == free | {taken: replace(free[taken], ifname="")}


def test_the_software_rdma_device_of_a_held_interface_does_not_appear_alone() -> None:
    port = RdmaPort(1, link_layer="Ethernet", netdevs=("dummy0",))
    recorded = build(
        links=(link("dummy0", 9, "", kind="dummy"),), rdma_devices=(RdmaDevice("rxe0", ports=(port,)),)
    )

    alone = RdmaDevice("rxe0", ports=(RdmaPort(1, link_layer="Ethernet"),))
    assert list(build(recorded, rdma_devices=(alone,))) == ["dummy0"]


def test_a_held_device_stays_in_sight_even_when_its_function_is_gone() -> None:
    recorded = build(pci_functions=(pci(),), links=(link(),))

    assert build(recorded) == {"pci-0000-1a-00-0": replace(recorded["pci-0000-1a-00-0"], ifname="")}


def test_a_held_device_keeps_its_attributes_whatever_the_facts_say_now() -> None:
    recorded = build(
        pci_functions=(pci(),), links=(link(),), gpus=(Gpu("0000:01:00.0", "nvidia"),), rdma_devices=(rdma(),)
    )
    held = {"pci-0000-1a-00-0": recorded["pci-0000-1a-00-0"]}
    changed = build(held, pci_functions=(pci(numa_node=1, driver="other"),), rdma_devices=(rdma(),))

    assert changed["pci-0000-1a-00-0"].attributes == held["pci-0000-1a-00-0"].attributes


def test_nics_come_before_gpus_whatever_their_addresses() -> None:
    gpu = pci("0000:01:00.0", class_code=0x030200, driver="nvidia")
    devices = build_devices(
        NodeFacts(
            pci_functions=(gpu, pci()),
            links=(link(), link("dummy0", 9, "", kind="dummy", virtual=True)),
            gpus=(Gpu("0000:01:00.0", "nvidia", model="H100", uuid="GPU-1"),),
        ),
        {},
    )

    assert [d.name for d in devices] == ["pci-0000-1a-00-0", "dummy0", "gpu-0000-01-00-0"]
    assert devices[2].attributes["dra.net/rdma"] is False
    assert devices[2].attributes["dra.net/gpuModel"] == "H100"
    assert devices[2].attributes["resource.kubernetes.io/pcieRoot"] == "pci0000:17"


def test_every_device_says_whether_it_has_rdma_and_is_virtual() -> None:
    devices = build(
        pci_functions=(pci(), pci("0000:1b:00.0", class_code=0x030000)),
        links=(link(), link("dummy0", 9, "", kind="dummy", virtual=True)),
        rdma_devices=(rdma("ib9", "0000:2a:00.0", "InfiniBand"),),
        gpus=(Gpu("0000:1b:00.0", "amd"),),
    )

    assert len(devices) == 4
    assert {name: d.attributes["dra.net/rdma"] for name, d in devices.items()} == {
        "pci-0000-1a-00-0": False,
        "pci-0000-2a-00-0": True,
        "dummy0": False,
        "gpu-0000-1b-00-0": False,
    }
    assert [name for name, d in devices.items() if d.attributes["dra.net/virtual"]] == ["dummy0"]


NEAR_GPU = pci("0000:1b:00.0", class_code=0x030200, driver="nvidia", path=("0000:17:01.0", "0000:1b:00.0"))
FAR_GPU = pci(
    "0000:9b:00.0",
    class_code=0x030200,
    driver="nvidia",
    numa_node=1,
    root="pci0000:97",
    path=("0000:97:01.0", "0000:9b:00.0"),
)


FAR = Gpu("0000:9b:00.0", "nvidia")


def test_a_nic_names_its_nearest_gpus_and_a_gpu_does_not() -> None:
    devices = build(
        pci_functions=(pci(), NEAR_GPU, FAR_GPU),
        links=(link(),),
        gpus=(Gpu("0000:9b:00.0", "nvidia"), Gpu("0000:1b:00.0", "nvidia")),
    )
    nic, gpu = devices["pci-0000-1a-00-0"].attributes, devices["gpu-0000-1b-00-0"].attributes

    assert (nic["dra.net/nearestGpus"], nic["dra.net/nearestGpuDistance"]) == ("0000:1b:00.0", "PIX")
    assert "dra.net/nearestGpus" not in gpu


def test_a_gpu_that_a_pod_has_is_still_the_nearest() -> None:
    facts: dict[str, Any] = {
        "pci_functions": (pci(), NEAR_GPU),
        "links": (link(),),
        "gpus": (Gpu("0000:1b:00.0", "nvidia"),),
    }
    held = {"gpu-0000-1b-00-0": build(**facts)["gpu-0000-1b-00-0"]}

    assert build(held, **facts)["pci-0000-1a-00-0"].attributes["dra.net/nearestGpus"] == "0000:1b:00.0"


@pytest.mark.parametrize(
    ("function", "gpu"),
    [
        (NEAR_GPU, Gpu("0000:1b:00.0", "nvidia", uuid="GPU-1", parts="MIG")),
        (replace(NEAR_GPU, driver="vfio-pci"), Gpu("0000:1b:00.0", "nvidia")),
        (replace(NEAR_GPU, driver=""), Gpu("0000:1b:00.0", "nvidia")),
    ],
    ids=["cut into parts", "for a virtual machine", "without its driver, as while it is reset"],
)
def test_what_a_nic_says_of_a_gpu_does_not_change_with_its_use(function: PciFunction, gpu: Gpu) -> None:
    def attributes(function: PciFunction, gpu: Gpu) -> Any:
        devices = build(pci_functions=(pci(), function, FAR_GPU), links=(link(),), gpus=(gpu, FAR))
        return devices["pci-0000-1a-00-0"].attributes

    idle = Gpu("0000:1b:00.0", "nvidia", uuid="GPU-1", char_devices=(CharDevice("/dev/nvidia0", 195, 0),))

    assert attributes(function, gpu) == attributes(NEAR_GPU, idle)


def test_a_nic_names_a_gpu_and_not_its_virtual_functions() -> None:
    part = replace(NEAR_GPU, address="0000:1b:00.4", physical_function="0000:1b:00.0")
    gpus = (Gpu("0000:1b:00.0", "nvidia"), Gpu("0000:1b:00.4", "nvidia"))
    both = build(pci_functions=(pci(), NEAR_GPU, part), links=(link(),), gpus=gpus)
    alone = build(pci_functions=(pci(), part), links=(link(),), gpus=gpus[1:])

    assert both["pci-0000-1a-00-0"].attributes["dra.net/nearestGpus"] == "0000:1b:00.0"
    assert alone["pci-0000-1a-00-0"].attributes["dra.net/nearestGpus"] == "0000:1b:00.4"


def test_a_nic_without_a_gpu_below_its_root_lists_the_roots_of_the_gpus_where_the_operator_says_so() -> None:
    facts: dict[str, Any] = {
        "pci_functions": (pci(root="pci0000:40", path=("0000:40:01.0", "0000:1a:00.0")), NEAR_GPU, FAR_GPU),
        "links": (link(),),
        "gpus": (Gpu("0000:1b:00.0", "nvidia"), FAR),
    }
    root = "resource.kubernetes.io/pcieRoot"
    scalar, listed = build(**facts), build(policy=Policy(list_attributes=True), **facts)

    assert scalar["pci-0000-1a-00-0"].attributes[root] == "pci0000:40"
    assert listed["pci-0000-1a-00-0"].attributes[root] == ("pci0000:40", "pci0000:17")
    assert listed["gpu-0000-1b-00-0"].attributes[root] == "pci0000:17"


def test_a_gpu_whose_numa_node_is_its_memory_is_near_the_nics_of_its_processor() -> None:
    facts: dict[str, Any] = {
        "pci_functions": (pci(numa_node=1), replace(FAR_GPU, numa_node=2)),
        "links": (link(),),
        "gpus": (FAR,),
        "numa_nodes": (
            NumaNode(0, "0", (10, 40, 120), 0),
            NumaNode(1, "1", (40, 10, 80), 1),
            NumaNode(2, "", (120, 80, 10)),
        ),
    }
    devices = build(**facts)

    assert devices["gpu-0000-9b-00-0"].numa_node == 1
    assert devices["gpu-0000-9b-00-0"].attributes["resource.kubernetes.io/numaNode"] == 1
    assert devices["pci-0000-1a-00-0"].attributes["dra.net/nearestGpuDistance"] == "NODE"


def test_numa_nodes_are_lists_where_the_operator_says_so() -> None:
    facts: dict[str, Any] = {
        "pci_functions": (pci(numa_node=1),),
        "links": (link(),),
        "numa_nodes": (NumaNode(0, "0", (10, 12), socket=0), NumaNode(1, "1", (12, 10), socket=0)),
    }
    standard = "resource.kubernetes.io/numaNode"
    scalar, listed = build(**facts), build(policy=Policy(list_attributes=True), **facts)

    assert scalar["pci-0000-1a-00-0"].attributes[standard] == 1
    assert listed["pci-0000-1a-00-0"].attributes[standard] == (1, 0)
    assert listed["pci-0000-1a-00-0"].attributes["dra.net/numaNode"] == 1


def test_a_port_of_a_bond_and_a_vlan_name_their_relatives() -> None:
    devices = build(
        pci_functions=(pci(),),
        links=(
            link(master=20),
            link("bond0", 20, "", kind="bond", virtual=True),
            link("bond0.7", 21, "", kind="vlan", virtual=True, lower=20, vlan_id=7),
        ),
    )

    assert devices["pci-0000-1a-00-0"].attributes["dra.net/bond"] == "bond0"
    vlan = devices["net-mjxw4zbqfy3q"].attributes
    assert (vlan["dra.net/parent"], vlan["dra.net/vlanId"]) == ("bond0", 7)


def test_the_nodes_own_links_are_described_only_if_the_operator_offers_their_kind() -> None:
    veth = link("veth0", 9, "", kind="veth", virtual=True)

    assert build(links=(veth,))["veth0"].attributes == {}
    offered = build(policy=Policy(offer_link_kinds=frozenset({"veth"})), links=(veth,))
    assert offered["veth0"].attributes["dra.net/type"] == "veth"


def test_a_virtual_function_without_interface_is_linked_to_its_physical_one() -> None:
    function = pci(
        "0000:1a:00.1", class_code=0x020700, physical_function=NIC_ADDRESS, virtual_function_index=0
    )
    device = build(pci_functions=(function,), rdma_devices=(rdma("mlx5_9", "0000:1a:00.1", "InfiniBand"),))[
        "pci-0000-1a-00-1"
    ]

    assert (device.kind, device.physical_function) == (DeviceKind.RDMA, NIC_ADDRESS)
    assert device.attributes["dra.net/sriovPfAddress"] == NIC_ADDRESS
    assert device.attributes["dra.net/sriovVfIndex"] == 0
    assert device.attributes["dra.net/isSriovVf"] is True


def test_alibabas_erdma_says_so() -> None:
    function = pci(class_code=0x00FF00, driver="erdma")
    device = build(pci_functions=(function,), rdma_devices=(rdma("erdma_0"),))["pci-0000-1a-00-0"]

    assert device.attributes["alibaba.dra.net/erdma"] is True


def test_an_interface_name_that_is_no_text_is_left_out_with_the_reason() -> None:
    (device,) = build(links=(link("eth\udcff", 9, ""),)).values()

    assert "dra.net/ifName" not in device.attributes
    assert device.left_out == {"dra.net/ifName": "is no text (bytes that are not UTF-8)"}
    assert device.ifname == "eth\udcff"


def test_a_link_whose_function_was_not_read_still_says_its_address() -> None:
    attributes = build(links=(link(),))["pci-0000-1a-00-0"].attributes

    assert attributes["dra.net/pciAddress"] == NIC_ADDRESS
    assert attributes["resource.kubernetes.io/pciBusID"] == NIC_ADDRESS


def test_only_global_addresses_are_published_sorted_and_whole() -> None:
    texts = [
        "169.254.1.1/16",
        "10.0.0.9/24",
        "10.0.0.10/24",
        "127.0.0.1/8",
        "fe80::1/64",
        "fd00::5/64",
        "224.0.0.1/4",
    ]
    attributes = build(links=(link("dummy0", 9, "", addresses=tuple(map(Address, texts))),))[
        "dummy0"
    ].attributes

    assert attributes["dra.net/ipv4"] == "10.0.0.10/24,10.0.0.9/24"
    assert attributes["dra.net/ipv6"] == "fd00::5/64"


def _is_plain(ip: IPv4Address | IPv6Address) -> bool:
    """No IPv4 address in IPv6 clothes: no interface has one, and Python 3.13 judges them anew."""
    return getattr(ip, "ipv4_mapped", None) is None


@settings(deadline=None)
@given(st.ip_addresses().filter(_is_plain))
def test_an_address_is_published_exactly_when_it_is_global_unicast(ip: IPv4Address | IPv6Address) -> None:
    attributes = build(links=(link("dummy0", 9, "", addresses=(Address(f"{ip}/{ip.max_prefixlen}"),)),))
    special = ip.is_unspecified or ip.is_loopback or ip.is_multicast or ip.is_link_local
    is_global = not special and str(ip) != "255.255.255.255"

    assert (f"dra.net/ipv{ip.version}" in attributes["dummy0"].attributes) is is_global


def test_addresses_are_cut_at_the_last_whole_one_that_fits() -> None:
    many = tuple(Address(f"192.168.100.{i}/24") for i in range(100, 110))
    value = build(links=(link("dummy0", 9, "", addresses=many),))["dummy0"].attributes["dra.net/ipv4"]

    assert value == "192.168.100.100/24,192.168.100.101/24,192.168.100.102/24"


def test_virtual_functions_say_so_and_physical_ones_count_theirs() -> None:
    functions = (
        pci(sriov_total_vfs=8, sriov_num_vfs=2),
        pci("0000:1a:00.1", physical_function=NIC_ADDRESS, virtual_function_index=0),
    )
    devices = build(pci_functions=functions, links=(link(), link("eth2", 6, "0000:1a:00.1")))

    physical, virtual = (devices[f"pci-0000-1a-00-{i}"].attributes for i in (0, 1))
    assert (physical["dra.net/sriov"], physical["dra.net/sriovVfs"]) == (True, 2)
    assert (virtual["dra.net/sriov"], virtual["dra.net/isSriovVf"]) == (False, True)
    assert "dra.net/isSriovVf" not in physical
    assert "dra.net/sriovVfs" not in virtual


def test_a_domain_of_five_digits_has_no_standard_bus_id() -> None:
    attributes = build(pci_functions=(pci("10000:01:00.0"),))["pci-10000-01-00-0"].attributes

    assert attributes["dra.net/pciAddress"] == "10000:01:00.0"
    assert "resource.kubernetes.io/pciBusID" not in attributes


def test_of_two_spellings_of_an_address_the_same_one_makes_the_device_in_any_order() -> None:
    gpus = (Gpu("0000:1b:00.0", "amd"), Gpu("0000:1B:00.0", "intel"))

    assert build(gpus=gpus) == build(gpus=gpus[::-1])
    assert list(build(gpus=gpus)) == ["gpu-0000-1b-00-0"]


def test_of_a_thing_that_is_told_twice_the_same_telling_counts_in_any_order() -> None:
    tellings: list[dict[str, Any]] = [
        {"pci_functions": (pci(), pci(numa_node=1)), "links": (link(mtu=1500), link("eth9", mtu=9000))},
        {"pci_functions": (pci(numa_node=1), pci()), "links": (link("eth9", mtu=9000), link(mtu=1500))},
    ]
    first, second = (build(**telling) for telling in tellings)

    assert list(first) == ["pci-0000-1a-00-0"]
    assert first == second


NAMES = (
    st.binary(min_size=1, max_size=15)
    .filter(lambda name: b"/" not in name and b"\0" not in name)
    .map(lambda name: name.decode(errors="surrogateescape"))
)
"""What the kernel allows in an interface name: any byte but these two."""


@settings(deadline=None)
@given(names=st.lists(NAMES, max_size=6, unique=True), alias=st.text(max_size=300))
def test_whatever_links_are_called_every_device_is_valid_for_the_api(names: list[str], alias: str) -> None:
    links = tuple(link(name, i + 2, "", alias=alias) for i, name in enumerate(names))
    devices = build_devices(NodeFacts(links=links), {})

    assert len({device.name for device in devices}) == len(devices)
    for device in devices:
        assert len(device.name) <= 63
        assert set(device.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
        assert device.name.strip("-") == device.name
        for value in device.attributes.values():
            assert not isinstance(value, str) or len(value.encode()) <= 64
