"""The tables of the guides name the constraint and the distance that ``claim new`` finds on each machine."""

from __future__ import annotations

from pathlib import Path

import pytest

import dranet
from dranet.desk.hardware.nodes import read_hardware
from dranet.desk.templates.choose import Choice, choose_claim
from dranet.desk.templates.request import ClaimRequest
from dranet.model.facts import Distance
from tests.desk.templates.layout_clusters import Gpus, JsonObject, World, world

DOCS = Path(dranet.__file__).parents[1] / "docs/guides"
MACHINES = {
    "DGX H100, HGX B200, AWS p5": ("dgx-h100", "hgx-b200", "aws-p5"),
    "DGX A100": ("dgx-a100",),
    "Azure ND H100 v5": ("azure-nd-h100-v5",),
    "GB200, GB300": ("gb200-nvl72", "oci-gb200", "azure-gb300"),
}
RELEASES = (Gpus.VENDOR_OWN_NAMES, Gpus.VENDOR, Gpus.VENDOR_NUMA)
"""Columns of the table."""
MEMORY_NODES = (2, 10, 18, 26)
GRACE = MACHINES["GB200, GB300"]


def rows() -> dict[str, list[str]]:
    text = (DOCS / "gpus-by-nvidia-dra.md").read_text()
    table = text.partition("| machine | 25.3, 25.8 | 25.12, 0.4 | 0.5 | expect |")[2].partition("\n\n")[0]
    cells = ([cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()[2:])
    return {name: rest for name, *rest in cells}


def choose(slices: tuple[JsonObject, ...], count: int = 1) -> Choice:
    return choose_claim(ClaimRequest(count, count, rdma=True), read_hardware(slices))


def name_constraint(choice: Choice) -> str:
    """In the words of the guide."""
    shape = choice.attempt.shape
    if shape.choices:
        return "a template for each NUMA node"
    if any(relation.groups for relation in shape.relations):
        return "groups"
    (attribute,) = {constraint["matchAttribute"] for constraint in shape.constraints}
    return f"`{attribute.rpartition('/')[2]}`"


def test_the_guide_has_a_row_for_each_machine() -> None:
    assert list(rows()) == list(MACHINES)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", MACHINES)
def test_the_constraint_of_each_release_and_the_distance_are_those_of_claim_new(
    name: str, count: int
) -> None:
    *constraints, expected, _ = rows()[name]
    for layout in MACHINES[name]:
        for release, cell in zip(RELEASES, constraints, strict=True):
            choice = choose(world(layout, release).slices, count)
            assert name_constraint(choice) == cell.partition(",")[0], (layout, release)
            (trial,) = choice.attempt.trials
            assert {one for pod in trial.pods for one in pod.distances} == {Distance[expected]}
            assert trial.is_perfect


@pytest.mark.parametrize("layout", GRACE)
def test_gpus_with_the_numa_node_of_their_memory_are_grouped(layout: str) -> None:
    """As NVIDIA's driver may publish it on GB200 (kubernetes-sigs/dra-driver-nvidia-gpu#1242)."""
    assert name_constraint(choose(on_memory_nodes(world(layout, Gpus.VENDOR_NUMA)))) == "groups"


def on_memory_nodes(machine: World) -> tuple[JsonObject, ...]:
    *nics, gpus = machine.slices
    devices = [
        {**device, "attributes": {**device["attributes"], "resource.kubernetes.io/numaNode": {"int": node}}}
        for device, node in zip(gpus["spec"]["devices"], MEMORY_NODES, strict=True)
    ]
    return (*nics, {**gpus, "spec": {**gpus["spec"], "devices": devices}})


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("layout", GRACE)
def test_with_list_attributes_the_root_aligns_where_gpus_have_one(layout: str, release: Gpus) -> None:
    assert name_constraint(choose(world(layout, release, has_lists=True).slices)) == "`pcieRoot`"
