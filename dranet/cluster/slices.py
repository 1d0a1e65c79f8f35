"""Keep this node's ResourceSlices of this driver equal to what the driver wants to offer.

The decision is pure (:mod:`dranet.cluster.slice_plan`); here is the loop around it: look, decide, write,
and repair what others did to our slices (the kubelet wipes them when the driver was away for long, the
garbage collector when the Node object was replaced). What the server does not keep is left out
(:mod:`dranet.cluster.capabilities`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from dranet.cluster import paths
from dranet.cluster.backoff import Backoff
from dranet.cluster.capabilities import (
    ApiCapabilities,
    CapabilityFollower,
    MissingCapabilities,
    ask_capabilities,
)
from dranet.cluster.client import ApiClient
from dranet.cluster.slice_plan import DesiredPool, build_pages
from dranet.cluster.slice_sync import SliceSync, SyncListeners, find_wanted
from dranet.cluster.watch import SPREAD_SECONDS, Snapshot, list_and_watch
from dranet.errors import ClusterError, DranetError, Reason
from dranet.model.device import Device, Taint

_log = logging.getLogger(__name__)

_CALM_SECONDS = 120.0
"""Others left our slices alone for this long: the next repair is quick again."""

_NODE_SECONDS = 5.0
"""Seconds between look-ups of a Node object that does not exist yet."""

_NODE_TRIES = 60
"""For so many times, which is some minutes: it may never come, where the node's name is a wrong one."""

_REWATCH_SECONDS = (1.0, 30.0)
"""First and longest wait before a broken watch is tried again."""

_PATIENCE_SECONDS = 2.0
"""How long the first publication waits to learn which optional fields the server keeps. After that it goes
out without them, and they follow."""


class PublishCounters(Struct):
    """What the publisher did since it was made: accepted writes by verb, ``failures`` by reason."""

    writes: Counter[str] = field(default_factory=Counter)
    failures: Counter[Reason] = field(default_factory=Counter)


def _ignore(_: object) -> None:
    """Ignore it."""


class PublishListeners(Struct, frozen=True):
    """Callbacks of the publisher."""

    failed: Callable[[Reason], None] = _ignore
    """A call to the API server failed."""
    wrote: Callable[[str], None] = _ignore
    """The API server accepted a write: ``create``, ``update`` or ``delete``."""
    missing: Callable[[frozenset[str]], None] = _ignore
    """The feature gates whose fields we want to publish and the server does not keep have changed."""


class PublishTiming(Struct):
    """How long the publisher waits, and for what; for one publisher."""

    repairs: Backoff = field(default_factory=lambda: Backoff(1.0, 30.0))
    """Between repairs of slices that another client changes again and again."""
    retries: Backoff = field(default_factory=lambda: Backoff(0.2, 60.0))
    """Between attempts after an error of the API server."""
    patience_seconds: float = _PATIENCE_SECONDS
    spread_seconds: float = SPREAD_SECONDS
    """Within this time the nodes of a cluster list slices again after a watch has ended."""


class SlicePublisher:
    """Publishes one pool of one node. ``pool`` is the node's name unless another is given.

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
        pool: str = "",
        listeners: PublishListeners | None = None,
        timing: PublishTiming | None = None,
    ) -> None:
        timing = timing or PublishTiming()
        self.counters = PublishCounters()
        self.last_published = 0.0
        """When the API server last accepted a write, or proved to hold what is desired; unix seconds."""
        self._listeners = listeners or PublishListeners()
        self._client = client
        self._empty = DesiredPool(driver, node, pool or node, ((),))
        self._desired: DesiredPool | None = None
        self._patience_seconds = timing.patience_seconds
        self._spread_seconds = timing.spread_seconds
        self._follower = CapabilityFollower(
            partial(ask_capabilities, client, driver, node), self._capabilities_changed
        )
        self._missing = MissingCapabilities(self._listeners.missing)
        self._work = asyncio.Event()
        self._desired_changed = asyncio.Event()
        self._published = asyncio.Event()
        self._repairs = _Repairs(timing.repairs)
        self._retries = timing.retries
        self._running = False
        self._sync = self._begin()

    def _begin(self) -> SliceSync:
        """What was true in an earlier run need not be true in the next."""
        self._published.clear()
        self._asked = False
        self._disturbed = False
        self._complaint: tuple[Reason, int] | None = None
        self._absences = 0
        self._last_error = ""
        listeners = SyncListeners(begins=self._published.clear, wrote=self._count_write)
        return SliceSync(self._client, self._empty.node, self._selector, self._follower, listeners)

    def __repr__(self) -> str:
        state = "published" if self.is_published else "not published"
        return f"SlicePublisher({self._empty.driver!r}, {self._empty.pool!r}, {state}, g={self.generation})"

    @property
    def generation(self) -> int:
        """Generation of the pool as last written or found in this run; 0 before that."""
        return self._sync.generation

    @property
    def is_published(self) -> bool:
        """Whether the API server holds what is desired, as far as we know. Never while :meth:`run` does
        not run."""
        return self._published.is_set()

    @property
    def is_listed(self) -> bool:
        """Whether the API server has listed the slices in this run."""
        return self._running and self._sync.is_listed

    @property
    def features(self) -> ApiCapabilities | None:
        """Which optional fields the API server keeps; ``None`` before it has answered."""
        return self._follower.features

    @property
    def last_error(self) -> str:
        """What keeps the slices from being published now; empty when nothing does."""
        if self._last_error or self.is_published:
            return self._last_error
        if not self._running:
            return "not publishing"
        return "not written yet" if self._sync.is_listed else "waiting for the API server"

    async def wait_published(self) -> None:
        """Return once the API server holds what is desired now."""
        await self._published.wait()

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
        self._published.clear()
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
            self._published.clear()

    @property
    def _selector(self) -> str:
        return f"spec.driver={self._empty.driver},spec.nodeName={self._empty.node}"

    async def _follow(self) -> None:
        news = list_and_watch(
            self._client,
            paths.RESOURCE_SLICES,
            field_selector=self._selector,
            backoff=Backoff(*_REWATCH_SECONDS),
            spread_seconds=self._spread_seconds,
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
        self._sync.doubt_owner()

    async def _publish_forever(self) -> None:
        while True:
            await self._work.wait()
            if self._disturbed:
                await self._wait_for_desired(self._repairs.next_seconds())
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

    def _retry_seconds(self, error: DranetError) -> float:
        seconds = self._retries.next_seconds()
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
            await self._follower.wait_known(self._patience_seconds)
        if self.features is not None:
            self._missing.update(find_wanted(desired), self.features)
        await self._sync.sync(desired)
        self.last_published = time.time()
        if desired == self._desired:
            self._published.set()
        await self._sync.check_owner(desired)

    def _capabilities_changed(self) -> None:
        self._sync.forgive()
        self._work.set()

    def _count_write(self, verb: str) -> None:
        self.counters.writes[verb] += 1
        self._listeners.wrote(verb)

    def _complain(self, error: DranetError) -> None:
        """Log a failure once, until it is of another kind or over. The texts of one kind differ from try
        to try, because each create is refused under a name of its own."""
        self.counters.failures[error.reason] += 1
        self._listeners.failed(error.reason)
        if error.reason is Reason.API_CONFLICT:
            return  # another writer was faster, which is normal: the retry settles it
        self._last_error = error.message
        status = error.status if isinstance(error, ClusterError) else 0
        if self._complaint != (kind := (error.reason, status)):
            self._complaint = kind
            _log.warning("publishing slices failed, trying again: %s", error)

    def _end_complaint(self) -> None:
        self._retries.reset()
        self._absences = 0
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
        now = _now()
        if now - self._last > _CALM_SECONDS:
            self._backoff.reset()
        self._last = now
        return self._backoff.next_seconds()


def _now() -> float:
    return asyncio.get_running_loop().time()
