"""Functions as data, and their declaration to the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from dranet.cel.values import NOTHING, CelError, NotJudged


class Function(NamedTuple):
    """One function with one implementation. ``overloads`` are parameter types and result, by CEL's names."""

    name: str
    call: Callable[..., object]
    overloads: Sequence[tuple[tuple[str, ...], str]]
    member: bool = True


def declare(cel: Any, functions: Iterable[Function]) -> Iterator[Any]:
    """The engine's declarations; functions and members of one name are one declaration."""
    for name, same in groupby(sorted(functions, key=lambda f: f.name), key=lambda f: f.name):
        rows = [row for function in same for row in _rows(function)]
        yield cel.FunctionDecl(
            name,
            [
                cel.Overload(
                    f"{name}_{number}",
                    return_type=_type(cel, result),
                    parameters=[_type(cel, parameter) for parameter in parameters],
                    is_member=member,
                    **({"impl": call} if call else {}),
                )
                for number, (parameters, result, member, call) in enumerate(rows)
            ],
        )


_Row = tuple[tuple[str, ...], str, bool, Callable[..., object] | None]


def _rows(function: Function) -> Iterator[_Row]:
    """Overloads with their implementation, or with none where an earlier one brings it.

    A value is converted to the result type of the overload that brings the implementation. Where results
    differ, that is one which no expression can meet: its parameter is a list of what does not exist.
    """
    groups: dict[tuple[str, ...], list[tuple[tuple[str, ...], str]]] = {}
    for parameters, result in function.overloads:
        groups.setdefault(tuple(map(_kind, parameters)), []).append((parameters, result))
    for kinds, overloads in groups.items():
        call: Callable[..., object] | None = function.call
        if len({result for _, result in overloads}) > 1:
            yield tuple(f"list<{NOTHING}>" if k == "list" else k for k in kinds), "dyn", function.member, call
            call = None
        for parameters, result in overloads:
            yield parameters, result, function.member, call
            call = None


def _kind(type_name: str) -> str:
    """What the evaluator sees of a type."""
    if type_name.startswith("list<"):
        return "list"
    return "message" if "." in type_name else type_name


def _type(cel: Any, name: str) -> Any:
    if name.startswith("list<"):
        return cel.Type.List(_type(cel, name[5:-1]))
    if name.startswith("map<"):
        key, value = name[4:-1].split(",", 1)
        return cel.Type.Map(_type(cel, key), _type(cel, value))
    return cel.Type(name) if "." in name else getattr(cel.Type, name.upper())


def succeeds(function: Callable[..., object]) -> Callable[..., bool]:
    """Whether ``function`` raises no CelError; what is not judged stays so."""

    def tried(*args: Any) -> bool:
        try:
            function(*args)
        except NotJudged:
            raise
        except CelError:
            return False
        return True

    return tried
