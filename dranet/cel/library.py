"""Kubernetes' function libraries, as far as the engine can be extended with them; the rest is in ``MISSING``.

``FUNCTIONS`` has them all. The engine's checker knows every overload by its types, its evaluator only by the
kinds of its arguments: all messages are of one kind, and so are all lists. So the first overload of each kind
brings the implementation, and that one serves the others.

``indexOf`` and ``lastIndexOf`` of lists cannot be added to the engine's functions of these names for strings.
The engine takes no durations and times back from an implementation, and a uint becomes an int, so lists of
these have no ``sum``, ``min`` and ``max`` here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv6Address,
    IPv6Interface,
    ip_address,
    ip_interface,
    ip_network,
)
from itertools import groupby, pairwise
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from dranet.cel.values import (
    CIDR,
    IP,
    NOTHING,
    QUANTITY,
    SEMVER,
    URL,
    CelError,
    NotJudged,
    Semver,
    new_opaque,
    new_quantity,
    new_semver,
    text_of,
)
from dranet.quantity import NANO


class Function(NamedTuple):
    """One function with one implementation. ``overloads`` are parameter types and result, by CEL's names."""

    name: str
    call: Callable[..., object]
    overloads: Sequence[tuple[tuple[str, ...], str]]
    member: bool = True


def declare(cel: Any, functions: Iterable[Function]) -> Iterator[Any]:
    """The engine's declarations; functions and members of one name are one declaration."""
    for name, same in groupby(sorted(functions, key=lambda f: f.name), key=lambda f: f.name):
        rows = [row for function in same for row in _rows(function)]
        yield cel.FunctionDecl(
            name,
            [
                cel.Overload(
                    f"{name}_{number}",
                    return_type=_engine_type(cel, result),
                    parameters=[_engine_type(cel, parameter) for parameter in parameters],
                    is_member=member,
                    **({"impl": call} if call else {}),
                )
                for number, (parameters, result, member, call) in enumerate(rows)
            ],
        )


def _rows(function: Function) -> Iterator[tuple[tuple[str, ...], str, bool, Callable[..., object] | None]]:
    """Overloads with their implementation, or with none where an earlier one brings it.

    A value is converted to the result type of the overload that brings the implementation. Where results
    differ, that is one which no expression can meet: its parameter is a list of what does not exist.
    """
    groups: dict[tuple[str, ...], list[tuple[tuple[str, ...], str]]] = {}
    for parameters, result in function.overloads:
        groups.setdefault(tuple(map(_kind, parameters)), []).append((parameters, result))
    for kinds, overloads in groups.items():
        call: Callable[..., object] | None = function.call
        if len({result for _, result in overloads}) > 1:
            yield tuple(f"list<{NOTHING}>" if k == "list" else k for k in kinds), "dyn", function.member, call
            call = None
        for parameters, result in overloads:
            yield parameters, result, function.member, call
            call = None


def _kind(type_name: str) -> str:
    """What the evaluator sees of a type."""
    if type_name.startswith("list<"):
        return "list"
    return "message" if "." in type_name else type_name


def _engine_type(cel: Any, name: str) -> Any:
    if name.startswith("list<"):
        return cel.Type.List(_engine_type(cel, name[5:-1]))
    if name.startswith("map<"):
        key, value = name[4:-1].split(",", 1)
        return cel.Type.Map(_engine_type(cel, key), _engine_type(cel, value))
    return cel.Type(name) if "." in name else getattr(cel.Type, name.upper())


def succeeds(function: Callable[..., object]) -> Callable[..., bool]:
    """Whether ``function`` raises no CelError; what is not judged stays so."""

    def tried(*args: Any) -> bool:
        try:
            function(*args)
        except NotJudged:
            raise
        except CelError:
            return False
        return True

    return tried


# --- quantities, exact in billionths, and semantic versions --------------------------------------------

_SURE = range(-(10**14) + 1, 10**14)
"""Whether Kubernetes takes more for an integer depends on how it is written: 100T is one, 100Ti is not."""
_Q = QUANTITY
_TWO = ((_Q, _Q), (SEMVER, SEMVER))
_SUMS = (((_Q, _Q), _Q), ((_Q, "int"), _Q))


def _nanos(value: Any) -> int:
    return value * NANO if isinstance(value, int) else int(text_of(value, QUANTITY))


def _as_integer(nanos: int) -> int:
    if nanos // NANO not in _SURE:
        raise NotJudged("cannot be judged here: whether so large a quantity is an integer")
    if nanos % NANO:
        raise CelError("the quantity is not an integer")
    return nanos // NANO


def _semver(value: Any) -> Semver:
    return Semver.parse(text_of(value, SEMVER))


def _compare(a: Any, b: Any) -> int:
    """Two quantities, or two versions."""
    if a.DESCRIPTOR.full_name == SEMVER:
        x, y = _semver(a).sort_key, _semver(b).sort_key
        return (x > y) - (x < y)
    return (_nanos(a) > _nanos(b)) - (_nanos(a) < _nanos(b))


QUANTITIES = (
    Function("quantity", new_quantity, [(("string",), _Q)], member=False),
    Function("isQuantity", succeeds(new_quantity), [(("string",), "bool")], member=False),
    Function("isGreaterThan", lambda a, b: _compare(a, b) > 0, [(pair, "bool") for pair in _TWO]),
    Function("isLessThan", lambda a, b: _compare(a, b) < 0, [(pair, "bool") for pair in _TWO]),
    Function("compareTo", _compare, [(pair, "int") for pair in _TWO]),
    Function("add", lambda a, b: new_opaque(_Q, str(_nanos(a) + _nanos(b))), _SUMS),
    Function("sub", lambda a, b: new_opaque(_Q, str(_nanos(a) - _nanos(b))), _SUMS),
    Function("sign", lambda a: (_nanos(a) > 0) - (_nanos(a) < 0), [((_Q,), "int")], member=False),
    Function("isInteger", lambda a: succeeds(_as_integer)(_nanos(a)), [((_Q,), "bool")]),
    Function("asInteger", lambda a: _as_integer(_nanos(a)), [((_Q,), "int")]),
    Function("asApproximateFloat", lambda a: _nanos(a) / NANO, [((_Q,), "double")]),
)
"""With the comparisons of versions: they have the same names."""


_TEXTS = (("string",), ("string", "bool"))


def _number_of(part: str) -> Function:
    return Function(part, lambda a: getattr(_semver(a), part), [((SEMVER,), "int")])


VERSIONS = (
    Function("semver", new_semver, [(text, SEMVER) for text in _TEXTS], member=False),
    Function("isSemver", succeeds(new_semver), [(text, "bool") for text in _TEXTS], member=False),
    *map(_number_of, ("major", "minor", "patch")),
)


# --- lists ----------------------------------------------------------------------------------------------

_SUMMABLE = ("int", "double")
_COMPARABLE = ("int", "double", "bool", "string", "bytes")
_SORTABLE = (*_COMPARABLE, "duration", "timestamp", "uint")
_ANY = ("int", "uint", "double", "bool", "string", "list<dyn>", SEMVER, QUANTITY)
"""What an attribute can be, and what may be compared with it: the engine finds no implementation by dyn."""


def _lists_of(types: Sequence[str], result: str = "") -> list[tuple[tuple[str, ...], str]]:
    """One overload for each type; without ``result`` the result is of that type."""
    return [((f"list<{element}>",), result or element) for element in types]


def _choosing(choose: Callable[[Sequence[Any]], Any], name: str) -> Function:
    def chosen(values: Sequence[Any]) -> Any:
        if not values:
            raise CelError(f"{name} called on empty list")
        return choose(values)

    return Function(name, chosen, _lists_of(_COMPARABLE))


def _includes(target: Any, value: Any) -> bool:
    return any(_are_equal(item, value) for item in (target if isinstance(target, list) else [target]))


def _are_equal(a: Any, b: Any) -> bool:
    """As CEL's ``==`` for values of any type: numbers of all types compare, a bool is no number."""
    if isinstance(a, bool) is not isinstance(b, bool):
        return False
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_are_equal, a, b))
    return bool(a == b)


LISTS = (
    Function(
        "isSorted", lambda values: all(a <= b for a, b in pairwise(values)), _lists_of(_SORTABLE, "bool")
    ),
    Function("sum", sum, _lists_of(_SUMMABLE)),
    _choosing(min, "min"),
    _choosing(max, "max"),
    Function("includes", _includes, [((a, b), "bool") for a in _ANY for b in _ANY]),
)


# --- find and findAll, by the engine's own regular expressions: RE2, as in Go ---------------------------

# The engine's functions want a group that is the match; so the pattern's own groups are made not to capture.
_PIECE = re.compile(
    r"""
    (?P<literal> \\Q.*?(?:\\E|\Z) | \\. )
  | (?P<set> \[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\] )
  | (?P<group> \((?:\?P?<\w+>|(?!\?)) )
  | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)


def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    if _run("empty", "", pattern):
        raise NotJudged(f"cannot be judged here: findAll of {pattern!r}, which also matches the empty text")
    found: list[str] = _run("all", text, pattern)
    return found if limit < 0 else found[:limit]


def _run(what: str, text: str, pattern: str) -> Any:
    uncaptured = "".join("(?:" if match["group"] else match[0] for match in _PIECE.finditer(pattern))
    value = _programs()[what].eval(data={"text": text, "pattern": f"({uncaptured})"})
    if value.type().name() == "ERROR":
        raise CelError(f"Illegal regex: {pattern!r}")
    return value.plain_value()


@cache
def _programs() -> dict[str, Any]:
    cel: Any = import_module("cel_expr_python.cel")
    config = cel.NewEnvConfigFromYaml("extensions: [{name: optional}, {name: regex}]")
    env = cel.NewEnv(config=config, variables={"text": cel.Type.STRING, "pattern": cel.Type.STRING})
    expressions = {
        "first": "regex.extract(text, pattern).orValue('')",
        "all": "regex.extractAll(text, pattern)",
        "empty": "text.matches('^' + pattern + '$')",
    }
    return {name: env.compile(expression) for name, expression in expressions.items()}


REGEXES = (
    Function(
        "find", lambda text, pattern: str(_run("first", text, pattern)), [(("string", "string"), "string")]
    ),
    Function(
        "findAll",
        _find_all,
        [(("string", "string"), "list<string>"), (("string", "string", "int"), "list<string>")],
    ),
)


# --- addresses: strict, no zones, no IPv4 in IPv6; bits beyond the prefix are kept ----------------------

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


def _ip(value: Any) -> _Address:
    return _parse_ip(value if isinstance(value, str) else text_of(value, IP))


def _cidr(value: Any) -> _Interface:
    return _parse_cidr(value if isinstance(value, str) else text_of(value, CIDR))


def _is_local_multicast(address: _Address) -> bool:
    if isinstance(address, IPv4Address):
        return address in _LOCAL_MULTICAST_4
    return int.from_bytes(address.packed[:2]) & 0xFF0F == 0xFF02


def _is_global(address: _Address) -> bool:
    """As in Go, private addresses are also global."""
    special = address.is_unspecified or address.is_loopback or address.is_multicast
    return not (special or address == _BROADCAST or address.is_link_local)


def _contains_cidr(outer: Any, inner: Any) -> bool:
    a, b = _cidr(outer), _cidr(inner)
    return b.ip in a.network and a.network.prefixlen <= b.network.prefixlen


def _question(name: str, answer: Callable[[_Address], bool]) -> Function:
    return Function(name, lambda value: answer(_ip(value)), [((IP,), "bool")])


ADDRESSES = (
    Function("ip", lambda text: new_opaque(IP, str(_parse_ip(text))), [(("string",), IP)], member=False),
    Function("ip", lambda a: new_opaque(IP, str(_cidr(a).ip)), [((CIDR,), IP)]),
    Function("isIP", succeeds(_parse_ip), [(("string",), "bool")], member=False),
    Function(
        "ip.isCanonical", lambda text: str(_parse_ip(text)) == text, [(("string",), "bool")], member=False
    ),
    Function("family", lambda a: _ip(a).version, [((IP,), "int")]),
    _question("isUnspecified", lambda address: address.is_unspecified),
    _question("isLoopback", lambda address: address.is_loopback),
    _question("isLinkLocalMulticast", _is_local_multicast),
    _question("isLinkLocalUnicast", lambda address: address.is_link_local),
    _question("isGlobalUnicast", _is_global),
    Function(
        "cidr", lambda text: new_opaque(CIDR, str(_parse_cidr(text))), [(("string",), CIDR)], member=False
    ),
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


# --- URLs; one that could be read in two ways is not judged ---------------------------------------------

_PATH = r"(?:/(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*)"
_TAIL = r"(?:\?(?:[A-Za-z0-9._~!$'()*+,=:@/?&-]|%[0-9A-Fa-f]{2})*)?"
_USER = r"(?:[A-Za-z0-9._~!$&'()*+,;=-]+(?::[A-Za-z0-9._~!$&'()*+,;=-]*)?@)?"
_HOST = r"(?:[A-Za-z0-9._~-]*|\[[0-9A-Fa-f:.]+\])(?::\d*)?"
_PLAIN = re.compile(rf"(?:[A-Za-z][A-Za-z0-9+.-]*://{_USER}{_HOST}{_PATH}?|(?!//){_PATH}){_TAIL}", re.ASCII)
_CLEARLY_NONE = re.compile(r"(?![A-Za-z][A-Za-z0-9+.-]*:|/).*|.*[\x00-\x1f\x7f].*", re.ASCII | re.DOTALL)


def _parse_url(text: str) -> str:
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


def _member(name: str, call: Any, result: str = "string") -> Function:
    return Function(name, call, [((URL,), result)])


URLS = (
    Function("url", lambda text: new_opaque(URL, _parse_url(text)), [(("string",), URL)], member=False),
    Function("isURL", succeeds(_parse_url), [(("string",), "bool")], member=False),
    _member("getScheme", lambda a: urlsplit(text_of(a, URL)).scheme),
    _member("getHost", _host),
    _member("getHostname", _hostname),
    _member("getPort", _port),
    _member("getEscapedPath", lambda a: urlsplit(text_of(a, URL)).path),
    _member(
        "getQuery",
        lambda a: parse_qs(urlsplit(text_of(a, URL)).query, keep_blank_values=True),
        "map<string,list<string>>",
    ),
)


FUNCTIONS = (*QUANTITIES, *VERSIONS, *LISTS, *ADDRESSES, *URLS, *REGEXES)

MISSING = frozenset({"format", "authorizer", "image", "isImage", "jsonpatch", "mul", "div", "divInt"})
"""Names that Kubernetes' environment declares and this evaluator does not."""

_LIST = r"\((list|dyn)\b.*"
_TIMES = r"\(list\((uint|google\.protobuf\.\w+)\)\)"
INCOMPLETE = {
    "includes": r".*",
    "indexOf": _LIST,
    "lastIndexOf": _LIST,
    "sum": _TIMES,
    "min": _TIMES,
    "max": _TIMES,
}
"""Functions that Kubernetes has for more types than this evaluator, with the types as the engine has them."""
