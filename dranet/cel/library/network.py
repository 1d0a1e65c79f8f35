"""Kubernetes' libraries ip, cidr and url.

Addresses are strict: no zones, no IPv4 in IPv6; bits beyond the prefix are kept. A URL that could be read in
two ways is not judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv6Address,
    IPv6Interface,
    ip_address,
    ip_interface,
    ip_network,
)
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from dranet.cel.library.declare import Function, succeeds
from dranet.cel.values import CIDR, IP, URL, CelError, NotJudged, new_opaque, text_of

_Address = IPv4Address | IPv6Address
_Interface = IPv4Interface | IPv6Interface

_CIDR_TEXT = re.compile(r"([^/]+)/(0|[1-9]\d{0,2})", re.ASCII)
_BROADCAST = IPv4Address("255.255.255.255")
_LOCAL_MULTICAST_4 = ip_network("224.0.0.0/24")


def _parse_ip(text: str) -> _Address:
    try:
        address = ip_address(text)
    except ValueError as error:
        raise CelError(f"{text!r} is not an IP address") from error
    if isinstance(address, IPv6Address) and (address.scope_id or address.ipv4_mapped):
        raise CelError(f"IP address {text!r} has a zone or is IPv4 in IPv6, which is not allowed")
    return address


def _parse_cidr(text: str) -> _Interface:
    match = _CIDR_TEXT.fullmatch(text)
    if not match:
        raise CelError(f"{text!r} is not a CIDR")
    address = _parse_ip(match[1])
    if int(match[2]) > address.max_prefixlen:
        raise CelError(f"{text!r} is not a CIDR: the prefix is too long")
    return ip_interface(f"{address}/{match[2]}")


def _new_ip(text: str) -> Any:
    return new_opaque(IP, str(_parse_ip(text)))


def _new_cidr(text: str) -> Any:
    return new_opaque(CIDR, str(_parse_cidr(text)))


def _ip(value: Any) -> _Address:
    return _parse_ip(value if isinstance(value, str) else text_of(value, IP))


def _cidr(value: Any) -> _Interface:
    return _parse_cidr(value if isinstance(value, str) else text_of(value, CIDR))


def _is_local_multicast(address: _Address) -> bool:
    if isinstance(address, IPv4Address):
        return address in _LOCAL_MULTICAST_4
    return int.from_bytes(address.packed[:2]) & 0xFF0F == 0xFF02


def _is_local_unicast(address: _Address) -> bool:
    """169.254.0.0/16 and fe80::/10."""
    return address.is_link_local


def _is_global(address: _Address) -> bool:
    """As in Go, private addresses are also global."""
    special = address.is_unspecified or address.is_loopback or address.is_multicast
    return not (special or address == _BROADCAST or _is_local_unicast(address))


def _contains_cidr(outer: Any, inner: Any) -> bool:
    a, b = _cidr(outer), _cidr(inner)
    return b.ip in a.network and a.network.prefixlen <= b.network.prefixlen


def _question(name: str, answer: Callable[[_Address], bool]) -> Function:
    return Function(name, lambda value: answer(_ip(value)), [((IP,), "bool")])


ADDRESSES = (
    Function("ip", _new_ip, [(("string",), IP)], member=False),
    Function("ip", lambda a: new_opaque(IP, str(_cidr(a).ip)), [((CIDR,), IP)]),
    Function("isIP", succeeds(_parse_ip), [(("string",), "bool")], member=False),
    Function(
        "ip.isCanonical", lambda text: str(_parse_ip(text)) == text, [(("string",), "bool")], member=False
    ),
    Function("family", lambda a: _ip(a).version, [((IP,), "int")]),
    _question("isUnspecified", lambda address: address.is_unspecified),
    _question("isLoopback", lambda address: address.is_loopback),
    _question("isLinkLocalMulticast", _is_local_multicast),
    _question("isLinkLocalUnicast", _is_local_unicast),
    _question("isGlobalUnicast", _is_global),
    Function("cidr", _new_cidr, [(("string",), CIDR)], member=False),
    Function("isCIDR", succeeds(_parse_cidr), [(("string",), "bool")], member=False),
    Function(
        "containsIP",
        lambda a, b: _ip(b) in _cidr(a).network,
        [((CIDR, "string"), "bool"), ((CIDR, IP), "bool")],
    ),
    Function("containsCIDR", _contains_cidr, [((CIDR, "string"), "bool"), ((CIDR, CIDR), "bool")]),
    Function("prefixLength", lambda a: _cidr(a).network.prefixlen, [((CIDR,), "int")]),
    Function("masked", lambda a: new_opaque(CIDR, str(_cidr(a).network)), [((CIDR,), CIDR)]),
)


def to_text(value: Any) -> str:
    """Implement ``string()`` for an address or a network, and for no other message."""
    kind = value.DESCRIPTOR.full_name
    return text_of(value, kind if kind in (IP, CIDR) else IP)


_PATH = r"(?:/(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*)"
_TAIL = r"(?:\?(?:[A-Za-z0-9._~!$'()*+,=:@/?&-]|%[0-9A-Fa-f]{2})*)?"
_USER = r"(?:[A-Za-z0-9._~!$&'()*+,;=-]+(?::[A-Za-z0-9._~!$&'()*+,;=-]*)?@)?"
_HOST = r"(?:[A-Za-z0-9._~-]*|\[[0-9A-Fa-f:.]+\])(?::\d*)?"
_PLAIN = re.compile(rf"(?:[A-Za-z][A-Za-z0-9+.-]*://{_USER}{_HOST}{_PATH}?|(?!//){_PATH}){_TAIL}", re.ASCII)
_CLEARLY_NONE = re.compile(r"(?![A-Za-z][A-Za-z0-9+.-]*:|/).*|.*[\x00-\x1f\x7f].*", re.ASCII | re.DOTALL)


def _parse(text: str) -> str:
    """The text itself, if it is a URL or an absolute path."""
    if _CLEARLY_NONE.fullmatch(text):
        raise CelError(f"{text!r} is not an absolute URL")
    if not _PLAIN.fullmatch(text):
        raise NotJudged(f"cannot be judged here: the URL {text!r}")
    return text


def _host(value: Any) -> str:
    return urlsplit(text_of(value, URL)).netloc.rpartition("@")[2]


def _hostname(value: Any) -> str:
    host = _host(value)
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _port(value: Any) -> str:
    return _host(value).rpartition("]")[2].partition(":")[2]


def _query(value: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, item in parse_qsl(urlsplit(text_of(value, URL)).query, keep_blank_values=True):
        found.setdefault(key, []).append(item)
    return found


def _member(name: str, call: Any, result: str = "string") -> Function:
    return Function(name, call, [((URL,), result)])


URLS = (
    Function("url", lambda text: new_opaque(URL, _parse(text)), [(("string",), URL)], member=False),
    Function("isURL", succeeds(_parse), [(("string",), "bool")], member=False),
    _member("getScheme", lambda a: urlsplit(text_of(a, URL)).scheme),
    _member("getHost", _host),
    _member("getHostname", _hostname),
    _member("getPort", _port),
    _member("getEscapedPath", lambda a: urlsplit(text_of(a, URL)).path),
    _member("getQuery", _query, "map<string,list<string>>"),
)
