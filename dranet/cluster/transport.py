"""The way to the API server: where it is, how we prove who we are, and HTTP/1.1 over kept connections.

The kubelet rotates a service account's token and tools rotate client certificates while the process runs, so
their files are read again when they change. HTTP is message framing here, without JSON (RFC 9112, RFC 9110).
The parser takes hostile bytes: all that it raises is :class:`ProtocolError` (not HTTP, or over a limit) and
:class:`EOFError` (the peer closed early).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from dranet.errors import ProtocolError, SettingsError

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")

TOKEN_MAX_AGE_SECONDS = 60.0
"""Read the token again at least this often, even if the file looks the same."""


class TokenSource(Protocol):
    """Gives the bearer token to send now, or an empty string for none."""

    def get_token(self) -> str: ...

    def forget(self) -> None:
        """The server refused the token: do not answer from memory the next time."""


class FixedToken(Struct, frozen=True):
    """A token written into a kubeconfig, and nowhere else; empty where a certificate identifies us."""

    token: str = ""

    def get_token(self) -> str:
        return self.token

    def forget(self) -> None:
        pass


class TokenFile:
    """A token in a file that another program rotates, as the kubelet does with projected tokens."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._token = ""
        self._signature: tuple[int, ...] = ()
        self._read_at = 0.0

    def __repr__(self) -> str:
        return f"TokenFile({str(self._path)!r})"

    def get_token(self) -> str:
        """The token in the file; the last good one while the file is being replaced.

        Raises:
            SettingsError: the file cannot be read, or is empty or not one line of ASCII, and there is
                no earlier token that the server has not refused.
        """
        signature = file_signature(self._path)
        age = self._clock() - self._read_at
        if self._token and age < TOKEN_MAX_AGE_SECONDS and signature == self._signature:
            return self._token
        try:
            self._token = _read_token(self._path)
        except SettingsError:
            if not self._token:
                raise
        else:
            self._signature, self._read_at = signature, self._clock()
        return self._token

    def forget(self) -> None:
        self._token = ""


def _read_token(path: Path) -> str:
    try:
        token = path.read_text("ascii").strip()
    except OSError as error:
        raise SettingsError(f"token file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"token file {path}: not ASCII text") from error
    if not token or any(character.isspace() for character in token):
        raise SettingsError(f"token file {path}: must hold one token")
    return token


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

    def build_context(self) -> ssl.SSLContext:
        """
        Raises:
            SettingsError: a file is missing, not PEM, or the key does not belong to the certificate.
        """
        try:
            authority = self.authority.read_text() if self.authority else None
            context = ssl.create_default_context(cadata=authority)
            if self.client_certificate:
                _load_client_certificate(context, self.client_certificate, self.client_key)
        except (OSError, ValueError) as error:
            raise SettingsError(f"TLS files of the API server: {error}") from error
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


class ClusterAccess(Struct, frozen=True):
    """One API server and our credentials for it."""

    host: str
    port: int
    base_path: str = ""
    """Path prefix without a trailing slash, where the API server is behind a gateway."""
    tls: Tls | None = None
    """``None``: plain HTTP (the testbed)."""
    token: TokenSource = FixedToken()

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.base_path}"

    def check(self) -> None:
        """Read every file, so that a wrong one stops the start instead of the first request.

        Raises:
            SettingsError: a token, certificate or key file is unusable.
        """
        self.token.get_token()
        if self.tls is not None:
            self.tls.build_context()


def access_from_url(url: str, *, tls: Tls | None = None, token: TokenSource | None = None) -> ClusterAccess:
    """Take a server URL apart. ``tls`` counts for ``https`` only (default: the system's trust store).

    Raises:
        SettingsError: it is not an ``http`` or ``https`` URL with a host.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
        _check_resolvable(parts.hostname or "")
    except ValueError as error:
        raise SettingsError(f"API server URL {url!r}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(f"API server URL {url!r}: must be https://HOST[:PORT]")
    secure = parts.scheme == "https"
    return ClusterAccess(
        host=parts.hostname,
        port=port or (443 if secure else 80),
        base_path=parts.path.rstrip("/"),
        tls=(tls or Tls()) if secure else None,
        token=token or FixedToken(),
    )


def _check_resolvable(host: str) -> None:
    """Raise UnicodeError for what the resolver would choke on later. The codec costs a megabyte, so an
    ordinary name does not meet it."""
    if not host.isascii() or any(not 0 < len(label) < 64 for label in host.rstrip(".").split(".")):
        host.encode("idna")


def in_cluster_access(
    environment: Mapping[str, str], secrets_dir: Path = SERVICE_ACCOUNT_DIR
) -> ClusterAccess:
    """The pod's service account (``KUBERNETES_SERVICE_HOST``/``_PORT``, mounted token and CA).

    Raises:
        SettingsError: this is not a pod with a service account.
    """
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "")
    token, authority = secrets_dir / "token", secrets_dir / "ca.crt"
    hint = "outside of a cluster name a kubeconfig file with --kubeconfig"
    if not host or not port.isdigit():
        raise SettingsError("not in a cluster: KUBERNETES_SERVICE_HOST and _PORT are not set", hint=hint)
    for path in (token, authority):
        if not path.is_file():
            raise SettingsError(f"not in a cluster: {path} is missing", hint=hint)
    return ClusterAccess(
        host=host, port=int(port), tls=Tls(authority=Pem(path=authority)), token=TokenFile(token)
    )


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
        """Send one request and read the head of its answer; the body is left on ``reader``. A failure drops
        the connection.

        Raises:
            OSError, EOFError: the connection broke.
            ProtocolError: the answer is not HTTP.
        """
        try:
            self._writer.write(request)
            await self._writer.drain()
            return await read_head(self.reader)
        except BaseException:
            self.abort()
            raise

    def rest(self) -> None:
        self.reused = True
        self._idle_since = asyncio.get_running_loop().time()

    def is_usable(self) -> bool:
        """Whether it is not too old, and not closed by the peer as far as we have heard."""
        age = asyncio.get_running_loop().time() - self._idle_since
        return age < IDLE_SECONDS and not self._writer.is_closing() and not self.reader.at_eof()

    def abort(self) -> None:
        """Drop it; safe also twice."""
        self._writer.transport.abort()

    async def wait_closed(self) -> None:
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class ConnectionPool:
    """Opens connections, a few at a time, and keeps a few idle ones. There is no limit of open ones: a
    request waits for its own answer only."""

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access
        self._opening = asyncio.Semaphore(MAX_OPENING)
        self._idle: list[Connection] = []
        self._context: ssl.SSLContext | None = None
        self._context_signature: tuple[tuple[int, ...], ...] = ()

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
        Errors: as :meth:`open`."""
        async with self._opening:
            return self.take_idle() or await self.open()

    async def open(self) -> Connection:
        """
        Raises:
            OSError: refused, unreachable, or TLS failed (``ssl.SSLError`` is an ``OSError``).
            SettingsError: the TLS files are unusable.
        """
        tls = self._access.tls
        reader, writer = await asyncio.open_connection(
            self._access.host,
            self._access.port,
            limit=MAX_HEAD_BYTES,
            ssl=self._get_context(tls) if tls else None,
            server_hostname=(tls.server_name or self._access.host) if tls else None,
        )
        for option in _KEEPALIVE_OPTIONS:
            with contextlib.suppress(OSError):  # a hint to the kernel; the read timeouts work without it
                writer.get_extra_info("socket").setsockopt(*option)
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
        """Close the idle connections; requests close theirs."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.abort()
        for connection in idle:
            await connection.wait_closed()

    def _get_context(self, tls: Tls) -> ssl.SSLContext:
        """Built at the first connection and again when a certificate file was rotated."""
        signature = tls.get_signature()
        if self._context is None or signature != self._context_signature:
            self._context = tls.build_context()
            self._context_signature = signature
        return self._context
