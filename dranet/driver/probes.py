"""``/healthz``, ``/readyz`` and ``/metrics`` over plain HTTP, served from the event loop.

``/healthz`` answers as long as the loop runs: the kubelet restarts us when it does not. ``/readyz`` lists
each part with its state and is 503 until all are ready; a lost peer shows here and is not a crash.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dranet.errors import SettingsError
from dranet.telemetry import Metrics

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_SECONDS = 5.0
MAX_HEADER_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class PartState:
    """One line of ``/readyz``: ready or not, and why."""

    ready: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    status: str
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


class ProbeServer:
    """A tiny HTTP/1.1 server: GET and HEAD, one request a connection."""

    def __init__(
        self, bind_address: str, metrics: Metrics, read_state: Callable[[], Mapping[str, PartState]]
    ) -> None:
        host, _, port = bind_address.rpartition(":")
        self._host = host.strip("[]") or None
        self._port = int(port)
        self._metrics = metrics
        self._read_state = read_state
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            SettingsError: the address is taken or not ours.
        """
        try:
            self._server = await asyncio.start_server(
                self._handle, self._host, self._port, limit=MAX_HEADER_BYTES
            )
        except OSError as error:
            raise SettingsError(
                f"--bind-address: cannot listen on {self._host or '*'}:{self._port}: {error.strerror}",
                hint="is another process using the port?",
            ) from error

    @property
    def port(self) -> int:
        """The port really used (``--bind-address :0`` lets the kernel choose)."""
        assert self._server is not None, "not started"
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(request))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            log.debug("a probe request ended early")
        finally:
            writer.close()

    def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        response = self._route(method, path)
        head = (
            f"HTTP/1.1 {response.status}\r\nContent-Type: {response.content_type}\r\n"
            f"Content-Length: {len(response.body)}\r\nConnection: close\r\n\r\n"
        ).encode()
        return head if method == b"HEAD" else head + response.body

    def _route(self, method: bytes, path: bytes) -> Response:
        if method not in (b"GET", b"HEAD"):
            return Response("405 Method Not Allowed", b"only GET and HEAD\n")
        if path == b"/healthz":
            return Response("200 OK", b"ok\n")
        if path == b"/readyz":
            return self._readiness()
        if path == b"/metrics":
            self._set_ready_gauges()
            return Response("200 OK", self._metrics.render(), "text/plain; version=0.0.4; charset=utf-8")
        return Response("404 Not Found", b"try /healthz, /readyz or /metrics\n")

    def _readiness(self) -> Response:
        parts = self._read_state()
        lines = [
            f"[{'+' if state.ready else '-'}] {name}{': ' + state.detail if state.detail else ''}\n"
            for name, state in parts.items()
        ]
        ready = all(state.ready for state in parts.values())
        return Response("200 OK" if ready else "503 Service Unavailable", "".join(lines).encode())

    def _set_ready_gauges(self) -> None:
        for name, state in self._read_state().items():
            self._metrics.ready.labels(name).set(state.ready)
