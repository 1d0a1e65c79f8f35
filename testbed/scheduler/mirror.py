"""A live copy of some collections of the API server, for the testbed's scheduler and controllers.

It is filled by list and watch, so it lags behind; what its owner writes is put in at once, so that the
owner never decides twice on the same ground.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Self

from dranet.cluster.client import ApiClient, Backoff, EventType, JsonObject, Snapshot, list_and_watch
from dranet.errors import ClusterError

_log = logging.getLogger(__name__)

_Key = tuple[str, str]
"""Namespace and name."""


class Mirror:
    """Copies of the collections at ``paths``; they must not be changed in place."""

    def __init__(self, client: ApiClient, paths: Iterable[str]) -> None:
        self._client = client
        self._objects: dict[str, dict[_Key, JsonObject]] = {path: {} for path in paths}
        self._unsynced = set(self._objects)
        self._changed = asyncio.Event()

    def items(self, path: str) -> list[JsonObject]:
        """The collection, ordered by namespace and name."""
        return [item for _, item in sorted(self._objects[path].items(), key=lambda entry: entry[0])]

    def get(self, path: str, namespace: str, name: str) -> JsonObject | None:
        return self._objects[path].get((namespace, name))

    def put(self, path: str, item: JsonObject) -> None:
        """Take in an object, unless a newer version of it is here (versions count up, KEP-5504)."""
        known = self._objects[path].get(_key(item))
        if (
            known is None
            or known["metadata"]["uid"] != item["metadata"]["uid"]
            or _version(known) <= _version(item)
        ):
            self._objects[path][_key(item)] = item
            self._changed.set()

    async def wait_changed(self) -> None:
        """Return when something changed since the last return, not before every collection was listed."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not self._unsynced:
                return

    def mark_changed(self) -> None:
        """Make the next wait return at once: the owner has not finished."""
        self._changed.set()

    async def run(self) -> None:
        """Follow all collections; runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            for path in self._objects:
                group.create_task(self._follow(path), name=f"mirror {path}")

    async def _follow(self, path: str) -> None:
        async with contextlib.aclosing(list_and_watch(self._client, path)) as changes:
            async for change in changes:
                if isinstance(change, Snapshot):
                    self._objects[path] = {_key(item): item for item in change.items}
                    self._unsynced.discard(path)
                elif change.type is EventType.DELETED:
                    self._objects[path].pop(_key(change.object), None)
                else:
                    self.put(path, change.object)
                self._changed.set()


class Reconciler(ABC):
    """Something that keeps putting right what it sees in its mirror; ``async with`` runs it."""

    def __init__(self, client: ApiClient, paths: Iterable[str]) -> None:
        self.client = client
        self.mirror = Mirror(client, paths)
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def reconcile(self) -> None:
        """One pass over everything.

        Raises:
            ClusterError: the API server failed; what was done so far stays done, and the pass runs again.
        """

    async def run(self) -> None:
        """Reconcile after every change; runs until cancelled."""
        backoff = Backoff(0.05, 5.0)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.mirror.run(), name="mirror")
            while True:
                await self.mirror.wait_changed()
                try:
                    await self.reconcile()
                    backoff.reset()
                except ClusterError as error:
                    _log.info("%s runs again: %s", type(self).__name__, error)
                    await asyncio.sleep(backoff.next_seconds())
                    self.mirror.mark_changed()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.run(), name=type(self).__name__)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop; a bug that ended the task before comes out here."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


def _key(item: JsonObject) -> _Key:
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _version(item: JsonObject) -> int:
    text = str(item["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0
