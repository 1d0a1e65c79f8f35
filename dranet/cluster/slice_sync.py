"""One run of publishing: what is known of the slices, and the writes that make them the desired ones.

Everything here belongs to one run. The next begins with nothing, because another instance of the driver
may have written meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from dranet.cluster import paths
from dranet.cluster.capabilities import FORBIDDEN, UNPROCESSABLE, CapabilityFollower, Support
from dranet.cluster.client import ApiClient, EventType, JsonObject, WatchEvent
from dranet.cluster.messages import check_stored
from dranet.cluster.slice_plan import (
    CreateSlice,
    DeleteSlice,
    DesiredPool,
    Feature,
    Page,
    SyncPlan,
    UpdateSlice,
    Write,
    build_owner,
    find_features,
    find_lost,
    is_same_page,
    iter_adopted,
    plan_sync,
    read_page,
    withhold,
)
from dranet.cluster.watch import Snapshot, fetch_snapshot
from dranet.errors import ClusterError, DranetError, Reason
from dranet.failpoints import Failpoint, reached

_MEMORY_SECONDS = 300.0
"""How long it is remembered when something was learned; no list takes that long."""


class SliceView:
    """Slices by uid; the newer of two versions of one always wins. Times are the event loop's."""

    def __init__(self) -> None:
        self._slices: dict[str, JsonObject] = {}
        self._learned_at: dict[str, float] = {}
        """When a slice became what it is, by an own write or an event."""
        self._gone_at: dict[str, float] = {}
        """When a slice was deleted, by us or by others; the watch may still report it."""
        self._seen = 0
        """The version of the newest snapshot: news that is not newer is old."""

    def get_slices(self) -> tuple[JsonObject, ...]:
        return tuple(self._slices.values())

    def reset(self, snapshot: Snapshot) -> None:
        """Take a snapshot as the truth, except for what was learned since it was requested."""
        slices = {item["metadata"]["uid"]: item for item in snapshot.items}
        self._forget_before(snapshot.asked_at)
        self._seen = _parse_version(snapshot.resource_version)
        for uid in self._learned_at.keys() & self._slices.keys():
            known = self._slices[uid]
            if uid not in slices or _version(slices[uid]) <= _version(known):
                slices[uid] = known
        self._slices = {uid: found for uid, found in slices.items() if uid not in self._gone_at}

    def observe(self, event: WatchEvent, now: float) -> bool:
        """Take in one event; return whether it contained news."""
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


class SliceWriter:
    """``on_write`` hears the verb of each write that the server accepted."""

    def __init__(self, client: ApiClient, view: SliceView, on_write: Callable[[str], None]) -> None:
        self._client = client
        self._view = view
        self._on_write = on_write

    async def write(self, write: Write) -> JsonObject:
        """Write one slice; its body as stored, or nothing for a delete.

        Raises:
            ClusterError: no answer, or a refusal. A slice that is to be deleted and does not exist is no
            error. ProtocolError: an answer that is no slice.
        """
        match write:
            case DeleteSlice():
                await self._delete(write)
                reached(Failpoint.PUBLISH_SLICE_DELETED)
                self._on_write("delete")
                return {}
            case UpdateSlice():
                stored = await self._client.replace(paths.resource_slice(write.name), write.body)
                reached(Failpoint.PUBLISH_SLICE_UPDATED)
                return self._take(stored, "update")
            case CreateSlice():
                stored = await self._client.create(paths.RESOURCE_SLICES, write.body)
                reached(Failpoint.PUBLISH_SLICE_CREATED)
                return self._take(stored, "create")

    def _take(self, stored: JsonObject, verb: str) -> JsonObject:
        self._view.note_written(check_stored(stored, f"the {verb} of a slice"), _now())
        self._on_write(verb)
        return stored

    async def _delete(self, write: DeleteSlice) -> None:
        path = paths.resource_slice(write.name)
        try:
            await self._client.delete(path, uid=write.uid, resource_version=write.resource_version)
        except ClusterError as error:
            if error.reason is not Reason.API_NOT_FOUND:
                raise
        self._view.note_deleted(write.uid, _now())


def _now() -> float:
    return asyncio.get_running_loop().time()


_log = logging.getLogger(__name__)

_DENIALS = (400, FORBIDDEN, UNPROCESSABLE)
"""Statuses of a slice that is refused for what is in it: by the API server, a policy, or a webhook, whose
denial is a 400 where it gives no code."""


class SyncListeners(Struct, frozen=True):
    """Callbacks for the writes of one step."""

    begins: Callable[[], None]
    """The slices are not the desired ones, and are about to be written."""
    wrote: Callable[[str], None]
    """The API server accepted a write: ``create``, ``update`` or ``delete``."""


class SliceSync:
    """Knows the slices of one driver on one node, and brings them to a desired content."""

    def __init__(
        self,
        client: ApiClient,
        node: str,
        selector: str,
        follower: CapabilityFollower,
        listeners: SyncListeners,
    ) -> None:
        self._client = client
        self._node = node
        self._selector = selector
        self._follower = follower
        self._listeners = listeners
        self._view = SliceView()
        self._writer = SliceWriter(client, self._view, listeners.wrote)
        self._adopted: dict[int, tuple[Page, Page]] = {}
        self._refused: DesiredPool | None = None
        """Refused with its optional fields and without: they are not to blame."""
        self._owner: JsonObject | None = None
        self._owner_in_doubt = True
        self._uncertain = False
        """A write failed, and may have taken effect all the same."""
        self.generation = 0
        """Generation of the pool as last written or found; 0 before that."""
        self.is_listed = False
        """The slices on the server are known."""

    def take_snapshot(self, snapshot: Snapshot) -> None:
        """All slices. A second one comes after a gap, in which Node and server may have been replaced."""
        if self.is_listed:
            self.doubt_owner()
            self._follower.doubt()
        self._view.reset(snapshot)
        self.is_listed = True

    def take_event(self, event: WatchEvent) -> bool:
        """Take one change; return whether another writer made it."""
        return self._view.observe(event, asyncio.get_running_loop().time())

    def doubt_owner(self) -> None:
        """There was a gap in which the Node may have been replaced: look at the next :meth:`check_owner`."""
        self._owner_in_doubt = True

    def forgive(self) -> None:
        """The server may be another one: what it refused may be taken now."""
        self._refused = None

    async def sync(self, desired: DesiredPool) -> None:
        """Bring the slices to the desired content, as far as the server keeps it.

        Raises:
            DranetError: it did not work, or not to the end.
        """
        if self._uncertain:
            await self._relist()
        try:
            await self._write_pool(desired, self._find_unusable())
        except ClusterError as error:
            if error.status not in _DENIALS:
                raise
            await self._write_bare(desired, error)

    async def check_owner(self, desired: DesiredPool) -> None:
        """At start and after a gap: give the slices to the Node object of today. One
        that was replaced has another uid, and the slices of the old one are garbage.

        Raises:
            DranetError: it did not work; what is published stays so for now.
        """
        if self._owner_in_doubt:
            await self._fetch_owner()
            await self.sync(desired)

    def _find_unusable(self) -> frozenset[Feature]:
        """Which optional fields not to send. While the server has not answered, what it has stored speaks
        for it: a restart must not take back what is there."""
        if self._follower.features is not None:
            return self._follower.features.unusable
        return frozenset(Feature) - find_features(
            device for found in self._view.get_slices() for device in read_page(found)
        )

    async def _write_pool(self, desired: DesiredPool, unusable: frozenset[Feature]) -> None:
        """Write what differs, without the ``unusable`` fields."""
        pages = tuple(withhold(page, unusable) for page in desired.pages)
        pool = replace(desired, pages=tuple(iter_adopted(pages, self._adopted)))
        plan = plan_sync(self._view.get_slices(), pool, self._owner)
        if plan.creates:  # seldom, so the Node is asked for each time
            await self._fetch_owner()
            plan = plan_sync(self._view.get_slices(), pool, self._owner)
        if plan.writes:
            self._listeners.begins()
            reached(Failpoint.PUBLISH_BEGUN)
            await self._carry_out(plan, pool)
            reached(Failpoint.PUBLISH_DONE)
        self.generation = plan.generation

    async def _write_bare(self, desired: DesiredPool, error: ClusterError) -> None:
        """The server refused a slice. An optional field must never cost it: try again without any of them.

        Raises:
            ClusterError: there is nothing to leave out, or the server refuses it all the same.
        """
        suspects = find_wanted(desired) - self._find_unusable()
        if not suspects or self._refused == desired:
            raise error
        self._refused = desired
        await self._write_pool(desired, frozenset(Feature))
        _log.warning("a slice was refused with optional fields, and taken without: %s", error.message)
        self._follower.note_lost(suspects, Support.REFUSED)

    async def _fetch_owner(self) -> None:
        path = paths.node(self._node)
        self._owner = build_owner(check_stored(await self._client.get(path), f"a GET of {path}"))
        self._owner_in_doubt = False

    async def _relist(self) -> None:
        """A failed write may have taken effect: look before writing again."""
        self._view.reset(
            await fetch_snapshot(self._client, paths.RESOURCE_SLICES, field_selector=self._selector)
        )
        self._uncertain = False

    async def _carry_out(self, plan: SyncPlan, pool: DesiredPool) -> None:
        for write in plan.writes:
            stored = await self._write(write)
            if not isinstance(write, DeleteSlice):
                self._judge_answer(write.index, read_page(write.body), read_page(stored), pool)
        devices = sum(len(page) for page in pool.pages)
        _log.info(
            "published %d devices in %d slices of pool %s, generation %d",
            devices,
            len(pool.pages),
            pool.pool,
            plan.generation,
        )

    async def _write(self, write: Write) -> JsonObject:
        try:
            return await self._writer.write(write)
        except DranetError as error:
            if not (isinstance(error, ClusterError) and error.status in _DENIALS):
                self._uncertain = True
            raise

    def _judge_answer(self, index: int, sent: Page, stored: Page, pool: DesiredPool) -> None:
        """What the server made of a write. If it is something else its version counts as the desired one,
        or we would write without end. Fields that are known to be optional are no longer sent, in no
        slice."""
        if is_same_page(stored, pool.pages[index]):
            return
        if lost := find_lost(sent, stored):
            self._follower.note_lost(lost, Support.DROPPED)
            return
        self._adopted[index] = (pool.pages[index], stored)
        _log.warning(
            "the API server stored slice %d of pool %s differently from what was sent: a field is newer "
            "than the server, or behind a feature gate that is off",
            index,
            pool.pool,
        )


def find_wanted(desired: DesiredPool) -> frozenset[Feature]:
    """The optional fields of what is desired."""
    return find_features(device for page in desired.pages for device in page)
