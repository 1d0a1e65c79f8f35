"""The way to the API server: where it is, how we prove who we are, and HTTP/1.1 over kept connections.

The kubelet rotates a service account's token while the process runs, so its file is read again when it
changes. HTTP itself is ``dranet.http1``.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from dranet.errors import SettingsError
from dranet.http1 import (
    MAX_HEAD_BYTES,
    Pem,
    ResponseHead,
    Tls,
    check_resolvable,
    file_signature,
    read_head,
)

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
        check_resolvable(parts.hostname or "")
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
