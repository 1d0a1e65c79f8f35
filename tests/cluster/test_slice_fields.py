"""The optional fields of a device: where they stand, which were lost, and what a device is without them."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.cluster.client import JsonObject
from dranet.cluster.slice_plan import Feature, find_features, find_lost, withhold

HARD = {"key": "k", "effect": "NoSchedule"}
SOFT = {"key": "k", "effect": "None"}
NUMA = "resource.kubernetes.io/numaNode"

EVERYTHING: JsonObject = {
    "name": "a",
    "attributes": {
        NUMA: {"ints": [1, 0]},
        "example.com/list": {"strings": ["x"]},
        "dra.net/mtu": {"int": 1500},
    },
    "allowMultipleAllocations": True,
    "capacity": {"dra.net/bandwidth": {"value": "10", "requestPolicy": {"default": "1"}}},
    "taints": [HARD, SOFT],
    "consumesCounters": [{"counterSet": "port", "counters": {"parts": {"value": "1"}}}],
}


def test_a_device_with_every_field_has_every_feature_and_a_plain_one_has_none() -> None:
    assert find_features([EVERYTHING]) == set(Feature)
    assert find_features([{"name": "b", "attributes": {"x": {"int": 1}}, "taints": []}]) == set()


@pytest.mark.parametrize(
    ("feature", "field", "rest"),
    [
        (Feature.TAINTS, "taints", None),
        (Feature.OBSERVED_TAINTS, "taints", [HARD]),
        (Feature.BANDWIDTH, "capacity", None),
        (Feature.COUNTERS, "consumesCounters", None),
        (Feature.LIST_ATTRIBUTES, "attributes", {NUMA: {"int": 1}, "dra.net/mtu": {"int": 1500}}),
    ],
)
def test_without_a_feature_its_field_is_gone_and_the_others_stay(
    feature: Feature, field: str, rest: object
) -> None:
    (stripped,) = withhold((EVERYTHING,), [feature])
    assert stripped.get(field) == rest
    assert {key: value for key, value in stripped.items() if key != field} == {
        key: value for key, value in EVERYTHING.items() if key != field
    }


def test_without_shared_devices_the_capacity_that_they_share_is_gone_and_one_that_is_fixed_stays() -> None:
    (stripped,) = withhold((EVERYTHING,), [Feature.SHARED_DEVICES])
    assert not {"allowMultipleAllocations", "capacity"} & stripped.keys()
    fixed = {"name": "vf", "capacity": {"dra.net/bandwidth": {"value": "10"}}}
    assert withhold((fixed,), list(Feature)) == (fixed,)


def test_a_page_that_has_none_of_the_fields_is_the_same_object() -> None:
    page = ({"name": "a", "taints": [HARD]},)
    assert withhold(page, [Feature.OBSERVED_TAINTS, Feature.LIST_ATTRIBUTES]) is page


def test_a_device_whose_only_attribute_was_a_list_has_no_attributes() -> None:
    device = {"name": "a", "attributes": {"example.com/list": {"ints": [1]}}}
    assert withhold((device,), [Feature.LIST_ATTRIBUTES]) == ({"name": "a"},)


@given(st.sets(st.sampled_from(Feature)))
def test_what_is_withheld_is_not_there_and_what_a_server_dropped_is_found(features: set[Feature]) -> None:
    sent = ({"name": "z"}, EVERYTHING)
    stored = withhold(sent, features)
    also = {Feature.OBSERVED_TAINTS} if Feature.TAINTS in features else set()
    also |= {Feature.BANDWIDTH} if Feature.SHARED_DEVICES in features else set()
    assert find_features(stored) == set(Feature) - features - also
    assert find_lost(sent, stored) == features | also


def test_a_device_that_is_not_there_any_more_has_lost_everything() -> None:
    assert find_lost((EVERYTHING,), ()) == set(Feature)


@pytest.mark.parametrize("feature", Feature)
def test_every_feature_names_its_gate(feature: Feature) -> None:
    assert feature.gate.startswith("DRA")


def test_withholding_two_features_is_withholding_one_after_the_other() -> None:
    for one, other in combinations(Feature, 2):
        assert withhold((EVERYTHING,), [one, other]) == withhold(withhold((EVERYTHING,), [one]), [other])
