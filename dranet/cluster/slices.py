"""Keep this node's ResourceSlices of this driver equal to what the driver wants to offer.

The decision is pure (:mod:`dranet.cluster.slice_plan`); here is the loop around it: look, decide, write,
and repair what others did to our slices (the kubelet wipes them when the driver was away for long, the
garbage collector when the Node object was replaced).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from dranet.cluster import paths
from dranet.cluster.backoff import Backoff
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.slice_plan import (
    CreateSlice,
    DeleteSlice,
    DesiredPool,
    Page,
    SyncPlan,
    UpdateSlice,
    Write,
    build_pages,
    iter_adopted,
    plan_sync,
    read_content,
)
from dranet.cluster.slice_view import SliceView
from dranet.cluster.watch import Snapshot, list_and_watch
from dranet.errors import ClusterError, DranetError, Reason
from dranet.model.device import Device

_log = logging.getLogger(__name__)

_CALM_SECONDS = 120.0
"""Others left our slices alone for this long: the next repair is quick again."""


@dataclass(slots=True)
class PublishCounters:
    """What the publisher did since it was made; ``failures`` by reason."""

    creates: int = 0
    updates: int = 0
    deletes: int = 0
    failures: Counter[Reason] = field(default_factory=Counter)


class SlicePublisher:
    """Publishes one pool of one node. ``pool`` is the node's name unless another is given; ``on_failure``
    hears of each failed call to the API server.

    Nothing is written before the first :meth:`set_desired`, and slices stay when :meth:`run` ends: the
    kubelet removes them when the driver does not come back.
    """

    def __init__(
        self,
        client: ApiClient,
        driver: str,
        node: str,
        *,
        pool: str = "",
        repair_backoff: Backoff | None = None,
        retry_backoff: Backoff | None = None,
        on_failure: Callable[[Reason], None] | None = None,
    ) -> None:
        self.counters = PublishCounters()
        self.last_published = 0.0
        """When the API server last accepted a write, or proved to hold what is desired; unix seconds."""
        self._on_failure = on_failure
        self._client = client
        self._empty = DesiredPool(driver, node, pool or node, ((),))
        self._desired: DesiredPool | None = None
        self._view = SliceView()
        self._listed = False
        self._generation = 0
        self._adopted: dict[int, tuple[Page, Page]] = {}
        self._work = asyncio.Event()
        self._desired_changed = asyncio.Event()
        self._published = asyncio.Event()
        self._disturbed = False
        self._uncertain = False
        self._repairs = _Repairs(repair_backoff or Backoff(1.0, 30.0))
        self._retries = retry_backoff or Backoff(0.2, 60.0)
        self._complaint: tuple[Reason, int] | None = None
        self._last_error = ""

    def __repr__(self) -> str:
        state = "published" if self.is_published else "not published"
        return f"SlicePublisher({self._empty.driver!r}, {self._empty.pool!r}, {state}, g={self._generation})"

    @property
    def generation(self) -> int:
        """Generation of the pool as last written or found; 0 before that."""
        return self._generation

    @property
    def is_published(self) -> bool:
        """Whether the API server holds what is desired, as far as we know."""
        return self._published.is_set()

    @property
    def last_error(self) -> str:
        """What keeps the slices from being published now; empty when nothing does."""
        if self._last_error or self.is_published:
            return self._last_error
        return "waiting for the API server" if not self._listed else "not written yet"

    async def wait_published(self) -> None:
        """Return once the API server holds what is desired now."""
        await self._published.wait()

    def set_desired(self, pages: Sequence[Sequence[Device]]) -> None:
        """Say what to publish: one sequence of devices for each slice, within the API's limits.

        Equal content is no news. Takes effect at once, also while a failed write waits for its retry.

        Raises:
            ValueError: a device name is there twice.
        """
        desired = replace(self._empty, pages=build_pages(pages))
        if desired == self._desired:
            return
        self._desired = desired
        self._published.clear()
        self._desired_changed.set()
        self._work.set()

    async def run(self) -> None:
        """Publish and repair until cancelled. API trouble is logged, counted and tried again."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(), name="slices-watch")
            tasks.create_task(self._publish_forever(), name="slices-publish")

    @property
    def _selector(self) -> str:
        return f"spec.driver={self._empty.driver},spec.nodeName={self._empty.node}"

    async def _follow(self) -> None:
        news = list_and_watch(self._client, paths.RESOURCE_SLICES, field_selector=self._selector)
        async with contextlib.aclosing(news):
            async for item in news:
                if isinstance(item, Snapshot):
                    self._view.reset(item)
                    self._listed = True
                elif not self._view.observe(item):
                    continue
                else:
                    self._disturbed = True
                self._work.set()

    async def _publish_forever(self) -> None:
        while True:
            await self._work.wait()
            if self._disturbed:
                await self._wait_for_desired(self._repairs.next_seconds())
            self._work.clear()
            self._desired_changed.clear()
            self._disturbed = False
            if self._desired is None or not self._listed:
                continue
            try:
                await self._sync(self._desired)
            except DranetError as error:  # a ProtocolError, too: a proxy's error page is an answer of a kind
                self._complain(error)
                self._uncertain = True
                await self._wait_for_desired(self._retries.next_seconds())
                self._work.set()
            else:
                self._end_complaint()

    async def _wait_for_desired(self, seconds: float) -> None:
        """Let time pass, unless something new to publish came since the last look."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._desired_changed.wait()

    async def _sync(self, desired: DesiredPool) -> None:
        """Bring the slices to the desired content, and say so."""
        if self._uncertain:
            await self._relist()
        adopted = replace(desired, pages=tuple(iter_adopted(desired.pages, self._adopted)))
        plan = plan_sync(self._view.get_slices(), adopted)
        if plan.writes:
            self._published.clear()
            await self._carry_out(plan, desired)
        self._generation = plan.generation
        self.last_published = time.time()
        if desired == self._desired:
            self._published.set()

    async def _relist(self) -> None:
        """After a failed write nobody knows whether it took effect: look, before writing again."""
        listed = await self._client.list(paths.RESOURCE_SLICES, field_selector=self._selector)
        version = str(listed.get("metadata", {}).get("resourceVersion", ""))
        kind = {"apiVersion": listed.get("apiVersion", ""), "kind": "ResourceSlice"}
        self._view.reset(Snapshot(tuple({**kind, **item} for item in listed.get("items") or ()), version))
        self._uncertain = False

    async def _carry_out(self, plan: SyncPlan, desired: DesiredPool) -> None:
        # The Node is asked each time that something is created, which is seldom: a Node object that was
        # replaced meanwhile has another uid, and slices of the old one are garbage.
        creates = any(isinstance(write, CreateSlice) for write in plan.writes)
        owner = await self._fetch_owner() if creates else {}
        for write in plan.writes:
            await self._write(write, owner, desired)
        devices = sum(len(page) for page in desired.pages)
        _log.info(
            "published %d devices in %d slices of pool %s, generation %d",
            devices,
            len(desired.pages),
            desired.pool,
            plan.generation,
        )

    async def _fetch_owner(self) -> JsonObject:
        name = self._empty.node
        node = await self._client.get(paths.node(name))
        uid = node["metadata"]["uid"]
        return {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid, "controller": True}

    async def _write(self, write: Write, owner: JsonObject, desired: DesiredPool) -> None:
        match write:
            case DeleteSlice():
                await self._delete(write)
                self.counters.deletes += 1
            case UpdateSlice():
                path = paths.resource_slice(write.name)
                self._take_answer(write, await self._client.replace(path, write.body), desired)
                self.counters.updates += 1
            case CreateSlice():
                metadata = {**write.body["metadata"], "ownerReferences": [owner]}
                body = {**write.body, "metadata": metadata}
                self._take_answer(write, await self._client.create(paths.RESOURCE_SLICES, body), desired)
                self.counters.creates += 1

    async def _delete(self, write: DeleteSlice) -> None:
        path = paths.resource_slice(write.name)
        try:
            await self._client.delete(path, uid=write.uid, resource_version=write.resource_version)
        except ClusterError as error:
            if error.reason is not Reason.API_NOT_FOUND:
                raise
        self._view.note_deleted(write.uid)

    def _take_answer(
        self, write: UpdateSlice | CreateSlice, stored: JsonObject, desired: DesiredPool
    ) -> None:
        """Remember what the server made of a write. An older server drops fields that it does not know;
        its version then counts as the desired one, or we would write for ever."""
        self._view.note_written(stored)
        sent, kept = read_content(write.body), read_content(stored)
        if sent == kept:
            return
        self._adopted[write.index] = (desired.pages[write.index], kept)
        _log.warning(
            "the API server stored slice %d of pool %s differently from what was sent: a field is newer "
            "than the server, or behind a feature gate that is off",
            write.index,
            desired.pool,
        )

    def _complain(self, error: DranetError) -> None:
        """Log a failure once, until it is of another kind or over. The texts of one kind differ from try
        to try, because each create is refused under a name of its own."""
        self.counters.failures[error.reason] += 1
        if self._on_failure is not None:
            self._on_failure(error.reason)
        if error.reason is Reason.API_CONFLICT:
            return  # somebody wrote at the same time: everyday life, the retry settles it
        self._last_error = error.message
        status = error.status if isinstance(error, ClusterError) else 0
        if self._complaint != (kind := (error.reason, status)):
            self._complaint = kind
            _log.warning("publishing slices failed, trying again: %s", error)

    def _end_complaint(self) -> None:
        self._retries.reset()
        self._last_error = ""
        if self._complaint is not None:
            self._complaint = None
            _log.info("publishing slices works again")


class _Repairs:
    """How long to wait before undoing what others did: short at first, longer when they insist (two
    drivers of one name on one node must not write against each other at full speed)."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._last = 0.0

    def next_seconds(self) -> float:
        now = asyncio.get_running_loop().time()
        if now - self._last > _CALM_SECONDS:
            self._backoff.reset()
        self._last = now
        return self._backoff.next_seconds()
