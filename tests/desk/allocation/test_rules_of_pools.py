"""Which devices there are for a node, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from dranet.desk.allocation.allocator import AttemptResult, Cause, read_devices_in_use
from tests.desk.allocation.documented_rules import shows
from tests.desk.allocation.objects import (
    TWO,
    attempt,
    claim,
    counters,
    device,
    holder,
    request,
    run,
    slice_of,
    sub,
    taker,
)


def in_rack(rack: str) -> dict[str, Any]:
    expressions = [{"key": "rack", "operator": "In", "values": [rack]}]
    return {"nodeSelectorTerms": [{"matchExpressions": expressions}]}


@shows("pool.reach")
@pytest.mark.parametrize(
    "selection",
    [
        {"nodeName": "node-1"},
        {"nodeSelector": in_rack("r1")},
        {"allNodes": True},
    ],
)
def test_a_slice_reaches_the_nodes_that_it_selects(selection: dict[str, Any]) -> None:
    assert run(claim(request()), slices=[slice_of(device("a"), **selection)]) == [[("nic", "a")]]


@shows("pool.reach")
@pytest.mark.parametrize("selection", [{"nodeName": "node-2"}, {"nodeSelector": in_rack("r2")}])
def test_and_no_others(selection: dict[str, Any]) -> None:
    outcome = attempt(claim(request()), slices=[slice_of(device("a"), **selection)])

    assert (outcome.ending, outcome.pools) == (AttemptResult.UNSATISFIED, ())


@shows("pool.reach.unknown")
def test_a_slice_that_selects_in_an_unknown_way_reaches_nobody() -> None:
    assert attempt(claim(request()), slices=[slice_of(device("a"), someOtherWay=True)]).pools == ()


@shows("pool.device-selection")
def test_a_device_with_a_selection_of_its_own_is_there_for_its_nodes() -> None:
    far, near = {**device("far"), "nodeName": "node-2"}, {**device("near"), "nodeSelector": in_rack("r1")}
    slices = [slice_of(far, near, perDeviceNodeSelection=True)]

    assert run(claim(request()), slices=slices) == [[("nic", "near")]]
    assert attempt(claim(request(count=2)), slices=slices).ending is AttemptResult.UNSATISFIED


@shows("pool.device-selection.last")
def test_a_selector_that_fails_on_a_device_of_another_node_breaks_off_as_well() -> None:
    """Of a slice that reaches this node: selectors are asked before the devices' own nodes are looked at."""
    here, there = {**device("a", fast=True), "nodeName": "node-1"}, {**device("b"), "nodeName": "node-2"}
    slices = [slice_of(there, here, perDeviceNodeSelection=True)]
    careless = 'device.attributes["dra.net"].fast'
    careful = 'has(device.attributes["dra.net"].fast)'

    assert attempt(claim(request("nic", careless)), slices=slices).ending is AttemptResult.BROKE_OFF
    assert run(claim(request("nic", careful)), slices=slices) == [[("nic", "a")]]
    in_use = read_devices_in_use([holder({"device": "b"})])
    assert run(claim(request("nic", careless)), slices=slices, in_use=in_use) == [[("nic", "a")]]


@shows("pool.newest")
def test_older_generations_are_leftovers() -> None:
    slices = [slice_of(device("old"), name="a"), slice_of(device("new"), name="b", pool={"generation": 2})]

    assert run(claim(request()), slices=slices) == [[("nic", "new")]]


@shows("pool.obsolete")
def test_a_part_of_a_pool_that_begins_anew_on_other_nodes_is_gone() -> None:
    moved = slice_of(device("new"), name="b", pool={"generation": 2}, nodeName="node-2")

    assert attempt(claim(request()), slices=[slice_of(device("old"), **TWO), moved]).pools == ()


@shows("pool.obsolete", "pool.newest")
def test_a_pool_that_is_complete_here_is_used_though_a_newer_one_begins_on_another_node() -> None:
    moved = slice_of(device("new"), name="b", pool={"generation": 2}, nodeName="node-2")

    assert run(claim(request()), slices=[slice_of(device("old")), moved]) == [[("nic", "old")]]


@shows("pool.complete")
def test_one_slice_too_many_on_another_node_does_no_harm() -> None:
    here, there = slice_of(device("a")), slice_of(device("b"), name="s2", nodeName="node-2")

    assert run(claim(request()), slices=[here, there]) == [[("nic", "a")]]


@shows("pool.incomplete")
def test_slices_of_other_nodes_count_for_completeness() -> None:
    here, there = slice_of(device("a"), **TWO), slice_of(device("b"), name="s2", nodeName="node-2", **TWO)

    assert run(claim(request()), slices=[here, there]) == [[("nic", "a")]]
    (pool,) = attempt(claim(request()), slices=[here]).pools
    assert pool.incomplete == "1 of 2 slices"


@shows("pool.incomplete")
def test_nothing_is_taken_from_an_incomplete_pool_and_others_do() -> None:
    incomplete, other = slice_of(device("a"), **TWO), slice_of(device("b"), driver="z.dev")

    assert attempt(claim(request()), slices=[incomplete]).ending is AttemptResult.UNSATISFIED
    assert run(claim(request(deviceClassName="any")), slices=[incomplete, other]) == [[("nic", "b")]]


@shows("pool.incomplete.all")
def test_all_devices_wait_for_every_pool_even_in_an_alternative_that_nobody_comes_to() -> None:
    slices = [slice_of(device("a"), **TWO), slice_of(device("b"), driver="z.dev")]
    options = [sub("one", deviceClassName="any"), sub("all", deviceClassName="any", allocationMode="All")]
    outcome = attempt(claim({"name": "nic", "firstAvailable": options}), slices=slices)

    assert outcome.error
    assert outcome.error.cause is Cause.ALL_OF_INCOMPLETE


@shows("pool.invalid")
def test_an_invalid_pool_is_passed_over_or_is_to_blame() -> None:
    invalid, other = slice_of(device("a"), device("a")), slice_of(device("b"), driver="z.dev")

    assert run(claim(request(deviceClassName="any")), slices=[invalid, other]) == [[("nic", "b")]]
    assert attempt(claim(request(count=2)), slices=[invalid, other]).ending is AttemptResult.POOL_INVALID


@shows("pool.invalid")
def test_names_are_compared_in_the_slices_of_the_node() -> None:
    here, there = slice_of(device("a"), **TWO), slice_of(device("a"), name="s2", nodeName="node-2", **TWO)

    assert run(claim(request()), slices=[here, there]) == [[("nic", "a")]]


@shows("pool.invalid.counters")
def test_counters_that_are_not_there_make_a_pool_invalid_wherever_the_device_is() -> None:
    good, bad = taker("a", {"m": "1"}), taker("b", {"nope": "1"})
    elsewhere = slice_of(bad, name="s2", nodeName="node-2", pool={"resourceSliceCount": 3})
    three: dict[str, Any] = {"pool": {"resourceSliceCount": 3}}
    for slices in (
        [counters({"m": "1"}), slice_of(bad, **TWO)],
        [counters({"m": "1"}), slice_of(taker("a", {"m": "1"}, "other"), **TWO)],
        [counters({"m": "1"}, **three), slice_of(good, **three), elsewhere],
    ):
        assert attempt(claim(request()), slices=slices).ending is AttemptResult.POOL_INVALID


@shows("pool.invalid.counters")
def test_two_counter_sets_of_one_name_make_a_pool_invalid() -> None:
    twice = counters({"m": "1"})
    twice["spec"]["sharedCounters"] *= 2
    outcome = attempt(claim(request()), slices=[twice, slice_of(taker("a", {"m": "1"}), **TWO)])

    assert outcome.pools[0].invalid == "counter set set twice"


@shows("pool.invalid.all")
def test_all_devices_break_off_at_an_invalid_pool() -> None:
    slices = [slice_of(device("a"), device("a")), slice_of(device("b"), driver="z.dev")]
    outcome = attempt(claim(request(allocationMode="All", deviceClassName="any")), slices=slices)

    assert outcome.error
    assert outcome.error.cause is Cause.ALL_OF_INVALID


@shows("pool.order")
def test_pools_are_tried_by_driver_then_by_name() -> None:
    slices = [
        slice_of(device("4"), driver="z.dev", pool={"name": "a"}),
        slice_of(device("3"), pool={"name": "node-2"}),
        slice_of(device("2"), pool={"name": "node-1"}),
        slice_of(device("1"), driver="a.dev", pool={"name": "z"}),
    ]
    ((*chosen,),) = run(claim(request(deviceClassName="any", count=4)), slices=slices)

    assert [name for _, name in chosen] == ["1", "2", "3", "4"]


@shows("pool.order.binding")
def test_pools_that_need_something_done_before_binding_come_last() -> None:
    needy = {**device("needy"), "bindingConditions": ["ready"], "bindingFailureConditions": ["failed"]}
    slices = [
        slice_of(device("beside"), needy, pool={"name": "a"}),
        slice_of(device("plain"), pool={"name": "b"}),
    ]
    ((*chosen,),) = run(claim(request(count=3)), slices=slices)

    assert [name for _, name in chosen] == ["plain", "beside", "needy"]


@shows("pool.order.slices")
def test_slices_are_read_by_name_and_devices_as_listed() -> None:
    slices = [
        slice_of(device("c"), name="00001-x", **TWO),
        slice_of(device("b"), device("a"), name="00000-y", **TWO),
    ]
    ((*chosen,),) = run(claim(request(count=3)), slices=slices)

    assert [name for _, name in chosen] == ["b", "a", "c"]
