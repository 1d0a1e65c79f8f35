"""Kubernetes Events about pods, claims and the node: what ``kubectl describe`` shows.

Best effort by nature: an Event that cannot be written is logged once and never fails what it is about.
The same Event again within a window only counts up, so that a retry loop does not flood the cluster.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, JsonObject
from dranet.errors import ClusterError, DranetError, Reason

_log = logging.getLogger(__name__)

NORMAL = "Normal"
WARNING = "Warning"

WINDOW = timedelta(minutes=10)
MAX_SERIES = 512
"""Series remembered for counting; the least recently used goes first."""

_MAX_NOTE_BYTES = 1024
_MAX_REASON_CHARACTERS = 128
_MAX_NAME_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """What an Event is about. ``namespace`` is empty for cluster-wide objects such as nodes."""

    api_version: str
    kind: str
    name: str
    namespace: str
    uid: str

    @property
    def event_namespace(self) -> str:
        """Events of cluster-wide objects live in ``default``."""
        return self.namespace or "default"


_SeriesKey = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class _Series:
    """An Event object that exists and how often it has happened."""

    name: str
    count: int
    last: datetime


def _utc_now() -> datetime:
    return datetime.now(UTC)


class EventRecorder:
    """Writes Events in the name of ``component`` (the driver) on ``host`` (the node)."""

    def __init__(
        self,
        client: ApiClient,
        *,
        component: str,
        host: str,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        self._client = client
        self._component = component
        self._host = host
        self._now = now
        self._series: OrderedDict[_SeriesKey, _Series] = OrderedDict()
        self._turn = asyncio.Lock()
        self._failing = False
        self._written = 0

    async def record(self, regarding: ObjectRef, event_type: str, reason: str, note: str) -> None:
        """Write one Event, or count up the one that says the same.

        ``event_type`` is NORMAL or WARNING, ``reason`` CamelCase from a closed list, ``note`` a sentence
        for people. API trouble is logged once and goes no further.
        """
        note = _cut(note)
        key = (regarding.uid, event_type, reason, note)
        async with self._turn:
            try:
                await self._record(key, regarding)
            except DranetError as error:
                self._complain(error)
            else:
                self._failing = False

    async def _record(self, key: _SeriesKey, regarding: ObjectRef) -> None:
        now = self._now()
        series = self._series.get(key)
        recent = series is not None and now - series.last <= WINDOW
        if series is not None and recent and await self._count_up(series, regarding, now):
            series = replace(series, count=series.count + 1, last=now)
        else:
            series = await self._create(key, regarding, now)
        self._series[key] = series
        self._series.move_to_end(key)
        if len(self._series) > MAX_SERIES:
            self._series.popitem(last=False)

    async def _count_up(self, series: _Series, regarding: ObjectRef, now: datetime) -> bool:
        """Whether the Event object was still there; the cluster forgets them after an hour."""
        path = paths.event(regarding.event_namespace, series.name)
        try:
            await self._client.patch(path, {"count": series.count + 1, "lastTimestamp": _time(now)})
        except ClusterError as error:
            if error.reason is Reason.API_NOT_FOUND:
                return False
            raise
        return True

    async def _create(self, key: _SeriesKey, regarding: ObjectRef, now: datetime) -> _Series:
        body = self._build_event(key, regarding, now)
        await self._client.create(paths.events(regarding.event_namespace), body)
        return _Series(body["metadata"]["name"], 1, now)

    def _build_event(self, key: _SeriesKey, regarding: ObjectRef, now: datetime) -> JsonObject:
        _, event_type, reason, note = key
        # Named by what it is about and when, as other components do it; the number keeps two apart.
        self._written += 1
        when = int(now.timestamp() * 1_000_000)
        stem = regarding.name[:_MAX_NAME_CHARACTERS].rstrip("-.")
        name = f"{stem}.{when:x}.{self._written:x}"
        involved = {
            "apiVersion": regarding.api_version,
            "kind": regarding.kind,
            "name": regarding.name,
            "uid": regarding.uid,
        }
        if regarding.namespace:
            involved["namespace"] = regarding.namespace
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": regarding.event_namespace},
            "involvedObject": involved,
            "type": event_type,
            "reason": reason[:_MAX_REASON_CHARACTERS],
            "message": note,
            "firstTimestamp": _time(now),
            "lastTimestamp": _time(now),
            "count": 1,
            "source": {"component": self._component, "host": self._host},
            "reportingComponent": self._component,
            "reportingInstance": self._host,
        }

    def _complain(self, error: DranetError) -> None:
        if not self._failing:
            self._failing = True
            _log.warning("Events cannot be written (said once until it works again): %s", error)


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _cut(note: str) -> str:
    encoded = note.encode()
    if len(encoded) <= _MAX_NOTE_BYTES:
        return note
    return encoded[: _MAX_NOTE_BYTES - 3].decode(errors="ignore") + "..."
