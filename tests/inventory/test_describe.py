"""Each fact becomes the attribute that the catalogue promises, or none."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dranet.inventory import slices
from dranet.inventory.topology import Nearest
from dranet.model.attributes import fit_values
from dranet.model.device import AttributeValue, Device, DeviceKind
from dranet.model.facts import Distance, Gpu, Link, PciFunction, RdmaDevice, RdmaPort

LINK = Link(5, "eth1", mac="02:00:00:00:00:01", mtu=9000, flags=1, operstate="up")
FUNCTION = PciFunction("0000:1a:00.0", 0x020000, 0x15B3, 0x1021, driver="mlx5_core")
RDMA = RdmaDevice("mlx5_0", ports=(RdmaPort(1),))


def short(values: slices.Values) -> dict[str, AttributeValue]:
    """Names without the domain of ours."""
    return {name.removeprefix("dra.net/"): value for name, value in fit_values(values).kept.items()}


def link(**changes: Any) -> dict[str, AttributeValue]:
    return short(slices.describe_link(replace(LINK, **changes)))


def pci(**changes: Any) -> dict[str, AttributeValue]:
    return short(slices.describe_pci(replace(FUNCTION, **changes)))


def rdma(ifname: str = "", **changes: Any) -> dict[str, AttributeValue]:
    return short(slices.describe_rdma(replace(RDMA, **changes), ifname))


def test_a_plain_link_says_this_and_no_more() -> None:
    assert link() == {
        "ifName": "eth1",
        "type": "device",
        "mac": "02:00:00:00:00:01",
        "mtu": 9000,
        "encapsulation": "ether",
        "state": "up",
        "alias": "",
        "virtual": False,
        "adminUp": True,
        "carrier": False,
        "xdp": False,
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"kind": "vlan", "vlan_id": 7}, {"type": "vlan", "vlanId": 7}),
        ({"kind": "vlan", "vlan_id": 0}, {"vlanId": 0}),
        ({"flags": 0, "carrier": True}, {"adminUp": False, "carrier": True}),
        ({"speed_mbps": 400000, "duplex": "full"}, {"linkSpeedMbps": 400000, "duplex": "full"}),
        ({"queues": 63}, {"queues": 63}),
        ({"permanent_mac": "02:00:00:00:00:02"}, {"permanentMac": "02:00:00:00:00:02"}),
        ({"xdp": True, "virtual": True}, {"xdp": True, "virtual": True}),
        ({"arp_type": 32, "mac": ":".join(["80"] * 20)}, {"encapsulation": "infiniband"}),
        ({"arp_type": 32, "mac": ":".join(["80"] * 20)}, {"mac": ":".join(["80"] * 20)}),
        ({"arp_type": 4711}, {"encapsulation": "unknown4711"}),
    ],
)
def test_what_else_a_link_says(changes: dict[str, Any], expected: dict[str, AttributeValue]) -> None:
    assert link(**changes).items() >= expected.items()


@pytest.mark.parametrize(
    ("tc", "tcx", "expected"),
    [
        (None, None, {}),
        ((), None, {}),
        ((), (), {"ebpf": False}),
        (("b", "a", "b"), None, {"ebpf": True, "tcFilterNames": "a,b"}),
        ((), ("cil_from_netdev",), {"ebpf": True, "tcxProgramNames": "cil_from_netdev"}),
        (("x" * 70,), (), {"ebpf": True, "tcFilterNames": "x" * 64}),
        (("x" * 40, "y" * 40), (), {"ebpf": True, "tcFilterNames": "x" * 40}),
    ],
)
def test_ebpf_is_said_only_of_what_was_read(
    tc: tuple[str, ...] | None, tcx: tuple[str, ...] | None, expected: dict[str, AttributeValue]
) -> None:
    said = link(tc_filters=tc, tcx_programs=tcx)

    assert {
        name: said[name] for name in ("ebpf", "tcFilterNames", "tcxProgramNames") if name in said
    } == expected


def relatives(links: list[Link]) -> dict[str, AttributeValue]:
    return short(slices.describe_relatives(links[0], {each.ifindex: each for each in links}))


@pytest.mark.parametrize("kind", ["bond", "bridge"])
def test_a_port_names_its_bond_or_bridge(kind: str) -> None:
    assert relatives([replace(LINK, master=9), Link(9, "m0", kind=kind)]) == {kind: "m0"}


def test_other_masters_and_those_out_of_sight_are_not_named() -> None:
    assert relatives([replace(LINK, master=9), Link(9, "red", kind="vrf")]) == {}
    assert relatives([replace(LINK, master=9)]) == {}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"kind": "vlan", "lower": 3}, {"parent": "eth0"}),
        ({"kind": "macvlan", "lower": 3, "link_netnsid": 0}, {}),  # an index of another namespace
        ({"kind": "veth", "lower": 3}, {}),  # the other end
        ({"kind": "vlan", "lower": 77}, {}),
        ({"kind": "sit", "lower": 5}, {}),  # itself
        ({}, {}),
    ],
)
def test_a_parent_is_named_if_it_is_one_and_here(
    changes: dict[str, Any], expected: dict[str, AttributeValue]
) -> None:
    assert relatives([replace(LINK, **changes), Link(3, "eth0")]) == expected


def test_a_function_says_ids_and_names() -> None:
    said = pci(
        vendor_name="Mellanox Technologies",
        device_name="MT2910 Family [ConnectX-7]",
        subsystem_vendor_id=0x15B3,
        subsystem_device_id=0x23,
        root="pci0000:17",
    )

    assert said == {
        "pciAddress": "0000:1a:00.0",
        "resource.kubernetes.io/pciBusID": "0000:1a:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:17",
        "pciVendorId": "15b3",
        "pciDeviceId": "1021",
        "pciVendor": "Mellanox Technologies",
        "pciDevice": "MT2910 Family [ConnectX-7]",
        "pciSubsystem": "0023",
    }


def test_what_pci_ids_does_not_know_is_unknown_as_in_dranet_and_an_odd_root_is_left_out() -> None:
    assert pci(root="platform") == {
        "pciAddress": "0000:1a:00.0",
        "resource.kubernetes.io/pciBusID": "0000:1a:00.0",
        "pciVendor": "unknown",
        "pciDevice": "unknown",
        "pciSubsystem": "0000",
        "pciVendorId": "15b3",
        "pciDeviceId": "1021",
    }


def test_a_long_name_of_pci_ids_is_cut_at_64_bytes() -> None:
    name = "MT43244 BlueField-4 integrated ConnectX-8 network controller, with more than fits"

    assert pci(device_name=name)["pciDevice"] == name[:64]


def test_a_domain_of_five_digits_has_a_root_but_no_standard_bus_id() -> None:
    said = pci(address="10000:01:00.0", root="pci10000:00")

    assert said["resource.kubernetes.io/pcieRoot"] == "pci10000:00"
    assert "resource.kubernetes.io/pciBusID" not in said


@pytest.mark.parametrize(
    ("text", "generation"),
    [
        ("2.5 GT/s PCIe", 1),
        ("5.0 GT/s PCIe", 2),
        ("5 GT/s", 2),
        ("8.0 GT/s PCIe", 3),
        ("16.0 GT/s PCIe", 4),
        ("32.0 GT/s PCIe", 5),
        ("64.0 GT/s PCIe", 6),
        ("Unknown", None),
        ("7.7 GT/s PCIe", None),
        ("", None),
    ],
)
def test_pcie_generations_follow_from_the_kernels_text(text: str, generation: int | None) -> None:
    assert pci(link_speed=text).get("pcieGeneration") == generation
    assert pci(max_link_speed=text).get("pcieMaxGeneration") == generation


def test_lanes_are_said_if_they_can_be_true() -> None:
    assert pci(link_width=8, max_link_width=16).items() >= {"pcieWidth": 8, "pcieMaxWidth": 16}.items()
    assert "pcieWidth" not in pci(link_width=255)
    assert "pcieMaxWidth" not in pci(max_link_width=0)


@pytest.mark.parametrize("node", [None, -1])
def test_an_unknown_numa_node_is_never_said(node: int | None) -> None:
    assert slices.describe_numa(node, None) == {}


def test_the_numa_node_is_a_list_only_in_the_standard_attribute_and_only_if_asked_for() -> None:
    standard = "resource.kubernetes.io/numaNode"

    assert short(slices.describe_numa(1, None)) == {"numaNode": 1, standard: 1}
    assert short(slices.describe_numa(1, {1: (1, 0)})) == {"numaNode": 1, standard: (1, 0)}
    assert short(slices.describe_numa(5, {1: (1, 0)})) == {"numaNode": 5, standard: (5,)}


def test_versions_are_the_interfaces_word_first() -> None:
    said = slices.describe_versions(
        replace(LINK, driver="mlx5_core", driver_version="6.12.9", firmware="28.39.1002 (MT_0000000838)"),
        replace(RDMA, firmware="28.39.1002"),
        FUNCTION,
    )

    assert short(said) == {
        "driver": "mlx5_core",
        "driverVersion": "6.12.9",
        "firmwareVersion": "28.39.1002 (MT_0000000838)",
    }


def test_without_an_interface_the_function_and_the_rdma_device_say_it() -> None:
    said = slices.describe_versions(None, replace(RDMA, firmware="28.39.1002"), FUNCTION)

    assert short(said) == {"driver": "mlx5_core", "firmwareVersion": "28.39.1002"}


def test_another_firmware_of_the_rdma_device_is_said_beside_it() -> None:
    said = slices.describe_versions(replace(LINK, firmware="1.0"), replace(RDMA, firmware="2.0"), None)

    assert short(said) == {"firmwareVersion": "1.0", "rdmaFirmware": "2.0"}


def test_no_version_is_no_attribute() -> None:
    said = slices.describe_versions(replace(LINK, firmware="N/A", driver_version="N/A"), None, None)

    assert short(said) == {}


def test_virtual_functions_name_their_physical_one() -> None:
    function = replace(FUNCTION, physical_function="0000:1A:00.0", virtual_function_index=0)

    assert short(slices.describe_sriov(function)) == {
        "sriov": False,
        "isSriovVf": True,
        "sriovPfAddress": "0000:1a:00.0",
        "sriovVfIndex": 0,
    }
    assert short(slices.describe_sriov(replace(FUNCTION, sriov_total_vfs=8))) == {
        "sriov": True,
        "sriovVfs": 0,
    }
    assert short(slices.describe_sriov(None)) == {"sriov": False}


PORTS = (
    RdmaPort(1, state="DOWN", link_layer="Ethernet", rate="40 Gb/sec (4X QDR)", netdevs=("eth0",)),
    RdmaPort(
        2,
        state="ACTIVE",
        link_layer="InfiniBand",
        rate="2.5 Gb/sec (1X SDR)",
        netdevs=("eth1",),
        guid="0c42:a103:0065:7b22",
        gid_types=("RoCE v2", "IB/RoCE v1"),
        pkeys=("0xffff", "0x8001"),
    ),
)


def test_the_rdma_port_of_the_interface_speaks_for_the_device() -> None:
    assert rdma("eth1", node_guid="0c42:a103:0065:7b20", ports=PORTS) == {
        "rdma": True,
        "rdmaDevice": "mlx5_0",
        "rdmaNodeGuid": "0c42:a103:0065:7b20",
        "rdmaLinkLayer": "InfiniBand",
        "rdmaPortState": "ACTIVE",
        "rdmaRateGbps": 2,
        "rdmaPortGuid": "0c42:a103:0065:7b22",
        "rdmaGidTypes": "IB/RoCE v1,RoCE v2",
        "rdmaPkeys": "0xffff,0x8001",
    }


def test_else_the_first_port_does_and_what_is_empty_is_left_out() -> None:
    assert rdma("eth9", ports=PORTS) == {
        "rdma": True,
        "rdmaDevice": "mlx5_0",
        "rdmaLinkLayer": "Ethernet",
        "rdmaPortState": "DOWN",
        "rdmaRateGbps": 40,
    }
    assert rdma(ports=()) == {"rdma": True, "rdmaDevice": "mlx5_0"}


def test_as_many_partition_keys_as_fit() -> None:
    keys = tuple(f"0x{key:04x}" for key in range(0x8000, 0x8020))

    assert rdma(ports=(RdmaPort(1, pkeys=keys),))["rdmaPkeys"] == ",".join(keys[:9])


@pytest.mark.parametrize("rate", ["", "fast", "9" * 5000 + " Gb/sec"])
def test_an_odd_rate_is_left_out(rate: str) -> None:
    assert "rdmaRateGbps" not in rdma(ports=(RdmaPort(1, rate=rate),))


def test_alibabas_erdma_is_known_by_its_driver() -> None:
    assert short(slices.describe_pci(replace(FUNCTION, driver="erdma")))["alibaba.dra.net/erdma"] is True
    assert "alibaba.dra.net/erdma" not in short(slices.describe_pci(FUNCTION))


def test_five_gpus_fit_into_an_attribute_and_the_next_five_into_another() -> None:
    gpus = tuple(Device(f"g{i}", DeviceKind.GPU, pci_address=f"0000:{i:02x}:00.0") for i in range(1, 9))

    assert short(slices.describe_near_gpus(Nearest(Distance.PXB, gpus[:1], gpus))) == {
        "nearestGpus": "0000:01:00.0",
        "nearestGpuDistance": "PXB",
        "numaNodeGpus": "0000:01:00.0,0000:02:00.0,0000:03:00.0,0000:04:00.0,0000:05:00.0",
        "moreNumaNodeGpus": "0000:06:00.0,0000:07:00.0,0000:08:00.0",
    }
    assert short(slices.describe_near_gpus(Nearest(Distance.SYS, gpus))) == {
        "nearestGpus": "0000:01:00.0,0000:02:00.0,0000:03:00.0,0000:04:00.0,0000:05:00.0",
        "nearestGpuDistance": "SYS",
        "moreNearestGpus": "0000:06:00.0,0000:07:00.0,0000:08:00.0",
    }
    assert short(slices.describe_near_gpus(None)) == {}


def test_a_gpu_says_what_selectors_for_nics_test_unguarded() -> None:
    assert short(slices.describe_gpu(Gpu("0000:1b:00.0", "amd"))) == {
        "type": "gpu",
        "ifName": "",
        "rdma": False,
        "rdmaDevice": "",
        "virtual": False,
        "gpuVendor": "amd",
    }
