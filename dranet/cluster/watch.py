"""Read a whole collection page by page, and follow it: a snapshot, then changes, and a new snapshot when
history is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, Callable

from msgspec import Struct

from dranet.cluster.backoff import Backoff
from dranet.cluster.client import ApiClient, EventType, WatchEvent
from dranet.cluster.messages import JsonObject, has_identity
from dranet.errors import ClusterError, DranetError, ProtocolError, Reason

PAGE_SIZE = 500
"""Objects in one answer; also what client-go asks for."""


class Snapshot(Struct, frozen=True):
    """The whole collection at ``resource_version``: what is not in it does not exist.

    ``asked_at`` is the event loop's time before the first request: whatever the server had answered by then
    is in it.
    """

    items: tuple[JsonObject, ...]
    resource_version: str
    asked_at: float = 0.0


async def fetch_snapshot(
    client: ApiClient,
    path: str,
    *,
    field_selector: str = "",
    label_selector: str = "",
    page_size: int = PAGE_SIZE,
) -> Snapshot:
    """All objects of a collection, as of one version however many pages they take.

    A page token that expires on the way (a server forgets old versions after some minutes) starts the list
    over, in one answer, which cannot expire.

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
    items = tuple({**_type_of(page), **item} for page in pages for item in page.get("items") or ())
    return Snapshot(items, str(pages[0].get("metadata", {}).get("resourceVersion", "")), asked_at)


async def _iter_pages(
    client: ApiClient, path: str, field_selector: str, label_selector: str, page_size: int
) -> AsyncGenerator[JsonObject, None]:
    token = ""
    seen = {token}
    while True:
        page = await client.list(
            path,
            field_selector=field_selector,
            label_selector=label_selector,
            limit=page_size,
            continue_token=token,
        )
        _check(page, path)
        yield page
        token = str(page.get("metadata", {}).get("continue", ""))
        if not token:
            return
        if token in seen:
            raise ProtocolError(f"the list of {path} leads from page to page in a circle")
        seen.add(token)


def _check(page: JsonObject, path: str) -> None:
    """Any object could be taken for a list without items, and that for a cluster that has lost them.

    Raises:
        ProtocolError: it is no list.
    """
    metadata, items = page.get("metadata"), page.get("items")
    has_version = isinstance(metadata, dict) and bool(metadata.get("resourceVersion"))
    if not has_version or not (items is None or isinstance(items, list)):
        raise ProtocolError(f"the answer to a list of {path} is no list: {str(page)[:80]}")
    if not all(map(has_identity, items or ())):
        raise ProtocolError(f"the answer to a list of {path} has an entry without name or uid")


def _type_of(listed: JsonObject) -> JsonObject:
    """Items of a list come without their type; give it back, as a watch and a GET do."""
    kind = str(listed.get("kind", "")).removesuffix("List")
    return {"apiVersion": listed.get("apiVersion", ""), "kind": kind}


_log = logging.getLogger(__name__)
_random = random.SystemRandom()

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
    Snapshot comes. Never ends and raises no :class:`DranetError`: trouble is logged once,
    and tried again with backoff. ``on_cut`` hears of each watch that ended before its time: the next answer
    may come from another server, or another version of it. Leave it through ``contextlib.aclosing``.

    An API server that ends cuts the watches of all nodes at once. So each of them waits up to
    ``spread_seconds``, drawn at random, before ``on_cut`` and before it resumes.

    A watch lasts once to twice ``watch_seconds``, so that the nodes of a cluster do not renew theirs in step.
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
    """Whether following works: one log line when it stops, one when it works again."""

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
        """The server has sent an event: it works again."""
        self._refusals = 0
        if self._logged:
            self._logged = False
            _log.info("following %s works again", self._path)

    def forget(self) -> None:
        """It has worked long enough to reset the backoff."""
        self._backoff.reset()
        self._was_gone = False

    async def wait(self) -> None:
        """Wait for the backoff, and at least for the time that the server asked for."""
        seconds, self._patience_seconds = self._patience_seconds, 0.0
        await asyncio.sleep(max(seconds, self._backoff.next_seconds()))
