"""The messages of the Kubernetes API as this client knows them: a request, an answer, a watch event.

Pure: bytes and JSON in, values out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct

import dranet
from dranet.cluster.credentials import ClusterAccess
from dranet.cluster.failures import RequestName, failure_from_status
from dranet.cluster.http import encode_request
from dranet.errors import ProtocolError

JsonObject = dict[str, Any]

_JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
"""JSON is YAML; older servers know this type by no other name."""

_ODD = re.compile("[\x7f-\uffff]")
"""What is not sent as it is: YAML has line breaks and forbidden characters of its own among these."""

USER_AGENT = f"dranet/{dranet.__version__}"
"""Of the driver, in the API server's audit log and metrics."""


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
    query: Mapping[str, str]
    body: JsonObject | None = None
    content_type: str = _JSON
    watch: bool = False

    @property
    def name(self) -> RequestName:
        return RequestName(self.method, self.path, self.watch)

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


def given(query: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in query.items() if value}


def parse_object(body: bytes) -> JsonObject:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError) as error:  # whoever writes a claim may nest its parameters
        raise ProtocolError(f"the answer is not JSON: {body[:80]!r}") from error
    if not isinstance(parsed, dict):
        raise ProtocolError(f"the answer is not a JSON object: {body[:80]!r}")
    return parsed


def parse_event(request: RequestName, line: bytes) -> WatchEvent:
    event = parse_object(line)
    kind, changed = event.get("type"), event.get("object")
    if not isinstance(changed, dict):
        raise ProtocolError(f"watch event without an object: {line[:80]!r}")
    if kind == "ERROR":
        raise failure_from_status(request, _status_code(changed), changed)
    event_type = EventType.__members__.get(str(kind))
    is_whole = isinstance(changed.get("metadata"), dict) if kind == "BOOKMARK" else has_identity(changed)
    if event_type is None or not is_whole:
        raise ProtocolError(f"watch event not understood: {line[:80]!r}")
    return WatchEvent(event_type, changed)


def has_identity(thing: object) -> bool:
    """Whether it has the name and the uid of an object that a server has stored."""
    metadata = thing.get("metadata") if isinstance(thing, dict) else None
    return isinstance(metadata, dict) and all(
        isinstance(metadata.get(key), str) and metadata[key] for key in ("name", "uid")
    )


def check_stored(found: JsonObject, request: str) -> JsonObject:
    """``found``, if it is an object that a server has stored: a proxy may answer with any other.

    Raises:
        ProtocolError: it is none; ``request`` names what was asked for.
    """
    if not has_identity(found):
        raise ProtocolError(f"the answer to {request} is no API object: {str(found)[:80]}", retryable=True)
    return found


def _status_code(status: JsonObject) -> int:
    code = status.get("code")
    return code if isinstance(code, int) and 400 <= code < 600 else 500
