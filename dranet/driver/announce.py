"""What happened -> claim status, Events and metrics.

The walks (prepare, hooks, reconcile) say what happened in one line; how it is told to users is decided
here. Callable from any thread; nothing here waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace

from dranet.claims.report import (
    find_attached,
    report_attach_failed,
    report_attached,
    report_prepare_failed,
    report_prepared,
)
from dranet.claims.select import select_results
from dranet.cluster.events import WARNING, ObjectRef
from dranet.driver.attachments import ReleaseReport
from dranet.driver.report import EventNote, Reporter
from dranet.errors import DranetError
from dranet.model.claim import Claim, ClaimRef, PodRef
from dranet.model.plan import PreparedClaim
from dranet.model.status import AttachedLink, Condition, ConditionType, DeviceStatus
from dranet.telemetry import Metrics

CLAIM_PREPARE_FAILED = "ClaimPrepareFailed"
NETWORK_DEVICE_ATTACH_FAILED = "NetworkDeviceAttachFailed"
"""The two Event reasons are DraNet's names: alerts on them keep working."""
HOST_STATE_NOT_RESTORED = "HostStateNotRestored"

log = logging.getLogger(__name__)


class Announcer:
    """Tells users, through the claim's status and Events, what became of their devices."""

    def __init__(self, driver_name: str, node_name: str, reporter: Reporter, metrics: Metrics) -> None:
        self._driver_name = driver_name
        self._node = ObjectRef(api_version="v1", kind="Node", name=node_name, namespace="", uid=node_name)
        self._reporter = reporter
        self._metrics = metrics
        self._lock = threading.Lock()
        self._links: dict[str, Sequence[AttachedLink]] = {}
        """By claim: as attached, to say it again together with what happened since."""
        self._lost: dict[str, dict[int, DranetError]] = {}
        """By claim and position of the device: leases that have ended."""

    def prepared(self, record: PreparedClaim) -> None:
        """The plan is committed; the pod's sandbox may run."""
        self._reporter.set_statuses(
            record.claim, [report_prepared(self._driver_name, device) for device in record.devices]
        )

    def prepare_failed(self, ref: ClaimRef, claim: Claim | None, error: DranetError) -> None:
        """``claim`` is ``None`` where it could not even be fetched."""
        self._metrics.claim_errors.labels("prepare", error.reason).inc()
        if claim is not None:
            ours = select_results(claim, self._driver_name)
            self._reporter.set_statuses(ref, [report_prepare_failed(own.result, error) for own in ours])
        self._warn(_claim_object(ref), CLAIM_PREPARE_FAILED, f"{error.reason}: {error}")

    def attached(self, records: Sequence[PreparedClaim], links: Sequence[AttachedLink]) -> None:
        """The devices were verified in the pod's namespace."""
        for record in records:
            with self._lock:
                self._links[record.claim.uid] = links
            self._tell_attached(record, links)

    def lease_lost(self, record: PreparedClaim, position: int, error: DranetError) -> None:
        """The lease of one device has ended, so its address is gone from the pod, or never gets there."""
        with self._lock:
            self._lost.setdefault(record.claim.uid, {})[position] = error
            links = self._links.get(record.claim.uid)
        if links is not None:
            self._tell_attached(record, links)
        self._warn(_pod_object(record.pod), str(error.reason), str(error))

    def lease_back(self, record: PreparedClaim, position: int) -> None:
        """A lease that had ended is there again."""
        with self._lock:
            self._lost.get(record.claim.uid, {}).pop(position, None)
            links = self._links.get(record.claim.uid)
        if links is not None:
            self._tell_attached(record, links)

    def lease_forgotten(self, claim_uid: str) -> None:
        """The claim has no leases any more."""
        with self._lock:
            self._lost.pop(claim_uid, None)

    def _tell_attached(self, record: PreparedClaim, links: Sequence[AttachedLink]) -> None:
        with self._lock:
            lost = dict(self._lost.get(record.claim.uid, {}))
        statuses = []
        for position, device in enumerate(record.devices):
            status = report_attached(self._driver_name, device, find_attached(device, links))
            error = lost.get(position)
            statuses.append(status if error is None else _not_ready(status, error))
        self._reporter.set_statuses(record.claim, statuses)

    def attach_failed(self, records: Sequence[PreparedClaim], error: DranetError) -> None:
        """The host is as before; the runtime refuses the pod and the kubelet tries again."""
        self._metrics.claim_errors.labels("attach", error.reason).inc()
        for record in records:
            statuses = [
                report_attach_failed(self._driver_name, device, error)
                if device.plan is not None
                else report_prepared(self._driver_name, device)
                for device in record.devices
            ]
            self._reporter.set_statuses(record.claim, statuses)
        if records:
            self._warn(_pod_object(records[0].pod), NETWORK_DEVICE_ATTACH_FAILED, f"{error.reason}: {error}")

    def unprepare_failed(self, ref: ClaimRef, error: DranetError) -> None:
        """The kubelet repeats the call; the pod stays in Terminating meanwhile."""
        self._metrics.claim_errors.labels("unprepare", error.reason).inc()
        self._warn(_claim_object(ref), str(error.reason), str(error))

    def release_failed(self, ref: ClaimRef, error: DranetError) -> None:
        """The pod has ended and its devices are still in its namespace; Unprepare tries again."""
        self._metrics.claim_errors.labels("release", error.reason).inc()
        self._warn(_claim_object(ref), str(error.reason), str(error))

    def released(self, report: ReleaseReport) -> None:
        """The devices are back; parts of the host state may not be, and some may have ceased to exist."""
        with self._lock:
            self._links.pop(report.claim.uid, None)
        lost = [f"{device}: gone, destroyed with the pod or unplugged" for device in report.missing]
        if complaints := [*lost, *report.problems]:
            self._metrics.not_restored.inc(len(complaints))
            note = f"after claim {report.claim}: {'; '.join(complaints)}"
            log.warning("not given back whole %s", note)
            self._warn(self._node, HOST_STATE_NOT_RESTORED, note)

    def _warn(self, regarding: ObjectRef, reason: str, note: str) -> None:
        self._reporter.add_event(EventNote(regarding, WARNING, reason, note))


def _not_ready(status: DeviceStatus, error: DranetError) -> DeviceStatus:
    """The same with a network that is not ready, for this reason."""
    failed = Condition.failed(ConditionType.NETWORK_READY, error.reason, str(error))
    conditions = (failed if c.type is ConditionType.NETWORK_READY else c for c in status.conditions)
    return replace(status, conditions=tuple(conditions))


def _claim_object(ref: ClaimRef) -> ObjectRef:
    return ObjectRef(
        api_version="resource.k8s.io/v1",
        kind="ResourceClaim",
        name=ref.name,
        namespace=ref.namespace,
        uid=ref.uid,
    )


def _pod_object(ref: PodRef) -> ObjectRef:
    return ObjectRef(api_version="v1", kind="Pod", name=ref.name, namespace=ref.namespace, uid=ref.uid)
