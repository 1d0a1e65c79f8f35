"""The driver's settings as values of the chart: a schema of what each accepts, made from its declaration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dranet.settings import DECLARATIONS, Declaration, OneOf, Seconds

Schema = Mapping[str, Any]

_SEEN_TO: Mapping[str, str] = {
    "node_name": "the chart takes it from the downward API",
    "pod_uid": "the chart takes it from the downward API",
    "node_addresses": "the chart takes it from the downward API",
    "ready_file": "the chart sets it, for the readiness probe",
    "procfs_root": "the chart sets it, with the mount that belongs to it",
    "metrics_tls_cert": "metrics.tls.secretName sees to it",
    "metrics_tls_key": "metrics.tls.secretName sees to it",
    "metrics_client_ca": "metrics.tls.clientCASecretName sees to it",
    "metrics_authentication": "metrics.authentication sees to it",
    "sysfs_root": "the chart sets it, with the mount that belongs to it",
}
"""Settings that are not a matter of values, and why."""

BIND_ADDRESS = (
    r"^(|[A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\]):"
    r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$"
)
"""A template looks at it, which has a sentence for what does not fit."""

_PATTERNS: Mapping[str, str] = {
    "driver_name": r"^[a-z]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    "nri_index": "^[0-9]{2}$",
    "offer_link_kinds": "^[a-z0-9][a-z0-9_-]{0,14}$",
}
"""Text that has a form, or each text of a list; the driver asks for as much."""


def free_settings() -> Iterator[Declaration]:
    """Those that values may set."""
    return (setting for name, setting in DECLARATIONS.items() if name not in _SEEN_TO)


def refused_settings() -> Mapping[str, str]:
    """Those that they may not, with the reason."""
    return {name: reason for name, reason in _SEEN_TO.items() if name in DECLARATIONS}


def settings_schema() -> Schema:
    """The chart's ``settings``. What the chart sees to is let through here: a template refuses it with a
    reason, where a schema can only say that it is not allowed."""
    free = {
        setting.name: {**_schema_of(setting), "description": setting.description}
        for setting in free_settings()
    }
    refused = {
        name: {"deprecated": True, "description": f"Refused: {reason}."}
        for name, reason in refused_settings().items()
    }
    return {"type": "object", "additionalProperties": False, "properties": {**free, **refused}}


def _schema_of(setting: Declaration) -> dict[str, Any]:
    match setting.accept:
        case Seconds(lowest, highest):
            return {"type": "number", "minimum": lowest, "maximum": highest}
        case OneOf(choices):
            words: list[str | bool] = [choice.value for choice in choices]
            return {"enum": [*words, False] if "off" in words else words}  # a bare `off` is false in YAML
    if setting.name == "bind_address":
        return {"type": ["string", "integer"]}
    schema = _by_default(setting.default)
    if pattern := _PATTERNS.get(setting.name):
        text = {"type": "string", "pattern": pattern, "maxLength": 63}
        return {**schema, "items": text} if "items" in schema else text
    return schema


def _by_default(default: object) -> dict[str, Any]:
    match default:
        case bool():
            return {"type": "boolean"}
        case tuple():
            items = _by_default(default[0]) if default else {"type": "string", "minLength": 1}
            return {"type": "array", "items": items}
        case int():
            return {"type": "integer"}
        case float():
            return {"type": "number"}
        case Path():
            return {"type": "string", "pattern": "^/[ -~]+$"}
        case None:
            return {"type": "string", "pattern": "^(/[ -~]+)?$"}
    return {"type": "string"}
