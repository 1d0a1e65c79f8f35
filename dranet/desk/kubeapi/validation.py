"""Refuse what a real API server refuses, for the fields that this driver and its users write.

Limits and rules of ``resource.k8s.io/v1`` (``pkg/apis/resource/validation``) and the common metadata rules,
by the chosen version. Each check yields causes; all are reported at once. What an object had before
and keeps is not judged again where a real server does not: taints, capacity and the CEL of a class."""

from __future__ import annotations

from collections.abc import Sequence

from dranet.desk.kubeapi.errors import Cause
from dranet.desk.kubeapi.formats import (
    Causes,
    bad,
    check_taint,
    forbidden,
    immutable,
    is_label_key,
    is_label_value,
    is_subdomain,
    required,
    too_long,
)
from dranet.desk.kubeapi.kinds import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    EVENTS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Kind,
)
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.kubeapi.profiles import Profile, load_profile
from dranet.desk.kubeapi.validation_claim import validate_claim, validate_claim_spec, validate_class
from dranet.desk.kubeapi.validation_slice import validate_slice

_LATEST = load_profile()
_MAX_ANNOTATIONS = 256 * 1024
"""Bytes of all keys and values together."""
_EVENT_LIMITS = {"reportingInstance": 128, "action": 128, "reason": 128, "message": 1024}


def validate(
    kind: Kind, body: JsonObject, before: JsonObject | None, profile: Profile = _LATEST
) -> list[Cause]:
    """The faults of an object that is about to be stored; ``before`` is ``None`` on creation."""
    causes = list(_validate_metadata(kind, body["metadata"]))
    if causes:
        return causes
    if before is not None:
        causes += _validate_update(kind, body, before)
    if kind is RESOURCE_SLICES:
        causes += validate_slice(body, before, profile)
    elif kind is RESOURCE_CLAIMS:
        causes += validate_claim(body, before, profile)
    elif kind is RESOURCE_CLAIM_TEMPLATES:
        causes += validate_claim_spec("spec.spec", (body.get("spec") or {}).get("spec") or {}, profile)
    elif kind is DEVICE_CLASSES:
        causes += validate_class(body)
    elif kind is DEVICE_TAINT_RULES:
        causes += _validate_taint_rule(body, profile)
    elif kind is EVENTS:
        causes += _validate_event(body)
    return causes


def _validate_metadata(kind: Kind, metadata: JsonObject) -> Causes:
    name = metadata.get("name", "")
    if not is_subdomain(name):
        yield Cause("metadata.name", f'Invalid value: "{name}": a lowercase RFC 1123 subdomain is required')
    if (base := metadata.get("generateName")) and not is_subdomain(base.rstrip("-")):
        yield bad("metadata.generateName", base, "a lowercase RFC 1123 subdomain is required")
    if kind.namespaced and not metadata.get("namespace"):
        yield required("metadata.namespace")
    yield from _validate_owners(metadata.get("ownerReferences") or ())
    yield from _validate_labels(metadata)
    for finalizer in metadata.get("finalizers") or ():
        if not is_label_key(finalizer):
            yield bad("metadata.finalizers", finalizer, "must be a qualified name")


def _validate_owners(owners: Sequence[JsonObject]) -> Causes:
    for index, owner in enumerate(owners):
        for key in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(key):
                yield required(f"metadata.ownerReferences[{index}].{key}")
    if sum(owner.get("controller") is True for owner in owners) > 1:
        yield bad("metadata.ownerReferences", [], "Only one reference can have Controller set to true")


def _validate_labels(metadata: JsonObject) -> Causes:
    for key, value in (metadata.get("labels") or {}).items():
        if not is_label_key(key):
            yield bad("metadata.labels", key, "must be a label key")
        if not is_label_value(value):
            yield bad("metadata.labels", value, "must be a label value")
    annotations: dict[str, str] = metadata.get("annotations") or {}
    for key in annotations:
        if not is_label_key(key.lower()):
            yield bad("metadata.annotations", key, "must be a qualified name")
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > _MAX_ANNOTATIONS:
        yield too_long("metadata.annotations", _MAX_ANNOTATIONS)


def _validate_update(kind: Kind, body: JsonObject, before: JsonObject) -> Causes:
    """What may not change at any kind, and what a template may not."""
    if before["metadata"].get("deletionTimestamp"):
        known = before["metadata"].get("finalizers") or ()
        if any(finalizer not in known for finalizer in body["metadata"].get("finalizers") or ()):
            why = "no new finalizers can be added if the object is being deleted"
            yield forbidden("metadata.finalizers", why)
    if kind is RESOURCE_CLAIM_TEMPLATES and body.get("spec") != before.get("spec"):
        yield immutable("spec", "...")


def _validate_taint_rule(body: JsonObject, profile: Profile) -> Causes:
    taint = (body.get("spec") or {}).get("taint") or {}
    yield from check_taint("spec.taint", taint, profile.taint_effects)


def _validate_event(body: JsonObject) -> Causes:
    """``core/v1``, whose rules are tighter for those that have ``eventTime``."""
    namespace, own = (body.get("involvedObject") or {}).get("namespace", ""), body["metadata"]["namespace"]
    if not body.get("eventTime"):
        if own != (namespace or "default"):
            yield bad("involvedObject.namespace", namespace, "does not match event.namespace")
        return
    if not namespace and own not in ("default", "kube-system"):
        yield bad("involvedObject.namespace", namespace, "does not match event.namespace")
    if not is_label_key(body.get("reportingComponent")):
        yield bad("reportingController", body.get("reportingComponent"), "must be a qualified name")
    for key in ("reportingInstance", "action", "reason"):
        if not body.get(key):
            yield required(key)
    for key, limit in _EVENT_LIMITS.items():
        if len(body.get(key, "").encode()) > limit:
            yield bad(key, "", f"can have at most {limit} characters")
