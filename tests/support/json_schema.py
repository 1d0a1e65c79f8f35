"""As much of JSON Schema 2020-12 as our schema uses. A keyword that is not known here is a KeyError."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

_NOTES = {"$schema", "title", "description", "examples", "default", "$defs"}
_TYPES: dict[str, type] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "boolean": bool,
    "null": type(None),
}


def accepts(schema: Schema, document: object) -> bool:
    """Whether the document is valid."""
    return _fits(schema, document, schema)


def _fits(schema: Schema, value: Any, root: Schema) -> bool:
    return all(_KEYWORDS[word](schema, value, root) for word in schema.keys() - _NOTES)


def _follow(schema: Schema, value: Any, root: Schema) -> bool:
    return _fits(root["$defs"][schema["$ref"].removeprefix("#/$defs/")], value, root)


def _has_type(schema: Schema, value: Any, _root: Schema) -> bool:
    names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    return any(type(value) is _TYPES[name] for name in names)


def _has_properties(schema: Schema, value: Any, root: Schema) -> bool:
    known = schema["properties"]
    return not isinstance(value, dict) or all(
        _fits(known[k], v, root) for k, v in value.items() if k in known
    )


def _has_no_other_properties(schema: Schema, value: Any, root: Schema) -> bool:
    known, others = schema.get("properties", {}), schema["additionalProperties"]
    if not isinstance(value, dict):
        return True
    rest = [item for name, item in value.items() if name not in known]
    return not rest if others is False else all(_fits(others, item, root) for item in rest)


def _has_good_names(schema: Schema, value: Any, root: Schema) -> bool:
    return not isinstance(value, dict) or all(_fits(schema["propertyNames"], name, root) for name in value)


_KEYWORDS: dict[str, Callable[[Schema, Any, Schema], bool]] = {
    "$ref": _follow,
    "type": _has_type,
    "properties": _has_properties,
    "additionalProperties": _has_no_other_properties,
    "anyOf": lambda s, v, root: any(_fits(one, v, root) for one in s["anyOf"]),
    "required": lambda s, v, _: not isinstance(v, dict) or set(s["required"]) <= v.keys(),
    "items": lambda s, v, root: not isinstance(v, list) or all(_fits(s["items"], item, root) for item in v),
    "propertyNames": _has_good_names,
    "enum": lambda s, v, _: v in s["enum"],
    "const": lambda s, v, _: v == s["const"],
    "minimum": lambda s, v, _: not isinstance(v, int) or v >= s["minimum"],
    "maximum": lambda s, v, _: not isinstance(v, int) or v <= s["maximum"],
    "minLength": lambda s, v, _: not isinstance(v, str) or len(v) >= s["minLength"],
    "maxLength": lambda s, v, _: not isinstance(v, str) or len(v) <= s["maxLength"],
    "pattern": lambda s, v, _: not isinstance(v, str) or re.search(s["pattern"], v) is not None,
}
