"""Compares the store's intent with runtime, kernel and API server, and repairs what differs.

After each Synchronize of the runtime, when a connection is back, and every few minutes: records against pod
sandboxes (:class:`PodReconciler`), files against records (:class:`FileReconciler`), and records without a
sandbox against the API server (:class:`OwnerReconciler`). A regular look compares two readings some seconds
apart, because a difference may just be work under way: the runtime calls two instances of the driver one
after the other, and a Prepare commits its record before its files.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum

from msgspec import Struct

from dranet.driver.attachments import Attachments, AttachReport
from dranet.driver.containers import ContainerFiles
from dranet.driver.hooks import RuntimeSnapshot, RuntimeView, SnapshotQueue, lives, placements
from dranet.driver.metadata import DeviceMetadata
from dranet.driver.reports.announcer import Announcer
from dranet.driver.start_gate import StartGate, StartWindows
from dranet.errors import ClaimError, DeviceError, DranetError, Reason, StoreError
from dranet.model.claim import Claim, ClaimRef, PodSandbox
from dranet.model.facts import Link
from dranet.model.plan import PreparedClaim
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics

log = logging.getLogger(__name__)


class Action(StrEnum):
    """What was done; the ``action`` label of the metric."""

    ADOPTED = "adopted"
    ATTACHED = "attached"
    RELEASED = "released"
    FINISHED = "finished"
    """What a Prepare had begun: the files that containers mount."""
    FORGOTTEN = "forgotten"
    """Released and deleted, as by an Unprepare."""
    REMOVED = "removed"
    """Files that no record owns."""
    FAILED = "failed"
    """Tried again at the next occasion."""


class Why(StrEnum):
    """What was found; the ``reason`` label of the metric."""

    POD_RUNS = "pod-runs"
    HOOK_MISSED = "hook-missed"
    DEVICE_MISSING = "device-missing"
    SANDBOX_GONE = "sandbox-gone"
    NAMESPACE_GONE = "namespace-gone"
    """The runtime has not reported its end, or is away."""
    CAME_BACK = "came-back"
    """On the host, as the kernel returns a link from a dead namespace, and in no pod by its record."""
    FILES_MISSING = "files-missing"
    REBOOTED = "rebooted"
    CLAIM_DELETED = "claim-deleted"
    CLAIM_MOVED = "claim-moved"
    """Deallocated, or given other devices."""
    NO_RECORD = "no-record"


_WORDS = {
    Why.POD_RUNS: "its pod runs",
    Why.HOOK_MISSED: "its pod runs, and was started without us",
    Why.DEVICE_MISSING: "its pod runs, and lacks a device",
    Why.SANDBOX_GONE: "its pod sandbox is gone",
    Why.NAMESPACE_GONE: "the network namespace of its pod is gone",
    Why.CAME_BACK: "its device is on the host, and not as it was",
    Why.FILES_MISSING: "files that its containers mount are missing",
    Why.REBOOTED: "prepared before the last reboot",
    Why.CLAIM_DELETED: "the API server has no such claim, and no pod sandbox has its devices",
    Why.CLAIM_MOVED: "the claim is not allocated these devices any more, and no pod sandbox has them",
    Why.NO_RECORD: "no claim is prepared that they belong to",
}


class ActionLog:
    def __init__(
        self, metrics: Metrics, on_action: Callable[[str, str, str, str], None] = lambda *_: None
    ) -> None:
        """``on_action`` is called with kind of Event, word, what it regards, and a sentence."""
        self.metrics = metrics.reconcile
        self._failures: dict[str, str] = {}
        """By claim UID, as last logged: a repeated failure is counted and not logged again."""
        self._on_action = on_action

    def note(self, action: Action, why: Why, record: PreparedClaim) -> None:
        self._failures.pop(record.claim.uid, None)
        self.metrics.actions.labels(action, why).inc()
        context = {"claim": record.claim, "pod": record.pod}
        log.info("%s: %s", action, _WORDS[why], extra={"context": context})
        self._on_action("Normal", f"Reconciled: {action}", f"claim {record.claim}", _WORDS[why])

    def note_files(self, kind: str, claim_uid: str) -> None:
        self.metrics.actions.labels(Action.REMOVED, Why.NO_RECORD).inc()
        context = {"claim_uid": claim_uid, "files": kind}
        log.info("%s: %s", Action.REMOVED, _WORDS[Why.NO_RECORD], extra={"context": context})

    def note_failure(self, why: Why, record: PreparedClaim, error: Exception | str) -> bool:
        """Whether the failure is news."""
        self.metrics.actions.labels(Action.FAILED, why).inc()
        is_news = self._failures.get(record.claim.uid) != str(error)
        self._failures[record.claim.uid] = str(error)
        if is_news:
            context = {"claim": record.claim, "pod": record.pod}
            log.warning("%s: %s: %s", Action.FAILED, _WORDS[why], error, extra={"context": context})
            about = f"claim {record.claim}"
            self._on_action("Warning", f"Reconciled: {Action.FAILED}", about, f"{_WORDS[why]}: {error}")
        return is_news

    def keep_only(self, claim_uids: set[str]) -> None:
        self._failures = {uid: text for uid, text in self._failures.items() if uid in claim_uids}


ATTACH_TIMEOUT_SECONDS = 30.0
"""No runtime waits for reconcile, so it may wait for a hook."""
UNKNOWN_SECONDS = 120.0
"""Between the start of a sandbox and its first container an image may have to come."""


class PodReconciler:
    """Brings store, runtime and kernel into one of the legal states. Blocking: for a worker thread."""

    def __init__(
        self,
        store: ClaimStore,
        attachments: Attachments,
        metadata: DeviceMetadata,
        announcer: Announcer,
        actions: ActionLog,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._attachments = attachments
        self._metadata = metadata
        self._announcer = announcer
        self._actions = actions
        self._now = now
        self._unknown: dict[str, tuple[str, float]] = {}
        """By claim: a sandbox that no regular look has found since then, and of which the namespace lives."""

    def reconcile(self, snapshot: RuntimeSnapshot) -> None:
        """One pod's failure never stops the others, nor does a bug of ours: after a restart it would meet the
        same pod. Does nothing where the records are a newer driver's by now: that one does."""
        if self._store.is_newer:
            return
        uids = {record.claim.uid for record in snapshot.records}
        self._actions.keep_only(uids)
        self._unknown = {uid: seen for uid, seen in self._unknown.items() if uid in uids}
        for records in _by_pod(snapshot.records):
            try:
                self._reconcile_pod(records, snapshot)
            except Exception:
                log.exception("bug in reconcile", extra={"context": {"pod": records[0].pod}})

    def _reconcile_pod(self, records: Sequence[PreparedClaim], snapshot: RuntimeSnapshot) -> None:
        pod = _find_living(records, snapshot.pods or ())
        if pod is None:
            self._release_all(records, snapshot)
            return
        for record in records:
            self._unknown.pop(record.claim.uid, None)
        if snapshot.known_before is None or pod.id in snapshot.known_before:
            self._ensure_attached(pod, records, is_news=snapshot.is_news)

    def find_returned(self, links: Iterable[Link], known: Collection[str] = ()) -> frozenset[str]:
        """Sandboxes whose devices are in a pod by the records, while one of the node's ``links`` is of such a
        device and the pod's namespace is gone: its end was not reported yet. For those that were ``known``
        before the kernel is not asked again."""
        seen = {link.pci_address for link in links if link.pci_address}
        return frozenset(
            record.sandbox_id
            for record in self._store.get_all()
            if record.netns_path
            and any(
                prepared.device.pci_address in seen
                for prepared in record.devices
                if prepared.plan is not None and prepared.plan.host is not None
            )
            and (record.sandbox_id in known or self._has_lost_namespace(record))
        )

    def _has_lost_namespace(self, record: PreparedClaim) -> bool:
        try:
            return self._attachments.is_namespace_gone(record)
        except DranetError:
            return False  # unknown; the regular look logs it if it lasts

    # --- pods that run -----------------------------------------------------------------------------------

    def _ensure_attached(self, pod: PodSandbox, records: Sequence[PreparedClaim], *, is_news: bool) -> None:
        why = Why.POD_RUNS if _are_placed(records, pod) else Why.HOOK_MISSED
        try:
            deadline = time.monotonic() + ATTACH_TIMEOUT_SECONDS
            if not is_news and why is Why.POD_RUNS:
                if not self._attachments.find_absent(pod, deadline=deadline):
                    return
                why = Why.DEVICE_MISSING
                if lost := self._attachments.shut_if_lost(pod, deadline=deadline):
                    of = f"pod {pod.namespace}/{pod.name}"
                    raise DeviceError(f"{', '.join(lost)}: neither in {of} nor on the node")
            report = self._attachments.attach_pod(pod, deadline=deadline, expected=records)
        except DranetError as error:
            self._report_failure(pod, records, why, error)
        else:
            if report is not None:
                self._report_attached(pod, records, why, report)

    def _report_failure(
        self, pod: PodSandbox, records: Sequence[PreparedClaim], why: Why, error: DranetError
    ) -> None:
        if error.reason is Reason.STORE_NEWER:
            return  # since we looked: the newer driver does it
        news = [self._actions.note_failure(why, record, error) for record in records]
        # What becomes of a pod whose lease has ended is reported by ``Leases``.
        if any(news) and (error.reason is not Reason.DHCP_LEASE_EXPIRED or not _are_placed(records, pod)):
            self._announcer.attach_failed(records, error)

    def _report_attached(
        self, pod: PodSandbox, records: Sequence[PreparedClaim], why: Why, report: AttachReport
    ) -> None:
        if report.is_news and why is Why.POD_RUNS:
            why = Why.DEVICE_MISSING
        for record in records:
            self._actions.note(Action.ATTACHED if report.is_news else Action.ADOPTED, why, record)
        self._announcer.attached(records, self._metadata.attached(records, report.links, pod.netns_path))

    # --- pods that do not --------------------------------------------------------------------------------

    def _release_all(self, records: Sequence[PreparedClaim], snapshot: RuntimeSnapshot) -> None:
        for record in records:
            if snapshot.placed_before.get(record.claim.uid) == record.sandbox_id:
                why = self._find_why(record, snapshot)
                if why is not None and not self._release(record, why):
                    return

    def _find_why(self, record: PreparedClaim, snapshot: RuntimeSnapshot) -> Why | None:
        """Why a record without a living sandbox is to be released; ``None``: it is not, or not yet."""
        try:
            if not record.sandbox_id:
                return Why.CAME_BACK if self._attachments.has_come_back(record) else None
            if self._attachments.is_namespace_gone(record):
                return Why.NAMESPACE_GONE
        except DranetError as error:
            self._actions.note_failure(Why.NAMESPACE_GONE, record, error)
            return None
        return Why.SANDBOX_GONE if self._is_unknown_for_long(record, snapshot) else None

    def _is_unknown_for_long(self, record: PreparedClaim, snapshot: RuntimeSnapshot) -> bool:
        """Whether no regular look has found the sandbox for :data:`UNKNOWN_SECONDS`, although its namespace
        lives. One that starts while a plugin connects may be in no list and no event (containerd before
        1.7.26 and 2.0.3, CRI-O), until its first container is created; another instance may have attached
        it."""
        if snapshot.pods is None or snapshot.is_news:
            return False
        now = self._now()
        sandbox_id, since = self._unknown.get(record.claim.uid, ("", now))
        if sandbox_id != record.sandbox_id:
            since = now
        self._unknown[record.claim.uid] = record.sandbox_id, since
        return now - since >= UNKNOWN_SECONDS

    def _release(self, record: PreparedClaim, why: Why) -> bool:
        """Whether to go on with others."""
        try:
            report = self._attachments.release_claim(record.claim.uid, expected=record)
        except DranetError as error:
            if error.reason is Reason.STORE_NEWER:
                return False
            if self._actions.note_failure(why, record, error):
                self._announcer.release_failed(record.claim, error, record.devices)
            return True
        if report is not None:
            self._metadata.released(record.claim.uid)
            self._actions.note(Action.RELEASED, why, record)
            self._announcer.released(report)
        return True


def _by_pod(records: Iterable[PreparedClaim]) -> Iterable[Sequence[PreparedClaim]]:
    """Those with devices that move, in a fixed order within a pod."""
    found: dict[str, list[PreparedClaim]] = {}
    for record in sorted(records, key=lambda record: (record.claim.name, record.claim.uid)):
        if record.plans:
            found.setdefault(record.pod.uid, []).append(record)
    return found.values()


def _find_living(records: Sequence[PreparedClaim], pods: Iterable[PodSandbox]) -> PodSandbox | None:
    """The pod's sandbox; of several one that has not been stopped, and has the devices, or is the last."""
    mine = [pod for pod in pods if pod.uid == records[0].pod.uid and lives(pod)]
    placed = {record.sandbox_id for record in records}
    return max(mine, key=lambda pod: (pod.running, pod.id in placed, mine.index(pod)), default=None)


def _are_placed(records: Sequence[PreparedClaim], pod: PodSandbox) -> bool:
    return all(record.sandbox_id == pod.id for record in records)


class FileReconciler:
    """Blocking: for a worker thread."""

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
        Raises StoreError: a ready file cannot be removed."""
        with self._attachments.locked():
            for pod_uid in {record.pod.uid for record in self._store.get_all()}:
                self._windows.sweep(pod_uid, self._store.get_by_pod(pod_uid))

    def find_unfinished(self, seen_before: Sequence[PreparedClaim]) -> tuple[PreparedClaim, ...]:
        """Return claims without a CDI spec among those prepared some time ago: a running Prepare writes its
        own."""
        known = {record.claim.uid for record in self._store.get_all()}
        return tuple(r for r in seen_before if r.claim.uid in known and self._files.are_missing(r))


_GONE = {
    Reason.CLAIM_NOT_FOUND: Why.CLAIM_DELETED,
    Reason.CLAIM_REPLACED: Why.CLAIM_DELETED,
    Reason.CLAIM_NOT_ALLOCATED: Why.CLAIM_MOVED,
}


class OwnerReconciler:
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
        """``living_pods`` are the UIDs of pods that have a sandbox."""
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
        if failure := await self._forget(record.claim):
            self._actions.note_failure(why, record, failure)
        else:
            self._actions.note(Action.FORGOTTEN, why, record)

    async def _find_why_unowned(self, record: PreparedClaim) -> Why | None:
        """``None`` where the claim has the devices still. Raises ClusterError: the owner is unknown."""
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
    pods: PodReconciler
    files: FileReconciler
    owners: OwnerReconciler
    look_at_addresses: Callable[[], Awaitable[None]]
    """Checks those of IPAM plugins, and releases those of no claim."""


class ReconcileLoop:
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
        """``finish`` writes the missing files of a claim again, and returns whether any were missing;
        ``seconds`` pass between two regular looks."""
        self._store = store
        self._view = view
        self._snapshots = snapshots
        self._pods = reconcilers.pods
        self._files = reconcilers.files
        self._owners = reconcilers.owners
        self._actions = actions
        self._finish = finish
        self._look_at_addresses = reconcilers.look_at_addresses
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
            with suppress(TimeoutError):
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
            self._actions.metrics.looked(has_failed, self._loop.time() - begin)

    async def look(self) -> None:
        """One regular look at everything. What fails keeps nothing else from being looked at.

        Raises:
            DranetError: the disk refused, or another instance holds the node's devices or a claim for too
                long; what was not looked at is looked at the next time. The first error of several.
        """
        await asyncio.to_thread(self._store.flush_pending)
        before = self._store.get_all()
        known = frozenset(pod.id for pod in self._view.read() or ())
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
                    if await self._finish(record):
                        self._actions.note(Action.FINISHED, Why.FILES_MISSING, record)
        if pods is not None:
            living = {pod.uid for pod in pods if lives(pod)}
            await self._owners.reconcile(self._store.get_all(), living)
        with _collect(failures):
            await self._look_at_addresses()
        if failures:
            raise failures[0]


@contextmanager
def _collect(failures: list[DranetError]) -> Iterator[None]:
    try:
        yield
    except DranetError as error:
        failures.append(error)
