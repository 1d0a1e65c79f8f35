"""Counters, PCIe links and RDMA ports: from trees with the layout of real machines, and from real links."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from dranet.kernel.counters import CounterTarget, read_health_counters, read_rdma_ports
from dranet.kernel.netlink import rdma
from dranet.kernel.netlink.socket import attribute, attribute_u8, attribute_u32
from dranet.model.facts import RdmaPort
from dranet.model.health import CARRIER_LOSSES, HealthCounters, PcieLink
from tests.kernel.trees import Tree
from tests.support.namespaces import Namespace

PORT = "0000:17:01.0"
CARD = "0000:18:00.0"
PATH = f"pci0000:17/{PORT}/{CARD}"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def make_card(tree: Tree, **attributes: str) -> str:
    port = {"max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16"}
    tree.function(f"pci0000:17/{PORT}", "0x060400", "0x1000", "0xc030", **port)
    told = {
        "current_link_speed": "16.0 GT/s PCIe",
        "current_link_width": "8",
        "max_link_speed": "32.0 GT/s PCIe",
        "max_link_width": "16",
        **attributes,
    }
    return tree.function(PATH, "0x020000", "0x15b3", "0x1021", **told)


def read_one(
    tree: Tree, rdma_device: str = "", pci_address: str = "", port_address: str = ""
) -> HealthCounters:
    target = CounterTarget("nic", 0, rdma_device, pci_address, port_address)
    return read_health_counters(tree.root, [target])["nic"]


def test_a_pcie_link_is_read_with_what_card_and_slot_can(tree: Tree) -> None:
    make_card(tree)
    vitals = read_one(tree, pci_address=CARD, port_address=PORT)
    assert vitals.pcie == PcieLink(16.0, 8, 32.0, 16, 32.0, 16)


@pytest.mark.parametrize(
    ("attributes", "pcie"),
    [
        ({"power_state": "D3hot"}, PcieLink(16.0, 8, 32.0, 16, 32.0, 16, asleep=True)),
        ({"power_state": "D0"}, PcieLink(16.0, 8, 32.0, 16, 32.0, 16)),
        (
            {"current_link_speed": "Unknown", "current_link_width": "0"},
            PcieLink(0.0, 0, 32.0, 16, 32.0, 16),
        ),
        ({"current_link_width": "63"}, PcieLink(16.0, 0, 32.0, 16, 32.0, 16)),
        ({"current_link_width": "-3", "max_link_speed": "\x00fast"}, PcieLink(16.0, 0, 0.0, 16, 32.0, 16)),
    ],
)
def test_what_a_function_does_not_tell_is_zero(
    tree: Tree, attributes: dict[str, str], pcie: PcieLink
) -> None:
    make_card(tree, **attributes)
    assert read_one(tree, pci_address=CARD, port_address=PORT).pcie == pcie


def test_a_suspended_function_is_asleep(tree: Tree) -> None:
    home = make_card(tree)
    tree.write(f"{home}/power/runtime_status", "suspended")
    pcie = read_one(tree, pci_address=CARD).pcie
    assert pcie is not None
    assert pcie.asleep
    assert (pcie.port_speed, pcie.port_width) == (0.0, 0), "nobody said which port"


def test_error_counters_of_all_ports_are_added_up(tree: Tree) -> None:
    home = make_card(tree)
    rdma = tree.rdma_device("mlx5_0", home, 0)
    for port in ("1", "2"):
        tree.write(f"{rdma}/ports/{port}/counters/symbol_error", "5")
        tree.write(f"{rdma}/ports/{port}/counters/link_downed", port)
        tree.write(f"{rdma}/ports/{port}/counters/port_xmit_discards", "1000000")
        tree.write(f"{rdma}/ports/{port}/hw_counters/rx_icrc_encapsulated", "7")
        tree.write(f"{rdma}/ports/{port}/hw_counters/out_of_sequence", "99999")
    tree.write(f"{rdma}/ports/1/counters/port_rcv_errors", "N/A (no PMA)")
    counters = read_one(tree, rdma_device="mlx5_0").counters
    assert counters == {"symbol_error": 10, "link_downed": 3, "rx_icrc_encapsulated": 14}


def test_what_is_not_there_is_left_out_and_hides_nothing(tree: Tree) -> None:
    make_card(tree)
    targets = [
        CounterTarget("gone", ifindex=99999, rdma_device="mlx5_9", pci_address="0000:ff:00.0"),
        CounterTarget("nic", pci_address=CARD, port_address=PORT),
    ]
    vitals = read_health_counters(tree.root, targets)
    assert vitals["gone"] == HealthCounters({}, PcieLink())
    assert vitals["nic"].pcie == PcieLink(16.0, 8, 32.0, 16, 32.0, 16)


def test_port_states_are_read_from_sysfs(tree: Tree) -> None:
    rdma = tree.rdma_device("mlx5_0", make_card(tree), 0)
    tree.write_all(f"{rdma}/ports/1", state="1: DOWN", phys_state="3: Disabled", link_layer="InfiniBand")
    assert read_rdma_ports(tree.root, "mlx5_0") == (RdmaPort(1, "DOWN", "InfiniBand", phys_state="Disabled"),)
    assert read_rdma_ports(tree.root, "mlx5_7") is None


@pytest.mark.kernel
def test_a_real_link_tells_its_counters_and_lost_carriers(
    node: Namespace, fabric: Namespace, tmp_path: Path
) -> None:
    (shown,) = node.read_raw("link", "show", "eth1")
    target = CounterTarget("nic", ifindex=shown["ifindex"])

    def read() -> dict[str, int]:
        return dict(node.run(lambda: read_health_counters(tmp_path, [target]))["nic"].counters)

    before = read()
    (stats,) = node.read_raw("-stats", "link", "show", "eth1")
    assert before["rx_errors"] == stats["stats64"]["rx"]["errors"]
    fabric.ip("link", "set", "p-eth1", "down")
    fabric.ip("link", "set", "p-eth1", "up")
    assert read()[CARRIER_LOSSES] == before[CARRIER_LOSSES] + 1


def test_ports_told_by_rdma_netlink_read_as_those_of_sysfs() -> None:
    lid = attribute_u32(rdma._LID, 7)
    infiniband = attribute_u32(3, 1) + lid + attribute_u8(12, 4) + attribute_u8(13, 5)
    assert rdma._parse_port(infiniband) == RdmaPort(1, "ACTIVE", "InfiniBand", phys_state="LinkUp")
    roce = attribute_u32(3, 2) + attribute_u8(12, 1) + attribute_u8(13, 3)
    assert rdma._parse_port(roce) == RdmaPort(2, "DOWN", "Ethernet", phys_state="Disabled")
    odd = attribute(3, struct.pack("=H", 1)) + attribute_u8(12, 200) + attribute(13, b"")
    assert rdma._parse_port(odd) == RdmaPort(0, "", "Ethernet")
