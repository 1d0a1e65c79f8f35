"""The probe port: HTTP or HTTPS, served from the event loop.

``/healthz`` answers while the loop runs, and returns 500 when something is lost that only a new process gets
back: the kubelet then restarts the driver. ``/readyz`` lists the state of each service and returns 503 until
all are ready; a lost peer shows here and does not end the driver. ``/readyz?verbose`` adds the features of
the peers, which do not affect readiness; ``?verbose=json`` is the same for programs (``dranet doctor``).
``/metrics`` is for Prometheus, ``/`` the status page.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from dranet import files
from dranet.cluster.slices import SlicePublisher
from dranet.driver.instances.leader import Drain, InstanceState, Leadership
from dranet.driver.probes.http import PAGE_PATHS, Access, Caller, Request, Response, identify, parse_request
from dranet.driver.probes.tls import TlsFiles, TlsReaderProtocol, secure
from dranet.errors import SettingsError
from dranet.kubelet.kubelet_plugin import KubeletPlugin
from dranet.model.findings import Finding
from dranet.runtime.nri import NriPlugin
from dranet.telemetry import Metrics

log = logging.getLogger(__name__)


class Readiness:
    """``pod_uid`` is empty for an instance that is alone on its node."""

    def __init__(
        self,
        pod_uid: str,
        handover: Leadership,
        leaving: Drain,
        runtime: NriPlugin,
        kubelet: KubeletPlugin,
        publisher: SlicePublisher,
    ) -> None:
        self._pod_uid = pod_uid
        self._handover = handover
        self._leaving = leaving
        self._runtime = runtime
        self._kubelet = kubelet
        self._publisher = publisher

    def read(self) -> Mapping[str, PartState]:
        """Return the states by service; all must be ready."""
        return {
            "driver": PartState(not self._leaving.begun, "draining" if self._leaving.begun else ""),
            **({"instance": self._read_instance()} if self._pod_uid else {}),
            "runtime": self._read_runtime(),
            "kubelet": PartState(
                bool(self._kubelet.capabilities.registered), self._kubelet.describe_registration()
            ),
            "slices": self._read_slices(),
        }

    def _read_instance(self) -> PartState:
        """Other instances do not matter: a DaemonSet with surge deletes an old pod at once when it becomes
        unready next to a newer one."""
        state, newcomers = self._handover.state, self._handover.newcomers
        detail = f"pod {self._pod_uid} is {state}"
        if newcomers:
            detail += f"; {', '.join(sorted(newcomers))} not ready to take over yet"
        return PartState(state in (InstanceState.LEADER, InstanceState.RETIRED), detail)

    def _read_runtime(self) -> PartState:
        if self._runtime.is_ready:
            return PartState(True)
        reason = f"NRI is not connected: {self._runtime.last_failure or 'not tried yet'}"
        return PartState(False, self._runtime.fault or reason)

    def _read_slices(self) -> PartState:
        if self._handover.state is not InstanceState.LEADER:
            return PartState(True, "published by another instance")
        return PartState(self._publisher.is_published, self._publisher.last_error)


LOOK_SECONDS = 1.0
"""Interval at which the driver's own state is read, from memory only."""


class ReadyFile:
    """Keeps a file while the driver is ready, from :meth:`start` to :meth:`remove`: the readiness probe of
    this instance.

    On the host's network all pods of the driver share their ports, so while two instances overlap an HTTP
    probe of the new pod reaches the old one. A DaemonSet with surge would delete the old pod before the new
    one is ready. A file in the pod's own volume cannot be confused.
    """

    def __init__(self, path: Path, read_state: Callable[[], Mapping[str, PartState]]) -> None:
        self._path = path
        self._read_state = read_state
        self._there = False

    def start(self) -> None:
        """Remove what an earlier container of the pod left.

        Raises:
            SettingsError: the folder is missing or cannot be written.
        """
        try:
            files.remove_file(self._path)
            files.touch(self._path)
            files.remove_file(self._path)
        except OSError as error:
            raise SettingsError(
                f"--ready-file: cannot write {self._path}: {error.strerror}",
                hint=files.hint_for(error, "mount an emptyDir at its folder"),
            ) from error

    async def run(self) -> None:
        while True:
            self.update()
            await asyncio.sleep(LOOK_SECONDS)

    def update(self) -> None:
        """Create or remove the file as the state is now. If the disk refuses, that is logged once and the
        probe fails."""
        ready = all(state.ready for state in self._read_state().values())
        if ready == self._there:
            return
        try:
            if ready:
                files.touch(self._path)
            else:
                files.remove_file(self._path)
        except OSError as error:
            log.warning("ready file %s: %s", self._path, error.strerror)
        self._there = ready

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            files.remove_file(self._path)
        self._there = False


class PartState(Struct, frozen=True):
    ready: bool
    detail: str = ""


OK = Response("200 OK", b"ok\n")
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def no_page() -> Response:
    """Answer for a server without a status page."""
    return Response("404 Not Found", b"try /healthz, /readyz, /readyz?verbose or /metrics\n")


class PortContent(Struct, frozen=True):
    """What the port shows, read from memory."""

    read_state: Callable[[], Mapping[str, PartState]]
    read_features: Callable[[], Sequence[Finding]] = tuple
    """Features of the peers and other findings."""
    read_fault: Callable[[], str] = str
    """Returns what only a new process can get back; empty: nothing."""
    read_page: Callable[[], Awaitable[Response]] = no_page
    read_metrics: Callable[[], Awaitable[bytes]] | None = None
    """By default only the metrics of the driver itself are shown."""


class Routes:
    def __init__(
        self, content: PortContent, read_metrics: Callable[[], Awaitable[bytes]], access: Access
    ) -> None:
        self._content = content
        self._read_metrics = read_metrics
        self._access = access

    async def answer(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return Response("405 Method Not Allowed", b"only GET and HEAD\n")
        refusal = await self._access.refuse(request)
        if refusal is not None:
            return refusal
        if request.path in PAGE_PATHS:
            return await self._content.read_page()
        if request.path == "/healthz":
            fault = self._content.read_fault()
            return Response("500 Internal Server Error", f"{fault}\n".encode()) if fault else OK
        if request.path == "/readyz":
            return self._readiness(request.query)
        if request.path == "/metrics":
            return Response("200 OK", await self._read_metrics(), METRICS_TYPE)
        return Response("404 Not Found", b"try /, /healthz, /readyz, /readyz?verbose or /metrics\n")

    def _readiness(self, query: str) -> Response:
        parts = self._content.read_state()
        status = "200 OK" if all(state.ready for state in parts.values()) else "503 Service Unavailable"
        if query == "verbose=json":
            return Response(status, self._render_json(parts), "application/json")
        lines = [
            f"[{'+' if state.ready else '-'}] {name}{': ' + state.detail if state.detail else ''}"
            for name, state in parts.items()
        ]
        if query.partition("=")[0] == "verbose":
            lines += [finding.line for finding in self._content.read_features()]
        return Response(status, "".join(f"{line}\n" for line in lines).encode())

    def _render_json(self, parts: Mapping[str, PartState]) -> bytes:
        document = {
            "parts": [
                {"name": name, "ready": state.ready, "detail": state.detail} for name, state in parts.items()
            ],
            "features": [finding.to_json() for finding in self._content.read_features()],
        }
        return json.dumps(document).encode()


REQUEST_TIMEOUT_SECONDS = 5.0
"""For reading a request and writing its answer, together."""
MAX_HEADER_BYTES = 16 * 1024
MAX_CONNECTIONS = 64
"""At a time. Any host that reaches the node can connect, and hooks need file descriptors as well."""
MAX_WAITING_BYTES = 32 << 20
"""Unread answers, together; a scrape of a large node has 2 MB."""
PORT_RETRY_SECONDS = 0.2


class _Waiting(NamedTuple):
    address: str
    size: int
    """Bytes of the answer that it has not read yet."""


class ProbeServer:
    """Answers one request per connection, in a bounded time.

    Instances that overlap on a node share its ports: while ``may_wait`` returns true, a port in use belongs
    to the predecessor and is tried again (:meth:`run`).
    """

    def __init__(
        self,
        bind_address: str,
        metrics: Metrics,
        content: PortContent,
        *,
        may_wait: Callable[[], bool] = bool,
        access: Access | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        host, _, port = bind_address.rpartition(":")
        self._host = host.strip("[]") or None
        self._port = int(port)
        self._metrics = metrics
        self._content = content
        self._may_wait = may_wait
        self._tls = tls
        self._routes = Routes(content, self._scrape, access or Access())
        self._wanted = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._callers: dict[asyncio.StreamWriter, _Waiting] = {}
        """The oldest first."""

    async def start(self) -> None:
        """Listen, or leave that to :meth:`run` while the predecessor has the port.

        Raises:
            SettingsError: the address is in use or not ours.
        """
        if not await self._listen():
            log.info("port %d is another instance's still; serving probes when it is free", self._port)

    async def run(self) -> None:
        """Listen whenever the port is wanted, until cancelled.

        Raises:
            SettingsError: a program other than an instance of the driver has the port.
        """
        while True:
            await self._wanted.wait()
            if self._server is None and not await self._listen():
                await asyncio.sleep(PORT_RETRY_SECONDS)
            elif self._wanted.is_set():
                self._wanted.clear()
            else:  # released meanwhile
                self.release_port()

    def want_port(self) -> None:
        if self._server is None:
            self._wanted.set()

    def release_port(self) -> None:
        """Leave the port to another instance at once. Callers that were accepted before are answered.

        asyncio accepts a caller in two steps of its loop, and a server that is closed between them forgets it
        with its connection open (python/cpython#109564). Therefore the socket stops accepting now and is
        closed one step later.
        """
        self._wanted.clear()
        if self._server is not None:
            loop = asyncio.get_running_loop()
            for listener in self._server.sockets:
                loop.remove_reader(listener)
                listener.shutdown(socket.SHUT_RDWR)  # Linux: it no longer listens, another socket may
            loop.call_soon(self._server.close)
            self._server = None

    async def _listen(self) -> bool:
        """Return whether the driver has the port; false while another instance has it."""
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._new_protocol, self._host, self._port
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

    def _new_protocol(self) -> asyncio.StreamReaderProtocol:
        protocol = asyncio.StreamReaderProtocol if self._tls is None else TlsReaderProtocol
        return protocol(asyncio.StreamReader(limit=MAX_HEADER_BYTES), self._handle)

    @property
    def port(self) -> int:
        """The port in use (``--bind-address :0`` lets the kernel choose)."""
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
                secured = writer
                if self._tls is not None:  # first of all: what the caller sends is for TLS
                    secured = await secure(reader, writer, self._tls.get_context())
                data = await reader.readuntil(b"\r\n\r\n")
                answer = await self._answer(parse_request(data, _identify(secured)))
                self._make_room(writer, len(answer))
                secured.write(answer)
                secured.close()
                await secured.wait_closed()  # so that a caller that does not read is cut off as well
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            log.debug("a probe request ended early")
        except asyncio.CancelledError:  # at the end of the driver; asyncio would log it as a bug
            log.debug("a probe request ended with the driver")
        finally:
            self._callers.pop(writer, None)
            writer.transport.abort()

    def _make_room(self, newest: asyncio.StreamWriter, size: int = 0) -> None:
        """Close the oldest connection of the address with the most connections while there are too many. A
        prober sends, reads and leaves at once, so a flood from one address evicts only itself."""
        self._callers[newest] = _Waiting(_identify(newest).address, size)
        while len(self._callers) > MAX_CONNECTIONS:
            self._cut_off(self._find_greediest(self._callers, lambda _: 1))
        while sum(waiting.size for waiting in self._callers.values()) > MAX_WAITING_BYTES:
            others = [w for w, waiting in self._callers.items() if waiting.size and w is not newest]
            if not others:
                break
            self._cut_off(self._find_greediest(others, lambda waiting: waiting.size))

    def _find_greediest(
        self, callers: Iterable[asyncio.StreamWriter], weigh: Callable[[_Waiting], int]
    ) -> asyncio.StreamWriter:
        """Return the oldest caller from the address with the most."""
        totals: Counter[str] = Counter()
        for waiting in self._callers.values():
            totals[waiting.address] += weigh(waiting)
        return max(callers, key=lambda caller: totals[self._callers[caller].address])

    def _cut_off(self, caller: asyncio.StreamWriter) -> None:
        self._callers.pop(caller)
        caller.transport.abort()

    async def _answer(self, request: Request) -> bytes:
        try:
            response = await self._routes.answer(request)
        except (asyncio.CancelledError, TimeoutError):
            raise
        except Exception:  # a request must not end the driver
            log.exception("bug in the answer to %s", request.path)
            response = Response("500 Internal Server Error", b"a bug of the driver; its log has more\n")
        return response.encode(has_body=request.method != "HEAD")

    async def _scrape(self) -> bytes:
        for name, state in self._content.read_state().items():
            self._metrics.ready.labels(name).set(state.ready)
        self._metrics.scrape.certificate_ok.set(self._tls is None or not self._tls.problem)
        if self._tls is not None and self._tls.validity is not None:
            self._metrics.scrape.show_validity(self._tls.validity.not_before, self._tls.validity.not_after)
        read = self._content.read_metrics
        return self._metrics.render() if read is None else await read()


def _identify(writer: asyncio.StreamWriter) -> Caller:
    """Return the caller; its address is empty if it is already gone."""
    return identify(writer.get_extra_info("peername"), writer.get_extra_info("ssl_object"))
