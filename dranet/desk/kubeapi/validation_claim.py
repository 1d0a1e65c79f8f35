"""Validation of a ResourceClaim, its template and a DeviceClass (``pkg/apis/resource/validation``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dranet.desk.kubeapi.formats import (
    Causes,
    bad,
    check_conditions,
    check_count,
    check_raw_object,
    check_toleration,
    duplicate,
    forbidden,
    immutable,
    is_c_identifier,
    is_driver_name,
    is_interface_address,
    is_label,
    is_pool_name,
    is_subdomain,
    is_uid,
    required,
    too_long,
    unsupported,
)
from dranet.desk.kubeapi.objects import MAX_ALTERNATIVES, MAX_ENTRIES, JsonObject
from dranet.desk.kubeapi.profiles import Profile

_MAX_TOLERATIONS = 16
_MAX_ALLOCATION_CONFIGS = 64
_MAX_RESERVATIONS = 256
_CONFIG_SOURCES = ("FromClass", "FromClaim")
_MAX_CONDITIONS = 8
_MAX_IPS = 16
_MAX_RAW_BYTES = 10 * 1024
_MAX_EXPRESSION_BYTES = 10 * 1024


def validate_claim(body: JsonObject, before: JsonObject | None, profile: Profile) -> Causes:
    """The faults of a claim; ``before`` is what it was, ``None`` on creation."""
    if before is None:
        yield from validate_claim_spec("spec", body.get("spec") or {}, profile)
    elif body.get("spec") != before.get("spec"):
        yield immutable("spec", "...")
    status, old_status = body.get("status") or {}, (before or {}).get("status") or {}
    allocation, old_allocation = status.get("allocation"), old_status.get("allocation")
    reserved = status.get("reservedFor") or []
    if allocation and old_allocation and allocation != old_allocation:
        yield immutable("status.allocation", "...")
    if reserved and not allocation:
        yield forbidden("status.reservedFor", "may not be specified when `allocated` is not set")
    yield from _validate_reservations(reserved, old_status.get("reservedFor") or [], body["metadata"])
    if allocation and not old_allocation:
        yield from _validate_allocation(allocation, _gather_names(body.get("spec") or {}))
    yield from _validate_status_devices(status.get("devices") or [], allocation or {})


def validate_claim_spec(field: str, spec: JsonObject, profile: Profile) -> Causes:
    """The spec of a claim, or of the claim that a template makes."""
    devices = spec.get("devices") or {}
    for key in ("requests", "constraints", "config"):
        yield from check_count(f"{field}.devices.{key}", devices.get(key) or [], MAX_ENTRIES)
    names: list[str] = []
    for index, request in enumerate(devices.get("requests") or ()):
        where = f"{field}.devices.requests[{index}]"
        if not is_label(request.get("name")):
            yield bad(f"{where}.name", request.get("name"), "a lowercase RFC 1123 label is required")
        if request.get("name") in names:
            yield duplicate(where, request.get("name"))
        names.append(request.get("name"))
        yield from _validate_request(where, request, profile)
    known = _gather_names(spec)
    for index, constraint in enumerate(devices.get("constraints") or ()):
        yield from _validate_constraint(f"{field}.devices.constraints[{index}]", constraint, known)
    for index, config in enumerate(devices.get("config") or ()):
        where = f"{field}.devices.config[{index}]"
        yield from _validate_references(f"{where}.requests", config.get("requests") or [], known)
        yield from _validate_opaque(f"{where}.opaque", config.get("opaque"))


def _gather_names(spec: JsonObject) -> frozenset[str]:
    """By which a request can be referred to: its own name, and with each of its alternatives."""
    requests = (spec.get("devices") or {}).get("requests") or ()
    names = {str(request.get("name")) for request in requests}
    for request in requests:
        names |= {f"{request.get('name')}/{one.get('name')}" for one in request.get("firstAvailable") or ()}
    return frozenset(names)


def _validate_constraint(field: str, constraint: JsonObject, known: frozenset[str]) -> Causes:
    yield from _validate_references(f"{field}.requests", constraint.get("requests") or [], known)
    chosen = [key for key in ("matchAttribute", "distinctAttribute") if constraint.get(key)]
    if len(chosen) != 1:
        yield required(field, "exactly one of `matchAttribute` or `distinctAttribute` is required")
        return
    domain, slash, name = str(constraint[chosen[0]]).partition("/")
    if not slash or not is_driver_name(domain) or not is_c_identifier(name):
        why = "a fully qualified name must be a domain and a name separated by a slash"
        yield bad(f"{field}.{chosen[0]}", constraint[chosen[0]], why)


def _validate_references(field: str, names: Sequence[str], known: frozenset[str]) -> Causes:
    yield from check_count(field, names, MAX_ENTRIES)
    for index, name in enumerate(names):
        if name not in known:
            yield bad(f"{field}[{index}]", name, "must be the name of a request in the claim")
        if name in names[:index]:
            yield duplicate(f"{field}[{index}]", name)


def _validate_reservations(
    reserved: Sequence[JsonObject], before: Sequence[JsonObject], metadata: JsonObject
) -> Causes:
    field = "status.reservedFor"
    if len(reserved) > _MAX_RESERVATIONS:
        yield from check_count(field, reserved, _MAX_RESERVATIONS)
        return
    uids = [consumer.get("uid") for consumer in reserved]
    for index, consumer in enumerate(reserved):
        for key in ("resource", "name", "uid"):
            if not consumer.get(key):
                yield required(f"{field}[{index}].{key}")
        if consumer.get("uid") in uids[:index]:
            yield duplicate(f"{field}[{index}]", consumer.get("uid"))
    if metadata.get("deletionTimestamp") and any(consumer not in before for consumer in reserved):
        yield forbidden(field, "new entries may not be added while `deletionTimestamp` is set")


def _validate_request(field: str, request: JsonObject, profile: Profile) -> Causes:
    exactly, alternatives = request.get("exactly"), request.get("firstAvailable") or []
    if (exactly is None) == (not alternatives):
        yield required(field, "exactly one of `exactly` or `firstAvailable` is required")
    yield from check_count(f"{field}.firstAvailable", alternatives, MAX_ALTERNATIVES)
    if exactly is not None:
        yield from _validate_demand(f"{field}.exactly", exactly, profile)
    names = [alternative.get("name") for alternative in alternatives]
    for index, alternative in enumerate(alternatives):
        where = f"{field}.firstAvailable[{index}]"
        if alternative.get("name") in names[:index]:
            yield duplicate(where, alternative.get("name"))
        if not is_label(alternative.get("name")):
            yield bad(f"{where}.name", alternative.get("name"), "a lowercase RFC 1123 label is required")
        yield from _validate_demand(where, alternative, profile)


def _validate_demand(field: str, demand: JsonObject, profile: Profile) -> Causes:
    if not is_subdomain(demand.get("deviceClassName")):
        yield required(f"{field}.deviceClassName")
    mode = demand.get("allocationMode", "ExactCount")
    if mode not in ("All", "ExactCount"):
        yield unsupported(f"{field}.allocationMode", mode, ("All", "ExactCount"))
    if mode == "ExactCount" and demand.get("count", 1) <= 0:
        yield bad(f"{field}.count", demand["count"], "must be greater than zero")
    if mode == "All" and demand.get("count"):
        yield bad(f"{field}.count", demand["count"], "must not be specified when allocationMode is 'All'")
    yield from _validate_selectors(f"{field}.selectors", demand.get("selectors") or [])
    tolerations = demand.get("tolerations") or []
    yield from check_count(f"{field}.tolerations", tolerations, _MAX_TOLERATIONS)
    for index, toleration in enumerate(tolerations):
        yield from check_toleration(f"{field}.tolerations[{index}]", toleration, profile.taint_effects)


def _validate_selectors(field: str, selectors: Sequence[JsonObject]) -> Causes:
    yield from check_count(field, selectors, MAX_ENTRIES)
    for index, selector in enumerate(selectors):
        expression = (selector.get("cel") or {}).get("expression")
        if not expression:
            yield required(f"{field}[{index}].cel.expression")
        elif len(expression.encode()) > _MAX_EXPRESSION_BYTES:
            yield too_long(f"{field}[{index}].cel.expression", _MAX_EXPRESSION_BYTES)


def _validate_opaque(field: str, opaque: Any) -> Causes:
    if not isinstance(opaque, dict):
        yield required(field)
        return
    if not is_driver_name(opaque.get("driver")):
        yield bad(f"{field}.driver", opaque.get("driver"), "must be a driver's name")
    if not isinstance(opaque.get("parameters"), dict):
        yield required(f"{field}.parameters", "must be a JSON object")
    yield from check_raw_object(f"{field}.parameters", opaque.get("parameters"), _MAX_RAW_BYTES)


def validate_class(body: JsonObject) -> Causes:
    """A DeviceClass."""
    spec = body.get("spec") or {}
    yield from _validate_selectors("spec.selectors", spec.get("selectors") or [])
    yield from check_count("spec.config", spec.get("config") or [], MAX_ENTRIES)
    for index, config in enumerate(spec.get("config") or ()):
        yield from _validate_opaque(f"spec.config[{index}].opaque", config.get("opaque"))


def _validate_allocation(allocation: JsonObject, known: frozenset[str]) -> Causes:
    devices = allocation.get("devices") or {}
    field = "status.allocation.devices"
    yield from check_count(f"{field}.results", devices.get("results") or [], MAX_ENTRIES)
    yield from check_count(f"{field}.config", devices.get("config") or [], _MAX_ALLOCATION_CONFIGS)
    for index, config in enumerate(devices.get("config") or ()):
        if config.get("source") not in _CONFIG_SOURCES:
            yield unsupported(f"{field}.config[{index}].source", config.get("source"), _CONFIG_SOURCES)
        yield from _validate_references(
            f"{field}.config[{index}].requests", config.get("requests") or [], known
        )
        yield from _validate_opaque(f"{field}.config[{index}].opaque", config.get("opaque"))
    for index, result in enumerate(devices.get("results") or ()):
        if result.get("request") not in known:
            why = "must be the name of a request in the claim"
            yield bad(f"{field}.results[{index}].request", result.get("request"), why)
        yield from _validate_device_id(f"{field}.results[{index}]", result)


def _validate_device_id(field: str, entry: JsonObject) -> Causes:
    if not is_driver_name(entry.get("driver")):
        yield bad(f"{field}.driver", entry.get("driver"), "must be a driver's name")
    if not is_pool_name(entry.get("pool", "")):
        yield bad(f"{field}.pool", entry.get("pool"), "must be DNS subdomains separated by slashes")
    if not is_label(entry.get("device")):
        yield bad(f"{field}.device", entry.get("device"), "a lowercase RFC 1123 label is required")
    if "shareID" in entry and not is_uid(entry["shareID"]):
        yield bad(f"{field}.shareID", entry["shareID"], "uid must be in RFC 4122 normalized form")


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
            yield bad(field, list(key), "must be an allocated device in the claim")
        if key in seen:
            yield duplicate(field, key)
        seen.add(key)
        yield from _validate_device_id(field, entry)
        yield from check_conditions(f"{field}.conditions", entry.get("conditions") or [], _MAX_CONDITIONS)
        yield from check_raw_object(f"{field}.data", entry.get("data"), _MAX_RAW_BYTES)
        yield from _validate_network_data(f"{field}.networkData", entry.get("networkData") or {})


def _validate_network_data(field: str, network: JsonObject) -> Causes:
    for key, limit in (("interfaceName", 256), ("hardwareAddress", 128)):
        if len(network.get(key, "").encode()) > limit:
            yield too_long(f"{field}.{key}", limit)
    ips = network.get("ips") or []
    yield from check_count(f"{field}.ips", ips, _MAX_IPS)
    for index, address in enumerate(ips):
        if not is_interface_address(address):
            yield bad(f"{field}.ips[{index}]", address, "must be a canonical interface address in CIDR form")
        if address in ips[:index]:
            yield duplicate(f"{field}.ips[{index}]", address)
