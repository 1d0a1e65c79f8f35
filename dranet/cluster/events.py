"""Kubernetes Events about pods, claims and the node: what ``kubectl describe`` shows.

Best effort by nature: an Event that cannot be written never fails what it is about. The same Event again
within a window only counts up, and an object gets no more than so many, so that a retry loop does not flood
the cluster.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta

from msgspec import Struct, to_builtins

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.messages import format_time, utc_now, without_empty
from dranet.errors import ClusterError, Reason
from dranet.model.claim import ClaimRef, PodRef
from dranet.terminal import cut_bytes

_log = logging.getLogger(__name__)

NORMAL = "Normal"
WARNING = "Warning"

WINDOW = timedelta(minutes=10)
MAX_SERIES = 512
"""Series remembered for counting; the least recently used goes first."""

BURST = 25
REFILL = timedelta(minutes=5)
"""Refill time of each object's bucket; what client-go's spam filter allows."""

_MAX_NOTE_BYTES = 1024
_MAX_REASON_CHARACTERS = 128
_MAX_NAME_CHARACTERS = 200


class ObjectRef(Struct, frozen=True, rename="camel"):
    """What an Event is about. ``namespace`` is empty for cluster-wide objects such as nodes."""

    api_version: str
    kind: str
    name: str
    namespace: str
    uid: str

    @classmethod
    def of_node(cls, name: str) -> ObjectRef:
        """A Node, by the UID under which kubelets write their Events: its name."""
        return cls(api_version="v1", kind="Node", name=name, namespace="", uid=name)

    @classmethod
    def of_claim(cls, claim: ClaimRef) -> ObjectRef:
        return cls("resource.k8s.io/v1", "ResourceClaim", claim.name, claim.namespace, claim.uid)

    @classmethod
    def of_pod(cls, pod: PodRef) -> ObjectRef:
        return cls("v1", "Pod", pod.name, pod.namespace, pod.uid)

    @property
    def event_namespace(self) -> str:
        """Events of cluster-wide objects live in ``default``."""
        return self.namespace or "default"


class EventNote(Struct, frozen=True):
    """What happened, ``count`` times. ``type`` is NORMAL or WARNING, ``reason`` CamelCase from a closed list,
    ``note`` a sentence for people."""

    regarding: ObjectRef
    type: str
    reason: str
    note: str
    count: int = 1
    first: datetime | None = None
    """When; ``None`` is when it is written."""
    last: datetime | None = None
    identity: str = ""
    """What makes it one object together with ``first``, with any note: for an Event that may have
    been written before, by a process that has ended. Empty: the note."""


_SeriesKey = tuple[str, str, str, str]


class _Series(Struct, frozen=True):
    """An Event object that exists and how often it has happened."""

    name: str
    count: int
    last: datetime


class _Share(Struct):
    """An object's bucket: :data:`BURST` Events at once, one more each :data:`REFILL`."""

    left: float
    at: datetime
    is_reported: bool = False
    """That some are left out."""


class EventRecorder:
    def __init__(
        self,
        client: ApiClient,
        *,
        component: str,
        host: str,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._client = client
        self._component = component
        self._host = host
        self._now = now
        self._series: OrderedDict[_SeriesKey, _Series] = OrderedDict()
        self._turn = asyncio.Lock()
        self._shares: OrderedDict[str, _Share] = OrderedDict()

    async def record(self, event: EventNote) -> None:
        """Write one Event, or count up the equal one; nothing when the object has had its share.

        Raises:
            ClusterError: no answer, or a refusal.
            ProtocolError: the answer is no API object.
        """
        note = cut_bytes(event.note, _MAX_NOTE_BYTES)
        key = (event.regarding.uid, event.type, event.reason, note)
        async with self._turn:
            share = self._refill_share(event.regarding.uid)
            if share.left >= 1:
                await self._record(key, event)
                share.left -= 1
                share.is_reported = False
            elif not share.is_reported:
                share.is_reported = True
                _log.warning("too many Events about %s; some are left out", event.regarding.name)

    def _refill_share(self, uid: str) -> _Share:
        now = self._now()
        share = self._shares.setdefault(uid, _Share(BURST, now))
        self._shares.move_to_end(uid)
        if len(self._shares) > MAX_SERIES:
            self._shares.popitem(last=False)
        share.left = min(BURST, share.left + max(now - share.at, timedelta()) / REFILL)
        share.at = now
        return share

    async def _record(self, key: _SeriesKey, event: EventNote) -> None:
        now = self._now()
        series = self._series.get(key)
        recent = series is not None and now - series.last <= WINDOW
        if series is not None and recent and await self._count_up(series, event):
            series = _Series(series.name, series.count + event.count, now)
        else:
            series = _Series(await self._create(key, event), event.count, now)
        self._series[key] = series
        self._series.move_to_end(key)
        if len(self._series) > MAX_SERIES:
            self._series.popitem(last=False)

    async def _count_up(self, series: _Series, event: EventNote) -> bool:
        """Whether the Event object was still there; the cluster forgets them after an hour."""
        path = paths.event(event.regarding.event_namespace, series.name)
        patch = {"count": series.count + event.count, "lastTimestamp": format_time(event.last or self._now())}
        try:
            await self._client.patch(path, patch)
        except ClusterError as error:
            if error.reason is Reason.API_NOT_FOUND:
                return False
            raise
        return True

    async def _create(self, key: _SeriesKey, event: EventNote) -> str:
        """The name of the object."""
        body = self._build_event(key, event)
        try:
            await self._client.create(paths.events(event.regarding.event_namespace), body)
        except ClusterError as error:
            is_there = error.reason is Reason.API_CONFLICT  # an earlier try got through, its answer did not
            is_ending = "because it is being terminated" in error.message
            if not (is_there or is_ending or error.reason is Reason.API_NOT_FOUND):
                raise  # else its namespace is deleted, or about to be
        return str(body["metadata"]["name"])

    def _build_event(self, key: _SeriesKey, event: EventNote) -> JsonObject:
        _, event_type, reason, note = key
        regarding, now = event.regarding, self._now()
        # Named by its subject, time and text, so that a second try makes no second object.
        when = int((event.first or now).timestamp() * 1_000_000)
        stem = regarding.name[:_MAX_NAME_CHARACTERS].rstrip("-.")
        sense = (*key[:3], event.identity) if event.identity else key
        name = f"{stem}.{when:x}.{hashlib.sha256(repr(sense).encode()).hexdigest()[:8]}"
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": regarding.event_namespace},
            "involvedObject": without_empty(to_builtins(regarding)),
            "type": event_type,
            "reason": reason[:_MAX_REASON_CHARACTERS],
            "message": note,
            "firstTimestamp": format_time(event.first or now),
            "lastTimestamp": format_time(event.last or now),
            "count": event.count,
            "source": {"component": self._component, "host": self._host},
            "reportingComponent": self._component,
            "reportingInstance": self._host,
        }
