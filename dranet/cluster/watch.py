"""Follow a collection for ever: a snapshot, then changes, and a new snapshot when history is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from dranet.cluster.backoff import Backoff
from dranet.cluster.client import ApiClient, EventType, JsonObject, WatchEvent
from dranet.errors import DranetError, Reason

_log = logging.getLogger(__name__)

_STEADY_SECONDS = 5.0
"""A watch that lasted this long was healthy: the next one starts without waiting."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole collection at ``resource_version``: what is not in it does not exist."""

    items: tuple[JsonObject, ...]
    resource_version: str


async def list_and_watch(
    client: ApiClient,
    path: str,
    *,
    field_selector: str = "",
    label_selector: str = "",
    backoff: Backoff | None = None,
    watch_seconds: int = 300,
    silence_seconds: float = 150.0,
) -> AsyncGenerator[Snapshot | WatchEvent, None]:
    """Yield a :class:`Snapshot`, then each change as a :class:`WatchEvent` (no bookmarks).

    A broken watch resumes from the last version seen; where the server has forgotten it (API_GONE) a new
    Snapshot comes. Never ends and raises no :class:`DranetError`: trouble is logged once, and tried
    again with backoff. Leave it through ``contextlib.aclosing``.
    """
    trouble = _Trouble(path, backoff or Backoff(0.2, 30.0))
    version = ""
    while True:
        started = asyncio.get_running_loop().time()
        try:
            if not version:
                snapshot = await _fetch_snapshot(client, path, field_selector, label_selector)
                version = snapshot.resource_version
                yield snapshot
            watch = client.watch(
                path,
                resource_version=version,
                field_selector=field_selector,
                label_selector=label_selector,
                timeout_seconds=watch_seconds,
                silence_seconds=silence_seconds,
            )
            async with contextlib.aclosing(watch) as events:
                async for event in events:
                    trouble.end()
                    version = event.resource_version or version
                    if event.type is not EventType.BOOKMARK:
                        yield event
        except DranetError as error:  # a ProtocolError, too: a proxy's error page is an answer of a kind
            version = "" if error.reason is Reason.API_GONE else version
            trouble.begin(error)
        else:
            if asyncio.get_running_loop().time() - started >= _STEADY_SECONDS:
                trouble.end()
        await trouble.wait()


async def _fetch_snapshot(client: ApiClient, path: str, field_selector: str, label_selector: str) -> Snapshot:
    listed = await client.list(path, field_selector=field_selector, label_selector=label_selector)
    items = tuple({**_type_of(listed), **item} for item in listed.get("items") or ())
    return Snapshot(items, str(listed.get("metadata", {}).get("resourceVersion", "")))


def _type_of(listed: JsonObject) -> JsonObject:
    """Items of a list come without their type; give it back, as a watch and a GET do."""
    kind = str(listed.get("kind", "")).removesuffix("List")
    return {"apiVersion": listed.get("apiVersion", ""), "kind": kind}


class _Trouble:
    """Whether following works: one log line when it stops, one when it works again."""

    def __init__(self, path: str, backoff: Backoff) -> None:
        self._path = path
        self._backoff = backoff
        self._logged = False

    def begin(self, error: DranetError) -> None:
        # A forgotten version and a stream that the server ends are everyday life of a watch.
        everyday = error.reason is Reason.API_GONE
        if not self._logged and not everyday:
            self._logged = True
            _log.warning("following %s stopped, trying again: %s", self._path, error)

    def end(self) -> None:
        self._backoff.reset()
        if self._logged:
            self._logged = False
            _log.info("following %s works again", self._path)

    async def wait(self) -> None:
        await asyncio.sleep(self._backoff.next_seconds())
