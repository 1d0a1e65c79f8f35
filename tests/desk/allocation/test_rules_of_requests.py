"""What a request may have: counts, alternatives, selectors, use, taints, constraints."""

from __future__ import annotations

from typing import Any

import pytest

from dranet.desk.allocation.allocator import (
    AllocationError,
    AttemptResult,
    Cause,
    read_devices_in_use,
    review,
)
from dranet.desk.allocation.selection import Removal
from tests.desk.allocation.documented_rules import shows
from tests.desk.allocation.objects import (
    DRIVER,
    attempt,
    claim,
    device,
    holder,
    request,
    run,
    shared,
    slice_of,
    sub,
)

FAST = 'device.attributes["dra.net"].fast'
ROOT = "dra.net/root"


def cause(outcome: Any) -> Cause | None:
    return outcome.error.cause if outcome.error else None


def options(*subs: dict[str, Any], name: str = "nic") -> dict[str, Any]:
    return {"name": name, "firstAvailable": list(subs)}


def taint(effect: str = "NoSchedule", key: str = "broken", value: str = "") -> dict[str, str]:
    return {"key": key, "effect": effect, **({"value": value} if value else {})}


@shows("request.order")
def test_claims_and_requests_are_satisfied_in_order_all_or_none() -> None:
    slices = [slice_of(*(device(name) for name in "abc"))]
    first, second = claim(request("one"), request("two")), claim(request(), name="d")

    assert run(first, second, slices=slices) == [[("one", "a"), ("two", "b")], [("nic", "c")]]
    assert (
        attempt(first, second, claim(request(), name="e"), slices=slices).ending is AttemptResult.UNSATISFIED
    )


@shows("request.backtracking")
def test_an_earlier_choice_is_taken_back_across_claims() -> None:
    slices = [slice_of(device("rare", fast=True), device("plain", fast=False))]

    assert run(claim(request()), claim(request("picky", FAST), name="d"), slices=slices) == [
        [("nic", "plain")],
        [("picky", "rare")],
    ]


@shows("request.backtracking")
def test_the_same_devices_in_another_order_are_another_state() -> None:
    """What has failed is remembered with what the constraints know, not with the devices alone."""
    x, y = device("x", root="0", kind="gpu"), device("y", root="1", kind="gpu")
    near_y, near_x = device("near-y", root="1", kind="c"), device("near-x", root="0", kind="d")
    kinds = {"a": "gpu", "b": "gpu", "c": "c", "d": "d"}
    wanted = claim(
        *(request(name, f'device.attributes["dra.net"].kind == "{kind}"') for name, kind in kinds.items()),
        constraints=[
            {"matchAttribute": ROOT, "requests": ["a", "c"]},
            {"matchAttribute": ROOT, "requests": ["b", "d"]},
        ],
    )

    assert run(wanted, slices=[slice_of(x, y, near_y, near_x)]) == [
        [("a", "y"), ("b", "x"), ("c", "near-y"), ("d", "near-x")]
    ]


@shows("request.class-missing")
def test_a_class_that_does_not_exist_breaks_off_even_where_nobody_comes_to_it() -> None:
    with pytest.raises(AllocationError) as caught:
        attempt(claim(options(sub("a"), sub("b", deviceClassName="nope"))), slices=[slice_of(device("a"))])

    assert (caught.value.cause, caught.value.request) == (Cause.CLASS_MISSING, "nic/b")


@shows("request.selectors")
def test_selectors_of_class_and_request_all_hold() -> None:
    slices = [
        slice_of(device("other", fast=True), driver="a.dev"),
        slice_of(device("slow", fast=False), device("fast", fast=True)),
    ]

    assert run(claim(request("nic", FAST, "true")), slices=slices) == [[("nic", "fast")]]


@shows("request.selector-error", "request.selector-unreached")
def test_a_selector_that_fails_breaks_off_only_when_the_search_comes_to_the_device() -> None:
    odd, fast = device("odd"), device("fast", fast=True)

    assert cause(attempt(claim(request("nic", FAST)), slices=[slice_of(odd, fast)])) is Cause.SELECTOR_FAILED
    assert run(claim(request("nic", FAST)), slices=[slice_of(fast, odd)]) == [[("nic", "fast")]]
    outcome = attempt(claim(request("nic", FAST, count=2)), slices=[slice_of(fast, odd)])
    assert cause(outcome) is Cause.SELECTOR_FAILED


@shows("request.selector-error")
def test_a_selector_that_does_not_compile_breaks_off_at_the_first_device() -> None:
    wanted = claim(options(sub("good"), sub("bad", "device.nope")))

    assert run(wanted, slices=[slice_of(device("a"))]) == [[("nic/good", "a")]]
    outcome = attempt(claim(request("nic", "device.nope")), slices=[slice_of(device("a"))])
    assert cause(outcome) is Cause.SELECTOR_INVALID


@shows("request.selector-error")
def test_an_error_is_not_kept_from_a_search_that_is_lost_anyway() -> None:
    """The last request cannot be satisfied, but a real search would have failed before it."""
    slices = [slice_of(device("a", fast=True), device("b", fast=True), device("odd"))]
    wanted = claim(request("one", FAST), request("never", "false"))

    assert cause(attempt(wanted, slices=slices)) is Cause.SELECTOR_FAILED


@shows("request.selector-in-use")
def test_a_device_in_use_is_not_asked_about() -> None:
    slices = [slice_of(device("odd"), device("fast", fast=True))]
    in_use = read_devices_in_use([holder({"device": "odd"})])

    assert run(claim(request("nic", FAST)), slices=slices, in_use=in_use) == [[("nic", "fast")]]


@shows("request.count")
def test_counts_are_combinations_in_the_order_of_the_devices() -> None:
    slices = [slice_of(device("a", root="0"), device("b", root="1"), device("c", root="1"))]
    wanted = claim(request(count=2), constraints=[{"matchAttribute": ROOT}])

    assert run(wanted, slices=slices) == [[("nic", "b"), ("nic", "c")]]
    assert run(claim(request()), slices=slices) == [[("nic", "a")]]


@shows("request.count")
def test_one_request_does_not_get_two_shares_of_one_device() -> None:
    slices = [slice_of(shared("a"), shared("b"))]

    assert run(claim(request(count=2)), slices=slices) == [[("nic", "a"), ("nic", "b")]]
    assert attempt(claim(request(count=3)), slices=slices).ending is AttemptResult.UNSATISFIED


@shows("request.all")
def test_all_devices_are_every_match_at_least_one_and_all_to_be_had() -> None:
    slices = [slice_of(device("a", fast=True), device("b", fast=False), device("c", fast=True))]
    wanted = claim(request("nic", FAST, allocationMode="All"))

    assert run(wanted, slices=slices) == [[("nic", "a"), ("nic", "c")]]
    taken = read_devices_in_use([holder({"device": "c"})])
    assert attempt(wanted, slices=slices, in_use=taken).ending is AttemptResult.UNSATISFIED
    none = claim(request("nic", "false", allocationMode="All"))
    assert attempt(none, slices=slices).ending is AttemptResult.UNSATISFIED


@shows("request.all")
def test_an_alternative_comes_where_not_all_devices_are_to_be_had() -> None:
    slices = [slice_of(device("a"), device("b"))]
    taken = read_devices_in_use([holder({"device": "b"})])
    wanted = claim(options(sub("all", allocationMode="All"), sub("one")))

    assert run(wanted, slices=slices, in_use=taken) == [[("nic/one", "a")]]


@shows("request.all.constraint")
def test_a_constraint_against_one_of_all_breaks_off_without_another_alternative() -> None:
    slices = [slice_of(device("a", root="0"), device("b", root="1"))]
    constraints = [{"matchAttribute": ROOT}]
    wanted = claim(options(sub("all", allocationMode="All"), sub("one")), constraints=constraints)

    assert cause(attempt(wanted, slices=slices)) is Cause.ALL_AGAINST_CONSTRAINT


def full(name: str) -> Any:
    """A claim that has all of a device's capacity."""
    return read_devices_in_use([holder({"device": name, "shareID": "x", "consumedCapacity": {"bw": "2"}})])


@shows("request.all.no-room")
def test_devices_that_could_never_do_are_no_part_of_all() -> None:
    slices = [slice_of(shared("small", {"bw": "1"}), shared("free", {"bw": "2"}))]
    wanted = claim(request(allocationMode="All", capacity={"requests": {"bw": "2"}}))

    assert run(wanted, slices=slices) == [[("nic", "free")]]


@shows("request.all.no-room")
def test_one_of_all_without_room_now_is_missed() -> None:
    slices = [slice_of(shared("full", {"bw": "2"}), shared("free", {"bw": "2"}))]
    outcome = attempt(claim(request(allocationMode="All")), slices=slices, in_use=full("full"))
    (option,) = review(outcome)[0].alternatives

    assert (outcome.ending, option.satisfied) == (AttemptResult.UNSATISFIED, False)
    assert [(r.candidate.id[2], r.removal, r.detail) for r in option.removed] == [
        ("full", Removal.IN_USE, "default/other")
    ]


def test_one_of_all_whose_room_an_earlier_request_took_is_missed() -> None:
    slices = [slice_of(shared("full", {"bw": "2"}), shared("free", {"bw": "2"}))]
    wanted = claim(request("one"), request("all", allocationMode="All"))
    outcome = attempt(wanted, slices=slices, in_use=full("full"))
    (option,) = review(outcome)[1].alternatives

    assert (outcome.ending, option.satisfied) == (AttemptResult.UNSATISFIED, False)
    assert [(r.candidate.id[2], r.removal) for r in option.removed] == [
        ("full", Removal.IN_USE),
        ("free", Removal.TAKEN),
    ]


@shows("request.first-available")
def test_alternatives_are_tried_in_order_and_recorded() -> None:
    wanted = claim(options(sub("two", count=2), sub("fast", FAST), sub("any")))

    assert run(wanted, slices=[slice_of(device("a", fast=False), device("b", fast=True))]) == [
        [("nic/two", "a"), ("nic/two", "b")]
    ]
    assert run(wanted, slices=[slice_of(device("a", fast=True))]) == [[("nic/fast", "a")]]
    assert run(wanted, slices=[slice_of(device("a", fast=False))]) == [[("nic/any", "a")]]


@shows("request.limit")
def test_more_than_32_devices_break_off_before_anything_is_looked_at() -> None:
    slices = [slice_of(*(device(f"d{i}") for i in range(40)))]

    assert len(run(claim(request(count=32)), slices=slices)[0]) == 32
    wanted = claim(request("one", FAST, count=30), request("two", count=3))
    assert cause(attempt(wanted, slices=slices)) is Cause.TOO_MANY_DEVICES
    assert cause(attempt(claim(request(allocationMode="All")), slices=slices)) is Cause.TOO_MANY_DEVICES


@shows("request.limit.search")
def test_an_alternative_that_would_go_over_the_limit_is_passed_over() -> None:
    slices = [slice_of(*(device(f"d{i:02}") for i in range(40)))]
    wanted = claim(request("many", count=30), options(sub("five", count=5), sub("one"), name="more"))

    assert run(wanted, slices=slices)[0][-1] == ("more/one", "d30")


@shows("use.once")
def test_a_device_is_given_once() -> None:
    slices = [slice_of(device("a"), device("b"))]
    in_use = read_devices_in_use([holder({"device": "a"})])

    assert run(claim(request()), slices=slices, in_use=in_use) == [[("nic", "b")]]
    two = claim(request("one"), request("two"))
    assert attempt(two, slices=slices, in_use=in_use).ending is AttemptResult.UNSATISFIED


@shows("use.admin")
def test_admin_access_sees_what_others_have_but_nothing_twice_in_a_claim() -> None:
    slices = [slice_of(device("a"))]
    in_use = read_devices_in_use([holder({"device": "a"})])
    admin = request("watch", adminAccess=True)

    assert run(claim(admin), claim(admin, name="d"), slices=slices, in_use=in_use) == [[("watch", "a")]] * 2
    twice = claim(admin, request("again", adminAccess=True))
    assert attempt(twice, slices=slices, in_use=in_use).ending is AttemptResult.UNSATISFIED


@shows("use.admin.shared")
def test_admin_access_may_see_a_shared_device_twice() -> None:
    wanted = claim(request("watch", adminAccess=True), request("again", adminAccess=True))

    assert run(wanted, slices=[slice_of(shared("a"))]) == [[("watch", "a"), ("again", "a")]]


@shows("use.admin.frees")
def test_who_only_watches_takes_nothing_away() -> None:
    in_use = read_devices_in_use([holder({"device": "a", "adminAccess": True})])

    assert run(claim(request()), slices=[slice_of(device("a"))], in_use=in_use) == [[("nic", "a")]]


@shows("taint.effects")
@pytest.mark.parametrize(
    ("effect", "kept"), [("NoSchedule", True), ("NoExecute", True), ("None", False), ("Later", False)]
)
def test_taints_keep_devices_away_by_their_effect(effect: str, kept: bool) -> None:
    outcome = attempt(claim(request()), slices=[slice_of(device("a", [taint(effect)]))])

    assert (outcome.ending is AttemptResult.UNSATISFIED) is kept


@shows("taint.tolerations")
@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "broken", "operator": "Exists"}, True),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "broken", "value": "yes"}, True),
        ({"key": "broken", "operator": "Equal", "value": "yes"}, True),
        ({"key": "broken"}, False),
        ({"key": "broken", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "broken", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "broken", "operator": "Like", "value": "yes"}, False),
    ],
)
def test_tolerations_by_key_effect_and_value(toleration: dict[str, str], tolerated: bool) -> None:
    slices = [slice_of(device("a", [taint(value="yes")]))]
    outcome = attempt(claim(request(tolerations=[toleration])), slices=slices)

    assert (outcome.ending is AttemptResult.ALLOCATED) is tolerated


@shows("taint.tolerations")
def test_every_taint_must_be_tolerated() -> None:
    slices = [slice_of(device("a", [taint(), taint(key="other")]))]
    wanted = claim(request(tolerations=[{"key": "broken", "operator": "Exists"}]))

    assert attempt(wanted, slices=slices).ending is AttemptResult.UNSATISFIED


@shows("taint.admin")
def test_admin_access_needs_tolerations_as_well() -> None:
    slices = [slice_of(device("a", [taint()]))]

    assert attempt(claim(request(adminAccess=True)), slices=slices).ending is AttemptResult.UNSATISFIED


def rule(selector: dict[str, str] | None) -> dict[str, Any]:
    spec = {"taint": taint(), **({} if selector is None else {"deviceSelector": selector})}
    return {"metadata": {"name": "maintenance"}, "spec": spec}


@shows("taint.rule")
@pytest.mark.parametrize(
    ("selector", "tainted"),
    [
        ({}, True),
        ({"driver": DRIVER}, True),
        ({"driver": DRIVER, "pool": "node-1", "device": "a"}, True),
        ({"device": "b"}, False),
        ({"driver": DRIVER, "pool": "node-2"}, False),
    ],
)
def test_a_rule_taints_what_it_selects(selector: dict[str, str], tainted: bool) -> None:
    outcome = attempt(claim(request()), slices=[slice_of(device("a"))], taint_rules=[rule(selector)])

    assert (outcome.ending is AttemptResult.UNSATISFIED) is tainted


@shows("taint.rule.no-selector")
def test_a_rule_without_a_selector_taints_nothing() -> None:
    outcome = attempt(claim(request()), slices=[slice_of(device("a"))], taint_rules=[rule(None)])

    assert outcome.ending is AttemptResult.ALLOCATED


@shows("constraint.match")
def test_matching_devices_have_one_value_of_one_type() -> None:
    devices = [device("lacks"), device("text", root="1"), device("number", root=1), device("b", root=1)]
    wanted = claim(request("one"), request("two"), constraints=[{"matchAttribute": ROOT}])

    assert run(wanted, slices=[slice_of(*devices)]) == [[("one", "number"), ("two", "b")]]


@shows("constraint.match.list")
def test_lists_match_while_all_have_an_element_in_common() -> None:
    devices = [
        device("a", root=["r0", "r1"]),
        device("b", root=["r1", "r2"]),
        device("c", root=["r2", "r0"]),
        device("d", root="r1"),
    ]
    constraints = [{"matchAttribute": ROOT}]
    ((*chosen,),) = run(claim(request(count=3), constraints=constraints), slices=[slice_of(*devices)])

    assert [name for _, name in chosen] == ["a", "b", "d"]
    pairwise = claim(request(count=3), constraints=constraints)
    assert attempt(pairwise, slices=[slice_of(*devices[:3])]).ending is AttemptResult.UNSATISFIED


@shows("constraint.distinct")
def test_distinct_devices_have_the_attribute_and_differ_in_pairs() -> None:
    devices = [device("lacks"), *(device(f"{root}{i}", root=root) for i in (0, 1) for root in "ab")]
    constraints = [{"distinctAttribute": ROOT}]

    assert run(claim(request(count=2), constraints=constraints), slices=[slice_of(*devices)]) == [
        [("nic", "a0"), ("nic", "b0")]
    ]
    three = claim(request(count=2), request("one"), constraints=constraints)
    assert attempt(three, slices=[slice_of(*devices)]).ending is AttemptResult.UNSATISFIED


@shows("constraint.distinct.list")
def test_distinct_lists_are_disjoint() -> None:
    devices = [device("a", root=["r0", "r1"]), device("b", root=["r1"]), device("c", root=["r2", "r3"])]
    wanted = claim(request(count=2), constraints=[{"distinctAttribute": ROOT}])

    assert run(wanted, slices=[slice_of(*devices)]) == [[("nic", "a"), ("nic", "c")]]


@shows("constraint.scope")
@pytest.mark.parametrize(
    ("names", "second"), [(["a", "b"], "same"), ([], "same"), (["a", "b/s"], "same"), (["a", "b/t"], "other")]
)
def test_a_constraint_covers_what_it_names(names: list[str], second: str) -> None:
    devices = [device("first", root="0"), device("other", root="1"), device("same", root="0")]
    constraint = {"matchAttribute": ROOT, **({"requests": names} if names else {})}
    wanted = claim(request("a"), options(sub("s"), name="b"), constraints=[constraint])

    assert run(wanted, slices=[slice_of(*devices)]) == [[("a", "first"), ("b/s", second)]]


@shows("constraint.names")
def test_attributes_are_found_by_qualified_name_first() -> None:
    """``dra.net/root`` is ``root`` of the driver dra.net, and of no other driver."""
    bare, full = device("bare", root="x"), device("full", None, **{"dra.net/root": "x", "root": "y"})
    foreign = device("foreign", None, **{"dra.net/root": "x"})
    slices = [slice_of(bare, full), slice_of(device("not", root="x"), foreign, driver="a.dev")]
    wanted = claim(request(deviceClassName="any", count=3), constraints=[{"matchAttribute": ROOT}])
    ((*chosen,),) = run(wanted, slices=slices)

    assert [name for _, name in chosen] == ["foreign", "bare", "full"]
