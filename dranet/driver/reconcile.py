"""Reconcile: what the store intends against what the runtime and the kernel have.

Runs after each Synchronize, so at every start and after every loss of the runtime. For each record it
adopts (already attached), attaches (the hook was missed) or gives back (the pod is gone, and with it the
runtime's events). Works from the snapshot taken inside Synchronize; a record that a hook has changed since
is left alone, because the hook knew better.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from enum import StrEnum

from dranet.driver.attachments import Attachments
from dranet.driver.gate import ReadyGate
from dranet.driver.hooks import RuntimeSnapshot
from dranet.driver.metadata.device_metadata import DeviceMetadata
from dranet.driver.reports.announce import Announcer
from dranet.errors import DranetError, Reason
from dranet.model.plan import PreparedClaim
from dranet.model.sandbox import PodSandbox
from dranet.runtime.cdi import CdiSpecs
from dranet.store import ClaimStore
from dranet.telemetry import Metrics

log = logging.getLogger(__name__)

ATTACH_TIMEOUT_SECONDS = 30.0
"""No runtime waits for reconcile, so it may wait for a hook."""


class Action(StrEnum):
    """What reconcile did; the ``action`` label of its metric."""

    ADOPTED = "adopted"
    ATTACHED = "attached"
    RELEASED = "released"
    FORGOTTEN = "forgotten"
    FAILED = "failed"


class Reconciler:
    """Brings store, runtime and kernel into one of the legal states."""

    def __init__(
        self,
        *,
        boot_id: str,
        store: ClaimStore,
        attachments: Attachments,
        gate: ReadyGate,
        cdi: CdiSpecs,
        metadata: DeviceMetadata,
        announcer: Announcer,
        metrics: Metrics,
    ) -> None:
        self._boot_id = boot_id
        self._store = store
        self._attachments = attachments
        self._gate = gate
        self._cdi = cdi
        self._metadata = metadata
        self._announcer = announcer
        self._metrics = metrics

    def forget_other_boots(self) -> None:
        """After a reboot no namespace, gate or attach of a record is left; the kubelet prepares anew.

        Raises:
            KernelError: another instance holds the node's devices for too long.
            StoreError: the disk refused.
        """
        with self._attachments.locked():
            for record in self._store.get_all():
                if record.boot_id != self._boot_id:
                    self._gate.close(record.claim.uid)
                    self._cdi.remove(record.claim.uid)
                    self._metadata.remove(record.claim.uid)
                    self._store.delete(record.claim.uid)
                    self._count(Action.FORGOTTEN, record, "prepared before the last reboot")

    def sweep_leftovers(self) -> None:
        """Remove ready files, CDI specs and metadata files that no record owns.

        Another instance may be preparing claims: its records come before its files, so files are listed
        first, and no record comes or goes meanwhile.

        Raises:
            KernelError: that instance holds the node's devices for too long.
            StoreError: the disk refused.
        """
        with self._attachments.locked():
            opened, written, told = (
                self._gate.list_open(),
                self._cdi.list_claims(),
                self._metadata.list_claims(),
            )
            known = {record.claim.uid for record in self._store.get_all()}
            for claim_uid in opened - known:
                self._gate.close(claim_uid)
            for claim_uid in written - known:
                self._cdi.remove(claim_uid)
            for claim_uid in told - known:
                self._metadata.remove(claim_uid)

    def reconcile(self, snapshot: RuntimeSnapshot) -> None:
        """Blocking: runs in a worker thread. One pod's failure never stops the others. Does nothing where the
        records are a newer driver's by now: that one does."""
        if self._store.is_newer:
            return
        running = {pod.uid: pod for pod in snapshot.pods if pod.running}
        by_pod: dict[str, list[PreparedClaim]] = {}
        for record in snapshot.records:
            if record.plans:
                by_pod.setdefault(record.pod.uid, []).append(record)
        for pod_uid, records in by_pod.items():
            ordered = sorted(records, key=lambda c: (c.claim.name, c.claim.uid))
            pod = running.get(pod_uid)
            if pod is not None:
                self._ensure_attached(pod, ordered)
            else:
                before = snapshot.placed_before
                self._release_orphans([r for r in ordered if before.get(r.claim.uid) == r.sandbox_id])

    def _ensure_attached(self, pod: PodSandbox, records: Sequence[PreparedClaim]) -> None:
        try:
            deadline = time.monotonic() + ATTACH_TIMEOUT_SECONDS
            report = self._attachments.attach_pod(pod, deadline=deadline, expected=records)
        except DranetError as error:
            if error.reason is Reason.STORE_NEWER:
                return  # since we looked: the newer driver does it
            for record in records:
                self._count(Action.FAILED, record, str(error))
            if error.reason is not Reason.DHCP_LEASE_EXPIRED or not _are_placed(records, pod):
                self._announcer.attach_failed(records, error)  # of the others ``Leases`` tells what is left
            return
        if report is not None:
            for record in records:
                self._count(Action.ATTACHED if report.is_news else Action.ADOPTED, record, "its pod runs")
            self._announcer.attached(records, self._metadata.attached(records, report.links, pod.netns_path))

    def _release_orphans(self, records: Sequence[PreparedClaim]) -> None:
        for record in records:
            try:
                report = self._attachments.release_claim(record.claim.uid, expected=record)
            except DranetError as error:
                if error.reason is Reason.STORE_NEWER:
                    return
                self._count(Action.FAILED, record, str(error))
                self._announcer.release_failed(record.claim, error, record.devices)
                continue
            if report is not None:
                self._metadata.released(record.claim.uid)
                self._count(Action.RELEASED, record, "its pod sandbox is gone")
                self._announcer.released(report)

    def _count(self, action: Action, record: PreparedClaim, why: str) -> None:
        self._metrics.reconcile_actions.labels(action).inc()
        level = logging.WARNING if action is Action.FAILED else logging.INFO
        log.log(level, "%s: %s", action, why, extra={"context": {"claim": record.claim, "pod": record.pod}})


def _are_placed(records: Sequence[PreparedClaim], pod: PodSandbox) -> bool:
    return all(record.sandbox_id == pod.id for record in records)
