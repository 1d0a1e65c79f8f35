"""The driver's settings as values of the chart: a JSON schema for each, from its declaration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dranet.settings import DECLARATIONS, Choice, Declaration, Seconds

Schema = Mapping[str, Any]

_SEEN_TO: Mapping[str, str] = {
    "node_name": "the chart takes it from the downward API",
    "pod_uid": "the chart takes it from the downward API",
    "node_addresses": "the chart takes it from the downward API",
    "ready_file": "the chart sets it, for the readiness probe",
    "procfs_root": "the chart sets it, with the mount that belongs to it",
    "metrics_tls_cert": "metrics.tls.secretName sets it",
    "metrics_tls_key": "metrics.tls.secretName sets it",
    "metrics_client_ca": "metrics.tls.clientCASecretName sets it",
    "metrics_authentication": "metrics.authentication sets it",
    "webhook_ca": "webhook.caSecretName sets it",
    "webhook_client_cert": "webhook.clientSecretName sets it",
    "webhook_client_key": "webhook.clientSecretName sets it",
    "ipam_file": "the chart sets it, for what ipam has",
    "virtual_functions_file": "the chart sets it, for what virtualFunctions has",
    "sysfs_root": "the chart sets it, with the mount that belongs to it",
}
"""Settings that values must not set -> the reason."""

BIND_ADDRESS = (
    r"^(|[A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\]):"
    r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$"
)
"""Checked by a template, whose message explains what does not match."""

_BIT_RATE = (
    "^([1-9][0-9]{0,5}[MGT])?$",
    "write megabits, gigabits or terabits per second, as in 500M or 10G",
)

_PATTERNS: Mapping[str, tuple[str, str]] = {
    "assumed_bandwidth": _BIT_RATE,
    "default_bandwidth": _BIT_RATE,
    "driver_name": (
        r"^[a-z]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        "write a domain name in small letters, as in nic.example.com",
    ),
    "nri_index": ("^[0-9]{2}$", 'write two digits in quotes, as in "10"'),
    "offer_link_kinds": ("^[a-z0-9][a-z0-9_-]{0,14}$", "write kinds of links, as in vxlan"),
}
"""Patterns of texts, or of each text in a list, as the driver checks them, and what is wanted."""

_PATH = "write an absolute path, as in /var/lib/dranet"


def free_settings() -> Iterator[Declaration]:
    """Yield the settings that values may set."""
    return (setting for name, setting in DECLARATIONS.items() if name not in _SEEN_TO)


def refused_settings() -> Mapping[str, str]:
    """Return the settings that values must not set, with the reason."""
    return {name: reason for name, reason in _SEEN_TO.items() if name in DECLARATIONS}


def camel_case(setting: str) -> str:
    """Return the other name of a setting: ``logLevel`` for ``log_level``."""
    first, *rest = setting.split("_")
    return first + "".join(word.capitalize() for word in rest)


def settings_schema() -> Schema:
    """Return the schema of the chart's ``settings``: each under its two names."""
    free = {
        setting.name: {"description": setting.description, **_schema_of(setting)}
        for setting in free_settings()
    }
    camel = {camel_case(name): part for name, part in free.items()}
    return {"type": "object", "additionalProperties": False, "properties": {**free, **camel}}


def _schema_of(setting: Declaration) -> dict[str, Any]:
    match setting.accept:
        case Seconds(lowest, highest):
            return {"type": "number", "minimum": lowest, "maximum": highest}
        case Choice(choices):
            words: list[str | bool] = [choice.value for choice in choices]
            return {"enum": [*words, False] if "off" in words else words}  # a bare `off` is false in YAML
    if setting.name == "bind_address":
        return {"type": ["string", "integer"]}
    schema = _by_default(setting.default)
    if setting.name in _PATTERNS:
        pattern, wanted = _PATTERNS[setting.name]
        text = {"type": "string", "pattern": pattern, "maxLength": 63, "patternErrorMessage": wanted}
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
            return {"type": "string", "pattern": "^/[ -~]+$", "patternErrorMessage": _PATH}
        case None:
            return {"type": "string", "pattern": "^(/[ -~]+)?$", "patternErrorMessage": _PATH}
    return {"type": "string"}
