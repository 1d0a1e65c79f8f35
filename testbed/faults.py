"""What is wrong with a file, in words for the person who wrote it. Pure.

Takes the list of errors that pydantic finds and describes each as ``field.path[0]: why``. It knows no
particular file: names of fields come from the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

NOT_ONE_OF = "not_one_of"
"""Type of a model's own error whose remedy is the list of its fields, less ``ctx["besides"]``."""

_WORDS: Mapping[str, str] = {
    "missing": "is required",
    "extra_forbidden": "unknown field",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "string_type": "must be text (numbers and yes/no need quotes)",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
}


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Every fault of a file of ``model``, in one line; the known names of a field are listed once."""
    listed: set[type[BaseModel]] = set()
    return "; ".join(
        f"{_path(item['loc'])}: {_describe(item)}{_list_known(item, model, listed)}"
        for item in error.errors()
        if not _is_echo(item)
    )


def required_fields(model: type[BaseModel]) -> list[str]:
    """The fields that a file of ``model`` cannot do without, as a file names them."""
    return [field.alias or name for name, field in model.model_fields.items() if field.is_required()]


def _describe(item: ErrorDetails) -> str:
    if item["type"] == "too_short":
        return f"needs at least {item['ctx']['min_length']}, has {item['ctx']['actual_length']}"
    return _WORDS.get(item["type"]) or item["msg"].removeprefix("Value error, ")


def _is_echo(item: ErrorDetails) -> bool:
    """A list counts as too short when its items are wrong; other errors report that they are wrong."""
    value = item["input"]
    return item["type"] == "too_short" and isinstance(value, list) and len(value) >= item["ctx"]["min_length"]


def _list_known(item: ErrorDetails, model: type[BaseModel], listed: set[type[BaseModel]]) -> str:
    if item["type"] not in ("extra_forbidden", NOT_ONE_OF):
        return ""
    location = item["loc"][:-1] if item["type"] == "extra_forbidden" else item["loc"]
    owner = _find_model(model, location)
    if owner is None or owner in listed:
        return ""
    listed.add(owner)
    besides = item.get("ctx", {}).get("besides", ())
    known = (field.alias or name for name, field in owner.model_fields.items())
    return "; known are " + ", ".join(name for name in known if name not in besides)


def _find_model(model: type[BaseModel], location: Sequence[str | int]) -> type[BaseModel] | None:
    """The model of the mapping at ``location`` of a file of ``model``."""
    here: list[object] = [model]
    for part in location:
        here = [inner for option in here for inner in _inside(option, part)]
    return next(
        (option for option in here if isinstance(option, type) and issubclass(option, BaseModel)), None
    )


def _inside(annotation: object, part: str | int) -> Iterator[object]:
    """The types that an entry of a value of this type may have."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            if part in (name, field.alias):
                yield from _options(field.annotation)
    elif get_origin(annotation) in (tuple, list):
        yield from _options(get_args(annotation)[0])
    elif get_origin(annotation) is dict:
        yield from _options(get_args(annotation)[1])


def _options(annotation: Any) -> Iterator[object]:
    """The members of a union, without the constraints around them."""
    if get_origin(annotation) is Annotated:
        yield from _options(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from _options(member)
    else:
        yield annotation


def _path(location: Sequence[str | int]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "(whole file)"
