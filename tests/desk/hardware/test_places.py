"""Places made up from published attributes give the distances that the hardware has, or unknown ones."""

from __future__ import annotations

from typing import Any

import pytest

from dranet.claims.alignment import level
from dranet.desk.hardware.nodes import read_hardware
from dranet.model.facts import Distance, distance
from tests.data.layouts import LAYOUTS
from tests.desk.templates.layout_clusters import Gpus, World, world


def told_and_true(machine: World) -> list[tuple[Distance | None, Distance | None]]:
    (node,) = read_hardware(machine.slices).nodes
    return [
        (distance(nic, gpu), distance(machine.nics[nic.name], machine.gpus[gpu.name]))
        for nic in node.nics
        for gpu in node.gpus
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_with_our_gpus_every_distance_is_as_it_is(layout: str) -> None:
    assert [pair for pair in told_and_true(world(layout)) if pair[0] is not pair[1]] == []


@pytest.mark.parametrize("gpus", [Gpus.VENDOR, Gpus.VENDOR_NUMA, Gpus.VENDOR_NO_ROOT])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_with_a_vendors_gpus_none_is_told_nearer_than_it_is(layout: str, gpus: Gpus) -> None:
    assert [pair for pair in told_and_true(world(layout, gpus)) if level(pair[0]) < level(pair[1])] == []


@pytest.mark.parametrize("gpus", [Gpus.VENDOR, Gpus.VENDOR_NUMA, Gpus.VENDOR_NO_ROOT])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_nearest_gpu_of_each_nic_is_known_whoever_publishes_it(layout: str, gpus: Gpus) -> None:
    machine = world(layout, gpus)
    (node,) = read_hardware(machine.slices).nodes
    for nic in node.nics:
        told = [distance(nic, gpu) for gpu in node.gpus]
        true = [distance(machine.nics[nic.name], gpu) for gpu in machine.gpus.values()]
        assert min(map(level, told), default=0) == min(map(level, true), default=0), nic.name


GPU_LAYOUTS = [layout for layout in LAYOUTS if world(layout).gpus and world(layout).nics]


@pytest.mark.parametrize("gpus", [kind for kind in Gpus if kind is not Gpus.OURS])
@pytest.mark.parametrize("layout", GPU_LAYOUTS)
def test_no_distance_from_a_vendors_gpu_is_unknown_where_the_machine_knows_it(
    layout: str, gpus: Gpus
) -> None:
    unknown = [pair for pair in told_and_true(world(layout, gpus)) if pair[0] is None and pair[1] is not None]

    assert unknown == []


@pytest.mark.parametrize("layout", GPU_LAYOUTS)
def test_gpus_that_no_driver_publishes_are_known_by_what_the_nics_name(layout: str) -> None:
    machine = world(layout, Gpus.VENDOR)
    (node,) = read_hardware([entry for entry in machine.slices if entry["spec"]["driver"] == "dra.net"]).nodes
    true = {gpu.pci_address: gpu for gpu in machine.gpus.values()}
    told = [
        (distance(nic, gpu), distance(machine.nics[nic.name], true[gpu.address]))
        for nic in node.nics
        for gpu in node.named_gpus
    ]

    assert node.gpus == ()
    assert {gpu.address for gpu in node.named_gpus} <= set(true)
    assert [pair for pair in told if level(pair[0]) < level(pair[1])] == []
    assert any(node.named_gpus)


def test_a_gpu_that_is_published_and_tainted_is_not_one_that_no_driver_publishes() -> None:
    machine = world("dgx-h100", Gpus.VENDOR)
    slices = [
        with_taint(entry) if entry["spec"]["driver"] != "dra.net" else entry for entry in machine.slices
    ]
    (node,) = read_hardware(slices).nodes

    assert (node.gpus, node.named_gpus) == ((), ())


def with_taint(entry: dict[str, Any]) -> dict[str, Any]:
    taint = {"key": "broken", "effect": "NoExecute"}
    devices = [{**device, "taints": [taint]} for device in entry["spec"]["devices"]]
    return {**entry, "spec": {**entry["spec"], "devices": devices}}


OF_DRANET = ("rdma", "virtual", "type", "ifName", "rdmaDevice", "pcieRoot", "numaNode", "pciAddress")


def without_our_words(machine: World) -> list[dict[str, Any]]:
    """As DraNet publishes the NICs."""
    return [only_words(entry) if entry["spec"]["driver"] == "dra.net" else entry for entry in machine.slices]


def only_words(entry: dict[str, Any]) -> dict[str, Any]:
    devices = [
        {
            **device,
            "attributes": {
                n: v for n, v in device["attributes"].items() if n.rpartition("/")[2] in OF_DRANET
            },
        }
        for device in entry["spec"]["devices"]
    ]
    return {**entry, "spec": {**entry["spec"], "devices": devices}}


@pytest.mark.parametrize("layout", ["azure-gb300", "azure-nd-h100-v5", "oci-gb200"])
def test_beside_dranets_nics_the_place_of_a_gpu_is_assumed_by_the_convention_of_the_platform(
    layout: str,
) -> None:
    machine = world(layout, Gpus.VENDOR)
    (node,) = read_hardware(without_our_words(machine)).nodes
    told = {gpu.address: gpu.numa_node for gpu in node.gpus}

    assert node.assumption is not None
    assert told == {gpu.pci_address: gpu.numa_node for gpu in machine.gpus.values()}


@pytest.mark.parametrize("layout", ["dgx-h100", "aws-p5", "mi300x"])
def test_nothing_is_assumed_of_other_machines(layout: str) -> None:
    (node,) = read_hardware(without_our_words(world(layout, Gpus.VENDOR))).nodes

    assert node.assumption is None


@pytest.mark.parametrize("layout", GPU_LAYOUTS)
def test_nothing_is_assumed_beside_our_nics(layout: str) -> None:
    (node,) = read_hardware(world(layout, Gpus.VENDOR).slices).nodes

    assert node.assumption is None
