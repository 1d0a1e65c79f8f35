"""``dranet claim new --rails`` where switches, or a rule, name the rail of each NIC."""

from __future__ import annotations

from copy import deepcopy

import pytest

from dranet.desk.hardware.nodes import read_hardware
from dranet.desk.templates.choose import Choice, choose_claim
from dranet.desk.templates.request import ClaimRequest
from dranet.model.facts import Distance
from tests.desk.templates.distances import allocate_choice, distances_of
from tests.desk.templates.layout_clusters import World, world


def on_rails(machine: World, rails: dict[str, int]) -> World:
    slices = deepcopy(list(machine.slices))
    for entry in slices:
        for device in entry["spec"]["devices"]:
            if device["name"] in rails:
                device["attributes"]["dra.net/rail"] = {"int": rails[device["name"]]}
    return machine.only(slices)


def compute_nics(machine: World) -> list[str]:
    """Those beside the GPUs, in their order."""
    given = allocate_choice(choice(machine, ClaimRequest(per_node=True, rails=True)), machine)
    return [device.name for device in given if device.kind != "gpu"]


def choice(*machines_and_request: World | ClaimRequest) -> Choice:
    *machines, request = machines_and_request
    slices = [entry for machine in machines if isinstance(machine, World) for entry in machine.slices]
    assert isinstance(request, ClaimRequest)
    return choose_claim(request, read_hardware(slices))


def selected(found: Choice) -> dict[str, str]:
    """Each rail's request with its last selector."""
    requests = found.first_templates[0]["spec"]["spec"]["devices"]["requests"]
    return {
        one["name"]: one["exactly"]["selectors"][-1]["cel"]["expression"]
        for one in requests
        if one["name"].startswith("rail-")
    }


@pytest.fixture(scope="module")
def nics() -> list[str]:
    return compute_nics(world("dgx-h100"))


def test_the_claim_follows_the_cabling_where_it_differs_between_nodes(nics: list[str]) -> None:
    straight = on_rails(world("dgx-h100", node="a"), {name: n + 1 for n, name in enumerate(nics)})
    crossed = on_rails(world("dgx-h100", node="b"), {name: 8 - n for n, name in enumerate(nics)})
    found = choice(straight, crossed, ClaimRequest(per_node=True, rails=True))

    assert selected(found) == {
        f"rail-{rail}": f'device.attributes["dra.net"].?rail.orValue(-1) == {rail}' for rail in range(1, 9)
    }
    assert found.attempt.shape.title.endswith("by its rail")
    for machine, order in ((straight, nics), (crossed, nics[::-1])):
        given = [d.name for d in allocate_choice(found, machine) if d.kind != "gpu"]
        assert given == order


def test_a_part_of_a_node_has_each_gpu_beside_the_nic_of_its_rail(nics: list[str]) -> None:
    machine = on_rails(world("dgx-h100"), {name: n for n, name in enumerate(nics)})
    found = choice(machine, ClaimRequest(3, 3, rails=True))

    assert len(selected(found)) == 3
    assert all("rail.orValue" in expression for expression in selected(found).values())
    assert distances_of(allocate_choice(found, machine), machine) == (Distance.PIX,) * 3


def test_where_some_rail_is_not_known_or_has_two_nics_addresses_are_selected(nics: list[str]) -> None:
    lacking = {name: n for n, name in enumerate(nics[:-1])}
    for rails in (lacking, lacking | {nics[-1]: 0}):
        found = choice(on_rails(world("dgx-h100"), rails), ClaimRequest(per_node=True, rails=True))
        assert all("rail.orValue" not in expression for expression in selected(found).values())
        assert found.attempt.shape.title.endswith("by its PCI address")
