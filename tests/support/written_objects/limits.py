"""Our own table of the API's limits: what schemas do not say (``resource.k8s.io/v1``, ``core/v1`` Event).

Written apart from the stand-in's validation and from the driver's code, and read as a table: where, and what
must be true of everything that is there."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.support.written_objects.schemas import find_values

JsonObject = dict[str, Any]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_ATTRIBUTE = re.compile(rf"((?=[^/]{{1,63}}/){_SUBDOMAIN.pattern}/)?[A-Za-z_][A-Za-z0-9_]{{0,31}}")
_SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
_QUANTITY = re.compile(r"[+-]?\d+(\.\d+)?([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?")
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_LABEL_KEY = re.compile(
    rf"((?=[^/]{{1,253}}/){_SUBDOMAIN.pattern}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_POOL = re.compile(rf"{_SUBDOMAIN.pattern}(/{_SUBDOMAIN.pattern})*")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_TIME_OF_MICROSECONDS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
_LISTS = frozenset({"ints", "bools", "strings", "versions"})


@dataclass(frozen=True, slots=True)
class Limit:
    """``holds`` must be true of every value at ``path``; ``text`` says what."""

    kind: str
    path: str
    text: str
    holds: Callable[[Any], bool]


def _at_most(count: int) -> Callable[[Any], bool]:
    return lambda value: len(value) <= count


def _bytes(count: int) -> Callable[[Any], bool]:
    return lambda value: len(value.encode()) <= count


def _is(pattern: re.Pattern[str], characters: int = 253) -> Callable[[Any], bool]:
    return lambda value: len(value) <= characters and bool(pattern.fullmatch(value))


def _is_advanced(device: JsonObject) -> bool:
    lists = any(not _LISTS.isdisjoint(attribute) for attribute in (device.get("attributes") or {}).values())
    return lists or bool(device.get("taints") or device.get("consumesCounters"))


def _has_room(devices: list[JsonObject]) -> bool:
    return len(devices) <= (64 if any(map(_is_advanced, devices)) else 128)


def _count_values(attributes: JsonObject) -> int:
    values = [value for attribute in attributes.values() for value in attribute.values()]
    return sum(len(value) if isinstance(value, list) else 1 for value in values)


def _has_one_value(attribute: JsonObject) -> bool:
    (value,) = attribute.values() if len(attribute) == 1 else (None,)
    return value is not None and value != []


def _is_canonical(address: str) -> bool:
    return "/" in address and ipaddress.ip_interface(address).with_prefixlen == address


def _json_bytes(count: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and len(json.dumps(value).encode()) <= count


def _are_different(*keys: str) -> Callable[[Any], bool]:
    return lambda entries: len({tuple(map(entry.get, keys)) for entry in entries}) == len(entries)


def _has_both_conditions_or_none(device: JsonObject) -> bool:
    wanted, failed = (set(device.get(key) or ()) for key in ("bindingConditions", "bindingFailureConditions"))
    return bool(wanted) == bool(failed) and wanted.isdisjoint(failed)


def _chooses_nodes_once(spec: JsonObject) -> bool:
    return sum(key in spec for key in ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")) == 1


_DEVICE = "spec.devices.[]"
_ENTRY = "status.devices.[]"
_CONDITION = f"{_ENTRY}.conditions.[]"


def _rows(kind: str, *rows: tuple[str, str, Callable[[Any], bool]]) -> list[Limit]:
    return [Limit(kind, path, text, holds) for path, text, holds in rows]


LIMITS = (
    *_rows(
        "",  # of every kind
        ("metadata.labels", "keys of labels", lambda labels: all(map(_LABEL_KEY.fullmatch, labels))),
        ("metadata.labels.{}", "a label's value", _is(_LABEL_VALUE, 63)),
    ),
    *_rows(
        "ResourceSlice",
        ("spec.driver", "a subdomain of at most 63 characters", _is(_SUBDOMAIN, 63)),
        ("spec.pool.name", "subdomains of at most 253 characters", _is(_POOL)),
        ("spec.nodeName", "a subdomain", _is(_SUBDOMAIN)),
        ("spec.pool.generation", "not negative", lambda value: value >= 0),
        ("spec.pool.resourceSliceCount", "positive", lambda value: value > 0),
        ("spec", "exactly one choice of nodes", _chooses_nodes_once),
        ("spec", "either counters or devices", lambda s: not (s.get("sharedCounters") and s.get("devices"))),
        ("spec.devices", "at most 128, with taints, counters or lists 64", _has_room),
        ("spec.devices", "each name once", _are_different("name")),
        (f"{_DEVICE}.name", "a label of at most 63 characters", _is(_LABEL, 63)),
        (
            _DEVICE,
            "at most 32 attributes and capacities",
            lambda device: len(device.get("attributes", ())) + len(device.get("capacity", ())) <= 32,
        ),
        (f"{_DEVICE}.attributes", "at most 48 values", lambda value: _count_values(value) <= 48),
        (f"{_DEVICE}.attributes", "qualified names", lambda value: all(map(_ATTRIBUTE.fullmatch, value))),
        (f"{_DEVICE}.capacity", "qualified names", lambda value: all(map(_ATTRIBUTE.fullmatch, value))),
        (f"{_DEVICE}.attributes.{{}}", "exactly one value", _has_one_value),
        (f"{_DEVICE}.attributes.{{}}.int", "of 64 bits", lambda value: -(2**63) <= value < 2**63),
        (f"{_DEVICE}.attributes.{{}}.string", "at most 64 bytes", _bytes(64)),
        (f"{_DEVICE}.attributes.{{}}.strings.[]", "at most 64 bytes", _bytes(64)),
        (f"{_DEVICE}.attributes.{{}}.version", "a semantic version of at most 64 bytes", _is(_SEMVER, 64)),
        (f"{_DEVICE}.attributes.{{}}.versions.[]", "a semantic version", _is(_SEMVER, 64)),
        (f"{_DEVICE}.capacity.{{}}.value", "a quantity", lambda value: bool(_QUANTITY.fullmatch(str(value)))),
        (f"{_DEVICE}.taints", "at most 16", _at_most(16)),
        (f"{_DEVICE}.taints.[].key", "a label's key", _is(_LABEL_KEY, 317)),
        (f"{_DEVICE}.taints.[].value", "a label's value", _is(_LABEL_VALUE, 63)),
        (
            f"{_DEVICE}.taints.[].effect",
            "a known effect",
            lambda value: value in ("None", "NoSchedule", "NoExecute"),
        ),
        (f"{_DEVICE}.taints.[].timeAdded", "a time", _is(_TIME)),
        (_DEVICE, "with binding conditions of both kinds or none", _has_both_conditions_or_none),
        (f"{_DEVICE}.bindingConditions", "at most 4", _at_most(4)),
        (f"{_DEVICE}.bindingFailureConditions", "at most 4", _at_most(4)),
        (f"{_DEVICE}.consumesCounters", "at most 2", _at_most(2)),
        ("spec.sharedCounters", "at most 8", _at_most(8)),
    ),
    *_rows(
        "ResourceClaim",
        ("status.devices", "each device once", _are_different("driver", "pool", "device", "shareID")),
        (f"{_ENTRY}.shareID", "a uid in its normal form", _is(_UID)),
        (f"{_ENTRY}.conditions", "at most 8", _at_most(8)),
        (f"{_ENTRY}.conditions", "each type once", _are_different("type")),
        (f"{_CONDITION}.type", "a qualified name", _is(_LABEL_KEY, 316)),
        (f"{_CONDITION}.reason", "CamelCase of at most 1024 characters", _is(_REASON, 1024)),
        (f"{_CONDITION}.message", "at most 32768 characters", _at_most(32768)),
        (f"{_CONDITION}.lastTransitionTime", "a time", _is(_TIME)),
        (f"{_CONDITION}.status", "True, False or Unknown", lambda s: s in ("True", "False", "Unknown")),
        (f"{_ENTRY}.data", "an object of at most 10 KiB", _json_bytes(10 * 1024)),
        (f"{_ENTRY}.networkData.interfaceName", "at most 256 bytes", _bytes(256)),
        (f"{_ENTRY}.networkData.hardwareAddress", "at most 128 bytes", _bytes(128)),
        (f"{_ENTRY}.networkData.ips", "at most 16, each once", lambda ips: len(set(ips)) == len(ips) <= 16),
        (f"{_ENTRY}.networkData.ips.[]", "a canonical interface address", _is_canonical),
    ),
    *_rows(
        "Event",
        ("metadata.name", "a subdomain of at most 253 characters", _is(_SUBDOMAIN)),
        ("message", "at most 1024 bytes", _bytes(1024)),
        ("reason", "at most 128 characters", _at_most(128)),
        ("firstTimestamp", "a time", _is(_TIME)),
        ("lastTimestamp", "a time", _is(_TIME)),
        ("eventTime", "a time with microseconds", _is(_TIME_OF_MICROSECONDS)),
        ("type", "Normal or Warning", lambda value: value in ("Normal", "Warning")),
        ("reportingInstance", "at most 128 characters", _at_most(128)),
    ),
)


def find_limit_faults(body: JsonObject) -> list[str]:
    """What the table has against an object."""
    return [
        f"{limit.kind} {limit.path}: must be {limit.text}: {json.dumps(value)[:200]}"
        for limit in LIMITS
        if limit.kind in (body["kind"], "")
        for value in find_values(body, limit.path)
        if not _holds(limit, value)
    ]


def _holds(limit: Limit, value: object) -> bool:
    """A value that cannot even be looked at is no better than one that is wrong."""
    try:
        return limit.holds(value)
    except (ValueError, TypeError, KeyError, AttributeError):
        return False
