"""Selectors and patches of the stand-in."""

from __future__ import annotations

from typing import Any

import pytest

from dranet.desk.kubeapi.errors import Refusal
from dranet.desk.kubeapi.kinds import PODS
from dranet.desk.kubeapi.objects import JsonObject
from testbed.apiserver.list_options import parse_selector
from testbed.apiserver.patch import json_patch, merge_patch

POD: JsonObject = {
    "metadata": {"name": "p", "namespace": "n", "labels": {"app": "web", "tier": "front"}},
    "spec": {"nodeName": "node-a"},
}


@pytest.mark.parametrize(
    ("fields", "labels", "expected"),
    [
        ("", "", True),
        ("metadata.name=p", "", True),
        ("metadata.name==p,metadata.namespace=n", "", True),
        ("metadata.name!=p", "", False),
        ("spec.nodeName=", "", False),
        ("spec.nodeName=node-a", "app=web", True),
        ("status.phase=", "", True),
        ("", "app==web, tier!=back", True),
        ("", "app in (web, api),tier notin (back)", True),
        ("", "app notin (web)", False),
        ("", "app", True),
        ("", "!app", False),
        ("", "!other", True),
        ("", "other!=x", True),
        ("", "other notin (x)", True),
        ("", "other=x", False),
    ],
)
def test_a_selector_takes_what_kubernetes_takes(fields: str, labels: str, expected: bool) -> None:
    assert parse_selector(PODS, fields, labels).matches(POD) is expected


@pytest.mark.parametrize(
    ("fields", "labels"), [("nonsense", ""), ("spec.driver=x", ""), ("", "a b c"), ("", "a=(b")]
)
def test_a_selector_that_is_none_is_a_bad_request(fields: str, labels: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_selector(PODS, fields, labels)
    assert caught.value.code == 400


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": 1}, {"a": None}, {}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"c": 2}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": 1}, {"a": {"b": None}}, {"a": {}}),
        ({}, {"a": {"b": {"c": None}}}, {"a": {"b": {}}}),
        ([1], {"a": 1}, {"a": 1}),
    ],
)
def test_merge_patch_is_that_of_rfc_7396(target: Any, patch: Any, expected: Any) -> None:
    assert merge_patch(target, patch) == expected


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([{"op": "add", "path": "/b", "value": 1}], {"a": [1, 2], "b": 1}),
        ([{"op": "add", "path": "/a/-", "value": 3}], {"a": [1, 2, 3]}),
        ([{"op": "add", "path": "/a/0", "value": 0}], {"a": [0, 1, 2]}),
        ([{"op": "replace", "path": "/a/1", "value": 9}], {"a": [1, 9]}),
        ([{"op": "remove", "path": "/a/0"}], {"a": [2]}),
        ([{"op": "remove", "path": "/a"}], {}),
        ([{"op": "move", "from": "/a", "path": "/b~1c"}], {"b/c": [1, 2]}),
        ([{"op": "copy", "from": "/a/0", "path": "/b"}], {"a": [1, 2], "b": 1}),
        ([{"op": "test", "path": "/a/0", "value": 1}], {"a": [1, 2]}),
    ],
)
def test_json_patch_is_that_of_rfc_6902(operations: list[JsonObject], expected: JsonObject) -> None:
    target: JsonObject = {"a": [1, 2]}
    assert json_patch(target, operations) == expected
    assert target == {"a": [1, 2]}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/a/0", "value": 2},
        {"op": "remove", "path": "/none"},
        {"op": "replace", "path": "/none", "value": 1},
        {"op": "add", "path": "a", "value": 1},
        {"op": "add", "path": "/a/x", "value": 1},
        {"op": "nonsense", "path": "/a"},
        {"path": "/a"},
        "nonsense",
    ],
)
def test_a_json_patch_that_does_not_fit_is_refused(operation: Any) -> None:
    with pytest.raises(Refusal):
        json_patch({"a": [1]}, [operation])
