"""Rails from what switches announce, and cables that are on the wrong one."""

from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.inventory.build import build_devices
from dranet.inventory.cabling import find_rail, find_unordered, find_wires, judge_cabling
from dranet.inventory.policy import Policy
from dranet.inventory.slices import fit_attributes
from dranet.model.device import AttributeValue, Device, DeviceKind
from dranet.model.facts import Link, LldpNeighbour, NodeFacts, PciFunction

LEAF = LldpNeighbour("eth0", "02:00:00:00:57:01", "Ethernet1/5", "pod1-leaf-03", "gpu-7 rail 2")
PF, VF = "0000:1a:00.0", "0000:1a:00.2"


@pytest.mark.parametrize(
    ("pattern", "rail"),
    [
        (r"leaf-(\d+)", 3),
        (r"rail (\d+)$", 2),
        (r"Ethernet1/(\d+) ", 5),
        (r"^leaf-(\d+)", None),
        (r"(gpu)", None),
        (r"gpu-7( x)?", None),
        (r"(\d{10,})", None),
    ],
)
def test_the_pattern_finds_the_rail_in_name_port_or_description(pattern: str, rail: int | None) -> None:
    assert find_rail(LEAF, re.compile(pattern)) == rail


def test_digits_of_other_scripts_are_no_number() -> None:
    assert find_rail(LldpNeighbour("eth0", "c", "p", "leaf-٣"), re.compile(r"leaf-(\d+)")) is None


def nic(number: int, rail: AttributeValue | None, gpus: str = "", **more: AttributeValue) -> Device:
    values = {"rail": rail, "ifName": f"eth{number}", "nearestGpus": gpus or None, **more}
    attributes = {f"dra.net/{name}": value for name, value in values.items() if value is not None}
    return Device(f"nic-{number}", DeviceKind.NIC, attributes, pci_address=f"0000:{number:02x}:00.0")


def wrong(devices: list[Device], **expected: int) -> list[tuple[str, str]]:
    return [(one.ifname, one.expected) for one in judge_cabling(devices, expected).wrong]


def test_with_expected_rails_each_other_rail_is_wrong_and_what_they_do_not_name_is_not_judged() -> None:
    swapped = [nic(0, 0, switchName="leaf-0", switchPortId="swp1"), nic(1, 2), nic(2, 1), nic(3, 9)]
    judgement = judge_cabling(swapped, {"eth0": 0, "eth1": 1, "0000:02:00.0": 2, "eth7": 7})
    assert judgement.judged == {"nic-0", "nic-1", "nic-2"}
    assert [(one.device, one.found, one.expected) for one in judgement.wrong] == [
        ("nic-1", "rail 2", "rail 1"),
        ("nic-2", "rail 1", "rail 2"),
    ]


def test_without_expected_rails_two_nics_on_one_rail_are_wrong_and_swapped_ones_are_not_judged_so() -> None:
    assert [name for name, _ in wrong([nic(0, 0), nic(1, 1), nic(2, 1), nic(3, 3)])] == ["eth1", "eth2"]
    assert wrong([nic(0, 1), nic(1, 0), nic(2, 2)]) == []


def test_a_fabric_with_two_nics_on_each_rail_or_with_one_switch_has_no_wrong_cable() -> None:
    assert wrong([nic(0, 0), nic(1, 0), nic(2, 1), nic(3, 1)]) == []
    assert wrong([nic(0, 0), nic(1, 0), nic(2, 0)]) == []
    assert judge_cabling([nic(0, None), nic(1, 3)], {}).judged == frozenset()
    assert judge_cabling([], {}).judged == frozenset()


def test_a_cable_on_a_switch_without_a_rail_is_wrong_where_a_rail_is_expected() -> None:
    devices = [
        nic(0, None, switchName="storage-sw1", switchPortId="swp7"),
        nic(1, None, switchChassisId="02:00:00:00:57:01"),
        nic(2, None),
        nic(3, None, switchName="storage-sw1", isSriovVf=True),
        nic(4, None, switchName="storage-sw1"),
    ]
    judgement = judge_cabling(devices, {f"eth{number}": number for number in range(4)})
    assert judgement.judged == {"nic-0", "nic-1"}, "no switch is heard on eth2, and eth4 is not named"
    assert [(one.ifname, one.found, one.expected) for one in judgement.wrong] == [
        ("eth0", "storage-sw1 swp7", "rail 0"),
        ("eth1", "02:00:00:00:57:01", "rail 1"),
    ]
    assert judge_cabling(devices, {}).judged == frozenset()


@given(st.lists(st.integers(0, 3), max_size=8), st.randoms())
def test_the_order_of_nics_does_not_matter(rails: list[int], random: Random) -> None:
    devices = [nic(number, rail) for number, rail in enumerate(rails)]
    shuffled = random.sample(devices, len(devices))
    assert sorted(wrong(shuffled)) == sorted(wrong(devices))


@given(st.permutations([0, 1, 1]))
def test_it_is_not_known_where_as_many_rails_have_two_nics_as_have_one(rails: list[int]) -> None:
    assert judge_cabling([nic(number, rail) for number, rail in enumerate(rails)], {}).judged == frozenset()


def test_virtual_functions_share_the_cable_and_are_not_counted() -> None:
    functions = [nic(10 + number, 1, isSriovVf=True) for number in range(4)]
    assert wrong([nic(0, 0), nic(1, 1), *functions]) == []


def test_rails_out_of_the_order_of_gpus_are_a_hint_and_nics_of_the_same_gpus_have_any_order() -> None:
    def unordered(*devices: Device) -> list[str]:
        return [device.name for device in find_unordered(devices)]

    assert unordered(nic(0, 1, "a"), nic(1, 0, "b"), nic(2, 2, "c"), nic(3, 7)) == ["nic-0", "nic-1"]
    assert unordered(nic(0, 0, "a"), nic(1, 4, "b"), nic(2, 9, "c")) == []
    assert unordered(nic(0, 1, "a,b"), nic(1, 0, "a,b"), nic(2, 2, "c,d")) == []


def link(index: int, ifname: str, address: str = "", **more: object) -> Link:
    return Link(index, ifname, pci_address=address, parent_device=address, **more)  # type: ignore[arg-type]


def test_wires_are_physical_ethernet_links_and_kinds_that_are_offered() -> None:
    facts = NodeFacts(
        links=(
            link(1, "lo", virtual=True),
            link(2, "eth0", PF),
            link(3, "vf0", VF),
            link(4, "ib0", "0000:2a:00.0", arp_type=32),
            link(5, "rep", PF, phys_port_name="pf0vf3"),
            link(6, "p0", "0000:3a:00.0", phys_port_name="p0"),
            link(7, "veth0", kind="veth", virtual=True),
            link(8, "usb0"),
        ),
        pci_functions=(PciFunction(VF, 0x020000, 1, 1, physical_function=PF),),
    )
    assert [wire.ifname for wire in find_wires(facts)] == ["eth0", "p0", "usb0"]
    assert [wire.ifname for wire in find_wires(facts, {"veth"})] == ["eth0", "p0", "veth0", "usb0"]


def test_a_virtual_function_has_the_switch_of_its_physical_function() -> None:
    facts = NodeFacts(
        links=(link(2, "eth0", PF), link(3, "vf0", VF)),
        pci_functions=(
            PciFunction(PF, 0x020000, 1, 1),
            PciFunction(VF, 0x020000, 1, 1, physical_function=PF),
        ),
        lldp_neighbours=(LEAF,),
    )
    for device in build_devices(facts, {}, Policy(rail_pattern=re.compile(r"rail (\d+)"))):
        found = {name: device.attributes.get(f"dra.net/{name}") for name in ("switchName", "switchPortId")}
        assert found == {"switchName": "pod1-leaf-03", "switchPortId": "Ethernet1/5"}
        assert device.attributes["dra.net/switchChassisId"] == "02:00:00:00:57:01"
        assert device.attributes["dra.net/rail"] == 2


def test_a_name_that_is_too_long_is_cut_and_one_that_is_missing_left_out() -> None:
    def attributes(name: str) -> dict[str, AttributeValue]:
        neighbour = LldpNeighbour("eth0", "c", "p", name)
        facts = NodeFacts(
            links=(link(2, "eth0", PF),),
            pci_functions=(PciFunction(PF, 0x020000, 1, 1),),
            lldp_neighbours=(neighbour,),
        )
        (device,) = build_devices(facts, {})
        return dict(fit_attributes(device).kept)

    assert attributes("ä" * 100)["dra.net/switchName"] == "ä" * 32
    assert "dra.net/switchName" not in attributes("")
    assert "dra.net/rail" not in attributes("leaf-1")
