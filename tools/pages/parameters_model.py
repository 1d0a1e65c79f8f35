"""The parameters as classes of pydantic, which makes their JSON schema; tests compare what the two decode."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pydantic

from dranet.model.parameters import policy as network_policy
from dranet.model.parameters.decoder import (
    AfterValidator,
    BeforeValidator,
    FieldInfo,
    Ge,
    Le,
    MaxLen,
    MinLen,
    WithJsonSchema,
)
from dranet.model.parameters.part import Part, PartField, fields_of, settle
from dranet.model.parameters.values import OneOf


class _Object(pydantic.BaseModel):
    """``null`` is the same as absent, for a field that there is."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {name: item for name, item in value.items() if item is not None or name not in known}


def build_model(part: type[Part]) -> type[pydantic.BaseModel]:
    """With the same fields. What they, or the entries of a list, say against each other is not in it."""
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
        case Ge(ge=least):
            yield pydantic.Field(ge=least)
        case Le(le=most):
            yield pydantic.Field(le=most)
        case MinLen(min_length=least):
            yield pydantic.Field(min_length=least)
        case MaxLen(max_length=most):
            yield pydantic.Field(max_length=most)
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
