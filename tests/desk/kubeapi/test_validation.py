"""What the stand-in refuses, by the limits of ``resource.k8s.io/v1``."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from dranet.desk.kubeapi.kinds import (
    EVENTS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Kind,
)
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.kubeapi.validation import validate

Change = Callable[[JsonObject], Any]


def a_slice() -> JsonObject:
    return {
        "metadata": {"name": "s"},
        "spec": {
            "driver": "dra.net",
            "nodeName": "node-a",
            "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "eth0", "attributes": {}, "capacity": {}}],
        },
    }


def a_claim() -> JsonObject:
    result = {"request": "r", "driver": "d", "pool": "p", "device": "e"}
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Attached",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    device = {"driver": "d", "pool": "p", "device": "e", "conditions": [condition], "networkData": {}}
    return {
        "metadata": {"name": "c", "namespace": "n"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "x"}}]}},
        "status": {"allocation": {"devices": {"results": [result]}}, "devices": [device]},
    }


OWNER = {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "u", "controller": True}
OPAQUE = {"driver": "d", "parameters": {}}


def consumer(uid: str) -> JsonObject:
    return {"resource": "pods", "name": "p", "uid": uid}


def faults(kind: Kind, body: JsonObject, change: Change, before: JsonObject | None = None) -> list[str]:
    changed = copy.deepcopy(body)
    change(changed)
    return [cause.field for cause in validate(kind, changed, before)]


def device(body: JsonObject) -> JsonObject:
    found: JsonObject = body["spec"]["devices"][0]
    return found


def many(count: int, **fields: Any) -> list[JsonObject]:
    return [{"name": f"d{number}", **fields} for number in range(count)]


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["spec"].update(devices=many(128)),
        lambda s: s["spec"].update(devices=many(64, taints=[{"key": "a", "effect": "None"}])),
        lambda s: s["spec"]["pool"].update(name="rack-1/pool.a"),
        lambda s: device(s)["attributes"].update({"dra.net/x": {"int": -(2**63)}}),
        lambda s: device(s)["attributes"].update({"x": {"string": "y" * 64}}),
        lambda s: device(s)["attributes"].update({"x": {"version": "1.2.3-rc.1+build"}}),
        lambda s: device(s)["attributes"].update({f"a{n}": {"int": n} for n in range(32)}),
        lambda s: s["spec"].update(devices=many(64, attributes={"x": {"ints": [0, 1]}})),
        lambda s: device(s).update(attributes={"x": {"ints": list(range(48))}}),
        lambda s: device(s)["capacity"].update({"bandwidth": {"value": "100G"}}),
    ],
)
def test_a_good_slice_is_accepted(change: Change) -> None:
    assert faults(RESOURCE_SLICES, a_slice(), change) == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda s: s.pop("spec"), "spec"),
        (lambda s: s["spec"].update(driver="Dra.Net"), "spec.driver"),
        (lambda s: s["spec"].update(driver="a" * 64), "spec.driver"),
        (lambda s: s["spec"]["pool"].update(name="a//b"), "spec.pool.name"),
        (lambda s: s["spec"]["pool"].update(generation=-1), "spec.pool.generation"),
        (lambda s: s["spec"]["pool"].update(resourceSliceCount=0), "spec.pool.resourceSliceCount"),
        (lambda s: s["spec"].pop("nodeName"), "spec"),
        (lambda s: s["spec"].update(allNodes=True), "spec"),
        (lambda s: s["spec"].update(allNodes=False), "spec.allNodes"),
        (lambda s: s["spec"].update(devices=many(129)), "spec.devices"),
        (lambda s: s["spec"].update(devices=many(65, taints=[{}])), "spec.devices"),
        (lambda s: s["spec"].update(devices=[{"name": "a"}, {"name": "a"}]), "spec.devices[1].name"),
        (lambda s: device(s).update(name="eth0.100"), "spec.devices[0].name"),
        (lambda s: device(s).update(name="a" * 64), "spec.devices[0].name"),
        (lambda s: device(s)["attributes"].update({"a-b": {"int": 1}}), "spec.devices[0].attributes"),
        (lambda s: device(s)["attributes"].update({"x" * 33: {"int": 1}}), "spec.devices[0].attributes"),
        (lambda s: device(s)["attributes"].update({"/x": {"int": 1}}), "spec.devices[0].attributes"),
        (lambda s: device(s)["attributes"].update({"x": {}}), "spec.devices[0].attributes[x]"),
        (
            lambda s: device(s)["attributes"].update({"x": {"int": 1, "bool": True}}),
            "spec.devices[0].attributes[x]",
        ),
        (lambda s: device(s)["attributes"].update({"x": {"int": True}}), "spec.devices[0].attributes[x].int"),
        (
            lambda s: device(s)["attributes"].update({"x": {"int": 2**63}}),
            "spec.devices[0].attributes[x].int",
        ),
        (lambda s: device(s)["attributes"].update({"x": {"bool": 1}}), "spec.devices[0].attributes[x].bool"),
        (
            lambda s: device(s)["attributes"].update({"x": {"string": "ü" * 33}}),
            "spec.devices[0].attributes[x].string",
        ),
        (
            lambda s: device(s)["attributes"].update({"x": {"version": "v1.2.3"}}),
            "spec.devices[0].attributes[x].version",
        ),
        (
            lambda s: device(s)["attributes"].update({f"a{n}": {"int": n} for n in range(33)}),
            "spec.devices[0]",
        ),
        (lambda s: s["spec"].update(devices=many(65, attributes={"x": {"ints": [0]}})), "spec.devices"),
        (lambda s: device(s)["attributes"].update({"x": {"ints": []}}), "spec.devices[0].attributes[x].ints"),
        (
            lambda s: device(s)["attributes"].update({"x": {"strings": ["a", 1]}}),
            "spec.devices[0].attributes[x].strings[1]",
        ),
        (
            lambda s: device(s).update(attributes={"x": {"ints": list(range(47))}, "y": {"ints": [1, 2]}}),
            "spec.devices[0].attributes",
        ),
        (
            lambda s: device(s)["capacity"].update({"x": {"value": "many"}}),
            "spec.devices[0].capacity[x].value",
        ),
        (
            lambda s: s["metadata"].update(
                ownerReferences=[{"apiVersion": "v1", "kind": "Node", "name": "n"}]
            ),
            "metadata.ownerReferences[0].uid",
        ),
    ],
)
def test_a_bad_slice_is_refused_with_the_field(change: Change, field: str) -> None:
    assert faults(RESOURCE_SLICES, a_slice(), change) == [field]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda s: s["spec"].update(driver="other"), "spec.driver"),
        (lambda s: s["spec"].update(nodeName="node-b"), "spec.nodeName"),
        (lambda s: s["spec"]["pool"].update(name="other"), "spec.pool.name"),
    ],
)
def test_a_slice_cannot_move_to_another_driver_node_or_pool(change: Change, field: str) -> None:
    assert faults(RESOURCE_SLICES, a_slice(), change, a_slice()) == [field]


def status_device(body: JsonObject) -> JsonObject:
    found: JsonObject = body["status"]["devices"][0]
    return found


@pytest.mark.parametrize(
    "change",
    [
        lambda c: status_device(c)["networkData"].update(ips=["10.0.0.5/24", "2001:db8::5/64"]),
        lambda c: status_device(c).update(data={"x": "y" * 10_000}),
        lambda c: c["status"].update(reservedFor=[consumer("u")]),
    ],
)
def test_a_good_claim_is_accepted(change: Change) -> None:
    assert faults(RESOURCE_CLAIMS, a_claim(), change) == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda c: status_device(c).update(device="other"), "status.devices[0]"),
        (lambda c: status_device(c).update(shareID=str(uuid.UUID(int=1))), "status.devices[0]"),
        (lambda c: c["status"]["devices"].append(status_device(c)), "status.devices[1]"),
        (
            lambda c: status_device(c).update(
                conditions=[{**status_device(c)["conditions"][0], "type": f"T{n}"} for n in range(9)]
            ),
            "status.devices[0].conditions",
        ),
        (
            lambda c: status_device(c)["conditions"][0].update(status="true"),
            "status.devices[0].conditions[0].status",
        ),
        (
            lambda c: status_device(c)["conditions"][0].update(reason="no spaces"),
            "status.devices[0].conditions[0].reason",
        ),
        (lambda c: status_device(c)["conditions"][0].pop("type"), "status.devices[0].conditions[0].type"),
        (
            lambda c: status_device(c)["conditions"][0].pop("lastTransitionTime"),
            "status.devices[0].conditions[0].lastTransitionTime",
        ),
        (
            lambda c: status_device(c)["conditions"][0].update(message="x" * 32769),
            "status.devices[0].conditions[0].message",
        ),
        (lambda c: status_device(c).update(data=[1]), "status.devices[0].data"),
        (lambda c: status_device(c).update(data={"x": "y" * 10_240}), "status.devices[0].data"),
        (
            lambda c: status_device(c)["networkData"].update(ips=["10.0.0.5"]),
            "status.devices[0].networkData.ips[0]",
        ),
        (
            lambda c: status_device(c)["networkData"].update(ips=["FE80::1/64"]),
            "status.devices[0].networkData.ips[0]",
        ),
        (
            lambda c: status_device(c)["networkData"].update(ips=["10.0.0.1/8"] * 2),
            "status.devices[0].networkData.ips[1]",
        ),
        (
            lambda c: status_device(c)["networkData"].update(ips=[f"10.0.0.{n}/8" for n in range(17)]),
            "status.devices[0].networkData.ips",
        ),
        (
            lambda c: status_device(c)["networkData"].update(interfaceName="i" * 257),
            "status.devices[0].networkData.interfaceName",
        ),
        (
            lambda c: status_device(c)["networkData"].update(hardwareAddress="h" * 129),
            "status.devices[0].networkData.hardwareAddress",
        ),
        (lambda c: c["status"].update(reservedFor=[consumer("u")] * 257), "status.reservedFor"),
        (lambda c: c["status"].update(reservedFor=[consumer("u")] * 2), "status.reservedFor[1]"),
        (
            lambda c: c["status"].update(reservedFor=[{"uid": "u", "name": "p"}]),
            "status.reservedFor[0].resource",
        ),
        (
            lambda c: c["status"]["allocation"]["devices"]["results"][0].update(request="other"),
            "status.allocation.devices.results[0].request",
        ),
        (
            lambda c: c["status"]["allocation"]["devices"].update(
                config=[{"source": "FromClaim", "requests": ["other"], "opaque": OPAQUE}]
            ),
            "status.allocation.devices.config[0].requests[0]",
        ),
        (lambda c: c.update(status={"reservedFor": [consumer("u")]}), "status.reservedFor"),
        (lambda c: c["metadata"].pop("namespace"), "metadata.namespace"),
    ],
)
def test_a_bad_claim_is_refused_with_the_field(change: Change, field: str) -> None:
    assert faults(RESOURCE_CLAIMS, a_claim(), change) == [field]


def two_requests(body: JsonObject) -> JsonObject:
    """The claim's own devices, with two requests of which the second has an alternative."""
    exactly = {"deviceClassName": "x"}
    found: JsonObject = body["spec"]["devices"]
    found["requests"] = [
        {"name": "r", "exactly": exactly},
        {"name": "s", "firstAvailable": [{"name": "t", **exactly}]},
    ]
    return found


@pytest.mark.parametrize(
    ("key", "entry", "field"),
    [
        ("constraints", {"matchAttribute": "dra.net/rail"}, ""),
        ("constraints", {"distinctAttribute": "dra.net/rail", "requests": ["r", "s/t"]}, ""),
        ("constraints", {"matchAttribute": "rail"}, ".matchAttribute"),
        ("constraints", {"matchAttribute": "a/b/c"}, ".matchAttribute"),
        ("constraints", {"requests": ["r"]}, "."),
        ("constraints", {"matchAttribute": "a/b", "distinctAttribute": "a/b"}, "."),
        ("constraints", {"matchAttribute": "a/b", "requests": ["other"]}, ".requests[0]"),
        ("constraints", {"matchAttribute": "a/b", "requests": ["s/other"]}, ".requests[0]"),
        ("constraints", {"matchAttribute": "a/b", "requests": ["r", "r"]}, ".requests[1]"),
        ("config", {"opaque": OPAQUE, "requests": ["s", "s/t"]}, ""),
        ("config", {"opaque": OPAQUE, "requests": ["t"]}, ".requests[0]"),
    ],
)
def test_constraints_and_configs_name_requests_and_attributes_in_full(
    key: str, entry: JsonObject, field: str
) -> None:
    def change(body: JsonObject) -> None:
        del body["status"]
        two_requests(body)[key] = [entry]

    wanted = [f"spec.devices.{key}[0]{field}".rstrip(".")] if field else []
    assert faults(RESOURCE_CLAIMS, a_claim(), change) == wanted


def test_the_alternatives_of_a_request_have_names_of_their_own() -> None:
    def change(body: JsonObject) -> None:
        del body["status"]
        alternatives = two_requests(body)["requests"][1]["firstAvailable"]
        alternatives.append(alternatives[0])

    assert faults(RESOURCE_CLAIMS, a_claim(), change) == ["spec.devices.requests[1].firstAvailable[1]"]


def test_a_claim_that_is_being_deleted_is_reserved_for_nobody_new() -> None:
    old = a_claim()
    old["status"]["reservedFor"] = [consumer("u")]
    old["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    more = [consumer("u"), consumer("v")]
    assert faults(RESOURCE_CLAIMS, old, lambda c: c["status"].update(reservedFor=[]), old) == []
    late = faults(RESOURCE_CLAIMS, old, lambda c: c["status"].update(reservedFor=more), old)
    assert late == ["status.reservedFor"]


def test_a_template_does_not_change() -> None:
    request = {"name": "r", "exactly": {"deviceClassName": "x"}}
    body = {
        "metadata": {"name": "t", "namespace": "n"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    assert (
        faults(RESOURCE_CLAIM_TEMPLATES, body, lambda t: t["metadata"].update(labels={"a": "b"}), body) == []
    )
    changed = faults(RESOURCE_CLAIM_TEMPLATES, body, lambda t: t["spec"].update(metadata={}), body)
    assert changed == ["spec"]


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"labels": {"dra.net/a": "b", "c": ""}, "annotations": {"Dra.Net/A": "anything at all"}}, ""),
        ({"labels": {"no key": "b"}}, "metadata.labels"),
        ({"labels": {"a": "no value"}}, "metadata.labels"),
        ({"labels": {"a": "x" * 64}}, "metadata.labels"),
        ({"annotations": {"no key": ""}}, "metadata.annotations"),
        ({"annotations": {"a": "x" * 262_144}}, "metadata.annotations"),
        ({"finalizers": ["no name"]}, "metadata.finalizers"),
        ({"generateName": "00000-Dra-"}, "metadata.generateName"),
        ({"ownerReferences": [OWNER]}, ""),
        ({"ownerReferences": [OWNER, OWNER]}, "metadata.ownerReferences"),
        ({"ownerReferences": [{**OWNER, "uid": ""}]}, "metadata.ownerReferences[0].uid"),
    ],
)
def test_metadata_is_held_to_the_rules_of_every_kind(metadata: JsonObject, field: str) -> None:
    found = faults(RESOURCE_SLICES, a_slice(), lambda s: s["metadata"].update(metadata))
    assert found == ([field] if field else [])


def test_an_object_that_is_being_deleted_gets_no_new_finalizer() -> None:
    old = a_slice()
    old["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["a.b/c"])
    kept = faults(RESOURCE_SLICES, old, dict, old)
    more = faults(RESOURCE_SLICES, old, lambda s: s["metadata"]["finalizers"].append("a.b/d"), old)
    assert (kept, more) == ([], ["metadata.finalizers"])


def an_event(**fields: Any) -> JsonObject:
    body = {"metadata": {"name": "e", "namespace": "a"}, "involvedObject": {"namespace": "a"}}
    return {**body, "eventTime": "2026-01-01T00:00:00.000000Z", **fields}


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, []),
        ({"reportingComponent": ""}, ["reportingController"]),
        ({"reportingInstance": ""}, ["reportingInstance"]),
        ({"reportingInstance": "x" * 129}, ["reportingInstance"]),
        ({"action": ""}, ["action"]),
        ({"reason": "x" * 129}, ["reason"]),
        ({"message": "x" * 1025}, ["message"]),
        ({"involvedObject": {}}, ["involvedObject.namespace"]),
        ({"eventTime": None, "reason": "", "action": "", "message": "x" * 1025}, []),
    ],
)
def test_an_event_with_a_time_of_its_own_is_held_to_the_new_rules(
    fields: JsonObject, wanted: list[str]
) -> None:
    said = {
        "reportingComponent": "dra.net",
        "reportingInstance": "node-a",
        "action": "Prepare",
        "reason": "Up",
    }
    assert [cause.field for cause in validate(EVENTS, an_event(**{**said, **fields}), None)] == wanted


def test_an_event_lives_in_the_namespace_of_its_object() -> None:
    body = {"metadata": {"name": "e", "namespace": "a"}, "involvedObject": {"namespace": "a"}}
    assert validate(EVENTS, body, None) == []
    body["metadata"]["namespace"] = "b"
    assert [cause.field for cause in validate(EVENTS, body, None)] == ["involvedObject.namespace"]
