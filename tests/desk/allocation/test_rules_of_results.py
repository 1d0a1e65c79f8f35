"""What is written into the claim, and what is refused because nobody here knows its meaning."""

from __future__ import annotations

from typing import Any

import pytest

from dranet.desk.allocation.allocator import AllocationError, AttemptResult, Cause, ClusterDevices, allocate
from tests.desk.allocation.documented_rules import shows
from tests.desk.allocation.objects import (
    NODE,
    attempt,
    claim,
    classes,
    counters,
    device,
    request,
    results,
    slice_of,
    sub,
    taker,
)

HERE = {
    "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]
}


def selecting(*requirements: dict[str, Any]) -> dict[str, Any]:
    return {"nodeSelectorTerms": [{"matchExpressions": list(requirements)}]}


def node_selector(*slices: dict[str, Any]) -> Any:
    wanted = claim(request(deviceClassName="any", count=sum(len(s["spec"]["devices"]) for s in slices)))
    return allocate([wanted], NODE, ClusterDevices(slices, classes()))[0].get("nodeSelector")


@shows("result.node")
def test_a_device_of_one_node_pins_the_claim_to_it() -> None:
    everywhere = slice_of(device("b"), driver="z.dev", allNodes=True)

    assert node_selector(slice_of(device("a"))) == HERE
    assert node_selector(everywhere, slice_of(device("a"))) == HERE
    own = slice_of({**device("a"), "nodeName": "node-1"}, perDeviceNodeSelection=True)
    assert node_selector(own) == HERE


@shows("result.node")
def test_a_device_that_binds_to_a_node_pins_the_claim_as_well() -> None:
    assert node_selector(slice_of({**device("a"), "bindsToNode": True}, allNodes=True)) == HERE


@shows("result.selector")
def test_requirements_are_merged_and_none_means_anywhere() -> None:
    rack = {"key": "rack", "operator": "In", "values": ["r1", "r2"]}
    same = {**rack, "values": ["r2", "r1"]}
    exists = {"key": "rack", "operator": "Exists"}
    slices = [
        slice_of(device("a"), nodeSelector=selecting(rack)),
        slice_of(device("b"), driver="y.dev", nodeSelector=selecting(exists, same)),
        slice_of(device("c"), driver="z.dev", allNodes=True),
    ]

    assert node_selector(*slices) == selecting(rack, exists)
    assert node_selector(slices[2]) is None


@shows("result.binding")
def test_what_the_devices_and_the_request_say_is_copied() -> None:
    binding = {"bindingConditions": ["ready"], "bindingFailureConditions": ["failed"]}
    tolerations = [{"key": "x", "operator": "Exists"}]
    slices = [slice_of({**device("a"), **binding}, nodeName="node-1", skipNodeOperations=["*"])]

    assert results(claim(request(tolerations=tolerations)), slices=slices) == [
        {
            "request": "nic",
            "driver": "dra.net",
            "pool": "node-1",
            "device": "a",
            "tolerations": tolerations,
            "skipNodeOperations": ["*"],
            **binding,
        }
    ]


def opaque(number: int, *requests: str) -> dict[str, Any]:
    config = {"opaque": {"driver": "dra.net", "parameters": {"n": number}}}
    return {"requests": list(requests), **config} if requests else config


@shows("result.config")
def test_configs_are_those_of_what_was_chosen_class_first() -> None:
    options = {"name": "two", "firstAvailable": [sub("no", "false"), sub("yes", deviceClassName="any")]}
    wanted = claim(
        request("one"),
        options,
        config=[opaque(1), opaque(2, "two/no"), opaque(3, "two/yes"), opaque(4, "one", "two")],
    )
    slices = [slice_of(device("a"), device("b"))]
    (allocation,) = allocate([wanted], NODE, ClusterDevices(slices, classes(config=[opaque(0)])))

    assert allocation["devices"]["config"] == [
        {"source": "FromClass", **opaque(0, "one")},
        {"source": "FromClaim", **opaque(1)},
        {"source": "FromClaim", **opaque(3, "two/yes")},
        {"source": "FromClaim", **opaque(4)},
    ]


@shows("unknown.request")
@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        (claim(request(derivedAttributes=[{"name": "x"}])), "derivedAttributes"),
        (claim(request(allocationMode="Some")), "allocationMode Some"),
        (claim({"name": "nic", "firstAvailable": [sub("s", adminAccess=True)]}), "adminAccess"),
        (claim({"name": "nic", "shape": {"x": 1}}), "shape"),
        (claim(request(), constraints=[{"nearAttribute": "x"}]), "nearAttribute"),
        (claim(request(capacity={"limits": {"x": "1"}})), "limits"),
        (claim(request(), placement={"x": 1}), "placement"),
    ],
)
def test_what_a_claim_asks_that_is_not_modelled_is_refused_by_name(
    wanted: dict[str, Any], named: str
) -> None:
    with pytest.raises(AllocationError, match=f"{named} is not modelled here") as caught:
        attempt(wanted, slices=[slice_of(device("a"))])

    assert caught.value.cause is Cause.NOT_MODELLED


def grouped(name: str) -> dict[str, Any]:
    body = taker(name, {"m": "1"})
    body["consumesCounters"][0]["compatibilityGroups"] = ["g"]
    return body


def policed() -> dict[str, Any]:
    body = counters({"m": "1"})
    body["spec"]["sharedCounters"][0]["counters"]["m"]["requestPolicy"] = {"default": "1"}
    return body


TWO: dict[str, Any] = {"pool": {"resourceSliceCount": 2}}


@shows("unknown.device")
@pytest.mark.parametrize(
    ("slices", "named"),
    [
        ([slice_of({**device("a"), "nodeAllocatableResources": {"cpu": 1}})], "nodeAllocatableResources"),
        ([slice_of(device("a"), nodeName="node-1", partitionTypeAttribute="x/y")], "partitionTypeAttribute"),
        ([counters({"m": "1"}), slice_of(grouped("a"), **TWO)], "consumesCounters.compatibilityGroups"),
        ([policed(), slice_of(taker("a", {"m": "1"}), **TWO)], "requestPolicy of the counter set.m"),
        ([slice_of({"name": "a", "attributes": {"x": {"float": 1}}})], "the type of the attribute x"),
    ],
)
def test_a_device_that_nobody_can_judge_is_refused_by_name(slices: list[dict[str, Any]], named: str) -> None:
    outcome = attempt(claim(request(deviceClassName="any")), slices=slices)

    assert outcome.error is not None
    assert (outcome.error.cause, outcome.ending) == (Cause.NOT_MODELLED, AttemptResult.BROKE_OFF)
    assert f"{named} is not modelled here" in str(outcome.error)


@shows("unknown.device")
def test_where_it_would_not_be_given_it_does_no_harm() -> None:
    odd = {**device("odd"), "nodeAllocatableResources": {"cpu": 1}}
    outcome = attempt(claim(request()), slices=[slice_of(device("a"), odd)])

    assert outcome.ending is AttemptResult.ALLOCATED


@shows("unknown.device")
def test_a_taint_rule_that_selects_in_an_unknown_way_is_refused() -> None:
    rule = {"metadata": {"name": "r"}, "spec": {"deviceSelector": {"deviceClassName": "x"}, "taint": {}}}

    with pytest.raises(AllocationError, match=r"deviceSelector\.deviceClassName is not modelled here"):
        attempt(claim(request()), slices=[slice_of(device("a"))], taint_rules=[rule])
