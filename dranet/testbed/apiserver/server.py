"""An API server of one process for the testbed: real HTTP, real versions, watches and refusals.

Clients (the driver, the scheduler and kubelet stand-ins, the official client, kubectl) meet it over a
socket only. It keeps everything in memory and runs no controllers: nothing is garbage collected by owner
reference, nothing is scheduled. It checks a bearer token if told to, and no RBAC. Why it is our own:
``docs/decisions/005-api-server-stand-in.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from dranet.testbed.apiserver.errors import (
    Refusal,
    bad_request,
    injected,
    method_not_allowed,
    no_such_path,
    unauthorized,
)
from dranet.testbed.apiserver.http import (
    BadHttp,
    HttpRequest,
    HttpResponse,
    encode_chunk,
    encode_head,
    encode_json,
    encode_response,
    read_request,
)
from dranet.testbed.apiserver.kinds import KINDS, NAMESPACES, JsonObject, build_discovery, find_kind
from dranet.testbed.apiserver.rest import Rest, Target
from dranet.testbed.apiserver.store import Store
from dranet.testbed.apiserver.watch import WatchQuery, iter_events, parse_watch

_MAX_HEAD_BYTES = 64 * 1024
_START_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_HEALTH_PATHS = ("/healthz", "/livez", "/readyz")


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request as it came in, for tests that count them. ``method`` is WATCH for a watch."""

    method: str
    path: str


@dataclass(slots=True)
class _Fault:
    """A failure that waits for its request. ``status`` 0: do the work, then break the connection."""

    method: str
    path_prefix: str
    status: int
    remaining: int
    retry_after: int | None = None

    def matches(self, record: RequestRecord) -> bool:
        return record.method == self.method and record.path.startswith(self.path_prefix)


@dataclass(slots=True, eq=False)
class _Session:
    """One client connection."""

    writer: asyncio.StreamWriter
    watching: bool = False
    answered: int = field(default=0)


class ApiServer:
    """One API server on one socket.

    ``certificate`` and ``key`` are PEM files for HTTPS; ``tokens``, when given, are the bearer tokens
    that are let in (change ``accepted_tokens`` at any time to rotate them).
    """

    def __init__(
        self,
        *,
        certificate: Path | None = None,
        key: Path | None = None,
        tokens: Iterable[str] | None = None,
        bookmark_seconds: float = 60.0,
    ) -> None:
        self.accepted_tokens = None if tokens is None else set(tokens)
        self.requests: deque[RequestRecord] = deque(maxlen=10_000)
        self._certificate = certificate
        self._key = key
        self._bookmark_seconds = bookmark_seconds
        self._store = Store()
        self._rest = Rest(self._store)
        self._faults: list[_Fault] = []
        self._watches_flow = asyncio.Event()
        self._watches_flow.set()
        self._server: asyncio.Server | None = None
        self._sessions: dict[asyncio.Task[None], _Session] = {}
        self._address = ("", 0)

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 takes a free one. The namespaces of a new cluster exist from then on."""
        for name in _START_NAMESPACES:
            if self._store.get((NAMESPACES, "", name)) is None:
                self._rest.create(Target(NAMESPACES), {"metadata": {"name": name}}, "apiserver")
        self._server = await asyncio.start_server(
            self._accept, host, port, ssl=self._build_tls(), limit=_MAX_HEAD_BYTES
        )
        bound = self._server.sockets[0].getsockname()
        self._address = (str(bound[0]), int(bound[1]))

    async def stop(self) -> None:
        """Close the socket and every connection; the objects stay, for another start."""
        if self._server is not None:
            self._server.close()
        sessions = dict(self._sessions)
        for task, session in sessions.items():
            task.cancel()
            session.writer.transport.abort()
        await asyncio.gather(*sessions, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def port(self) -> int:
        return self._address[1]

    @property
    def url(self) -> str:
        host, port = self._address
        scheme = "https" if self._certificate else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def write_kubeconfig(self, path: Path, *, token: str = "") -> None:
        """A kubeconfig (JSON is YAML) that leads here; a self-signed certificate is its own authority."""
        cluster: JsonObject = {"server": self.url}
        if self._certificate is not None:
            cluster["certificate-authority"] = str(self._certificate)
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "testbed",
            "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": "testbed"}}],
            "clusters": [{"name": "testbed", "cluster": cluster}],
            "users": [{"name": "testbed", "user": {"token": token} if token else {}}],
        }
        path.write_text(json.dumps(document, indent=2) + "\n")

    def objects(self, plural: str) -> list[JsonObject]:
        """Copies of all objects of a kind, for a test to look at behind the clients' backs."""
        kind = next(kind for kind in KINDS if kind.plural == plural)
        return [json.loads(json.dumps(body)) for _, body in self._store.iter_objects(kind)]

    def fail_next(
        self,
        method: str,
        path_prefix: str,
        status: int,
        count: int = 1,
        *,
        retry_after: int | None = None,
    ) -> None:
        """Answer the next ``count`` matching requests with ``status`` and do nothing (WATCH as method for
        watches). Status 0: do what is asked, then break the connection without an answer."""
        self._faults.append(_Fault(method, path_prefix, status, count, retry_after))

    def drop_watches(self) -> None:
        """Break every open watch connection, as a restarted load balancer does."""
        for session in self._sessions.values():
            if session.watching:
                session.writer.transport.abort()

    def drop_idle(self) -> int:
        """Close kept connections that wait for their next request; returns how many."""
        idle = [s for s in self._sessions.values() if not s.watching and s.answered]
        for session in idle:
            session.writer.transport.abort()
        return len(idle)

    def hold_watches(self) -> None:
        """Let watches fall silent with their connections open: late news, or a half-open connection."""
        self._watches_flow.clear()

    def release_watches(self) -> None:
        self._watches_flow.set()

    def compact(self) -> None:
        """Forget history: any older resourceVersion is 410, in open watches too."""
        self._store.compact()

    def open_watches(self) -> int:
        return sum(session.watching for session in self._sessions.values())

    def _build_tls(self) -> ssl.SSLContext | None:
        if self._certificate is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._certificate, self._key)
        return context

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = _Session(writer)
        task = asyncio.create_task(self._serve(reader, session), name="apiserver-connection")
        self._sessions[task] = session
        task.add_done_callback(self._sessions.pop)

    async def _serve(self, reader: asyncio.StreamReader, session: _Session) -> None:
        try:
            while (request := await read_request(reader)) is not None:
                if not await self._answer(request, reader, session):
                    break
        except BadHttp as error:
            answer = HttpResponse(400, bad_request(str(error)).build_status())
            session.writer.write(encode_response(answer, keep_alive=False))
        except OSError:
            pass  # the client went away
        finally:
            session.writer.close()

    async def _answer(self, request: HttpRequest, reader: asyncio.StreamReader, session: _Session) -> bool:
        """Serve one request; whether the connection goes on."""
        record = RequestRecord("WATCH" if request.is_watch else request.method, request.path)
        self.requests.append(record)
        fault = self._take_fault(record)
        try:
            self._authenticate(request)
            if fault is not None and fault.status:
                raise injected(fault.status, request.path)
            if request.is_watch and request.method == "GET":
                await self._stream(request, reader, session)
                return False
            answer = self._route(request)
        except Refusal as refusal:
            answer = _refuse(refusal, fault)
        if fault is not None and not fault.status:
            return False
        session.writer.write(encode_response(answer, keep_alive=request.keep_alive))
        await session.writer.drain()
        session.answered += 1
        return request.keep_alive

    def _take_fault(self, record: RequestRecord) -> _Fault | None:
        for fault in self._faults:
            if fault.matches(record):
                fault.remaining -= 1
                if fault.remaining <= 0:
                    self._faults.remove(fault)
                return fault
        return None

    def _authenticate(self, request: HttpRequest) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if self.accepted_tokens is not None and (
            scheme.lower() != "bearer" or token.strip() not in self.accepted_tokens
        ):
            raise unauthorized()

    def _route(self, request: HttpRequest) -> HttpResponse:
        path = request.path.rstrip("/")
        if path in _HEALTH_PATHS:
            return HttpResponse(200, "ok")
        if document := build_discovery(path):
            return HttpResponse(200, document)
        target = parse_target(path)
        if target.subresource not in ("", *target.kind.all_subresources):
            raise no_such_path()
        status = 201 if request.method == "POST" else 200
        return HttpResponse(status, self._dispatch(request, target))

    def _dispatch(self, request: HttpRequest, target: Target) -> JsonObject:
        """Which verb a method means: on an object, or on a collection."""
        rest, manager = self._rest, _read_manager(request)
        if target.subresource == "binding" and request.method == "POST":
            return rest.bind(target, _read_object(request))
        match request.method, bool(target.name):
            case "GET", True:
                return rest.get(target)
            case "GET", False:
                return rest.list(target, request.query)
            case "POST", False:
                return rest.create(_with_namespace(target, request), _read_object(request), manager)
            case "PUT", True:
                return rest.replace(target, _read_object(request), manager)
            case "PATCH", True:
                body, content_type = _read_json(request), request.content_type
                return rest.patch(target, body, content_type, request.query, manager)
            case "DELETE", True if not target.subresource:
                return rest.delete(target, _read_delete_options(request))
            case "DELETE", False:
                return rest.delete_collection(target, request.query, _read_delete_options(request))
        raise method_not_allowed()

    async def _stream(self, request: HttpRequest, reader: asyncio.StreamReader, session: _Session) -> None:
        """A watch: chunks of JSON lines until its time is over or the client leaves."""
        query = parse_watch(parse_target(request.path.rstrip("/")), request.query)
        session.watching = True
        session.writer.write(encode_head(200, {"Transfer-Encoding": "chunked", "Connection": "close"}))
        gone = asyncio.create_task(reader.read(1), name="apiserver-watcher-gone")
        stream = asyncio.create_task(self._send_events(query, session.writer), name="apiserver-watch")
        try:
            await asyncio.wait({gone, stream}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (gone, stream):
                task.cancel()
            results = await asyncio.gather(gone, stream, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):  # a client that left is an OSError, anything else a bug
                raise result

    async def _send_events(self, query: WatchQuery, writer: asyncio.StreamWriter) -> None:
        events = iter_events(self._store, query, self._bookmark_seconds)
        async with contextlib.aclosing(events):
            async for event in events:
                await self._watches_flow.wait()
                writer.write(encode_chunk(encode_json(event)))
                await writer.drain()
        writer.write(encode_chunk(b""))
        await writer.drain()


def parse_target(path: str) -> Target:
    """Take ``/api/v1/...`` or ``/apis/GROUP/VERSION/...`` apart; 404 for what is not served."""
    parts = path.strip("/").split("/")
    if parts[:1] == ["api"]:
        parts = ["", *parts[1:]]
    elif parts[:1] == ["apis"]:
        parts = parts[1:]
    else:
        raise no_such_path()
    if len(parts) < 3 or "" in parts[1:]:
        raise no_such_path()
    group, version, *rest = parts
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] != "status":
        namespace, rest = rest[1], rest[2:]
    kind = find_kind(group, version, rest[0])
    if kind is None or len(rest) > 3 or (namespace and not kind.namespaced):
        raise no_such_path()
    name, subresource = [*rest[1:], "", ""][:2]
    return Target(kind, namespace, name, subresource)


def _with_namespace(target: Target, request: HttpRequest) -> Target:
    """A namespaced object cannot be made at the path of all namespaces."""
    if target.kind.namespaced and not target.namespace:
        raise bad_request(f"an empty namespace may not be set during creation: {request.path}")
    return target


def _read_manager(request: HttpRequest) -> str:
    """The field manager, by default the first word of the user agent."""
    return request.query.get("fieldManager") or request.headers.get("user-agent", "unknown").partition("/")[0]


def _read_json(request: HttpRequest) -> object:
    try:
        parsed: object = json.loads(request.body)
    except ValueError as error:
        raise bad_request(f"the body of the request is not JSON: {error}") from error
    return parsed


def _read_object(request: HttpRequest) -> JsonObject:
    parsed = _read_json(request)
    if not isinstance(parsed, dict):
        raise bad_request("the body of the request is not an object")
    return parsed


def _read_delete_options(request: HttpRequest) -> JsonObject:
    options = _read_object(request) if request.body else {}
    if request.query.get("gracePeriodSeconds", "").isdigit():
        options["gracePeriodSeconds"] = int(request.query["gracePeriodSeconds"])
    return options


def _refuse(refusal: Refusal, fault: _Fault | None) -> HttpResponse:
    headers = {}
    if fault is not None and fault.retry_after is not None:
        headers["Retry-After"] = str(fault.retry_after)
    return HttpResponse(refusal.code, refusal.build_status(), headers)
