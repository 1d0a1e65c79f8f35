"""The store behind the API server stand-in: objects, one global version, and a log of every change.

It stands in for etcd and the watch cache: it knows versions and history, and neither HTTP nor the meaning of
any object. Bodies are never changed in place once stored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from dranet.desk.kubeapi.errors import expired
from dranet.desk.kubeapi.kinds import Kind
from dranet.desk.kubeapi.objects import JsonObject

Key = tuple[Kind, str, str]
"""Kind, namespace (empty for cluster-wide kinds), name."""

MAX_LOG_LENGTH = 10_000


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the log. ``before`` is ``None`` on creation. ``body`` is the new body; for a
    deleted object the final one, under the version of its deletion."""

    version: int
    key: Key
    before: JsonObject | None
    body: JsonObject
    deleted: bool = False


def with_version(body: JsonObject, version: int) -> JsonObject:
    return {**body, "metadata": {**body["metadata"], "resourceVersion": str(version)}}


class Store:
    """All objects of one API server."""

    def __init__(self) -> None:
        self.version = 1000
        """The version of the last change."""
        self.oldest_version = self.version
        """History after this version is known; older is 410."""
        self._objects: dict[Key, JsonObject] = {}
        self._log: deque[Change] = deque()
        self._changed = asyncio.Event()

    def get(self, key: Key) -> JsonObject | None:
        return self._objects.get(key)

    def put(self, key: Key, body: JsonObject) -> JsonObject:
        """Create or update; returns the body with its new version."""
        before = self._objects.get(key)
        self.version += 1
        after = with_version(body, self.version)
        self._objects[key] = after
        self._record(Change(self.version, key, before, after))
        return after

    def remove(self, key: Key, final: JsonObject) -> JsonObject:
        """Delete; returns the ``final`` body under the version of the deletion."""
        before = self._objects.pop(key)
        self.version += 1
        change = Change(self.version, key, before, with_version(final, self.version), deleted=True)
        self._record(change)
        return change.body

    def iter_objects(self, kind: Kind, namespace: str = "") -> Iterator[tuple[Key, JsonObject]]:
        """Objects of a kind (in one namespace, or in all) by namespace and name."""
        keys = [key for key in self._objects if key[0] is kind and namespace in ("", key[1])]
        for key in sorted(keys, key=lambda key: key[1:]):
            yield key, self._objects[key]

    def snapshot(self, kind: Kind, namespace: str, version: int) -> list[JsonObject]:
        """The objects as they were at ``version``, rebuilt by undoing the log.

        Raises:
            Refusal: 410, that version is forgotten.
        """
        self.check_known(version)
        found = dict(self.iter_objects(kind, namespace))
        for change in reversed(self._log):
            if change.version <= version:
                break
            if change.key[0] is not kind or namespace not in ("", change.key[1]):
                continue
            if change.before is None:
                found.pop(change.key, None)
            else:
                found[change.key] = change.before
        return [found[key] for key in sorted(found, key=lambda key: key[1:])]

    def changes_after(self, version: int) -> list[Change]:
        """The log after ``version``.

        Raises:
            Refusal: 410, part of it is forgotten.
        """
        self.check_known(version)
        newer = []
        for change in reversed(self._log):
            if change.version <= version:
                break
            newer.append(change)
        return newer[::-1]

    def check_known(self, version: int) -> None:
        if version < self.oldest_version:
            raise expired(version, self.oldest_version)

    def compact(self) -> None:
        """Forget all history: every version but the present one is too old from now on."""
        self.version += 1  # so that even a watcher that had seen everything is behind
        self.oldest_version = self.version
        self._log.clear()
        self._notify()

    async def wait_changed(self) -> None:
        """Return at the next change."""
        await self._changed.wait()

    def _record(self, change: Change) -> None:
        self._log.append(change)
        if len(self._log) > MAX_LOG_LENGTH:
            self.oldest_version = self._log.popleft().version
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class Rehearsal(Store):
    """A view of another store for ``dryRun=All``: everything can be read, and no write is kept. As a real
    server does, it answers a created object without a version and a changed one with its present version."""

    def __init__(self, real: Store) -> None:
        super().__init__()
        self.version, self.oldest_version = real.version, real.oldest_version
        self._real = real

    def get(self, key: Key) -> JsonObject | None:
        return self._real.get(key)

    def iter_objects(self, kind: Kind, namespace: str = "") -> Iterator[tuple[Key, JsonObject]]:
        return self._real.iter_objects(kind, namespace)

    def snapshot(self, kind: Kind, namespace: str, version: int) -> list[JsonObject]:
        return self._real.snapshot(kind, namespace, version)

    def put(self, _key: Key, body: JsonObject) -> JsonObject:
        return body

    def remove(self, _key: Key, final: JsonObject) -> JsonObject:
        return final
