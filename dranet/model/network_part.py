"""What the objects of a :class:`~dranet.model.network.NetworkConfig` have in common, and walks over fields.

Pydantic judges each field by itself. What fields of an object say against each other is found by its
:meth:`Part.find_conflicts`; such an error carries the path of the field to mend, like any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Self, TypeVar, Union, cast, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from dranet.dataclass import dataclass

Path = tuple[str | int, ...]
"""Where a field is: JSON names, and the places in lists."""
Conflict = tuple[Path, str]
"""The field to mend, from the object that found it, and a text that completes "<field path>: ..."."""

CONFLICT = "conflict"
"""Pydantic's error type for a :data:`Conflict`."""


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


class Part(BaseModel):
    """JSON in, frozen value out: no coercion, no unknown field, and ``null`` is the same as absent."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    @classmethod
    def empty(cls) -> Self:
        """With nothing asked for.

        Nothing is validated either, which takes no schema: that of the whole config has all objects in it,
        and each would come a second time.
        """
        return cast("Self", cls.model_construct())

    @property
    def is_empty(self) -> bool:
        """Nothing is asked for."""
        return self == self.empty()

    def find_conflicts(self) -> Iterator[Conflict]:
        """What is wrong among fields of which each is right by itself."""
        return iter(())

    identity_words: ClassVar[str] = ""
    """Names the fields of :attr:`identity`."""

    @property
    def identity(self) -> object:
        """What no two entries of a list may have in common, unless they say the same."""
        return self

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        known = fields_of(cls)
        return {name: item for name, item in value.items() if item is not None or name not in known}

    @model_validator(mode="after")
    def _check(self) -> Self:
        refuse(list(self.find_conflicts()))
        return self


def refuse(conflicts: Sequence[Conflict]) -> None:
    """To be called in a validator; pydantic puts the path of the validated value in front.

    Raises:
        ValidationError: if there are any.
    """
    if conflicts:
        raise ValidationError.from_exception_data(
            CONFLICT,
            [
                InitErrorDetails(
                    type=PydanticCustomError(CONFLICT, "{text}", {"text": text}), loc=path, input=None
                )
                for path, text in conflicts
            ],
        )


Entry = TypeVar("Entry", bound=Part)


def _settle(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
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


Entries = Annotated[tuple[Entry, ...], Field(strict=False), AfterValidator(_settle)]
"""A JSON list of objects. What is asked twice is done once; two that contradict each other are refused."""


@dataclass(frozen=True, slots=True)
class PartField:
    """One field of a :class:`Part`, by its JSON name."""

    name: str
    info: FieldInfo
    part: type[Part] | None
    """The object that it is, or that the items of its list are."""
    is_list: bool
    is_map: bool
    """An object whose names are the user's own."""


@cache
def fields_of(part: type[Part]) -> Mapping[str, PartField]:
    """The fields of an object by JSON name, in the order of their declaration."""
    fields = (_describe(info.alias or name, info) for name, info in part.model_fields.items())
    return {field.name: field for field in fields}


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

    ``null``, an empty object, unknown fields and what should be an object and is none are left out.
    """
    for name, field in fields_of(part).items():
        value = parameters.get(name)
        if value is None or value == {}:
            continue
        if not field.part or field.is_list:
            yield (name,), value
        elif isinstance(value, Mapping):
            yield from (((name, *path), below) for path, below in walk_values(field.part, value))


def _describe(name: str, info: FieldInfo) -> PartField:
    kind = _bare(info.annotation)
    origin = get_origin(kind)
    item = _bare(get_args(kind)[0]) if origin is tuple else kind
    part = item if isinstance(item, type) and issubclass(item, Part) else None
    return PartField(name, info, part, is_list=origin is tuple, is_map=origin is dict)


def _bare(annotation: Any) -> Any:
    """A type without ``Annotated`` and without ``None``."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif get_origin(annotation) in (Union, UnionType):
            (annotation,) = (one for one in get_args(annotation) if one is not NoneType)
        else:
            return annotation
