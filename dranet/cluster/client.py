"""A small JSON client of the Kubernetes API, and how to follow a whole collection with it.

Objects are raw JSON, so that fields newer than this driver survive a read-modify-write. Why this is our own
code: ``docs/decisions/004-api-client.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from hmac import compare_digest
from pathlib import Path
from typing import Protocol, Self

from msgspec import Struct

from dranet.cluster.kubeconfig import read_kubeconfig
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
    has_identity,
    name_call,
    parse_event,
    parse_object,
    parse_retry_after,
    without_empty,
)
from dranet.cluster.transport import (
    SERVICE_ACCOUNT_DIR,
    ClusterAccess,
    Connection,
    ConnectionPool,
    in_cluster_access,
)
from dranet.errors import ClusterError, DranetError, ProtocolError, Reason, SettingsError
from dranet.http1 import ResponseHead, iter_lines, read_body

__all__ = ["ApiClient", "EventType", "JsonObject", "WatchEvent"]

DEFAULT_TIMEOUT_SECONDS = 15.0
"""For one call with all its retries, connecting included."""

MAX_BODY_BYTES = 32 * 1024 * 1024
"""Limit of one answer and of one watch event. A node's slices are a few megabytes at most."""

_THROTTLED = {429, 503}
_random = random.SystemRandom()
_MAX_TRIES = 5
"""Tries of one call to a server that asks for patience."""


class ApiObserver(Protocol):
    """Counts requests (``telemetry.metrics.ApiMetrics``)."""

    def answered(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """A try has ended, with the head of an answer; ``code`` 0: without one."""

    def retried(self, cause: str) -> None:
        """``throttled``, ``unauthorized`` or ``connection``: it is sent again."""


_Answer = tuple[Connection, ResponseHead]
"""The head of an answer, with the connection that its body is still on."""


class ApiClient:
    """Talks to one API server.

    For what the network or the server does every method raises :class:`ClusterError` and nothing else: its
    ``reason`` and ``retryable`` decide what to do.
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
        self._observer = observer

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
        may_run_program: bool = False,
        observer: ApiObserver | None = None,
    ) -> Self:
        """With a kubeconfig file, by default its current context.

        Raises:
            SettingsError: as :func:`read_kubeconfig`.
        """
        access = read_kubeconfig(Path(path), context, may_run_program=may_run_program)
        access.check()
        return cls(access, user_agent=user_agent, observer=observer)

    @property
    def url(self) -> str:
        return self._access.url

    def is_own_token(self, token: str) -> bool:
        """Whether it is the token that we show the server."""
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
        await self._pool.aclose()

    async def get(self, path: str) -> JsonObject:
        return await self._call(Request("GET", path))

    async def list(
        self,
        path: str,
        *,
        field_selector: str = "",
        label_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
    ) -> JsonObject:
        """Read a collection as of one version. With a ``limit``, ``metadata.continue`` of the answer leads to
        the next page. API_GONE: a page token has expired, start again."""
        query = {
            "fieldSelector": field_selector,
            "labelSelector": label_selector,
            "limit": str(limit) if limit else "",
            "continue": continue_token,
        }
        return await self._call(Request("GET", path, without_empty(query)))

    async def create(self, path: str, body: JsonObject, *, dry_run: bool = False) -> JsonObject:
        """POST to a collection (or to a subresource such as ``pods/binding``). It is not sent again when the
        connection broke after sending: the object may exist then. With ``dry_run`` the server does everything
        but keep it, and answers what it would have kept."""
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
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {key: value for key, value in preconditions.items() if value is not None}
            or None,
            "gracePeriodSeconds": grace_period_seconds,
            "propagationPolicy": propagation_policy,
        }
        body = {key: value for key, value in options.items() if value is not None}
        return await self._call(Request("DELETE", path, {}, body))

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

        Ends when the server ends it, at the latest after ``timeout_seconds``. As a server sends a bookmark
        about once a minute, ``silence_seconds`` without a byte are API_UNAVAILABLE. API_GONE: the version is
        too old, list again. Close it with ``contextlib.aclosing`` when leaving early.
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
        with self._answer_must_come(request):
            async with asyncio.timeout(self._timeout_seconds):
                connection, head = await self._open(request)
            try:
                news = iter_lines(connection.reader, head, silence_seconds, MAX_BODY_BYTES)
                async with contextlib.aclosing(news) as lines:
                    async for line in lines:
                        yield parse_event(request, line)
            finally:
                connection.abort()

    async def _call(self, request: Request) -> JsonObject:
        with self._answer_must_come(request):
            async with asyncio.timeout(self._timeout_seconds):
                body = await self._read(*await self._open(request))
            return parse_object(body)

    @contextlib.contextmanager
    def _answer_must_come(self, request: Request) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError, ProtocolError) as error:
            raise failure_from_exception(request, self.url, error) from error

    async def _open(self, request: Request) -> _Answer:
        """Send until the answer is a success, has failed for good, or the tries are used up."""
        refused = False
        tries = 0
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._timeout_seconds
        while True:
            connection, head = await self._send_observed(request)
            status = head.status
            if 200 <= status < 300:
                return connection, head
            body = await self._read(connection, head)
            throttled = status in _THROTTLED and tries < _MAX_TRIES
            wait_seconds = parse_retry_after(head) if throttled else None
            if status == 401 and not refused:
                refused = True
                self._access.token.forget()
                self._note_retry("unauthorized")
            elif wait_seconds is not None and clock() + wait_seconds < deadline:
                tries += 1
                self._note_retry("throttled")
                # It asks the same of all nodes, and those that it refused together must not return together.
                longest = min(wait_seconds * 2**tries, deadline - clock())
                await asyncio.sleep(_random.uniform(wait_seconds, longest))
            else:
                raise failure_from_answer(request, head, body)

    async def _send_observed(self, request: Request) -> _Answer:
        start, code = time.perf_counter(), 0
        try:
            answer = await self._send(request)
            code = answer[1].status
            return answer
        finally:
            if self._observer is not None:
                self._observer.answered(*name_call(request), code, time.perf_counter() - start)

    def _note_retry(self, cause: str) -> None:
        if self._observer is not None:
            self._observer.retried(cause)

    async def _send(self, request: Request) -> _Answer:
        """Send once; a kept connection that the server had closed meanwhile is replaced."""
        with _credentials_must_work(self.url):
            encoded = request.encode(self._access, self._access.token.get_token(), self._user_agent)
            connection = self._pool.take_idle() or await self._pool.take()
        try:
            return connection, await connection.exchange(encoded)
        except (OSError, EOFError):
            if not (connection.reused and request.idempotent):
                raise
        self._note_retry("connection")
        with _credentials_must_work(self.url):
            connection = await self._pool.open()
        return connection, await connection.exchange(encoded)

    async def _read(self, connection: Connection, head: ResponseHead) -> bytes:
        """The body; the connection returns to the pool, or is dropped when it is of no more use."""
        try:
            body = await read_body(connection.reader, head, MAX_BODY_BYTES)
        except BaseException:
            connection.abort()
            raise
        if head.keep_alive:
            self._pool.put_back(connection)
        else:
            connection.abort()
        return body


@contextlib.contextmanager
def _credentials_must_work(url: str) -> Iterator[None]:
    """Files that were good at the start may be in the middle of a rotation."""
    try:
        yield
    except SettingsError as error:
        why = f"no credentials for {url}: {error.message}"
        raise ClusterError(why, reason=Reason.API_UNAVAILABLE, retryable=True) from error


class Backoff:
    """Successive delays in seconds: ``first``, doubled each time, at most ``cap``; each jittered down by up
    to half, so that the nodes of a cluster do not come back in step."""

    def __init__(self, first_seconds: float, cap_seconds: float) -> None:
        self._first = first_seconds
        self._cap = cap_seconds
        self._next = first_seconds

    def next_seconds(self) -> float:
        delay = self._next
        self._next = min(self._next * 2, self._cap)
        return _random.uniform(delay / 2, delay)

    def reset(self) -> None:
        self._next = self._first


PAGE_SIZE = 500
"""Objects in one answer; also what client-go asks for."""


class Snapshot(Struct, frozen=True):
    """The whole collection at ``resource_version``: what is not in it does not exist."""

    items: tuple[JsonObject, ...]
    resource_version: str
    asked_at: float = 0.0
    """The event loop's time before the first request: whatever the server had answered by then is in it."""


async def fetch_snapshot(
    client: ApiClient,
    path: str,
    *,
    field_selector: str = "",
    label_selector: str = "",
    page_size: int = PAGE_SIZE,
) -> Snapshot:
    """All objects of a collection, as of one version however many pages they take.

    When a page token expires on the way (a server forgets old versions after some minutes) they are listed
    again in one answer, which cannot expire.

    Raises:
        ClusterError: no answer, or a refusal.
        ProtocolError: an answer that is no list.
    """
    asked_at = asyncio.get_running_loop().time()
    try:
        pages = [page async for page in _iter_pages(client, path, field_selector, label_selector, page_size)]
    except ClusterError as error:
        if error.reason is not Reason.API_GONE:
            raise
        asked_at = asyncio.get_running_loop().time()
        pages = [await client.list(path, field_selector=field_selector, label_selector=label_selector)]
        _check(pages[0], path)
    # Items of a list come without their type; give it back, as a watch and a GET do.
    kind = str(pages[0].get("kind", "")).removesuffix("List")
    typed = {"apiVersion": pages[0].get("apiVersion", ""), "kind": kind}
    items = tuple({**typed, **item} for page in pages for item in page.get("items") or ())
    return Snapshot(items, str(pages[0].get("metadata", {}).get("resourceVersion", "")), asked_at)


async def _iter_pages(
    client: ApiClient, path: str, field_selector: str, label_selector: str, page_size: int
) -> AsyncGenerator[JsonObject, None]:
    token = ""
    seen = {token}
    while True:
        selectors = {"field_selector": field_selector, "label_selector": label_selector}
        page = await client.list(path, **selectors, limit=page_size, continue_token=token)
        _check(page, path)
        yield page
        token = str(page.get("metadata", {}).get("continue", ""))
        if not token:
            return
        if token in seen:
            raise ProtocolError(f"the list of {path} leads from page to page in a circle")
        seen.add(token)


def _check(page: JsonObject, path: str) -> None:
    """Any object could be taken for a list without items, and that for a cluster that has lost them."""
    metadata, items = page.get("metadata"), page.get("items")
    has_version = isinstance(metadata, dict) and bool(metadata.get("resourceVersion"))
    if not has_version or not (items is None or isinstance(items, list)):
        raise ProtocolError(f"the answer to a list of {path} is no list: {str(page)[:80]}")
    if not all(map(has_identity, items or ())):
        raise ProtocolError(f"the answer to a list of {path} has an entry without name or uid")


_log = logging.getLogger(__name__)

SPREAD_SECONDS = 30.0
"""The nodes of a cluster resume their watches over this time. Nothing on a node waits for its watch."""

_STEADY_SECONDS = 30.0
"""A watch that lasted this long was healthy: the next one starts without waiting. For one that a proxy cuts
again and again after a few seconds, or after each word, the waits grow."""

_FULL_SHARE = 0.9
"""A watch that ends before this share of its time was cut off: its server goes down, or what is between."""

_MAX_REFUSED_RESUMES = 3
"""After so many refusals in a row the version itself may be what the server cannot serve: one that was
restored from a backup waits for it to come, and answers 504."""

_NO_ANSWER = (0, 429, 503)
"""Statuses that do not concern the request: no answer at all, or none now."""


async def list_and_watch(
    client: ApiClient,
    path: str,
    *,
    field_selector: str = "",
    label_selector: str = "",
    backoff: Backoff | None = None,
    watch_seconds: int = 300,
    silence_seconds: float = 150.0,
    spread_seconds: float = 0.0,
    on_cut: Callable[[], None] = lambda: None,
) -> AsyncGenerator[Snapshot | WatchEvent, None]:
    """Yield a :class:`Snapshot`, then each change as a :class:`WatchEvent` (no bookmarks).

    A broken watch resumes from the last version seen; where the server has forgotten it (API_GONE), keeps
    refusing it, or sends nothing (it was restored from a backup, and the version is of its future), a new
    Snapshot comes. Never ends and raises no :class:`DranetError`: trouble is logged once, and tried again
    with backoff. ``on_cut`` is called for each watch that ended before its time: the next answer may come
    from another server, or another version of it. Leave it through ``contextlib.aclosing``.

    So that the nodes of a cluster do not come in step, a watch lasts once to twice ``watch_seconds``, and one
    that was cut waits up to ``spread_seconds`` before ``on_cut`` and before it resumes.
    """
    trouble = _Trouble(path, backoff or Backoff(0.2, 30.0))
    clock = asyncio.get_running_loop().time
    version = ""
    while True:
        started, lasting, heard = clock(), watch_seconds, False
        try:
            if not version:
                snapshot = await fetch_snapshot(
                    client, path, field_selector=field_selector, label_selector=label_selector
                )
                version = snapshot.resource_version
                yield snapshot
                del snapshot  # it may be large, and the watch lasts
            started, lasting = clock(), _random.randint(watch_seconds, 2 * watch_seconds)
            watch = client.watch(
                path,
                resource_version=version,
                field_selector=field_selector,
                label_selector=label_selector,
                timeout_seconds=lasting,
                silence_seconds=silence_seconds,
            )
            async with contextlib.aclosing(watch) as events:
                async for event in events:
                    heard = True
                    trouble.end()
                    version = event.resource_version or version
                    if event.type is not EventType.BOOKMARK:
                        yield event
        except DranetError as error:  # also a ProtocolError: a proxy's error page
            trouble.begin(error)
            is_mute = not heard and clock() - started >= silence_seconds
            version = "" if trouble.is_version_lost or is_mute else version
        else:
            if heard := heard or clock() - started >= _STEADY_SECONDS:
                trouble.end()
        lasted = clock() - started
        if heard and lasted >= _STEADY_SECONDS:
            trouble.forget()
        if version and lasted < lasting * _FULL_SHARE:
            has_worked = heard or lasted >= _STEADY_SECONDS  # else its backoff is wait enough
            await asyncio.sleep(_random.uniform(0.0, spread_seconds if has_worked else 0.0))
            on_cut()
        await trouble.wait()


class _Trouble:
    """Logs once when following stops, and once when it works again."""

    def __init__(self, path: str, backoff: Backoff) -> None:
        self._path = path
        self._backoff = backoff
        self._logged = False
        self._refusals = 0
        self._was_gone = False
        self._patience_seconds = 0.0
        self.is_version_lost = False
        """The last failure means that the version cannot be resumed from."""

    def begin(self, error: DranetError) -> None:
        # A forgotten version and a stream that the server ends are everyday life of a watch.
        everyday = error.reason is Reason.API_GONE
        if everyday and not self._was_gone:
            self._backoff.reset()  # it answers: what it is to be asked for now is the list
        self._was_gone = everyday
        if not self._logged and not everyday:
            self._logged = True
            _log.warning("following %s stopped, trying again: %s", self._path, error)
        status = error.status if isinstance(error, ClusterError) else 0
        self._patience_seconds = error.retry_after_seconds if isinstance(error, ClusterError) else 0.0
        self._refusals += status not in _NO_ANSWER
        self.is_version_lost = everyday or self._refusals >= _MAX_REFUSED_RESUMES

    def end(self) -> None:
        self._refusals = 0
        if self._logged:
            self._logged = False
            _log.info("following %s works again", self._path)

    def forget(self) -> None:
        """It has worked long enough to reset the backoff."""
        self._backoff.reset()
        self._was_gone = False

    async def wait(self) -> None:
        """For the backoff, and at least for the time that the server asked for."""
        seconds, self._patience_seconds = self._patience_seconds, 0.0
        await asyncio.sleep(max(seconds, self._backoff.next_seconds()))
