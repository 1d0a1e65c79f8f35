"""What is read to its end although no cluster knows how long it can be: by Kubernetes' measure it costs any
amount, and the API server refuses the selector.

It knows the greatest length of attributes, of literals, and of what functions make of them. It does not of
what ``orValue()`` and ``value()`` give, nor of the elements of a list. Looked at is no more than that: a
selector with nothing of it may cost too much all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from dranet.cel.tree import Call, Const, Literal, Loop, Name, Node, Select, children

_OF_OPTIONALS = ("orValue", "value")
_READ_WHOLE = frozenset(
    {"contains", "matches", "find", "findAll", "split", "substring", "replace", "indexOf", "lastIndexOf"}
    | {"lowerAscii", "upperAscii", "trim", "includes", "join", "isSorted", "min", "max", "sum"}
    | {"isIP", "isCIDR", "isSemver", "isQuantity", "ip", "cidr", "semver", "quantity"}
)
"""Functions that read all of their first argument. Those that stop at a difference, as ``==`` and
``startsWith``, cost no more than the shorter of two."""
_READ_SECOND = ("containsIP", "containsCIDR", "@in")
_Lengths = Mapping[str, bool]
"""By name of a variable: whether a cluster knows its length."""


def find_unsized(tree: Node) -> str:
    """The function that reads to its end what may be of any length; empty if none does."""
    return next(_find(tree, MappingProxyType({})), "")


def _find(node: Node, lengths: _Lengths) -> Iterator[str]:
    match node:
        case Call(function, (first, *_)) if function in _READ_WHOLE and not _is_known(first, lengths):
            yield function
        case Call(function, (_, second)) if function in _READ_SECOND and not _is_known(second, lengths):
            yield function.removeprefix("@")
        case Loop() if not node.is_binding:
            if not _is_known(node.over, lengths):
                yield "all, exists, map or filter"
            yield from _find(node.over, lengths)
            lengths = {**lengths, **dict.fromkeys(node.variables, _has_known_elements(node.over, lengths))}
            yield from _find_in_all((node.step, node.condition), lengths)
            return
        case Loop():
            yield from _find(node.start, lengths)
            known = _is_known(node.start, lengths)
            yield from _find(node.result, {**lengths, node.result_variable: known})
            return
    yield from _find_in_all(children(node), lengths)


def _find_in_all(nodes: tuple[Node, ...], lengths: _Lengths) -> Iterator[str]:
    for node in nodes:
        yield from _find(node, lengths)


def _is_known(node: Node, lengths: _Lengths) -> bool:
    match node:
        case Name(name):
            return lengths.get(name, True)
        case Call("_?_:_", (_, one, other)):
            return _is_known(one, lengths) and _is_known(other, lengths)
        case Call("_[_]", (of, _)):
            return _has_known_elements(of, lengths)
        case Call(function, (first, *_)) if function in _OF_OPTIONALS:
            return isinstance(next(iter(children(first)), None), Literal | Loop)  # [...].first().value()
        case Loop() if node.is_binding:
            known = _is_known(node.start, lengths)
            return _is_known(node.result, {**lengths, node.result_variable: known})
    return True


def _has_known_elements(node: Node, lengths: _Lengths) -> bool:
    """Not those of an attribute that is a list, nor those that a function makes of text."""
    match node:
        case Select(operand) | Call("_[_]", (operand, Const(str()))):
            return isinstance(operand, Name)  # names of domains and attributes have a greatest length
        case Call("split" | "findAll"):
            return False
    return _is_known(node, lengths)
