"""What frozen dataclasses have in common, written once.

For each dataclass Python writes and compiles six methods when it is imported; a hundred classes made a third
of the driver's start. Equality, hash and text are the same for all, so they live here; a record is declared
with ``@dataclass(frozen=True, slots=True, eq=False, repr=False)``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any

_GETTERS: dict[type, Callable[[Any], object]] = {}
"""By class: takes all fields of a record at once."""


class Record:
    """Equal when of the same class with equal fields, hashable when its fields are."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        get = _getter_of(self.__class__)
        return bool(get(self) == get(other))

    def __hash__(self) -> int:
        return hash(_getter_of(self.__class__)(self))

    def __repr__(self) -> str:
        values = (f"{name}={getattr(self, name)!r}" for name in _names_of(self.__class__))
        return f"{self.__class__.__qualname__}({', '.join(values)})"


def _getter_of(kind: type) -> Callable[[Any], object]:
    return _GETTERS.get(kind) or _GETTERS.setdefault(kind, attrgetter(*_names_of(kind)))


def _names_of(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))
