"""A compiled expression as a tree, out of what the engine hands over (``cel.expr.CheckedExpr``).

Macros are expanded in it: ``has(a.b)`` is a :class:`Select` that tests, ``exists`` and ``cel.bind`` are a
:class:`Loop`, the latter over nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from dranet.cel.scalars import NotJudged

Fields = dict[int, list[Any]]
"""Of a protobuf message: field number -> values; a message or a text is bytes."""

_EXPR, _VALUE_OF_ANY = 4, 2
_CONST, _NAME, _SELECT, _CALL, _LIST, _STRUCT, _LOOP = 3, 4, 5, 6, 7, 8, 9


class Const(NamedTuple):
    """A literal; ``None`` for null, bytes and what has no plain value."""

    value: object


class Name(NamedTuple):
    name: str


class Select(NamedTuple):
    operand: Node
    field: str
    is_test: bool = False


class Call(NamedTuple):
    """Of a function or an operator (``_&&_``, ``_[_]``); ``target`` first among ``args``."""

    function: str
    args: tuple[Node, ...]


class Literal(NamedTuple):
    """A list, or the keys and values of a map."""

    items: tuple[Node, ...]
    is_map: bool = False


class Loop(NamedTuple):
    variables: tuple[str, ...]
    over: Node
    result_variable: str
    start: Node
    condition: Node
    step: Node
    result: Node

    @property
    def is_binding(self) -> bool:
        """``cel.bind``: ``result_variable`` stands for ``start`` in ``result``."""
        return isinstance(self.over, Literal) and not self.over.items


Node = Const | Name | Select | Call | Literal | Loop


def parse_tree(serialized: bytes) -> Node:
    """The tree of an expression that the engine has checked and serialised.

    Raises:
        NotJudged: it is nested too deeply to be looked at.
    """
    checked = read_fields(_first(read_fields(serialized), _VALUE_OF_ANY, b""))
    try:
        return _node(_first(checked, _EXPR, b""))
    except RecursionError:
        raise NotJudged("cannot be judged here: the expression is nested too deeply") from None


def children(node: Node) -> tuple[Node, ...]:
    """What a node is made of."""
    match node:
        case Select(operand):
            return (operand,)
        case Call(_, args):
            return args
        case Literal(items):
            return items
        case Loop():
            return (node.over, node.start, node.condition, node.step, node.result)
    return ()


def iter_nodes(tree: Node) -> Iterator[Node]:
    """The tree and all that it is made of."""
    yield tree
    for child in children(tree):
        yield from iter_nodes(child)


def _node(data: bytes) -> Node:
    fields = read_fields(data)
    for number, build in _BUILDERS.items():
        if number in fields:
            node: Node = build(fields[number][0])
            return node
    return Const(None)


def _const(data: bytes) -> Node:
    fields = read_fields(data)
    for number, values in fields.items():
        match number:
            case 2:
                return Const(bool(values[0]))
            case 3:
                return Const(values[0] - 2**64 if values[0] >= 2**63 else values[0])
            case 4:
                return Const(values[0])
            case 5:
                return Const(struct.unpack("<d", values[0])[0])
            case 6:
                return Const(values[0].decode())
    return Const(None)


def _name(data: bytes) -> Node:
    return Name(_text(read_fields(data), 1))


def _select(data: bytes) -> Node:
    fields = read_fields(data)
    return Select(_node(_first(fields, 1, b"")), _text(fields, 2), bool(_first(fields, 3, 0)))


def _call(data: bytes) -> Node:
    fields = read_fields(data)
    return Call(_text(fields, 2), tuple(_node(item) for n in (1, 3) for item in fields.get(n, ())))


def _list(data: bytes) -> Node:
    return Literal(tuple(_node(item) for item in read_fields(data).get(1, ())))


def _struct(data: bytes) -> Node:
    entries = [read_fields(entry) for entry in read_fields(data).get(2, ())]
    parts = (_first(entry, number, b"") for entry in entries for number in (3, 4))
    return Literal(tuple(_node(part) for part in parts if part), is_map=True)


def _loop(data: bytes) -> Node:
    fields = read_fields(data)
    variables = tuple(filter(None, (_text(fields, 1), _text(fields, 8))))
    over, start, condition, step, result = (_node(_first(fields, n, b"")) for n in (2, 4, 5, 6, 7))
    return Loop(variables, over, _text(fields, 3), start, condition, step, result)


_BUILDERS = {
    _CONST: _const,
    _NAME: _name,
    _SELECT: _select,
    _CALL: _call,
    _LIST: _list,
    _STRUCT: _struct,
    _LOOP: _loop,
}


# --- protobuf's wire form ------------------------------------------------------------------------------


def read_fields(data: bytes) -> Fields:
    """The fields of one message."""
    fields: Fields = {}
    for number, value in _iter_fields(data):
        fields.setdefault(number, []).append(value)
    return fields


def _iter_fields(data: bytes) -> Iterator[tuple[int, Any]]:
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        value: Any
        match key & 7:
            case 0:
                value, place = _varint(data, place)
            case 2:
                length, place = _varint(data, place)
                value, place = data[place : place + length], place + length
            case fixed:
                size = 8 if fixed == 1 else 4
                value, place = data[place : place + size], place + size
        yield key >> 3, value


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place


def _first(fields: Fields, number: int, default: Any) -> Any:
    return fields[number][0] if number in fields else default


def _text(fields: Fields, number: int) -> str:
    return str(_first(fields, number, b"").decode())
