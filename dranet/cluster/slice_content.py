"""The devices of a slice as JSON: built from ours, and compared by value with those that a server holds.

A server returns a slice in its own words: quantities are canonical, what is empty may be absent, times are
set where we gave none, and a newer server fills in fields that we do not know. None of that is a difference;
each would be written again for ever. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from dranet.cluster.messages import JsonObject
from dranet.cluster.slice_fields import DeviceJson, Page
from dranet.model.device import AttributeValue, Device, Taint

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
    """A device as ``resource.k8s.io/v1`` spells it."""
    body: DeviceJson = {"name": device.name}
    if device.attributes:
        body["attributes"] = {
            name: _attribute_to_json(value) for name, value in sorted(device.attributes.items())
        }
    if device.shared:
        body["allowMultipleAllocations"] = True
    if taints:
        body["taints"] = [_taint_to_json(taint) for taint in taints]
    return body


def _attribute_to_json(value: AttributeValue) -> JsonObject:
    if isinstance(value, bool):  # before int: a bool is one
        return {"bool": value}
    if isinstance(value, tuple):
        return {"ints": list(value)}
    return {"int": value} if isinstance(value, int) else {"string": value}


def _taint_to_json(taint: Taint) -> JsonObject:
    """Without a time, which the server notes then."""
    body = {"key": taint.key, "effect": taint.effect.value}
    return {**body, "value": taint.value} if taint.value else body


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
    return tuple(built) or ((),)


def read_page(found: Mapping[str, Any]) -> Page:
    """The devices of a slice as the API server has it."""
    return tuple(found.get("spec", {}).get("devices") or ())


def is_same_page(found: Page, desired: Page) -> bool:
    """Whether a server that holds ``found`` holds what is desired. The order of devices counts: it is the
    order in which the scheduler tries them."""
    return len(found) == len(desired) and all(map(_is_same_device, found, desired))


def keep_taint_times(page: Page, existing: Iterable[Mapping[str, Any]]) -> Page:
    """``page`` with the time of each taint that its device has in the ``existing`` slices already: a write
    that gives no time would make an old taint a new one, and tolerations for a time would begin anew."""
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
        all(_given(found, field) == _given(desired, field) for field in _PLAIN_FIELDS)
        and _is_same_taints(found.get("taints") or (), desired.get("taints") or ())
        and _amounts(found) == _amounts(desired)
    )


def _given(device: DeviceJson, field: str) -> object:
    value = device.get(field)
    return None if _is_empty(value) else value


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
    capacity, consumed = device.get("capacity"), device.get("consumesCounters")
    if not capacity and not consumed:
        return None
    from dranet.quantity import normalize_quantity  # no device of ours has any today

    def normalize(value: object) -> object:
        """Quantities are the texts and numbers of these two fields, but for the name of a set of counters."""
        if isinstance(value, Mapping):
            given = {key: item for key, item in value.items() if not _is_empty(item)}
            return {key: item if key == "counterSet" else normalize(item) for key, item in given.items()}
        return [normalize(item) for item in value] if isinstance(value, list) else normalize_quantity(value)

    return normalize({"capacity": capacity, "consumesCounters": consumed})
