"""An API server of one process for the testbed: real HTTP, real versions, watches and refusals.

Clients (the driver, the scheduler and kubelet stand-ins, the official client, kubectl) meet it over a socket
only. It keeps everything in memory and runs no controllers: nothing is scheduled, and garbage is collected
on request. Why it is our own: ``docs/decisions/005-api-server-stand-in.md``; permissions:
``docs/decisions/029-permissions.md``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from dranet.desk.kubeapi.errors import Refusal, bad_request, injected
from dranet.desk.kubeapi.kinds import KINDS, NAMESPACES
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.kubeapi.profiles import LATEST, load_profile
from testbed.apiserver.faults import ChaosPlan, ScriptedTrouble, Trouble, disturb_events
from testbed.apiserver.handler import Handler, parse_target
from testbed.apiserver.http import (
    BadHttp,
    HttpRequest,
    HttpResponse,
    encode_chunk,
    encode_head,
    encode_json,
    encode_response,
    read_request,
)
from testbed.apiserver.identity import Tokens, User
from testbed.apiserver.objects import Target
from testbed.apiserver.rest import Rest
from testbed.apiserver.store import Key, Store
from testbed.apiserver.traffic import RequestLog, RequestRecord, Traffic
from testbed.apiserver.watch import WatchQuery, iter_events, parse_watch

_MAX_HEAD_BYTES = 64 * 1024
_START_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_NO_TROUBLE = Trouble()


@dataclass(slots=True, eq=False)
class _Session:
    """One client connection."""

    writer: asyncio.StreamWriter
    watching: bool = False
    answered: int = field(default=0)


class ApiServer:
    """One API server on one socket.

    ``profile`` is the Kubernetes version that it stands in for, ``gates`` are feature gates that are set
    otherwise than that version's defaults. ``certificate`` and ``key`` are PEM files for HTTPS. ``tokens``,
    when given, are the bearer tokens that are let in as administrators (change ``accepted_tokens`` at any
    time to rotate them); ``users`` are the tokens of other users, with the rights that ``manifests`` (roles,
    bindings, admission policies) give them. ``max_connections`` 0 is no limit; a connection over it is
    reset."""

    def __init__(
        self,
        *,
        profile: str = LATEST,
        gates: Mapping[str, bool] | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
        tokens: Iterable[str] | None = None,
        users: Mapping[str, User] | None = None,
        manifests: Sequence[JsonObject] = (),
        bookmark_seconds: float = 60.0,
        max_connections: int = 0,
    ) -> None:
        self.chaos: ChaosPlan | None = None
        """Trouble by chance, while there is one and it is switched on."""
        self.max_connections = max_connections
        self._profile = load_profile(profile, gates)
        self._tokens = Tokens(tokens, users)
        self._certificate = certificate
        self._key = key
        self._bookmark_seconds = bookmark_seconds
        self._store = Store()
        self._rest = Rest(self._store, self._profile)
        self._handler = Handler(self._rest, self._profile, manifests, self._tokens)
        self._log = RequestLog()
        self._scripts: list[ScriptedTrouble] = []
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

    @property
    def accepted_tokens(self) -> set[str] | None:
        return self._tokens.accepted

    @accepted_tokens.setter
    def accepted_tokens(self, tokens: set[str] | None) -> None:
        self._tokens.accepted = tokens

    @property
    def requests(self) -> deque[RequestRecord]:
        """The newest requests, the oldest of them first."""
        return self._log.records

    def traffic(self) -> dict[str, Traffic]:
        """Requests, bytes and watch events since the start, by user agent."""
        return self._log.sums()

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
        trouble = Trouble(status, retry_after) if status else Trouble(resets_after=True)
        self.trouble_next(method, path_prefix, trouble, count)

    def trouble_next(self, method: str, path_prefix: str, trouble: Trouble, count: int = 1) -> None:
        """As :meth:`fail_next`, with any trouble."""
        self._scripts.append(ScriptedTrouble(method, path_prefix, trouble, count))

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

    def collect_garbage(self) -> list[str]:
        """Delete what is owned by Nodes or Pods that are gone, as the garbage collector does in its time; the
        names of what was deleted."""
        return collect_orphans(self._store, self._rest)

    def open_watches(self) -> int:
        return sum(session.watching for session in self._sessions.values())

    def _build_tls(self) -> ssl.SSLContext | None:
        if self._certificate is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._certificate, self._key)
        return context

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.max_connections and len(self._sessions) >= self.max_connections:
            writer.transport.abort()
            return
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
        record = self._log.note_request(request)
        trouble = self._take_trouble(record)
        if trouble.delay_seconds:
            await asyncio.sleep(trouble.delay_seconds)
        if trouble.stalls:
            await reader.read(1)  # until the client gives up
        if trouble.stalls or trouble.resets_before:
            session.writer.transport.abort()
            return False
        try:
            user = self._tokens.identify(request.headers.get("authorization", ""))
            record.user = user.name
            if trouble.status:
                raise injected(trouble.status, request.path)
            if request.is_watch and request.method == "GET":
                await self._stream(self._open_watch(request, user), record, reader, session)
                return False
            answer = self._handler.handle(request, user)
        except Refusal as refusal:
            answer = _refuse(refusal, trouble)
        if trouble.resets_after:
            session.writer.transport.abort()
            return False
        return await self._send(answer, request, record, session)

    async def _send(
        self, answer: HttpResponse, request: HttpRequest, record: RequestRecord, session: _Session
    ) -> bool:
        encoded = encode_response(answer, keep_alive=request.keep_alive)
        record.status = answer.status
        self._log.note_answer(record, len(encoded))
        session.writer.write(encoded)
        await session.writer.drain()
        session.answered += 1
        return request.keep_alive

    def _take_trouble(self, record: RequestRecord) -> Trouble:
        for script in self._scripts:
            if script.matches(record):
                script.remaining -= 1
                if script.remaining <= 0:
                    self._scripts.remove(script)
                return script.trouble
        drawn = self.chaos.draw_for_request(record) if self.chaos else None
        return drawn or _NO_TROUBLE

    def _open_watch(self, request: HttpRequest, user: User) -> WatchQuery:
        target = parse_target(request.path.rstrip("/"))
        self._handler.authorize(request, target, user)
        return parse_watch(target, request.query)

    async def _stream(
        self, query: WatchQuery, record: RequestRecord, reader: asyncio.StreamReader, session: _Session
    ) -> None:
        """A watch: chunks of JSON lines until its time is over or the client leaves."""
        session.watching = True
        head = encode_head(200, {"Transfer-Encoding": "chunked", "Connection": "close"})
        record.status = 200
        self._log.note_answer(record, len(head))
        session.writer.write(head)
        gone = asyncio.create_task(reader.read(1), name="apiserver-watcher-gone")
        stream = asyncio.create_task(self._send_events(query, record, session.writer), name="apiserver-watch")
        try:
            await asyncio.wait({gone, stream}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (gone, stream):
                task.cancel()
            results = await asyncio.gather(gone, stream, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):  # a client that left is an OSError, anything else a bug
                raise result

    async def _send_events(
        self, query: WatchQuery, record: RequestRecord, writer: asyncio.StreamWriter
    ) -> None:
        events = iter_events(self._store, query, self._bookmark_seconds)
        disturbed = disturb_events(events, lambda: self.chaos, record)
        async with contextlib.aclosing(events), contextlib.aclosing(disturbed):
            async for event in disturbed:
                await self._watches_flow.wait()
                chunk = encode_chunk(encode_json(event))
                self._log.note_answer(record, len(chunk), events=1)
                writer.write(chunk)
                await writer.drain()
        writer.write(encode_chunk(b""))
        await writer.drain()


def _refuse(refusal: Refusal, trouble: Trouble) -> HttpResponse:
    headers = {} if trouble.retry_after is None else {"Retry-After": str(trouble.retry_after)}
    return HttpResponse(refusal.code, refusal.build_status(), headers)


def collect_orphans(store: Store, rest: Rest) -> list[str]:
    """Delete every object all of whose owners are of a served kind and do not exist any more (by uid: a new
    Node of the same name is another one); returns their names. Once, not until nothing more is found."""
    living = {body["metadata"]["uid"] for _, body in _iter_all(store)}
    orphans = [key for key, body in _iter_all(store) if _is_orphan(body, living)]
    for kind, namespace, name in orphans:
        rest.delete(Target(kind, namespace, name), {})
    return [name for _, _, name in orphans]


def _iter_all(store: Store) -> Iterator[tuple[Key, JsonObject]]:
    for kind in KINDS:
        yield from store.iter_objects(kind)


def _is_orphan(body: JsonObject, living: set[str]) -> bool:
    served = {(kind.api_version, kind.kind) for kind in KINDS}
    owners = body["metadata"].get("ownerReferences") or []
    return bool(owners) and all(
        (owner["apiVersion"], owner["kind"]) in served and owner["uid"] not in living for owner in owners
    )
