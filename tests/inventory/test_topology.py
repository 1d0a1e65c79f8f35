"""Distances are those of nvidia-smi, symmetric, and unknown where the facts are missing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.inventory.topology import Nearest, TopologyNode, matrix, nearest, short_names, topology_tree
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Distance, distance


def device(name: str, *path: str, root: str = "pci0000:20", numa: int | None = 0) -> Device:
    return Device(name, DeviceKind.NIC, pcie_root=root if path else "", pci_path=path, numa_node=numa)


GPU = device("gpu", "20:02.0", "23:00.0", "24:01.0", "26:00.0")


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (device("same switch", "20:02.0", "23:00.0", "24:00.0", "25:00.0"), Distance.PIX),
        (device("same card", "20:02.0", "23:00.0", "24:01.0", "26:00.1"), Distance.PIX),
        (
            device("second switch", "20:02.0", "23:00.0", "24:02.0", "27:00.0", "28:00.0", "29:00.0"),
            Distance.PXB,
        ),
        (device("other switch", "20:02.0", "33:00.0", "34:00.0", "35:00.0"), Distance.PXB),
        (device("other root port", "20:01.0", "22:00.0"), Distance.PHB),
        (device("other root", "40:01.0", "41:00.0", root="pci0000:40"), Distance.NODE),
        (device("other socket", "80:01.0", "81:00.0", root="pci0000:80", numa=1), Distance.SYS),
        (device("no NUMA", "80:01.0", "81:00.0", root="pci0000:80", numa=None), None),
        (device("no PCI"), None),
    ],
    ids=lambda value: value.name if isinstance(value, Device) else "",
)
def test_distance_is_that_of_the_deepest_common_bridge(other: Device, expected: Distance | None) -> None:
    assert distance(GPU, other) == expected
    assert distance(other, GPU) == expected


def test_smaller_is_nearer() -> None:
    assert sorted(Distance) == [Distance.PIX, Distance.PXB, Distance.PHB, Distance.NODE, Distance.SYS]


# A virtual machine may show each virtual function in a PCI domain of its own (Azure does): no common root.
VF_NEAR = Device("vf", DeviceKind.NIC, pcie_root="pci8001:00", pci_path=("8001:00:02.0",), numa_node=0)
GPU_NEAR = Device("gpu", DeviceKind.GPU, pcie_root="pci0001:00", pci_path=("0001:00:00.0",), numa_node=0)


@pytest.mark.parametrize(("numa", "expected"), [(0, Distance.NODE), (1, Distance.SYS), (None, None)])
def test_without_a_common_root_the_numa_nodes_decide(numa: int | None, expected: Distance | None) -> None:
    assert distance(replace(VF_NEAR, numa_node=numa), GPU_NEAR) == expected


def test_a_virtual_function_is_as_far_as_its_own_path_says() -> None:
    port = ("20:02.0", "23:00.0", "24:00.0")
    physical, virtual = device("pf", *port, "25:00.0"), device("vf", *port, "25:00.2")
    elsewhere = device("moved vf", "40:01.0", "41:00.2", root="pci0000:40")
    assert distance(physical, virtual) == Distance.PIX
    assert distance(virtual, GPU) == distance(physical, GPU) == Distance.PIX
    assert distance(elsewhere, GPU) == Distance.NODE


def test_two_devices_right_below_one_host_bridge_meet_in_it() -> None:
    assert distance(device("a", "00:03.0"), device("b", "00:04.0")) == Distance.PHB


def test_the_matrix_has_gpus_first_and_equals_the_distances() -> None:
    near = device("near", "20:02.0", "23:00.0", "24:00.0", "25:00.0")
    lost = device("lost")
    gpu = replace(GPU, kind=DeviceKind.GPU)

    found = matrix([near, lost, gpu])

    assert found.devices == (gpu, near, lost)
    assert found.cells == ((None, Distance.PIX, None), (Distance.PIX, None, None), (None, None, None))


def test_the_nearest_are_all_at_the_smallest_known_distance() -> None:
    near = device("near", "20:02.0", "23:00.0", "24:00.0", "25:00.0")
    as_near = device("as near", "20:02.0", "23:00.0", "24:03.0", "2a:00.0")
    far, lost = device("far", "80:01.0", root="pci0000:80", numa=1), device("lost")
    assert nearest(GPU, [far, near, lost, as_near]) == Nearest(Distance.PIX, (near, as_near))
    assert nearest(GPU, [lost]) is None
    assert nearest(GPU, []) is None


def test_short_names_count_gpus_and_all_others_apart() -> None:
    gpu = Device("g", DeviceKind.GPU)
    rdma = Device("r", DeviceKind.RDMA)
    assert short_names([device("a"), gpu, rdma]) == {"a": "NIC0", "g": "GPU0", "r": "NIC1"}


def test_each_word_has_a_meaning() -> None:
    assert len({word.meaning for word in Distance}) == len(Distance)


PATHS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=5).map(tuple)


@given(a=PATHS, b=PATHS, roots=st.tuples(st.booleans(), st.booleans()), numa=st.sampled_from([0, 1, None]))
def test_distance_is_symmetric_and_a_device_is_nearest_to_itself(
    a: tuple[str, ...], b: tuple[str, ...], roots: tuple[bool, bool], numa: int | None
) -> None:
    x = device("x", *a, root=f"pci{roots[0]}")
    y = device("y", *b, root=f"pci{roots[1]}", numa=numa)

    assert distance(x, y) == distance(y, x)
    assert distance(x, x) == (Distance.PIX if len(a) >= 1 else None)


def test_the_tree_nests_numa_nodes_roots_and_bridges_and_loses_no_device() -> None:
    devices = [
        GPU,
        device("nic", "20:02.0", "23:00.0", "24:00.0", "25:00.0"),
        device("far", "80:01.0", "81:00.0", root="pci0000:80", numa=1),
        device("soft"),
    ]

    near, far, plain = topology_tree(devices)

    assert (near.label, far.label) == ("NUMA node 0", "NUMA node 1")
    assert plain == TopologyNode("no PCI", ("soft",))
    switch = near.children[0].children[0].children[0]
    assert switch.label == "23:00.0"
    assert [child.children[0].devices for child in switch.children] == [("nic",), ("gpu",)]
    assert sorted(_names(topology_tree(devices))) == ["far", "gpu", "nic", "soft"]


def _names(nodes: tuple[TopologyNode, ...]) -> list[str]:
    return list(itertools.chain.from_iterable([*node.devices, *_names(node.children)] for node in nodes))
