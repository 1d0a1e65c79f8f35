"""Which attributes and capacities of a device an expression looks at, also by way of ``cel.bind``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from dranet.cel.tree import Call, Const, Literal, Loop, Name, Node, Select, children

OWN_DOMAIN = ""
"""The domain of ``device.attributes[device.driver]``."""

_TABLES = {"device.attributes": "attributes", "device.capacity": "capacity"}
_LOOK_UPS = ("_[_]", "_[?_]", "_?._")
_NO_COMPARISON = ("_!=_", "orValue")
_EQUALITIES = ("_==_", "@in")
_COMPARISONS = ("_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "@in")
_BESIDE = {"_>_": 1, "_<_": -1}
_Bindings = Mapping[str, Node]


class Use(NamedTuple):
    """One look-up that names what it wants."""

    table: str
    """``attributes`` or ``capacity``."""
    domain: str
    name: str
    is_guarded: bool
    """A device without it is no error at this place: ``has()``, ``?`` or ``in``."""


def find_uses(tree: Node) -> tuple[Use, ...]:
    """Each use once, in the order of the expression."""
    return tuple(dict.fromkeys(_walk(tree, MappingProxyType({}))))


def find_comparisons(tree: Node) -> tuple[tuple[Use, object], ...]:
    """Attributes with a value that satisfies a comparison: the literal, or the number next to it."""
    return tuple(_find_comparisons(tree))


def _find_comparisons(tree: Node) -> Iterator[tuple[Use, object]]:
    for function, one, other, beyond, bindings in _walk_pairs(tree, MappingProxyType({})):
        use, literal = _use(_plain(one, bindings), bindings), _literal(other)
        if use is None or literal is None or function in _NO_COMPARISON:
            continue
        yield use, literal + beyond * _BESIDE.get(function, 0) if type(literal) is int else literal


def find_literals(tree: Node) -> tuple[tuple[Use, object, bool], ...]:
    """Attributes that are compared just as they are, and the literals that they are compared with; and
    whether it is asked if they are equal."""
    triples = (
        (_use(_resolve(one, bindings), bindings), _literal(other), function in _EQUALITIES)
        for function, one, other, _, bindings in _walk_pairs(tree, MappingProxyType({}))
        if function in _COMPARISONS
    )
    return tuple((use, literal, equal) for use, literal, equal in triples if use and literal is not None)


_Pair = tuple[str, Node, Node, int, _Bindings]


def _walk_pairs(node: Node, bindings: _Bindings) -> Iterator[_Pair]:
    """Each call of two, either way round: function, the one, the other, 1 or -1."""
    if isinstance(node, Call) and len(node.args) == 2:
        yield node.function, *node.args, 1, bindings
        yield node.function, *node.args[::-1], -1, bindings
    inner = bindings
    if isinstance(node, Loop) and node.is_binding:
        inner = {**bindings, node.result_variable: node.start}
    for child in children(node):
        yield from _walk_pairs(child, inner)


def _plain(node: Node, bindings: _Bindings) -> Node:
    """Without ``orValue`` around it."""
    node = _resolve(node, bindings)
    return node.args[0] if isinstance(node, Call) and node.function == "orValue" else node


def _literal(node: Node) -> object:
    """A literal, or the first of a list of them."""
    if isinstance(node, Literal) and node.items:
        return _literal(node.items[0])
    return node.value if isinstance(node, Const) else None


def _walk(node: Node, bindings: _Bindings) -> Iterator[Use]:
    use = _use(node, bindings)
    if use:
        yield use
    if isinstance(node, Loop) and node.is_binding:
        yield from _walk(node.start, bindings)
        yield from _walk(node.result, {**bindings, node.result_variable: node.start})
        return
    for child in children(node):
        yield from _walk(child, bindings)


def _use(node: Node, bindings: _Bindings) -> Use | None:
    match node:
        case Select(operand, name, is_test):
            place, is_guarded = _domain(operand, bindings), is_test
        case Call(function, (operand, Const(str() as name))) if function in _LOOK_UPS:
            place, is_guarded = _domain(operand, bindings), function != "_[_]"
        case Call("@in", (Const(str() as name), operand)):
            place, is_guarded = _domain(operand, bindings), True
        case _:
            return None
    return Use(*place, name, is_guarded) if place else None


def _domain(node: Node, bindings: _Bindings) -> tuple[str, str] | None:
    """Table and domain, if the node is the map of one domain."""
    node = _resolve(node, bindings)
    match node:
        case Call("orValue", (inner, _)):
            return _domain(inner, bindings)
        case Call(function, (outer, key)) if function in _LOOK_UPS:
            outer, key = _resolve(outer, bindings), _resolve(key, bindings)
            table = _TABLES.get(outer.name) if isinstance(outer, Name) else None
            if table and isinstance(key, Const) and isinstance(key.value, str):
                return table, key.value
            if table and key == Name("device.driver"):
                return table, OWN_DOMAIN
    return None


def _resolve(node: Node, bindings: _Bindings) -> Node:
    seen = 0
    while isinstance(node, Name) and node.name in bindings and seen < len(bindings):
        node, seen = bindings[node.name], seen + 1
    return node
