"""What we know of this node's slices: the watch, and our own writes before the watch tells of them.

Without the second half a watch that lags behind a create would make the next look find a slice missing, and a
duplicate would be created. Versions of one API server are comparable numbers (KEP-5504); after its storage
was restored from a backup they begin anew lower down, so against a whole list it is time that decides: it has
whatever was answered before it was asked for.
"""

from __future__ import annotations

from dranet.cluster.client import EventType, JsonObject, WatchEvent
from dranet.cluster.lists import Snapshot

_MEMORY_SECONDS = 300.0
"""How long it is remembered when something was learned; no list takes so long."""


class SliceView:
    """Slices by uid; the newer of two versions of one always wins. Times are the event loop's."""

    def __init__(self) -> None:
        self._slices: dict[str, JsonObject] = {}
        self._learned_at: dict[str, float] = {}
        """When a slice became what it is, by an own write or an event."""
        self._gone_at: dict[str, float] = {}
        """When a slice was deleted, by us or by others; the watch may still tell of it."""
        self._seen = 0
        """The version of the newest snapshot: news that is not newer is old."""

    def get_slices(self) -> tuple[JsonObject, ...]:
        return tuple(self._slices.values())

    def reset(self, snapshot: Snapshot) -> None:
        """Take a snapshot as the truth, but for what was learned since it was asked for."""
        slices = {item["metadata"]["uid"]: item for item in snapshot.items}
        self._forget_before(snapshot.asked_at)
        self._seen = _parse_version(snapshot.resource_version)
        for uid in self._learned_at.keys() & self._slices.keys():
            known = self._slices[uid]
            if uid not in slices or _version(slices[uid]) <= _version(known):
                slices[uid] = known
        self._slices = {uid: found for uid, found in slices.items() if uid not in self._gone_at}

    def observe(self, event: WatchEvent, now: float) -> bool:
        """Take in one event; whether it told something that we had not known."""
        self._forget_before(now - _MEMORY_SECONDS)
        uid = event.object["metadata"]["uid"]
        if event.type is EventType.DELETED:
            self._gone_at[uid] = now
            return self._slices.pop(uid, None) is not None
        known = self._slices.get(uid)
        version = _version(event.object)
        stale = known is not None and 0 < version <= _version(known)
        if uid in self._gone_at or stale or 0 < version <= self._seen:
            return False
        self._learn(event.object, now)
        return True

    def note_written(self, stored: JsonObject, now: float) -> None:
        """The answer to an own create or update."""
        self._learn(stored, now)

    def note_deleted(self, uid: str, now: float) -> None:
        """An own delete succeeded (or found nothing)."""
        if self._slices.pop(uid, None) is not None:
            self._gone_at[uid] = now

    def _learn(self, found: JsonObject, now: float) -> None:
        uid = found["metadata"]["uid"]
        self._slices[uid] = found
        self._learned_at[uid] = now

    def _forget_before(self, start: float) -> None:
        self._learned_at = {uid: time for uid, time in self._learned_at.items() if time >= start}
        self._gone_at = {uid: time for uid, time in self._gone_at.items() if time >= start}


def _parse_version(text: str) -> int:
    """0 for a server whose versions are not numbers: then what came last wins."""
    return int(text) if text.isascii() and text.isdigit() else 0


def _version(found: JsonObject) -> int:
    return _parse_version(str(found["metadata"].get("resourceVersion", "")))
