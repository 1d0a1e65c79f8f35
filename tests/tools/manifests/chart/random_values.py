"""Values drawn from the schema: as much of JSON Schema as ours uses. A keyword that is not known here is a
KeyError."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]
Strategy = st.SearchStrategy[Any]

_NOTES = {"patternErrorMessage", "description", "deprecated", "title", "$schema", "$defs"}
_KNOWN = _NOTES | {
    *("type", "enum", "pattern", "minLength", "maxLength", "minimum", "maximum", "items", "properties"),
    *(
        "additionalProperties",
        "propertyNames",
        "minProperties",
        "required",
        "$ref",
        "minItems",
        "uniqueItems",
    ),
}


def draw_from(schema: Schema, root: Schema) -> Strategy:
    """Values that the schema takes."""
    if unknown := schema.keys() - _KNOWN:
        raise KeyError(f"{unknown} of {schema}")
    if "$ref" in schema:
        return draw_from(root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return st.one_of([_DRAW[name](schema, root) for name in types])


def _draw_text(schema: Schema, _root: Schema) -> Strategy:
    longest = min(schema.get("maxLength", 40), 40)
    pattern = schema.get("pattern")
    if pattern is None:
        letters = st.characters(codec="utf-8", exclude_categories=("C", "Z"))
        return st.text(letters, min_size=schema.get("minLength", 0), max_size=longest)
    # `$` of Python also comes before a line break at the end
    fitting = st.from_regex(re.compile(pattern, re.ASCII), fullmatch=True)
    return fitting.filter(
        lambda text: schema.get("minLength", 0) <= len(text) <= longest and "\n" not in text
    )


def _draw_number(schema: Schema, _root: Schema) -> Strategy:
    lowest, highest = schema.get("minimum", 0), schema.get("maximum", 100_000)
    return (
        st.floats(lowest, highest, allow_nan=False)
        .map(lambda number: round(number, 3))
        .filter(lambda number: lowest <= number <= highest)
    )


def _draw_object(schema: Schema, root: Schema) -> Strategy:
    named = {
        name: draw_from(part, root)
        for name, part in schema.get("properties", {}).items()
        if not part.get("deprecated")
    }
    required = set(schema.get("required", ()))
    others = schema.get("additionalProperties", True)
    if named or others is False:
        return st.fixed_dictionaries(
            {name: part for name, part in named.items() if name in required},
            optional={name: part for name, part in named.items() if name not in required},
        )
    if others is True:
        return st.fixed_dictionaries({name: st.text("abc", min_size=1, max_size=5) for name in required})
    pattern = schema.get("propertyNames", {}).get("pattern", "^[a-z]{1,8}$")
    keys = _draw_text({"pattern": pattern}, root)
    return st.dictionaries(keys, draw_from(others, root), min_size=schema.get("minProperties", 0), max_size=3)


_DRAW: dict[str, Callable[[Schema, Schema], Strategy]] = {
    "string": _draw_text,
    "number": _draw_number,
    "object": _draw_object,
    "integer": lambda schema, _: st.integers(schema.get("minimum", 0), schema.get("maximum", 100_000)),
    "boolean": lambda *_: st.booleans(),
    "null": lambda *_: st.none(),
    "array": lambda schema, root: st.lists(
        draw_from(schema["items"], root),
        min_size=schema.get("minItems", 0),
        max_size=3,
        unique=schema.get("uniqueItems", False),
    ),
}
