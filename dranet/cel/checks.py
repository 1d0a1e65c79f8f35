"""Refuse compiled expressions that the engine accepts and a cluster does not: literals that Kubernetes judges
when it compiles, and what is too large or too much work.

The engine stops after 10,000 iterations, but not at ``cel.bind(a, x + x, cel.bind(b, a + a, ...))``, which
doubles a text with every line, nor at ``lists.range(1000000000)``. Kubernetes refuses both as too costly.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dranet.cel.tree import Call, Const, Literal, Loop, Name, Node, Select, children, iter_nodes
from dranet.cel.values import NotJudged

_UNJUDGED = "cannot be judged here"
_CONVERSIONS = ("duration", "timestamp", "int", "uint", "double", "bool")
_OPTIONALS = frozenset(
    {"_?._", "_[?_]", "or", "first", "last", "type"}
    | {"optional.of", "optional.none", "optional.ofNonZeroValue"}
)
_TYPES = frozenset(
    {"bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint", "optional_type"}
    | {"google.protobuf.Duration", "google.protobuf.Timestamp", "net.IP", "net.CIDR"}
)
_OF_LISTS = ("sum", "min", "max", "isSorted", "includes")
_PATTERNS = ("matches", "find", "findAll")


def find_bad_literal(node: Node) -> str:
    """Why a cluster does not compile the expression; empty if it does."""
    if find_mixed_literal(node):
        return (
            "a list or map has values of different types; an attribute may be of any type, and next to "
            "one every other value takes dyn(...)"
        )
    return _find_unreadable(node)


def find_mixed_literal(node: Node) -> Literal | None:
    """A list or map whose items are of different types; what may be of any type is a type of its own."""
    if isinstance(node, Call) and node.function == "format":  # what it is given may be mixed
        return None
    if isinstance(node, Literal):
        step = 2 if node.is_map else 1
        if any(len(set(node.types[start::step])) > 1 for start in range(step)):
            return node
    return next(filter(None, map(find_mixed_literal, children(node))), None)


def check_handed_over(tree: Node) -> None:
    """Raises NotJudged for what could hand our functions a list with an optional or a type in it: the engine
    cannot convert these for Python, does not notice, and ends the process."""
    nodes = list(iter_nodes(tree))
    if not any(isinstance(node, Call) and node.function in _OF_LISTS for node in nodes):
        return
    kept = [item for node in nodes if isinstance(node, Literal) for item in node.items]
    kept += [node.start for node in nodes if isinstance(node, Loop)]
    if any(map(_cannot_be_converted, kept)):
        raise NotJudged(f"{_UNJUDGED}: an optional or a type in a list, together with functions of lists")


def _cannot_be_converted(node: Node) -> bool:
    match node:
        case Name(name):
            return name in _TYPES
        case Call("dyn", inner) | Call("_?_:_", (_, *inner)):
            return any(map(_cannot_be_converted, inner))
        case Call(function):
            return function in _OPTIONALS
        case Loop() if node.is_binding:
            return _cannot_be_converted(node.result)
    return False


def _find_unreadable(node: Node) -> str:
    """A text that is no regular expression, duration, time or number, where it has to be one."""
    match node:
        case Call(function, (_, Const(str() as text), *_)) if function in _PATTERNS:
            if not _can_be_read("matches", text):
                return f"{text!r} is not a regular expression (RE2)"
        case Call(function, (Const(str() as text),)) if function in _CONVERSIONS:
            if not _can_be_read(function, text):
                return f"{function} of {text!r} is an error"
    return next(filter(None, map(_find_unreadable, children(node))), "")


def _can_be_read(function: str, text: str) -> bool:
    return bool(_programs()[function].eval(data={"text": text}).type().name() != "ERROR")


@cache
def _programs() -> dict[str, Any]:
    cel: Any = import_module("cel_expr_python.cel")
    env = cel.NewEnv(variables={"text": cel.Type.STRING})
    expressions = {name: f"{name}(text)" for name in _CONVERSIONS} | {"matches": "''.matches(text)"}
    return {name: env.compile(expression) for name, expression in expressions.items()}


MOST = 10_000_000
"""Characters and elements, of one value or handled in all. By Kubernetes' measure they cost the limit."""

_MOST_ITERATIONS = 10_000
"""The engine's."""


class Size(Struct, frozen=True):
    """The size of a value: its elements, all characters and elements in it, and the work to make it."""

    count: int = 1
    weight: int = 1
    work: int = 1


_ATTRIBUTE = Size(64, 48 * 64)
"""48 values of at most 64 characters; a string of 64."""
_VARIABLES = Size(32, 32 * _ATTRIBUTE.weight)
_VALUE = Size(10_240, 10_240)
"""The parameters of a claim."""
_SMALL = frozenset(
    {"size", "matches", "contains", "startsWith", "endsWith", "indexOf", "lastIndexOf"}
    | {"isSorted", "includes"}
    | {"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "@in", "int", "uint", "double", "bool", "charAt"}
)
"""Functions whose result is a number, a bool or one character."""


_LOGIC = frozenset({"!_", "_&&_", "_||_", "@not_strictly_false", "hasValue"})
_LOOK_UPS = frozenset({"_[_]", "_[?_]", "_?._"})


def check_bounds(tree: Node) -> None:
    """Raises NotJudged for what may take too much memory or time."""
    _measure(tree, MappingProxyType({}))


def _measure(node: Node, known: Mapping[str, Size]) -> Size:
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


def _measure_loop(loop: Loop, known: Mapping[str, Size]) -> Size:
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


def _measure_call(call: Call, known: Mapping[str, Size]) -> Size:
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


def passes_table_on(tree: Node) -> bool:
    """Whether a whole table is passed on, so that an unknown domain cannot be given its empty map."""
    for node in iter_nodes(tree):
        match node:
            case Call(function, (Name(), key)) if function in _LOOK_UPS:
                passed_on: tuple[Node, ...] = (key,)
            case Call("@in", (key, Name())):
                passed_on = (key,)
            case Call("size", (Name(),)):
                passed_on = ()
            case Loop(over=Name()):
                passed_on = (node.start, node.condition, node.step, node.result)
            case Loop(start=Name()) if node.is_binding:
                passed_on = (node.result,)
            case _:
                passed_on = children(node)
        names = [one.name for one in passed_on if isinstance(one, Name)]
        if "device.attributes" in names or "device.capacity" in names:
            return True
    return False
