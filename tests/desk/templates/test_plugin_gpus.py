"""Claims beside GPUs that a device plugin gives: what is sure is best, and what is luck has the true odds."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import pytest

from dranet.claims.alignment import best_possible, level, pair, rank
from dranet.desk.hardware.nodes import read_hardware
from dranet.desk.templates.candidates import NotAvailable
from dranet.desk.templates.choose import Choice, choose_claim
from dranet.desk.templates.notes import describe
from dranet.desk.templates.plugin_notes import find_luck
from dranet.desk.templates.request import ClaimRequest
from dranet.model.device import Device
from dranet.model.facts import Distance
from tests.data.layouts import CLAIMED_LAYOUTS
from tests.desk.templates.distances import allocate_choice, best_rank, good_nics
from tests.desk.templates.layout_clusters import (
    PLUGIN_RESOURCE,
    JsonObject,
    World,
    node_of,
    plugin_world,
    world,
)

WITH_GPUS = [layout for layout in CLAIMED_LAYOUTS if layout != "plain-server"]
NVIDIA = PLUGIN_RESOURCE


def choice(*machines: World, nodes: list[JsonObject] | None = None, **asked: Any) -> Choice:
    slices = [entry for machine in machines for entry in machine.slices]
    nodes = [node_of(machine) for machine in machines] if nodes is None else nodes
    return choose_claim(ClaimRequest(**asked), read_hardware(slices, nodes))


def limits(found: Choice) -> dict[str, int]:
    (container,) = found.pods[0]["spec"]["containers"]
    return dict(container["resources"].get("limits", {}))


# --- whole nodes: sure -------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", WITH_GPUS)
def test_a_pod_with_all_gpus_of_its_node_has_the_best_nics_that_there_are(layout: str) -> None:
    machine = plugin_world(layout)
    gpus = len(machine.gpus)
    for nics in (1, gpus // 2, gpus, len(good_nics(machine, 1, rdma=True))):
        if not nics:
            continue
        found = choice(machine, gpus=gpus, nics=nics)
        given = allocate_choice(found, machine)

        assert limits(found) == {NVIDIA: gpus}
        wanted = best_rank(machine, good_nics(machine, nics, rdma=True), gpus, nics)
        assert pair(given, list(machine.gpus.values())).rank == wanted, (layout, nics)
        assert "with probability" not in " ".join(describe(found))


@pytest.mark.parametrize("asked", [{"per_node": True}, {"per_node": True, "rails": True}])
def test_per_node_asks_for_every_gpu_and_the_nics_are_in_one_claim(asked: dict[str, Any]) -> None:
    found = choice(plugin_world("aws-p5"), **asked)

    assert limits(found) == {NVIDIA: 8}
    assert [claim["name"] for claim in found.pods[0]["spec"]["resourceClaims"]] == ["devices"]
    assert len(allocate_choice(found, plugin_world("aws-p5"))) == 32


def test_a_claim_for_whole_nodes_is_for_those_with_most_gpus() -> None:
    found = choice(plugin_world("dgx-h100", "big"), plugin_world("azure-gb300", "small"), per_node=True)

    assert limits(found) == {NVIDIA: 8}
    assert "not enough on small" in describe(found)[1]


# --- a part of a node: luck --------------------------------------------------------------------------


@pytest.mark.parametrize("layout", WITH_GPUS)
@pytest.mark.parametrize("number", [1, 2])
def test_the_odds_are_those_of_the_true_places(layout: str, number: int) -> None:
    """Every choice of GPUs with every choice of the NICs that the claim may get."""
    machine = plugin_world(layout)
    if number >= len(machine.gpus):
        return
    found = choice(machine, gpus=number, nics=number)
    nics, gpus = usable(found, machine), list(machine.gpus.values())
    every = list(product(combinations(nics, number), combinations(gpus, number)))
    counts = Counter(pair(*combination).rank for combination in every)

    odds = find_luck(found, found.attempt.trials[0])
    assert odds is not None
    assert {rank(distances): share for distances, share in odds.shares} == {
        one: Fraction(times, len(every)) for one, times in counts.items()
    }


def usable(found: Choice, machine: World) -> list[Device]:
    """The NICs that the claim selects."""
    levels = {level.name for level in found.attempt.shape.levels}
    return [
        nic
        for nic in good_nics(machine, found.candidates.request.nics, found.candidates.rdma)
        if not levels or nic.attributes["dra.net/nearestGpuDistance"] in levels
    ]


@pytest.mark.parametrize("layout", [layout for layout in WITH_GPUS if layout != "virtual-node"])
def test_with_nics_of_each_numa_node_a_gpu_always_has_one_on_its_own(layout: str) -> None:
    machine = plugin_world(layout)
    found = choice(machine, gpus=1, nics=1, each_numa=True)
    given = allocate_choice(found, machine)
    near = [best_possible(given, [gpu], 1)[0] for gpu in machine.gpus.values()]
    odds = find_luck(found, found.attempt.trials[0])

    assert len({nic.numa_node for nic in given}) == len(given)
    assert odds is not None
    assert max(map(level, near)) <= max(map(level, odds.by_worst))
    if all(gpu.numa_node in {nic.numa_node for nic in given} for gpu in machine.gpus.values()):
        assert set(odds.by_worst) <= {Distance.PIX, Distance.PXB, Distance.PHB, Distance.NODE}


def test_a_numa_node_with_gpus_and_without_nics_is_named() -> None:
    with pytest.raises(NotAvailable, match="NUMA node 1 of node-1 has GPUs and 0 NICs") as refused:
        choice(plugin_world("virtual-node"), each_numa=True)
    assert "without --each-numa" in refused.value.hint


def test_notes_have_the_odds_and_what_to_do_instead() -> None:
    notes = describe(choice(plugin_world("dgx-h100")))

    assert "Expect: PIX with probability 1/8 on node-1, where 8 such pods fit." in notes
    (odds,) = (note for note in notes if note.startswith("Odds: "))
    assert odds.startswith("Odds: the NIC is PIX in 1/8, NODE in 3/8, SYS in 1/2, if every combination")
    (instead,) = (note for note in notes if note.startswith("Instead: "))
    assert "all GPUs of a node (--gpus 8 --nics 8): PIX for sure" in instead
    assert "1 NIC of each NUMA node (--each-numa): NODE or nearer for sure" in instead
    assert "a DRA driver for the GPUs instead of the device plugin: PIX" in instead


def test_where_every_combination_is_as_near_there_are_no_odds_to_tell() -> None:
    """Two GPUs of GB300 on Azure have NICs of both NUMA nodes: one each is NODE wherever the GPU is."""
    notes = describe(choice(plugin_world("azure-gb300"), each_numa=True))

    assert "Expect: NODE on node-1, where 2 such pods fit." in notes
    assert not any(note.startswith(("Odds: ", "Instead: ")) for note in notes)


# --- the resource ------------------------------------------------------------------------------------


def test_the_resource_is_what_most_nodes_with_gpus_have() -> None:
    machines = [plugin_world("mi300x", f"amd-{n}") for n in range(2)]
    other = plugin_world("dgx-h100", "nvidia")
    nodes = [node_of(machine, "amd.com/gpu") for machine in machines]
    found = choice(*machines, other, nodes=[*nodes, node_of(other)])

    assert limits(found) == {"amd.com/gpu": 1}
    assert "not enough on nvidia" in describe(found)[1]


def test_without_nodes_the_user_names_the_resource() -> None:
    machine = plugin_world("dgx-h100")

    with pytest.raises(NotAvailable, match="no claim can ask for the GPUs of node-1") as refused:
        choice(machine, nodes=[])
    assert "--gpu-resource nvidia.com/gpu" in refused.value.hint
    assert limits(choice(machine, nodes=[], gpu_resource="example.com/gpu")) == {"example.com/gpu": 1}


def test_published_gpus_are_claimed_unless_the_user_names_a_resource() -> None:
    machine = world("dgx-h100")
    nodes = [node_of(machine)]

    assert limits(choice(machine, nodes=nodes)) == {}
    found = choice(machine, nodes=nodes, gpu_resource=NVIDIA)
    notes = " ".join(describe(found))
    assert limits(found) == {NVIDIA: 1}
    assert "dra.net publishes these GPUs, but by nvidia.com/gpu a pod gets any" in notes
    assert "one claim for both (without --gpu-resource): PIX while such pairs are left" in notes
    assert [request["name"] for request in found.templates[0]["spec"]["spec"]["devices"]["requests"]] == [
        "nic"
    ]


def test_shares_of_gpus_are_no_whole_node() -> None:
    """Time slicing: 32 of the resource for 8 GPUs. A pod with 8 of them may have two GPUs or eight."""
    machine = plugin_world("dgx-h100")
    notes = describe(choice(machine, nodes=[node_of(machine, number=32)], gpus=8, nics=8))

    assert "8 GPUs (nvidia.com/gpu: 32, parts or shares of them)" in notes[1]
    assert not any("takes all GPUs" in note or "for sure" in note for note in notes)


def test_a_gpu_that_is_not_allocatable_leaves_no_whole_node() -> None:
    """Seven of eight are healthy, and the pod's are any."""
    sick, well = plugin_world("dgx-h100", "sick"), plugin_world("dgx-h100", "well")
    nodes = [node_of(sick, number=7), node_of(well)]

    assert "not enough on sick" in describe(choice(sick, well, nodes=nodes, gpus=8, nics=8))[1]
    notes = describe(choice(sick, nodes=nodes[:1], gpus=7, nics=7))
    assert "8 GPUs (nvidia.com/gpu: 7 allocatable)" in notes[1]
    assert any(note.startswith("Odds: the farthest of 7 NICs is ") for note in notes)


def test_nics_of_each_numa_node_are_for_a_device_plugin_alone() -> None:
    with pytest.raises(NotAvailable, match="--each-numa is for GPUs that a device plugin gives"):
        choice(world("dgx-h100"), each_numa=True)
