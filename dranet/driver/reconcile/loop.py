"""When to reconcile: after each Synchronize of the runtime, when something was lost and is back, and every
few minutes as a net under all that nobody tells of.

The regular look compares two readings some seconds apart, because what differs may just be under way: the
runtime calls two instances of the driver one after the other, and a Prepare commits its record before its
files.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator

from dranet.driver.reconcile.actions import Action, ActionLog, Why
from dranet.driver.reconcile.files import FileReconciler
from dranet.driver.reconcile.owners import OwnerReconciler
from dranet.driver.reconcile.pods import PodReconciler
from dranet.driver.reconcile.runtime_view import RuntimeSnapshot, RuntimeView, lives, placements
from dranet.driver.reconcile.snapshots import SnapshotQueue
from dranet.errors import DranetError
from dranet.model.facts import Link
from dranet.model.plan import PreparedClaim
from dranet.model.sandbox import PodSandbox
from dranet.store.claim_store import ClaimStore

log = logging.getLogger(__name__)

SETTLE_PATIENCES = 1.5
"""How long to wait between the two readings, in units of what the runtime waits for one plugin."""
_JITTER = 0.1
"""Nodes that started together do not ask the API server together."""


class ReconcileLoop:
    """Runs the reconcilers, one at a time."""

    def __init__(
        self,
        store: ClaimStore,
        view: RuntimeView,
        snapshots: SnapshotQueue,
        pods: PodReconciler,
        files: FileReconciler,
        owners: OwnerReconciler,
        actions: ActionLog,
        finish: Callable[[PreparedClaim], Awaitable[bool]],
        seconds: float,
        on_look: Callable[[bool, float], None] = lambda _has_failed, _seconds: None,
    ) -> None:
        """``finish`` writes the missing files of a claim again, and says whether it did; ``seconds`` are
        between two regular looks. ``on_look`` is told of each, whether it has failed and how long it took."""
        self._store = store
        self._view = view
        self._snapshots = snapshots
        self._pods = pods
        self._files = files
        self._owners = owners
        self._actions = actions
        self._finish = finish
        self._seconds = seconds
        self._on_look = on_look
        self._loop = asyncio.get_running_loop()
        self._asked = asyncio.Event()
        self._working = asyncio.Lock()
        self._complaint = ""
        self._come_home: frozenset[str] = frozenset()
        """Sandboxes whose devices were on the host at the last scan."""

    def ask(self, why: str) -> None:
        """Something was lost and is back, or has moved by itself: look soon. Callable from any thread."""
        log.debug("reconcile soon: %s", why)
        self._loop.call_soon_threadsafe(self._asked.set)

    def doubt(self, claim_uid: str) -> None:
        """Look soon whether this claim still has the devices that it holds here."""
        self._owners.doubt(claim_uid)
        self.ask(f"claim {claim_uid} holds a device that another claim was allocated")

    def scanned(self, links: Iterable[Link]) -> None:
        """The node's links were read; called on the event loop. What cannot be given back is no reason to
        look after each scan: to try changes links, which leads to the next scan."""
        before, self._come_home = self._come_home, self._pods.find_come_home(links, self._come_home)
        if self._come_home - before:
            self.ask("a device came home by itself")

    async def run(self) -> None:
        """After each Synchronize, for ever; each instance for itself, because each has its own connection."""
        while True:
            snapshot = await self._snapshots.get()
            async with self._working:
                await asyncio.to_thread(self._pods.reconcile, snapshot)
            self._asked.set()  # what only a regular look may judge

    async def run_regularly(self) -> None:
        """Every few minutes and when asked for, for ever; one instance for all."""
        chance = random.SystemRandom()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds * chance.uniform(1 - _JITTER, 1 + _JITTER)):
                    await self._asked.wait()
            self._asked.clear()
            begin, has_failed = self._loop.time(), True
            try:
                await self.look()
                self._complaint, has_failed = "", False
            except DranetError as error:
                if str(error) != self._complaint:
                    log.warning("reconcile: %s; tried again in %g s at the latest", error, self._seconds)
                self._complaint = str(error)
            except Exception:  # pods can do without us for a while, but not without the driver
                log.exception("bug in reconcile")
            self._on_look(has_failed, self._loop.time() - begin)

    async def look(self) -> None:
        """One regular look at everything. What fails keeps nothing else from being looked at.

        Raises:
            DranetError: the disk refused, or another instance holds the node's devices or a claim for too
                long; what was not looked at is looked at the next time. The first error of several.
        """
        await asyncio.to_thread(self._store.flush_pending)
        before, known = self._store.get_all(), _ids(self._view.read())
        await asyncio.sleep(self._view.patience_seconds * SETTLE_PATIENCES)
        failures: list[DranetError] = []
        async with self._working:
            records = self._store.get_all()  # before the pods: who attaches one has told the view before
            pods = self._view.read()
            snapshot = RuntimeSnapshot(pods, records, placements(before), is_news=False, known_before=known)
            await asyncio.to_thread(self._pods.reconcile, snapshot)
            files = self._files
            for work in (files.forget_other_boots, files.sweep_leftovers, files.shut_gates):
                with _collect(failures):
                    await asyncio.to_thread(work)
            for record in await asyncio.to_thread(self._files.find_unfinished, before):
                with _collect(failures):
                    await self._finish_one(record)
        if pods is not None:
            living = {pod.uid for pod in pods if lives(pod)}
            await self._owners.reconcile(self._store.get_all(), living)
        if failures:
            raise failures[0]

    async def _finish_one(self, record: PreparedClaim) -> None:
        if await self._finish(record):
            self._actions.note(Action.FINISHED, Why.FILES_MISSING, record)


def _ids(pods: Iterable[PodSandbox] | None) -> frozenset[str]:
    return frozenset(pod.id for pod in pods or ())


@contextlib.contextmanager
def _collect(failures: list[DranetError]) -> Iterator[None]:
    """Keep what is raised for later."""
    try:
        yield
    except DranetError as error:
        failures.append(error)
