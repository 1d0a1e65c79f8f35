"""How large the values of an expression can grow, and how much work it can be: an upper bound, off its tree.

The engine stops after 10,000 iterations. It does not stop ``cel.bind(a, x + x, cel.bind(b, a + a, ...))``,
which doubles a text with every line, nor ``lists.range(1000000000)``. Kubernetes refuses both as too costly.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from dranet.cel.scalars import NotJudged
from dranet.cel.tree import Call, Const, Literal, Loop, Name, Node, Select

MOST = 10_000_000
"""Characters and elements, of one value or handled in all. By Kubernetes' measure they cost the limit."""

_MOST_ITERATIONS = 10_000
"""The engine's."""


class Size(Struct, frozen=True):
    """Of a value: its elements, all characters and elements in it, and the work to make it."""

    count: int = 1
    weight: int = 1
    work: int = 1


_ATTRIBUTE = Size(64, 48 * 64)
"""48 values of at most 64 characters; a string of 64."""
_VARIABLES = Size(32, 32 * _ATTRIBUTE.weight)
_VALUE = Size(10_240, 10_240)
"""What a claim says in its parameters."""
_SMALL = frozenset(
    {
        "size",
        "matches",
        "contains",
        "startsWith",
        "endsWith",
        "indexOf",
        "lastIndexOf",
        "isSorted",
        "includes",
    }
    | {"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "@in", "int", "uint", "double", "bool", "charAt"}
)
"""Functions whose result is a number, a bool or one character."""


_LOGIC = frozenset({"!_", "_&&_", "_||_", "@not_strictly_false", "hasValue"})
_LOOK_UPS = frozenset({"_[_]", "_[?_]", "_?._"})


def check_bounds(tree: Node) -> None:
    """Refuse what may take too much memory or time.

    Raises:
        NotJudged: it may.
    """
    _measure(tree, MappingProxyType({}))


_Known = Mapping[str, Size]


def _measure(node: Node, known: _Known) -> Size:
    match node:
        case Const(str() as text):
            return Size(len(text), len(text))
        case Const():
            return Size()
        case Name(name):
            return known.get(name, _VALUE if name == "value" else _VARIABLES)
        case Select(operand):
            of = _measure(operand, known)
            return Size(min(of.count, _ATTRIBUTE.count), of.weight, of.work + 1)
        case Literal(items):
            sizes = [_measure(item, known) for item in items]
            return _size(len(items), len(items) + sum(s.weight for s in sizes), sum(s.work for s in sizes))
        case Loop():
            return _measure_loop(node, known)
    return _measure_call(node, known)


def _measure_loop(loop: Loop, known: _Known) -> Size:
    start = _measure(loop.start, known)
    if loop.is_binding:
        result = _measure(loop.result, {**known, loop.result_variable: start})
        return replace(result, work=_checked(start.work + result.work))
    over = _measure(loop.over, known)
    times = min(over.count, _MOST_ITERATIONS)
    element = Size(_each(over), _each(over), 0)
    inside = {**known, **dict.fromkeys(loop.variables, element), loop.result_variable: Size()}
    step = _measure(loop.step, inside)
    condition = _measure(loop.condition, inside)
    work = start.work + over.work + times * (step.work + condition.work)
    return _size(times * step.count + start.count, times * step.weight + start.weight, work)


def _measure_call(call: Call, known: _Known) -> Size:
    sizes = [_measure(argument, known) for argument in call.args]
    weight = sum(size.weight for size in sizes)
    count = sum(size.count for size in sizes)
    work = sum(size.work for size in sizes)
    if call.function in _LOOK_UPS:
        each = _each(sizes[0])
        return Size(min(each, _ATTRIBUTE.count), each, _checked(work + 1))
    if call.function in _LOGIC:
        return Size(work=_checked(work + 1))
    work += weight
    match call.function:
        case "lists.range":
            count = weight = _limit_of(call.args[0], sizes[0])
        case "replace" if len(sizes) > 2:
            count = weight = (sizes[0].weight + 1) * (sizes[2].weight + 1)
        case "join":
            count = weight = sizes[0].weight * (1 + sum(size.weight for size in sizes[1:]))
        case "_?_:_":
            count = max(sizes[1].count, sizes[2].count)
        case function if function in _SMALL:
            count = weight = 1
    return _size(max(count, 1), max(weight, 1), work)


def _each(size: Size) -> int:
    """What an element weighs on the average: all of them together weigh what their list does."""
    return -(-size.weight // max(size.count, 1))


def _limit_of(node: Node, size: Size) -> int:
    """The greatest number that an expression for one can be, where that is plain."""
    if isinstance(node, Const) and isinstance(node.value, int):
        return max(node.value, 0)
    if isinstance(node, Call) and node.function == "size":
        return size.work  # it was made of no less
    return MOST + 1


def _size(count: int, weight: int, work: int) -> Size:
    return Size(_checked(count), _checked(weight), _checked(work + weight))


def _checked(amount: int) -> int:
    if amount > MOST:
        raise NotJudged(
            f"cannot be judged here: it may handle more than {MOST:,} characters or elements; a cluster "
            "refuses what is too expensive"
        )
    return amount
