"""Checks of single values of the parameters, as CEL derived from the field's annotation.

Types, numbers and choices are read from the annotation itself. A validator is code, so each has its CEL here,
with the code's own patterns and texts; an unknown validator is an error, which a test finds. Where CEL's
libraries are stricter than the code (IPv4 in IPv6, ``/08``), the value passes and Prepare decides."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from msgspec import Struct

from dranet.model.ipam import IPAM_NAME_PATTERN
from dranet.model.parameters import network as network_policy
from dranet.model.parameters import part, values
from dranet.model.parameters.part import (
    AfterValidator,
    BeforeValidator,
    FieldInfo,
    Limit,
    WithJsonSchema,
)
from dranet.model.parameters.values import VALUE_MAX_BYTES
from tools.manifests.cel_text import chain, quote, quote_all

Case = tuple[str, str]
"""A condition on ``x`` under which the value is wrong, and the text (CEL) of what it must be."""

_TYPES = {int: ("int", "must be a whole number"), bool: ("bool", "must be true or false")}
_TYPES |= {str: ("string", "must be text")}
_NOT_TEXT = ("type(x) != string", quote("must be text"))
PATHS = "paths"
"""The variable with the paths of all fields, which a policy of a DeviceClass may name."""
_X = re.compile(r"(?<![\w'])x(?![\w'])")
_BEYOND_CEL = "x.lowerAscii().contains(':ffff:')"
"""IPv4 in IPv6: an address for the code, but not for Kubernetes."""


class Check(Struct, frozen=True):
    """The cases for one kind of value, in the order of evaluation."""

    cases: tuple[Case, ...]

    def problem(self, value: str) -> str:
        """Return CEL for what is wrong with ``value`` (CEL without ``x`` as a word); empty if nothing is."""
        return chain((_X.sub(lambda _: value, condition), text) for condition, text in self.cases)


def build_check(annotation: Any, metadata: tuple[Any, ...] = ()) -> Check:
    """Return the check for a scalar field, or for the items of a list or a map.

    Raises:
        NotImplementedError: a validator has no CEL here.
    """
    kind, marks = unwrap(annotation, metadata)
    special = [cases for mark in marks if (cases := _special(mark, marks)) is not None]
    if special:
        return Check(tuple(special[0]))
    return Check((*_of_type(kind), *(case for mark in marks for case in _of_mark(mark, kind))))


def unwrap(annotation: Any, metadata: tuple[Any, ...] = ()) -> tuple[Any, tuple[Any, ...]]:
    """Return the bare type and its annotations. An optional type is the type itself."""
    marks = tuple(_iter_marks(metadata))
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            marks += tuple(_iter_marks(tuple(more)))
        elif get_origin(annotation) in (Union, UnionType):
            (annotation,) = (one for one in get_args(annotation) if one is not NoneType)
        else:
            return annotation, marks


def _iter_marks(metadata: tuple[Any, ...]) -> Iterator[Any]:
    for mark in metadata:
        if isinstance(mark, FieldInfo):
            yield from mark.metadata
        else:
            yield mark


def _of_type(kind: Any) -> Iterator[Case]:
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        *others, last = map(repr, choices)
        text = f"must be {', '.join(others)} or {last}" if others else f"must be {last}"
        yield f"type(x) != string || !(x in {quote_all(choices)})", quote(text)
        return
    name, text = _TYPES[kind]
    yield f"type(x) != {name}", quote(text)


def _of_mark(mark: Any, kind: Any) -> Iterator[Case]:
    match mark:
        case Limit("ge", bound):
            yield f"x < {bound}", quote(f"must be at least {bound}")
        case Limit("le", bound):
            yield f"x > {bound}", quote(f"must be at most {bound}")
        case Limit("min_length"):
            yield "x == ''", quote("must not be empty")
        case Limit("max_length", bound):
            yield f"x.size() > {bound}", quote(f"must have at most {bound} characters")
        case AfterValidator(func=values.OneOf() as one_of):
            *others, last = choices = [*map(str, one_of.choices)]
            yield f"!(x in [{', '.join(choices)}])", quote(f"must be {', '.join(others)} or {last}")
        case AfterValidator(func=network_policy.field_path):
            text = "must be the path of a field, such as interface.mtu or routes (lists and maps as a whole)"
            yield f"!(x in variables.{PATHS})", quote(text)
        case AfterValidator(func=part.check_unicode):
            return  # half a character does not survive the API server
        case _:
            if kind is not str or not isinstance(mark, WithJsonSchema):
                raise NotImplementedError(f"no CEL for {mark!r}")


def _special(mark: Any, marks: tuple[Any, ...]) -> list[Case] | None:
    """Return all cases if a single validator decides."""
    if isinstance(mark, BeforeValidator) and mark.func != values.without_nulls:
        build = _BEFORE.get(mark.func, _number_or_auto)
        return build(marks)
    if isinstance(mark, AfterValidator):
        build_after = _AFTER.get(mark.func)
        return [_NOT_TEXT, *build_after()] if build_after else None
    return None


def _limits(marks: tuple[Any, ...]) -> tuple[int, int]:
    bounds = {mark.name: mark.bound for mark in marks if isinstance(mark, Limit)}
    return bounds["ge"], bounds["le"]


def _quantity(marks: tuple[Any, ...], least: int | None = None) -> list[Case]:
    """Compare a quantity by value. Prepare decides whether one with a fraction is a whole number."""
    declared, most = _limits(marks)
    low = declared if least is None else least
    form = "must be a number or a quantity such as 10G, 1.5M or 64Ki"
    outside = "type(x) == int ? x {} {} : quantity(x).compareTo(quantity('{}')) {} 0"
    return [
        ("type(x) != string && type(x) != int", quote("must be a whole number")),
        (f"type(x) == string && !x.matches({quote(f'^({values.QUANTITY_PATTERN})$')})", quote(form)),
        (f"({outside.format('<', low, low, '<')})", quote(f"must be at least {low}")),
        (f"({outside.format('>', most, most, '>')})", quote(f"must be at most {most}")),
    ]


def _memlock(marks: tuple[Any, ...]) -> list[Case]:
    not_text, form, _, most = _quantity(marks, 0)
    text = quote("must be bytes, a quantity such as 64Mi, or unlimited")
    unlimited = "type(x) == string && x == 'unlimited'"
    return [not_text, (unlimited, "''"), form, ("type(x) == int && x < 0", text), most]


def _mark(marks: tuple[Any, ...]) -> list[Case]:
    low, most = _limits(marks)
    too_much = f"type(x) == int ? x > {most} : !x.contains('x') && !x.contains('X') && int(x) > {most}"
    return [
        ("type(x) != string && type(x) != int", quote("must be a whole number")),
        (
            f"type(x) == string && !x.matches({quote(f'^({values.MARK_PATTERN})$')})",
            quote("must be a number, or text such as 0x10"),
        ),
        (f"type(x) == int && x < {low}", quote(f"must be at least {low}")),
        (f"({too_much})", quote(f"must be at most {most}")),
    ]


def _number_or_auto(marks: tuple[Any, ...]) -> list[Case]:
    schema = next(mark.json_schema for mark in marks if isinstance(mark, WithJsonSchema))
    number, auto = (schema or {})["anyOf"]
    if auto.get("const") != "auto":
        raise NotImplementedError(f"no CEL for {schema}")
    most = number["maximum"]
    wrong = f"type(x) == int ? x < 0 || x > {most} : type(x) != string || x != 'auto'"
    return [(f"({wrong})", quote(f"must be a number from 0 to {most}, or auto"))]


def _sysctl_value(_marks: tuple[Any, ...]) -> list[Case]:
    is_text = "type(x) == string && "
    return [
        ("type(x) != string && type(x) != int", quote("must be text or a 64-bit integer")),
        (f"{is_text}x.trim() == ''", quote("must not be empty")),
        (f"{is_text}size(bytes(x)) > {VALUE_MAX_BYTES}", quote(f"must have at most {VALUE_MAX_BYTES} bytes")),
        (is_text + r"!x.matches('^[\\t -~]*$')", quote("must be one line of ASCII text")),
    ]


_Before = Callable[[tuple[Any, ...]], list[Case]]
_BEFORE: dict[Any, _Before] = {
    values.quantity: _quantity,
    values.memlock: _memlock,
    values.mark: _mark,
    values.sysctl_value: _sysctl_value,
}


def _ifname(*, may_be_empty: bool = False, may_be_lo: bool = False) -> Callable[[], list[Case]]:
    def cases() -> list[Case]:
        reserved = sorted(values.RESERVED_IFNAMES - ({"lo"} if may_be_lo else set()))
        chars = quote(f"^({values.IFNAME_PATTERN})$")
        most = values.IFNAME_MAX_BYTES
        form = quote("must consist of ASCII letters, digits, '-', '_' and '.'")
        empty = [] if may_be_empty else [("x == ''", quote("must not be empty"))]
        return [
            *empty,
            (f"size(bytes(x)) > {most}", quote(f"must have at most {most} bytes")),
            (f"x != '' && !x.matches({chars})", form),
            (f"x in {quote_all(reserved)}", quote("is a reserved name")),
        ]

    return cases


def _link_address() -> list[Case]:
    text = "must be a hardware address of 6 or 20 bytes, e.g. 02:00:00:00:00:01"
    return [(f"!x.matches({quote(f'^({values.MAC_PATTERN})$')})", quote(text))]


def _mac() -> list[Case]:
    not_unicast = "x.size() < 18 && (x.matches('^.[13579BDFbdf]') || x.matches('^[0:.-]+$'))"
    return [*_link_address(), (not_unicast, quote("must be a unicast hardware address"))]


def _cidr(text: str, example: str) -> list[Case]:
    form = quote(f"^({values.CIDR_PATTERN})$")
    by_prepare = rf"x.matches('/0[0-9]') || {_BEYOND_CEL}"
    return [
        (f"!x.matches({form})", quote(f"must be in CIDR form with a prefix length, e.g. {example}")),
        (f"!isCIDR(x) && !({by_prepare})", quote(text)),
    ]


def _interface_cidr() -> list[Case]:
    ip = "cidr(x).ip()"
    multicast = f"cidr('224.0.0.0/4').containsIP({ip}) || cidr('ff00::/8').containsIP({ip})"
    odd = f"{ip}.isUnspecified() || {ip}.isLoopback() || {multicast} || cidr('127.0.0.0/8').containsIP({ip})"
    return [
        *_cidr("must be an address with its prefix, e.g. 10.0.0.5/24", "10.0.0.5/24"),
        (f"isCIDR(x) && ({odd})", quote("must be a unicast address")),
    ]


def _ip() -> list[Case]:
    return [
        ("x.contains('/') || x.contains('%')", quote("must be an IP address without prefix or zone")),
        (f"!isIP(x) && !({_BEYOND_CEL})", quote("must be an IP address")),
    ]


def _ipv6_token() -> list[Case]:
    form = quote("must be the lower 64 bits of an IPv6 address, e.g. ::1:2")
    bits = quote("must have 64 leading zero bits and not be ::, e.g. ::1:2")
    return [
        (f"!x.contains('%') && !({_BEYOND_CEL}) && !(isIP(x) && x.contains(':'))", form),
        ("isIP(x) && (ip(x).isUnspecified() || !cidr('::/64').containsIP(x))", bits),
    ]


def _ipam_name() -> list[Case]:
    text = "must be a name of at most 63 ASCII letters, digits, '-', '_' and '.'"
    return [(f"!x.matches({quote(f'^({IPAM_NAME_PATTERN})$')})", quote(text))]


_AFTER: dict[Any, Callable[[], list[Case]]] = {
    values.ifname: _ifname(may_be_empty=True),
    values.ipam_name: _ipam_name,
    values.required_ifname: _ifname(),
    values.rule_ifname: _ifname(may_be_lo=True),
    values.link_address: _link_address,
    values.mac: _mac,
    values.interface_cidr: _interface_cidr,
    values.network_cidr: lambda: _cidr("must be a CIDR, e.g. 10.1.0.0/16", "10.1.0.0/16"),
    values.ip: _ip,
    values.ipv6_token: _ipv6_token,
}
