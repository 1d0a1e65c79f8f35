"""Odds against brute force: every combination of GPUs and NICs counted one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product
from random import Random

import pytest

from dranet.claims.alignment import rank
from dranet.desk.hardware.nodes import NodeHardware, read_hardware
from dranet.desk.templates.odds import alignment_odds, format_shares, measure_pod
from dranet.desk.templates.trial import best_distances
from dranet.model.facts import Distance
from tests.desk.templates.layout_clusters import Gpus, build_world, world
from tests.desk.templates.random_machines import random_machine

PIX, NODE, SYS = Distance.PIX, Distance.NODE, Distance.SYS


def count_one_by_one(node: NodeHardware, gpus: int, nics: int) -> dict[tuple[int, int], Fraction]:
    """The share of each rank."""
    every = list(product(combinations(node.nics, nics), combinations(node.gpus, gpus)))
    counts = Counter(rank(measure_pod(some_nics, some_gpus)) for some_nics, some_gpus in every)
    return {found: Fraction(number, len(every)) for found, number in counts.items()}


@pytest.mark.parametrize("kind", [Gpus.OURS, Gpus.VENDOR_NUMA])
def test_the_odds_of_random_machines_are_those_of_counting_every_combination(kind: Gpus) -> None:
    counted = 0
    for seed in range(150):
        random = Random(seed)
        (node,) = read_hardware(build_world(random_machine(random), kind).slices).nodes
        gpus, nics = random.randint(1, len(node.gpus)), random.randint(1, len(node.nics))
        odds = alignment_odds(node, gpus, nics)
        if odds is None:
            continue
        counted += 1
        shares = {rank(found): share for found, share in odds.shares}
        assert shares == count_one_by_one(node, gpus, nics), seed
        assert rank(odds.best) == rank(best_distances(node.nics, node.gpus, gpus, nics)), seed
    assert counted > 140


def test_one_gpu_and_one_nic_of_eight_pairs_are_one_in_eight() -> None:
    odds = alignment_odds(near_nics("dgx-h100"), 1, 1)

    assert odds is not None
    assert dict(odds.shares) == {
        (PIX,): Fraction(1, 8),
        (NODE,): Fraction(3, 8),
        (SYS,): Fraction(1, 2),
    }
    assert str(odds) == "PIX in 1/8, NODE in 3/8, SYS in 1/2"


def test_a_pod_with_all_gpus_and_all_nics_has_the_best_for_sure() -> None:
    odds = alignment_odds(near_nics("azure-nd-h100-v5"), 8, 8)

    assert odds is not None
    assert odds.shares == (((NODE,) * 8, Fraction(1)),)


def test_eight_gpus_and_eight_of_32_nics_are_exact() -> None:
    """One NIC of each GPU's four, of all choices of 8: 4^8 / C(32, 8)."""
    odds = alignment_odds(near_nics("aws-p5"), 8, 8)

    assert odds is not None
    assert odds.chance == Fraction(4**8, 10518300)
    assert sum(share for _, share in odds.shares) == 1


def test_a_node_with_too_few_devices_has_no_odds() -> None:
    assert alignment_odds(near_nics("dgx-h100"), 9, 1) is None


def test_a_small_share_is_a_percentage() -> None:
    assert format_shares([Fraction(3, 7), Fraction(4, 7)]) == ["3/7", "4/7"]
    assert format_shares([Fraction(227, 2450), Fraction(1, 2)]) == ["9.3 %", "50 %"]
    assert format_shares([Fraction(9, 88179)]) == ["less than 0.1 %"]


def near_nics(layout: str) -> NodeHardware:
    """With the NICs that are as near to a GPU as any."""
    (node,) = read_hardware(world(layout).slices).nodes
    nearest = min(nic.nearest_gpu for nic in node.nics if nic.nearest_gpu is not None)
    return replace(node, nics=tuple(nic for nic in node.nics if nic.nearest_gpu is nearest))
