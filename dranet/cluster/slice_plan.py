"""Which writes make this node's ResourceSlices equal to the desired ones: a pure decision.

The rules are those of the upstream slice controller (``k8s.io/dynamic-resource-allocation``), so that
consumers see a pool change the way they expect: slices are matched by the index in their name, a pool
keeps its generation while at most one slice changes and none is created, and otherwise all slices move
to the next generation together (readers take nothing from a pool whose slices they see half).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dranet.cluster.client import JsonObject
from dranet.model.device import AttributeValue, Device

API_VERSION = "resource.k8s.io/v1"
_MIN_INDEX_DIGITS = 5
_MAX_GENERATE_NAME_LENGTH = 58
"""The API server cuts a longer ``generateName`` here before it adds five characters."""

_INDEX = re.compile(r"([0-9a-f]{5,})-")

DeviceJson = JsonObject
Page = tuple[DeviceJson, ...]
"""The devices of one slice."""


@dataclass(frozen=True, slots=True)
class DesiredPool:
    """What one node should publish. There is at least one page; it may be empty, so that consumers
    know the pool to be complete and without devices."""

    driver: str
    node: str
    pool: str
    pages: tuple[Page, ...]


@dataclass(frozen=True, slots=True)
class DeleteSlice:
    """Only if it still is the one that was judged."""

    name: str
    uid: str
    resource_version: str


@dataclass(frozen=True, slots=True)
class UpdateSlice:
    """``body`` carries the resourceVersion that was judged."""

    index: int
    name: str
    body: JsonObject


@dataclass(frozen=True, slots=True)
class CreateSlice:
    """``body`` has no owner yet: that takes a look at the Node."""

    index: int
    body: JsonObject


Write = DeleteSlice | UpdateSlice | CreateSlice


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """Writes in order (delete, update, create) and the generation that the pool has after them."""

    writes: tuple[Write, ...]
    generation: int


def device_to_json(device: Device) -> DeviceJson:
    """A device as ``resource.k8s.io/v1`` spells it."""
    body: DeviceJson = {"name": device.name}
    if device.attributes:
        body["attributes"] = {
            name: _attribute_to_json(value) for name, value in sorted(device.attributes.items())
        }
    if device.shared:
        body["allowMultipleAllocations"] = True
    return body


def _attribute_to_json(value: AttributeValue) -> JsonObject:
    if isinstance(value, bool):  # before int: a bool is one
        return {"bool": value}
    if isinstance(value, tuple):
        return {"ints": list(value)}
    return {"int": value} if isinstance(value, int) else {"string": value}


def build_pages(pages: Sequence[Sequence[Device]]) -> tuple[Page, ...]:
    """Devices to API JSON; no pages become one empty page.

    Raises:
        ValueError: a device name is there twice, which would make the whole pool invalid.
    """
    names = [device.name for page in pages for device in page]
    if len(names) != len(set(names)):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"device names are not unique in the pool: {', '.join(twice)}")
    return tuple(tuple(device_to_json(device) for device in page) for page in pages) or ((),)


def plan_sync(existing: Sequence[JsonObject], desired: DesiredPool) -> SyncPlan:
    """Compare this node's slices of this driver with the desired pool."""
    of_pool = [found for found in existing if _pool(found).get("name") == desired.pool]
    generation = max((_generation(found) for found in of_pool), default=0)
    matched = _match(of_pool, desired, generation)
    kept = {found["metadata"]["uid"] for found in matched.values()}
    obsolete = [found for found in existing if found["metadata"]["uid"] not in kept]
    missing = [index for index in range(len(desired.pages)) if index not in matched]
    changed = [i for i, found in matched.items() if _differs(found, desired, i, generation)]
    if missing or len(changed) > 1:
        generation += 1
        changed = list(matched)
    writes: tuple[Write, ...] = (
        *(_delete(found) for found in obsolete),
        *(_update(matched[index], desired, index, generation) for index in sorted(changed)),
        *(_create(desired, index, generation) for index in missing),
    )
    return SyncPlan(writes, generation)


def name_prefix(desired: DesiredPool, index: int) -> str:
    """``generateName`` of a slice. The index comes first: it orders the slices for the allocator, and it
    survives when a long name is cut."""
    digits = max(_MIN_INDEX_DIGITS, len(f"{len(desired.pages) - 1:x}"))
    return f"{index:0{digits}x}-{desired.driver}-{desired.node}-"


def read_content(found: Mapping[str, Any]) -> Page:
    """The devices of a slice as the API server has it, for comparing by value: what is empty counts as
    absent, because servers differ in spelling that."""
    devices = found.get("spec", {}).get("devices") or ()
    return tuple({key: value for key, value in device.items() if value not in ({}, [])} for device in devices)


def _match(of_pool: Sequence[JsonObject], desired: DesiredPool, generation: int) -> dict[int, JsonObject]:
    """The slice that stands for each index: of the newest generation, with a name of ours; of two the
    older one."""
    matched: dict[int, JsonObject] = {}
    for found in sorted(of_pool, key=_age):
        index = _decode_index(found, desired)
        if index is not None and _generation(found) == generation:
            matched.setdefault(index, found)
    return matched


def _age(found: JsonObject) -> tuple[str, str]:
    metadata = found["metadata"]
    return (str(metadata.get("creationTimestamp", "")), metadata["name"])


def _decode_index(found: JsonObject, desired: DesiredPool) -> int | None:
    name: str = found["metadata"]["name"]
    match = _INDEX.match(name)
    index = int(match[1], 16) if match else len(desired.pages)
    if index >= len(desired.pages):
        return None
    prefix = name_prefix(desired, index)[:_MAX_GENERATE_NAME_LENGTH]
    return index if name.startswith(prefix) else None


def _pool(found: JsonObject) -> JsonObject:
    pool: JsonObject = found.get("spec", {}).get("pool") or {}
    return pool


def _generation(found: JsonObject) -> int:
    return int(_pool(found).get("generation", 0))


def _differs(found: JsonObject, desired: DesiredPool, index: int, generation: int) -> bool:
    spec = found["spec"]
    reach = {key for key in ("nodeSelector", "allNodes", "perDeviceNodeSelection") if spec.get(key)}
    return (
        bool(reach)
        or bool(spec.get("sharedCounters"))
        or _pool(found) != _build_pool(desired, generation)
        or read_content(found) != desired.pages[index]
    )


def _build_pool(desired: DesiredPool, generation: int) -> JsonObject:
    return {
        "name": desired.pool,
        "generation": generation,
        "resourceSliceCount": len(desired.pages),
    }


def _build_spec(desired: DesiredPool, index: int, generation: int) -> JsonObject:
    return {
        "driver": desired.driver,
        "nodeName": desired.node,
        "pool": _build_pool(desired, generation),
        "devices": list(desired.pages[index]),
    }


def _delete(found: JsonObject) -> DeleteSlice:
    metadata = found["metadata"]
    return DeleteSlice(metadata["name"], metadata["uid"], metadata["resourceVersion"])


def _update(found: JsonObject, desired: DesiredPool, index: int, generation: int) -> UpdateSlice:
    metadata = {key: value for key, value in found["metadata"].items() if key != "managedFields"}
    body = {**found, "metadata": metadata, "spec": _build_spec(desired, index, generation)}
    return UpdateSlice(index, metadata["name"], body)


def _create(desired: DesiredPool, index: int, generation: int) -> CreateSlice:
    body = {
        "apiVersion": API_VERSION,
        "kind": "ResourceSlice",
        "metadata": {"generateName": name_prefix(desired, index)},
        "spec": _build_spec(desired, index, generation),
    }
    return CreateSlice(index, body)


def iter_adopted(pages: Sequence[Page], adopted: Mapping[int, tuple[Page, Page]]) -> Iterator[Page]:
    """``pages`` with what the server made of them: ``adopted`` maps an index to (sent, stored)."""
    for index, page in enumerate(pages):
        sent, stored = adopted.get(index, (page, page))
        yield stored if sent == page else page
