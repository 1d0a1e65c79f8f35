"""Records as JSON and back: what the store keeps on disk.

The text is what pydantic would write, and tests compare the two. But pydantic is 10 MB and up to a fifth of a
second, which a driver that starts with claims on its node does without, and which a runtime's hook could not
wait for when it comes upon a record of another instance (docs/decisions/011).

What strangers send is read by others (``capture``, ``network``), strictly. Here fields that a class does not
know are left out, and fields that the text does not have take their default: a record may be of an earlier
version.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Kind = TypeVar("Kind")
Reader = Callable[[Any], object]
Readers = Mapping[type, Reader]
"""What makes our value of a JSON value, by the Python type of that; of any other type, it is refused."""


class RecordError(ValueError):
    """A text is no record of the kind that it should be. ``path`` leads to what is wrong in it."""

    def __init__(self, why: str, path: str = "") -> None:
        super().__init__(f"{path.removeprefix('.')}: {why}" if path else why)
        self.why = why
        self.path = path


def encode_record(record: object) -> str:
    """A record, which is made of dataclasses, tuples, maps by text, enums and plain values, as JSON.

    Raises:
        ValueError: it has what JSON in UTF-8 cannot say: half a character, a number that is none.
    """
    text = json.dumps(record, default=_spread, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text.encode()
    return text


def decode_record(kind: type[Kind], text: str) -> Kind:
    """The record of that class that a text says.

    Raises:
        RecordError: it says none.
    """
    declared: Any = kind
    try:
        record = _read(_readers_of(declared), json.loads(text))
    except RecordError:
        raise
    except (ValueError, RecursionError) as error:
        raise RecordError(f"no JSON: {error}") from error
    assert isinstance(record, kind)
    return record


def _spread(value: Any) -> dict[str, object]:
    """What JSON does not know, as what it knows."""
    if isinstance(value, Mapping):
        return dict(value)
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _read(readers: Readers, value: object) -> object:
    reader = readers.get(type(value))
    if reader is None:
        wanted = " or ".join(sorted(kind.__name__ for kind in readers))
        raise RecordError(f"is {type(value).__name__}, not {wanted}")
    return reader(value)


def _read_at(step: str, readers: Readers, value: object) -> object:
    try:
        return _read(readers, value)
    except RecordError as error:
        raise RecordError(error.why, step + error.path) from error


def _same(value: object) -> object:
    return value


_PLAIN: Mapping[object, Readers] = {
    str: {str: _same},
    bool: {bool: _same},
    int: {int: _same, bool: int},
    float: {float: _same, int: float},
    NoneType: {NoneType: _same},
}
"""As wide as type checkers are: whoever declares ``int`` may have been given a ``bool``."""


@cache
def _readers_of(kind: Any) -> Readers:
    """The readers of a declared type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if origin in (Union, UnionType):
        return _union_readers(arguments)
    if origin is Literal:
        return {type(choice): _choice_reader(arguments) for choice in arguments}
    if origin is tuple:
        return {list: _tuple_reader(arguments)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {dict: _map_reader(_readers_of(arguments[1]))}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {str: _choice_reader(tuple(kind))}
    assert _is_object(kind), f"{kind} cannot be read from a record"
    return {dict: _object_reader(kind)}


def _union_readers(kinds: tuple[Any, ...]) -> Readers:
    """Objects are told apart by the one word that each declares; else the first type that fits is taken."""
    objects = [kind for kind in kinds if _is_object(kind)]
    readers: dict[type, Reader] = {dict: _tagged_reader(objects)} if len(objects) > 1 else {}
    for kind in kinds:
        readers = {**_readers_of(kind), **readers}
    return readers


def _is_object(kind: object) -> bool:
    return is_dataclass(kind)


def _choice_reader(choices: tuple[Any, ...]) -> Reader:
    known = {choice.value if isinstance(choice, Enum) else choice: choice for choice in choices}

    def read(value: object) -> object:
        if value not in known:
            raise RecordError(f"is {value!r}, not one of {', '.join(map(repr, known))}")
        return known[value]

    return read


def _tuple_reader(arguments: tuple[Any, ...]) -> Reader:
    if arguments[1:] == (...,):
        item_readers = _readers_of(arguments[0])
        return lambda items: tuple(_read_at(f"[{i}]", item_readers, item) for i, item in enumerate(items))
    all_readers = [_readers_of(argument) for argument in arguments]

    def read(items: list[object]) -> object:
        if len(items) != len(all_readers):
            raise RecordError(f"has {len(items)} items, not {len(all_readers)}")
        pairs = enumerate(zip(all_readers, items, strict=True))
        return tuple(_read_at(f"[{i}]", readers, item) for i, (readers, item) in pairs)

    return read


def _map_reader(readers: Readers) -> Reader:
    return lambda items: {name: _read_at(f"[{name!r}]", readers, item) for name, item in items.items()}


def _object_reader(kind: type[Any]) -> Reader:
    hints = get_type_hints(kind)
    known = {field.name: _readers_of(hints[field.name]) for field in fields(kind)}
    needed = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]

    def read(items: dict[str, object]) -> object:
        for name in needed:
            if name not in items:
                raise RecordError("is missing", f".{name}")
        given = known.keys() & items.keys()
        return kind(**{name: _read_at(f".{name}", known[name], items[name]) for name in given})

    return read


def _tagged_reader(kinds: list[type[Any]]) -> Reader:
    """For objects of which each has a field of that name with a word of its own."""
    tag = next(f.name for f in fields(kinds[0]) if get_origin(get_type_hints(kinds[0])[f.name]) is Literal)
    readers = {get_args(get_type_hints(kind)[tag])[0]: _object_reader(kind) for kind in kinds}

    def read(items: dict[str, object]) -> object:
        word = items.get(tag)
        if not isinstance(word, str) or word not in readers:
            raise RecordError(f"is {word!r}, which this driver does not know", f".{tag}")
        return readers[word](items)

    return read
