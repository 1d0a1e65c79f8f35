"""Which writes make this node's ResourceSlices equal to the desired ones: a pure decision.

The rules are those of the upstream slice controller (``k8s.io/dynamic-resource-allocation``), so that
consumers see a pool change the way they expect: slices are matched by the index in their name, a pool
keeps its generation while at most one slice changes and none is created, and otherwise all slices move
to the next generation together (readers take nothing from a pool whose slices they see half).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from dranet.cluster.messages import JsonObject
from dranet.cluster.slice_content import is_same_page, keep_taint_times, read_page
from dranet.cluster.slice_fields import Page

API_VERSION = "resource.k8s.io/v1"
_MIN_INDEX_DIGITS = 5
_MAX_GENERATE_NAME_LENGTH = 58
"""The API server cuts a longer ``generateName`` here before it adds five characters."""

_MAX_NAME_LENGTH = 253
"""And before that it refuses one that is longer than a name."""

_INDEX = re.compile(r"([0-9a-f]{5,})-")
_FOREIGN_FIELDS = ("nodeSelector", "allNodes", "perDeviceNodeSelection", "sharedCounters")
"""Fields of a spec that we never set, and that change what the slice means."""


class DesiredPool(Struct, frozen=True):
    """What one node should publish. There is at least one page; it may be empty, so that consumers
    know the pool to be complete and without devices."""

    driver: str
    node: str
    pool: str
    pages: tuple[Page, ...]


class DeleteSlice(Struct, frozen=True):
    """Only if it still is the one that was judged."""

    name: str
    uid: str
    resource_version: str


class UpdateSlice(Struct, frozen=True):
    """``body`` carries the resourceVersion that was judged."""

    index: int
    name: str
    body: JsonObject


class CreateSlice(Struct, frozen=True):
    """``body`` has an owner only if the plan was made with one."""

    index: int
    body: JsonObject


Write = DeleteSlice | UpdateSlice | CreateSlice


class SyncPlan(Struct, frozen=True):
    """Writes in order (delete, update, create) and the generation that the pool has after them."""

    writes: tuple[Write, ...]
    generation: int

    @property
    def creates(self) -> bool:
        return any(isinstance(write, CreateSlice) for write in self.writes)


def build_owner(node: Mapping[str, Any]) -> JsonObject:
    """The reference to a Node object by which its slices go when it goes."""
    name, uid = node["metadata"]["name"], node["metadata"]["uid"]
    return {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid, "controller": True}


def plan_sync(
    existing: Sequence[JsonObject], desired: DesiredPool, owner: JsonObject | None = None
) -> SyncPlan:
    """Compare this node's slices of this driver with the desired pool.

    With ``owner`` a slice that names another Node (one of the same name that is gone) is given to this one.
    That alone is no change of the pool, so its generation stays.
    """
    of_pool = [found for found in existing if _pool(found).get("name") == desired.pool]
    generation = max((_generation(found) for found in of_pool), default=0)
    matched = _match(of_pool, desired, generation)
    kept = {found["metadata"]["uid"] for found in matched.values()}
    obsolete = [found for found in existing if found["metadata"]["uid"] not in kept]
    missing = [index for index in range(len(desired.pages)) if index not in matched]
    changed = {i for i, found in matched.items() if _differs(found, desired, i, generation)}
    if missing or len(changed) > 1:
        generation += 1
        changed = set(matched)
    orphans = {i for i, found in matched.items() if owner and not _is_owned(found, owner)}
    specs = _SpecBuilder(desired, generation, existing)
    writes: tuple[Write, ...] = (
        *(_delete(found) for found in obsolete),
        *(_update(matched[index], index, specs, owner) for index in sorted(changed | orphans)),
        *(_create(index, specs, owner) for index in missing),
    )
    return SyncPlan(writes, generation)


def name_prefix(desired: DesiredPool, index: int) -> str:
    """``generateName`` of a slice. The index comes first: it orders the slices for the allocator, and it
    survives when a long name is cut."""
    digits = max(_MIN_INDEX_DIGITS, len(f"{len(desired.pages) - 1:x}"))
    return fit_prefix(f"{index:0{digits}x}-{desired.driver}-{desired.node}-")


def fit_prefix(prefix: str) -> str:
    """A ``generateName`` as the API server takes it."""
    if len(prefix) <= _MAX_NAME_LENGTH:
        return prefix
    return prefix[: _MAX_NAME_LENGTH - 1].rstrip(".-") + "-"


def decode_index(name: str, desired: DesiredPool) -> int | None:
    """Which page the slice of this name stands for; ``None`` for a name that we would not give."""
    match = _INDEX.match(name)
    index = int(match[1], 16) if match else len(desired.pages)
    if index >= len(desired.pages):
        return None
    prefix = name_prefix(desired, index)[:_MAX_GENERATE_NAME_LENGTH]
    return index if name.startswith(prefix) else None


def iter_adopted(pages: Sequence[Page], adopted: Mapping[int, tuple[Page, Page]]) -> Iterator[Page]:
    """``pages`` with what the server made of them: ``adopted`` maps an index to (sent, stored)."""
    for index, page in enumerate(pages):
        sent, stored = adopted.get(index, (page, page))
        yield stored if sent == page else page


def _match(of_pool: Sequence[JsonObject], desired: DesiredPool, generation: int) -> dict[int, JsonObject]:
    """The slice that stands for each index: of the newest generation, with a name of ours; of two the
    older one."""
    matched: dict[int, JsonObject] = {}
    for found in sorted(of_pool, key=_age):
        index = decode_index(found["metadata"]["name"], desired)
        if index is not None and _generation(found) == generation:
            matched.setdefault(index, found)
    return matched


def _age(found: JsonObject) -> tuple[str, str]:
    metadata = found["metadata"]
    return (str(metadata.get("creationTimestamp", "")), metadata["name"])


def _pool(found: JsonObject) -> JsonObject:
    pool: JsonObject = found.get("spec", {}).get("pool") or {}
    return pool


def _generation(found: JsonObject) -> int:
    return int(_pool(found).get("generation", 0))


def _differs(found: JsonObject, desired: DesiredPool, index: int, generation: int) -> bool:
    spec, pool = found["spec"], _pool(found)
    return (
        any(spec.get(field) for field in _FOREIGN_FIELDS)
        or any(pool.get(key) != value for key, value in _build_pool(desired, generation).items())
        or not is_same_page(read_page(found), desired.pages[index])
    )


def _is_owned(found: JsonObject, owner: JsonObject) -> bool:
    owners = found["metadata"].get("ownerReferences") or ()
    return [one.get("uid") for one in owners if one.get("kind") == "Node"] == [owner["uid"]]


def _build_pool(desired: DesiredPool, generation: int) -> JsonObject:
    return {
        "name": desired.pool,
        "generation": generation,
        "resourceSliceCount": len(desired.pages),
    }


class _SpecBuilder:
    """Specs of the pool as it is to be, with what is carried over from how it is."""

    def __init__(self, desired: DesiredPool, generation: int, existing: Sequence[JsonObject]) -> None:
        self.desired = desired
        self._generation = generation
        self._existing = existing

    def build(self, index: int) -> JsonObject:
        return {
            "driver": self.desired.driver,
            "nodeName": self.desired.node,
            "pool": _build_pool(self.desired, self._generation),
            "devices": list(keep_taint_times(self.desired.pages[index], self._existing)),
        }


def _delete(found: JsonObject) -> DeleteSlice:
    metadata = found["metadata"]
    return DeleteSlice(metadata["name"], metadata["uid"], metadata["resourceVersion"])


def _update(found: JsonObject, index: int, specs: _SpecBuilder, owner: JsonObject | None) -> UpdateSlice:
    metadata = {key: value for key, value in found["metadata"].items() if key != "managedFields"}
    if owner and not _is_owned(found, owner):
        others = [one for one in metadata.get("ownerReferences") or () if one.get("kind") != "Node"]
        metadata["ownerReferences"] = [*others, owner]
    body = {**found, "metadata": metadata, "spec": specs.build(index)}
    return UpdateSlice(index, metadata["name"], body)


def _create(index: int, specs: _SpecBuilder, owner: JsonObject | None) -> CreateSlice:
    metadata: JsonObject = {"generateName": name_prefix(specs.desired, index)}
    body = {
        "apiVersion": API_VERSION,
        "kind": "ResourceSlice",
        "metadata": {**metadata, "ownerReferences": [owner]} if owner else metadata,
        "spec": specs.build(index),
    }
    return CreateSlice(index, body)
