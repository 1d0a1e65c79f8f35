"""Refuse what a real API server refuses, for the fields that this driver and its users write.

Limits and rules of ``resource.k8s.io/v1`` as of Kubernetes 1.37 (``pkg/apis/resource/validation``), and
the common metadata rules. Each check yields causes; all are reported at once.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dranet.testbed.apiserver.errors import Cause
from dranet.testbed.apiserver.kinds import (
    EVENTS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
    Kind,
)

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
_QUANTITY = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?")
_CONDITION_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_INT64 = range(-(2**63), 2**63)

_SCALARS = ("int", "bool", "string", "version")
_LISTS = {f"{kind}s": kind for kind in _SCALARS}
_MAX_DEVICES = 128
_MAX_ADVANCED_DEVICES = 64
"""With taints, counters or list attributes."""
_MAX_ATTRIBUTES_AND_CAPACITIES = 32
_MAX_ATTRIBUTE_VALUES = 48
"""Of a device; each item of a list counts."""
_MAX_STATUS_DATA_BYTES = 10 * 1024

Causes = Iterator[Cause]


def validate(kind: Kind, body: JsonObject, before: JsonObject | None) -> list[Cause]:
    """The faults of an object that is about to be stored; ``before`` is ``None`` on creation."""
    causes = list(_validate_metadata(kind, body["metadata"]))
    if kind is RESOURCE_SLICES:
        causes += _validate_slice(body, before)
    elif kind is RESOURCE_CLAIMS:
        causes += _validate_claim(body, before)
    elif kind is EVENTS:
        causes += _validate_event(body)
    return causes


def _validate_metadata(kind: Kind, metadata: JsonObject) -> Causes:
    name = metadata.get("name", "")
    if not _is_subdomain(name):
        yield Cause("metadata.name", f'Invalid value: "{name}": a lowercase RFC 1123 subdomain is required')
    for index, owner in enumerate(metadata.get("ownerReferences") or ()):
        for key in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(key):
                yield Cause(
                    f"metadata.ownerReferences[{index}].{key}", "Required value", "FieldValueRequired"
                )
    if kind.namespaced and not metadata.get("namespace"):
        yield Cause("metadata.namespace", "Required value", "FieldValueRequired")


def _is_subdomain(text: Any) -> bool:
    return isinstance(text, str) and len(text) <= 253 and bool(_DNS_SUBDOMAIN.fullmatch(text))


def _is_label(text: Any) -> bool:
    return isinstance(text, str) and bool(_DNS_LABEL.fullmatch(text))


def _bad(field: str, value: Any, why: str) -> Cause:
    return Cause(field, f"Invalid value: {json.dumps(value)}: {why}")


def _too_many(field: str, count: int, limit: int) -> Cause:
    return Cause(field, f"Too many: {count}: must have at most {limit} items", "FieldValueTooMany")


def _immutable(field: str, value: Any) -> Cause:
    return _bad(field, value, "field is immutable")


# ResourceSlice


def _validate_slice(body: JsonObject, before: JsonObject | None) -> Causes:
    spec = body.get("spec")
    if not isinstance(spec, dict):
        yield Cause("spec", "Required value", "FieldValueRequired")
        return
    driver = spec.get("driver", "")
    if not _is_subdomain(driver) or len(driver) > 63:
        yield _bad("spec.driver", driver, "must be a lower-case DNS subdomain of at most 63 characters")
    yield from _validate_pool(spec.get("pool") or {})
    yield from _validate_node_selection(spec)
    yield from _validate_devices(spec.get("devices") or [])
    if before is not None:
        yield from _validate_slice_update(spec, before["spec"])


def _validate_pool(pool: JsonObject) -> Causes:
    name = pool.get("name", "")
    if len(name) > 253 or not all(_is_subdomain(part) for part in name.split("/")):
        yield _bad("spec.pool.name", name, "must be DNS subdomains separated by slashes")
    if not isinstance(pool.get("generation", 0), int) or pool.get("generation", 0) < 0:
        yield _bad("spec.pool.generation", pool.get("generation"), "must be greater than or equal to zero")
    if not isinstance(pool.get("resourceSliceCount"), int) or pool["resourceSliceCount"] <= 0:
        yield _bad(
            "spec.pool.resourceSliceCount", pool.get("resourceSliceCount"), "must be greater than zero"
        )


def _validate_node_selection(spec: JsonObject) -> Causes:
    chosen = [
        key for key in ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection") if spec.get(key)
    ]
    if len(chosen) != 1:
        why = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
        yield _bad("spec", chosen, why)
    for key in ("allNodes", "perDeviceNodeSelection"):
        if spec.get(key) is False:
            yield _bad(f"spec.{key}", False, "must be either unset or set to true")
    if "nodeName" in spec and not _is_subdomain(spec["nodeName"]):
        yield _bad("spec.nodeName", spec["nodeName"], "a lowercase RFC 1123 subdomain is required")


def _validate_slice_update(spec: JsonObject, before: JsonObject) -> Causes:
    for key in ("driver", "nodeName"):
        if spec.get(key) != before.get(key):
            yield _immutable(f"spec.{key}", spec.get(key))
    if (spec.get("pool") or {}).get("name") != before["pool"].get("name"):
        yield _immutable("spec.pool.name", (spec.get("pool") or {}).get("name"))


def _validate_devices(devices: Sequence[JsonObject]) -> Causes:
    limit = _MAX_ADVANCED_DEVICES if any(_is_advanced(device) for device in devices) else _MAX_DEVICES
    if len(devices) > limit:
        yield _too_many("spec.devices", len(devices), limit)
    seen: set[str] = set()
    for index, device in enumerate(devices):
        name = device.get("name", "")
        field = f"spec.devices[{index}]"
        if not _is_label(name):
            yield _bad(f"{field}.name", name, "a lowercase RFC 1123 label is required")
        if name in seen:
            yield Cause(f"{field}.name", f'Duplicate value: "{name}"', "FieldValueDuplicate")
        seen.add(name)
        yield from _validate_device(field, device)


def _is_advanced(device: JsonObject) -> bool:
    attributes = (device.get("attributes") or {}).values()
    has_lists = any(not _LISTS.keys().isdisjoint(attribute) for attribute in attributes)
    return has_lists or bool(device.get("taints") or device.get("consumesCounters"))


def _validate_device(field: str, device: JsonObject) -> Causes:
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    total = len(attributes) + len(capacity)
    if total > _MAX_ATTRIBUTES_AND_CAPACITIES:
        message = (
            f"the total number of attributes and capacities must not exceed {_MAX_ATTRIBUTES_AND_CAPACITIES}"
        )
        yield _bad(field, total, message)
    values = sum(_count_values(attribute) for attribute in attributes.values())
    if values > _MAX_ATTRIBUTE_VALUES:
        yield _too_many(f"{field}.attributes", values, _MAX_ATTRIBUTE_VALUES)
    for name, attribute in attributes.items():
        yield from _validate_qualified_name(f"{field}.attributes", name)
        yield from _validate_attribute(f"{field}.attributes[{name}]", attribute)
    for name, entry in capacity.items():
        yield from _validate_qualified_name(f"{field}.capacity", name)
        if not _QUANTITY.fullmatch(str(entry.get("value", ""))):
            yield _bad(f"{field}.capacity[{name}].value", entry.get("value"), "must be a quantity")


def _validate_qualified_name(field: str, name: str) -> Causes:
    domain, slash, identifier = name.rpartition("/")
    if slash and (not _is_subdomain(domain) or len(domain) > 63):
        yield _bad(field, name, "the domain must be a DNS subdomain of at most 63 characters")
    if not _C_IDENTIFIER.fullmatch(identifier):
        yield _bad(field, name, "a C identifier of at most 32 characters is required after the domain")


def _count_values(attribute: JsonObject) -> int:
    return sum(len(value) if isinstance(value, list) else 1 for value in attribute.values())


def _validate_attribute(field: str, attribute: JsonObject) -> Causes:
    if len(attribute) != 1 or not set(attribute) <= {*_SCALARS, *_LISTS}:
        yield _bad(field, attribute, "exactly one value must be specified")
        return
    ((kind, value),) = attribute.items()
    if kind in _SCALARS:
        yield from _validate_scalar(f"{field}.{kind}", kind, value)
    elif not isinstance(value, list) or not value:
        yield Cause(f"{field}.{kind}", "Required value: at least one item", "FieldValueRequired")
    else:
        for index, item in enumerate(value):
            yield from _validate_scalar(f"{field}.{kind}[{index}]", _LISTS[kind], item)


def _validate_scalar(field: str, kind: str, value: Any) -> Causes:
    if not _ATTRIBUTE_CHECKS[kind](value):
        yield _bad(field, value, f"not a valid {kind} value")
    if kind in ("string", "version") and len(str(value).encode()) > 64:
        yield Cause(field, "Too long: may not be more than 64 bytes", "FieldValueTooLong")


_ATTRIBUTE_CHECKS: dict[str, Callable[[Any], bool]] = {
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool) and value in _INT64,
    "bool": lambda value: isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "version": lambda value: isinstance(value, str) and bool(_SEMVER.fullmatch(value)),
}


# ResourceClaim


def _validate_claim(body: JsonObject, before: JsonObject | None) -> Causes:
    if before is not None and body.get("spec") != before.get("spec"):
        yield _immutable("spec", "...")
    status = body.get("status") or {}
    old_status = (before or {}).get("status") or {}
    allocation, old_allocation = status.get("allocation"), old_status.get("allocation")
    reserved = status.get("reservedFor") or []
    if allocation and old_allocation and allocation != old_allocation:
        yield _immutable("status.allocation", "...")
    if reserved and not allocation:
        yield Cause(
            "status.reservedFor",
            "Forbidden: may not be specified when `allocated` is not set",
            "FieldValueForbidden",
        )
    if len(reserved) > 256:
        yield _too_many("status.reservedFor", len(reserved), 256)
    yield from _validate_status_devices(status.get("devices") or [], allocation or {})


def _device_key(entry: JsonObject) -> tuple[Any, ...]:
    return tuple(entry.get(key) for key in ("driver", "pool", "device", "shareID"))


def _validate_status_devices(devices: Sequence[JsonObject], allocation: JsonObject) -> Causes:
    results = (allocation.get("devices") or {}).get("results") or []
    allocated = {_device_key(result) for result in results}
    seen: set[tuple[Any, ...]] = set()
    for index, entry in enumerate(devices):
        field = f"status.devices[{index}]"
        key = _device_key(entry)
        if key not in allocated:
            yield _bad(field, list(key), "must be an allocated device in the claim")
        if key in seen:
            yield Cause(field, f"Duplicate value: {json.dumps(key)}", "FieldValueDuplicate")
        seen.add(key)
        yield from _validate_conditions(f"{field}.conditions", entry.get("conditions") or [])
        yield from _validate_status_data(f"{field}.data", entry.get("data"))
        yield from _validate_network_data(f"{field}.networkData", entry.get("networkData") or {})


def _validate_conditions(field: str, conditions: Sequence[JsonObject]) -> Causes:
    if len(conditions) > 8:
        yield _too_many(field, len(conditions), 8)
    for index, condition in enumerate(conditions):
        where = f"{field}[{index}]"
        if condition.get("status") not in ("True", "False", "Unknown"):
            yield _bad(f"{where}.status", condition.get("status"), "must be True, False or Unknown")
        if not _CONDITION_REASON.fullmatch(condition.get("reason", "")):
            yield _bad(f"{where}.reason", condition.get("reason"), "a CamelCase reason is required")
        if not condition.get("type"):
            yield Cause(f"{where}.type", "Required value", "FieldValueRequired")
        if not _RFC3339.fullmatch(str(condition.get("lastTransitionTime", ""))):
            yield Cause(f"{where}.lastTransitionTime", "Required value", "FieldValueRequired")
        if len(condition.get("message", "")) > 32768:
            yield Cause(f"{where}.message", "Too long: may not be more than 32768", "FieldValueTooLong")


def _validate_status_data(field: str, data: Any) -> Causes:
    if data is None:
        return
    if not isinstance(data, dict):
        yield _bad(field, data, "must be a JSON object")
    if len(json.dumps(data, separators=(",", ":"))) > _MAX_STATUS_DATA_BYTES:
        yield Cause(
            field, f"Too long: may not be more than {_MAX_STATUS_DATA_BYTES} bytes", "FieldValueTooLong"
        )


def _validate_network_data(field: str, network: JsonObject) -> Causes:
    for key, limit in (("interfaceName", 256), ("hardwareAddress", 128)):
        if len(network.get(key, "")) > limit:
            yield Cause(
                f"{field}.{key}", f"Too long: may not be more than {limit} bytes", "FieldValueTooLong"
            )
    ips = network.get("ips") or []
    if len(ips) > 16:
        yield _too_many(f"{field}.ips", len(ips), 16)
    for index, address in enumerate(ips):
        if not _is_canonical_interface_address(address):
            yield _bad(f"{field}.ips[{index}]", address, "must be a canonical interface address in CIDR form")
        if address in ips[:index]:
            yield Cause(f"{field}.ips[{index}]", f'Duplicate value: "{address}"', "FieldValueDuplicate")


def _is_canonical_interface_address(text: Any) -> bool:
    try:
        return isinstance(text, str) and "/" in text and ipaddress.ip_interface(text).with_prefixlen == text
    except ValueError:
        return False


# Event


def _validate_event(body: JsonObject) -> Causes:
    namespace = (body.get("involvedObject") or {}).get("namespace", "")
    expected = namespace or "default"
    if body["metadata"].get("namespace") != expected:
        yield _bad("involvedObject.namespace", namespace, "does not match event.namespace")
