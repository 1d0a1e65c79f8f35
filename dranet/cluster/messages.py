"""The messages of the Kubernetes API as this client knows them: requests, answers, refusals, watch events.

Pure: bytes and JSON in, values out.
"""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlencode

from msgspec import Struct

import dranet
from dranet.cluster.paths import name_collection
from dranet.cluster.transport import ClusterAccess
from dranet.errors import ClusterError, ProtocolError, Reason
from dranet.http1 import ResponseHead, encode_request

_REASONS = {
    401: Reason.API_FORBIDDEN,
    403: Reason.API_FORBIDDEN,
    404: Reason.API_NOT_FOUND,
    409: Reason.API_CONFLICT,
    410: Reason.API_GONE,
}
_RETRYABLE = {409, 410}
METHOD_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_MAX_TEXT = 2000
_MAX_RETRY_AFTER_SECONDS = 30.0
_NOT_IN_ITS_TIME = (9, 10)
"""``X509_V_ERR_CERT_NOT_YET_VALID`` and ``X509_V_ERR_CERT_HAS_EXPIRED`` (OpenSSL, ``x509_vfy.h``)."""


def failure_from_answer(request: Request, head: ResponseHead, body: bytes) -> ClusterError:
    """The error of an answer that is not 2xx (or not JSON of the API at all, as from a proxy)."""
    error = failure_from_status(request, head.status, _parse_status(body))
    error.retry_after_seconds = parse_retry_after(head) or 0.0
    return error


def parse_retry_after(head: ResponseHead) -> float | None:
    """``Retry-After`` in seconds (API servers never send the date form), capped."""
    text = head.headers.get("retry-after", "")
    return min(float(text), _MAX_RETRY_AFTER_SECONDS) if text.isascii() and text.isdigit() else None


def failure_from_status(request: Request, code: int, status: Mapping[str, Any]) -> ClusterError:
    """The error of a ``metav1.Status`` object; ``status`` may be empty."""
    text = str(status.get("message") or status.get("reason") or "no message")[:_MAX_TEXT]
    return ClusterError(
        f"{request}: {code} {text}",
        status=code,
        reason=_reason(code),
        retryable=_reason(code) is Reason.API_UNAVAILABLE or code in _RETRYABLE,
        hint=_hint(request, code),
    )


def failure_from_exception(request: Request, url: str, error: Exception) -> ClusterError:
    return ClusterError(
        f"{request}: no answer from {url}: {_describe_exception(error)}",
        reason=Reason.API_UNAVAILABLE,
        retryable=True,
        hint=_transport_hint(error),
    )


def _describe_exception(error: Exception) -> str:
    """In words: asyncio's own text of a refused connection has an error number and repeats the address."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, ProtocolError):
        return error.message
    if isinstance(error, socket.gaierror):
        return f"its name has no address ({error.strerror})"
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__


def _reason(code: int) -> Reason:
    if code < 400 or code >= 500 or code in (408, 429):  # API servers do not redirect: it is a gateway
        return Reason.API_UNAVAILABLE
    return _REASONS.get(code, Reason.API_INVALID)


def _parse_status(body: bytes) -> Mapping[str, Any]:
    try:
        status = json.loads(body)
    except (ValueError, RecursionError):
        return {"message": body[:200].decode("utf-8", "replace").strip()}
    return status if isinstance(status, dict) else {}


def _hint(request: Request, code: int) -> str:
    if code == 401:
        return "the credentials were refused: check the token or the client certificate"
    return f"the RBAC rule it takes: {describe_rule(request)}" if code == 403 else ""


def describe_rule(request: Request) -> str:
    """The RBAC rule that permits a request: ``patch resourceclaims/status in resource.k8s.io``.

    >>> describe_rule(Request("GET", "/api/v1/nodes/a"))
    'get nodes in the core group'
    """
    verb, resource = name_call(request)
    if verb == "delete" and name_collection(request.path)[1]:
        verb = "deletecollection"
    _, root, group, *_ = request.path.split("/")
    return f"{verb} {resource} in {group if root == 'apis' else 'the core group'}"


def name_call(request: Request) -> tuple[str, str]:
    """Verb and resource, as the API server's own metrics name them."""
    resource, is_collection = name_collection(request.path)
    if request.method == "GET":
        return "watch" if request.watch else "list" if is_collection else "get", resource
    return METHOD_VERBS[request.method], resource


def _transport_hint(error: Exception) -> str:
    if not isinstance(error, ssl.SSLCertVerificationError):
        return ""
    if error.verify_code in _NOT_IN_ITS_TIME:
        return "is the clock of this node right? else the server's certificate has to be renewed"
    return "the certificate authority in use did not sign the server's certificate for this name"


JsonObject = dict[str, Any]

_JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
"""JSON is YAML; older servers know this type by no other name."""

_ODD = re.compile("[\x7f-\uffff]")
"""What is not sent as it is: YAML has line breaks and forbidden characters of its own among these."""

USER_AGENT = f"dranet/{dranet.__version__}"
"""The driver's name in the API server's audit log and metrics."""


class EventType(StrEnum):
    """The types of watch events; ERROR never reaches the caller, it is raised."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class WatchEvent(Struct, frozen=True):
    """One change. A BOOKMARK's object has nothing but a resourceVersion to resume from."""

    type: EventType
    object: JsonObject

    @property
    def resource_version(self) -> str:
        return str(self.object["metadata"].get("resourceVersion", ""))


class Request(Struct, frozen=True):
    """One API call, before credentials are added."""

    method: str
    path: str
    query: Mapping[str, str] = {}
    body: JsonObject | None = None
    content_type: str = _JSON
    watch: bool = False

    def __str__(self) -> str:
        """As error texts name it."""
        return f"{'WATCH' if self.watch else self.method} {self.path}"

    @property
    def idempotent(self) -> bool:
        """Whether sending it twice does no harm: a POST may create a second object."""
        return self.method != "POST"

    def encode(self, access: ClusterAccess, token: str, user_agent: str) -> bytes:
        target = access.base_path + self.path
        if self.query:
            target += "?" + urlencode(self.query)
        headers = {"Accept": _JSON, "User-Agent": user_agent}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if self.body is None:
            return encode_request(self.method, target, access.authority, headers)
        headers["Content-Type"] = self.content_type
        body = encode_body(self.body)
        return encode_request(self.method, target, access.authority, headers, body)


def encode_body(body: JsonObject) -> bytes:
    """JSON that is YAML as well, as which a server reads an apply patch: its decoder refuses the pairs of
    escapes by which JSON may write a character beyond 16 bits, so such a character goes as it is. Half a
    pair, as in names that are not UTF-8, is no character at all."""
    return _ODD.sub(_escape, json.dumps(body, ensure_ascii=False, separators=(",", ":"))).encode()


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    return "\\ufffd" if 0xD800 <= number <= 0xDFFF else f"\\u{number:04x}"


def without_empty(query: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in query.items() if value}


def parse_object(body: bytes) -> JsonObject:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError) as error:  # the author of a claim may nest its parameters
        raise ProtocolError(f"the answer is not JSON: {body[:80]!r}") from error
    if not isinstance(parsed, dict):
        raise ProtocolError(f"the answer is not a JSON object: {body[:80]!r}")
    return parsed


def parse_event(request: Request, line: bytes) -> WatchEvent:
    event = parse_object(line)
    kind, changed = event.get("type"), event.get("object")
    if not isinstance(changed, dict):
        raise ProtocolError(f"watch event without an object: {line[:80]!r}")
    if kind == "ERROR":
        code = changed.get("code")
        code = code if isinstance(code, int) and 400 <= code < 600 else 500
        raise failure_from_status(request, code, changed)
    event_type = EventType.__members__.get(str(kind))
    is_whole = isinstance(changed.get("metadata"), dict) if kind == "BOOKMARK" else has_identity(changed)
    if event_type is None or not is_whole:
        raise ProtocolError(f"watch event not understood: {line[:80]!r}")
    return WatchEvent(event_type, changed)


utc_now = partial(datetime.now, UTC)


def format_time(moment: datetime) -> str:
    """As ``metav1.Time`` is written."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def has_identity(thing: object) -> bool:
    """Whether it has the name and the uid of an object that a server has stored."""
    metadata = thing.get("metadata") if isinstance(thing, dict) else None
    return isinstance(metadata, dict) and all(
        isinstance(metadata.get(key), str) and metadata[key] for key in ("name", "uid")
    )


def check_stored(found: JsonObject, request: str) -> JsonObject:
    """``found``, if it is an object that a server has stored: a proxy may answer with any other.

    Raises:
        ProtocolError: it is not an object; ``request`` names what was asked for.
    """
    if not has_identity(found):
        raise ProtocolError(f"the answer to {request} is no API object: {str(found)[:80]}", retryable=True)
    return found


_T = TypeVar("_T")


def get_field(parent: JsonObject, key: str, kind: type[_T]) -> _T | None:
    """A field of a known JSON type; ``None`` where it is absent or null, the functions below give an empty
    value then.

    Raises:
        ProtocolError: it is of another type.
    """
    value = parent.get(key)
    if value is None or isinstance(value, kind):
        return value
    raise ProtocolError(f"API object: field {key!r} is a {type(value).__name__}, not a {kind.__name__}")


def get_object(parent: JsonObject, key: str) -> JsonObject:
    return get_field(parent, key, dict) or {}


def get_text(parent: JsonObject, key: str) -> str:
    return get_field(parent, key, str) or ""


def get_items(parent: JsonObject, key: str) -> list[JsonObject]:
    return _list_of(parent, key, dict)


def get_texts(parent: JsonObject, key: str) -> tuple[str, ...]:
    return tuple(_list_of(parent, key, str))


def _list_of(parent: JsonObject, key: str, kind: type[_T]) -> list[_T]:
    items: list[Any] = get_field(parent, key, list) or []
    for item in items:
        if not isinstance(item, kind):
            raise ProtocolError(
                f"API object: an entry of {key!r} is a {type(item).__name__}, not a {kind.__name__}"
            )
    return items
