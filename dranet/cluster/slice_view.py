"""What we know of this node's slices: the watch, and our own writes before the watch tells of them.

Without the second half a watch that lags behind a create would make the next look find a slice missing,
and a duplicate would be created. Versions of one API server are comparable numbers (KEP-5504).
"""

from __future__ import annotations

from dranet.cluster.client import EventType, JsonObject, WatchEvent
from dranet.cluster.watch import Snapshot


class SliceView:
    """Slices by uid; the newer of two versions of one always wins."""

    def __init__(self) -> None:
        self._slices: dict[str, JsonObject] = {}
        self._deleted: set[str] = set()
        """Slices that we deleted and that the watch may still tell of."""
        self._seen = 0
        """The version of the newest snapshot: news that is not newer is old."""

    def get_slices(self) -> tuple[JsonObject, ...]:
        return tuple(self._slices.values())

    def reset(self, snapshot: Snapshot) -> None:
        """Take a snapshot as the truth, but for own writes that are newer than it."""
        version = _parse_version(snapshot.resource_version)
        listed = {item["metadata"]["uid"]: item for item in snapshot.items}
        newer = {uid: known for uid, known in self._slices.items() if _version(known) > version}
        self._deleted &= listed.keys()
        self._seen = max(self._seen, version)
        merged = listed | newer
        self._slices = {uid: found for uid, found in merged.items() if uid not in self._deleted}

    def observe(self, event: WatchEvent) -> bool:
        """Take in one event; whether it told something that we had not known."""
        uid = event.object["metadata"]["uid"]
        if event.type is EventType.DELETED:
            self._deleted.discard(uid)
            return self._slices.pop(uid, None) is not None
        known = self._slices.get(uid)
        version = _version(event.object)
        stale = known is not None and 0 < version <= _version(known)
        if uid in self._deleted or stale or 0 < version <= self._seen:
            return False
        self._slices[uid] = event.object
        return True

    def note_written(self, stored: JsonObject) -> None:
        """The answer to an own create or update."""
        self._slices[stored["metadata"]["uid"]] = stored

    def note_deleted(self, uid: str) -> None:
        """An own delete succeeded (or found nothing)."""
        if self._slices.pop(uid, None) is not None:
            self._deleted.add(uid)


def _parse_version(text: str) -> int:
    """0 for a server whose versions are not numbers: then what came last wins."""
    return int(text) if text.isascii() and text.isdigit() else 0


def _version(found: JsonObject) -> int:
    return _parse_version(str(found["metadata"].get("resourceVersion", "")))
