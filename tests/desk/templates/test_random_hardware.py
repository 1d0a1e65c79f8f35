"""On machines that nobody builds: the claim gets the best that brute force finds, or says that it cannot.

Two measures. By what is published the claim must be the best there is, or say that none is sure to be.
By the true places it may be worse only where it says that not everything was told.
"""

from __future__ import annotations

from copy import deepcopy
from random import Random

import pytest

from dranet.claims.alignment import pair
from dranet.desk.hardware.nodes import read_hardware
from dranet.desk.templates.choose import Choice, choose_claim
from dranet.desk.templates.notes import describe
from dranet.desk.templates.request import ClaimRequest
from tests.desk.templates.distances import allocate_choice
from tests.desk.templates.layout_clusters import Gpus, World, build_world, world
from tests.desk.templates.random_machines import best_by_brute_force, random_machine

NOT_SURE, NOT_TOLD = "can be sure to get", "Not published: "


@pytest.mark.parametrize("gpus", Gpus)
def test_a_claim_is_the_best_on_an_empty_node(gpus: Gpus) -> None:
    for seed in range(120):
        random = Random(seed)
        machine = build_world(random_machine(random), gpus)
        ask = ClaimRequest(random.randint(1, len(machine.gpus)), random.randint(1, len(machine.nics)))
        choice = choose_claim(ask, read_hardware(machine.slices))
        check(choice, machine, seed)


def test_a_claim_for_unlike_nodes_is_the_best_on_each_or_says_on_which_it_is_not() -> None:
    for seed in range(60):
        random = Random(seed)
        machines = [build_world(random_machine(random), node=f"node-{number}") for number in (1, 2)]
        ask = ClaimRequest(
            random.randint(1, min(len(machine.gpus) for machine in machines)),
            random.randint(1, min(len(machine.nics) for machine in machines)),
        )
        choice = choose_claim(ask, read_hardware([entry for one in machines for entry in one.slices]))
        for machine in machines:
            check(choice, machine, seed)


def test_nodes_whose_gpu_driver_is_of_two_versions_each_get_the_best_or_are_said_not_to() -> None:
    versions = [Gpus.VENDOR, Gpus.VENDOR_NUMA, Gpus.VENDOR_NO_ROOT]
    for seed in range(60):
        random = Random(seed)
        facts = random_machine(random)
        two = [build_world(facts, gpus, f"node-{gpus.name}") for gpus in random.sample(versions, 2)]
        ask = ClaimRequest(random.randint(1, len(two[0].gpus)), random.randint(1, len(two[0].nics)))
        choice = choose_claim(ask, read_hardware([entry for one in two for entry in one.slices]))
        refused = {trial.node for trial in choice.attempt.trials if not trial.pods}
        for machine in two:
            if machine.node not in refused:
                check(choice, machine, seed)


def test_a_gpu_without_the_attribute_of_one_rung_can_still_be_chosen_on_the_others() -> None:
    """A constraint refuses every device without its attribute, whichever alternative the NIC has."""
    machines = [world("azure-nd-h100-v5"), _without_numa_nodes(world("dgx-h100", node="node-2"))]
    choice = choose_claim(ClaimRequest(), read_hardware([entry for one in machines for entry in one.slices]))

    assert all(len(trial.pods) == 8 for trial in choice.attempt.trials)
    assert all(len(allocate_choice(choice, machine)) == 2 for machine in machines)


def _without_numa_nodes(machine: World) -> World:
    slices = deepcopy(machine.slices)
    for device in (device for entry in slices for device in entry["spec"]["devices"]):
        for name in ("dra.net/numaNode", "resource.kubernetes.io/numaNode"):
            device["attributes"].pop(name, None)
            device["attributes"].pop(name.removeprefix("dra.net/"), None)
    return machine.only(slices)


def test_the_output_does_not_depend_on_the_order_of_the_slices() -> None:
    for seed in range(30):
        random = Random(seed)
        kind = random.choice(list(Gpus))
        slices = [
            entry
            for number in (1, 2)
            for entry in build_world(random_machine(random), kind, f"node-{number}").slices
        ]
        first = choose_claim(ClaimRequest(), read_hardware(slices))
        random.shuffle(slices)
        again = choose_claim(ClaimRequest(), read_hardware(slices))

        assert (again.manifests, describe(again)) == (first.manifests, describe(first)), seed


def check(choice: Choice, machine: World, seed: int) -> None:
    ask = choice.candidates.request
    given = {device.name for device in allocate_choice(choice, machine)}
    notes = " ".join(describe(choice))
    node = next(one for one in choice.hardware.nodes if one.name == machine.node)
    told = pair(
        [nic for nic in node.nics if nic.name in given], [gpu for gpu in node.gpus if gpu.name in given]
    ).rank
    if told != best_by_brute_force(node.nics, node.gpus, ask.nics, ask.gpus):
        assert NOT_SURE in notes, (seed, ask)
    nics, gpus = list(machine.nics.values()), list(machine.gpus.values())
    true = pair([n for n in nics if n.name in given], [g for g in gpus if g.name in given]).rank
    if true != best_by_brute_force(nics, gpus, ask.nics, ask.gpus):
        assert NOT_SURE in notes or NOT_TOLD in notes, (seed, ask)
