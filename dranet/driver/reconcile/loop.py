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
from collections.abc import Awaitable, Callable, Iterable

from dranet.driver.reconcile.actions import Action, ActionLog, Why
from dranet.driver.reconcile.files import FileReconciler
from dranet.driver.reconcile.owners import OwnerReconciler
from dranet.driver.reconcile.pods import PodReconciler
from dranet.driver.reconcile.runtime_view import RuntimeSnapshot, RuntimeView, lives, placements
from dranet.driver.reconcile.snapshots import SnapshotQueue
from dranet.errors import DranetError
from dranet.model.facts import Link
from dranet.model.plan import PreparedClaim
from dranet.store import ClaimStore

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
    ) -> None:
        """``finish`` writes the missing files of a claim again, and says whether it did; ``seconds`` are
        between two regular looks."""
        self._store = store
        self._view = view
        self._snapshots = snapshots
        self._pods = pods
        self._files = files
        self._owners = owners
        self._actions = actions
        self._finish = finish
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._asked = asyncio.Event()
        self._working = asyncio.Lock()
        self._complaint = ""

    def ask(self, why: str) -> None:
        """Something was lost and is back, or has moved by itself: look soon. Callable from any thread."""
        log.debug("reconcile soon: %s", why)
        self._loop.call_soon_threadsafe(self._asked.set)

    def scanned(self, links: Iterable[Link]) -> None:
        """The node's links were read; called on the event loop."""
        if self._pods.has_come_home(links):
            self.ask("a device came home by itself")

    async def run(self) -> None:
        """After each Synchronize, for ever; each instance for itself, because each has its own connection."""
        while True:
            snapshot = await self._snapshots.get()
            async with self._working:
                await asyncio.to_thread(self._pods.reconcile, snapshot)

    async def run_regularly(self) -> None:
        """Every few minutes and when asked for, for ever; one instance for all."""
        chance = random.SystemRandom()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds * chance.uniform(1 - _JITTER, 1 + _JITTER)):
                    await self._asked.wait()
            self._asked.clear()
            try:
                await self.look()
                self._complaint = ""
            except DranetError as error:
                if str(error) != self._complaint:
                    log.warning("reconcile: %s; tried again in %g s at the latest", error, self._seconds)
                self._complaint = str(error)

    async def look(self) -> None:
        """One regular look at everything.

        Raises:
            DranetError: the disk refused, or another instance holds the node's devices for too long; what was
                not looked at is looked at the next time.
        """
        await asyncio.to_thread(self._store.flush_pending)
        before = self._store.get_all()
        await asyncio.sleep(self._view.patience_seconds * SETTLE_PATIENCES)
        async with self._working:
            records = self._store.get_all()  # before the pods: who attaches one has told the view before
            pods = self._view.read()
            snapshot = RuntimeSnapshot(pods, records, placements(before), is_news=False)
            await asyncio.to_thread(self._pods.reconcile, snapshot)
            await asyncio.to_thread(self._files.sweep_leftovers)
            await asyncio.to_thread(self._files.shut_gates)
            for record in await asyncio.to_thread(self._files.find_unfinished, before):
                if await self._finish(record):
                    self._actions.note(Action.FINISHED, Why.FILES_MISSING, record)
        if pods is not None:
            living = {pod.uid for pod in pods if lives(pod)}
            await self._owners.reconcile(self._store.get_all(), living)
