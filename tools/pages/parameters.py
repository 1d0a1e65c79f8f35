"""The page ``docs/reference/parameters.md`` and the JSON schema, from the declarations in ``dranet.model``.

The schema is that of equivalent pydantic classes; tests compare what the two decode.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pydantic
import yaml

from dranet.model.parameters import network as network_policy
from dranet.model.parameters.network import Envelope, NetworkConfig
from dranet.model.parameters.part import (
    UNSET,
    AfterValidator,
    BeforeValidator,
    FieldInfo,
    Limit,
    Part,
    PartField,
    WithJsonSchema,
    fields_of,
    settle,
)
from dranet.model.parameters.values import NAMESPACE_WIDE, PER_INTERFACE, REFUSED, OneOf
from tools.pages.page import fill, table

SCHEMA_NAME = "network-config.schema.json"

_Schema = dict[str, Any]


def parameters_page() -> str:
    sysctls = (
        (f"`{name}`", group.meaning) for group in (*PER_INTERFACE, *NAMESPACE_WIDE) for name in group.names
    )
    return fill(
        "parameters.md",
        schema=SCHEMA_NAME,
        sections="\n".join(_render_section(path, part) for path, part in walk_objects()),
        sysctls=table(("name", "what it is about"), sysctls),
        refused=table(("name", "reason"), ((f"`{name}`", reason) for name, reason in REFUSED.items())),
    )


def example_of(field: PartField) -> str:
    """Return the first example of a field as one line of YAML: ``mtu: 9000``."""
    value = {field.name: (field.info.examples or [None])[0]}
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10**6)
        .strip()
        .removeprefix("{")
        .removesuffix("}")
    )


def walk_objects() -> Iterator[tuple[str, type[Part]]]:
    """Yield every object with its path, ``routes[].nextHops[]``; that of the outermost object is empty."""
    yield "", NetworkConfig
    yield from _objects(NetworkConfig)
    yield from _objects(Envelope)


def _objects(part: type[Part], prefix: str = "") -> Iterator[tuple[str, type[Part]]]:
    for field in fields_of(part).values():
        if field.part:
            path = f"{prefix}{field.name}{'[]' if field.is_list else ''}"
            yield path, field.part
            yield from _objects(field.part, f"{path}.")


def _render_section(path: str, part: type[Part]) -> str:
    fields = [*fields_of(part).values(), *(() if path else fields_of(Envelope).values())]
    rows = (_describe_field(path, field) for field in fields)
    lines = table(("field", "meaning", "when absent", "example"), rows)
    return f"## {f'`{path}`' if path else 'All parameters'}\n\n{_summary(part)}\n\n{lines}"


def _describe_field(path: str, field: PartField) -> tuple[str, str, str, str]:
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
        example = f"`{example_of(field)}`"
    return f"`{field.name}`", info.description or "", absent, example


def _summary(part: type[Part]) -> str:
    """Return the first paragraph of the docstring as Markdown, without the name, which is in the heading."""
    text = " ".join((part.__doc__ or "").partition("\n\n")[0].split()).replace("``", "`")
    name, colon, rest = text.partition("`: ")
    return rest[:1].upper() + rest[1:] if colon and name.startswith("`") else text


def _anchor(path: str) -> str:
    return "".join(character for character in path.lower() if character.isalnum() or character in "-_")


def parameters_schema() -> str:
    """Return ``docs/reference/network-config.schema.json``. It describes single fields, not conflicts between
    them."""
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
    """Allow ``null`` for each optional field; remove Python's names and defaults."""
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


class _Object(pydantic.BaseModel):
    """For known fields ``null`` is the same as absent."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {name: item for name, item in value.items() if item is not None or name not in known}


def build_model(part: type[Part]) -> type[pydantic.BaseModel]:
    """Return a model with the same fields. Conflicts between fields or entries are not part of it."""
    fields: dict[str, Any] = {field.attribute: _translate_field(field) for field in fields_of(part).values()}
    return pydantic.create_model(part.__name__, __base__=_Object, __doc__=part.__doc__, **fields)


def _translate_field(field: PartField) -> Any:
    info = field.info
    words = {"alias": info.alias, "description": info.description, "examples": info.examples}
    declare: Any = partial(pydantic.Field, **words)
    if info.is_required():
        declared = declare()
    elif info.default_factory:
        declared = declare(default_factory=info.default_factory)
    else:
        declared = declare(default=info.default)
    return _annotate(_translate(info.annotation), info.metadata), declared


def _translate(annotation: Any) -> Any:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _annotate(_translate(arguments[0]), arguments[1:])
    if origin in (Union, UnionType):
        return Union[tuple(map(_translate, arguments))]  # noqa: UP007 - of as many as there are
    if origin is tuple:
        item = _translate(arguments[0])
        return Annotated[tuple[item, ...], pydantic.Field(strict=False)]  # type: ignore[valid-type]
    if origin is dict:
        name, item = map(_translate, arguments)
        return dict[name, item]  # type: ignore[valid-type]
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return build_model(annotation)
    return annotation


def _annotate(kind: Any, marks: tuple[Any, ...]) -> Any:
    for mark in marks:
        for translated in _translate_mark(mark):
            kind = Annotated[kind, translated]
    return kind


def _translate_mark(mark: Any) -> Iterator[Any]:
    match mark:
        case FieldInfo(metadata=limits):
            for limit in limits:
                yield from _translate_mark(limit)
        case Limit(name=name, bound=bound):
            declared: Any = {name: bound}
            yield pydantic.Field(**declared)
        case BeforeValidator(func=func):
            yield pydantic.BeforeValidator(func)
        case AfterValidator(func=func) if func is not settle:
            yield pydantic.AfterValidator(func)
            yield from _describe_choices(func)
        case WithJsonSchema(json_schema=schema):
            yield pydantic.WithJsonSchema(dict(schema))


def _describe_choices(validator: Any) -> Iterator[Any]:
    if isinstance(validator, OneOf):
        yield pydantic.WithJsonSchema({"type": "integer", "enum": [*validator.choices]})
    if validator is network_policy.field_path:
        yield pydantic.WithJsonSchema({"type": "string", "enum": sorted(network_policy.known_paths())})
