"""From the annotation of a field to a function that decodes its JSON: strictly, and with every error at once.

No value is coerced: text is not a number, and neither is ``true``. What is understood is what the annotations
of :mod:`dranet.model.parameters.network` consist of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

from msgspec import Struct

Path = tuple[str | int, ...]
"""Where a field is: JSON names, and the places in lists."""
Decoder = Callable[[Any], Any]
"""Returns the value, or raises ValidationError."""


class DecodeFaultKind(Enum):
    """Kinds of faults that are reported differently."""

    VALUE = "value"
    UNKNOWN_FIELD = "unknown field"
    MISSING = "missing"
    CONFLICT = "conflict"
    """Fields that are right by themselves and not together."""


class Fault(Struct, frozen=True):
    """One error. ``text`` completes "<field path>: ..."."""

    kind: DecodeFaultKind
    path: Path
    text: str
    value: object = None
    """What was given."""

    def below(self, step: str | int) -> Fault:
        """Return the fault with its path as seen from the enclosing value."""
        return Fault(self.kind, (step, *self.path), self.text, self.value)


class ValidationError(ValueError):
    """Every error of a document."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(f"{fault.path}: {fault.text}" for fault in faults))
        self.faults = tuple(faults)


class Collector:
    """Decodes the values in an object or a list and keeps the errors of all of them."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def decode(self, step: str | int, decoder: Decoder, value: object) -> Any:
        """Return the value, or ``None`` after a fault, which is never used."""
        try:
            return decoder(value)
        except ValidationError as error:
            self.faults += (fault.below(step) for fault in error.faults)

    def finish(self) -> None:
        """Raise ValidationError if there are errors."""
        if self.faults:
            raise ValidationError(self.faults)


def refuse_value(text: str, value: object) -> NoReturn:
    """Raise ValidationError for a value as a whole."""
    raise ValidationError([Fault(DecodeFaultKind.VALUE, (), text, value)])


def build_decoder(annotation: Any) -> Decoder:
    """For a type as it is written in an annotation. A class decodes itself."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return add_marks(build_decoder(arguments[0]), arguments[1:])
    if origin in (Union, UnionType):
        (inner,) = (build_decoder(one) for one in arguments if one is not NoneType)
        return lambda value: None if value is None else inner(value)
    if origin is Literal:
        return partial(_decode_choice, arguments)
    if origin is tuple:
        return partial(_decode_list, build_decoder(arguments[0]))
    if origin is dict:
        return partial(_decode_map, *map(build_decoder, arguments))
    return _SCALARS.get(annotation) or annotation.model_validate


def add_marks(decoder: Decoder, marks: Iterable[Any]) -> Decoder:
    """Wrap a decoder with the marks of ``Annotated``, the first innermost."""
    for mark in marks:
        decoder = _add_mark(decoder, mark)
    return decoder


def _add_mark(inner: Decoder, mark: Any) -> Decoder:
    match mark:
        case FieldInfo():
            return add_marks(inner, mark.metadata)
        case BeforeValidator(func=func):
            return lambda value: inner(call(func, value, value))
        case AfterValidator(func=func):
            return lambda value: call(func, inner(value), value)
        case Ge() | Le() | MinLen() | MaxLen():
            return lambda value: call(partial(_keep_limit, mark), inner(value), value)
        case _:
            return inner


def call(func: Callable[[Any], Any], value: Any, original: object) -> Any:
    """Call a validator; an error carries the value from the document."""
    try:
        return func(value)
    except ValidationError:
        raise
    except ValueError as error:
        refuse_value(str(error), original)


def check_unicode(text: str) -> str:
    """Text that can be written as UTF-8: JSON may escape half a character."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("must be Unicode text")
    return text


def _keep_limit(limit: Any, value: Any) -> Any:
    """Whose length counts has whole characters."""
    if isinstance(limit, MinLen | MaxLen):
        check_unicode(value)
    match limit:
        case Ge(ge=least) if value < least:
            raise ValueError(f"must be at least {least}")
        case Le(le=most) if value > most:
            raise ValueError(f"must be at most {most}")
        case MinLen(min_length=least) if len(value) < least:
            raise ValueError("must not be empty")
        case MaxLen(max_length=most) if len(value) > most:
            raise ValueError(f"must have at most {most} characters")
    return value


def _decode_scalar(kind: type, text: str, value: object) -> object:
    if type(value) is not kind:
        refuse_value(text, value)
    return value


_SCALARS: Mapping[Any, Decoder] = {
    int: partial(_decode_scalar, int, "must be a whole number"),
    bool: partial(_decode_scalar, bool, "must be true or false"),
    str: partial(_decode_scalar, str, "must be text"),
}


def _decode_choice(choices: tuple[str, ...], value: object) -> object:
    if isinstance(value, str):
        call(check_unicode, value, value)
    if value not in choices:
        *others, last = map(repr, choices)
        refuse_value(f"must be {', '.join(others)} or {last}" if others else f"must be {last}", value)
    return value


def _decode_list(item: Decoder, value: object) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        refuse_value("must be a list", value)
    collector = Collector()
    items = tuple(collector.decode(place, item, entry) for place, entry in enumerate(value))
    collector.finish()
    return items


def _decode_map(name: Decoder, item: Decoder, value: object) -> dict[Any, Any]:
    if not isinstance(value, dict):
        refuse_value("must be an object", value)
    collector = Collector()
    items = {
        collector.decode(key, name, key): collector.decode(key, item, entry) for key, entry in value.items()
    }
    collector.finish()
    return items


UNSET: Any = object()
"""The default of a field that has none."""


class Ge(Struct, frozen=True):
    """A number must be at least this."""

    ge: int


class Le(Struct, frozen=True):
    """A number must be at most this."""

    le: int


class MinLen(Struct, frozen=True):
    """Text must have at least so many characters."""

    min_length: int


class MaxLen(Struct, frozen=True):
    """Text must have at most so many characters."""

    max_length: int


class BeforeValidator(Struct, frozen=True):
    """Makes of what is given what the type then judges; refuses by a ValueError."""

    func: Callable[[Any], Any]


class AfterValidator(Struct, frozen=True):
    """Makes the value of what the type has let pass; refuses by a ValueError."""

    func: Callable[[Any], Any]


class PlainSerializer(Struct, frozen=True):
    """Makes the JSON of a value."""

    func: Callable[[Any], Any]


class WithJsonSchema(Struct, frozen=True, eq=False):
    """The JSON schema of the value, where it does not follow from the type."""

    json_schema: Mapping[str, Any]


class FieldInfo(Struct, frozen=True, eq=False):
    """A field, or as a part of ``Annotated`` the limits of a value."""

    metadata: tuple[Any, ...]
    """The limits, and all other marks of ``Annotated`` at the field itself."""
    default: Any = UNSET
    default_factory: Callable[[], Any] | None = None
    alias: str | None = None
    """The name in JSON, where it is another one."""
    description: str | None = None
    examples: Sequence[Any] | None = None
    annotation: Any = None
    """The type."""

    def is_required(self) -> bool:
        """It has no default."""
        return self.default is UNSET and self.default_factory is None

    def make_default(self) -> Any:
        """What an absent field is."""
        if self.default_factory:
            return self.default_factory()
        return self.default.copy() if isinstance(self.default, dict) else self.default


def Field(  # noqa: N802 - as in pydantic
    *,
    ge: int | None = None,
    le: int | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
    default: Any = UNSET,
    default_factory: Callable[[], Any] | None = None,
    alias: str | None = None,
    description: str | None = None,
    examples: Sequence[Any] | None = None,
) -> Any:
    """Declare a field as the value of a class attribute, or limits in ``Annotated``."""
    limits = ((Ge, ge), (Le, le), (MinLen, min_length), (MaxLen, max_length))
    metadata = tuple(kind(limit) for kind, limit in limits if limit is not None)
    return FieldInfo(metadata, default, default_factory, alias, description, examples)
