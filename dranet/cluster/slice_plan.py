"""Which writes make this node's ResourceSlices equal to the desired ones: pure decisions.

The rules are those of the upstream slice controller (``k8s.io/dynamic-resource-allocation``), so that
consumers see a pool change the way they expect: slices are matched by the index in their name, a pool
keeps its generation while at most one slice changes and none is created, and otherwise all slices move
to the next generation together (readers take nothing from a pool whose slices they see half).

A server returns a slice in its own words: quantities are canonical, empty fields may be absent, times are
set where we gave none, and a newer server fills in fields that we do not know. None of that is a difference;
each would be written again without end.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from msgspec import Struct

from dranet.cluster.messages import JsonObject
from dranet.model.attributes import BANDWIDTH, LIST_FORMS
from dranet.model.device import AttributeValue, Bandwidth, Device, Taint, TaintEffect
from dranet.settings import BANDWIDTH_STEP

DeviceJson = JsonObject
Page = tuple[DeviceJson, ...]
"""The devices of one slice."""

_LIST_KINDS = {"ints": "int", "bools": "bool", "strings": "string", "versions": "version"}
"""The kinds of a list attribute, each with that of its items."""


class Feature(StrEnum):
    """An optional field that we publish; the text is for people."""

    TAINTS = "device taints"
    OBSERVED_TAINTS = "device taints with effect None"
    SHARED_DEVICES = "devices for several claims"
    BANDWIDTH = "the bandwidth of shared devices"
    LIST_ATTRIBUTES = "list attributes"
    COUNTERS = "counters of partitionable devices"

    @property
    def gate(self) -> str:
        """The feature gate of Kubernetes that a server keeps the field with, if it knows it at all."""
        return _GATES[self]


_COUNTED = frozenset({Feature.SHARED_DEVICES, Feature.BANDWIDTH})
"""Only a shared device has a capacity that is counted."""

_GATES = {
    Feature.TAINTS: "DRADeviceTaints",
    Feature.OBSERVED_TAINTS: "DRADeviceTaints",
    Feature.SHARED_DEVICES: "DRAConsumableCapacity",
    Feature.BANDWIDTH: "DRAConsumableCapacity",
    Feature.LIST_ATTRIBUTES: "DRAListTypeAttributes",
    Feature.COUNTERS: "DRAPartitionableDevices",
}


def find_features(devices: Iterable[Mapping[str, Any]]) -> frozenset[Feature]:
    return frozenset(feature for device in devices for feature in _features_of(device))


def find_lost(sent: Page, stored: Page) -> frozenset[Feature]:
    """Which optional fields of ``sent`` a server has dropped from at least one device."""
    kept = {device.get("name"): _features_of(device) for device in stored}
    lost = (_features_of(device) - kept.get(device["name"], frozenset()) for device in sent)
    return frozenset().union(*lost)


def withhold(page: Page, features: Collection[Feature]) -> Page:
    """The page without these fields; the same object where it has none of them.

    Only the first NUMA node of a list stays, as a scalar: it is the device's own. No other list has an item
    that could stand for it.
    """
    if not find_features(page) & frozenset(features):
        return page
    kept = (entry for entry in page if Feature.COUNTERS not in features or not is_counter_set(entry))
    return tuple(_strip(device, features) for device in kept)


def withhold_all(pages: Sequence[Page], features: Collection[Feature]) -> tuple[Page, ...]:
    """The pages without these fields. A page of counter sets is left out; it is among the last."""
    stripped = ((page, withhold(page, features)) for page in pages)
    return tuple(kept for page, kept in stripped if kept or not page)


def is_counter_set(entry: Mapping[str, Any]) -> bool:
    """Whether an entry of a page is a counter set, and no device; a slice has entries of one kind."""
    return "counters" in entry


def _features_of(device: Mapping[str, Any]) -> frozenset[Feature]:
    found = set()
    if taints := device.get("taints"):
        found.add(Feature.TAINTS)
        if any(_is_observed(taint) for taint in taints):
            found.add(Feature.OBSERVED_TAINTS)
    if device.get("allowMultipleAllocations"):
        found.add(Feature.SHARED_DEVICES)
    if _counts_bandwidth(device):
        found.add(Feature.BANDWIDTH)
    if device.get("consumesCounters") or is_counter_set(device):
        found.add(Feature.COUNTERS)
    if any(_is_list(value) for value in (device.get("attributes") or {}).values()):
        found.add(Feature.LIST_ATTRIBUTES)
    return frozenset(found)


def _strip(device: DeviceJson, features: Collection[Feature]) -> DeviceJson:
    stripped = dict(device)
    if Feature.TAINTS in features:
        stripped.pop("taints", None)
    elif Feature.OBSERVED_TAINTS in features and "taints" in stripped:
        stripped["taints"] = [taint for taint in stripped["taints"] if not _is_observed(taint)]
    if Feature.COUNTERS in features:
        stripped.pop("consumesCounters", None)
    if Feature.SHARED_DEVICES in features:
        stripped.pop("allowMultipleAllocations", None)
    if not _COUNTED.isdisjoint(features) and _counts_bandwidth(device):
        stripped.pop("capacity")  # unshared, a request would only be compared with it
    if Feature.LIST_ATTRIBUTES in features and "attributes" in stripped:
        stripped["attributes"] = _without_lists(stripped["attributes"])
    return {key: value for key, value in stripped.items() if value not in ([], {})}


def _without_lists(attributes: JsonObject) -> JsonObject:
    kept = {}
    for name, value in attributes.items():
        if not _is_list(value):
            kept[name] = value
        elif name in LIST_FORMS:
            kept[name] = {_LIST_KINDS[kind]: items[0] for kind, items in value.items()}
    return kept


def _counts_bandwidth(device: Mapping[str, Any]) -> bool:
    """Whether the scheduler counts what claims take of a capacity, which has a ``requestPolicy`` then."""
    return any("requestPolicy" in capacity for capacity in (device.get("capacity") or {}).values())


def _is_list(attribute: Mapping[str, Any]) -> bool:
    return not _LIST_KINDS.keys().isdisjoint(attribute)


def _is_observed(taint: Mapping[str, Any]) -> bool:
    return taint.get("effect") == TaintEffect.NONE


_PLAIN_FIELDS = (
    "name",
    "attributes",
    "allowMultipleAllocations",
    "nodeName",
    "nodeSelector",
    "allNodes",
    "bindsToNode",
    "bindingConditions",
    "bindingFailureConditions",
    "nodeAllocatableResources",
)
"""Fields of a v1 device that are compared as they are; taints and quantities follow rules of their own."""

_TAINT_TIME_TOLERANCE = timedelta(seconds=1)
"""Servers keep whole seconds."""


def device_to_json(device: Device, taints: Sequence[Taint] = ()) -> DeviceJson:
    body: DeviceJson = {"name": device.name}
    if device.attributes:
        body["attributes"] = {
            name: _attribute_to_json(value) for name, value in sorted(device.attributes.items())
        }
    if device.shared:
        body["allowMultipleAllocations"] = True
    if device.bandwidth is not None:
        body["capacity"] = {BANDWIDTH: _bandwidth_to_json(device.bandwidth)}
    if (use := device.counters) is not None:
        counters = {COUNTER: {"value": str(use.amount)}}
        body["consumesCounters"] = [{"counterSet": use.counter_set, "counters": counters}]
    if taints:
        body["taints"] = [  # without a time, which the server notes then
            {"key": taint.key, "effect": taint.effect.value} | ({"value": taint.value} if taint.value else {})
            for taint in taints
        ]
    return body


def _bandwidth_to_json(bandwidth: Bandwidth) -> JsonObject:
    """Numbers without a suffix: a server keeps the spelling, and only the value is compared."""
    if bandwidth.default is None:
        return {"value": str(bandwidth.total)}
    step = str(BANDWIDTH_STEP)
    limits = {"min": step}
    if bandwidth.total > BANDWIDTH_STEP:  # a step beyond the capacity is invalid, and costs the whole slice
        limits["step"] = step
    policy = {"default": str(bandwidth.default), "validRange": limits}
    return {"value": str(bandwidth.total), "requestPolicy": policy}


def _attribute_to_json(value: AttributeValue) -> JsonObject:
    if isinstance(value, bool):  # before int: a bool is one
        return {"bool": value}
    if isinstance(value, tuple):
        return {"strings" if isinstance(value[0], str) else "ints": list(value)}
    return {"int": value} if isinstance(value, int) else {"string": value}


def build_pages(
    pages: Sequence[Sequence[Device]], taints: Mapping[str, Sequence[Taint]] | None = None
) -> tuple[Page, ...]:
    """Devices, each with the taints under its name, to API JSON; no pages become one empty page.

    Raises:
        ValueError: a device name is there twice, which would make the whole pool invalid.
    """
    names = [device.name for page in pages for device in page]
    if len(names) != len(set(names)):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"device names are not unique in the pool: {', '.join(twice)}")
    known = taints or {}
    built = (tuple(device_to_json(device, known.get(device.name, ())) for device in page) for page in pages)
    return (*(tuple(built) or ((),)), *_build_counter_pages(device for page in pages for device in page))


COUNTER = "virtual-functions"
"""The only counter of each set."""
_SETS_PER_SLICE = 8


def _build_counter_pages(devices: Iterable[Device]) -> Iterator[Page]:
    """The counter sets of the devices, in slices of their own (Kubernetes 1.35), after the devices."""
    uses = (device.counters for device in devices if device.counters is not None)
    totals = sorted({(use.counter_set, use.total) for use in uses})
    sets = [{"name": name, "counters": {COUNTER: {"value": str(total)}}} for name, total in totals]
    for start in range(0, len(sets), _SETS_PER_SLICE):
        yield tuple(sets[start : start + _SETS_PER_SLICE])


def read_page(found: Mapping[str, Any]) -> Page:
    spec = found.get("spec", {})
    return (*(spec.get("devices") or ()), *(spec.get("sharedCounters") or ()))


def page_to_spec(page: Page) -> JsonObject:
    """The part of a slice's spec that holds the page."""
    return {"sharedCounters" if page and is_counter_set(page[0]) else "devices": list(page)}


def is_same_page(found: Page, desired: Page) -> bool:
    """Whether a server that holds ``found`` holds what is desired. The order of devices counts: it is the
    order in which the scheduler tries them."""
    return len(found) == len(desired) and all(map(_is_same_device, found, desired))


def keep_taint_times(page: Page, existing: Iterable[Mapping[str, Any]]) -> Page:
    """``page`` with the time of each taint that its device has in the ``existing`` slices already: a write
    that gives no time would make an old taint a new one, and tolerations for a time would begin again."""
    if not any(device.get("taints") for device in page):
        return page
    known = {
        (device.get("name"), *_taint_key(taint)): taint["timeAdded"]
        for found in existing
        for device in read_page(found)
        for taint in device.get("taints") or ()
        if taint.get("timeAdded")
    }
    return tuple(_with_times(device, known) if device.get("taints") else device for device in page)


def _with_times(device: DeviceJson, known: Mapping[tuple[object, ...], str]) -> DeviceJson:
    taints = []
    for taint in device["taints"]:
        time = taint.get("timeAdded") or known.get((device["name"], *_taint_key(taint)))
        taints.append({**taint, "timeAdded": time} if time else taint)
    return {**device, "taints": taints}


def _is_same_device(found: DeviceJson, desired: DeviceJson) -> bool:
    return (
        _without_empty(found) == _without_empty(desired)
        and _is_same_taints(found.get("taints") or (), desired.get("taints") or ())
        and _amounts(found) == _amounts(desired)
    )


def _without_empty(device: DeviceJson) -> JsonObject:
    return {field: device[field] for field in _PLAIN_FIELDS if not _is_empty(device.get(field))}


def _is_empty(value: object) -> bool:
    """Whether an optional field might as well be absent; a number never."""
    return value is None or value is False or value in ("", [], {})


def _is_same_taints(found: Sequence[JsonObject], desired: Sequence[JsonObject]) -> bool:
    return len(found) == len(desired) and all(
        _taint_key(one) == _taint_key(other) and _is_same_time(one.get("timeAdded"), other.get("timeAdded"))
        for one, other in zip(found, desired, strict=True)
    )


def _taint_key(taint: Mapping[str, Any]) -> tuple[object, ...]:
    return (taint.get("key"), taint.get("value") or "", taint.get("effect"))


def _is_same_time(found: str | None, desired: str | None) -> bool:
    """Where we gave no time, any will do."""
    if desired is None or found == desired:
        return True
    try:
        apart = datetime.fromisoformat(found or "") - datetime.fromisoformat(desired)
    except (ValueError, TypeError):  # no time, or one without its zone
        return False
    return abs(apart) <= _TAINT_TIME_TOLERANCE


def _amounts(device: DeviceJson) -> object:
    """Capacity and counters, with each quantity by its value."""
    amounts = {key: device.get(key) for key in ("capacity", "consumesCounters", "counters")}
    if not any(amounts.values()):
        return None
    from dranet.quantity import normalize_quantity  # most nodes have none

    def normalize(value: object) -> object:
        """Quantities are the texts and numbers of these two fields, except the name of a set of counters."""
        if isinstance(value, Mapping):
            present = {key: item for key, item in value.items() if not _is_empty(item)}
            return {key: item if key == "counterSet" else normalize(item) for key, item in present.items()}
        return [normalize(item) for item in value] if isinstance(value, list) else normalize_quantity(value)

    return normalize(amounts)


API_VERSION = "resource.k8s.io/v1"
_MIN_INDEX_DIGITS = 5
_MAX_GENERATE_NAME_LENGTH = 58
"""The API server cuts a longer ``generateName`` here before it adds five characters."""

_MAX_NAME_LENGTH = 253
"""And before that it refuses one that is longer than a name."""

_INDEX = re.compile(r"([0-9a-f]{5,})-")
_FOREIGN_FIELDS = ("nodeSelector", "allNodes", "perDeviceNodeSelection")
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
    spec = {
        "driver": desired.driver,
        "nodeName": desired.node,
        "pool": _build_pool(desired, generation),
    }
    specs = [{**spec, **page_to_spec(keep_taint_times(page, existing))} for page in desired.pages]
    writes: tuple[Write, ...] = (
        *(_delete(found) for found in obsolete),
        *(_update(matched[index], index, specs[index], owner) for index in sorted(changed | orphans)),
        *(_create(name_prefix(desired, index), index, specs[index], owner) for index in missing),
    )
    return SyncPlan(writes, generation)


def name_prefix(desired: DesiredPool, index: int) -> str:
    """``generateName`` of a slice. The index comes first: it orders the slices for the allocator, and it
    survives when a long name is cut."""
    digits = max(_MIN_INDEX_DIGITS, len(f"{len(desired.pages) - 1:x}"))
    return fit_prefix(f"{index:0{digits}x}-{desired.driver}-{desired.node}-")


def fit_prefix(prefix: str) -> str:
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
    return {"name": desired.pool, "generation": generation, "resourceSliceCount": len(desired.pages)}


def _delete(found: JsonObject) -> DeleteSlice:
    metadata = found["metadata"]
    return DeleteSlice(metadata["name"], metadata["uid"], metadata["resourceVersion"])


def _update(found: JsonObject, index: int, spec: JsonObject, owner: JsonObject | None) -> UpdateSlice:
    metadata = {key: value for key, value in found["metadata"].items() if key != "managedFields"}
    if owner and not _is_owned(found, owner):
        others = [one for one in metadata.get("ownerReferences") or () if one.get("kind") != "Node"]
        metadata["ownerReferences"] = [*others, owner]
    body = {**found, "metadata": metadata, "spec": spec}
    return UpdateSlice(index, metadata["name"], body)


def _create(prefix: str, index: int, spec: JsonObject, owner: JsonObject | None) -> CreateSlice:
    metadata: JsonObject = {"generateName": prefix}
    body = {
        "apiVersion": API_VERSION,
        "kind": "ResourceSlice",
        "metadata": {**metadata, "ownerReferences": [owner]} if owner else metadata,
        "spec": spec,
    }
    return CreateSlice(index, body)
