"""Connections to the API server: opened with TLS, kept alive, reused by one request at a time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl

from dranet.cluster.credentials import ClusterAccess
from dranet.cluster.http import MAX_HEAD_BYTES, ResponseHead, read_head

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
    """One open connection. ``reused`` tells whether it has answered a request before."""

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

    def give_back(self, connection: Connection) -> None:
        """Keep a connection whose last answer was read to its end."""
        connection.rest()
        if not connection.is_usable():
            connection.abort()
            return
        self._idle.append(connection)
        is_crowded = self._opening.locked()  # then somebody takes it in a moment
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
        with contextlib.suppress(OSError):  # a hint to the kernel; the read timeouts stand without it
            sock.setsockopt(level, option, value)
