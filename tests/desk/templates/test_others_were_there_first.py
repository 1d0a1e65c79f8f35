"""The scheduler takes the first combination that fits. Whatever others have, it must be the best one."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dranet.desk.allocation.allocator import Unschedulable
from dranet.desk.hardware.nodes import read_hardware
from dranet.desk.templates.choose import Choice, choose_claim
from dranet.desk.templates.request import ClaimRequest
from tests.desk.templates.distances import allocate_choice, best_rank, good_nics, has_rdma, rank_of
from tests.desk.templates.layout_clusters import Gpus, World, world

CASES = [
    *((layout, Gpus.OURS) for layout in ("azure-nd-h100-v5", "dgx-h100", "infiniband-only", "virtual-node")),
    ("dgx-a100", Gpus.VENDOR),
    ("azure-nd-h100-v5", Gpus.VENDOR),
    ("azure-gb300", Gpus.VENDOR_NO_ROOT),
    ("infiniband-only", Gpus.VENDOR_NUMA),
]


def choice_for(machine: World, count: int, rdma: bool) -> Choice:
    return choose_claim(ClaimRequest(count, count, rdma=rdma), read_hardware(machine.slices))


@pytest.mark.parametrize(("layout", "gpus"), CASES, ids=str)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_pod_gets_the_best_of_what_others_have_left(layout: str, gpus: Gpus, count: int) -> None:
    machine = world(layout, gpus)
    rdma = has_rdma(machine) and layout != "virtual-node"
    choice = choice_for(machine, count, rdma)
    nics = good_nics(machine, count, rdma)

    @given(st.sets(st.sampled_from(sorted([*machine.gpus, *machine.nics]))))
    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def check(taken: set[str]) -> None:
        free = len(machine.gpus.keys() - taken), len([nic for nic in nics if nic.name not in taken])
        try:
            given_devices = allocate_choice(choice, machine, taken)
        except Unschedulable:
            assert min(free) < count or waits_for_a_near_one(choice, machine, taken, count)
            return
        best = best_rank(machine, nics, count, count, taken)
        assert rank_of(given_devices, machine) == best, taken

    check()


def waits_for_a_near_one(choice: Choice, machine: World, taken: set[str], count: int) -> bool:
    """A claim with one rung, where so many pairs of it are not left."""
    (rung,) = choice.attempt.shape.relations
    near = [
        best_rank(machine, [nic], 1, 1, taken)[0]
        for nic in good_nics(machine, count, rdma=True)
        if nic.name not in taken and machine.gpus.keys() - taken
    ]
    pairs_below_a_root = sum(level <= 2 for level in near)
    return rung.is_pcie and pairs_below_a_root < count
