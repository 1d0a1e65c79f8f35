"""Places made up from published attributes give the distances that the hardware has, or unknown ones."""

from __future__ import annotations

import pytest

from dranet.claims.alignment import level
from dranet.desk.templates.hardware import read_hardware
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
