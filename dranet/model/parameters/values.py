"""The scalar values of a :class:`~.network.NetworkConfig`: JSON in, a canonical value out.

A validator raises ``ValueError`` with a text that completes "<field path>: ...", so it starts with "must" or
"is".
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, TypeVar

from dranet.model.parameters.decoder import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    WithJsonSchema,
    check_unicode,
)
from dranet.model.parameters.sysctls import find_value_problem

IFNAME_MAX_BYTES = 15
"""``IFNAMSIZ`` less the terminating zero."""
UINT32_MAX = 2**32 - 1
UNLIMITED = -1
"""``memlock`` without a limit (``RLIM_INFINITY``)."""
QUANTITY_PATTERN = r"[0-9]{1,18}(\.[0-9]{1,9})?(k|M|G|T|Ki|Mi|Gi|Ti)?"
MARK_PATTERN = r"0[xX][0-9A-Fa-f]{1,8}|[0-9]{1,10}"

IFNAME_PATTERN = r"[A-Za-z0-9._-]+"
RESERVED_IFNAMES = frozenset({".", "..", "lo", "all", "default"})
"""Not file names; the pod's loopback; and names of ``/proc/sys/net/ipv4/conf`` that the kernel keeps."""
MAC_PATTERN = (
    r"([0-9A-Fa-f]{2}[:-]){5}([0-9A-Fa-f]{2}|(([0-9A-Fa-f]{2}[:-]){14}[0-9A-Fa-f]{2}))"
    r"|([0-9A-Fa-f]{4}\.){2}([0-9A-Fa-f]{4}|(([0-9A-Fa-f]{4}\.){7}[0-9A-Fa-f]{4}))"
)
CIDR_PATTERN = r"[0-9A-Fa-f.:]+/[0-9]{1,3}"
_SCALE = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SCALE |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_INT64 = range(-(2**63), 2**63)

Item = TypeVar("Item")


def ifname(value: str) -> str:
    """A name that the kernel gives a link; empty is allowed and means "not set"."""
    if len(value.encode(errors="replace")) > IFNAME_MAX_BYTES:
        raise ValueError(f"must have at most {IFNAME_MAX_BYTES} bytes")
    if value and not re.fullmatch(IFNAME_PATTERN, value):
        raise ValueError("must consist of ASCII letters, digits, '-', '_' and '.'")
    if value in RESERVED_IFNAMES:
        raise ValueError("is a reserved name")
    return value


def required_ifname(value: str) -> str:
    """As :func:`ifname`, not empty."""
    if not value:
        raise ValueError("must not be empty")
    return ifname(value)


def rule_ifname(value: str) -> str:
    """As :func:`required_ifname`, or ``lo``: a rule's input interface for what the pod itself sends."""
    return value if value == "lo" else required_ifname(value)


def link_address(value: str) -> str:
    """A hardware address of Ethernet or InfiniBand, as lower case with colons."""
    if not re.fullmatch(MAC_PATTERN, value):
        raise ValueError("must be a hardware address of 6 or 20 bytes, e.g. 02:00:00:00:00:01")
    return ":".join(re.findall("..", re.sub(r"[:.-]", "", value).lower()))


def mac(value: str) -> str:
    """As :func:`link_address`, and one that a link can have as its own."""
    address = link_address(value)
    octets = bytes.fromhex(address.replace(":", ""))
    if len(octets) == 6 and (octets[0] & 1 or not any(octets)):
        raise ValueError("must be a unicast hardware address")
    return address


def interface_cidr(value: str) -> str:
    """An address with its prefix; host bits stay."""
    _require_prefix(value, "10.0.0.5/24")
    try:
        interface = ipaddress.ip_interface(value)
    except ValueError as error:
        raise ValueError("must be an address with its prefix, e.g. 10.0.0.5/24") from error
    if interface.ip.is_multicast or interface.ip.is_unspecified or interface.ip.is_loopback:
        raise ValueError("must be a unicast address")
    return str(interface)


def network_cidr(value: str) -> str:
    """A prefix. Host bits are cleared, as DraNet does; the kernel refuses them."""
    _require_prefix(value, "10.1.0.0/16")
    try:
        return str(ipaddress.ip_network(value, strict=False))
    except ValueError as error:
        raise ValueError("must be a CIDR, e.g. 10.1.0.0/16") from error


def _require_prefix(value: str, example: str) -> None:
    """A prefix length, and as a number: no netmask, no bare address, no zone."""
    if not re.fullmatch(CIDR_PATTERN, value):
        raise ValueError(f"must be in CIDR form with a prefix length, e.g. {example}")


def ip(value: str) -> str:
    """An address without prefix or zone."""
    if "/" in value or "%" in value:
        raise ValueError("must be an IP address without prefix or zone")
    try:
        return str(ipaddress.ip_address(value))
    except ValueError as error:
        raise ValueError("must be an IP address") from error


def ipv6_token(value: str) -> str:
    """The host half of an IPv6 address (``ip token``): the upper 64 bits are zero, the lower are not."""
    try:
        token = ipaddress.IPv6Address(value)
    except ValueError as error:
        raise ValueError("must be the lower 64 bits of an IPv6 address, e.g. ::1:2") from error
    if not int(token) or int(token) >> 64:
        raise ValueError("must have 64 leading zero bits and not be ::, e.g. ::1:2")
    return str(token)


class OneOf:
    """One of these numbers."""

    def __init__(self, *choices: int) -> None:
        self.choices = choices

    def __call__(self, value: int) -> int:
        if value not in self.choices:
            *others, last = map(str, self.choices)
            raise ValueError(f"must be {', '.join(others)} or {last}")
        return value


def distinct(values: tuple[Item, ...]) -> tuple[Item, ...]:
    """A list without repetitions, in the order of first mention."""
    return tuple(dict.fromkeys(values))


def without_nulls(value: object) -> object:
    """A map without the names that stand for nothing."""
    return {k: v for k, v in value.items() if v is not None} if isinstance(value, Mapping) else value


def quantity(value: object) -> object:
    """A Kubernetes quantity (``10G``, ``1.5M``, ``64Ki``) -> an integer; what is no text passes unchanged."""
    if not isinstance(value, str):
        return value
    if not re.fullmatch(QUANTITY_PATTERN, value):
        raise ValueError("must be a number or a quantity such as 10G, 1.5M or 64Ki")
    digits = value.rstrip("KkMGTi")
    whole, _, part = digits.partition(".")
    amount, rest = divmod(int(whole + part) * _SCALE[value.removeprefix(digits)], 10 ** len(part))
    if rest:
        raise ValueError("must be a whole number")
    return amount


def memlock(value: object) -> object:
    """``unlimited`` or a quantity in bytes."""
    if isinstance(value, int) and value < 0:
        raise ValueError("must be bytes, a quantity such as 64Mi, or unlimited")
    return UNLIMITED if value == "unlimited" else quantity(value)


def mark(value: object) -> object:
    """A firewall mark: a number, or text such as ``0x10``."""
    if not isinstance(value, str):
        return value
    if not re.fullmatch(MARK_PATTERN, value):
        raise ValueError("must be a number, or text such as 0x10")
    return int(value, 16) if value[:2].lower() == "0x" else int(value)


def sysctl_value(value: object) -> object:
    """Text as ``/proc/sys`` takes it; a whole number is such a text."""
    if isinstance(value, int) and not isinstance(value, bool) and value in _INT64:
        return str(value)
    problem = find_value_problem(value) if isinstance(value, str) else "must be text or a 64-bit integer"
    if problem:
        raise ValueError(problem)
    return value


def _number_or_text(least: int, most: int, pattern: str) -> WithJsonSchema:
    number = {"type": "integer", "minimum": least, "maximum": most}
    return WithJsonSchema({"anyOf": [number, {"type": "string", "pattern": f"^({pattern})$"}]})


def _pattern(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": f"^({pattern})$"})


_MAX_BYTES = 2**62
_RATE_MIN, _RATE_MAX = 8_000, 100 * 10**12

Several = Annotated[tuple[Item, ...], AfterValidator(distinct)]
"""A JSON list. What is asked twice is done once, as DraNet does with addresses."""
Ifname = Annotated[str, AfterValidator(ifname), _pattern("[A-Za-z0-9._-]{0,15}")]
RequiredIfname = Annotated[str, AfterValidator(required_ifname), _pattern("[A-Za-z0-9._-]{1,15}")]
RuleIfname = Annotated[str, AfterValidator(rule_ifname), _pattern("[A-Za-z0-9._-]{1,15}")]
Text = Annotated[str, AfterValidator(check_unicode)]
LinkAddress = Annotated[str, AfterValidator(link_address), _pattern(MAC_PATTERN)]
Mac = Annotated[str, AfterValidator(mac), _pattern(MAC_PATTERN)]
InterfaceCidr = Annotated[str, AfterValidator(interface_cidr), _pattern(CIDR_PATTERN)]
NetworkCidr = Annotated[str, AfterValidator(network_cidr), _pattern(CIDR_PATTERN)]
Ip = Annotated[str, AfterValidator(ip)]
Ipv6Token = Annotated[str, AfterValidator(ipv6_token)]
UInt32 = Annotated[int, Field(ge=0, le=UINT32_MAX)]
Count = Annotated[int, Field(ge=1, le=UINT32_MAX)]
Mark = Annotated[
    int, BeforeValidator(mark), Field(ge=0, le=UINT32_MAX), _number_or_text(0, UINT32_MAX, MARK_PATTERN)
]
BitRate = Annotated[
    int,
    BeforeValidator(quantity),
    Field(ge=_RATE_MIN, le=_RATE_MAX),
    _number_or_text(_RATE_MIN, _RATE_MAX, QUANTITY_PATTERN),
]
"""Bits per second."""
Bytes = Annotated[
    int,
    BeforeValidator(quantity),
    Field(ge=1, le=UINT32_MAX),
    _number_or_text(1, UINT32_MAX, QUANTITY_PATTERN),
]
Memlock = Annotated[
    int,
    BeforeValidator(memlock),
    Field(ge=UNLIMITED, le=_MAX_BYTES),
    PlainSerializer(lambda limit: "unlimited" if limit == UNLIMITED else limit),
    _number_or_text(0, _MAX_BYTES, f"unlimited|{QUANTITY_PATTERN}"),
]
SysctlValue = Annotated[str, BeforeValidator(sysctl_value), WithJsonSchema({"type": ["string", "integer"]})]
