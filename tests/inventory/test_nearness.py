"""Nearest GPUs by place in the PCIe tree, and the NUMA nodes of one socket."""

from __future__ import annotations

import pytest

from dranet.inventory.topology import NearestGpus, near_numa_nodes, processor_nodes
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Distance, NumaNode, PciFunction


def function(*path: str, root: str = "pci0000:00", numa: int | None = 0) -> PciFunction:
    return PciFunction(path[-1] if path else "", 0x020000, 1, 2, root=root, path=path, numa_node=numa)


def gpu(*path: str, root: str = "pci0000:00", numa: int | None = 0) -> Device:
    address = path[-1]
    return Device(
        f"gpu-{address}", DeviceKind.GPU, pci_address=address, pci_path=path, pcie_root=root, numa_node=numa
    )


BELOW_ONE_SWITCH = gpu("01.0", "02:00.0", "03:00.0", "04:00.0")
BEHIND_ANOTHER_PORT = gpu("05.0", "06:00.0")
OTHER_SOCKET = gpu("01.0", "82:00.0", root="pci0000:80", numa=1)
GPUS = [BELOW_ONE_SWITCH, BEHIND_ANOTHER_PORT, OTHER_SOCKET]


def addresses(gpus: list[Device], where: PciFunction) -> tuple[Distance, list[str]] | None:
    near = NearestGpus(gpus).of(where)
    return (near.distance, [device.pci_address for device in near.devices]) if near else None


def test_the_gpu_on_the_same_switch_is_nearest() -> None:
    nic = function("01.0", "02:00.0", "03:01.0", "05:00.0")

    assert addresses(GPUS, nic) == (Distance.PIX, ["04:00.0"])


def test_all_gpus_at_the_smallest_distance_count() -> None:
    nic = function("07.0", "08:00.0")

    assert addresses(GPUS, nic) == (Distance.PHB, ["04:00.0", "06:00.0"])


def test_where_only_numa_nodes_tell_the_other_sockets_gpus_are_far() -> None:
    nic = function("01.0", "c2:00.0", root="pci0000:c0", numa=1)

    assert addresses(GPUS, nic) == (Distance.NODE, ["82:00.0"])
    assert addresses([BELOW_ONE_SWITCH], nic) == (Distance.SYS, ["04:00.0"])


@pytest.mark.parametrize("nic", [function(), function("01.0", root=""), function("9", root="x", numa=None)])
def test_without_a_place_nothing_is_near(nic: PciFunction) -> None:
    assert addresses(GPUS, nic) is None


def test_without_gpus_nothing_is_near() -> None:
    assert addresses([], function("01.0", "02:00.0")) is None


def numa_node(gpus: list[Device], where: PciFunction) -> list[str]:
    near = NearestGpus(gpus).of(where)
    return [device.pci_address for device in near.numa_node] if near else []


def test_a_nic_knows_all_gpus_of_its_numa_node() -> None:
    nic = function("01.0", "02:00.0", "03:01.0", "05:00.0")
    same_node = gpu("01.0", "42:00.0", root="pci0000:40")

    assert numa_node([*GPUS, same_node], nic) == ["04:00.0", "06:00.0", "42:00.0"]


def test_where_no_gpu_is_nearer_these_are_the_nearest() -> None:
    assert numa_node(GPUS, function("01.0", "c2:00.0", root="pci0000:c0", numa=1)) == ["82:00.0"]
    assert numa_node(GPUS, function("01.0", "c2:00.0", root="pci0000:c0", numa=2)) == []


def test_a_gpu_without_a_numa_node_could_be_on_any() -> None:
    nic = function("01.0", "02:00.0", "03:01.0", "05:00.0")

    assert numa_node([*GPUS, gpu("01.0", "42:00.0", root="pci0000:40", numa=None)], nic) == []


def roots(gpus: list[Device], nics: list[PciFunction], where: PciFunction) -> tuple[str, ...]:
    near = NearestGpus(gpus, nics).of(where)
    return near.roots if near else ()


LONE_GPUS = [
    gpu("00.0", "01:00.0", root="pci0008:00"),
    gpu("00.0", "02:00.0", root="pci0009:00"),
    gpu("00.0", "03:00.0", root="pci0018:00", numa=1),
]


def test_a_nic_that_shares_no_root_with_a_gpu_knows_the_roots_of_its_numa_node() -> None:
    nic = function("00.0", "04:00.0", root="pci0101:00")
    far = function("00.0", "05:00.0", root="pci0103:00", numa=1)

    assert roots(LONE_GPUS, [nic, far], nic) == ("pci0008:00", "pci0009:00")
    assert roots(LONE_GPUS, [nic, far], far) == ("pci0018:00",)


def test_a_gpu_is_left_to_the_nic_below_its_own_root() -> None:
    rail, storage = (
        function("00.0", "04:00.0", root="pci0008:00"),
        function("00.0", "05:00.0", root="pci0101:00"),
    )

    assert roots(LONE_GPUS, [rail, storage], rail) == ()
    assert roots(LONE_GPUS, [rail, storage], storage) == ("pci0009:00",)


def test_a_gpu_of_another_numa_node_is_never_matched_by_its_root() -> None:
    nic = function("00.0", "04:00.0", root="pci0101:00", numa=2)

    assert roots(LONE_GPUS, [nic], nic) == ()


def test_places_are_told_apart_by_depth_too() -> None:
    near = NearestGpus([gpu("01.0")])

    assert near.of(function()) is None
    assert near.of(function("02.0")) is not None


FOUR_NODES = [
    NumaNode(0, "0-7", (10, 12, 32, 32), socket=0),
    NumaNode(1, "8-15", (12, 10, 32, 32), socket=0),
    NumaNode(2, "16-23", (32, 32, 10, 12), socket=1),
    NumaNode(3, "24-31", (32, 32, 12, 10), socket=1),
]


def test_a_nodes_list_holds_itself_first_and_then_the_near_nodes_of_its_socket() -> None:
    assert near_numa_nodes(FOUR_NODES) == {0: (0, 1), 1: (1, 0), 2: (2, 3), 3: (3, 2)}


def test_another_socket_is_never_near_even_if_it_is_the_nearest_there_is() -> None:
    nodes = [NumaNode(0, "0-7", (10, 21), socket=0), NumaNode(1, "8-15", (21, 10), socket=1)]

    assert near_numa_nodes(nodes) == {0: (0,), 1: (1,)}


def test_of_one_socket_only_the_nearest_are_taken() -> None:
    nodes = [
        NumaNode(0, "0", (10, 11, 12), socket=0),
        NumaNode(1, "1", (11, 10, 12), socket=0),
        NumaNode(2, "2", (12, 12, 10), socket=0),
    ]

    assert near_numa_nodes(nodes) == {0: (0, 1), 1: (1, 0), 2: (2, 0, 1)}


def test_distances_go_by_the_order_of_online_nodes_and_a_node_without_cpus_has_no_other_socket() -> None:
    nodes = [NumaNode(8, "", (12, 10)), NumaNode(0, "0-7", (10, 12), socket=0)]

    assert near_numa_nodes(nodes) == {0: (0, 8), 8: (8,)}


def test_of_a_node_that_is_told_twice_the_same_telling_counts_in_any_order() -> None:
    twice = [NumaNode(0, "0", (10, 12), socket=0), NumaNode(0, "0", (), socket=0), NumaNode(1, "1", (), 0)]

    assert near_numa_nodes(twice) == near_numa_nodes(twice[::-1])


@pytest.mark.parametrize(
    "nodes",
    [
        [NumaNode(0, "0-7", (10, 12)), NumaNode(1, "8-15", (12, 10))],
        [NumaNode(0, "0-7", (), socket=0), NumaNode(1, "8-15", (10,), socket=0)],
    ],
)
def test_without_sockets_or_distances_a_node_has_only_itself(nodes: list[NumaNode]) -> None:
    assert near_numa_nodes(nodes) == {0: (0,), 1: (1,)}


def test_a_node_of_memory_is_at_its_processor() -> None:
    """Grace with two GPUs, whose memory is nodes 2 and 10."""
    nodes = [
        NumaNode(0, "0-71", (10, 40, 80, 120), 0),
        NumaNode(1, "72-143", (40, 10, 120, 80), 1),
        NumaNode(2, "", (80, 120, 10, 160)),
        NumaNode(10, "", (120, 80, 160, 10)),
    ]

    assert processor_nodes(nodes) == {2: 0, 10: 1}


@pytest.mark.parametrize("distances", [(), (80, 80, 10), (80, 120)], ids=["none", "equal", "too few"])
def test_a_node_of_memory_stays_where_distances_do_not_decide(distances: tuple[int, ...]) -> None:
    nodes = [
        NumaNode(0, "0-71", (10, 40, 80)),
        NumaNode(1, "72-143", (40, 10, 80)),
        NumaNode(2, "", distances),
    ]

    assert processor_nodes(nodes) == {}
