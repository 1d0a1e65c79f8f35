"""A small JSON client of the Kubernetes API: what a node driver needs, on asyncio streams.

Objects are raw JSON, so that fields newer than this driver survive a read-modify-write. Every failure
of a request is a :class:`ClusterError` whose ``reason`` and ``retryable`` decide what to do. Why this is
our own code: ``docs/decisions/004-api-client.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from hmac import compare_digest
from pathlib import Path
from typing import Protocol, Self

from msgspec import Struct

from dranet.cluster.credentials import SERVICE_ACCOUNT_DIR, ClusterAccess, in_cluster_access
from dranet.cluster.http import Connection, ConnectionPool, ResponseHead, iter_body, read_body
from dranet.cluster.kubeconfig import RunProgram, read_kubeconfig
from dranet.cluster.messages import (
    APPLY_PATCH,
    MERGE_PATCH,
    USER_AGENT,
    EventType,
    JsonObject,
    Request,
    WatchEvent,
    failure_from_answer,
    failure_from_exception,
    parse_event,
    parse_object,
    parse_retry_after,
    without_empty,
)
from dranet.cluster.paths import name_collection
from dranet.errors import ClusterError, ProtocolError, Reason, SettingsError

__all__ = ["ApiClient", "EventType", "JsonObject", "WatchEvent"]

DEFAULT_TIMEOUT_SECONDS = 15.0
"""For one call with all its retries, connecting included."""

MAX_BODY_BYTES = 32 * 1024 * 1024
"""Limit of one answer and of one watch event. A node's slices are a few megabytes at most."""

_TRANSPORT_ERRORS = (OSError, EOFError, ProtocolError)
_THROTTLED = {429, 503}
_random = random.SystemRandom()
_MAX_TRIES = 5
"""Tries of one call to a server that asks for patience."""


class ApiObserver(Protocol):
    """Counts requests (``telemetry.peers.ApiMetrics``)."""

    def answered(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """A try has ended, with the head of an answer; ``code`` 0: without one."""

    def retried(self, cause: str) -> None:
        """``throttled``, ``unauthorized`` or ``connection``: it is sent again."""


class _Unobserved:
    """Count nothing."""

    def answered(self, verb: str, resource: str, code: int, seconds: float) -> None:
        del verb, resource, code, seconds

    def retried(self, cause: str) -> None:
        del cause


_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class _Answer(Struct, frozen=True):
    """The head of an answer, with the connection that its body is still on."""

    connection: Connection
    head: ResponseHead


class ApiClient:
    """Talks to one API server. Paths come from :mod:`dranet.cluster.paths`.

    Every method raises :class:`ClusterError` and nothing else for what the network or the server does.
    """

    def __init__(
        self,
        access: ClusterAccess,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        user_agent: str = USER_AGENT,
        observer: ApiObserver | None = None,
    ) -> None:
        self._access = access
        self._user_agent = user_agent
        self._timeout_seconds = timeout_seconds
        self._pool = ConnectionPool(access)
        self._observer = observer or _Unobserved()

    def __repr__(self) -> str:
        return f"ApiClient({self._access.url!r}, {self._pool!r})"

    @classmethod
    def from_in_cluster(
        cls,
        environment: Mapping[str, str] | None = None,
        secrets_dir: Path = SERVICE_ACCOUNT_DIR,
        *,
        observer: ApiObserver | None = None,
    ) -> Self:
        """With the pod's service account.

        Raises:
            SettingsError: this is not a pod with a usable service account.
        """
        access = in_cluster_access(os.environ if environment is None else environment, secrets_dir)
        access.check()
        return cls(access, observer=observer)

    @classmethod
    def from_kubeconfig(
        cls,
        path: Path | str,
        *,
        context: str = "",
        user_agent: str = USER_AGENT,
        run_program: RunProgram | None = None,
        observer: ApiObserver | None = None,
    ) -> Self:
        """With a kubeconfig file, by default its current context.

        ``run_program`` asks a credential program (``exec``), which only a person's command does.

        Raises:
            SettingsError: the file is unusable, or has a credential program and no runner for it.
        """
        access = read_kubeconfig(Path(path), context, run_program=run_program)
        access.check()
        return cls(access, user_agent=user_agent, observer=observer)

    @property
    def url(self) -> str:
        return self._access.url

    def is_own_token(self, token: str) -> bool:
        """Whether it is the very token that we show the server."""
        try:
            own = self._access.token.get_token()
        except SettingsError:
            return False
        return bool(own) and compare_digest(own.encode(), token.encode())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the idle connections."""
        await self._pool.aclose()

    async def get(self, path: str) -> JsonObject:
        """GET one object."""
        return await self._call(Request("GET", path, {}))

    async def list(
        self,
        path: str,
        *,
        field_selector: str = "",
        label_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
    ) -> JsonObject:
        """GET a collection, as a consistent read; ``metadata.continue`` of the answer leads to the next
        page when a ``limit`` is given. API_GONE: a page token has expired, start again."""
        query = {
            "fieldSelector": field_selector,
            "labelSelector": label_selector,
            "limit": str(limit) if limit else "",
            "continue": continue_token,
        }
        return await self._call(Request("GET", path, without_empty(query)))

    async def create(self, path: str, body: JsonObject, *, dry_run: bool = False) -> JsonObject:
        """POST to a collection (or to a subresource such as ``pods/binding``).

        Not sent again when the connection broke after sending: the object may exist then. With ``dry_run``
        the server does everything but keep it: the answer shows what it would have kept.
        """
        return await self._call(Request("POST", path, {"dryRun": "All"} if dry_run else {}, body))

    async def replace(self, path: str, body: JsonObject) -> JsonObject:
        """PUT one object. With ``metadata.resourceVersion`` a concurrent change is API_CONFLICT."""
        return await self._call(Request("PUT", path, {}, body))

    async def delete(
        self,
        path: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period_seconds: int | None = None,
        propagation_policy: str | None = None,
    ) -> JsonObject:
        """DELETE one object, only if it still is the given one (else API_CONFLICT)."""
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options: JsonObject = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if wanted := {key: value for key, value in preconditions.items() if value is not None}:
            options["preconditions"] = wanted
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        if propagation_policy is not None:
            options["propagationPolicy"] = propagation_policy
        return await self._call(Request("DELETE", path, {}, options))

    async def patch(self, path: str, body: JsonObject) -> JsonObject:
        """JSON merge patch (RFC 7396): ``None`` removes a field, a list is replaced as a whole."""
        return await self._call(Request("PATCH", path, {}, body, MERGE_PATCH))

    async def apply(self, path: str, body: JsonObject, field_manager: str, force: bool = True) -> JsonObject:
        """Server-side apply: fields that this manager owned and ``body`` omits are removed.

        ``body`` needs ``apiVersion``, ``kind`` and ``metadata.name``; with ``metadata.uid`` an object of
        another uid is API_INVALID. Without ``force`` a field of another manager is API_CONFLICT.
        """
        query = {"fieldManager": field_manager, "force": "true" if force else "false"}
        return await self._call(Request("PATCH", path, query, body, APPLY_PATCH))

    async def watch(
        self,
        path: str,
        *,
        resource_version: str = "",
        field_selector: str = "",
        label_selector: str = "",
        timeout_seconds: int = 300,
        silence_seconds: float = 150.0,
    ) -> AsyncGenerator[WatchEvent, None]:
        """Changes of a collection after ``resource_version``, bookmarks included.

        Ends when the server ends it, at the latest after ``timeout_seconds``. A server sends a bookmark
        about once a minute, so ``silence_seconds`` without a byte mean a connection that is open on our
        side only (API_UNAVAILABLE). API_GONE: the version is too old, list again. Close it with
        ``contextlib.aclosing`` when leaving early.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeout_seconds),
            "resourceVersion": resource_version,
            "fieldSelector": field_selector,
            "labelSelector": label_selector,
        }
        request = Request("GET", path, without_empty(query), watch=True)
        answer = await self._open_with_deadline(request)
        try:
            async with contextlib.aclosing(_iter_lines(answer, silence_seconds)) as lines:
                async for line in lines:
                    yield parse_event(request.name, line)
        except _TRANSPORT_ERRORS as error:
            raise failure_from_exception(request.name, self.url, error) from error
        finally:
            answer.connection.abort()

    async def _call(self, request: Request) -> JsonObject:
        """Send, read the whole answer, parse."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                answer = await self._open(request)
                body = await self._read(answer)
            return parse_object(body)
        except _TRANSPORT_ERRORS as error:
            raise failure_from_exception(request.name, self.url, error) from error

    async def _open_with_deadline(self, request: Request) -> _Answer:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._open(request)
        except _TRANSPORT_ERRORS as error:
            raise failure_from_exception(request.name, self.url, error) from error

    async def _open(self, request: Request) -> _Answer:
        """Send until the answer is a success, has failed for good, or the tries are used up."""
        refused = False
        tries = 0
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._timeout_seconds
        while True:
            answer = await self._send_observed(request)
            status = answer.head.status
            if 200 <= status < 300:
                return answer
            body = await self._read(answer)
            throttled = status in _THROTTLED and tries < _MAX_TRIES
            wait_seconds = parse_retry_after(answer.head) if throttled else None
            if status == 401 and not refused:
                refused = True
                self._access.token.forget()
                self._observer.retried("unauthorized")
            elif wait_seconds is not None and clock() + wait_seconds < deadline:
                tries += 1
                self._observer.retried("throttled")
                await asyncio.sleep(_spread(wait_seconds, tries, deadline - clock()))
            else:
                raise failure_from_answer(request.name, answer.head, body)

    async def _send_observed(self, request: Request) -> _Answer:
        start, code = time.perf_counter(), 0
        try:
            answer = await self._send(request)
            code = answer.head.status
            return answer
        finally:
            self._observer.answered(*_name(request), code, time.perf_counter() - start)

    async def _send(self, request: Request) -> _Answer:
        """Send once; a kept connection that the server had closed meanwhile is replaced."""
        encoded = request.encode(self._access, self._get_token(), self._user_agent)
        with _credentials_must_work(self.url):
            connection = self._pool.take_idle() or await self._pool.take()
        try:
            return await _exchange(connection, encoded)
        except (OSError, EOFError):
            if not (connection.reused and request.idempotent):
                raise
        self._observer.retried("connection")
        with _credentials_must_work(self.url):
            connection = await self._pool.open()
        return await _exchange(connection, encoded)

    async def _read(self, answer: _Answer) -> bytes:
        """The body; the connection returns to the pool, or is dropped when it is of no more use."""
        try:
            body = await read_body(answer.connection.reader, answer.head, MAX_BODY_BYTES)
        except BaseException:
            answer.connection.abort()
            raise
        if answer.head.keep_alive:
            self._pool.put_back(answer.connection)
        else:
            answer.connection.abort()
        return body

    def _get_token(self) -> str:
        with _credentials_must_work(self.url):
            return self._access.token.get_token()


def _spread(seconds: float, tries: int, longest: float) -> float:
    """Draw a wait between what the server asks for and twice as long, four times at the second try. It asks
    the same of all nodes, and those that it refused together must not return together."""
    return _random.uniform(seconds, min(seconds * 2**tries, longest))


def _name(request: Request) -> tuple[str, str]:
    """Verb and resource, in the words of the API server's own metrics."""
    resource, is_collection = name_collection(request.path)
    if request.method == "GET":
        return "watch" if request.watch else "list" if is_collection else "get", resource
    return _VERBS[request.method], resource


@contextlib.contextmanager
def _credentials_must_work(url: str) -> Iterator[None]:
    """Files that were good at the start may be in the middle of a rotation: wrong now, perhaps not later."""
    try:
        yield
    except SettingsError as error:
        raise ClusterError(
            f"no credentials for {url}: {error.message}", reason=Reason.API_UNAVAILABLE, retryable=True
        ) from error


async def _exchange(connection: Connection, request: bytes) -> _Answer:
    try:
        return _Answer(connection, await connection.exchange(request))
    except BaseException:
        connection.abort()
        raise


async def _iter_lines(answer: _Answer, silence_seconds: float) -> AsyncGenerator[bytes, None]:
    """The non-empty lines of a stream; a silence is a :class:`TimeoutError`."""
    pieces = iter_body(answer.connection.reader, answer.head)
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
        if len(rest) > MAX_BODY_BYTES:
            raise ProtocolError(f"watch event is over the limit of {MAX_BODY_BYTES} bytes")
