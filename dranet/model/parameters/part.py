"""The base class of all objects in a :class:`~.network.NetworkConfig`, and the decoder of its fields.

Each field is validated by itself, by its annotation: strictly, with every error at once, and no value is
coerced (text is not a number, and neither is ``true``). Conflicts between fields of an object are found by
its :meth:`Part.find_conflicts`; such an error carries the path of the field to fix, like any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from types import MappingProxyType, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NoReturn,
    Self,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from msgspec import Struct
from msgspec.structs import replace

Path = tuple[str | int, ...]
"""Where a field is: JSON names, and the places in lists."""
Decoder = Callable[[Any], Any]
"""Returns the value, or raises ValidationError."""


class DecodeFaultKind(Enum):
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
            self.faults += (replace(fault, path=(step, *fault.path)) for fault in error.faults)

    def finish(self) -> None:
        if self.faults:
            raise ValidationError(self.faults)


def refuse_value(text: str, value: object) -> NoReturn:
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
        case Limit():
            return lambda value: call(mark.check, inner(value), value)
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


class Limit(Struct, frozen=True):
    """A bound of a number, or of the length of a text, which must have whole characters then."""

    name: str
    """As in :class:`Limits`."""
    bound: int

    def check(self, value: Any) -> Any:
        size = len(check_unicode(value)) if isinstance(value, str) else value
        match self.name:
            case "ge" if size < self.bound:
                raise ValueError(f"must be at least {self.bound}")
            case "le" if size > self.bound:
                raise ValueError(f"must be at most {self.bound}")
            case "min_length" if size < self.bound:
                raise ValueError("must not be empty")
            case "max_length" if size > self.bound:
                raise ValueError(f"must have at most {self.bound} characters")
        return value


class BeforeValidator(Struct, frozen=True):
    """Makes of what is given what the type then judges; refuses by a ValueError."""

    func: Callable[[Any], Any]


class AfterValidator(Struct, frozen=True):
    """Makes the value of what the type has let pass; refuses by a ValueError."""

    func: Callable[[Any], Any]


class PlainSerializer(Struct, frozen=True):
    func: Callable[[Any], Any]


class WithJsonSchema(Struct, frozen=True, eq=False):
    """The JSON schema of the value, where it does not follow from the type."""

    json_schema: Mapping[str, Any]


class FieldInfo(Struct, frozen=True, eq=False):
    """A field, or as a part of ``Annotated`` the limits of a value."""

    metadata: tuple[Any, ...]
    """The limits, and all other marks of ``Annotated`` at the field itself."""
    description: str | None = None
    default: Any = UNSET
    default_factory: Callable[[], Any] | None = None
    alias: str | None = None
    """The name in JSON."""
    examples: Sequence[Any] | None = None
    annotation: Any = None
    """The type."""

    def is_required(self) -> bool:
        return self.default is UNSET and self.default_factory is None

    def make_default(self) -> Any:
        if self.default_factory:
            return self.default_factory()
        return self.default.copy() if isinstance(self.default, dict) else self.default


class Limits(TypedDict, total=False):
    ge: int
    le: int
    min_length: int
    max_length: int


def Field(  # noqa: N802 - as in pydantic
    description: str | None = None,
    *,
    default: Any = UNSET,
    default_factory: Callable[[], Any] | None = None,
    alias: str | None = None,
    examples: Sequence[Any] | None = None,
    **limits: Unpack[Limits],
) -> Any:
    """Declare a field as the value of a class attribute, or limits in ``Annotated``.

    The name in JSON is the attribute's in camel case, unless ``alias`` is another one. Without a default,
    what is absent is ``None`` where the type allows that, and empty for a list, a map or an object; any other
    field is required.
    """
    metadata = tuple(Limit(name, cast("int", bound)) for name, bound in limits.items())
    return FieldInfo(metadata, description, default, default_factory, alias, examples)


Conflict = tuple[Path, str]
"""The field to fix, relative to the object that found it, and a text that completes "<field path>: ..."."""

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_SHOWN_MAX = 80


def join_path(path: Path, root: str = "") -> str:
    """``routes[0].gateway``; a name that is not plain is quoted: ``sysctls["net.ipv4.tcp_ecn"]``."""
    steps = "".join(f"[{step}]" if isinstance(step, int) else _join_name(step) for step in path)
    return root + steps if root else steps.removeprefix(".")


def _join_name(name: str) -> str:
    if _PLAIN_NAME.fullmatch(name):
        return f".{name}"
    cut = name if len(name) <= _SHOWN_MAX else name[:_SHOWN_MAX] + "..."
    return f"[{json.dumps(cut)}]"


class Part:
    """JSON in, frozen value out: no coercion, no unknown field, and ``null`` is the same as absent.

    The fields are the annotated attributes of the class that have a :func:`Field`.
    """

    __slots__ = ("__dict__", "_present")
    _present: frozenset[str]
    """The attributes whose fields were not absent."""

    def __init__(self, document: Mapping[Any, object] = MappingProxyType({})) -> None:
        """Every field first; only where each is right by itself can they contradict each other.

        Raises:
            ValidationError: with everything that is wrong.
        """
        fields, collector = fields_of(type(self)), Collector()
        for field in fields.values():
            self.__dict__[field.attribute] = field.decode(document.get(field.name), collector)
        unknown = [call(check_unicode, name, name) for name in document if name not in fields]
        collector.faults += (
            Fault(DecodeFaultKind.UNKNOWN_FIELD, (name,), "unknown field") for name in unknown
        )
        collector.finish()
        present = (field.attribute for field in fields.values() if document.get(field.name) is not None)
        object.__setattr__(self, "_present", frozenset(present))
        refuse(list(self.find_conflicts()))

    @classmethod
    def model_validate(cls, document: object) -> Self:
        """Decode what should be an object. Raises as the constructor does."""
        if not isinstance(document, Mapping):
            refuse_value("must be an object", document)
        return cls(document)

    @classmethod
    def empty(cls) -> Self:
        return cls()

    @property
    def is_empty(self) -> bool:
        return not self.to_json(exclude_defaults=True)

    def find_conflicts(self) -> Iterator[Conflict]:
        """What is wrong among fields of which each is right by itself."""
        return iter(())

    identity_words: ClassVar[str] = ""
    """Names the fields of :attr:`identity`."""

    @property
    def identity(self) -> object:
        """What no two entries of a list may share, unless they are equal."""
        return self

    def to_json(self, *, exclude_unset: bool = False, exclude_defaults: bool = False) -> dict[str, Any]:
        """The document, with each value in canonical form.

        Args:
            exclude_unset: without the fields that were absent, on all levels.
            exclude_defaults: without those that have the value of an absent one.
        """
        return {
            field.name: _to_json(field, self.__dict__[field.attribute], exclude_unset, exclude_defaults)
            for field in fields_of(type(self)).values()
            if not (exclude_unset and field.attribute not in self._present)
            and not (exclude_defaults and self.__dict__[field.attribute] == field.info.make_default())
        }

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self.__dict__.items())

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__.values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self)})"

    def __setattr__(self, name: str, _value: object) -> None:
        raise AttributeError(f"cannot assign to field {name!r}")


def refuse(conflicts: Sequence[Conflict]) -> None:
    """To be called in a validator; the path of the validated value is put in front.

    Raises:
        ValidationError: if there are any.
    """
    if conflicts:
        raise ValidationError([Fault(DecodeFaultKind.CONFLICT, path, text) for path, text in conflicts])


Entry = TypeVar("Entry", bound=Part)


def settle(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Entries without repetitions; two that contradict each other are refused."""
    first: dict[object, int] = {}
    pairs = [(place, first.setdefault(entry.identity, place)) for place, entry in enumerate(entries)]
    refuse(
        [
            ((place,), f"must not have the {entries[place].identity_words} of entry {earlier}")
            for place, earlier in pairs
            if entries[place] != entries[earlier]
        ]
    )
    return tuple(dict.fromkeys(entries))


Entries = Annotated[tuple[Entry, ...], AfterValidator(settle)]
"""A JSON list of objects. What is asked twice is done once; two that contradict each other are refused."""


class PartField(Struct, frozen=True):
    """One field of a :class:`Part`, by its JSON name."""

    name: str
    attribute: str
    """Its name in Python."""
    info: FieldInfo
    part: type[Part] | None
    """The object that it is, or that the items of its list are."""
    is_list: bool
    is_map: bool
    """An object whose names are the user's own."""
    decoder: Decoder
    serializer: Callable[[Any], Any] | None
    """Makes the JSON of the value, where that is not the value."""

    def decode(self, present: object, collector: Collector) -> Any:
        """The value of what the document has there, of its default if that is nothing."""
        if present is not None:
            return collector.decode(self.name, self.decoder, present)
        if self.info.is_required():
            collector.faults.append(Fault(DecodeFaultKind.MISSING, (self.name,), "is required"))
            return None
        return self.info.make_default()


_FIELDS: dict[type, Mapping[str, PartField]] = {}


def fields_of(part: type[Part]) -> Mapping[str, PartField]:
    """The fields of an object by JSON name, in the order of their declaration."""
    if part not in _FIELDS:
        types = get_type_hints(part, include_extras=True)
        declared = ((name, info) for name, info in vars(part).items() if isinstance(info, FieldInfo))
        fields = (_describe(name, info, types[name]) for name, info in declared)
        _FIELDS[part] = {field.name: field for field in fields}
    return _FIELDS[part]


def walk_fields(part: type[Part]) -> Iterator[tuple[str, PartField]]:
    """Every field below an object with its path; lists and maps are not entered."""
    for field in fields_of(part).values():
        yield field.name, field
        if field.part and not field.is_list:
            yield from ((f"{field.name}.{path}", below) for path, below in walk_fields(field.part))


def walk_values(
    part: type[Part], parameters: Mapping[str, object]
) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every value that ``parameters`` gives to a field below an object; lists and maps are values as a whole.

    ``null``, an empty object, unknown fields, and other values in place of an object, are left out.
    """
    for name, field in fields_of(part).items():
        value = parameters.get(name)
        if value is None or value == {}:
            continue
        if not field.part or field.is_list:
            yield (name,), value
        elif isinstance(value, Mapping):
            yield from (((name, *path), below) for path, below in walk_values(field.part, value))


def _describe(attribute: str, declared: FieldInfo, annotation: Any) -> PartField:
    is_marked = get_origin(annotation) is Annotated
    bare, marks = (annotation.__origin__, annotation.__metadata__) if is_marked else (annotation, ())
    kind, all_marks = _unwrap(annotation)
    origin = get_origin(kind)
    item = _unwrap(get_args(kind)[0])[0] if origin is tuple else kind
    part = item if isinstance(item, type) and issubclass(item, Part) else None
    info = replace(
        declared,
        annotation=bare,
        metadata=(*marks, *declared.metadata),
        alias=declared.alias or _camel_case(attribute),
    )
    if info.is_required():
        if NoneType in get_args(bare):
            info = replace(info, default=None)
        elif origin in (tuple, dict):
            info = replace(info, default=origin())
        elif part:
            info = replace(info, default_factory=part.empty)
    return PartField(
        str(info.alias),
        attribute,
        info,
        part,
        is_list=origin is tuple,
        is_map=origin is dict,
        decoder=add_marks(build_decoder(bare), info.metadata),
        serializer=next((mark.func for mark in all_marks if isinstance(mark, PlainSerializer)), None),
    )


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.title, rest))


def _unwrap(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type without ``Annotated`` and ``None``, and its marks."""
    marks: tuple[Any, ...] = ()
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            marks += tuple(more)
        elif get_origin(annotation) in (Union, UnionType):
            (annotation,) = (one for one in get_args(annotation) if one is not NoneType)
        else:
            return annotation, marks


def _to_json(field: PartField, value: Any, exclude_unset: bool, exclude_defaults: bool) -> Any:
    match value:
        case Part():
            return value.to_json(exclude_unset=exclude_unset, exclude_defaults=exclude_defaults)
        case tuple():
            return [_to_json(field, item, exclude_unset, exclude_defaults) for item in value]
        case _:
            return field.serializer(value) if field.serializer and value is not None else value
