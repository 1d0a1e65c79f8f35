"""What the API server does to an object by its kind, before validation: defaults, and which half of an
object (spec or status) a request may touch.

Source: the ``strategy.go`` files under ``pkg/registry`` and the defaulting of ``resource.k8s.io/v1``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

from dranet.desk.kubeapi.kinds import (
    DEVICE_TAINT_RULES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Kind,
)
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.kubeapi.profiles import Profile
from dranet.desk.kubeapi.quantities import canonicalize
from testbed.apiserver.drops import drop_disabled

DEFAULT_GRACE_PERIOD_SECONDS = 30


def prepare_create(kind: Kind, body: JsonObject, profile: Profile, now: str) -> JsonObject:
    """A new object's body: without a status that its creator may not set and without what this server does
    not know, with defaults. ``now`` is the time as the API spells it."""
    prepared = copy.deepcopy(body)
    if kind.has_status and kind is not NODES:
        prepared.pop("status", None)
    if kind is PODS:
        prepared["status"] = {"phase": "Pending"}
    elif kind is NAMESPACES:
        prepared["status"] = {"phase": "Active"}
    if kind.counts_generation:
        prepared["metadata"]["generation"] = 1
    _set_defaults(kind, prepared, now)
    canonicalize(kind, prepared)
    drop_disabled(kind, prepared, None, profile)
    return prepared


def prepare_update(
    kind: Kind, before: JsonObject, body: JsonObject, subresource: str, profile: Profile, now: str
) -> JsonObject:
    """The body that an update means: the status endpoint changes the status alone, the main one all the
    rest; identity and lifecycle fields stay as they are."""
    prepared = copy.deepcopy(body)
    if subresource == "status":
        prepared = {**copy.deepcopy(before), "status": prepared.get("status", {})}
        if not prepared["status"]:
            del prepared["status"]
    else:
        _keep_status(kind, before, prepared)
        _set_defaults(kind, prepared, now)
    _keep_identity(before, prepared)
    canonicalize(kind, prepared)
    drop_disabled(kind, prepared, before, profile)
    if kind is RESOURCE_CLAIMS:
        _clear_deallocated_devices(prepared, before)
    if kind.counts_generation and prepared.get("spec") != before.get("spec"):
        prepared["metadata"]["generation"] = before["metadata"].get("generation", 0) + 1
    return prepared


def _keep_status(kind: Kind, before: JsonObject, prepared: JsonObject) -> None:
    if not kind.has_status:
        return
    prepared.pop("status", None)
    if "status" in before:
        prepared["status"] = copy.deepcopy(before["status"])


def _keep_identity(before: JsonObject, prepared: JsonObject) -> None:
    metadata = prepared["metadata"]
    for key in (
        "uid",
        "name",
        "namespace",
        "creationTimestamp",
        "generation",
        "generateName",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "resourceVersion",
        "managedFields",
    ):
        metadata.pop(key, None)
        if key in before["metadata"]:
            metadata[key] = before["metadata"][key]
    prepared["apiVersion"], prepared["kind"] = before["apiVersion"], before["kind"]


def _clear_deallocated_devices(claim: JsonObject, before: JsonObject) -> None:
    """Remove the status of devices that this write deallocates. The status of a device that was not allocated
    before either stays, for validation to refuse."""
    status = claim.get("status", {})
    lost = _read_allocated(before) - _read_allocated(claim)
    kept = [entry for entry in status.get("devices") or () if _device_of(entry) not in lost]
    if kept:
        status["devices"] = kept
    else:
        status.pop("devices", None)


def _read_allocated(claim: JsonObject) -> set[tuple[str, ...]]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return {_device_of(result) for result in (allocation.get("devices") or {}).get("results") or ()}


def _device_of(entry: JsonObject) -> tuple[str, ...]:
    return tuple(str(entry.get(key, "")) for key in ("driver", "pool", "device"))


def _set_defaults(kind: Kind, body: JsonObject, now: str) -> None:
    spec = body.get("spec")
    if not isinstance(spec, dict):
        return
    if kind is PODS:
        spec.setdefault("restartPolicy", "Always")
        spec.setdefault("terminationGracePeriodSeconds", DEFAULT_GRACE_PERIOD_SECONDS)
        spec.setdefault("schedulerName", "default-scheduler")
    elif kind is RESOURCE_SLICES:
        spec.setdefault("pool", {}).setdefault("generation", 0)
        for device in spec.get("devices") or ():
            for taint in device.get("taints") or ():
                taint.setdefault("timeAdded", now)
    elif kind is DEVICE_TAINT_RULES:
        spec.get("taint", {}).setdefault("timeAdded", now)
    elif kind is RESOURCE_CLAIMS:
        _default_requests(spec)
    elif kind is RESOURCE_CLAIM_TEMPLATES:
        _default_requests(spec.get("spec", {}))


def _default_requests(claim_spec: JsonObject) -> None:
    for request in _iter_exact_requests(claim_spec):
        request.setdefault("allocationMode", "ExactCount")
        if request["allocationMode"] == "ExactCount":
            request.setdefault("count", 1)


def _iter_exact_requests(claim_spec: JsonObject) -> Iterator[JsonObject]:
    for request in claim_spec.get("devices", {}).get("requests") or ():
        if "exactly" in request:
            yield request["exactly"]
        yield from request.get("firstAvailable") or ()


def grace_period_seconds(kind: Kind, body: JsonObject, asked: int | None) -> int:
    """How long a deleted object stays for its node to end it. Only a pod that has been given to a node
    and has not ended by itself has such a time."""
    if kind is not PODS or not body["spec"].get("nodeName"):
        return 0
    if body.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    default: int = body["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_PERIOD_SECONDS)
    return default if asked is None else max(asked, 0)
