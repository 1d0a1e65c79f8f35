"""HTTP/1.1 as a client reads and writes it: message framing only, no JSON; and the kept connections
to a server that it is spoken over.

Sources: RFC 9112 (message syntax) and RFC 9110 (header meaning). The parser takes hostile bytes: it
returns, or it raises :class:`ProtocolError` (not HTTP, or over a limit) or :class:`EOFError` (the peer
closed early), and nothing else. It must not know Kubernetes.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import AsyncIterator, Mapping

from msgspec import Struct

from dranet.cluster.credentials import ClusterAccess
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
        """No body, with any headers (RFC 9112 section 6.3)."""
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
            raise ProtocolError("HTTP chunk does not end at its announced size")
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


MAX_IDLE_CONNECTIONS = 4
MAX_CROWD_CONNECTIONS = 16
"""Idle ones while requests wait for a connection."""
MAX_OPENING = 4
"""TLS handshakes at a time. Each is milliseconds of computing on the event loop: hundreds at once, as when a
node's pods all start, would hold up the kubelet's question who we are for longer than it waits."""
IDLE_SECONDS = 55.0
"""Below the idle limit of common load balancers (60 s), so that they seldom close first."""

_KEEPALIVE_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000),
)
"""A peer that vanished without a word is noticed by the kernel within a minute (``tcp(7)``)."""


class Connection:
    """One open connection. ``reused``: it has answered a request before."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.reused = False
        self._writer = writer
        self._idle_since = 0.0

    async def exchange(self, request: bytes) -> ResponseHead:
        """Send one request and read the head of its answer; the body is left on ``reader``.

        Raises:
            OSError, EOFError: the connection broke.
            ProtocolError: the answer is not HTTP.
        """
        self._writer.write(request)
        await self._writer.drain()
        return await read_head(self.reader)

    def rest(self) -> None:
        """The answer was read to its end: the connection may wait for the next request."""
        self.reused = True
        self._idle_since = asyncio.get_running_loop().time()

    def is_usable(self) -> bool:
        """Whether it has not been closed by the peer (as far as we have heard) and is not too old."""
        age = asyncio.get_running_loop().time() - self._idle_since
        return age < IDLE_SECONDS and not self._writer.is_closing() and not self.reader.at_eof()

    def abort(self) -> None:
        """Drop it without ceremony; always safe, also twice."""
        self._writer.transport.abort()

    async def wait_closed(self) -> None:
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class ConnectionPool:
    """Opens connections, a few at a time, and keeps a few idle ones. There is no upper limit of open ones: a
    request waits for its own answer only, and not for the answers to others."""

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access
        self._opening = asyncio.Semaphore(MAX_OPENING)
        self._idle: list[Connection] = []
        self._context: ssl.SSLContext | None = None
        self._context_signature: tuple[tuple[int, ...], ...] = ()

    def __repr__(self) -> str:
        return f"ConnectionPool({self._access.url!r}, idle={len(self._idle)})"

    def take_idle(self) -> Connection | None:
        """The most recently used idle connection; those that ended meanwhile are dropped."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable():
                return connection
            connection.abort()
        return None

    async def take(self) -> Connection:
        """An idle connection, or a new one in its turn; in a crowd most get one that others are done with.

        Raises:
            OSError, SettingsError: as :meth:`open`.
        """
        async with self._opening:
            return self.take_idle() or await self.open()

    async def open(self) -> Connection:
        """A new connection, at once.

        Raises:
            OSError: refused, unreachable, or TLS failed (``ssl.SSLError`` is an ``OSError``).
            SettingsError: the TLS files are unusable.
        """
        context = self._get_context()
        tls = self._access.tls
        reader, writer = await asyncio.open_connection(
            self._access.host,
            self._access.port,
            limit=MAX_HEAD_BYTES,
            ssl=context,
            server_hostname=(tls.server_name or self._access.host) if tls else None,
        )
        _set_keepalive(writer.get_extra_info("socket"))
        return Connection(reader, writer)

    def put_back(self, connection: Connection) -> None:
        """Keep a connection whose last answer was read to its end."""
        connection.rest()
        if not connection.is_usable():
            connection.abort()
            return
        self._idle.append(connection)
        is_crowded = self._opening.locked()  # then another request takes it in a moment
        while len(self._idle) > (MAX_CROWD_CONNECTIONS if is_crowded else MAX_IDLE_CONNECTIONS):
            self._idle.pop(0).abort()

    async def aclose(self) -> None:
        """Close the idle connections; those in use belong to their requests."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.abort()
        for connection in idle:
            await connection.wait_closed()

    def _get_context(self) -> ssl.SSLContext | None:
        """Built at the first connection and again when a certificate file was rotated."""
        tls = self._access.tls
        if tls is None:
            return None
        signature = tls.get_signature()
        if self._context is None or signature != self._context_signature:
            self._context = tls.build_context()
            self._context_signature = signature
        return self._context


def _set_keepalive(sock: socket.socket) -> None:
    for level, option, value in _KEEPALIVE_OPTIONS:
        with contextlib.suppress(OSError):  # a hint to the kernel; the read timeouts work without it
            sock.setsockopt(level, option, value)
