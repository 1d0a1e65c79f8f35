"""Literals that Kubernetes looks at when it compiles an expression, and the engine when it comes to them."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from typing import Any

from dranet.cel.scalars import NotJudged
from dranet.cel.tree import Call, Const, Literal, Loop, Name, Node, Select, children, iter_nodes

_UNJUDGED = "cannot be judged here"
_CONVERSIONS = ("duration", "timestamp", "int", "uint", "double", "bool")
_OPTIONALS = frozenset(
    {
        "_?._",
        "_[?_]",
        "or",
        "optional.of",
        "optional.none",
        "optional.ofNonZeroValue",
        "first",
        "last",
        "type",
    }
)
_TYPES = frozenset(
    {"bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint", "optional_type"}
    | {"google.protobuf.Duration", "google.protobuf.Timestamp", "net.IP", "net.CIDR"}
)
_OF_LISTS = frozenset({"sum", "min", "max", "isSorted", "includes"})
_PATTERNS = ("matches", "find", "findAll")
_INTEGERS = ("isInteger", "asInteger")
_WHOLE = re.compile(r"[+-]?\d+([kMGTPE]i?|Ki|[eE]\+?\d+)?", re.ASCII)
"""A quantity that is written as a whole number."""


def find_bad_literal(node: Node) -> str:
    """Why a cluster does not compile the expression; empty if it does."""
    if find_mixed_literal(node):
        return (
            "a list or map has values of different types; an attribute may be of any type, and beside one "
            "every other value takes dyn(...)"
        )
    return _find_unreadable(node)


def find_mixed_literal(node: Node) -> Literal | None:
    """A list or map whose items are of different types; what may be of any type is a type of its own.

    What ``format`` is given may be mixed.
    """
    if isinstance(node, Call) and node.function == "format":
        return None
    if isinstance(node, Literal):
        step = 2 if node.is_map else 1
        if any(len(set(node.types[start::step])) > 1 for start in range(step)):
            return node
    return next(filter(None, map(find_mixed_literal, children(node))), None)


def check_handed_over(tree: Node) -> None:
    """Refuse what could hand our functions a list with an optional or a type in it.

    The engine cannot convert these for Python, does not notice, and ends the process.

    Raises:
        NotJudged: it could.
    """
    nodes = list(iter_nodes(tree))
    if not any(isinstance(node, Call) and node.function in _OF_LISTS for node in nodes):
        return
    kept = [item for node in nodes if isinstance(node, Literal) for item in node.items]
    kept += [node.start for node in nodes if isinstance(node, Loop)]
    if any(map(_cannot_be_converted, kept)):
        raise NotJudged(f"{_UNJUDGED}: an optional or a type in a list, beside functions of lists")


def check_differences(tree: Node) -> None:
    """Refuse that in which Kubernetes and the engine differ.

    A quantity that is written as a fraction (``1.5Gi``, ``1000m``) is no integer there, whatever it comes to;
    a sum of quantities on the right of ``==`` is an error; a duration is told in milliseconds as a whole;
    every domain is a field of ``device.attributes``.

    Raises:
        NotJudged: the expression has something of it.
    """
    nodes = list(iter_nodes(tree))
    asks_for_integer = any(isinstance(node, Call) and node.function in _INTEGERS for node in nodes)
    for node in nodes:
        match node:
            case Call("_==_" | "_!=_", (_, Call("add" | "sub"))):
                raise NotJudged(f"{_UNJUDGED}: a sum of quantities on the right of ==; put it on the left")
            case Call("getMilliseconds"):
                raise NotJudged(f"{_UNJUDGED}: the milliseconds of a duration")
            case Call("quantity", (Const(str() as text),)) if asks_for_integer and not _WHOLE.fullmatch(text):
                raise NotJudged(f"{_UNJUDGED}: whether {text!r}, no whole number, is an integer")
            case Select(Name("device.attributes" | "device.capacity"), _, True):
                raise NotJudged(
                    f'{_UNJUDGED}: has() of a domain by field; "domain" in device.attributes tells'
                )


def _cannot_be_converted(node: Node) -> bool:
    match node:
        case Name(name):
            return name in _TYPES
        case Call("dyn", (inner,)):
            return _cannot_be_converted(inner)
        case Call("_?_:_", (_, one, other)):
            return _cannot_be_converted(one) or _cannot_be_converted(other)
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
    """What the engine itself says of a text."""
    cel: Any = import_module("cel_expr_python.cel")
    env = cel.NewEnv(variables={"text": cel.Type.STRING})
    expressions = {name: f"{name}(text)" for name in _CONVERSIONS} | {"matches": "''.matches(text)"}
    return {name: env.compile(expression) for name, expression in expressions.items()}
