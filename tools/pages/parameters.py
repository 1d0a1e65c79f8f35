"""The page ``docs/user/parameters.md`` and the JSON schema, from the declarations in ``dranet.model``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from dranet.model.parameters.decoder import UNSET
from dranet.model.parameters.network import NetworkConfig
from dranet.model.parameters.part import Part, PartField, fields_of
from dranet.model.parameters.policy import Envelope
from dranet.model.parameters.sysctls import NAMESPACE_WIDE, PER_INTERFACE, REFUSED, SysctlGroup
from tools.pages.parameters_model import build_model

SCHEMA_NAME = "network-config.schema.json"

_Schema = dict[str, Any]


def parameters_page() -> str:
    """``docs/user/parameters.md``."""
    sections = (line for path, part in walk_objects() for line in _render_section(path, part))
    return "\n".join([*_PAGE_HEAD, *sections, *_render_sysctls()]) + "\n"


def example_of(field: PartField) -> str:
    """The first example of a field as one line of YAML: ``mtu: 9000``."""
    value = {field.name: (field.info.examples or [None])[0]}
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10**6)
        .strip()
        .removeprefix("{")
        .removesuffix("}")
    )


def walk_objects() -> Iterator[tuple[str, type[Part]]]:
    """Every object with its path, ``routes[].nextHops[]``; the whole has an empty one."""
    yield "", NetworkConfig
    yield from _objects(NetworkConfig)
    yield from _objects(Envelope)


def _objects(part: type[Part], prefix: str = "") -> Iterator[tuple[str, type[Part]]]:
    for field in fields_of(part).values():
        if field.part:
            path = f"{prefix}{field.name}{'[]' if field.is_list else ''}"
            yield path, field.part
            yield from _objects(field.part, f"{path}.")


def _render_section(path: str, part: type[Part]) -> Iterator[str]:
    fields = [*fields_of(part).values(), *(() if path else fields_of(Envelope).values())]
    yield from ("", f"## `{path}`" if path else "## The whole", "")
    yield from (_summary(part), "")
    yield from ("| field | meaning | when absent | example |", "|---|---|---|---|")
    yield from (_render_row(path, field) for field in fields)


def _render_row(path: str, field: PartField) -> str:
    info = field.info
    if info.is_required():
        absent = "required"
    elif info.default in (None, UNSET, (), {}):
        absent = "-"
    else:
        absent = f"`{info.default if isinstance(info.default, str) else json.dumps(info.default)}`"
    if field.part:
        below = f"{path}.{field.name}" if path else field.name
        example = f"[below](#{_anchor(below)})"
    else:
        example = f"`{_cell(example_of(field))}`"
    return f"| `{field.name}` | {_cell(info.description or '')} | {absent} | {example} |"


def _summary(part: type[Part]) -> str:
    """The first paragraph of the docstring, as Markdown, without the name that the heading has already."""
    text = " ".join((part.__doc__ or "").partition("\n\n")[0].split()).replace("``", "`")
    name, colon, rest = text.partition("`: ")
    return rest[:1].upper() + rest[1:] if colon and name.startswith("`") else text


def _anchor(path: str) -> str:
    return "".join(character for character in path.lower() if character.isalnum() or character in "-_")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _render_sysctls() -> Iterator[str]:
    yield from ("", "## Sysctls that a claim may set", "")
    yield "`*` stands for the rest of a name. The value is put back when the claim is done with the pod, and"
    yield "what belongs to the interface goes with it."
    yield from ("", "| name | what it is about |", "|---|---|")
    yield from _render_groups((*PER_INTERFACE, *NAMESPACE_WIDE))
    yield from ("", "Refused, each with its reason:", "", "| name | it |", "|---|---|")
    yield from (f"| `{name}` | {_cell(reason)} |" for name, reason in REFUSED.items())


def _render_groups(groups: Iterable[SysctlGroup]) -> Iterator[str]:
    for group in groups:
        yield from (f"| `{name}` | {_cell(group.meaning)} |" for name in group.names)


def parameters_schema() -> str:
    """``docs/user/network-config.schema.json``: each field by itself, not what two say against each other."""
    schema = build_model(NetworkConfig).model_json_schema(by_alias=True)
    envelope = build_model(Envelope).model_json_schema(by_alias=True)
    schema["properties"] = {**envelope["properties"], **schema["properties"]}
    definitions = {**envelope["$defs"], **schema.pop("$defs")}
    for part in (schema, *definitions.values()):
        _tidy(part)
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Parameters of dranet in a ResourceClaim or DeviceClass",
        "$defs": dict(sorted(definitions.items())),
    }
    return json.dumps(whole, indent=1) + "\n"


def _tidy(part: _Schema) -> None:
    """``null`` is as absent for each field that may be absent; Python's names and defaults are left out."""
    part.pop("title", None)
    part["description"] = " ".join(part.get("description", "").split()).replace("``", "`")
    required = part.get("required", [])
    properties: _Schema = part.get("properties", {})
    part["properties"] = {
        name: _field_schema(field, nullable=name not in required) for name, field in properties.items()
    }


def _field_schema(field: _Schema, *, nullable: bool) -> _Schema:
    about: _Schema = {key: field.pop(key) for key in ("description", "examples") if key in field}
    default = field.pop("default", None)
    if default:
        about["default"] = default
    field.pop("title", None)
    kinds = field.pop("anyOf", None) or [field]
    if nullable and {"type": "null"} not in kinds:
        kinds = [*kinds, {"type": "null"}]
    return {**about, **(kinds[0] if len(kinds) == 1 else {"anyOf": kinds})}


_PAGE_HEAD = (
    "# Parameters of a claim",
    "",
    "<!-- Generated from dranet/model/parameters/network*.py; do not edit. -->",
    "",
    "What the opaque config of a ResourceClaim or DeviceClass may say about a network device. How to use it",
    f"is in [claims](claims.md); editors and linters take the [JSON schema]({SCHEMA_NAME}).",
    "",
    "Decoding is strict: unknown fields, text for a number and the like are refused, every mistake at once",
    'and with its path. What is absent, or `null`, leaves things alone; `false`, `0`, `""` and `[]` are',
    "values. Sizes and rates may be quantities: `k`, `M`, `G` and `T` count in thousands, `Ki`, `Mi`, `Gi`",
    "and `Ti` in 1024.",
)
