"""Values that an expression handles by their functions only: quantities, versions, addresses, URLs.

Each kind is one small protobuf message in the engine, so that its checker tells them apart as Kubernetes'
does. The message holds the canonical text: two of one kind are equal if their texts are.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from dranet.cel.scalars import CelError, Semver, parse_quantity

QUANTITY = "kubernetes.Quantity"
SEMVER = "kubernetes.Semver"
URL = "kubernetes.URL"
IP = "net.IP"
CIDR = "net.CIDR"
NOTHING = "dranet.Nothing"
"""Of which there is no value (see :mod:`dranet.cel.library`)."""
ATTRIBUTE = "v1.DeviceAttribute"
"""As the Go type is called in DraNet's filters."""

_TEXT = "opaque_text"
_TEXT_ONLY = ((_TEXT, "TYPE_STRING"),)
_ATTRIBUTE_FIELDS: Mapping[type, tuple[str, str]] = {
    int: ("IntValue", "TYPE_INT64"),
    bool: ("BoolValue", "TYPE_BOOL"),
    str: ("StringValue", "TYPE_STRING"),
}
_FIELDS = dict.fromkeys((QUANTITY, SEMVER, URL, IP, CIDR, NOTHING), _TEXT_ONLY) | {
    ATTRIBUTE: (*_ATTRIBUTE_FIELDS.values(), ("VersionValue", "TYPE_STRING"))
}


def new_opaque(kind: str, text: str) -> Any:
    """The engine's value of a kind; ``text`` is canonical."""
    return _message_class(kind)(**{_TEXT: text})


def text_of(value: Any, kind: str) -> str:
    """The text of a value, which may be of another kind where the checker knew no type.

    Raises:
        CelError: it is.
    """
    name = value.DESCRIPTOR.full_name
    if name != kind:
        raise CelError(f"no such overload: expected {kind}, not {name}")
    return str(getattr(value, _TEXT))


def new_attribute(value: object) -> Any:
    """The engine's value for one attribute as ``k8s.io/api`` has it in Go, with the one field set that fits.

    A list sets none of the four fields that DraNet's filters know.
    """
    message = _message_class(ATTRIBUTE)()
    for kind, (name, _) in _ATTRIBUTE_FIELDS.items():
        if type(value) is kind:
            setattr(message, name, value)
    return message


def new_quantity(text: str) -> Any:
    """The engine's value for a Kubernetes quantity; CelError if it is none."""
    return new_opaque(QUANTITY, str(parse_quantity(text)))


def new_semver(text: str, normalize: bool = False) -> Any:
    """The engine's value for a semantic version; CelError if it is none."""
    return new_opaque(SEMVER, Semver.parse(text, normalize).canonical)


@cache
def descriptor_pool() -> Any:
    """Messages with explicit presence (proto2): an unset field reads as empty, and ``has()`` tells."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    for kind, fields in _FIELDS.items():
        package, _, name = kind.rpartition(".")
        file = descriptor_pb2.FileDescriptorProto(name=f"dranet/{name}.proto", package=package)
        message = file.message_type.add(name=name)
        for number, (field, type_name) in enumerate(fields, start=1):
            message.field.add(name=field, number=number, type=type_name, label="LABEL_OPTIONAL")
        pool.AddSerializedFile(file.SerializeToString())
    return pool


@cache
def _message_class(name: str) -> Any:
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(descriptor_pool().FindMessageTypeByName(name))
