"""Distances are those of nvidia-smi, symmetric, and unknown where the facts are missing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.inventory.topology import Distance, TopologyNode, distance, topology_tree
from dranet.model.device import Device, DeviceKind


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
