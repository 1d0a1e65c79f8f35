"""Kubernetes' list library, and ``includes`` of list attributes.

``indexOf`` and ``lastIndexOf`` of lists cannot be added to the engine's functions of these names for strings.
The engine takes no durations and times back from an implementation, and a uint becomes an int; so lists of
these have no ``sum``, ``min`` and ``max`` here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from dranet.cel.library.declare import Function
from dranet.cel.opaque import QUANTITY, SEMVER
from dranet.cel.scalars import CelError

_SUMMABLE = ("int", "double")
_COMPARABLE = ("int", "double", "bool", "string", "bytes")
_SORTABLE = (*_COMPARABLE, "duration", "timestamp", "uint")
_ANY = ("int", "uint", "double", "bool", "string", "list<dyn>", SEMVER, QUANTITY)
"""What an attribute can be, and what may be compared with it: the engine finds no implementation by dyn."""


def _lists_of(types: Sequence[str], result: str = "") -> list[tuple[tuple[str, ...], str]]:
    """One overload for each type; without ``result`` the result is of that type."""
    return [((f"list<{element}>",), result or element) for element in types]


def _least(values: Sequence[Any]) -> Any:
    if not values:
        raise CelError("min called on empty list")
    return min(values)


def _greatest(values: Sequence[Any]) -> Any:
    if not values:
        raise CelError("max called on empty list")
    return max(values)


def _is_sorted(values: Sequence[Any]) -> bool:
    return all(a <= b for a, b in pairwise(values))


def _includes(target: Any, value: Any) -> bool:
    return any(are_equal(item, value) for item in (target if isinstance(target, list) else [target]))


def are_equal(a: Any, b: Any) -> bool:
    """As CEL's ``==`` for values of any type: numbers of all types compare, a bool is no number."""
    if isinstance(a, bool) or isinstance(b, bool):
        return isinstance(a, bool) and isinstance(b, bool) and a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(are_equal, a, b))
    return bool(a == b)


LISTS = (
    Function("isSorted", _is_sorted, _lists_of(_SORTABLE, "bool")),
    Function("sum", sum, _lists_of(_SUMMABLE)),
    Function("min", _least, _lists_of(_COMPARABLE)),
    Function("max", _greatest, _lists_of(_COMPARABLE)),
    Function("includes", _includes, [((a, b), "bool") for a in _ANY for b in _ANY]),
)
