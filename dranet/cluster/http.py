"""HTTP/1.1 as a client reads and writes it: message framing only, no sockets opened, no JSON.

Sources: RFC 9112 (message syntax) and RFC 9110 (header meaning). The parser takes hostile bytes: it
returns, or it raises :class:`ProtocolError` (not HTTP, or over a limit) or :class:`EOFError` (the peer
closed early), and nothing else. It must not know Kubernetes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping

from msgspec import Struct

from dranet.errors import ProtocolError

MAX_HEAD_BYTES = 64 * 1024
"""Limit of a status line with its headers, and of the trailers after a chunked body."""

_PIECE_BYTES = 64 * 1024
_MAX_CHUNK_LINE_BYTES = 4096
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: .*)?")
_HEADER_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")


class ResponseHead(Struct, frozen=True):
    """Status and headers (names in lower case; repeated ones joined by a comma)."""

    status: int
    headers: Mapping[str, str]
    minor_version: int = 1

    @property
    def keep_alive(self) -> bool:
        """Whether the connection may carry another request after this body."""
        options = {option.strip().lower() for option in self.headers.get("connection", "").split(",")}
        if "close" in options or self._ends_with_connection:
            return False
        return self.minor_version == 1 or "keep-alive" in options

    @property
    def chunked(self) -> bool:
        return "transfer-encoding" in self.headers

    @property
    def content_length(self) -> int | None:
        text = self.headers.get("content-length")
        return None if text is None else int(text)

    @property
    def bodiless(self) -> bool:
        """No body whatever the headers say (RFC 9112 section 6.3)."""
        return self.status < 200 or self.status in (204, 304)

    @property
    def _ends_with_connection(self) -> bool:
        return not (self.bodiless or self.chunked or self.content_length is not None)


def encode_request(
    method: str, target: str, host: str, headers: Mapping[str, str], body: bytes | None = None
) -> bytes:
    """The bytes of one request. ``target`` is the encoded path with its query."""
    fields = {"Host": host, **headers}
    if body is not None:
        fields["Content-Length"] = str(len(body))
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a line break in a request line or header")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b"")


def parse_head(raw: bytes) -> ResponseHead:
    """Parse a status line and headers, without the empty line that ends them.

    Raises:
        ProtocolError: it is not an HTTP/1.x response, or its framing is ambiguous.
    """
    first, *lines = raw.split(b"\r\n")
    match = _STATUS_LINE.fullmatch(first)
    if match is None:
        raise ProtocolError(f"not an HTTP/1.1 response: {first[:80]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, value = _parse_header(line)
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    _check_framing(headers)
    return ResponseHead(status=int(match[2]), headers=headers, minor_version=int(match[1]))


def _parse_header(line: bytes) -> tuple[str, str]:
    name, colon, value = line.partition(b":")
    if not colon or not _HEADER_NAME.fullmatch(name) or b"\n" in value or b"\r" in value:
        raise ProtocolError(f"malformed HTTP header: {line[:80]!r}")
    return name.decode("ascii").lower(), value.strip(b" \t").decode("latin-1")


def _check_framing(headers: dict[str, str]) -> None:
    """Refuse what two readers could cut differently; normalise a repeated equal Content-Length."""
    encoding = headers.get("transfer-encoding")
    length = headers.get("content-length")
    if encoding is not None and (encoding.lower() != "chunked" or length is not None):
        raise ProtocolError(f"HTTP framing not understood: Transfer-Encoding {encoding[:80]!r}")
    if length is not None:
        values = {value.strip() for value in length.split(",")}
        value = values.pop()
        if values or not re.fullmatch("[0-9]{1,15}", value):
            raise ProtocolError(f"HTTP Content-Length not understood: {length[:80]!r}")
        headers["content-length"] = value


async def read_head(reader: asyncio.StreamReader) -> ResponseHead:
    """Read the next final response head; informational (1xx) ones are skipped."""
    while True:
        raw = await _read_until(reader, b"\r\n\r\n", MAX_HEAD_BYTES)
        head = parse_head(raw[:-4])
        if head.status == 101:
            raise ProtocolError("the server switched protocols unasked")
        if head.status >= 200:
            return head


async def iter_body(reader: asyncio.StreamReader, head: ResponseHead) -> AsyncIterator[bytes]:
    """The body in the pieces as they arrive, none empty, whatever the framing."""
    if head.bodiless:
        return
    if head.chunked:
        pieces = _iter_chunked(reader)
    elif head.content_length is not None:
        pieces = _iter_exactly(reader, head.content_length)
    else:
        pieces = _iter_until_eof(reader)
    async for piece in pieces:
        yield piece


async def read_body(reader: asyncio.StreamReader, head: ResponseHead, max_bytes: int) -> bytes:
    """The whole body.

    Raises:
        ProtocolError: it is longer than ``max_bytes``; what follows on the connection is then unread.
    """
    if (head.content_length or 0) > max_bytes:
        raise ProtocolError(f"HTTP body of {head.content_length} bytes is over the limit of {max_bytes}")
    pieces = []
    size = 0
    async for piece in iter_body(reader, head):
        size += len(piece)
        if size > max_bytes:
            raise ProtocolError(f"HTTP body is over the limit of {max_bytes} bytes")
        pieces.append(piece)
    return b"".join(pieces)


async def _iter_exactly(reader: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
    while size:
        piece = await reader.read(min(size, _PIECE_BYTES))
        if not piece:
            raise EOFError(f"connection closed {size} bytes before the end of the body")
        size -= len(piece)
        yield piece


async def _iter_until_eof(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while piece := await reader.read(_PIECE_BYTES):
        yield piece


async def _iter_chunked(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := await _read_chunk_size(reader):
        async for piece in _iter_exactly(reader, size):
            yield piece
        if await reader.readexactly(2) != b"\r\n":
            raise ProtocolError("HTTP chunk does not end where it says")
    await _skip_trailers(reader)


async def _read_chunk_size(reader: asyncio.StreamReader) -> int:
    line = await _read_until(reader, b"\r\n", _MAX_CHUNK_LINE_BYTES)
    match = _CHUNK_SIZE.fullmatch(line[:-2])
    if match is None:
        raise ProtocolError(f"malformed HTTP chunk size: {line[:80]!r}")
    return int(match[1], 16)


async def _skip_trailers(reader: asyncio.StreamReader) -> None:
    budget = MAX_HEAD_BYTES
    while (line := await _read_until(reader, b"\r\n", budget)) != b"\r\n":
        _parse_header(line[:-2])
        budget -= len(line)


async def _read_until(reader: asyncio.StreamReader, separator: bytes, max_bytes: int) -> bytes:
    """``readuntil`` with one limit for what is buffered and for what is read (IncompleteReadError is
    an EOFError)."""
    try:
        raw = await reader.readuntil(separator)
    except asyncio.LimitOverrunError as error:
        raise ProtocolError("HTTP head or chunk line is over the reader's limit") from error
    if len(raw) > max_bytes:
        raise ProtocolError(f"HTTP head or chunk line is over {max_bytes} bytes")
    return raw
