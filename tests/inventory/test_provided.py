"""What providers say becomes attributes: of the node, of a NIC by its hardware address, of an RDMA device."""

from __future__ import annotations

from msgspec.structs import replace

from dranet.inventory.offer import take_inventory
from dranet.inventory.slices import plan_slices
from dranet.model.facts import NodeFacts, ProvidedAttribute, ProvidedFacts
from tests.data.layouts import read_layout

BLOCK = ProvidedAttribute("gce.dra.net/block", string="b1")
NUMBER = ProvidedAttribute("gce.dra.net/networkProjectNumber", integer=7)
LEAF = ProvidedAttribute("coreweave.dra.net/leafSwitch", string="leaf-1")


def facts_with(*provided: ProvidedFacts) -> NodeFacts:
    return replace(read_layout("dgx-h100").facts, provided=provided)


def test_each_fact_reaches_the_devices_that_it_is_about() -> None:
    plain = {d.device.name: d.device for d in take_inventory(facts_with(), {}) if d.published}
    nic = next(device for device in plain.values() if device.rdma_device and device.ifname)
    mac = str(nic.attributes["dra.net/mac"])
    facts = facts_with(
        ProvidedFacts(attributes=(BLOCK,)),
        ProvidedFacts(mac=mac.upper(), attributes=(NUMBER,)),
        ProvidedFacts(rdma_device=nic.rdma_device, attributes=(LEAF,)),
    )
    found = {d.device.name: d.device for d in take_inventory(facts, {}) if d.published}
    assert all(device.attributes["gce.dra.net/block"] == "b1" for device in found.values())
    with_number = {name for name, d in found.items() if "gce.dra.net/networkProjectNumber" in d.attributes}
    with_leaf = {name for name, d in found.items() if "coreweave.dra.net/leafSwitch" in d.attributes}
    assert with_number == with_leaf == {nic.name}
    assert found[nic.name].attributes["gce.dra.net/networkProjectNumber"] == 7


def test_they_have_a_place_in_the_slice_before_what_is_nice_to_know() -> None:
    facts = facts_with(ProvidedFacts(attributes=(BLOCK, NUMBER, LEAF)))
    devices = [decision.device for decision in take_inventory(facts, {}) if decision.published]
    for page in plan_slices(devices).pages:
        for device in page:
            assert {BLOCK.name, NUMBER.name, LEAF.name} <= device.attributes.keys()
            assert len(device.attributes) <= 32


def test_a_device_that_a_pod_has_keeps_what_was_recorded() -> None:
    before = next(d.device for d in take_inventory(facts_with(), {}) if d.published)
    facts = facts_with(ProvidedFacts(attributes=(BLOCK,)))
    after = {d.device.name: d.device for d in take_inventory(facts, {before.name: before})}
    assert BLOCK.name not in after[before.name].attributes
