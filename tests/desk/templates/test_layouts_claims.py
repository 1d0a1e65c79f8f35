"""For every layout, whoever publishes the GPUs: the claim gets the best distance that the machine has.

What is best is told from the facts of the capture, not from what was published; which devices a claim gets is
told by the allocator, not by the generator.
"""

from __future__ import annotations

from copy import deepcopy
from random import Random

import pytest

from dranet.desk.hardware.nodes import read_hardware
from dranet.desk.kubeapi.kinds import DEVICE_CLASSES, PODS, RESOURCE_CLAIM_TEMPLATES
from dranet.desk.kubeapi.validation import validate
from dranet.desk.templates.candidates import NotAvailable
from dranet.desk.templates.choose import Choice, choose_claim
from dranet.desk.templates.notes import describe
from dranet.desk.templates.request import ClaimRequest
from dranet.model.device import Device
from tests.data.layouts import LAYOUTS
from tests.desk.templates.distances import allocate_choice, best_rank, good_nics, has_rdma, rank_of
from tests.desk.templates.layout_clusters import Gpus, World, world

COUNTS = range(1, 9)
NOT_SURE = "can be sure to get"
KINDS = {kind.kind: kind for kind in (DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, PODS)}


def counts_of_nics(gpu_count: int) -> list[int]:
    """One, one less than GPUs, as many, one more, and two for each GPU."""
    return sorted({1, max(1, gpu_count - 1), gpu_count, gpu_count + 1, 2 * gpu_count})


@pytest.mark.parametrize("gpus", [gpus for gpus in Gpus if gpus is not Gpus.VENDOR_OWN_NAMES])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_generated_claim_gets_the_best_distance_or_is_refused_for_a_reason(layout: str, gpus: Gpus) -> None:
    machine = world(layout, gpus)
    rdma = has_rdma(machine)
    for gpu_count in COUNTS:
        for nic_count in counts_of_nics(gpu_count):
            check(machine, gpu_count, nic_count, rdma)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_claim_is_the_best_in_whatever_order_the_driver_lists_its_gpus(layout: str, count: int) -> None:
    """NVIDIA's and Intel's drivers have no fixed one, so it differs from node to node."""
    machine = world(layout, Gpus.VENDOR)
    nics, choice = nics_and_choice(machine, count)
    if choice is None:
        return
    for seed in range(5):
        other = in_another_order(machine, Random(seed))
        wanted = best_rank(machine, nics, count, count)
        assert rank_of(allocate_choice(choice, other), machine) == wanted, seed


def nics_and_choice(machine: World, count: int) -> tuple[list[Device], Choice | None]:
    """As many NICs as GPUs, both for RDMA if there is any; no choice where the machine has fewer."""
    rdma = has_rdma(machine)
    nics = good_nics(machine, count, rdma)
    if count > min(len(machine.gpus), len(nics)):
        return nics, None
    return nics, choose_claim(ClaimRequest(count, count, rdma=rdma), read_hardware(machine.slices))


def in_another_order(machine: World, random: Random) -> World:
    slices = deepcopy(machine.slices)
    for entry in slices:
        if entry["spec"]["driver"] == machine.gpu_driver:
            random.shuffle(entry["spec"]["devices"])
    return machine.only(slices)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_a_common_address_a_claim_is_the_best_or_says_so(layout: str, count: int) -> None:
    """No constraint can keep groups of GPUs apart whose driver has a name of its own for the PCI address."""
    machine = world(layout, Gpus.VENDOR_OWN_NAMES)
    nics, choice = nics_and_choice(machine, count)
    if choice is None:
        return
    given = allocate_choice(choice, machine)

    is_best = rank_of(given, machine) == best_rank(machine, nics, count, count)
    assert is_best or NOT_SURE in " ".join(describe(choice))


@pytest.mark.parametrize("layout", ["virtual-node", "dgx-h100", "azure-nd-h100-v5", "oci-gb200"])
def test_so_does_a_claim_for_interfaces(layout: str) -> None:
    machine = world(layout)
    for gpu_count in COUNTS:
        for nic_count in counts_of_nics(gpu_count):
            check(machine, gpu_count, nic_count, rdma=False)


@pytest.mark.parametrize("layout", ["dgx-a100", "azure-nd-h100-v5", "dgx-h100"])
def test_rails_beside_some_of_the_gpus_are_the_best_there_is(layout: str) -> None:
    """Where no relation leads to the GPUs of the rails, they are named, too."""
    machine = world(layout)
    for gpu_count in (1, 2, 4):
        for nic_count in counts_of_nics(gpu_count):
            choice = choose_claim(
                ClaimRequest(gpu_count, nic_count, rails=True), read_hardware(machine.slices)
            )
            given = allocate_choice(choice, machine)
            wanted = best_rank(machine, good_nics(machine, nic_count, rdma=True), gpu_count, nic_count)
            assert rank_of(given, machine) == wanted, (gpu_count, nic_count)


def check(machine: World, gpu_count: int, nic_count: int, rdma: bool) -> None:
    ask = ClaimRequest(gpu_count, nic_count, rdma=rdma, namespace="team-a")
    nics = good_nics(machine, nic_count, rdma)
    try:
        choice = choose_claim(ask, read_hardware(machine.slices))
    except NotAvailable:
        assert gpu_count > len(machine.gpus) or nic_count > len(nics), ask
        return
    assert [faults for o in choice.manifests if (faults := validate(KINDS[o["kind"]], o, None))] == []
    given = allocate_choice(choice, machine)

    assert len(given) == gpu_count + nic_count, ask
    assert {d.name for d in given if d.name in machine.nics} <= {nic.name for nic in nics}, ask
    wanted = best_rank(machine, nics, gpu_count, nic_count)
    assert rank_of(given, machine) == wanted, (ask, choice.attempt.shape.title)
    assert choice.attempt.is_best_first, ask
