"""Keep this node's ResourceSlices of this driver equal to what the driver wants to offer.

What to write is decided in :mod:`dranet.cluster.slice_plan`; here is the loop around it: look, decide, write,
and repair what others did to our slices (the kubelet wipes them when the driver was away for long, the
garbage collector when the Node object was replaced). What the server does not keep is left out
(:mod:`dranet.cluster.capabilities`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain

from msgspec import Struct, field
from msgspec.structs import replace

from dranet.cluster import paths
from dranet.cluster.capabilities import (
    FORBIDDEN,
    UNPROCESSABLE,
    ApiCapabilities,
    CapabilityFollower,
    MissingCapabilities,
    Support,
    ask_capabilities,
)
from dranet.cluster.client import (
    SPREAD_SECONDS,
    ApiClient,
    Backoff,
    EventType,
    JsonObject,
    Snapshot,
    WatchEvent,
    fetch_snapshot,
    list_and_watch,
)
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
    build_pages,
    find_features,
    find_lost,
    is_counter_set,
    is_same_page,
    iter_adopted,
    plan_sync,
    read_page,
    withhold_all,
)
from dranet.errors import ClusterError, DranetError, Reason
from dranet.failpoints import Failpoint, reached
from dranet.model.device import Device, Taint
from dranet.terminal import count_of

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

    @property
    def slices(self) -> tuple[JsonObject, ...]:
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
        self.learn(event.object, now)
        return True

    def learn(self, found: JsonObject, now: float) -> None:
        """The answer to an own create or update, or news of another's."""
        uid = found["metadata"]["uid"]
        self._slices[uid] = found
        self._learned_at[uid] = now

    def note_deleted(self, uid: str, now: float) -> None:
        """An own delete succeeded (or found nothing)."""
        if self._slices.pop(uid, None) is not None:
            self._gone_at[uid] = now

    def _forget_before(self, start: float) -> None:
        self._learned_at = {uid: time for uid, time in self._learned_at.items() if time >= start}
        self._gone_at = {uid: time for uid, time in self._gone_at.items() if time >= start}


def _parse_version(text: str) -> int:
    """0 for a server whose versions are not numbers: then what came last wins."""
    return int(text) if text.isascii() and text.isdigit() else 0


def _version(found: JsonObject) -> int:
    return _parse_version(str(found["metadata"].get("resourceVersion", "")))


def _now() -> float:
    return asyncio.get_running_loop().time()


_DENIALS = (400, FORBIDDEN, UNPROCESSABLE)
"""Statuses of a slice that is refused for what is in it: by the API server, a policy, or a webhook, whose
denial is a 400 where it gives no code."""


class SliceSync:
    """Knows the slices of one driver on one node in one run, and brings them to a desired content.

    The next run begins with nothing, because another instance of the driver may have written meanwhile.
    ``begins`` is called before slices that are not the desired ones are written, ``wrote`` with the verb of
    each write that the server accepted.
    """

    def __init__(
        self,
        client: ApiClient,
        node: str,
        selector: str,
        follower: CapabilityFollower,
        *,
        begins: Callable[[], None],
        wrote: Callable[[str], None],
    ) -> None:
        self._client = client
        self._node = node
        self._selector = selector
        self._follower = follower
        self._begins = begins
        self._wrote = wrote
        self._view = SliceView()
        self._adopted: dict[int, tuple[Page, Page]] = {}
        self.refused: DesiredPool | None = None
        """Refused with its optional fields and without: they are not to blame, unless the server is another
        one by now."""
        self._owner: JsonObject | None = None
        self.owner_in_doubt = True
        """The Node may have been replaced: look at the next :meth:`check_owner`."""
        self._uncertain = False
        """A write failed, and may have taken effect all the same."""
        self.generation = 0
        """Generation of the pool as last written or found; 0 before that."""
        self.is_listed = False
        """The slices on the server are known."""

    def take_snapshot(self, snapshot: Snapshot) -> None:
        """All slices. A second one comes after a gap, in which Node and server may have been replaced."""
        if self.is_listed:
            self.owner_in_doubt = True
            self._follower.doubt()
        self._view.reset(snapshot)
        self.is_listed = True

    def take_event(self, event: WatchEvent) -> bool:
        """Take one change; return whether another writer made it."""
        return self._view.observe(event, _now())

    async def sync(self, desired: DesiredPool) -> None:
        """Bring the slices to the desired content, as far as the server keeps it.

        Raises:
            DranetError: it did not work, or not to the end.
        """
        if self._uncertain:
            now = await fetch_snapshot(self._client, paths.RESOURCE_SLICES, field_selector=self._selector)
            self._view.reset(now)
            self._uncertain = False
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
        if self.owner_in_doubt:
            await self._fetch_owner()
            await self.sync(desired)

    def _find_unusable(self) -> frozenset[Feature]:
        """Which optional fields not to send. While the server has not answered, what it has stored speaks
        for it: a restart must not take back what is there."""
        if self._follower.features is not None:
            return self._follower.features.unusable
        stored = find_features(chain(*map(read_page, self._view.slices)))
        return frozenset(Feature) - stored

    async def _write_pool(self, desired: DesiredPool, unusable: frozenset[Feature]) -> None:
        pages = withhold_all(desired.pages, unusable)
        pool = replace(desired, pages=tuple(iter_adopted(pages, self._adopted)))
        plan = plan_sync(self._view.slices, pool, self._owner)
        if plan.creates:  # seldom, so the Node is asked for each time
            await self._fetch_owner()
            plan = plan_sync(self._view.slices, pool, self._owner)
        if plan.writes:
            self._begins()
            reached(Failpoint.PUBLISH_BEGUN)
            await self._carry_out(plan, pool)
            reached(Failpoint.PUBLISH_DONE)
        self.generation = plan.generation

    async def _write_bare(self, desired: DesiredPool, error: ClusterError) -> None:
        """The server refused a slice. An optional field must never cost it: try again without any of them.

        Raises:
            ClusterError: there is nothing to leave out, or the server refuses it all the same.
        """
        suspects = find_features(chain(*desired.pages)) - self._find_unusable()
        if not suspects or self.refused == desired:
            raise error
        self.refused = desired
        await self._write_pool(desired, frozenset(Feature))
        _log.warning("a slice was refused with optional fields, and taken without: %s", error.message)
        self._follower.note_lost(suspects, Support.REFUSED)

    async def _fetch_owner(self) -> None:
        path = paths.node(self._node)
        self._owner = build_owner(check_stored(await self._client.get(path), f"a GET of {path}"))
        self.owner_in_doubt = False

    async def _carry_out(self, plan: SyncPlan, pool: DesiredPool) -> None:
        for write in plan.writes:
            stored = await self._write(write)
            if not isinstance(write, DeleteSlice):
                self._judge_answer(write.index, read_page(write.body), read_page(stored), pool)
        devices = sum(not is_counter_set(entry) for page in pool.pages for entry in page)
        size = count_of(devices, "device"), count_of(len(pool.pages), "slice")
        _log.info("published %s in %s of pool %s, generation %d", *size, pool.pool, plan.generation)

    async def _write(self, write: Write) -> JsonObject:
        """The slice as stored; empty for a delete."""
        try:
            match write:
                case DeleteSlice():
                    await self._delete(write)
                    reached(Failpoint.PUBLISH_SLICE_DELETED)
                    self._wrote("delete")
                    return {}
                case UpdateSlice():
                    stored = await self._client.replace(paths.resource_slice(write.name), write.body)
                    reached(Failpoint.PUBLISH_SLICE_UPDATED)
                    return self._take(stored, "update")
                case CreateSlice():
                    stored = await self._client.create(paths.RESOURCE_SLICES, write.body)
                    reached(Failpoint.PUBLISH_SLICE_CREATED)
                    return self._take(stored, "create")
        except DranetError as error:
            if not (isinstance(error, ClusterError) and error.status in _DENIALS):
                self._uncertain = True
            raise

    def _take(self, stored: JsonObject, verb: str) -> JsonObject:
        self._view.learn(check_stored(stored, f"the {verb} of a slice"), _now())
        self._wrote(verb)
        return stored

    async def _delete(self, write: DeleteSlice) -> None:
        path = paths.resource_slice(write.name)
        try:
            await self._client.delete(path, uid=write.uid, resource_version=write.resource_version)
        except ClusterError as error:
            if error.reason is not Reason.API_NOT_FOUND:
                raise
        self._view.note_deleted(write.uid, _now())

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


_log = logging.getLogger(__name__)

_CALM_SECONDS = 120.0
"""Others left our slices alone for this long: the next repair is quick again."""

_NODE_SECONDS = 5.0
"""Between look-ups of a Node object that does not exist yet."""
_NODE_TRIES = 60
"""For some minutes: it may never come, where the node's name is a wrong one."""

_REWATCH_SECONDS = (1.0, 30.0)
"""First and longest wait before a broken watch is tried again."""


class PublishListeners(Struct, frozen=True):
    failed: Callable[[Reason], None] = lambda _: None
    """A call to the API server failed."""
    wrote: Callable[[str], None] = lambda _: None
    """The API server accepted a write: ``create``, ``update`` or ``delete``."""
    missing: Callable[[frozenset[str]], None] = lambda _: None
    """The feature gates whose fields we want to publish and the server does not keep have changed."""


class PublishTiming(Struct):
    repairs: Backoff = field(default_factory=lambda: Backoff(1.0, 30.0))
    """Between repairs of slices that another client changes again and again."""
    retries: Backoff = field(default_factory=lambda: Backoff(0.2, 60.0))
    """Between attempts after an error of the API server."""
    patience_seconds: float = 2.0
    """The first publication waits this long to learn which optional fields the server keeps; after that it
    goes out without them, and they follow."""
    spread_seconds: float = SPREAD_SECONDS
    """Within this time the nodes of a cluster list slices again after a watch has ended."""


class SlicePublisher:
    """Publishes one pool of one node, with the node's name.

    Nothing is written before the first :meth:`set_desired`, and slices stay when :meth:`run` ends: a
    successor finds them, and the kubelet removes them when none comes. :meth:`run` may be started again at
    any time, also when another instance of the driver has published meanwhile: each run reads the slices.
    """

    def __init__(
        self,
        client: ApiClient,
        driver: str,
        node: str,
        *,
        listeners: PublishListeners | None = None,
        timing: PublishTiming | None = None,
    ) -> None:
        self.is_published = False
        """The API server holds what is desired, as far as we know; never while :meth:`run` does not run."""
        self.last_published = 0.0
        """When the API server last accepted a write, or proved to hold what is desired; unix seconds."""
        self._listeners = listeners or PublishListeners()
        self._client = client
        self._selector = f"spec.driver={driver},spec.nodeName={node}"
        self._empty = DesiredPool(driver, node, node, ((),))
        self._desired: DesiredPool | None = None
        self._timing = timing or PublishTiming()
        self._follower = CapabilityFollower(
            partial(ask_capabilities, client, driver, node), self._capabilities_changed
        )
        self._missing = MissingCapabilities(self._listeners.missing)
        self._work = asyncio.Event()
        self._desired_changed = asyncio.Event()
        self._repaired_at = 0.0
        self._running = False
        self._sync = self._begin()

    def _begin(self) -> SliceSync:
        """What was true in an earlier run need not be true in the next."""
        self._unpublish()
        self._asked = False
        self._disturbed = False
        self._complaint: tuple[Reason, int] | None = None
        self._absences = 0
        self._last_error = ""
        return SliceSync(
            self._client,
            self._empty.node,
            self._selector,
            self._follower,
            begins=self._unpublish,
            wrote=self._listeners.wrote,
        )

    def _unpublish(self) -> None:
        self.is_published = False

    @property
    def generation(self) -> int:
        """As last written or found in this run; 0 before that."""
        return self._sync.generation

    @property
    def is_listed(self) -> bool:
        return self._running and self._sync.is_listed

    @property
    def features(self) -> ApiCapabilities | None:
        return self._follower.features

    @property
    def last_error(self) -> str:
        """What keeps the slices from being published now; empty when nothing does."""
        if self._last_error or self.is_published:
            return self._last_error
        if not self._running:
            return "not publishing"
        return "not written yet" if self._sync.is_listed else "waiting for the API server"

    def set_desired(
        self, pages: Sequence[Sequence[Device]], taints: Mapping[str, Sequence[Taint]] | None = None
    ) -> None:
        """Publish these devices, a slice for each page, with the ``taints`` under their names. Equal content
        is nothing new. May be called at any time, also while a failed write waits for its retry.

        Raises:
            ValueError: a device name is there twice.
        """
        desired = replace(self._empty, pages=build_pages(pages, taints))
        if desired == self._desired:
            return
        self._desired = desired
        self._unpublish()
        self._desired_changed.set()
        self._work.set()

    async def run(self) -> None:
        """Publish and repair until cancelled. API trouble is logged, counted and tried again."""
        if self._running:
            raise RuntimeError("the publisher runs already")
        self._running = True
        self._sync = self._begin()
        self._work.set()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follower.run(), name="slices-features")
                tasks.create_task(self._follow(), name="slices-watch")
                tasks.create_task(self._publish_forever(), name="slices-publish")
        finally:
            self._running = False
            self._unpublish()

    async def _follow(self) -> None:
        news = list_and_watch(
            self._client,
            paths.RESOURCE_SLICES,
            field_selector=self._selector,
            backoff=Backoff(*_REWATCH_SECONDS),
            spread_seconds=self._timing.spread_seconds,
            on_cut=self._note_cut,
        )
        async with contextlib.aclosing(news):
            async for item in news:
                if isinstance(item, Snapshot):
                    self._sync.take_snapshot(item)
                    self._work.set()
                elif self._sync.take_event(item):
                    self._disturbed = True
                    self._work.set()

    def _note_cut(self) -> None:
        """What was asked of the server may be answered otherwise now; whose the slices are is looked up with
        the next publication, as the garbage collector sees to it meanwhile."""
        self._follower.doubt()
        self._sync.owner_in_doubt = True

    async def _publish_forever(self) -> None:
        while True:
            await self._work.wait()
            if self._disturbed:
                await self._wait_for_desired(self._repair_seconds())
            self._work.clear()
            self._desired_changed.clear()
            self._disturbed = False
            if self._desired is None or not self._sync.is_listed:
                continue
            try:
                await self._publish(self._desired)
            except DranetError as error:  # also a ProtocolError: a proxy's error page
                self._complain(error)
                await self._wait_for_desired(self._retry_seconds(error))
                self._work.set()
            else:
                self._end_complaint()

    def _repair_seconds(self) -> float:
        """Before undoing what others did: short at first, longer when they insist (two drivers of one name on
        one node must not write against each other at full speed)."""
        if _now() - self._repaired_at > _CALM_SECONDS:
            self._timing.repairs.reset()
        self._repaired_at = _now()
        return self._timing.repairs.next_seconds()

    def _retry_seconds(self, error: DranetError) -> float:
        seconds = self._timing.retries.next_seconds()
        if error.reason is Reason.API_NOT_FOUND and self._absences < _NODE_TRIES:
            self._absences += 1  # of the Node: it will be there soon, and then we want to be
            return min(seconds, _NODE_SECONDS)
        return max(seconds, error.retry_after_seconds) if isinstance(error, ClusterError) else seconds

    async def _wait_for_desired(self, seconds: float) -> None:
        """Let time pass, unless something new to publish came since the last look."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._desired_changed.wait()

    async def _publish(self, desired: DesiredPool) -> None:
        if not self._asked:
            self._asked = True
            await self._follower.wait_known(self._timing.patience_seconds)
        if self.features is not None:
            self._missing.update(find_features(chain(*desired.pages)), self.features)
        await self._sync.sync(desired)
        self._note_published(desired)
        await self._sync.check_owner(desired)
        self._note_published(desired)  # again, as the owner may have been written

    def _note_published(self, desired: DesiredPool) -> None:
        self.last_published = time.time()
        self.is_published = desired == self._desired

    def _capabilities_changed(self) -> None:
        self._sync.refused = None
        self._work.set()

    def _complain(self, error: DranetError) -> None:
        """Log a failure once, until it is of another kind or over. The texts of one kind differ from try
        to try, because each create is refused under a name of its own."""
        self._listeners.failed(error.reason)
        if error.reason is Reason.API_CONFLICT:
            return  # another writer was faster, which is normal: the retry settles it
        self._last_error = error.message
        status = error.status if isinstance(error, ClusterError) else 0
        if self._complaint != (kind := (error.reason, status)):
            self._complaint = kind
            _log.warning("publishing slices failed, trying again: %s", error)

    def _end_complaint(self) -> None:
        self._timing.retries.reset()
        self._absences = 0
        self._last_error = ""
        if self._complaint is not None:
            self._complaint = None
            _log.info("publishing slices works again")
