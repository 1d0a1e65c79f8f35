"""Values that the engine knows as messages of ours: quantities, versions, addresses, URLs, attributes.

Each kind is one small protobuf message, so that the engine's checker distinguishes them as Kubernetes' does.
The message holds the canonical text: two values of one kind are equal if their texts are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from dranet import quantity
from dranet.errors import ClaimError


class CelError(ClaimError):
    """A selector that cannot be compiled or evaluated; in a cluster it stops the scheduling of the pod."""

    cited = ""
    """The expression that the message ends with."""

    @property
    def cause(self) -> str:
        """The message without the expression, for places that show the expression already."""
        return self.message.removesuffix(f": {self.cited}")


class NotJudged(CelError):
    """The expression cannot be judged here: a cluster may well accept and evaluate it."""


def parse_quantity(text: str) -> int:
    """Parse a Kubernetes quantity into billionths; raises CelError."""
    try:
        return quantity.parse_quantity(text)
    except ValueError as error:
        raise CelError(str(error)) from None


class Semver(NamedTuple):
    """Semantic version 2.0.0; build metadata takes no part in comparison and is dropped."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, normalize: bool = False) -> Semver:
        match = _SEMVER_TEXT.fullmatch(_normalized(text) if normalize else text)
        tail = tuple(match[4].split(".")) if match and match[4] else ()
        numbers = (*match.groups()[:3], *filter(str.isdigit, tail)) if match else ()
        if not match or any(len(n) > 20 or int(n) >= 2**64 for n in numbers):
            raise CelError(f"{text!r} is not a semantic version, e.g. 1.2.3")
        return cls(int(match[1]), int(match[2]), int(match[3]), tail)

    @property
    def canonical(self) -> str:
        base = f"{self.major}.{self.minor}.{self.patch}"
        return f"{base}-{'.'.join(self.prerelease)}" if self.prerelease else base

    @property
    def sort_key(self) -> tuple[Any, ...]:
        """A release comes after its pre-releases; numeric identifiers before the others."""
        tail = tuple((not p.isdigit(), int(p) if p.isdigit() else 0, p) for p in self.prerelease)
        return (self.major, self.minor, self.patch, not tail, tail)


_NUMBER = r"(0|[1-9]\d*)"
_IDENTIFIER = r"(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)"
_SEMVER_TEXT = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)


def _normalized(text: str) -> str:
    """Without a leading ``v``, with all three numbers and no leading zeros; a short one has no tail."""
    match = re.fullmatch(r"v?(\d+)(?:\.(\d+)(?:\.(\d+)([-+].*)?)?)?", text, re.ASCII | re.DOTALL)
    if not match:
        return text
    return ".".join((n or "").lstrip("0") or "0" for n in match.groups()[:3]) + (match[4] or "")


QUANTITY = "kubernetes.Quantity"
SEMVER = "kubernetes.Semver"
URL = "kubernetes.URL"
IP = "net.IP"
CIDR = "net.CIDR"
NOTHING = "dranet.Nothing"
"""A type without values (see :mod:`dranet.cel.library`)."""
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
    """Raises CelError for a value of another kind, which it may be where the checker knew no type."""
    name = value.DESCRIPTOR.full_name
    if name != kind:
        raise CelError(f"no such overload: expected {kind}, not {name}")
    return str(getattr(value, _TEXT))


def new_attribute(value: object) -> Any:
    """One attribute as ``k8s.io/api`` has it in Go, with the one field set that fits; a list sets none."""
    message = _message_class(ATTRIBUTE)()
    for kind, (name, _) in _ATTRIBUTE_FIELDS.items():
        if type(value) is kind:
            setattr(message, name, value)
    return message


def new_quantity(text: str) -> Any:
    """Raises CelError for what is no Kubernetes quantity."""
    return new_opaque(QUANTITY, str(parse_quantity(text)))


def new_semver(text: str, normalize: bool = False) -> Any:
    """Raises CelError for what is no semantic version."""
    return new_opaque(SEMVER, Semver.parse(text, normalize).canonical)


@cache
def descriptor_pool() -> Any:
    """Messages with explicit presence (proto2): an unset field reads as empty, and ``has()`` is false."""
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
