"""Objects of older versions of ``resource.k8s.io``, written in v1: all fields stay, in their new places."""

from __future__ import annotations

from typing import Any

import pytest

from dranet.desk.kubeapi.versions import CURRENT, can_convert, convert, has_other_version

JsonObject = dict[str, Any]
EXACTLY = {
    "deviceClassName": "nic",
    "selectors": [{"cel": {"expression": "true"}}],
    "allocationMode": "ExactCount",
    "count": 2,
    "adminAccess": False,
    "tolerations": [{"key": "x", "operator": "Exists"}],
    "capacity": {"requests": {"bandwidth": "1G"}},
}


def claim(*requests: JsonObject, version: str = "v1beta1") -> JsonObject:
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceClaim",
        "metadata": {"name": "c"},
        "spec": {"devices": {"requests": list(requests), "constraints": [{"matchAttribute": "a/b"}]}},
    }


@pytest.mark.parametrize("version", ["v1alpha3", "v1beta1", "v1"])
def test_fields_of_a_request_move_below_exactly(version: str) -> None:
    converted = convert(claim({"name": "nic", **EXACTLY}, version=version))
    assert converted == claim({"name": "nic", "exactly": EXACTLY}, version="v1")


def test_a_template_and_its_labels_are_converted() -> None:
    spec = claim({"name": "nic", "deviceClassName": "nic"})["spec"]
    body = {
        "apiVersion": "resource.k8s.io/v1beta1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "t"},
        "spec": {"metadata": {"labels": {"a": "b"}}, "spec": spec},
    }

    converted = convert(body)
    assert converted["spec"]["metadata"] == {"labels": {"a": "b"}}
    assert converted["spec"]["spec"]["devices"]["requests"] == [
        {"name": "nic", "exactly": {"deviceClassName": "nic"}}
    ]


def test_alternatives_and_what_is_exact_already_stay_and_v1beta2_gets_its_version_alone() -> None:
    requests: list[JsonObject] = [
        {"name": "nic", "exactly": EXACTLY},
        {"name": "any", "firstAvailable": [{"name": "a", "deviceClassName": "nic"}]},
    ]
    assert convert(claim(*requests, version="v1beta2")) == claim(*requests, version="v1")
    assert convert(claim(*requests, version="v1beta1")) == claim(*requests, version="v1")


@pytest.mark.parametrize(
    ("version", "capacity"), [("v1alpha3", {"memory": "80Gi"}), ("v1beta1", {"memory": {"value": "80Gi"}})]
)
def test_devices_of_a_slice_are_lifted_out_of_basic(version: str, capacity: JsonObject) -> None:
    attributes = {"model": {"string": "x"}}
    body = {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceSlice",
        "metadata": {"name": "s"},
        "spec": {
            "driver": "d",
            "devices": [{"name": "gpu", "basic": {"attributes": attributes, "capacity": capacity}}],
        },
    }
    assert convert(body)["spec"]["devices"] == [
        {"name": "gpu", "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}}
    ]


@pytest.mark.parametrize(
    "body",
    [
        claim({"name": "nic", "exactly": EXACTLY}, version="v1"),
        claim(version="v1alpha2"),
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {}},
        {"apiVersion": "resource.k8s.io/v1alpha3", "kind": "DeviceTaintRule", "metadata": {}, "spec": {}},
        {"apiVersion": CURRENT, "kind": "ResourceClaim", "spec": {"devices": {"requests": "x"}}},
        {"apiVersion": CURRENT, "kind": "ResourceClaim", "spec": None},
        {"apiVersion": CURRENT, "kind": "ResourceSlice", "spec": {"devices": [3]}},
    ],
)
def test_everything_else_is_the_same_object(body: JsonObject) -> None:
    assert convert(body) is body


def test_a_converted_object_is_converted_and_older_versions_are_known() -> None:
    body = claim({"name": "nic", "deviceClassName": "nic"})
    assert has_other_version(body)
    assert convert(convert(body)) is not body
    assert convert(again := convert(body)) is again
    assert not has_other_version(again)
    unreadable = claim(version="v1alpha2")
    assert (has_other_version(unreadable), can_convert(unreadable)) == (True, False)
