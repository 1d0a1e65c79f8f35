"""Reconcile: after each Synchronize of the runtime, when a connection is back, and every few minutes.

Records against pod sandboxes (``pods``), files against records (:class:`FileReconciler`), and records
without a sandbox against the API server (:class:`OwnerReconciler`). A regular look compares two readings
some seconds apart, because a difference may just be work under way: the runtime calls two instances of the
driver one after the other, and a Prepare commits its record before its files.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress

from msgspec import Struct

from dranet.driver.attachments import Attachments
from dranet.driver.containers import ContainerFiles
from dranet.driver.hooks import RuntimeSnapshot, RuntimeView, SnapshotQueue, lives, placements
from dranet.driver.reconcile.pods import Action, ActionLog, PodReconciler, Why
from dranet.driver.start_gate import StartGate, StartWindows
from dranet.errors import ClaimError, DranetError, Reason, StoreError
from dranet.model.claim import Claim, ClaimRef, PodSandbox
from dranet.model.facts import Link
from dranet.model.plan import PreparedClaim
from dranet.store.claim_store import ClaimStore


class FileReconciler:
    """Files against records. Blocking: for a worker thread."""

    def __init__(
        self,
        boot_id: str,
        store: ClaimStore,
        attachments: Attachments,
        gate: StartGate,
        files: ContainerFiles,
        windows: StartWindows,
        actions: ActionLog,
    ) -> None:
        self._boot_id = boot_id
        self._store = store
        self._attachments = attachments
        self._gate = gate
        self._files = files
        self._windows = windows
        self._actions = actions

    def forget_other_boots(self) -> None:
        """After a reboot no namespace, gate or attach of a record is left; the kubelet prepares again.

        Raises:
            KernelError: another instance holds the node's devices for too long.
            StoreError: the disk refused.
        """
        with self._attachments.locked():
            for record in self._store.get_all():
                if record.boot_id != self._boot_id:
                    for remove in (self._gate.close, self._files.remove):
                        with suppress(StoreError):  # of no record, so the sweep tries it again, and logs it
                            remove(record.claim.uid)
                    self._store.delete(record.claim.uid)
                    self._actions.note(Action.FORGOTTEN, Why.REBOOTED, record)

    def sweep_leftovers(self) -> None:
        """Remove ready files, CDI specs and metadata files that no record owns.

        Another instance may be preparing claims: its records come before its files, so files are listed
        first, and no record comes or goes meanwhile.

        Raises:
            KernelError: that instance holds the node's devices for too long.
            StoreError: the disk refused.
        """
        with self._attachments.locked():
            opened, written = self._gate.list_claims(), self._files.list_claims()
            known = {record.claim.uid for record in self._store.get_all()}
            for claim_uid in opened - known:
                self._gate.close(claim_uid)
                self._actions.note_files("ready file", claim_uid)
            for claim_uid in written - known:
                self._files.remove(claim_uid)
                self._actions.note_files("CDI spec, metadata", claim_uid)

    def shut_gates(self) -> None:
        """Close the gates of claims that several pods may use, unless a container is being started with them.

        Raises:
            StoreError: a ready file cannot be removed.
        """
        with self._attachments.locked():
            for pod_uid in {record.pod.uid for record in self._store.get_all()}:
                self._windows.sweep(pod_uid, self._store.get_by_pod(pod_uid))

    def find_unfinished(self, seen_before: Sequence[PreparedClaim]) -> tuple[PreparedClaim, ...]:
        """The claims without a CDI spec, among those prepared some time ago: a running Prepare writes its
        own."""
        known = {record.claim.uid for record in self._store.get_all()}
        return tuple(
            record for record in seen_before if record.claim.uid in known and self._files.are_missing(record)
        )


log = logging.getLogger(__name__)

_GONE = {
    Reason.CLAIM_NOT_FOUND: Why.CLAIM_DELETED,
    Reason.CLAIM_REPLACED: Why.CLAIM_DELETED,
    Reason.CLAIM_NOT_ALLOCATED: Why.CLAIM_MOVED,
}


class OwnerReconciler:
    """Claims against the API server."""

    def __init__(
        self,
        driver_name: str,
        fetch: Callable[[ClaimRef], Awaitable[Claim]],
        forget: Callable[[ClaimRef], Awaitable[str]],
        actions: ActionLog,
        patience_seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``fetch`` is that of ``cluster.claims``; ``forget`` unprepares, and returns why it could not. The
        API server is asked only after ``patience_seconds`` without a sandbox."""
        self._driver_name = driver_name
        self._fetch = fetch
        self._forget = forget
        self._actions = actions
        self._patience_seconds = patience_seconds
        self._now = now
        self._waiting_since: dict[str, float] = {}
        """By claim UID, as of the look that first found it without a sandbox."""
        self._doubted: set[str] = set()

    def doubt(self, claim_uid: str) -> None:
        """Ask about this claim at the next look, however short it has been without a sandbox.

        The scheduler allocated one of its devices to another claim, so it has probably lost them. A kubelet
        that has lost its checkpoint never asks to unprepare it.
        """
        self._doubted.add(claim_uid)

    async def reconcile(self, records: Iterable[PreparedClaim], living_pods: Collection[str]) -> None:
        """Look at each claim that has been without a sandbox for long. ``living_pods`` are the UIDs of pods
        that have one."""
        idle = {r.claim.uid: r for r in records if not r.netns_path and r.pod.uid not in living_pods}
        now = self._now()
        self._waiting_since = {uid: self._waiting_since.get(uid, now) for uid in idle}
        doubted, self._doubted = self._doubted, set()
        for claim_uid, since in self._waiting_since.items():
            if now - since >= self._patience_seconds or claim_uid in doubted:
                await self._look(idle[claim_uid])

    async def _look(self, record: PreparedClaim) -> None:
        try:
            why = await self._find_why_unowned(record)
        except DranetError as error:
            log.debug("cannot ask who owns claim %s: %s", record.claim, error)
            return
        if why is None:
            return
        failure = await self._forget(record.claim)
        if failure:
            self._actions.note_failure(why, record, failure)
        else:
            self._actions.note(Action.FORGOTTEN, why, record)

    async def _find_why_unowned(self, record: PreparedClaim) -> Why | None:
        """``None`` where the claim has the devices still.

        Raises:
            ClusterError: no answer, or a refusal: the owner is unknown.
        """
        try:
            claim = await self._fetch(record.claim)
        except ClaimError as error:
            if error.reason not in _GONE:
                raise
            return _GONE[error.reason]
        allocated = {(r.pool, r.device, r.share_id) for r in claim.results if r.driver == self._driver_name}
        prepared = {(device.pool, device.device.name, device.share_id) for device in record.devices}
        return None if prepared <= allocated else Why.CLAIM_MOVED


SETTLE_PATIENCES = 1.5
"""How long to wait between the two readings, in units of what the runtime waits for one plugin."""
_JITTER = 0.1
"""Nodes that started together do not ask the API server together."""


class Reconcilers(Struct, frozen=True):
    """What each look goes through."""

    pods: PodReconciler
    files: FileReconciler
    owners: OwnerReconciler


class ReconcileLoop:
    """Runs the reconcilers, one at a time."""

    def __init__(
        self,
        store: ClaimStore,
        view: RuntimeView,
        snapshots: SnapshotQueue,
        reconcilers: Reconcilers,
        actions: ActionLog,
        finish: Callable[[PreparedClaim], Awaitable[bool]],
        seconds: float,
    ) -> None:
        """
        Args:
            finish: writes the missing files of a claim again; returns whether any were missing.
            seconds: between two regular looks.
        """
        self._store = store
        self._view = view
        self._snapshots = snapshots
        self._pods = reconcilers.pods
        self._files = reconcilers.files
        self._owners = reconcilers.owners
        self._actions = actions
        self._finish = finish
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._asked = asyncio.Event()
        self._working = asyncio.Lock()
        self._complaint = ""
        self._returned: frozenset[str] = frozenset()
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
        """The node's links were read; called on the event loop. A device that cannot be
        restored is no reason to look after each scan: the attempt changes links, which leads to a scan."""
        before, self._returned = self._returned, self._pods.find_returned(links, self._returned)
        if self._returned - before:
            self.ask("a device returned by itself")

    async def run(self) -> None:
        """Reconcile after each Synchronize, until cancelled; each instance has its own connection."""
        while True:
            snapshot = await self._snapshots.get()
            async with self._working:
                await asyncio.to_thread(self._pods.reconcile, snapshot)
            self._asked.set()  # what only a regular look may judge

    async def run_regularly(self) -> None:
        """Reconcile every few minutes and when asked, until cancelled; one instance for all."""
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
            self._actions.note_look(has_failed, self._loop.time() - begin)

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
            records = self._store.get_all()  # before the pods: an attach is noted in the view first
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
