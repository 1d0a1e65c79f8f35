"""The CEL engine (cel-expr-python, an optional extra), set up for the device dialect at first use.

Quantities and versions enter it as one small protobuf message: the engine tells overloads apart by kind only,
and every message is of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Protocol

from dranet.cel.scalars import NANO, CelError, Semver, parse_quantity

_STRUCT = "kubernetes.Scalar"
_QUANTITY, _SEMVER = "quantity", "semver"
_INT64 = range(-(2**63), 2**63)

_Row = tuple[Any, ...]
"""Name, result type, implementation, and the parameter types of each overload."""


class _Type(Protocol):
    def name(self) -> str: ...


class Value(Protocol):
    def type(self) -> _Type: ...
    def value(self) -> object: ...
    def plain_value(self) -> object: ...


class Program(Protocol):
    """What we use of the engine's ``Expression``; the package ships no type information of its own."""

    def return_type(self) -> _Type: ...
    def eval(self, *, data: Mapping[str, Any]) -> Value: ...


def compile_program(expression: str) -> Program:
    """Parse and check.

    Raises:
        RuntimeError: the engine's complaint, with the place in the expression.
    """
    program: Program = _environment().compile(expression)
    return program


def new_quantity(text: str) -> Any:
    """The engine's value for a Kubernetes quantity; CelError if it is none."""
    return _from_nanos(parse_quantity(text))


def new_semver(text: str, normalize: bool = False) -> Any:
    """The engine's value for a semantic version; CelError if it is none."""
    return _scalar(_SEMVER, Semver.parse(text, normalize).canonical)


@cache
def _descriptor_pool() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="dranet/cel.proto", package="kubernetes", syntax="proto3")
    message = file.message_type.add(name=_STRUCT.rpartition(".")[2])
    for number, name in enumerate(("kind", "text"), start=1):
        message.field.add(name=name, number=number, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


@cache
def _scalar_class() -> Any:
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(_descriptor_pool().FindMessageTypeByName(_STRUCT))


@cache
def _environment() -> Any:
    """The engine's environment, made once. Its package has no type information, hence by name."""
    try:
        cel = import_module("cel_expr_python.cel")
        names = ("ext_bindings", "ext_optional", "ext_strings")
        bindings, optional, strings = (import_module(f"cel_expr_python.ext.{name}") for name in names)
    except ImportError as error:
        raise CelError(
            "device selectors need the CEL engine, which is not installed",
            hint="install dranet with its testbed extra",
        ) from error
    scalar = cel.Type(_STRUCT)
    return cel.NewEnv(
        descriptor_pool=_descriptor_pool(),
        variables={
            "device.driver": cel.Type.STRING,
            "device.attributes": cel.Type.Map(cel.Type.STRING, cel.Type.Map(cel.Type.STRING, cel.Type.DYN)),
            "device.capacity": cel.Type.Map(cel.Type.STRING, cel.Type.Map(cel.Type.STRING, scalar)),
            "device.allowMultipleAllocations": cel.Type.BOOL,
        },
        extensions=[optional.ExtOptional(), strings.ExtStrings(2), bindings.ExtBindings()],
        functions=list(_functions(cel, scalar)),
    )


def _functions(cel: Any, scalar: Any) -> Iterator[Any]:
    """Declarations of Kubernetes' quantity and semver libraries."""
    string, boolean, integer, double = cel.Type.STRING, cel.Type.BOOL, cel.Type.INT, cel.Type.DOUBLE
    text, normalized, one = (string,), (string, boolean), (scalar,)
    two, with_integer = (scalar, scalar), (scalar, integer)
    creators: Sequence[_Row] = (
        ("quantity", scalar, new_quantity, text),
        ("isQuantity", boolean, _succeeds(new_quantity), text),
        ("semver", scalar, new_semver, text, normalized),
        ("isSemver", boolean, _succeeds(new_semver), text, normalized),
    )
    members: Sequence[_Row] = (
        ("isGreaterThan", boolean, lambda a, b: _compare(a, b) > 0, two),
        ("isLessThan", boolean, lambda a, b: _compare(a, b) < 0, two),
        ("compareTo", integer, _compare, two),
        ("add", scalar, lambda a, b: _from_nanos(_nanos(a) + _nanos(b)), two, with_integer),
        ("sub", scalar, lambda a, b: _from_nanos(_nanos(a) - _nanos(b)), two, with_integer),
        ("sign", integer, lambda a: (_nanos(a) > 0) - (_nanos(a) < 0), one),
        ("isInteger", boolean, _succeeds(_as_integer), one),
        ("asInteger", integer, _as_integer, one),
        ("asApproximateFloat", double, lambda a: _nanos(a) / NANO, one),
        ("major", integer, lambda a: _semver(a).major, one),
        ("minor", integer, lambda a: _semver(a).minor, one),
        ("patch", integer, lambda a: _semver(a).patch, one),
    )
    yield from (_declare(cel, row, member=False) for row in creators)
    yield from (_declare(cel, row, member=True) for row in members)


def _declare(cel: Any, row: _Row, *, member: bool) -> Any:
    name, result, implementation, *signatures = row
    return cel.FunctionDecl(
        name,
        [
            cel.Overload(
                f"{name}_{number}",
                return_type=result,
                parameters=list(parameters),
                is_member=member,
                impl=implementation,
            )
            for number, parameters in enumerate(signatures)
        ],
    )


def _nanos(value: Any) -> int:
    if isinstance(value, int):
        return value * NANO
    if value.kind != _QUANTITY:
        raise CelError("expected a quantity, not a semver")
    return int(value.text)


def _semver(value: Any) -> Semver:
    if value.kind != _SEMVER:
        raise CelError("expected a semver, not a quantity")
    return Semver.parse(value.text)


def _compare(a: Any, b: Any) -> int:
    if a.kind == _SEMVER:
        x, y = _semver(a).sort_key, _semver(b).sort_key
        return (x > y) - (x < y)
    return (_nanos(a) > _nanos(b)) - (_nanos(a) < _nanos(b))


def _as_integer(value: Any) -> int:
    nanos = _nanos(value)
    if nanos % NANO or nanos // NANO not in _INT64:
        raise CelError("the quantity is not a 64-bit integer")
    return nanos // NANO


def _succeeds(function: Callable[..., object]) -> Callable[..., bool]:
    def succeeds(*args: Any) -> bool:
        try:
            function(*args)
        except CelError:
            return False
        return True

    return succeeds


def _from_nanos(nanos: int) -> Any:
    return _scalar(_QUANTITY, str(nanos))


def _scalar(kind: str, text: str) -> Any:
    return _scalar_class()(kind=kind, text=text)
