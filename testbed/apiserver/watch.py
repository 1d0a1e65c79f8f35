"""Watches of the API server stand-in: which change means which event to one watcher.

An object that begins to match a selector is ADDED for that watcher and one that ceases to match is
DELETED, whatever happened to it in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass

from dranet.desk.kubeapi.errors import Refusal, bad_request
from dranet.desk.kubeapi.objects import JsonObject
from testbed.apiserver.list_options import Selector, require_list_options
from testbed.apiserver.objects import Target
from testbed.apiserver.rest import read_selector
from testbed.apiserver.store import Change, Store, with_version

_DEFAULT_TIMEOUT_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class WatchQuery:
    """What one watcher asked for. ``since`` is ``None`` for the present state first."""

    target: Target
    selector: Selector
    since: int | None
    bookmarks: bool
    initial_events_end: bool
    timeout_seconds: float


def parse_watch(target: Target, query: Mapping[str, str]) -> WatchQuery:
    require_list_options(query, watches=True)
    version = query.get("resourceVersion", "")
    timeout = query.get("timeoutSeconds", "")
    if (version and not version.isdigit()) or (timeout and not timeout.isdigit()):
        raise bad_request("resourceVersion and timeoutSeconds must be numbers")
    initial, bookmarks = query.get("sendInitialEvents") == "true", query.get("allowWatchBookmarks") == "true"
    return WatchQuery(
        target=target,
        selector=read_selector(target.kind, query),
        since=None if version in ("", "0") or initial else int(version),
        bookmarks=bookmarks,
        initial_events_end=initial and bookmarks,
        timeout_seconds=float(timeout) if timeout else _DEFAULT_TIMEOUT_SECONDS,
    )


async def iter_events(
    store: Store, query: WatchQuery, bookmark_seconds: float
) -> AsyncGenerator[JsonObject, None]:
    """The events of one watch until its time is over; a version that is too old ends it with ERROR."""
    loop = asyncio.get_running_loop()
    end = loop.time() + query.timeout_seconds
    cursor = store.version if query.since is None else query.since
    for event in _iter_initial(store, query):
        yield event
    while True:
        try:
            changes = store.changes_after(cursor)
        except Refusal as refusal:
            yield {"type": "ERROR", "object": refusal.build_status()}
            return
        for change in changes:
            cursor = change.version
            if (seen := build_event(query, change)) is not None:
                yield seen
        if store.version > cursor:
            continue
        remaining = end - loop.time()
        if remaining <= 0:
            return
        if not await _wait_changed(store, min(remaining, bookmark_seconds)) and query.bookmarks:
            yield _build_bookmark(query, cursor)


async def _wait_changed(store: Store, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await store.wait_changed()
    except TimeoutError:
        return False
    return True


def _iter_initial(store: Store, query: WatchQuery) -> Iterator[JsonObject]:
    if query.since is not None:
        return
    for body in store.snapshot(query.target.kind, query.target.namespace, store.version):
        if query.selector.matches(body):
            yield {"type": "ADDED", "object": body}
    if query.initial_events_end:
        yield _build_bookmark(query, store.version, {"k8s.io/initial-events-end": "true"})


def build_event(query: WatchQuery, change: Change) -> JsonObject | None:
    """What a change means to this watcher; ``None`` when nothing."""
    kind, namespace, _ = change.key
    if kind is not query.target.kind or query.target.namespace not in ("", namespace):
        return None
    seen = change.before is not None and query.selector.matches(change.before)
    shown = not change.deleted and query.selector.matches(change.body)
    if not seen and not shown:
        return None
    if not shown and change.before is not None and not change.deleted:
        # When an object ceases to match, the watcher gets the last state that did.
        return {"type": "DELETED", "object": with_version(change.before, change.version)}
    event = ("MODIFIED" if seen else "ADDED") if shown else "DELETED"
    return {"type": event, "object": change.body}


def _build_bookmark(
    query: WatchQuery, version: int, annotations: Mapping[str, str] | None = None
) -> JsonObject:
    metadata: JsonObject = {"resourceVersion": str(version), "creationTimestamp": None}
    if annotations:
        metadata["annotations"] = dict(annotations)
    kind = query.target.kind
    return {
        "type": "BOOKMARK",
        "object": {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata},
    }
