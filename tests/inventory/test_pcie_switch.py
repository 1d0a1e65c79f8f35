"""``dra.net/pcieSwitch``: what has it in common is ``PIX``, and nothing else is, on every layout."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.inventory.slices import describe_pci
from dranet.model import attributes as a
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Distance, PciFunction, distance
from tests.data.layouts import LAYOUTS, take_layout

SWITCH = a.PCIE_SWITCH.qualified


@pytest.mark.parametrize("layout", LAYOUTS)
def test_devices_on_one_switch_are_pix_and_all_that_are_pix_are_on_one_switch(layout: str) -> None:
    devices = [d.device for d in take_layout(layout) if d.device.pci_path]
    for one, other in combinations(devices, 2):
        same = one.attributes.get(SWITCH) == other.attributes.get(SWITCH) is not None
        assert same == (distance(one, other) is Distance.PIX), (one.name, other.name)


paths = st.lists(st.sampled_from("ab"), min_size=1, max_size=6).map(
    lambda ways: tuple("".join(ways[: depth + 1]) for depth in range(len(ways)))
)
"""Ways through a tree whose nodes are named by the way to them, as PCI addresses are unique."""


@given(paths, paths)
def test_in_any_tree_a_common_switch_is_pix(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    switches = [
        describe_pci(PciFunction(path[-1], 0x020000, 1, 1, path=path))[a.PCIE_SWITCH] for path in (one, other)
    ]
    devices = [
        Device(path[-1], DeviceKind.NIC, pci_path=path, pcie_root="pci0000:00") for path in (one, other)
    ]

    if switches[0] is not None and switches[0] == switches[1]:
        assert distance(*devices) is Distance.PIX


def test_a_function_on_the_root_bus_is_on_no_switch() -> None:
    assert describe_pci(PciFunction("f", 0x020000, 1, 1, path=("f",)))[a.PCIE_SWITCH] is None
