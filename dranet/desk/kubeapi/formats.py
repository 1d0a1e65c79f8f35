"""The formats and limits that validation speaks of, and the causes that it gives."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from dranet.desk.kubeapi.errors import Cause
from dranet.desk.kubeapi.objects import JsonObject

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_IDENTIFIER = r"(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_SEMVER = re.compile(
    rf"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-{_IDENTIFIER}(\.{_IDENTIFIER})*)?"
    r"(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
)
_LABEL_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_CONDITION_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Causes = Iterator[Cause]


def is_subdomain(text: Any) -> bool:
    return isinstance(text, str) and len(text) <= 253 and bool(_DNS_SUBDOMAIN.fullmatch(text))


def is_label(text: Any) -> bool:
    """A DNS label."""
    return isinstance(text, str) and bool(_DNS_LABEL.fullmatch(text))


def is_driver_name(text: Any) -> bool:
    return is_subdomain(text) and len(text) <= 63


def is_pool_name(text: Any) -> bool:
    return isinstance(text, str) and len(text) <= 253 and all(is_subdomain(part) for part in text.split("/"))


def is_c_identifier(text: str) -> bool:
    return bool(_C_IDENTIFIER.fullmatch(text))


def is_version(text: Any) -> bool:
    return isinstance(text, str) and bool(_SEMVER.fullmatch(text))


def is_label_key(text: Any) -> bool:
    """The key of a label: a name, perhaps behind a domain and a slash."""
    if not isinstance(text, str):
        return False
    domain, slash, name = text.rpartition("/")
    return bool(_LABEL_PART.fullmatch(name)) and (not slash or is_subdomain(domain))


def is_label_value(text: Any) -> bool:
    return isinstance(text, str) and (not text or bool(_LABEL_PART.fullmatch(text)))


def is_uid(text: Any) -> bool:
    """RFC 4122 in its normal form."""
    return isinstance(text, str) and bool(_UID.fullmatch(text))


def is_time(text: Any) -> bool:
    return isinstance(text, str) and bool(_RFC3339.fullmatch(text))


def is_interface_address(text: Any) -> bool:
    """An address with its prefix length, host bits kept, in canonical form."""
    try:
        return isinstance(text, str) and "/" in text and ipaddress.ip_interface(text).with_prefixlen == text
    except ValueError:
        return False


def bad(field: str, value: Any, why: str) -> Cause:
    return Cause(field, f"Invalid value: {json.dumps(value)}: {why}")


def required(field: str, why: str = "") -> Cause:
    return Cause(field, f"Required value: {why}" if why else "Required value", "FieldValueRequired")


def forbidden(field: str, why: str) -> Cause:
    return Cause(field, f"Forbidden: {why}", "FieldValueForbidden")


def duplicate(field: str, value: Any) -> Cause:
    return Cause(field, f"Duplicate value: {json.dumps(value)}", "FieldValueDuplicate")


def unsupported(field: str, value: Any, known: Sequence[str]) -> Cause:
    names = ", ".join(json.dumps(name) for name in known)
    return Cause(
        field, f"Unsupported value: {json.dumps(value)}: supported values: {names}", "FieldValueNotSupported"
    )


def too_many(field: str, count: int, limit: int) -> Cause:
    return Cause(field, f"Too many: {count}: must have at most {limit} items", "FieldValueTooMany")


def too_long(field: str, limit: int) -> Cause:
    return Cause(field, f"Too long: may not be more than {limit} bytes", "FieldValueTooLong")


def immutable(field: str, value: Any) -> Cause:
    return bad(field, value, "field is immutable")


def check_count(field: str, items: Sequence[object], limit: int) -> Causes:
    if len(items) > limit:
        yield too_many(field, len(items), limit)


def check_raw_object(field: str, data: Any, limit: int) -> Causes:
    """A JSON object of any content, at most ``limit`` bytes."""
    if data is None:
        return
    if not isinstance(data, dict):
        yield bad(field, data, "must be a valid JSON object")
    if len(json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()) > limit:
        yield too_long(field, limit)


def check_conditions(field: str, conditions: Sequence[JsonObject], limit: int) -> Causes:
    """``metav1.Condition``, one of each type."""
    yield from check_count(field, conditions, limit)
    seen: set[str] = set()
    for index, condition in enumerate(conditions):
        where = f"{field}[{index}]"
        if condition.get("status") not in ("True", "False", "Unknown"):
            yield unsupported(f"{where}.status", condition.get("status"), ("True", "False", "Unknown"))
        reason = condition.get("reason", "")
        if not _CONDITION_REASON.fullmatch(reason) or len(reason) > 1024:
            yield bad(f"{where}.reason", reason, "a CamelCase reason of at most 1024 characters is required")
        if not is_label_key(condition.get("type")):
            yield bad(f"{where}.type", condition.get("type"), "must be a qualified name")
        elif condition["type"] in seen:
            yield duplicate(f"{where}.type", condition["type"])
        seen.add(str(condition.get("type")))
        if not is_time(condition.get("lastTransitionTime")):
            yield required(f"{where}.lastTransitionTime")
        if len(condition.get("message", "")) > 32768:
            yield too_long(f"{where}.message", 32768)


def check_toleration(field: str, toleration: JsonObject, effects: Sequence[str]) -> Causes:
    """``DeviceToleration``."""
    if toleration.get("key") and not is_label_key(toleration["key"]):
        yield bad(f"{field}.key", toleration["key"], "must be a label key")
    operator = toleration.get("operator", "Equal")
    if operator not in ("Equal", "Exists"):
        yield unsupported(f"{field}.operator", operator, ("Equal", "Exists"))
    if operator == "Exists" and toleration.get("value"):
        yield bad(f"{field}.value", toleration["value"], "must be empty for operator `Exists`")
    if toleration.get("effect") and toleration["effect"] not in effects:
        yield unsupported(f"{field}.effect", toleration["effect"], effects)


def check_taint(field: str, taint: JsonObject, effects: Sequence[str]) -> Causes:
    """``DeviceTaint``."""
    if not is_label_key(taint.get("key")):
        yield bad(f"{field}.key", taint.get("key"), "must be a label key")
    if not is_label_value(taint.get("value", "")):
        yield bad(f"{field}.value", taint.get("value"), "must be a label value")
    if not taint.get("effect"):
        yield required(f"{field}.effect")
    elif taint["effect"] not in effects:
        yield unsupported(f"{field}.effect", taint["effect"], effects)
    if "timeAdded" in taint and not is_time(taint["timeAdded"]):
        yield bad(f"{field}.timeAdded", taint["timeAdded"], "must be a time")
