"""How one value of the chart is declared, and the kinds of values that come up again and again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

Schema = Mapping[str, Any]


class Value(Struct, frozen=True):
    """One key of ``values.yaml``: a leaf with ``schema`` and ``default``, or an object of ``parts``."""

    name: str
    help: str
    """What it does, and when to change it: whole sentences, printed above the key."""
    schema: Schema = field(default_factory=dict)
    default: Any = None
    parts: tuple[Value, ...] = ()
    example: str = ""
    """YAML that a reader may copy, printed as a comment below the help."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Of a list: entry as it is printed -> why it is there."""
    section: str = ""
    """A heading above it."""
    is_inline: bool = False
    """An object on one line: one of several with the same parts, which the help of their parent explains."""

    @property
    def is_object(self) -> bool:
        return bool(self.parts)


def walk(values: Sequence[Value], prefix: str = "") -> Iterator[tuple[str, Value]]:
    """Every value with its dotted path, parents first."""
    for value in values:
        path = f"{prefix}{value.name}"
        yield path, value
        yield from walk(value.parts, f"{path}.")


def closed(properties: Mapping[str, Schema], required: Sequence[str] = ()) -> Schema:
    """An object with these keys and no others."""
    schema: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": dict(properties),
    }
    return {**schema, "required": list(required)} if required else schema


def list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def map_of(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def one_of(*choices: str) -> Schema:
    return {"type": "string", "enum": list(choices)}


def number(lowest: int, highest: int | None = None) -> Schema:
    limits = {"minimum": lowest} if highest is None else {"minimum": lowest, "maximum": highest}
    return {"type": "integer", **limits}


BOOLEAN: Schema = {"type": "boolean"}
TEXT: Schema = {"type": "string"}
TEXTS: Schema = map_of(TEXT)
NAME: Schema = {"type": "string", "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$", "maxLength": 63}
"""A DNS label, or empty."""
SUBDOMAIN: Schema = {"type": "string", "pattern": r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$", "maxLength": 253}
"""A DNS subdomain, or empty."""
LABELS: Schema = {
    "type": "object",
    "additionalProperties": {
        "type": "string",
        "pattern": r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$",
        "maxLength": 63,
    },
    "propertyNames": {"pattern": r"^([a-z0-9][-a-z0-9.]*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"},
}
FREE_OBJECT: Schema = {"type": "object"}
"""A part of Kubernetes' own API, or of the driver's parameters, which is checked there."""
