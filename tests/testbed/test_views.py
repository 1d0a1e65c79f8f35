"""Lines about a node and its pods."""

from __future__ import annotations

from dranet.inventory.policy import Decision
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Distance
from testbed.scenario.views import describe_alignment, describe_link, describe_traffic, draw_topology
from testbed.traffic import TrafficResult


def device(name: str, kind: DeviceKind, root: str, *path: str, numa: int = 0) -> Device:
    return Device(
        name,
        kind,
        attributes={"dra.net/gpuModel": "H100"} if kind is DeviceKind.GPU else {},
        ifname="" if kind is DeviceKind.GPU else "eth0",
        pci_address=path[-1],
        pci_path=path,
        pcie_root=root,
        numa_node=numa,
        rdma_device="" if kind is DeviceKind.GPU else "mlx5_0",
    )


NIC = device("nic", DeviceKind.NIC, "pci0000:15", "15:01.0", "16:00.0", "17:00.0", "18:00.0")
GPU = device("gpu", DeviceKind.GPU, "pci0000:15", "15:01.0", "16:00.0", "17:02.0", "1b:00.0")
FAR_GPU = device("far", DeviceKind.GPU, "pci0000:97", "97:01.0", "98:00.0", "99:00.0", "9d:00.0", numa=1)
UPLINK = device("uplink", DeviceKind.NIC, "pci0000:00", "00:1c.0", "0b:00.0")


def test_the_topology_groups_by_numa_node_root_and_switch_and_says_each_once() -> None:
    decisions = [
        Decision(NIC, True, "spare"),
        Decision(FAR_GPU, True, "is a GPU"),
        Decision(GPU, True, "is a GPU"),
        Decision(UPLINK, False, "is the node's uplink"),
    ]
    assert draw_topology(decisions, {"nic", "gpu"}) == (
        "NUMA 0  pci0000:00                  NIC  eth0 mlx5_0  0b:00.0  not offered: is the node's uplink",
        "        pci0000:15  switch 16:00.0  NIC  eth0 mlx5_0  18:00.0  nic",
        "                                    GPU  H100         1b:00.0  gpu",
        "NUMA 1  pci0000:97  switch 98:00.0  GPU  H100         9d:00.0  not published",
    )


def test_alignment_takes_the_nearest_gpu() -> None:
    lines, distances = describe_alignment("pod", [FAR_GPU, NIC, GPU])
    assert distances == [Distance.PIX]
    assert lines == ["pod: gpu (H100, pci0000:15) and nic (mlx5_0, pci0000:15): PIX"]


def test_alignment_without_a_gpu_is_unknown() -> None:
    lines, distances = describe_alignment("pod", [NIC])
    assert distances == [None]
    assert lines == ["pod: no GPU and nic (mlx5_0, pci0000:15): unknown"]


def test_traffic_is_told_with_units_and_its_proof() -> None:
    result = TrafficResult(1_250_000_000, 1.0, 2000, 35.2, 246.4, 1_251_000_000, 1_252_000_000)
    assert describe_traffic(result) == (
        "10.00 Gbit/s over 1.0 s (virtual links of this machine, not hardware)",
        "round trip of 64 bytes: median 35 us, p99 246 us",
        "the NICs' own counters: 1,251,000,000 bytes sent, 1,252,000,000 received",
    )


def test_a_link_is_told_in_one_line() -> None:
    link = {
        "ifname": "net1",
        "flags": ["BROADCAST", "UP"],
        "mtu": 9000,
        "address": "02:00:00:00:00:01",
        "addr_info": [{"local": "10.0.0.1", "prefixlen": 24}],
    }
    assert describe_link(link) == "net1: up mtu 9000 mac 02:00:00:00:00:01 10.0.0.1/24"
    assert describe_link({"ifname": "x", "mtu": 1500}) == "x: down mtu 1500 mac"
