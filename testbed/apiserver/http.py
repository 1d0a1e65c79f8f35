"""HTTP/1.1 as a server reads and writes it, for the API server stand-in.

Written apart from the client's reader in ``dranet.http1`` on purpose: two sides that share a
framing fault would never notice it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote

MAX_BODY_BYTES = 8 * 1024 * 1024


class BadHttp(Exception):
    """The bytes are not a request that this server understands; the connection is closed."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request; ``path`` is decoded, header names are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""
    keep_alive: bool = True
    size: int = 0
    """Bytes of head and body."""

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch", "").lower() in ("true", "1")


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A JSON answer."""

    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)


async def read_request(reader: asyncio.StreamReader) -> HttpRequest | None:
    """The next request; ``None`` when the client closed the connection between two of them."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise BadHttp("connection closed inside a request") from error
        return None
    except asyncio.LimitOverrunError as error:
        raise BadHttp("request head too large") from error
    first, *lines = raw[:-4].decode("latin-1").split("\r\n")
    headers = dict(_split_header(line) for line in lines)
    method, target, version = _split_request_line(first)
    path, _, query = target.partition("?")
    body = await _read_body(reader, headers)
    return HttpRequest(
        method=method,
        path=unquote(path),
        query=dict(parse_qsl(query, keep_blank_values=True)),
        headers=headers,
        body=body,
        keep_alive=version == "HTTP/1.1" and headers.get("connection", "").lower() != "close",
        size=len(raw) + len(body),
    )


def _split_request_line(line: str) -> tuple[str, str, str]:
    parts = line.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise BadHttp(f"malformed request line {line[:80]!r}")
    return parts[0], parts[1], parts[2]


def _split_header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon:
        raise BadHttp(f"malformed header {line[:80]!r}")
    return name.strip().lower(), value.strip()


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    try:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return await _read_chunks(reader)
        size = int(headers.get("content-length", "0"))
        if not 0 <= size <= MAX_BODY_BYTES:
            raise BadHttp(f"body of {size} bytes")
        return await reader.readexactly(size)
    except ValueError as error:
        raise BadHttp("malformed body length") from error
    except asyncio.IncompleteReadError as error:
        raise BadHttp("connection closed inside a body") from error


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int((await reader.readline()).partition(b";")[0], 16):
        body += (await reader.readexactly(size + 2))[:-2]
        if len(body) > MAX_BODY_BYTES:
            raise BadHttp("body too large")
    while (await reader.readline()).strip():
        pass
    return body


def encode_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def encode_response(response: HttpResponse, *, keep_alive: bool) -> bytes:
    body = encode_json(response.body)
    headers = {"Content-Length": str(len(body)), **response.headers}
    if not keep_alive:
        headers["Connection"] = "close"
    return encode_head(response.status, headers) + body


def encode_head(status: int, headers: Mapping[str, str]) -> bytes:
    fields = {"Content-Type": "application/json", **headers}
    lines = [f"HTTP/1.1 {status} {_phrase(status)}", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


def encode_chunk(data: bytes) -> bytes:
    """One chunk of a stream; empty ``data`` ends it."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Status"
