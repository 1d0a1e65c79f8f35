"""The CEL engine (cel-expr-python, an optional extra), set up for the device dialect at first use.

Quantities and versions enter it as one small protobuf message: the engine tells overloads apart by kind only,
and every message is of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any, Protocol

from dranet.cel.scalars import NANO, CelError, Semver, parse_quantity
from dranet.errors import Reason

_STRUCT = "kubernetes.Scalar"
_ATTRIBUTE = "v1.DeviceAttribute"
"""As the Go type is called in DraNet's filters."""

_ATTRIBUTE_FIELDS: Mapping[type, tuple[str, str]] = {
    int: ("IntValue", "TYPE_INT64"),
    bool: ("BoolValue", "TYPE_BOOL"),
    str: ("StringValue", "TYPE_STRING"),
}
_QUANTITY, _SEMVER = "quantity", "semver"
_INT64 = range(-(2**63), 2**63)

_Row = tuple[Any, ...]
"""Name, result type, implementation, and the parameter types of each overload."""


class Variables(Enum):
    """What an expression may speak of."""

    DEVICE = "device"
    DEVICE_OLDER_FORM = "device, and attributes as in DraNet"
    """Also ``attributes``, a map of :func:`new_attribute` values."""
    VALUE = "claim.namespace and value"
    """``namespace`` alone is a reserved word of CEL. ``value`` may be any JSON."""


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


def compile_program(expression: str, variables: Variables) -> Program:
    """Parse and check.

    Raises:
        RuntimeError: the engine's complaint, with the place in the expression.
        CelError: MissingFeature, the engine is not installed.
    """
    program: Program = _environment(variables).compile(expression)
    return program


def new_attribute(value: object) -> Any:
    """The engine's value for one attribute as ``k8s.io/api`` has it in Go, with the one field set that fits.

    A list sets none of the four fields that DraNet's filters know.
    """
    message = _message_class(_ATTRIBUTE)()
    for kind, (name, _) in _ATTRIBUTE_FIELDS.items():
        if type(value) is kind:
            setattr(message, name, value)
    return message


def new_quantity(text: str) -> Any:
    """The engine's value for a Kubernetes quantity; CelError if it is none."""
    return _from_nanos(parse_quantity(text))


def new_semver(text: str, normalize: bool = False) -> Any:
    """The engine's value for a semantic version; CelError if it is none."""
    return _scalar(_SEMVER, Semver.parse(text, normalize).canonical)


@cache
def _descriptor_pool() -> Any:
    """Messages with explicit presence (proto2): an unset field reads as empty, and ``has()`` tells."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    text = "TYPE_STRING"
    attribute_fields = (*_ATTRIBUTE_FIELDS.values(), ("VersionValue", text))
    pool = descriptor_pool.DescriptorPool()
    for struct, fields in ((_STRUCT, (("kind", text), ("text", text))), (_ATTRIBUTE, attribute_fields)):
        package, _, name = struct.rpartition(".")
        file = descriptor_pb2.FileDescriptorProto(name=f"dranet/{name}.proto", package=package)
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields, start=1):
            message.field.add(name=field, number=number, type=kind, label="LABEL_OPTIONAL")
        pool.AddSerializedFile(file.SerializeToString())
    return pool


@cache
def _message_class(name: str) -> Any:
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(_descriptor_pool().FindMessageTypeByName(name))


@cache
def _environment(variables: Variables) -> Any:
    """The engine's environments, each made once. Its package has no type information, hence by name."""
    try:
        cel = import_module("cel_expr_python.cel")
        names = ("ext_bindings", "ext_optional", "ext_strings")
        bindings, optional, strings = (import_module(f"cel_expr_python.ext.{name}") for name in names)
    except ImportError as error:
        raise CelError(
            "CEL expressions need an engine that is not installed",
            hint="install the package cel-expr-python, or dranet with its extra filter or testbed",
            reason=Reason.MISSING_FEATURE,
        ) from error
    scalar = cel.Type(_STRUCT)
    return cel.NewEnv(
        descriptor_pool=_descriptor_pool(),
        variables=_declarations(cel, scalar, variables),
        extensions=[optional.ExtOptional(), strings.ExtStrings(2), bindings.ExtBindings()],
        functions=list(_functions(cel, scalar)),
    )


def _declarations(cel: Any, scalar: Any, variables: Variables) -> dict[str, Any]:
    string, by_name = cel.Type.STRING, cel.Type.Map
    if variables is Variables.VALUE:
        return {"claim.namespace": string, "value": cel.Type.DYN}
    declared = {
        "device.driver": string,
        "device.attributes": by_name(string, by_name(string, cel.Type.DYN)),
        "device.capacity": by_name(string, by_name(string, scalar)),
        "device.allowMultipleAllocations": cel.Type.BOOL,
    }
    if variables is Variables.DEVICE_OLDER_FORM:
        declared["attributes"] = by_name(string, cel.Type(_ATTRIBUTE))
    return declared


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
    return _message_class(_STRUCT)(kind=kind, text=text)
