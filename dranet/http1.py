"""HTTP/1.1 over one connection, and how TLS proves who is at its ends: shared by the rooms that ask servers.

HTTP is message framing here, without JSON (RFC 9112, RFC 9110). The parser takes hostile bytes: all that it
raises is :class:`ProtocolError` (not HTTP, or over a limit) and :class:`EOFError` (the peer closed early).
Tools rotate certificates while the process runs, so their files are read again when they change.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from pathlib import Path

from msgspec import Struct

from dranet.errors import ProtocolError, SettingsError


def file_signature(path: Path) -> tuple[int, ...]:
    """Another one after a file is replaced or rewritten; empty without a file."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class Pem(Struct, frozen=True):
    """A certificate or key: in a file, or as PEM text from a kubeconfig; absent without both."""

    path: Path | None = None
    text: str = ""

    def __bool__(self) -> bool:
        return self.path is not None or bool(self.text)

    def read_text(self) -> str:
        return self.text if self.path is None else self.path.read_text("ascii")


class Tls(Struct, frozen=True):
    """How to verify the server (without ``authority`` by the system's trust store, with ``server_name`` in
    place of the host name), and which certificate to show it."""

    authority: Pem = Pem()
    client_certificate: Pem = Pem()
    client_key: Pem = Pem()
    insecure: bool = False
    server_name: str = ""

    def get_signature(self) -> tuple[tuple[int, ...], ...]:
        sources = (self.authority, self.client_certificate, self.client_key)
        return tuple(file_signature(pem.path) for pem in sources if pem.path is not None)

    def build_context(self, server: str = "the API server") -> ssl.SSLContext:
        """
        Args:
            server: as the message calls it.

        Raises:
            SettingsError: a file is missing, not PEM, or the key does not belong to the certificate.
        """
        try:
            authority = self.authority.read_text() if self.authority else None
            context = ssl.create_default_context(cadata=authority)
            if self.client_certificate:
                _load_client_certificate(context, self.client_certificate, self.client_key)
        except (OSError, ValueError) as error:
            raise SettingsError(f"TLS files of {server}: {error}") from error
        # Python 3.13 turns this on; cluster authorities without an Authority Key Identifier are common.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.set_alpn_protocols(["http/1.1"])
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _load_client_certificate(context: ssl.SSLContext, certificate: Pem, key: Pem) -> None:
    """OpenSSL reads the pair from a path only: an anonymous memory file keeps the key off the disk."""
    pair = certificate.read_text().rstrip() + "\n" + key.read_text()
    descriptor = os.memfd_create("client-certificate", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "w") as memory:
        memory.write(pair)
        memory.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")


def check_resolvable(host: str) -> None:
    """Raise UnicodeError for what the resolver would choke on later. The codec costs a megabyte, so an
    ordinary name does not meet it."""
    if not host.isascii() or any(not 0 < len(label) < 64 for label in host.rstrip(".").split(".")):
        host.encode("idna")


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
        has_end = self.bodiless or self.chunked or self.content_length is not None
        return has_end and "close" not in options and (self.minor_version == 1 or "keep-alive" in options)

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


def encode_request(
    method: str, target: str, host: str, headers: Mapping[str, str], body: bytes | None = None
) -> bytes:
    """``target`` is the encoded path with its query."""
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


async def exchange_once(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, max_bytes: int
) -> tuple[ResponseHead, bytes]:
    """Send the only request of a connection, read its answer, and close. Raises as :func:`read_body`, and
    OSError."""
    try:
        writer.write(request)
        await writer.drain()
        head = await read_head(reader)
        return head, await read_body(reader, head, max_bytes)
    finally:
        writer.transport.abort()


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
    if not head.chunked and head.content_length is None:
        while piece := await reader.read(_PIECE_BYTES):
            yield piece
        return
    length = head.content_length or 0
    async for piece in _iter_chunked(reader) if head.chunked else _iter_exactly(reader, length):
        yield piece


async def read_body(reader: asyncio.StreamReader, head: ResponseHead, max_bytes: int) -> bytes:
    """The whole body.

    Raises:
        ProtocolError: it is longer than ``max_bytes``; what follows on the connection is then unread.
    """
    if (head.content_length or 0) > max_bytes:
        raise ProtocolError(f"HTTP body of {head.content_length} bytes is over the limit of {max_bytes}")
    pieces, size = [], 0
    async for piece in iter_body(reader, head):
        size += len(piece)
        if size > max_bytes:
            raise ProtocolError(f"HTTP body is over the limit of {max_bytes} bytes")
        pieces.append(piece)
    return b"".join(pieces)


async def iter_lines(
    reader: asyncio.StreamReader, head: ResponseHead, silence_seconds: float, max_bytes: int
) -> AsyncGenerator[bytes, None]:
    """The non-empty lines of a body that goes on and on.

    Raises:
        TimeoutError: a silence.
        ProtocolError: a line is longer than ``max_bytes``, or as :func:`read_body`.
    """
    pieces = iter_body(reader, head)
    rest = bytearray()
    while True:
        async with asyncio.timeout(silence_seconds):
            piece = await anext(pieces, b"")
        if not piece:
            return
        *lines, last = piece.split(b"\n")
        if lines:
            lines[0] = bytes(rest) + lines[0]
            rest.clear()
        rest += last  # in place: to copy all of a long line for each piece would stop the loop
        for line in lines:
            if line.strip():
                yield line
        if len(rest) > max_bytes:
            raise ProtocolError(f"watch event is over the limit of {max_bytes} bytes")


async def _iter_exactly(reader: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
    while size:
        piece = await reader.read(min(size, _PIECE_BYTES))
        if not piece:
            raise EOFError(f"connection closed {size} bytes before the end of the body")
        size -= len(piece)
        yield piece


async def _iter_chunked(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := await _read_chunk_size(reader):
        async for piece in _iter_exactly(reader, size):
            yield piece
        if await reader.readexactly(2) != b"\r\n":
            raise ProtocolError("HTTP chunk does not end at its announced size")
    budget = MAX_HEAD_BYTES  # of the trailers, which are skipped
    while (line := await _read_until(reader, b"\r\n", budget)) != b"\r\n":
        _parse_header(line[:-2])
        budget -= len(line)


async def _read_chunk_size(reader: asyncio.StreamReader) -> int:
    line = await _read_until(reader, b"\r\n", _MAX_CHUNK_LINE_BYTES)
    match = _CHUNK_SIZE.fullmatch(line[:-2])
    if match is None:
        raise ProtocolError(f"malformed HTTP chunk size: {line[:80]!r}")
    return int(match[1], 16)


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
