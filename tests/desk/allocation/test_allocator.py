"""The allocator takes what Kubernetes' would take, and says what stands in the way."""

from __future__ import annotations

from typing import Any

import pytest

from dranet.claims.config import select_results
from dranet.desk.allocation.allocator import (
    AllocationError,
    ClusterDevices,
    InUse,
    Unschedulable,
    allocate,
    read_devices_in_use,
)
from dranet.model.claim import AllocationResult, Claim, ClaimRef, ConfigSource, OpaqueConfig
from tests.desk.allocation.objects import DRIVER, NODE, claim, classes, device, request, run, slice_of, sub


def test_the_first_device_that_fits_is_taken_in_slice_order() -> None:
    slices = [slice_of(device("b", fast=False), device("a", fast=True), device("c", fast=True))]

    assert run(claim(request()), slices=slices) == [[("nic", "b")]]
    assert run(claim(request("nic", 'device.attributes["dra.net"].fast')), slices=slices) == [[("nic", "a")]]


def test_slices_of_a_pool_are_read_in_the_order_of_their_names() -> None:
    two = {"pool": {"resourceSliceCount": 2}}
    slices = [
        slice_of(device("second"), name="00001-x", **two),
        slice_of(device("first"), name="00000-y", **two),
    ]

    assert run(claim(request()), slices=slices) == [[("nic", "first")]]


def test_claims_of_a_pod_share_the_devices_or_none_is_allocated() -> None:
    slices = [slice_of(device("a"), device("b"))]

    assert run(claim(request()), claim(request()), slices=slices) == [[("nic", "a")], [("nic", "b")]]
    with pytest.raises(Unschedulable, match="request nic cannot be satisfied: 2 in use"):
        run(claim(request()), claim(request()), claim(request()), slices=slices)


def test_a_greedy_choice_is_taken_back_when_it_blocks_a_later_request() -> None:
    slices = [slice_of(device("rare", rare=True), device("plain", rare=False))]
    picky = request("picky", 'device.attributes["dra.net"].rare')

    assert run(claim(request("any"), picky), slices=slices) == [[("any", "plain"), ("picky", "rare")]]


def test_count_takes_that_many() -> None:
    slices = [slice_of(*(device(name) for name in "abc"))]

    assert run(claim(request(count=2)), slices=slices) == [[("nic", "a"), ("nic", "b")]]
    with pytest.raises(Unschedulable, match="only 3 devices"):
        run(claim(request(count=4)), slices=slices)


def test_all_takes_every_match_or_nothing() -> None:
    slices = [slice_of(device("a", fast=True), device("b", fast=False), device("c", fast=True))]
    wanted = claim(request("nic", 'device.attributes["dra.net"].fast', allocationMode="All"))

    assert run(wanted, slices=slices) == [[("nic", "a"), ("nic", "c")]]
    with pytest.raises(Unschedulable, match="in use"):
        run(wanted, slices=slices, in_use=InUse(frozenset({(DRIVER, "node-1", "c")})))
    with pytest.raises(Unschedulable):
        run(wanted, slices=[slice_of(device("b", fast=False))])


def test_all_from_a_pool_in_transition_breaks_off() -> None:
    slices = [slice_of(device("a"), pool={"resourceSliceCount": 2})]

    with pytest.raises(AllocationError, match="incomplete: 1 of 2 slices"):
        run(claim(request(allocationMode="All")), slices=slices)


def test_nothing_is_taken_from_an_incomplete_or_invalid_pool() -> None:
    incomplete = [slice_of(device("a"), pool={"resourceSliceCount": 2})]
    invalid = [slice_of(device("a"), device("a"))]

    for slices, why in ((incomplete, "incomplete"), (invalid, "invalid: device a twice")):
        with pytest.raises(Unschedulable, match=why):
            run(claim(request()), slices=slices)


def test_a_newer_generation_elsewhere_ends_an_older_one_that_is_not_complete() -> None:
    old = slice_of(device("old"), name="a", pool={"resourceSliceCount": 2})
    new = slice_of(device("new"), name="b", pool={"generation": 2})
    elsewhere = slice_of(device("new"), name="b", pool={"generation": 2}, nodeName="node-2")

    assert run(claim(request()), slices=[old, new]) == [[("nic", "new")]]
    with pytest.raises(Unschedulable, match="only 0 devices are published"):
        run(claim(request()), slices=[old, elsewhere])


def test_slices_of_other_nodes_offer_nothing_and_selected_ones_do() -> None:
    def selecting(rack: str) -> dict[str, Any]:
        expressions = [{"key": "rack", "operator": "In", "values": [rack]}]
        return {"nodeSelectorTerms": [{"matchExpressions": expressions}]}

    assert run(claim(request()), slices=[slice_of(device("a"), allNodes=True)]) == [[("nic", "a")]]
    assert run(claim(request()), slices=[slice_of(device("a"), nodeSelector=selecting("r1"))]) == [
        [("nic", "a")]
    ]
    for selection in ({"nodeName": "node-2"}, {"nodeSelector": selecting("r2")}):
        with pytest.raises(Unschedulable):
            run(claim(request()), slices=[slice_of(device("a"), **selection)])


def test_each_device_may_choose_its_node() -> None:
    devices = [{**device("far"), "nodeName": "node-2"}, {**device("near"), "nodeName": "node-1"}]

    assert run(claim(request()), slices=[slice_of(*devices, perDeviceNodeSelection=True)]) == [
        [("nic", "near")]
    ]


def test_the_first_alternative_that_fits_is_recorded_with_its_name() -> None:
    options = [sub("rdma", 'device.attributes["dra.net"].rdma'), sub("plain")]
    wanted = claim({"name": "nic", "firstAvailable": options})

    assert run(wanted, slices=[slice_of(device("a", rdma=False), device("b", rdma=True))]) == [
        [("nic/rdma", "b")]
    ]
    assert run(wanted, slices=[slice_of(device("a", rdma=False))]) == [[("nic/plain", "a")]]


def test_matching_devices_share_the_attribute_and_lack_of_it_matches_nothing() -> None:
    slices = [slice_of(device("x", root="r0"), device("y"), device("a", root="r1"), device("b", root="r1"))]
    wanted = claim(request("one"), request("two"), constraints=[{"matchAttribute": "dra.net/root"}])

    assert run(wanted, slices=slices) == [[("one", "a"), ("two", "b")]]


def test_an_attribute_of_another_type_does_not_match() -> None:
    slices = [slice_of(device("a", root="1"), device("b", root=1))]

    with pytest.raises(Unschedulable, match=r"against the constraint matchAttribute dra\.net/root"):
        run(claim(request(count=2), constraints=[{"matchAttribute": "dra.net/root"}]), slices=slices)


def test_a_constraint_covers_the_requests_it_names_and_their_alternatives() -> None:
    slices = [slice_of(device("a", root="0"), device("b", root="1"), device("c", root="0"))]
    options = {"name": "nic", "firstAvailable": [sub("best")]}
    constraint = {"matchAttribute": "dra.net/root", "requests": ["nic", "other"]}
    wanted = claim(options, request("free"), request("other"), constraints=[constraint])

    assert run(wanted, slices=slices) == [[("nic/best", "a"), ("free", "b"), ("other", "c")]]


def test_distinct_devices_differ_in_pairs() -> None:
    slices = [
        slice_of(device("a", root="0"), device("b", root="0"), device("c", root="1"), device("d", root="0"))
    ]
    wanted = claim(request(count=2), constraints=[{"distinctAttribute": "dra.net/root"}])

    assert run(wanted, slices=slices) == [[("nic", "a"), ("nic", "c")]]
    with pytest.raises(Unschedulable):
        run(claim(request(count=3), constraints=[{"distinctAttribute": "dra.net/root"}]), slices=slices)


def test_a_constraint_against_one_of_all_breaks_off() -> None:
    slices = [slice_of(device("a", root="0"), device("b", root="1"))]
    wanted = claim(request(allocationMode="All"), constraints=[{"matchAttribute": "dra.net/root"}])

    with pytest.raises(AllocationError, match="breaks matchAttribute"):
        run(wanted, slices=slices)


def test_admin_access_looks_at_what_others_have_but_not_twice() -> None:
    slices = [slice_of(device("a"))]
    used = InUse(frozenset({(DRIVER, "node-1", "a")}))

    assert run(claim(request(adminAccess=True)), slices=slices, in_use=used) == [[("nic", "a")]]
    with pytest.raises(Unschedulable):
        run(claim(request(adminAccess=True, count=2)), slices=slices)


def test_what_admin_access_looks_at_is_not_given_to_another_claim_of_the_pod() -> None:
    slices = [slice_of(device("a"))]
    watching, owning = claim(request(adminAccess=True)), claim(request())

    assert run(owning, watching, slices=slices) == [[("nic", "a")], [("nic", "a")]]
    with pytest.raises(Unschedulable):
        run(watching, owning, slices=slices)


def test_admin_access_takes_nothing_away() -> None:
    results = [
        {"driver": DRIVER, "pool": "p", "device": "a", "adminAccess": True},
        {"driver": DRIVER, "pool": "p", "device": "b"},
    ]
    claims: list[dict[str, Any]] = [
        {"status": {"allocation": {"devices": {"results": results}}}},
        {"status": {}},
        {},
    ]

    assert read_devices_in_use(claims).devices == {(DRIVER, "p", "b")}


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "broken", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "broken", "value": "yes"}, True),
        ({"key": "broken", "value": "no"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "broken", "operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_taints_keep_devices_from_requests_that_do_not_tolerate_them(
    toleration: dict[str, str], tolerated: bool
) -> None:
    slices = [slice_of(device("a", taints=[{"key": "broken", "value": "yes", "effect": "NoSchedule"}]))]
    wanted = claim(request(tolerations=[toleration]))

    if tolerated:
        assert run(wanted, slices=slices) == [[("nic", "a")]]
    else:
        with pytest.raises(Unschedulable, match="taint broken"):
            run(wanted, slices=slices)


def test_a_taint_without_consequence_keeps_nothing_away() -> None:
    assert run(claim(request()), slices=[slice_of(device("a", taints=[{"key": "k", "effect": "None"}]))])


def test_the_message_names_the_selector_that_nothing_matched() -> None:
    expression = 'device.attributes["dra.net"].fast'
    with pytest.raises(Unschedulable) as caught:
        run(
            claim(request("nic", expression)),
            slices=[slice_of(device("a", fast=False), device("b", fast=False))],
        )
    text = str(caught.value)

    assert text == (
        "claim default/c: request nic cannot be satisfied: "
        f"2 not matched by the selector of request nic ({expression})"
    )


def test_a_selector_that_fails_breaks_off_and_names_device_and_attribute() -> None:
    with pytest.raises(AllocationError, match=r"device dra.net/node-1/a: .*'nothing'"):
        run(claim(request("nic", 'device.attributes["dra.net"].nothing')), slices=[slice_of(device("a"))])


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (claim(request(deviceClassName="nope")), "DeviceClass nope does not exist"),
        (claim(request("nic", "device.nope")), "does not compile"),
        (claim(request(derivedAttributes=[{"name": "x"}])), "derivedAttributes is not modelled here"),
    ],
)
def test_a_claim_that_cannot_be_understood_breaks_off(wanted: dict[str, Any], text: str) -> None:
    with pytest.raises(AllocationError, match=text):
        run(wanted, slices=[slice_of(device("a"))])


def test_a_device_with_features_that_are_not_played_is_an_error_where_it_would_be_taken() -> None:
    odd = {**device("a"), "nodeAllocatableResources": {"cpu": {}}}

    with pytest.raises(AllocationError, match="nodeAllocatableResources is not modelled here"):
        run(
            claim(request()), slices=[slice_of({**odd, "nodeAllocatableResources": {"cpu": {"mapping": {}}}})]
        )
    assert run(claim(request()), slices=[slice_of(device("z"), odd)]) == [[("nic", "z")]]


def test_a_shared_device_goes_to_any_number_of_claims_each_with_a_share_of_its_own() -> None:
    shared = slice_of({**device("a"), "allowMultipleAllocations": True})
    cluster = ClusterDevices([shared], {"net": {}})
    first, second = allocate([claim(request(), name="one"), claim(request(), name="two")], NODE, cluster)
    shares = [allocation["devices"]["results"][0]["shareID"] for allocation in (first, second)]
    assert len(set(shares)) == 2
    assert run(claim(request("nic", "device.allowMultipleAllocations")), slices=[shared]) == [[("nic", "a")]]


def test_admin_access_to_a_shared_device_has_a_share_as_well() -> None:
    cluster = ClusterDevices([slice_of({**device("a"), "allowMultipleAllocations": True})], {"net": {}})
    (allocation,) = allocate([claim(request(adminAccess=True))], NODE, cluster)
    (result,) = allocation["devices"]["results"]
    assert result["adminAccess"] is True
    assert result["shareID"]


def test_no_claim_gets_more_than_32_devices() -> None:
    slices = [slice_of(*(device(f"d{i}") for i in range(40)))]

    with pytest.raises(Unschedulable, match="32"):
        run(claim(request(count=33)), slices=slices)


def opaque(**parameters: Any) -> dict[str, Any]:
    return {"opaque": {"driver": DRIVER, "parameters": parameters}}


def test_configs_come_class_first_and_name_requests_only_where_they_must() -> None:
    slices = [slice_of(device("a"), device("b"))]
    wanted = claim(
        request("one"),
        request("two", deviceClassName="any"),
        config=[
            opaque(n=1),
            {"requests": ["two"], **opaque(n=2)},
            {"requests": ["one", "two"], **opaque(n=3)},
        ],
    )
    view = ClusterDevices(slices, classes(config=[opaque(n=0)]))
    (allocation,) = allocate([wanted], NODE, view)

    assert allocation["devices"]["config"] == [
        {"source": "FromClass", "requests": ["one"], **opaque(n=0)},
        {"source": "FromClaim", **opaque(n=1)},
        {"source": "FromClaim", "requests": ["two"], **opaque(n=2)},
        {"source": "FromClaim", **opaque(n=3)},
    ]
    assert _numbers(allocation, "two") == [1, 2, 3]


def _numbers(allocation: dict[str, Any], name: str) -> list[int]:
    """What the driver's own selection makes of the scheduler's output."""
    devices = allocation["devices"]
    configs = tuple(
        OpaqueConfig(
            ConfigSource(c["source"]),
            c["opaque"]["driver"],
            c["opaque"]["parameters"],
            tuple(c.get("requests", ())),
        )
        for c in devices["config"]
    )
    results = tuple(
        AllocationResult(r["request"], r["driver"], r["pool"], r["device"]) for r in devices["results"]
    )
    selections = select_results(Claim(ClaimRef("", "", ""), True, results, configs), DRIVER)
    (selection,) = [s for s in selections if s.result.main_request == name]
    return [c.parameters["n"] for c in selection.configs]


def test_a_config_of_an_alternative_that_lost_is_left_out() -> None:
    options = {"name": "nic", "firstAvailable": [sub("fast"), sub("slow")]}
    wanted = claim(
        options, config=[{"requests": ["nic/slow"], **opaque(n=1)}, {"requests": ["nic"], **opaque(n=2)}]
    )
    (allocation,) = allocate([wanted], NODE, ClusterDevices([slice_of(device("a"))], classes()))

    assert allocation["devices"]["config"] == [{"source": "FromClaim", **opaque(n=2)}]


def test_the_allocation_says_where_the_claim_can_be_used() -> None:
    def selector(**selection: Any) -> Any:
        cluster = ClusterDevices([slice_of(device("a"), **selection)], classes())
        return allocate([claim(request())], NODE, cluster)[0].get("nodeSelector")

    expressions = [{"key": "rack", "operator": "Exists"}]
    field = {"key": "metadata.name", "operator": "In", "values": ["node-1"]}
    assert selector(nodeName="node-1") == {"nodeSelectorTerms": [{"matchFields": [field]}]}
    chosen = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    assert selector(nodeSelector=chosen) == chosen
    assert selector(allNodes=True) is None
