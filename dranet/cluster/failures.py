"""Map what went wrong with a request to the house's errors: the one exception map of this room.

Sources: ``metav1.Status`` and ``metav1.StatusReason`` (``apimachinery/pkg/apis/meta/v1/types.go``).
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from msgspec import Struct

from dranet.cluster.http import ResponseHead
from dranet.errors import ClusterError, ProtocolError, Reason

_REASONS = {
    401: Reason.API_FORBIDDEN,
    403: Reason.API_FORBIDDEN,
    404: Reason.API_NOT_FOUND,
    409: Reason.API_CONFLICT,
    410: Reason.API_GONE,
}
_RETRYABLE = {409, 410}
_MAX_TEXT = 2000
_MAX_RETRY_AFTER_SECONDS = 30.0
_NOT_IN_ITS_TIME = (9, 10)
"""``X509_V_ERR_CERT_NOT_YET_VALID`` and ``X509_V_ERR_CERT_HAS_EXPIRED`` (OpenSSL, ``x509_vfy.h``)."""


class RequestName(Struct, frozen=True):
    """What a request does, for error texts: HTTP method, API path, and whether it is a watch."""

    method: str
    path: str
    watch: bool = False

    def __str__(self) -> str:
        return f"{'WATCH' if self.watch else self.method} {self.path}"


def failure_from_answer(request: RequestName, head: ResponseHead, body: bytes) -> ClusterError:
    """The error of an answer that is not 2xx (or not JSON of the API at all, as from a proxy)."""
    error = failure_from_status(request, head.status, _parse_status(body))
    error.retry_after_seconds = parse_retry_after(head) or 0.0
    return error


def parse_retry_after(head: ResponseHead) -> float | None:
    """``Retry-After`` in seconds (API servers never send the date form), capped."""
    text = head.headers.get("retry-after", "")
    return min(float(text), _MAX_RETRY_AFTER_SECONDS) if text.isascii() and text.isdigit() else None


def failure_from_status(request: RequestName, code: int, status: Mapping[str, Any]) -> ClusterError:
    """The error of a ``metav1.Status`` object; ``status`` may be empty."""
    text = str(status.get("message") or status.get("reason") or "no message")[:_MAX_TEXT]
    return ClusterError(
        f"{request}: {code} {text}",
        status=code,
        reason=_reason(code),
        retryable=_reason(code) is Reason.API_UNAVAILABLE or code in _RETRYABLE,
        hint=_hint(request, code),
    )


def failure_from_exception(request: RequestName, url: str, error: Exception) -> ClusterError:
    """The error of a request that got no whole answer."""
    return ClusterError(
        f"{request}: no answer from {url}: {_describe(error)}",
        reason=Reason.API_UNAVAILABLE,
        retryable=True,
        hint=_transport_hint(error),
    )


def _reason(code: int) -> Reason:
    if code < 400 or code >= 500 or code in (408, 429):  # API servers send nobody elsewhere: it is a gateway
        return Reason.API_UNAVAILABLE
    return _REASONS.get(code, Reason.API_INVALID)


def _parse_status(body: bytes) -> Mapping[str, Any]:
    try:
        status = json.loads(body)
    except (ValueError, RecursionError):
        return {"message": body[:200].decode("utf-8", "replace").strip()}
    return status if isinstance(status, dict) else {}


def _hint(request: RequestName, code: int) -> str:
    if code == 401:
        return "the credentials were refused: check the token or the client certificate"
    return f"the RBAC rule it takes: {describe_rule(request)}" if code == 403 else ""


def describe_rule(request: RequestName) -> str:
    """The RBAC rule that permits a request: ``patch resourceclaims/status in resource.k8s.io``.

    >>> describe_rule(RequestName("GET", "/api/v1/nodes/a"))
    'get nodes in the core group'
    """
    parts = [unquote(part) for part in request.path.strip("/").split("/")]
    group = parts[1] if parts[0] == "apis" else ""
    rest = parts[3:] if parts[0] == "apis" else parts[2:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    resource = "/".join([*rest[:1], *rest[2:]])
    return f"{_verb(request, len(rest) > 1)} {resource} in {group or 'the core group'}"


def _verb(request: RequestName, item: bool) -> str:
    if request.watch:
        return "watch"
    if request.method == "GET":
        return "get" if item else "list"
    if request.method == "DELETE" and not item:
        return "deletecollection"
    return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[request.method]


def _describe(error: Exception) -> str:
    if isinstance(error, ProtocolError):
        return error.message
    if isinstance(error, TimeoutError):
        return "timed out"
    return str(error) or type(error).__name__


def _transport_hint(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _NOT_IN_ITS_TIME:
            return "is the clock of this node right? else the server's certificate has to be renewed"
        return "the certificate authority in use did not sign the server's certificate for this name"
    return ""
