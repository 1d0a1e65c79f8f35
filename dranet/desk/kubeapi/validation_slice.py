"""Validation of a ResourceSlice (``pkg/apis/resource/validation``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from dranet.desk.kubeapi.formats import (
    Causes,
    bad,
    check_count,
    check_taint,
    duplicate,
    forbidden,
    immutable,
    is_c_identifier,
    is_driver_name,
    is_label,
    is_label_key,
    is_pool_name,
    is_subdomain,
    is_version,
    required,
    too_long,
    too_many,
)
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.kubeapi.profiles import Profile
from dranet.desk.kubeapi.quantities import parse_quantity

_SCALARS = ("int", "bool", "string", "version")
_LISTS = {f"{kind}s": kind for kind in _SCALARS}
_INT64 = range(-(2**63), 2**63)
_MAX_DEVICES = 128
_MAX_ATTRIBUTES_AND_CAPACITIES = 32
_MAX_ATTRIBUTE_VALUES = 48
"""Limit of a device; each item of a list counts."""
_MAX_COUNTER_SETS = 8
_MAX_COUNTERS = 32
"""Limit of a set; before 1.35 of all sets of a slice together."""
_MAX_CONSUMED_SETS = 2
_MAX_BINDING_CONDITIONS = 4
_MAX_VALID_VALUES = 10


def validate_slice(body: JsonObject, before: JsonObject | None, profile: Profile) -> Causes:
    """The faults of a slice; ``before`` is what it was, ``None`` on creation."""
    spec = body.get("spec")
    if not isinstance(spec, dict):
        yield required("spec")
        return
    if not is_driver_name(spec.get("driver", "")):
        why = "must be a lower-case DNS subdomain of at most 63 characters"
        yield bad("spec.driver", spec.get("driver", ""), why)
    yield from _validate_pool(spec.get("pool") or {})
    yield from _validate_node_selection(spec)
    yield from _validate_counter_sets(spec, profile)
    old = (before or {}).get("spec") or {}
    yield from _validate_devices(spec, old, profile)
    if before is not None:
        yield from _validate_update(spec, old)


def _validate_pool(pool: JsonObject) -> Causes:
    name = pool.get("name", "")
    if not is_pool_name(name):
        yield bad("spec.pool.name", name, "must be DNS subdomains separated by slashes")
    if not isinstance(pool.get("generation", 0), int) or pool.get("generation", 0) < 0:
        yield bad("spec.pool.generation", pool.get("generation"), "must be greater than or equal to zero")
    if not isinstance(pool.get("resourceSliceCount"), int) or pool["resourceSliceCount"] <= 0:
        yield bad("spec.pool.resourceSliceCount", pool.get("resourceSliceCount"), "must be greater than zero")


def _validate_node_selection(spec: JsonObject) -> Causes:
    chosen = [
        key for key in ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection") if spec.get(key)
    ]
    if len(chosen) != 1:
        why = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
        yield bad("spec", chosen, why)
    for key in ("allNodes", "perDeviceNodeSelection"):
        if spec.get(key) is False:
            yield bad(f"spec.{key}", False, "must be either unset or set to true")
    if "nodeName" in spec and not is_subdomain(spec["nodeName"]):
        yield bad("spec.nodeName", spec["nodeName"], "a lowercase RFC 1123 subdomain is required")
    terms = (spec.get("nodeSelector") or {}).get("nodeSelectorTerms") or ()
    if spec.get("nodeSelector") and len(terms) != 1:
        yield bad("spec.nodeSelector.nodeSelectorTerms", terms, "must have exactly one node selector term")


def _validate_counter_sets(spec: JsonObject, profile: Profile) -> Causes:
    sets = spec.get("sharedCounters")
    if sets is None:
        return
    field = "spec.sharedCounters"
    if profile.mixes_counters_and_devices:
        total = sum(len(entry.get("counters") or {}) for entry in sets)
        if total > _MAX_COUNTERS:
            yield bad(field, total, f"the total number of counters must not exceed {_MAX_COUNTERS}")
    else:
        yield from check_count(field, sets, _MAX_COUNTER_SETS)
        if spec.get("devices") is not None:
            yield bad("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    yield from _validate_unique(field, sets, "name")
    for index, entry in enumerate(sets):
        yield from _validate_counters(f"{field}[{index}]", entry, "name")


def _validate_unique(field: str, entries: Sequence[JsonObject], key: str) -> Causes:
    names = [entry.get(key) for entry in entries]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield duplicate(f"{field}[{index}].{key}", name)


def _validate_counters(field: str, entry: JsonObject, key: str) -> Causes:
    if not is_label(entry.get(key)):
        yield bad(f"{field}.{key}", entry.get(key), "a lowercase RFC 1123 label is required")
    counters = entry.get("counters") or {}
    if not counters:
        yield required(f"{field}.counters")
    if len(counters) > _MAX_COUNTERS:
        yield too_many(f"{field}.counters", len(counters), _MAX_COUNTERS)
    for name, counter in counters.items():
        if not is_label(name):
            yield bad(f"{field}.counters", name, "a lowercase RFC 1123 label is required")
        if parse_quantity(counter.get("value")) is None:
            yield bad(f"{field}.counters[{name}].value", counter.get("value"), "must be a quantity")


def _validate_update(spec: JsonObject, before: JsonObject) -> Causes:
    for key in ("driver", "nodeName"):
        if spec.get(key) != before.get(key):
            yield immutable(f"spec.{key}", spec.get(key))
    if (spec.get("pool") or {}).get("name") != before["pool"].get("name"):
        yield immutable("spec.pool.name", (spec.get("pool") or {}).get("name"))


def _validate_devices(spec: JsonObject, old: JsonObject, profile: Profile) -> Causes:
    devices = spec.get("devices") or []
    advanced = any(_is_advanced(device) for device in devices)
    limit = profile.max_advanced_devices if advanced else _MAX_DEVICES
    if len(devices) > limit:
        yield too_many("spec.devices", len(devices), limit)  # and no further look, as a real server
        return
    yield from _validate_unique("spec.devices", devices, "name")
    known = {device.get("name"): device for device in old.get("devices") or ()}
    for index, device in enumerate(devices):
        field = f"spec.devices[{index}]"
        if not is_label(device.get("name", "")):
            yield bad(f"{field}.name", device.get("name", ""), "a lowercase RFC 1123 label is required")
        before = known.get(device.get("name")) or {}
        yield from _validate_device(field, device, before, profile)
        yield from _validate_device_nodes(field, device, per_device=bool(spec.get("perDeviceNodeSelection")))


def _is_advanced(device: JsonObject) -> bool:
    attributes = (device.get("attributes") or {}).values()
    has_lists = any(not _LISTS.keys().isdisjoint(attribute) for attribute in attributes)
    return has_lists or bool(device.get("taints") or device.get("consumesCounters"))


def _validate_device(field: str, device: JsonObject, before: JsonObject, profile: Profile) -> Causes:
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    total = len(attributes) + len(capacity)
    if total > _MAX_ATTRIBUTES_AND_CAPACITIES:
        message = (
            f"the total number of attributes and capacities must not exceed {_MAX_ATTRIBUTES_AND_CAPACITIES}"
        )
        yield bad(field, total, message)
    values = sum(_count_values(attribute) for attribute in attributes.values())
    if values > _MAX_ATTRIBUTE_VALUES:
        yield too_many(f"{field}.attributes", values, _MAX_ATTRIBUTE_VALUES)
    for name, attribute in attributes.items():
        yield from _validate_qualified_name(f"{field}.attributes", name)
        yield from _validate_attribute(f"{field}.attributes[{name}]", attribute)
    if capacity != before.get("capacity"):
        shared = device.get("allowMultipleAllocations") is True
        yield from _validate_capacities(f"{field}.capacity", capacity, shared=shared)
    yield from _validate_taints(f"{field}.taints", device, before, profile)
    consumed = device.get("consumesCounters") or []
    yield from check_count(f"{field}.consumesCounters", consumed, _MAX_CONSUMED_SETS)
    yield from _validate_unique(f"{field}.consumesCounters", consumed, "counterSet")
    for index, entry in enumerate(consumed):
        yield from _validate_counters(f"{field}.consumesCounters[{index}]", entry, "counterSet")
    yield from _validate_binding(field, device)


def _validate_taints(field: str, device: JsonObject, before: JsonObject, profile: Profile) -> Causes:
    taints = device.get("taints") or []
    if taints == before.get("taints"):
        return
    yield from check_count(field, taints, profile.max_taints)
    for index, taint in enumerate(taints):
        yield from check_taint(f"{field}[{index}]", taint, profile.taint_effects)


def _validate_device_nodes(field: str, device: JsonObject, *, per_device: bool) -> Causes:
    chosen = [key for key in ("nodeName", "nodeSelector", "allNodes") if device.get(key) is not None]
    if per_device and len(chosen) != 1:
        yield bad(field, chosen, "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required")
    elif chosen and not per_device:
        yield bad(field, chosen, "can only be set if `perDeviceNodeSelection` is set to true")


def _validate_binding(field: str, device: JsonObject) -> Causes:
    names = ("bindingConditions", "bindingFailureConditions")
    wanted, failed = (device.get(name) or [] for name in names)
    for name, conditions in zip(names, (wanted, failed), strict=True):
        yield from check_count(f"{field}.{name}", conditions, _MAX_BINDING_CONDITIONS)
        for index, condition in enumerate(conditions):
            if not is_label_key(condition):
                yield bad(f"{field}.{name}[{index}]", condition, "must be a qualified name")
            if condition in conditions[:index]:
                yield duplicate(f"{field}.{name}[{index}]", condition)
    if bool(wanted) != bool(failed):
        missing = names[1] if wanted else names[0]
        yield bad(f"{field}.{missing}", [], "bindingConditions and bindingFailureConditions need each other")
    for both in sorted(set(wanted) & set(failed)):
        yield bad(f"{field}.{names[1]}", both, "must not overlap with bindingConditions")


# Attributes and capacities


def _validate_qualified_name(field: str, name: str) -> Causes:
    domain, slash, identifier = name.rpartition("/")
    if slash and not is_driver_name(domain):
        yield bad(field, name, "the domain must be a DNS subdomain of at most 63 characters")
    if not is_c_identifier(identifier):
        yield bad(field, name, "a C identifier of at most 32 characters is required after the domain")


def _count_values(attribute: JsonObject) -> int:
    return sum(len(value) if isinstance(value, list) else 1 for value in attribute.values())


def _validate_attribute(field: str, attribute: JsonObject) -> Causes:
    if len(attribute) != 1 or not set(attribute) <= {*_SCALARS, *_LISTS}:
        yield bad(field, attribute, "exactly one value must be specified")
        return
    ((kind, value),) = attribute.items()
    if kind in _SCALARS:
        yield from _validate_scalar(f"{field}.{kind}", kind, value)
    elif not isinstance(value, list) or not value:
        yield required(f"{field}.{kind}", "at least one item")
    else:
        for index, item in enumerate(value):
            yield from _validate_scalar(f"{field}.{kind}[{index}]", _LISTS[kind], item)


def _validate_scalar(field: str, kind: str, value: Any) -> Causes:
    if not _ATTRIBUTE_CHECKS[kind](value):
        yield bad(field, value, f"not a valid {kind} value")
    if kind in ("string", "version") and len(str(value).encode()) > 64:
        yield too_long(field, 64)


_ATTRIBUTE_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool) and value in _INT64,
    "bool": lambda value: isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "version": is_version,
}


def _validate_capacities(field: str, capacity: JsonObject, *, shared: bool) -> Causes:
    for name, entry in capacity.items():
        yield from _validate_qualified_name(field, name)
        amount = parse_quantity(entry.get("value"))
        if amount is None:
            yield bad(f"{field}[{name}].value", entry.get("value"), "must be a quantity")
            continue
        policy = entry.get("requestPolicy")
        if policy is not None and not shared:
            yield forbidden(f"{field}[{name}].requestPolicy", "allowMultipleAllocations must be true")
        elif policy is not None:
            yield from _validate_policy(f"{field}[{name}].requestPolicy", policy, amount)


def _validate_policy(field: str, policy: JsonObject, amount: Fraction) -> Causes:
    values, limits = policy.get("validValues") or [], policy.get("validRange")
    if values and limits is not None:
        yield forbidden(field, "exactly one policy can be specified")
        return
    if not values and limits is None:
        return
    default = parse_quantity(policy.get("default"))
    if default is None:
        yield required(f"{field}.default", "required when validValues or validRange is defined")
    elif values:
        yield from _validate_valid_values(f"{field}.validValues", values, default, amount)
    elif isinstance(limits, dict):
        yield from _validate_range(f"{field}.validRange", limits, default, amount)


def _validate_valid_values(field: str, values: Sequence[Any], default: Fraction, amount: Fraction) -> Causes:
    yield from check_count(field, values, _MAX_VALID_VALUES)
    parsed = [parse_quantity(value) or Fraction(0) for value in values]
    for index, value in enumerate(parsed):
        if value > amount:
            yield bad(f"{field}[{index}]", values[index], "option is larger than the capacity value")
        if index and value < parsed[index - 1]:
            yield bad(f"{field}[{index}]", values[index], "values must be sorted in ascending order")
        if value in parsed[:index]:
            yield duplicate(f"{field}[{index}]", values[index])
    if default not in parsed:
        yield bad(field, str(default), "default value is not valid according to the requestPolicy")


def _validate_range(field: str, limits: JsonObject, default: Fraction, amount: Fraction) -> Causes:
    lowest = parse_quantity(limits.get("min"))
    if lowest is None:
        yield required(f"{field}.min", "required when validRange is defined")
        return
    highest = parse_quantity(limits.get("max"))
    top = amount if highest is None else highest
    if not lowest <= top <= amount:
        yield bad(f"{field}.max", limits.get("max"), "min, max and the capacity value must be in this order")
    if not lowest <= default <= top:
        yield bad(f"{field}.default", str(default), "default is outside of the range")
    step = parse_quantity(limits.get("step"))
    if step is None:
        return
    if step <= 0:
        yield bad(f"{field}.step", limits.get("step"), "must be greater than zero")
    elif lowest + step > amount or any((value - lowest) % step for value in (default, highest or lowest)):
        yield bad(f"{field}.step", limits.get("step"), "default and max must be whole steps from min")
