"""What a request names, and the checks of an object that do not depend on its kind's rules: type, name, uid,
version.

Sources: the API conventions and ``apiserver/pkg/registry/rest``.
"""

from __future__ import annotations

import copy
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dranet.desk.kubeapi.errors import Cause, bad_request, conflict, invalid
from dranet.desk.kubeapi.formats import immutable
from dranet.desk.kubeapi.kinds import Kind
from dranet.desk.kubeapi.objects import JsonObject
from testbed.apiserver.store import Key

_NAME_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_MAX_GENERATE_NAME_BASE = 58
_OTHER_NAMESPACE = "the namespace of the provided object does not match the namespace sent on the request"


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is about. ``name`` is empty for a collection."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> Key:
        return (self.kind, self.namespace, self.name)


def now_text() -> str:
    """The present time as ``metav1.Time`` prints it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def wants_admin_access(body: JsonObject) -> bool:
    spec = body.get("spec") or {}
    requests = (spec.get("spec") or spec).get("devices", {}).get("requests") or ()
    return any((request.get("exactly") or {}).get("adminAccess") for request in requests)


def is_released(metadata: JsonObject) -> bool:
    """Marked as deleted, and nothing keeps it any more."""
    return bool(
        metadata.get("deletionTimestamp")
        and not metadata.get("finalizers")
        and not metadata.get("deletionGracePeriodSeconds")
    )


def build_new_metadata(target: Target, requested: JsonObject) -> JsonObject:
    metadata = copy.deepcopy(requested)
    for key in (
        "resourceVersion",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "managedFields",
        "selfLink",
    ):
        metadata.pop(key, None)
    if requested.get("resourceVersion"):
        raise bad_request("resourceVersion should not be set on objects to be created")
    if metadata.get("namespace", target.namespace) != target.namespace:
        raise bad_request(_OTHER_NAMESPACE)
    if not metadata.get("name"):
        if not metadata.get("generateName"):
            raise invalid(
                target.kind,
                "",
                [
                    Cause(
                        "metadata.name",
                        "Required value: name or generateName is required",
                        "FieldValueRequired",
                    )
                ],
            )
        metadata["name"] = _generate_name(metadata["generateName"])
    if target.namespace:
        metadata["namespace"] = target.namespace
    metadata["uid"] = str(uuid.uuid4())
    metadata["creationTimestamp"] = now_text()
    return metadata


def _generate_name(base: str) -> str:
    suffix = "".join(secrets.choice(_NAME_ALPHABET) for _ in range(5))
    return base[:_MAX_GENERATE_NAME_BASE] + suffix


def check_applied_type(kind: Kind, applied: JsonObject) -> None:
    """Refuse an applied configuration without kind or API version: nothing is filled in for it."""
    if applied.get("apiVersion") != kind.api_version or not applied.get("kind"):
        raise bad_request(
            "Incorrect version specified in apply patch. "
            f"Specified patch version: {applied.get('apiVersion', '')}, expected: {kind.api_version}"
        )
    check_type(kind, applied)


def check_type(kind: Kind, body: JsonObject) -> None:
    """A body may leave its type out, as some clients do; a wrong one is refused."""
    for key, expected in (("apiVersion", kind.api_version), ("kind", kind.kind)):
        if body.get(key) not in (None, "", expected):
            raise bad_request(
                f"the {key} {body[key]!r} in the body does not match {expected!r} of the request"
            )
    body["apiVersion"], body["kind"] = kind.api_version, kind.kind


def check_identity(
    target: Target, before: JsonObject, metadata: Mapping[str, Any], *, is_patch: bool = False
) -> None:
    """The uid of a whole object is a precondition (409); one that a patch brings along is a change of a field
    that cannot change (422)."""
    current = before["metadata"]
    if metadata.get("name") not in (None, "", target.name):
        raise bad_request("the name of the object does not match the name on the URL")
    if target.namespace and metadata.get("namespace") not in (None, "", target.namespace):
        raise bad_request(_OTHER_NAMESPACE)
    if metadata.get("uid") not in (None, "", current["uid"]):
        if is_patch:
            raise invalid(target.kind, target.name, [immutable("metadata.uid", metadata["uid"])])
        raise conflict(target.kind, target.name, _mismatch("UID", metadata["uid"], current["uid"]))
    if metadata.get("resourceVersion") not in (None, "", current["resourceVersion"]):
        why = "the object has been modified; please apply your changes to the latest version and try again"
        raise conflict(target.kind, target.name, why)


def check_preconditions(target: Target, body: JsonObject, preconditions: Mapping[str, str]) -> None:
    for key in ("uid", "resourceVersion"):
        wanted, found = preconditions.get(key), body["metadata"][key]
        if wanted and wanted != found:
            what = "UID" if key == "uid" else "ResourceVersion"
            raise conflict(target.kind, target.name, _mismatch(what, wanted, found))


def _mismatch(what: str, wanted: str, found: str) -> str:
    return f"Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"


def restrict_to_endpoint(target: Target, applied: JsonObject) -> JsonObject:
    """The part of an applied object that this endpoint writes; the rest is silently reset."""
    if not target.kind.has_status:
        return applied
    if target.subresource == "status":
        kept = ("apiVersion", "kind", "status")
        return {key: applied[key] for key in kept if key in applied} | {"metadata": {}}
    return {key: value for key, value in applied.items() if key != "status"}


def without_type(body: JsonObject) -> JsonObject:
    return {key: value for key, value in body.items() if key not in ("apiVersion", "kind")}
