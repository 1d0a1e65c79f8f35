"""Kubernetes' url library, for URLs whose reading is beyond doubt; any other is not judged."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from dranet.cel.library.declare import Function, succeeds
from dranet.cel.opaque import URL, new_opaque, text_of
from dranet.cel.scalars import CelError, NotJudged

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
