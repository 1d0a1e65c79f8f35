"""Pydantic's complaints in the words of a claim: which field, and what it must be."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dranet.dataclass import dataclass
from dranet.model.network_part import CONFLICT, Part, Path, fields_of

_P = TypeVar("_P", bound=Part)

_TEXTS = {
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_unicode": "must be Unicode text",
    "string_too_short": "must not be empty",
    "tuple_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}
_SHOWN_MAX = 80
_SHOWN_NUMBER_MAX = 10**_SHOWN_MAX


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake. ``text`` completes "<field path>: ..."."""

    path: Path
    text: str
    of_whole: bool = False
    """Another config may mend it: a field that another one contradicts, or one that is not there."""


def decode(part: type[_P], document: Mapping[str, object]) -> tuple[_P | None, list[Problem]]:
    """The object, or everything that is wrong with the document."""
    try:
        return part.model_validate(document), []
    except ValidationError as error:
        return None, [_explain(part, item) for item in error.errors(include_url=False)]


def _explain(part: type[Part], item: ErrorDetails) -> Problem:
    kind, path = item["type"], tuple(step for step in item["loc"] if step != "[key]")
    of_whole = kind in (CONFLICT, "missing")
    if kind == "extra_forbidden":
        return Problem(path, f"{_complaint(item)}{_suggest(part, path)}")
    if of_whole:
        return Problem(path, _complaint(item), of_whole)
    return Problem(path, f"{_complaint(item)}, not {_show(item['input'])}")


def _suggest(part: type[Part], path: Path) -> str:
    """The field that an unknown one was perhaps meant to be."""
    *outer, unknown = path
    for step in outer:
        field = fields_of(part).get(step) if isinstance(step, str) else None
        part = field.part if field and field.part else part
    known = {name.lower(): name for name in fields_of(part)}
    similar = get_close_matches(str(unknown)[:_SHOWN_MAX].lower(), known, n=1)
    return f"; did you mean {known[similar[0]]}?" if similar else ""


def _complaint(item: ErrorDetails) -> str:
    context = item.get("ctx", {})
    match item["type"]:
        case "extra_forbidden":
            return "unknown field"
        case "missing":
            return "is required"
        case "greater_than_equal":
            return f"must be at least {context['ge']}"
        case "less_than_equal":
            return f"must be at most {context['le']}"
        case "string_too_long":
            return f"must have at most {context['max_length']} characters"
        case "value_error":
            return str(context["error"])
        case kind:
            return _TEXTS.get(kind) or item["msg"].replace("Input should be", "must be")


def _show(value: object) -> str:
    """A value as in JSON, short whatever it is."""
    match value:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case int() if abs(value) > _SHOWN_NUMBER_MAX:
            return "a number so long"
        case str() if len(value) > _SHOWN_MAX:
            return repr(value[:_SHOWN_MAX]) + "..."
        case int() | float() | str():
            return repr(value)
        case Mapping():
            return "an object"
        case _:
            return "a list"
