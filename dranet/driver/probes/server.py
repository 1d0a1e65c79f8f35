"""``/healthz``, ``/readyz`` and ``/metrics`` over plain HTTP, served from the event loop.

``/healthz`` answers as long as the loop runs, and is 500 when something is gone that only a new process has:
the kubelet restarts us. ``/readyz`` lists each part with its state and is 503 until all are ready; a lost
peer shows here and is not a crash. ``/readyz?verbose`` adds what was found out about the peers' features,
which never make the driver unready; ``?verbose=json`` is the same for programs (``dranet doctor``).
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections.abc import Callable, Mapping, Sequence

from dranet.dataclass import dataclass
from dranet.driver.doctor.findings import Finding
from dranet.errors import SettingsError
from dranet.telemetry import Metrics

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_SECONDS = 5.0
"""For a request to come and its answer to be taken, together."""
MAX_HEADER_BYTES = 16 * 1024
MAX_CONNECTIONS = 64
"""At a time. The port is open to whoever reaches the node; hooks need descriptors, too."""
PORT_RETRY_SECONDS = 0.2


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


OK = Response("200 OK", b"ok\n")


class ProbeServer:
    """A tiny HTTP/1.1 server: GET and HEAD, one request a connection.

    Instances that overlap on a node share its ports: while ``may_wait`` says that another one lives, a port
    that is taken is its predecessor's, and asked for again (:meth:`run`).
    """

    def __init__(
        self,
        bind_address: str,
        metrics: Metrics,
        read_state: Callable[[], Mapping[str, PartState]],
        *,
        may_wait: Callable[[], bool] = bool,
        read_features: Callable[[], Sequence[Finding]] = tuple,
        read_fault: Callable[[], str] = str,
    ) -> None:
        host, _, port = bind_address.rpartition(":")
        self._host = host.strip("[]") or None
        self._port = int(port)
        self._metrics = metrics
        self._read_state = read_state
        self._may_wait = may_wait
        self._read_fault = read_fault
        self._read_features = read_features
        self._wanted = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._callers: dict[asyncio.StreamWriter, None] = {}
        """Oldest first."""

    async def start(self) -> None:
        """Listen, or leave that to :meth:`run` while the port is the predecessor's.

        Raises:
            SettingsError: the address is taken or not ours.
        """
        if not await self._listen():
            log.info("port %d is another instance's still; serving probes when it is free", self._port)

    async def run(self) -> None:
        """Listen whenever the port is to be ours, for ever.

        Raises:
            SettingsError: somebody has the port who is no instance of the driver.
        """
        while True:
            await self._wanted.wait()
            if self._server is None and not await self._listen():
                await asyncio.sleep(PORT_RETRY_SECONDS)
            elif self._wanted.is_set():
                self._wanted.clear()
            else:  # it was released while we were at it
                self.release_port()

    def want_port(self) -> None:
        """The port is to be ours (again)."""
        if self._server is None:
            self._wanted.set()

    def release_port(self) -> None:
        """Leave the port to another instance."""
        self._wanted.clear()
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _listen(self) -> bool:
        """Whether we have the port; false while another instance has it."""
        try:
            self._server = await asyncio.start_server(
                self._handle, self._host, self._port, limit=MAX_HEADER_BYTES
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE and self._may_wait():
                self._wanted.set()
                return False
            raise SettingsError(
                f"--bind-address: cannot listen on {self._host or '*'}:{self._port}: {error.strerror}",
                hint="is another process using the port?",
            ) from error
        return True

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
        self._make_room(writer)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(request))
                writer.close()
                await writer.wait_closed()  # so that who does not read is cut off, too
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            log.debug("a probe request ended early")
        finally:
            self._callers.pop(writer, None)
            writer.transport.abort()

    def _make_room(self, newest: asyncio.StreamWriter) -> None:
        """Who has been here for longest goes first: a real prober says what it wants at once, and is gone."""
        self._callers[newest] = None
        while len(self._callers) > MAX_CONNECTIONS:
            oldest = next(iter(self._callers))
            self._callers.pop(oldest)
            oldest.transport.abort()

    def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        path, _, query = rest.partition(b" ")[0].partition(b"?")
        response = self._route(method, path, query)
        head = (
            f"HTTP/1.1 {response.status}\r\nContent-Type: {response.content_type}\r\n"
            f"Content-Length: {len(response.body)}\r\nConnection: close\r\n\r\n"
        ).encode()
        return head if method == b"HEAD" else head + response.body

    def _route(self, method: bytes, path: bytes, query: bytes) -> Response:
        if method not in (b"GET", b"HEAD"):
            return Response("405 Method Not Allowed", b"only GET and HEAD\n")
        if path == b"/healthz":
            fault = self._read_fault()
            return Response("500 Internal Server Error", f"{fault}\n".encode()) if fault else OK
        if path == b"/readyz":
            return self._readiness(query)
        if path == b"/metrics":
            self._set_ready_gauges()
            return Response("200 OK", self._metrics.render(), "text/plain; version=0.0.4; charset=utf-8")
        return Response("404 Not Found", b"try /healthz, /readyz, /readyz?verbose or /metrics\n")

    def _readiness(self, query: bytes) -> Response:
        parts = self._read_state()
        status = "200 OK" if all(state.ready for state in parts.values()) else "503 Service Unavailable"
        if query == b"verbose=json":
            return Response(status, self._render_json(parts), "application/json")
        lines = [
            f"[{'+' if state.ready else '-'}] {name}{': ' + state.detail if state.detail else ''}"
            for name, state in parts.items()
        ]
        if query.partition(b"=")[0] == b"verbose":
            lines += [finding.line for finding in self._read_features()]
        return Response(status, "".join(f"{line}\n" for line in lines).encode())

    def _render_json(self, parts: Mapping[str, PartState]) -> bytes:
        document = {
            "parts": [
                {"name": name, "ready": state.ready, "detail": state.detail} for name, state in parts.items()
            ],
            "features": [finding.to_json() for finding in self._read_features()],
        }
        return json.dumps(document).encode()

    def _set_ready_gauges(self) -> None:
        for name, state in self._read_state().items():
            self._metrics.ready.labels(name).set(state.ready)
