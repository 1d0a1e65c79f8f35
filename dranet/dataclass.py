"""The standard library's dataclass at a fraction of its price at import.

For each class Python writes and compiles up to eight methods when the class is made: with two hundred classes
that was more than half of what our imports cost, and megabytes of code that hardly ever runs. Here equality,
hash, text and refusing to be changed are written once for all classes, and ``__init__``, which has to be
quick, is compiled when a class gets its first instance.

Type checkers see the one of the standard library. ``fields``, ``replace``, ``asdict`` and pydantic work as
with that; ``order``, ``kw_only`` and ``InitVar`` are not there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from operator import attrgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

__all__ = ("dataclass",)

_GETTERS: dict[type, Callable[[Any], object]] = {}
"""By class: takes all fields that count for equality at once."""
_UNSET = object()
"""Stands for an argument that is not given, where a fresh value is made for each instance."""


def _is_equal(self: object, other: object) -> Any:
    """Of the same class with equal fields."""
    if other.__class__ is not self.__class__:
        return NotImplemented
    get = _getter_of(self.__class__)
    return bool(get(self) == get(other))


def _hash(self: object) -> int:
    return hash(_getter_of(self.__class__)(self))


def _write_out(self: object) -> str:
    names = (field.name for field in fields(cast("Any", self)) if field.repr)
    values = (f"{name}={getattr(self, name)!r}" for name in names)
    return f"{self.__class__.__qualname__}({', '.join(values)})"


def _getter_of(kind: type[Any]) -> Callable[[Any], object]:
    return _GETTERS.get(kind) or _GETTERS.setdefault(kind, _build_getter(kind))


def _build_getter(kind: type[Any]) -> Callable[[Any], object]:
    names = [field.name for field in fields(kind) if field.compare]
    return attrgetter(*names) if names else lambda _: ()


def _refuse_to_set(_self: object, name: str, _value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(_self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _get_state(self: Any) -> list[object]:
    """For ``copy`` and ``pickle``, which would set the fields of what cannot be changed."""
    return [getattr(self, field.name) for field in fields(self)]


def _set_state(self: Any, state: Sequence[object]) -> None:
    for field, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


def _write_init_later(kind: type[Any], frozen: bool) -> Callable[..., None]:
    """An ``__init__`` that puts the real one in its place when it is called."""

    def write_init(self: object, *args: object, **values: object) -> None:
        kind.__init__ = written = _write_init(kind, frozen)
        written(self, *args, **values)

    return write_init


def _write_init(kind: type[Any], frozen: bool) -> Callable[..., None]:
    """``__init__`` as the standard library would have written it."""
    names: dict[str, object] = {"_set": object.__setattr__, "_UNSET": _UNSET}
    parameters, lines = ["self"], []
    for field in fields(kind):
        parameter, value = _write_field(field, names)
        if field.init:
            parameters.append(parameter)
        if value:
            name = field.name
            lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(kind, "__post_init__"):
        lines.append("self.__post_init__()")
    exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(lines or ["pass"]), names)
    init = names["__init__"]
    assert isinstance(init, FunctionType)
    init.__qualname__ = f"{kind.__qualname__}.__init__"
    init.__module__ = kind.__module__
    return init


def _write_field(field: Field[Any], names: dict[str, object]) -> tuple[str, str]:
    """A field's parameter and what is assigned to it, maybe nothing; what they mention goes to ``names``."""
    name = field.name
    default = f"_default_{name}"
    if field.default_factory is not MISSING:
        names[default] = field.default_factory
        made = f"{default}()"
        return f"{name}=_UNSET", f"{made} if {name} is _UNSET else {name}" if field.init else made
    if field.default is not MISSING:
        names[default] = field.default
        return f"{name}={default}", name if field.init else default
    return name, name if field.init else ""


def _make(kind: type[Any], frozen: bool, slots: bool, written: Mapping[str, bool]) -> type[Any]:
    own = vars(kind)
    if not kind.__doc__:  # the standard library would work one out of the signature, which takes a while
        kind.__doc__ = kind.__name__
    made = cast("Any", dataclasses.dataclass(init=False, eq=False, repr=False, slots=slots)(kind))
    made.__init__ = _write_init_later(made, frozen)
    if written.get("repr", True) and "__repr__" not in own:
        made.__repr__ = _write_out
    if written.get("eq", True) and "__eq__" not in own:
        made.__eq__ = _is_equal
        made.__hash__ = _hash if frozen else None
    if frozen:
        made.__setattr__, made.__delattr__ = _refuse_to_set, _refuse_to_delete
        made.__getstate__, made.__setstate__ = _get_state, _set_state
    return cast("type[Any]", made)


def _dataclass(
    *, frozen: bool = False, slots: bool = False, **written: bool
) -> Callable[[type[Any]], type[Any]]:
    return lambda kind: _make(kind, frozen, slots, written)


if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    dataclass = _dataclass
