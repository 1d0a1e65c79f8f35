"""Shared counters (partitionable devices) and capacity that several claims consume."""

from __future__ import annotations

from typing import Any

import pytest

from dranet.desk.allocation.allocator import AllocationError, AttemptResult, read_devices_in_use, summarize
from tests.desk.allocation.documented_rules import shows
from tests.desk.allocation.objects import (
    TWO,
    attempt,
    claim,
    counters,
    device,
    holder,
    request,
    results,
    run,
    shared,
    slice_of,
    taker,
)


def asking(amount: str, name: str = "nic", capacity: str = "bw", **exactly: Any) -> dict[str, Any]:
    return request(name, capacity={"requests": {capacity: amount}}, **exactly)


def share(device_name: str, **consumed: str) -> dict[str, Any]:
    return {
        "device": device_name,
        "shareID": "11111111-0000-4000-8000-000000000000",
        "consumedCapacity": consumed,
    }


@shows("counter.exclude")
def test_a_physical_function_and_its_virtual_functions_exclude_each_other() -> None:
    vfs = [taker(f"vf{i}", {"vf": "1"}) for i in range(3)]
    slices = [counters({"vf": "2"}), slice_of(taker("pf", {"vf": "2"}), *vfs, **TWO)]

    assert run(claim(request("one"), request("two")), slices=slices) == [[("one", "vf0"), ("two", "vf1")]]
    assert run(claim(request()), slices=slices) == [[("nic", "pf")]]
    assert attempt(claim(request(count=3)), slices=slices).ending is AttemptResult.UNSATISFIED


@shows("counter.exclude")
def test_every_counter_must_suffice() -> None:
    slices = [
        counters({"memory": "10Gi", "engines": "1"}),
        slice_of(taker("big", {"memory": "20Gi"}), taker("ok", {"memory": "10240Mi", "engines": "1"}), **TWO),
    ]

    assert run(claim(request()), slices=slices) == [[("nic", "ok")]]


@shows("counter.allocated")
def test_allocated_devices_have_taken_theirs_on_other_nodes_too() -> None:
    three: dict[str, Any] = {"pool": {"resourceSliceCount": 3}}
    far = slice_of(taker("far", {"m": "1"}), name="s2", nodeName="node-2", **three)
    slices = [
        counters({"m": "2"}, **three),
        slice_of(taker("a", {"m": "2"}), taker("b", {"m": "1"}), **three),
        far,
    ]
    in_use = read_devices_in_use([holder({"device": "far"})])

    assert run(claim(request()), slices=slices) == [[("nic", "a")]]
    assert run(claim(request()), slices=slices, in_use=in_use) == [[("nic", "b")]]


@shows("counter.shared")
def test_a_shared_device_takes_its_counters_once() -> None:
    many = {**taker("many", {"m": "1"}), "allowMultipleAllocations": True}
    slices = [counters({"m": "1"}), slice_of(many, taker("other", {"m": "1"}), **TWO)]
    wanted = claim(request("one"), request("two"))

    assert run(wanted, slices=slices) == [[("one", "many"), ("two", "many")]]
    in_use = read_devices_in_use([holder(share("many"))])
    assert run(wanted, slices=slices, in_use=in_use) == [[("one", "many"), ("two", "many")]]
    assert attempt(claim(request(count=2)), slices=slices, in_use=in_use).ending is AttemptResult.UNSATISFIED


@shows("capacity.filter", "capacity.exclusive")
def test_a_device_of_one_user_must_have_what_is_asked_and_is_given_whole() -> None:
    def nic(name: str, amount: str) -> dict[str, Any]:
        return {**device(name), "capacity": {"bw": {"value": amount}}}

    slices = [slice_of(device("none"), nic("slow", "25G"), nic("fast", "100G"))]
    (result,) = results(claim(asking("40G")), slices=slices)

    assert (result["device"], "shareID" in result, "consumedCapacity" in result) == ("fast", False, False)
    assert (
        attempt(claim(asking("40G", capacity="a.dev/bw")), slices=slices).ending is AttemptResult.UNSATISFIED
    )


@shows("capacity.names")
@pytest.mark.parametrize(("published", "asked"), [("bw", "dra.net/bw"), ("dra.net/bw", "bw")])
def test_a_capacity_is_asked_for_as_its_driver_spells_it(published: str, asked: str) -> None:
    device = shared("a", {published: "100G"})
    outcome = attempt(claim(asking("40G", capacity=asked)), slices=[slice_of(device)])

    assert run(claim(asking("40G", capacity=published)), slices=[slice_of(device)]) == [[("nic", "a")]]
    assert outcome.ending is AttemptResult.UNSATISFIED
    assert f"it has no capacity {asked}, but {published}" in summarize(outcome)


@pytest.mark.parametrize("amount", ["much", "-1"])
def test_an_amount_that_is_none_is_refused_at_once(amount: str) -> None:
    with pytest.raises(AllocationError, match="request nic: .*" + amount):
        attempt(claim(asking(amount)), slices=[])


@shows("capacity.sum")
def test_what_claims_have_and_this_run_has_and_the_request_takes_fit_together() -> None:
    slices = [slice_of(shared("a", {"bw": "100G"}), shared("b", {"bw": "100G"}))]
    in_use = read_devices_in_use([holder(share("a", bw="50G")), holder(share("a", bw="10G"), name="third")])
    wanted = claim(asking("30G", "one"), asking("30G", "two"))

    assert run(wanted, slices=slices, in_use=in_use) == [[("one", "a"), ("two", "b")]]


@shows("capacity.sum")
def test_what_was_consumed_is_known_by_its_qualified_name_as_well() -> None:
    slices = [slice_of(shared("a", {"bw": "100G"}))]
    full = read_devices_in_use([holder(share("a", **{"dra.net/bw": "100G"}))])

    assert attempt(claim(asking("1")), slices=slices, in_use=full).ending is AttemptResult.UNSATISFIED


@shows("capacity.default", "capacity.share")
def test_what_is_not_asked_for_takes_the_default_or_all() -> None:
    queues = {"value": "8", "requestPolicy": {"default": "2"}}
    free = {"value": "1", "requestPolicy": {"default": "0"}}
    slices = [slice_of(shared("a", {"bw": "100G", "queues": queues, "dra.net/free": free}))]
    (result,) = results(claim(request()), slices=slices)

    assert result["consumedCapacity"] == {"bw": "100G", "queues": "2", "dra.net/free": "0"}
    assert attempt(claim(request("one"), request("two")), slices=slices).ending is AttemptResult.UNSATISFIED


@shows("capacity.range")
@pytest.mark.parametrize(
    ("asked", "taken"),
    [("1G", "5G"), ("5G", "5G"), ("6G", "7G"), ("7G", "7G"), ("7500M", "9G"), ("11G", "11G"), ("12G", None)],
)
def test_an_amount_is_raised_to_the_range_and_rounded_up_to_a_step(asked: str, taken: str | None) -> None:
    limits = {"min": "5G", "max": "11G", "step": "2G"}
    policy = {"default": "5G", "validRange": limits}
    slices = [slice_of(shared("a", {"bw": {"value": "100G", "requestPolicy": policy}}))]

    if taken is None:
        assert attempt(claim(asking(asked)), slices=slices).ending is AttemptResult.UNSATISFIED
    else:
        assert results(claim(asking(asked)), slices=slices)[0]["consumedCapacity"] == {"bw": taken}


@shows("capacity.values")
@pytest.mark.parametrize(("asked", "taken"), [("0", "1Gi"), ("1Gi", "1Gi"), ("1025Mi", "4Gi"), ("5Gi", None)])
def test_an_amount_becomes_the_next_valid_value(asked: str, taken: str | None) -> None:
    policy = {"default": "1Gi", "validValues": ["1Gi", "2Mi", "4Gi"][::2]}
    slices = [slice_of(shared("a", {"bw": {"value": "16Gi", "requestPolicy": policy}}))]

    if taken is None:
        assert attempt(claim(asking(asked)), slices=slices).ending is AttemptResult.UNSATISFIED
    else:
        assert results(claim(asking(asked)), slices=slices)[0]["consumedCapacity"] == {"bw": taken}


@shows("capacity.share")
def test_each_share_has_an_id_of_its_own() -> None:
    slices = [slice_of(shared("a", {"bw": "100G"}))]
    first, second = results(claim(asking("1G", "one"), asking("2G", "two")), slices=slices)

    assert first["shareID"] != second["shareID"]
    assert [r["consumedCapacity"] for r in (first, second)] == [{"bw": "1G"}, {"bw": "2G"}]


@shows("capacity.flag-changed")
def test_a_device_that_was_given_whole_stays_so() -> None:
    in_use = read_devices_in_use([holder({"device": "a"})])

    assert (
        attempt(claim(request()), slices=[slice_of(shared("a"))], in_use=in_use).ending
        is AttemptResult.UNSATISFIED
    )


@shows("capacity.flag-changed")
def test_a_device_that_has_shares_out_is_not_given_whole() -> None:
    whole = {**device("a"), "capacity": {"bw": {"value": "100G"}}}
    in_use = read_devices_in_use([holder(share("a", bw="1G"))])
    outcome = attempt(claim(request()), slices=[slice_of(whole)], in_use=in_use)

    assert (outcome.ending, attempt(claim(request()), slices=[slice_of(whole)]).ending) == (
        AttemptResult.UNSATISFIED,
        AttemptResult.ALLOCATED,
    )
