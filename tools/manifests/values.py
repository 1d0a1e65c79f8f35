"""The values of the Helm chart, read from ``charts/dranet/values.yaml``: key, default, comment and schema.

The comment above a key is its help. A line ``# @schema {...}`` below the help adds to the JSON schema that
the default implies; ``$ref`` names a definition in ``definitions.yaml``. Comments about settings,
capabilities and mounts repeat what the code declares: ``refresh_comments`` writes them.
"""

from __future__ import annotations

import json
import re
import string
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from dranet.security.context import CAPABILITIES, MOUNTS, HostMount
from tools.manifests.chart_settings import free_settings, refused_settings, settings_schema
from tools.manifests.tenant_policy import PATHS

Schema = Mapping[str, Any]

FILE = Path(__file__).parents[2] / "charts/dranet/values.yaml"

FORMER: Mapping[str, str] = {
    "args.filter": "settings.filter (the same expressions work)",
    "args.dbPath": "settings.state_dir (a folder on the node's disk; it survives a reboot)",
    "args.inventoryMinPollInterval": "not needed: changes of the node trigger a scan at once",
    "args.inventoryMaxPollInterval": "settings.rescan_seconds",
    "args.inventoryPollBurst": "not needed: changes of the node trigger a scan at once",
    "args.moveIBInterfaces": "settings.move_ib_interfaces",
    "args.cloudProviderHint": "settings.cloud_provider (the same names, in any case; NONE is off)",
    "args.cloudProviderOptions": "settings.cloud_provider (the driver asks the cloud itself)",
    "args.uplinkInterfaces": "settings.filter (the node's uplink is never offered)",
    "args.profileProvider": "settings.profile_provider",
    "args.webhookURL": "settings.webhook_url (the same provider works)",
    "args.featureGates": "settings.list_attributes",
    "kubeletRootDir": "settings.kubelet_root",
    "logVerbosity": "settings.log_level",
    "metricsPath": "not needed: the probes know their path",
    "metricsPort": 'settings.bind_address (":9177")',
}
"""Value of DraNet's chart -> its replacement here."""

_RENAMED: Mapping[str, str] = {
    "monitoring": "podMonitor, serviceMonitor, prometheusRule and dashboards",
    "probes": "startupProbe, readinessProbe and livenessProbe",
    "monitoring.podMonitor": "podMonitor (labels is podMonitor.additionalLabels)",
    "monitoring.rules": "prometheusRule (labels is prometheusRule.additionalLabels)",
    "monitoring.dashboard": "dashboards",
    "probes.startup": "startupProbe",
    "probes.readiness": "readinessProbe",
    "probes.liveness": "livenessProbe",
}
"""Earlier name of a value -> its name."""

_ONE_EACH = "a DaemonSet runs one driver on each node, and nodeSelector selects nodes"
_USUAL_ELSEWHERE: Mapping[str, str] = {
    name: f"is not a value of this chart: {instead}"
    for name, instead in {
        "autoscaling": _ONE_EACH,
        "env": "write extraEnv",
        "extraArgs": "settings has what the flags set (docs/reference/settings.md)",
        "hostNetwork": "the driver always uses the node's network, where its NICs are",
        "ingress": "the driver serves only metrics, which podMonitor or serviceMonitor scrapes",
        "initContainers": "the chart's own writes the seccomp profile (securityContext.seccomp)",
        "namespaceOverride": "the namespace is that of the release (helm --namespace)",
        "podSecurityContext": "securityContext has what can be set",
        "replicaCount": _ONE_EACH,
        "metrics.port": 'settings.bind_address has the port (":9177")',
        "metrics.serviceMonitor": "write serviceMonitor, without metrics",
        "service": "serviceMonitor.enabled adds a headless Service for Prometheus",
        "volumes": "write extraVolumes",
        "volumeMounts": "write extraVolumeMounts",
    }.items()
}
"""Values that many charts have -> what to do here."""

_MAY_BE_NULL = frozenset(
    {
        "nodeSelector",
        "priorityClassName",
        "resources",
        "securityContext.seLinuxType",
        "deviceClasses.rdma.parameters",
        "deviceClasses.rdmaOnly.parameters",
        "dashboards.labels",
    }
)
"""Values with a default that an administrator may remove with null."""

_SHARED = ("global",)
"""Values that may have keys which are for other charts."""

_ALWAYS_READ = ("settings", "attributes", "deviceClasses.extra", "admissionPolicies.")
"""Values that are empty by default and that templates read all the same."""

_WIDTH = 110
_KEY = re.compile(r"( *)([A-Za-z]\w*):(.*)")
_SECTION = re.compile(r"# ---- (.*?) -+")
_QUANTITY = re.compile(r"[0-9]+(m|Mi|Gi)")
_TYPES = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
_SETTINGS_HEAD = "# All with their defaults:\n"


class Value(Struct, frozen=True):
    """One key of ``values.yaml``: a leaf with ``schema`` and ``default``, or an object of ``parts``."""

    name: str
    help: str
    schema: Schema
    default: Any = None
    parts: tuple[Value, ...] = ()
    example: str = ""
    """YAML from the comment, which a reader may copy."""
    section: str = ""
    """The heading above it."""

    @property
    def is_object(self) -> bool:
        return bool(self.parts)


def walk(values: Sequence[Value], prefix: str = "") -> Iterator[tuple[str, Value]]:
    """Yield every value with its dotted path, parents first."""
    for value in values:
        path = f"{prefix}{value.name}"
        yield path, value
        yield from walk(value.parts, f"{path}.")


@cache
def list_values() -> tuple[Value, ...]:
    """Return the values in the order of the file."""
    text = FILE.read_text()
    return tuple(_read(dict(_iter_comments(text)), yaml.safe_load(text), ""))


def _iter_comments(text: str) -> Iterator[tuple[str, tuple[str, list[str], bool]]]:
    """Yield each dotted path with its section, the comment above it, and whether its value is below it."""
    steps: list[str] = []
    section, comment = "", list[str]()
    for line in text.splitlines():
        heading, key = _SECTION.fullmatch(line), _KEY.fullmatch(line)
        if heading:
            section = heading[1]
        elif line.lstrip().startswith("#"):
            comment.append(line.lstrip()[1:].removeprefix(" "))
            continue
        elif key:
            steps = [*steps[: len(key[1]) // 2], key[2]]
            yield ".".join(steps), (section, comment, not key[3])
            section = ""
        comment = []


def _read(
    comments: Mapping[str, tuple[str, list[str], bool]], defaults: Mapping[str, Any], prefix: str
) -> Iterator[Value]:
    for name, default in defaults.items():
        section, comment, is_block = comments[f"{prefix}{name}"]
        annotated = _read_annotation(comment)
        about, example = _read_help(comment)
        if is_block and isinstance(default, dict):
            parts = tuple(_read(comments, default, f"{prefix}{name}."))
        else:
            parts = tuple(_iter_inline_parts(annotated, default))
        kind = {} if default is None else {"type": _TYPES[type(default)]}
        schema = annotated if "$ref" in annotated else {**kind, **annotated}
        yield Value(name, about, {} if parts else schema, default, parts, example, section)


def _read_annotation(comment: Sequence[str]) -> Schema:
    written = [line.removeprefix("@schema ") for line in comment if line.startswith("@schema ")]
    return _resolve(yaml.safe_load(written[0])) if written else {}


def _read_help(comment: Sequence[str]) -> tuple[str, str]:
    """The help with a line for each paragraph and list item, and the example below it."""
    lines: list[str] = []
    example: list[str] = []
    for line in comment:
        if line.startswith("@schema ") or line == _SETTINGS_HEAD.strip("# \n"):
            break
        if line.startswith("  ") and not (lines and lines[-1].startswith("- ")):
            example.append(line.removeprefix("  "))
        elif lines and not line.startswith("- "):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    return "\n".join(lines), "\n".join(example)


def _iter_inline_parts(schema: Schema, default: Any) -> Iterator[Value]:
    """The parts of an object on one line, if its schema describes just those."""
    parts = schema.get("properties", {})
    if parts and isinstance(default, dict) and parts.keys() == default.keys():
        for name, part in parts.items():
            rest = {key: value for key, value in part.items() if key != "description"}
            yield Value(name, part["description"], rest, default[name])


@cache
def _definitions() -> Mapping[str, Schema]:
    written: dict[str, Schema] = yaml.safe_load((Path(__file__).parent / "definitions.yaml").read_text())
    return {**written, "tenantFields": {"type": "string", "enum": list(PATHS)}}


def _resolve(schema: Any) -> Any:
    """The schema with definitions in place of their names, except the settings, and with objects closed."""
    if isinstance(schema, list):
        return [_resolve(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    resolved: dict[str, Any] = {}
    name = schema.get("$ref", "").rpartition("/")[2]
    if name and name != "settings":
        resolved |= _resolve(_definitions()[name])
    elif name:
        resolved["$ref"] = schema["$ref"]
    if isinstance(schema.get("properties"), dict):
        resolved |= {"type": "object", "additionalProperties": False}
    return resolved | {key: _resolve(part) for key, part in schema.items() if key != "$ref"}


def build_schema() -> dict[str, Any]:
    """Return the schema by which templates check values, and which editors may use: an unknown key and a
    wrong value are errors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Values of the chart dranet",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            **{value.name: _schema_of(value) for value in list_values()},
            "enabled": {
                "type": "boolean",
                "deprecated": True,
                "description": "For charts that have this one as a dependency, as its condition.",
            },
        },
        "$defs": {"settings": settings_schema()},
    }


def build_open_schema() -> dict[str, Any]:
    """Return ``values.schema.json``, which Helm applies before any template: it describes every value and
    refuses none, because Helm's own line names neither cause nor fix."""
    about = "Describes values. Templates check them with files/values.schema.json, and explain what is wrong."
    opened: dict[str, Any] = _open(build_schema())
    return {"$schema": opened.pop("$schema"), "$comment": about, **opened}


def _open(schema: Schema) -> dict[str, Any]:
    kept = {key: schema[key] for key in ("$schema", "$ref", "title", "description") if key in schema}
    if "enum" in schema:
        kept["examples"] = schema["enum"]
    for key in ("properties", "$defs"):
        if key in schema:
            kept[key] = {name: _open(part) for name, part in schema[key].items()}
    if "items" in schema:
        kept["items"] = _open(schema["items"])
    return kept


def _schema_of(value: Value) -> dict[str, Any]:
    described: dict[str, Any] = {"description": value.help}
    if not value.is_object:
        return {**described, **value.schema}
    return {
        **described,
        "type": "object",
        "additionalProperties": value.name in _SHARED,
        "properties": {part.name: _schema_of(part) for part in value.parts},
    }


def needed_values() -> Sequence[str]:
    """Return the dotted paths that null must not remove."""
    return [
        path
        for path, value in walk(list_values())
        if path not in _MAY_BE_NULL
        and (value.is_object or value.default not in ("", None, [], {}) or path.startswith(_ALWAYS_READ))
    ]


def refused_values() -> Mapping[str, str]:
    """Dotted path of a key that does not exist -> what to write instead."""
    return {
        "args": "is a value of DraNet's chart; here there is `settings` (docs/reference/settings.md)",
        **{path: f"is a value of DraNet's chart; here it is {new}" for path, new in FORMER.items()},
        **{path: f"is now {new}" for path, new in _RENAMED.items()},
        **_USUAL_ELSEWHERE,
        **{f"settings.{name}": f"must not be set: {reason}" for name, reason in refused_settings().items()},
    }


def refresh_comments(text: str) -> str:
    """Return ``values.yaml`` with the comments that repeat what the code declares brought up to date."""
    for pattern, lines in (
        (rf"(?<={re.escape(_SETTINGS_HEAD)})(?:#  .*\n)*", _comment_settings()),
        (r"(?<=\n  capabilities:\n)(?:    .*\n)*", _comment_capabilities()),
        (r"(?<=Always mounted are:\n)(?:.+\n)*", _comment_mounts()),
    ):
        block = "".join(f"{line}\n" for line in lines)
        text = re.sub(pattern, block.replace("\\", r"\\"), text, count=1)
    return text


def _comment_settings() -> Iterator[str]:
    for setting in free_settings():
        yield from _comment(f"{setting.name}: {in_one_line(plain(setting.default))}", "#  ")
        yield from _comment(setting.description, "#      ")


def _comment_capabilities() -> Iterator[str]:
    for capability in CAPABILITIES:
        yield from _comment(f"{capability.why}. Without it {capability.without}", "    # ")
        yield f"    - {capability.name}"


def _comment_mounts() -> Iterator[str]:
    for mount in MOUNTS:
        if not mount.feature:
            yield from _comment(f"{_name(mount)}: {mount.why}", "# - ", "#   ")
    yield "mounts:"
    for mount in MOUNTS:
        if mount.feature:
            about = f"{_name(mount)}: {mount.why}. For {mount.feature}; without it {mount.without}."
            yield from _comment(about, "  # ")
            yield f"  {mount_key(mount)}: true"


def _name(mount: HostMount) -> str:
    return mount.path + (" (read-only)" if mount.read_only else "")


def mount_key(mount: HostMount) -> str:
    """Return the name of the value that disables a mount."""
    first, *rest = mount.name.split("-")
    return first + "".join(word.capitalize() for word in rest)


def _comment(text: str, first: str, others: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=others or first,
        break_on_hyphens=False,
        break_long_words=False,
    )


def plain(default: object) -> object:
    """Return the default of a setting as YAML represents it."""
    match default:
        case StrEnum():
            return default.value
        case tuple():
            return [plain(item) for item in default]
        case Path():
            return str(default)
        case float() if default.is_integer():
            return int(default)
        case None:
            return ""
    return default


def in_one_line(value: Any) -> str:
    """Return YAML as a person writes it: without quotes where none are needed."""
    match value:
        case dict():
            return "{" + ", ".join(f"{key}: {in_one_line(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(in_one_line(item) for item in value) + "]"
        case str():
            return value if _is_plain(value) else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


def _is_plain(text: str) -> bool:
    if _QUANTITY.fullmatch(text):
        return True
    if not text or text[0] not in string.ascii_letters + "/":
        return False
    if text.lower() in ("true", "false", "null", "yes", "no", "on", "off", "y", "n"):
        return False
    return not set(text) & set(":#,[]{}\"'&*!|>%@`\n")
