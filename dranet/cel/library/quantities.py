"""Kubernetes' quantity library: exact, in billionths."""

from __future__ import annotations

from typing import Any

from dranet.cel.library.declare import Function, succeeds
from dranet.cel.opaque import QUANTITY, SEMVER, new_opaque, new_quantity, text_of
from dranet.cel.scalars import CelError, NotJudged, Semver
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
