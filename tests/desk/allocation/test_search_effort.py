"""The search does not go round in circles where a plain one would for hours. Choices count, not seconds."""

from __future__ import annotations

from typing import Any

import pytest

from dranet.desk.allocation.allocator import Attempt, AttemptResult, Cause, ClusterDevices, InUse
from dranet.desk.allocation.search import Search
from tests.desk.allocation.objects import (
    DRIVER,
    NODE,
    attempt,
    claim,
    classes,
    device,
    request,
    shared,
    slice_of,
)

ROOTS = range(8)
GPU, NIC, NONE = (f'device.attributes["dra.net"].kind == "{kind}"' for kind in ("gpu", "nic", "none"))


def machine(*without: str) -> tuple[list[dict[str, Any]], InUse]:
    """Eight roots with a GPU and three NICs each; ``without`` are in use."""
    gpus = [device(f"gpu{i}", root=f"r{i}", kind="gpu") for i in ROOTS]
    nics = [device(f"nic{i}{letter}", root=f"r{i}", kind="nic") for i in ROOTS for letter in "abc"]
    return [slice_of(*gpus, *nics)], InUse(frozenset((DRIVER, "node-1", name) for name in without))


def pairs(count: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    requests = [request(f"gpu{i}", GPU) for i in range(count)] + [
        request(f"nic{i}", NIC) for i in range(count)
    ]
    names = [[f"gpu{i}", f"nic{i}"] for i in range(count)]
    return requests, [{"matchAttribute": "dra.net/root", "requests": pair} for pair in names]


def nics_of(root: int) -> list[str]:
    return [f"nic{root}{letter}" for letter in "abc"]


CASES = {
    "pairs, the last request matches nothing": ([*pairs(4)[0][:-1], request("nic3", NONE)], pairs(4)[1], ()),
    "pairs, one root has no NIC left": (*pairs(8), nics_of(3)),
    "plain, the last request matches nothing": (
        [*(request(f"n{i}", NIC) for i in range(7)), request("x", NONE)],
        [],
        (),
    ),
    "more requests than NICs": ([request(f"n{i}", NIC) for i in range(25)], [], ()),
    "a count that leaves nothing for the last": (
        [request("n", NIC, count=20), request("x", NIC, count=5)],
        [],
        (),
    ),
    "eight of one root": ([request("n", NIC, count=8)], [{"matchAttribute": "dra.net/root"}], ()),
    "nine different roots": ([request("n", NIC, count=9)], [{"distinctAttribute": "dra.net/root"}], ()),
}


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_had_is_known_after_few_choices(name: str) -> None:
    requests, constraints, without = CASES[name]
    slices, in_use = machine(*without)
    made = Attempt([claim(*requests, constraints=constraints)], ClusterDevices(slices, classes(), in_use))
    outcome = made.on(NODE)
    search = Search(made.slots, outcome.context)

    assert outcome.ending is AttemptResult.UNSATISFIED
    assert not search.run()
    assert search.choices < 500


@pytest.mark.slow
def test_packing_that_does_not_end_is_given_up_and_says_so() -> None:
    devices = [shared(f"s{i}", {"bw": "10"}) for i in range(10)]
    amounts = [3 + i % 4 for i in range(22)]
    requests = [request(f"n{i}", capacity={"requests": {"bw": str(a)}}) for i, a in enumerate(amounts)]
    outcome = attempt(claim(*requests), slices=[slice_of(*devices)])

    assert outcome.error is not None
    assert outcome.error.cause is Cause.GAVE_UP
