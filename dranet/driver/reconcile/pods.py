"""Reconcile records with pod sandboxes, and note each action: one line in the log and one count.

For each record of a living sandbox it adopts (already attached) or attaches (the hook was missed, a device
was taken away); for the others it releases (the sandbox ended without an event). Works from a snapshot; a
record that a hook has changed since is left alone, because the hook knew better.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import StrEnum

from dranet.driver.attachments import Attachments, AttachReport
from dranet.driver.hooks import RuntimeSnapshot, lives
from dranet.driver.metadata import DeviceMetadata
from dranet.driver.reports.announcer import Announcer
from dranet.errors import DeviceError, DranetError, Reason
from dranet.model.claim import PodSandbox
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
    """Its devices are in it."""
    HOOK_MISSED = "hook-missed"
    """Its sandbox was started without us."""
    DEVICE_MISSING = "device-missing"
    """A device was taken out of the pod."""
    SANDBOX_GONE = "sandbox-gone"
    """The runtime does not have it any more."""
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


ActionListener = Callable[[str, str, str, str], None]
"""Called with each action: kind of Event, word, what it regards, and a sentence."""


class ActionLog:
    """Counts and logs."""

    def __init__(self, metrics: Metrics, on_action: ActionListener | None = None) -> None:
        self._metrics = metrics.reconcile
        self._counter = metrics.reconcile.actions
        self._failures: dict[str, str] = {}
        """By claim UID, as last logged: a repeated failure is counted and not logged again."""
        self._on_action = on_action

    def note(self, action: Action, why: Why, record: PreparedClaim) -> None:
        """Something was done for a claim."""
        self._failures.pop(record.claim.uid, None)
        self._counter.labels(action, why).inc()
        context = {"claim": record.claim, "pod": record.pod}
        log.info("%s: %s", action, _WORDS[why], extra={"context": context})
        self._report("Normal", f"Reconciled: {action}", f"claim {record.claim}", _WORDS[why])

    def note_files(self, kind: str, claim_uid: str) -> None:
        """Files of a claim that is not prepared were removed."""
        self._counter.labels(Action.REMOVED, Why.NO_RECORD).inc()
        context = {"claim_uid": claim_uid, "files": kind}
        log.info("%s: %s", Action.REMOVED, _WORDS[Why.NO_RECORD], extra={"context": context})

    def note_failure(self, why: Why, record: PreparedClaim, error: Exception | str) -> bool:
        """It did not succeed. Returns whether that is news."""
        self._counter.labels(Action.FAILED, why).inc()
        is_news = self._failures.get(record.claim.uid) != str(error)
        self._failures[record.claim.uid] = str(error)
        if is_news:
            context = {"claim": record.claim, "pod": record.pod}
            log.warning("%s: %s: %s", Action.FAILED, _WORDS[why], error, extra={"context": context})
            about = f"claim {record.claim}"
            self._report("Warning", f"Reconciled: {Action.FAILED}", about, f"{_WORDS[why]}: {error}")
        return is_news

    def note_look(self, has_failed: bool, seconds: float) -> None:
        """A regular look has ended, after so many seconds."""
        self._metrics.looked(has_failed, seconds)

    def keep_only(self, claim_uids: set[str]) -> None:
        """The others are not prepared any more."""
        self._failures = {uid: text for uid, text in self._failures.items() if uid in claim_uids}

    def _report(self, kind: str, word: str, about: str, text: str) -> None:
        if self._on_action is not None:
            self._on_action(kind, word, about, text)


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
            if record.netns_path and not seen.isdisjoint(_moved_functions(record))
            if record.sandbox_id in known or self._has_lost_namespace(record)
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
                self._check_not_lost(pod, deadline)
            report = self._attachments.attach_pod(pod, deadline=deadline, expected=records)
        except DranetError as error:
            self._report_failure(pod, records, why, error)
            return
        if report is not None:
            self._report_attached(pod, records, why, report)

    def _check_not_lost(self, pod: PodSandbox, deadline: float) -> None:
        lost = self._attachments.shut_if_lost(pod, deadline=deadline)
        if lost:
            raise DeviceError(f"{', '.join(lost)}: neither in pod {pod.namespace}/{pod.name} nor on the node")

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


def _moved_functions(record: PreparedClaim) -> Iterator[str]:
    """PCI addresses of the devices that go to the pod themselves."""
    for prepared in record.devices:
        if prepared.plan is not None and prepared.plan.host is not None:
            yield prepared.device.pci_address


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
