"""A compiled expression as a tree, out of what the engine hands over (``cel.expr.CheckedExpr``).

Macros are expanded in it: ``has(a.b)`` is a :class:`Select` that tests, ``exists`` and ``cel.bind`` are a
:class:`Loop`, the latter over nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dranet.cel.values import NotJudged

Fields = dict[int, list[Any]]
"""The fields of a protobuf message: field number -> values; a message or a text is bytes."""

_TYPES, _EXPR, _VALUE_OF_ANY = 3, 4, 2
_NUMBER = 2
_DYN, _ABSTRACT = 1, 14
"""Field numbers of a type: any, and one that holds another."""


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
    """A call of a function or an operator (``_&&_``, ``_[_]``); ``target`` is the first of ``args``."""

    function: str
    args: tuple[Node, ...]


class Literal(NamedTuple):
    """A list, or the keys and values of a map."""

    items: tuple[Node, ...]
    is_map: bool = False
    types: tuple[bytes, ...] = ()
    """Types of the items as the checker found them: equal if the types are; empty for any type."""


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
    """Read what the engine has checked and serialised. Raises NotJudged for one that is nested too deeply."""
    checked = read_fields(_first(read_fields(serialized), _VALUE_OF_ANY, b""))
    pairs = [read_fields(entry) for entry in checked.get(_TYPES, ())]
    found = {_first(pair, 1, 0): _first(pair, 2, b"") for pair in pairs}
    types = {number: kind for number, kind in found.items() if _DYN not in read_fields(kind)}
    try:
        return _node(_first(checked, _EXPR, b""), types)
    except RecursionError:
        raise NotJudged("cannot be judged here: the expression is nested too deeply") from None


def children(node: Node) -> tuple[Node, ...]:
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
    yield tree
    for child in children(tree):
        yield from iter_nodes(child)


_Types = Mapping[int, bytes]
"""By the number of an expression; one of which any type may come is not there."""


def _node(data: bytes, types: _Types) -> Node:
    fields = read_fields(data)
    kind = next((number for number in range(3, 10) if number in fields), 0)
    inner = read_fields(fields[kind][0]) if kind else {}
    match kind:
        case 3:
            return _const(inner)
        case 4:
            return Name(_text(inner, 1))
        case 5:
            return Select(_node(_first(inner, 1, b""), types), _text(inner, 2), bool(_first(inner, 3, 0)))
        case 6:
            args = (item for number in (1, 3) for item in inner.get(number, ()))
            return Call(_text(inner, 2), tuple(_node(item, types) for item in args))
        case 7:
            return _list(inner, types)
        case 8:
            return _struct(inner, types)
        case 9:
            return _loop(inner, types)
    return Const(None)


def _const(fields: Fields) -> Node:
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


def _list(fields: Fields, types: _Types) -> Node:
    items = fields.get(1, ())
    optional = {place for packed in fields.get(2, ()) for place in _numbers(packed)}
    found = (_type_of(item, types, place in optional) for place, item in enumerate(items))
    return Literal(tuple(_node(item, types) for item in items), types=tuple(found))


def _struct(fields: Fields, types: _Types) -> Node:
    entries = [read_fields(entry) for entry in fields.get(2, ())]
    parts = [(_first(entry, n, b""), n == 4 and 5 in entry) for entry in entries for n in (3, 4)]
    found = tuple(_type_of(part, types, is_optional) for part, is_optional in parts if part)
    return Literal(tuple(_node(part, types) for part, _ in parts if part), is_map=True, types=found)


def _type_of(data: bytes, types: _Types, is_optional: bool) -> bytes:
    """Return the type of an item; for ``?x`` the type of the value that ``x`` may hold."""
    found = types.get(_first(read_fields(data), _NUMBER, 0), b"")
    if not (is_optional and found):
        return found
    held: bytes = _first(read_fields(_first(read_fields(found), _ABSTRACT, b"")), 2, b"")
    return b"" if _DYN in read_fields(held) else held


def _loop(fields: Fields, types: _Types) -> Node:
    variables = tuple(filter(None, (_text(fields, 1), _text(fields, 8))))
    over, start, condition, step, result = (_node(_first(fields, n, b""), types) for n in (2, 4, 5, 6, 7))
    return Loop(variables, over, _text(fields, 3), start, condition, step, result)


# --- protobuf's wire form ------------------------------------------------------------------------------


def read_fields(data: bytes) -> Fields:
    fields: Fields = {}
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
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place


def _numbers(packed: bytes | int) -> Iterator[int]:
    """A repeated number: one by one, or all in one text."""
    if isinstance(packed, int):
        yield packed
        return
    place = 0
    while place < len(packed):
        number, place = _varint(packed, place)
        yield number


def _first(fields: Fields, number: int, default: Any) -> Any:
    return fields[number][0] if number in fields else default


def _text(fields: Fields, number: int) -> str:
    return str(_first(fields, number, b"").decode())
