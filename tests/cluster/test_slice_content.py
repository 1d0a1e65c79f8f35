"""The devices of a slice as JSON, and when what a server holds is what we sent."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.cluster.client import JsonObject
from dranet.cluster.slice_plan import build_pages, device_to_json, is_same_page, keep_taint_times
from dranet.model.device import Device, DeviceKind, Taint, TaintEffect

NOW = "2026-03-01T10:00:00Z"


def same(found: JsonObject, desired: JsonObject) -> bool:
    return is_same_page(({"name": "a", **found},), ({"name": "a", **desired},))


def test_attributes_are_typed_and_a_bool_is_not_an_int() -> None:
    device = Device(
        "eth0", DeviceKind.NIC, {"dra.net/mtu": 1500, "dra.net/rdma": True, "dra.net/ifName": "eth0"}
    )
    assert device_to_json(device) == {
        "name": "eth0",
        "attributes": {
            "dra.net/ifName": {"string": "eth0"},
            "dra.net/mtu": {"int": 1500},
            "dra.net/rdma": {"bool": True},
        },
    }


def test_a_list_attribute_keeps_its_order() -> None:
    device = Device("eth0", DeviceKind.NIC, {"resource.kubernetes.io/numaNode": (1, 0)})
    assert device_to_json(device)["attributes"] == {"resource.kubernetes.io/numaNode": {"ints": [1, 0]}}


def test_a_shared_device_may_be_allocated_several_times() -> None:
    assert device_to_json(Device("a", DeviceKind.NIC, shared=True)) == {
        "name": "a",
        "allowMultipleAllocations": True,
    }


def test_taints_are_those_under_the_devices_name_without_a_time() -> None:
    taints = {
        "b": [Taint("dra.net/link-down", TaintEffect.NO_SCHEDULE, "carrier"), Taint("k", TaintEffect.NONE)]
    }
    devices = [Device(name, DeviceKind.NIC) for name in "ab"]
    assert build_pages([devices], taints) == (
        (
            {"name": "a"},
            {
                "name": "b",
                "taints": [
                    {"key": "dra.net/link-down", "effect": "NoSchedule", "value": "carrier"},
                    {"key": "k", "effect": "None"},
                ],
            },
        ),
    )


def test_a_device_name_that_is_there_twice_is_refused() -> None:
    twice = Device("eth0", DeviceKind.NIC)
    with pytest.raises(ValueError, match="eth0"):
        build_pages([[twice], [twice]])


def test_no_pages_are_one_empty_page() -> None:
    assert build_pages([]) == ((),)


@pytest.mark.parametrize(
    ("found", "desired"),
    [
        ({"attributes": {}, "taints": [], "capacity": None, "nodeName": ""}, {}),
        ({"allowMultipleAllocations": False, "allNodes": False, "bindsToNode": False}, {}),
        ({"aFieldOfKubernetes1.40": "with a default"}, {}),
        ({"capacity": {"m": {"value": "1Gi"}}}, {"capacity": {"m": {"value": "1024Mi"}}}),
        (
            {
                "capacity": {
                    "m": {"value": "1", "requestPolicy": {"default": "500m", "validValues": ["500m", "1"]}}
                }
            },
            {
                "capacity": {
                    "m": {"value": "1", "requestPolicy": {"default": "0.5", "validValues": ["0.5", "1"]}}
                }
            },
        ),
        (
            {"consumesCounters": [{"counterSet": "1k", "counters": {"vf": {"value": "1k"}}}]},
            {"consumesCounters": [{"counterSet": "1k", "counters": {"vf": {"value": "1000"}}}]},
        ),
        (
            {"attributes": {"b": {"int": 1}, "a": {"int": 2}}},
            {"attributes": {"a": {"int": 2}, "b": {"int": 1}}},
        ),
        (
            {"taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": NOW}]},
            {"taints": [{"key": "k", "value": "", "effect": "NoSchedule"}]},
        ),
        (
            {"taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": NOW}]},
            {"taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": "2026-03-01T10:00:01+00:00"}]},
        ),
    ],
)
def test_what_differs_in_its_spelling_alone_is_the_same(found: JsonObject, desired: JsonObject) -> None:
    assert same(found, desired)


@pytest.mark.parametrize(
    ("found", "desired"),
    [
        ({"attributes": {"a": {"bool": False}}}, {}),
        ({"attributes": {"a": {"int": 1}}}, {"attributes": {"a": {"string": "1"}}}),
        ({"attributes": {"a": {"int": 1}}}, {"attributes": {"a": {"ints": [1]}}}),
        ({"attributes": {"a": {"ints": [0, 1]}}}, {"attributes": {"a": {"ints": [1, 0]}}}),
        ({"allowMultipleAllocations": True}, {}),
        ({"nodeName": "elsewhere"}, {}),
        ({"bindingConditions": ["x"]}, {}),
        ({"capacity": {"m": {"value": "1Gi"}}}, {"capacity": {"m": {"value": "1G"}}}),
        ({"capacity": {"m": {"value": "0"}}}, {}),
        (
            {"consumesCounters": [{"counterSet": "1k", "counters": {}}]},
            {"consumesCounters": [{"counterSet": "1000", "counters": {}}]},
        ),
        ({"taints": [{"key": "k", "effect": "NoSchedule"}]}, {}),
        ({}, {"taints": [{"key": "k", "effect": "NoSchedule"}]}),
        (
            {"taints": [{"key": "k", "effect": "NoSchedule"}]},
            {"taints": [{"key": "k", "effect": "NoExecute"}]},
        ),
        (
            {"taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": NOW}]},
            {"taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": "2026-03-01T10:00:02Z"}]},
        ),
        (
            {"taints": [{"key": "k", "effect": "NoSchedule"}]},
            {"taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": NOW}]},
        ),
    ],
)
def test_what_means_something_else_is_not_the_same(found: JsonObject, desired: JsonObject) -> None:
    assert not same(found, desired)


def test_the_order_of_devices_counts() -> None:
    a, b = {"name": "a"}, {"name": "b"}
    assert is_same_page((a, b), (a, b))
    assert not is_same_page((a, b), (b, a))
    assert not is_same_page((a,), (a, b))


def test_a_taint_keeps_its_time_only_on_its_device_and_only_while_it_says_the_same() -> None:
    old = {"key": "k", "effect": "NoSchedule", "value": "x", "timeAdded": NOW}
    existing = [{"spec": {"devices": [{"name": "a", "taints": [old]}]}}]
    untimed = {key: value for key, value in old.items() if key != "timeAdded"}
    page = (
        {"name": "a", "taints": [untimed, {**untimed, "value": "y"}]},
        {"name": "b", "taints": [untimed]},
        {"name": "c"},
    )
    assert keep_taint_times(page, existing) == (
        {"name": "a", "taints": [old, {**untimed, "value": "y"}]},
        {"name": "b", "taints": [untimed]},
        {"name": "c"},
    )


_attributes = st.dictionaries(
    st.sampled_from(["a", "b"]),
    st.booleans() | st.integers(0, 2) | st.text("xy", max_size=2) | st.tuples(st.integers(0, 2)),
)
_taints = st.lists(
    st.builds(Taint, st.sampled_from("kl"), st.sampled_from(TaintEffect), st.sampled_from(["", "v"]))
)
_device = st.tuples(
    st.builds(Device, st.just("a"), st.just(DeviceKind.NIC), _attributes, shared=st.booleans()), _taints
)


@given(one=_device, other=_device)
def test_two_devices_are_the_same_exactly_when_they_say_the_same(
    one: tuple[Device, list[Taint]], other: tuple[Device, list[Taint]]
) -> None:
    stored, sent = (json.loads(json.dumps(device_to_json(device, taints))) for device, taints in (one, other))
    says = [
        ({name: (type(value), value) for name, value in device.attributes.items()}, device.shared, taints)
        for device, taints in (one, other)
    ]
    assert is_same_page((stored,), (sent,)) is (says[0] == says[1])
