"""The REST semantics of the API server stand-in: one method per verb, over the store.

Concurrency: every method runs to its end without waiting, so requests are atomic. Sources: the API
conventions, ``apiserver/pkg/registry/rest`` and ``generic/registry/store.go``.
"""

from __future__ import annotations

import base64
import binascii
import copy
import json
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dranet.testbed.apiserver import apply as ssa
from dranet.testbed.apiserver.errors import (
    Cause,
    already_exists,
    bad_request,
    conflict,
    invalid,
    not_found,
    unsupported_media_type,
)
from dranet.testbed.apiserver.kinds import KINDS, NAMESPACES, PODS, JsonObject, Kind
from dranet.testbed.apiserver.patch import json_patch, merge_patch
from dranet.testbed.apiserver.rules import grace_period_seconds, prepare_create, prepare_update
from dranet.testbed.apiserver.selectors import Selector, parse_selector
from dranet.testbed.apiserver.store import Key, Store
from dranet.testbed.apiserver.validation import validate

_NAME_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_MAX_GENERATE_NAME_BASE = 58
APPLY_CONTENT_TYPE = "application/apply-patch+yaml"
_MERGE_CONTENT_TYPES = ("application/merge-patch+json", "application/strategic-merge-patch+json")


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


class Rest:
    """The verbs. Bodies go in and out as JSON; refusals are raised."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._owners: dict[str, ssa.Owners] = {}
        """Field ownership by object uid."""

    def get(self, target: Target) -> JsonObject:
        return self._require(target)

    def list(self, target: Target, query: Mapping[str, str]) -> JsonObject:
        """A collection, paged when ``limit`` is given: every page shows the state of the first one."""
        selector = read_selector(target.kind, query)
        version, after = _parse_continue(query.get("continue", "")) or (self._store.version, ())
        bodies = self._store.snapshot(target.kind, target.namespace, version)
        found = [body for body in bodies if selector.matches(body) and _position(body) > after]
        limit = _parse_count(query.get("limit", "")) or len(found)
        metadata: JsonObject = {"resourceVersion": str(version)}
        if len(found) > limit:
            metadata["continue"] = _encode_continue(version, _position(found[limit - 1]))
            metadata["remainingItemCount"] = len(found) - limit
        return {
            "kind": f"{target.kind.kind}List",
            "apiVersion": target.kind.api_version,
            "metadata": metadata,
            "items": [_without_type(body) for body in found[:limit]],
        }

    def create(self, target: Target, body: JsonObject, manager: str) -> JsonObject:
        created = self._prepare_new(target, body)
        owned = frozenset(ssa.flatten_fields(target.kind, created))
        return self._store_new(created, {ssa.Manager(manager, "Update"): owned}, target)

    def replace(self, target: Target, body: JsonObject, manager: str) -> JsonObject:
        before = self._require(target)
        _check_type(target.kind, body)
        return self._update(target, before, body, manager)

    def patch(
        self, target: Target, patch: Any, content_type: str, query: Mapping[str, str], manager: str
    ) -> JsonObject:
        if content_type == APPLY_CONTENT_TYPE:
            return self.apply(target, patch, query)
        before = self._require(target)
        if content_type in _MERGE_CONTENT_TYPES:
            if not isinstance(patch, dict):
                raise bad_request("a merge patch must be a JSON object")
            after = merge_patch(before, patch)
        elif content_type == "application/json-patch+json":
            if not isinstance(patch, list):
                raise bad_request("a JSON patch must be a list of operations")
            after = json_patch(before, patch)
        else:
            raise unsupported_media_type(content_type)
        # A patch that does not speak of the version is tried on the newest one.
        return self._update(target, before, after, manager)

    def apply(self, target: Target, applied: Any, query: Mapping[str, str]) -> JsonObject:
        """Server-side apply; creates the object on its main endpoint."""
        name = query.get("fieldManager", "")
        if not name:
            raise bad_request("fieldManager is required for apply patch")
        if not isinstance(applied, dict):
            raise bad_request("an applied configuration must be an object")
        _check_type(target.kind, applied)
        if (applied.get("metadata") or {}).get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        manager = ssa.Manager(name, "Apply", target.subresource)
        wanted = _restrict_to_endpoint(target, applied)
        before = self._store.get(target.key)
        if before is None:
            return self._create_applied(target, wanted, manager)
        _check_identity(target, before, applied.get("metadata") or {})
        return self._apply_to(target, before, wanted, manager, force=query.get("force") == "true")

    def delete(self, target: Target, options: JsonObject) -> JsonObject:
        """Delete, or mark as deleted while finalizers or a pod's grace period keep the object."""
        body = self._require(target)
        _check_preconditions(target, body, options.get("preconditions") or {})
        asked = options.get("gracePeriodSeconds")
        grace = grace_period_seconds(target.kind, body, asked)
        if target.kind is NAMESPACES:
            self._delete_contents(target.name)
        if not body["metadata"].get("finalizers") and grace == 0:
            return self._remove(target.key, body)
        marked = copy.deepcopy(body)
        metadata = marked["metadata"]
        metadata.setdefault("deletionTimestamp", now_text())
        known = metadata.get("deletionGracePeriodSeconds", grace)
        metadata["deletionGracePeriodSeconds"] = min(known, grace)
        return body if marked == body else self._store.put(target.key, marked)

    def delete_collection(self, target: Target, query: Mapping[str, str], options: JsonObject) -> JsonObject:
        listed = self.list(target, query)
        for item in listed["items"]:
            metadata = item["metadata"]
            self.delete(Target(target.kind, metadata.get("namespace", ""), metadata["name"]), options)
        return listed

    def bind(self, target: Target, body: JsonObject) -> JsonObject:
        """``pods/binding``: give a pod to a node, once."""
        pod = self._require(Target(PODS, target.namespace, target.name))
        _check_identity(target, pod, {"uid": (body.get("metadata") or {}).get("uid", "")})
        node = (body.get("target") or {}).get("name", "")
        if not node:
            raise invalid(PODS, target.name, [Cause("target.name", "Required value", "FieldValueRequired")])
        if pod["metadata"].get("deletionTimestamp"):
            raise conflict(
                PODS, target.name, f"pod {target.name} is being deleted, cannot be assigned to a host"
            )
        if current := pod["spec"].get("nodeName"):
            raise conflict(
                PODS, target.name, f"pod {target.name} is already assigned to node {json.dumps(current)}"
            )
        bound = copy.deepcopy(pod)
        bound["spec"]["nodeName"] = node
        condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now_text()}
        others = [c for c in bound["status"].get("conditions", ()) if c["type"] != "PodScheduled"]
        bound["status"]["conditions"] = [*others, condition]
        self._store.put(target.key, bound)
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def _prepare_new(self, target: Target, body: JsonObject) -> JsonObject:
        """A new object with identity and defaults, if its place is free and its namespace exists."""
        kind = target.kind
        _check_type(kind, body)
        metadata = _build_new_metadata(target, body.get("metadata") or {})
        if kind.namespaced:
            self._require(Target(NAMESPACES, "", target.namespace))
        if self._store.get((kind, target.namespace, metadata["name"])) is not None:
            raise already_exists(kind, metadata["name"])
        return prepare_create(kind, {**body, "metadata": metadata})

    def _store_new(self, created: JsonObject, owners: ssa.Owners, target: Target) -> JsonObject:
        key = (target.kind, target.namespace, created["metadata"]["name"])
        return self._store_checked(key, None, created, owners)

    def _require(self, target: Target) -> JsonObject:
        body = self._store.get(target.key)
        if body is None:
            raise not_found(target.kind, target.name)
        return body

    def _update(self, target: Target, before: JsonObject, body: JsonObject, manager: str) -> JsonObject:
        _check_identity(target, before, body.get("metadata") or {})
        after = prepare_update(target.kind, before, body, target.subresource)
        owners = self._owners.get(before["metadata"]["uid"], {})
        writer = ssa.Manager(manager, "Update", target.subresource)
        owners = ssa.own_update(target.kind, before, after, owners, writer)
        return self._store_checked(target.key, before, after, owners)

    def _create_applied(self, target: Target, wanted: JsonObject, manager: ssa.Manager) -> JsonObject:
        if target.subresource:
            raise not_found(target.kind, target.name)
        metadata = {**(wanted.get("metadata") or {}), "name": target.name}
        if metadata.get("uid"):
            raise conflict(
                target.kind,
                target.name,
                f"uid mismatch: the object specified uid {metadata['uid']}, and no object was found",
            )
        created = self._prepare_new(target, {**wanted, "metadata": metadata})
        return self._store_new(created, {manager: frozenset(ssa.flatten_fields(target.kind, wanted))}, target)

    def _apply_to(
        self, target: Target, before: JsonObject, wanted: JsonObject, manager: ssa.Manager, *, force: bool
    ) -> JsonObject:
        kind = target.kind
        owners = self._owners.get(before["metadata"]["uid"], {})
        conflicts = ssa.find_conflicts(kind, before, wanted, owners, manager)
        if conflicts and not force:
            causes = [
                Cause(
                    "".join(f".{part}" for part in path),
                    f'conflict with "{owner.name}"',
                    "FieldManagerConflict",
                )
                for path, owner in conflicts
            ]
            raise conflict(kind, target.name, f"Apply failed with {len(causes)} conflicts", causes)
        outcome = ssa.apply_fields(kind, before, wanted, owners, manager)
        after = prepare_update(kind, before, outcome.body, target.subresource)
        return self._store_checked(target.key, before, after, outcome.owners)

    def _store_checked(
        self, key: Key, before: JsonObject | None, after: JsonObject, owners: ssa.Owners
    ) -> JsonObject:
        """Validate and store; a write that changes nothing makes no new version."""
        kind, _, name = key
        if causes := validate(kind, after, before):
            raise invalid(kind, name, causes)
        metadata = after["metadata"]
        uid = metadata["uid"]
        if before is not None and before == after and self._owners.get(uid) == owners:
            return before
        self._owners[uid] = owners
        metadata["managedFields"] = ssa.build_managed_fields(owners, kind.api_version, now_text())
        if _is_released(metadata):
            return self._remove(key, after)
        return self._store.put(key, after)

    def _remove(self, key: Key, final: JsonObject) -> JsonObject:
        removed = self._store.remove(key, final)
        self._owners.pop(removed["metadata"]["uid"], None)
        return removed

    def _delete_contents(self, namespace: str) -> None:
        for kind in KINDS:
            for key, _ in [*self._store.iter_objects(kind, namespace)] if kind.namespaced else ():
                self.delete(Target(*key), {"gracePeriodSeconds": 0})


def read_selector(kind: Kind, query: Mapping[str, str]) -> Selector:
    return parse_selector(kind, query.get("fieldSelector", ""), query.get("labelSelector", ""))


def _is_released(metadata: JsonObject) -> bool:
    """Marked as deleted, and nothing keeps it any more."""
    return bool(
        metadata.get("deletionTimestamp")
        and not metadata.get("finalizers")
        and not metadata.get("deletionGracePeriodSeconds")
    )


def _build_new_metadata(target: Target, given: JsonObject) -> JsonObject:
    metadata = copy.deepcopy(given)
    for key in (
        "resourceVersion",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "managedFields",
        "selfLink",
    ):
        metadata.pop(key, None)
    if given.get("resourceVersion"):
        raise bad_request("resourceVersion should not be set on objects to be created")
    if metadata.get("namespace", target.namespace) != target.namespace:
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
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


def _check_type(kind: Kind, body: JsonObject) -> None:
    """A body may leave its type out, as some clients do; a wrong one is refused."""
    for key, expected in (("apiVersion", kind.api_version), ("kind", kind.kind)):
        if body.get(key) not in (None, "", expected):
            raise bad_request(
                f"the {key} {body[key]!r} in the body does not match {expected!r} of the request"
            )
    body["apiVersion"], body["kind"] = kind.api_version, kind.kind


def _check_identity(target: Target, before: JsonObject, metadata: Mapping[str, Any]) -> None:
    current = before["metadata"]
    if metadata.get("name") not in (None, "", target.name):
        raise bad_request("the name of the object does not match the name on the URL")
    if metadata.get("uid") not in (None, "", current["uid"]):
        raise conflict(target.kind, target.name, _mismatch("UID", metadata["uid"], current["uid"]))
    if metadata.get("resourceVersion") not in (None, "", current["resourceVersion"]):
        why = "the object has been modified; please apply your changes to the latest version and try again"
        raise conflict(target.kind, target.name, why)


def _check_preconditions(target: Target, body: JsonObject, preconditions: Mapping[str, str]) -> None:
    for key in ("uid", "resourceVersion"):
        wanted, found = preconditions.get(key), body["metadata"][key]
        if wanted and wanted != found:
            what = "UID" if key == "uid" else "ResourceVersion"
            raise conflict(target.kind, target.name, _mismatch(what, wanted, found))


def _mismatch(what: str, wanted: str, found: str) -> str:
    return f"Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"


def _restrict_to_endpoint(target: Target, applied: JsonObject) -> JsonObject:
    """The part of an applied object that this endpoint writes; the rest is silently reset."""
    if not target.kind.has_status:
        return applied
    if target.subresource == "status":
        kept = ("apiVersion", "kind", "status")
        return {key: applied[key] for key in kept if key in applied} | {"metadata": {}}
    return {key: value for key, value in applied.items() if key != "status"}


def _without_type(body: JsonObject) -> JsonObject:
    return {key: value for key, value in body.items() if key not in ("apiVersion", "kind")}


def _position(body: JsonObject) -> tuple[str, ...]:
    return (body["metadata"].get("namespace", ""), body["metadata"]["name"])


def _encode_continue(version: int, position: tuple[str, ...]) -> str:
    return base64.urlsafe_b64encode(json.dumps([version, *position]).encode()).decode()


def _parse_continue(token: str) -> tuple[int, tuple[str, ...]] | None:
    if not token:
        return None
    try:
        version, *position = json.loads(base64.urlsafe_b64decode(token))
        return int(version), tuple(position)
    except (ValueError, TypeError, binascii.Error) as error:
        raise bad_request("continue key is not valid") from error


def _parse_count(text: str) -> int:
    if text and not text.isdigit():
        raise bad_request(f"not a count: {text!r}")
    return int(text or 0)
