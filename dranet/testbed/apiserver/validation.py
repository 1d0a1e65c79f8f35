"""Refuse what a real API server refuses, for the fields that this driver and its users write.

Limits and rules of ``resource.k8s.io/v1`` (``pkg/apis/resource/validation``) and the common metadata rules,
by the version that is played. Each check yields causes; all are reported at once. What an object had before
and keeps is not judged again where a real server does not: taints, capacity and the CEL of a class."""

from __future__ import annotations

from dranet.testbed.apiserver.errors import Cause
from dranet.testbed.apiserver.formats import Causes, bad, check_taint, is_subdomain, required
from dranet.testbed.apiserver.kinds import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    EVENTS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
    Kind,
)
from dranet.testbed.apiserver.profiles import Profile, load_profile
from dranet.testbed.apiserver.validation_claim import validate_claim, validate_claim_spec, validate_class
from dranet.testbed.apiserver.validation_slice import validate_slice

_LATEST = load_profile()


def validate(
    kind: Kind, body: JsonObject, before: JsonObject | None, profile: Profile = _LATEST
) -> list[Cause]:
    """The faults of an object that is about to be stored; ``before`` is ``None`` on creation."""
    causes = list(_validate_metadata(kind, body["metadata"]))
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
    for index, owner in enumerate(metadata.get("ownerReferences") or ()):
        for key in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(key):
                yield required(f"metadata.ownerReferences[{index}].{key}")
    if kind.namespaced and not metadata.get("namespace"):
        yield required("metadata.namespace")


def _validate_taint_rule(body: JsonObject, profile: Profile) -> Causes:
    taint = (body.get("spec") or {}).get("taint") or {}
    yield from check_taint("spec.taint", taint, profile.taint_effects)


def _validate_event(body: JsonObject) -> Causes:
    namespace = (body.get("involvedObject") or {}).get("namespace", "")
    expected = namespace or "default"
    if body["metadata"].get("namespace") != expected:
        yield bad("involvedObject.namespace", namespace, "does not match event.namespace")
    if len(body.get("message", "")) > 1024 and body.get("eventTime"):
        yield Cause("note", "Invalid value: can have at most 1024 characters")
