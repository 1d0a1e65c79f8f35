"""Kubernetes' libraries for quantities (exact, in billionths), semantic versions and lists.

``indexOf`` and ``lastIndexOf`` of lists cannot be added to the engine's functions of these names for strings.
The engine takes no durations and times back from an implementation, and a uint becomes an int, so lists of
these have no ``sum``, ``min`` and ``max`` here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from dranet.cel.library.declare import Function, succeeds
from dranet.cel.values import (
    QUANTITY,
    SEMVER,
    CelError,
    NotJudged,
    Semver,
    new_opaque,
    new_quantity,
    new_semver,
    text_of,
)
from dranet.quantity import NANO

_SURE = range(-(10**14) + 1, 10**14)
"""Whether Kubernetes takes more for an integer depends on how it is written: 100T is one, 100Ti is not."""
_Q = QUANTITY
_TWO = ((_Q, _Q), (SEMVER, SEMVER))
_SUMS = (((_Q, _Q), _Q), ((_Q, "int"), _Q))


def _nanos(value: Any) -> int:
    return value * NANO if isinstance(value, int) else int(text_of(value, QUANTITY))


def _from_nanos(nanos: int) -> Any:
    return new_opaque(QUANTITY, str(nanos))


def _as_integer(nanos: int) -> int:
    if nanos // NANO not in _SURE:
        raise NotJudged("cannot be judged here: whether so large a quantity is an integer")
    if nanos % NANO:
        raise CelError("the quantity is not an integer")
    return nanos // NANO


def _compare(a: Any, b: Any) -> int:
    """Two quantities, or two versions."""
    if a.DESCRIPTOR.full_name == SEMVER:
        x, y = Semver.parse(text_of(a, SEMVER)).sort_key, Semver.parse(text_of(b, SEMVER)).sort_key
        return (x > y) - (x < y)
    return (_nanos(a) > _nanos(b)) - (_nanos(a) < _nanos(b))


QUANTITIES = (
    Function("quantity", new_quantity, [(("string",), _Q)], member=False),
    Function("isQuantity", succeeds(new_quantity), [(("string",), "bool")], member=False),
    Function("isGreaterThan", lambda a, b: _compare(a, b) > 0, [(pair, "bool") for pair in _TWO]),
    Function("isLessThan", lambda a, b: _compare(a, b) < 0, [(pair, "bool") for pair in _TWO]),
    Function("compareTo", _compare, [(pair, "int") for pair in _TWO]),
    Function("add", lambda a, b: _from_nanos(_nanos(a) + _nanos(b)), _SUMS),
    Function("sub", lambda a, b: _from_nanos(_nanos(a) - _nanos(b)), _SUMS),
    Function("sign", lambda a: (_nanos(a) > 0) - (_nanos(a) < 0), [((_Q,), "int")], member=False),
    Function("isInteger", lambda a: succeeds(_as_integer)(_nanos(a)), [((_Q,), "bool")]),
    Function("asInteger", lambda a: _as_integer(_nanos(a)), [((_Q,), "int")]),
    Function("asApproximateFloat", lambda a: _nanos(a) / NANO, [((_Q,), "double")]),
)
"""With the comparisons of versions: they have the same names."""


_TEXTS = (("string",), ("string", "bool"))


def _parse(value: Any) -> Semver:
    return Semver.parse(text_of(value, SEMVER))


VERSIONS = (
    Function("semver", new_semver, [(text, SEMVER) for text in _TEXTS], member=False),
    Function("isSemver", succeeds(new_semver), [(text, "bool") for text in _TEXTS], member=False),
    Function("major", lambda a: _parse(a).major, [((SEMVER,), "int")]),
    Function("minor", lambda a: _parse(a).minor, [((SEMVER,), "int")]),
    Function("patch", lambda a: _parse(a).patch, [((SEMVER,), "int")]),
)


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
