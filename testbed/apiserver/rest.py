"""The REST semantics of the API server stand-in: one method per verb, over the store.

Concurrency: every method runs to its end without waiting, so requests are atomic. Sources: the API
conventions, ``apiserver/pkg/registry/rest`` and ``generic/registry/store.go``.
"""

from __future__ import annotations

import base64
import binascii
import copy
import json
from collections import ChainMap
from collections.abc import Mapping, MutableMapping
from typing import Any, Protocol

from dranet.desk.kubeapi.errors import (
    Cause,
    already_exists,
    bad_request,
    conflict,
    invalid,
    not_found,
    unsupported_media_type,
    untyped_patch,
)
from dranet.desk.kubeapi.formats import forbidden
from dranet.desk.kubeapi.kinds import KINDS, NAMESPACES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Kind
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.kubeapi.profiles import Profile
from dranet.desk.kubeapi.validation import validate
from testbed.apiserver import apply as ssa
from testbed.apiserver.list_options import Selector, parse_selector, require_list_options
from testbed.apiserver.objects import (
    Target,
    build_new_metadata,
    check_applied_type,
    check_identity,
    check_preconditions,
    check_type,
    is_released,
    now_text,
    restrict_to_endpoint,
    wants_admin_access,
    without_type,
)
from testbed.apiserver.patch import json_patch, merge_patch
from testbed.apiserver.rules import grace_period_seconds, prepare_create, prepare_update
from testbed.apiserver.store import Key, Rehearsal, Store

APPLY_CONTENT_TYPE = "application/apply-patch+yaml"
ADMIN_LABEL = "resource.kubernetes.io/admin-access"
_MERGE_CONTENT_TYPES = ("application/merge-patch+json", "application/strategic-merge-patch+json")


class Guard(Protocol):
    """Judges a write when the object is at hand."""

    def check(self, before: JsonObject | None, after: JsonObject | None) -> None:
        """``before`` is ``None`` on creation, ``after`` on deletion. Raises :class:`Refusal`."""


class Rest:
    """The verbs. Bodies go in and out as JSON; refusals are raised."""

    def __init__(
        self,
        store: Store,
        profile: Profile,
        owners: MutableMapping[str, ssa.Owners] | None = None,
        guard: Guard | None = None,
    ) -> None:
        self._guard = guard
        self._store = store
        self._profile = profile
        self._owners: MutableMapping[str, ssa.Owners] = {} if owners is None else owners
        """Field ownership by object uid."""

    def guarded(self, guard: Guard) -> Rest:
        """The same verbs on the same objects, with the checks of one user's request."""
        return Rest(self._store, self._profile, self._owners, guard)

    def rehearse(self) -> Rest:
        """The same verbs with all their checks, on the same objects; nothing that they do is kept."""
        return Rest(Rehearsal(self._store), self._profile, ChainMap({}, self._owners))

    def get(self, target: Target) -> JsonObject:
        return self._require(target)

    def list(self, target: Target, query: Mapping[str, str]) -> JsonObject:
        """A collection, paged when ``limit`` is given: every page shows the state of the first one."""
        require_list_options(query, watches=False)
        selector = read_selector(target.kind, query)
        version, after = _parse_continue(query.get("continue", "")) or (self._store.version, ())
        bodies = self._store.snapshot(target.kind, target.namespace, version)
        found = [body for body in bodies if selector.matches(body) and _position(body) > after]
        limit = _parse_count(query.get("limit", "")) or len(found)
        metadata: JsonObject = {"resourceVersion": str(version)}
        if len(found) > limit:
            metadata["continue"] = _encode_continue(version, _position(found[limit - 1]))
            if not selector.fields and not selector.labels:  # else a server does not count what is left
                metadata["remainingItemCount"] = len(found) - limit
        return {
            "kind": f"{target.kind.kind}List",
            "apiVersion": target.kind.api_version,
            "metadata": metadata,
            "items": [without_type(body) for body in found[:limit]],
        }

    def create(self, target: Target, body: JsonObject, manager: str) -> JsonObject:
        created = self._prepare_new(target, body)
        owned = frozenset(ssa.flatten_fields(target.kind, created))
        return self._store_new(created, {ssa.Manager(manager, "Update"): owned}, target)

    def replace(self, target: Target, body: JsonObject, manager: str) -> JsonObject:
        before = self._require(target)
        check_type(target.kind, body)
        check_identity(target, before, body.get("metadata") or {})
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
        check_identity(target, before, after.get("metadata") or {}, is_patch=True)
        # A patch that does not speak of the version is tried on the newest one.
        return self._update(target, before, after, manager)

    def apply(self, target: Target, applied: Any, query: Mapping[str, str]) -> JsonObject:
        """Server-side apply; creates the object on its main endpoint."""
        name = query.get("fieldManager", "")
        if not name:
            raise bad_request("fieldManager is required for apply patch")
        if not isinstance(applied, dict):
            raise bad_request("an applied configuration must be an object")
        check_applied_type(target.kind, applied)
        if (applied.get("metadata") or {}).get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        manager = ssa.Manager(name, "Apply", target.subresource)
        if double := ssa.find_double_entry(target.kind, applied):
            raise untyped_patch(target.kind, target.name, double)
        wanted = restrict_to_endpoint(target, applied)
        before = self._store.get(target.key)
        if before is None:
            return self._create_applied(target, wanted, manager)
        check_identity(target, before, applied.get("metadata") or {}, is_patch=True)
        return self._apply_to(target, before, wanted, manager, force=query.get("force") == "true")

    def delete(self, target: Target, options: JsonObject) -> JsonObject:
        """Delete, or mark as deleted while finalizers or a pod's grace period keep the object."""
        body = self._require(target)
        check_preconditions(target, body, options.get("preconditions") or {})
        if self._guard is not None:
            self._guard.check(body, None)
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
        check_identity(target, pod, {"uid": (body.get("metadata") or {}).get("uid", "")})
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
        check_type(kind, body)
        metadata = build_new_metadata(target, body.get("metadata") or {})
        if kind.namespaced:
            self._require(Target(NAMESPACES, "", target.namespace))
        if self._store.get((kind, target.namespace, metadata["name"])) is not None:
            raise already_exists(kind, metadata["name"])
        self._check_admin_access(target, body)
        return prepare_create(kind, {**body, "metadata": metadata}, self._profile, now_text())

    def _check_admin_access(self, target: Target, body: JsonObject) -> None:
        """Admin access may be asked for only in namespaces that are labelled for it."""
        if target.kind not in (RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES) or not wants_admin_access(body):
            return
        labels = self._require(Target(NAMESPACES, "", target.namespace))["metadata"].get("labels") or {}
        if labels.get(ADMIN_LABEL) != "true":
            why = f"admin access to devices requires the `{ADMIN_LABEL}: true` label on the namespace"
            causes = [forbidden("spec.devices.requests.adminAccess", why)]
            raise invalid(target.kind, body.get("metadata", {}).get("name", ""), causes)

    def _store_new(self, created: JsonObject, owners: ssa.Owners, target: Target) -> JsonObject:
        key = (target.kind, target.namespace, created["metadata"]["name"])
        return self._store_checked(key, None, created, owners)

    def _require(self, target: Target) -> JsonObject:
        body = self._store.get(target.key)
        if body is None:
            raise not_found(target.kind, target.name)
        return body

    def _update(self, target: Target, before: JsonObject, body: JsonObject, manager: str) -> JsonObject:
        after = prepare_update(target.kind, before, body, target.subresource, self._profile, now_text())
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
                f"uid mismatch: the provided object specified uid {metadata['uid']}, "
                "and no existing object was found",
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
        after = prepare_update(kind, before, outcome.body, target.subresource, self._profile, now_text())
        return self._store_checked(target.key, before, after, outcome.owners)

    def _store_checked(
        self, key: Key, before: JsonObject | None, after: JsonObject, owners: ssa.Owners
    ) -> JsonObject:
        """Validate and store; a write that changes nothing makes no new version."""
        kind, _, name = key
        if causes := validate(kind, after, before, self._profile):
            raise invalid(kind, name, causes)
        if self._guard is not None:
            self._guard.check(before, after)
        metadata = after["metadata"]
        uid = metadata["uid"]
        if before is not None and before == after and self._owners.get(uid) == owners:
            return before
        self._owners[uid] = owners
        metadata["managedFields"] = ssa.build_managed_fields(owners, kind.api_version, now_text())
        if is_released(metadata):
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
