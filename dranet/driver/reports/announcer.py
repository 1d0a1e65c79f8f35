"""Turns what happened to claims and devices into claim status, Events and metrics.

The code that does the work (prepare, hooks, reconcile) reports it in one line; how users see it is decided
here. Callable from any thread; nothing here waits. What is normal makes no Event.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence

from dranet.claims.report import (
    find_attached,
    report_attach_failed,
    report_attached,
    report_lease_lost,
    report_prepare_failed,
    report_prepared,
    report_release_failed,
    report_released,
)
from dranet.cluster.events import NORMAL, WARNING, EventNote, ObjectRef
from dranet.driver.attachments import ReleaseReport
from dranet.driver.reports.reporter import Reporter
from dranet.errors import DranetError, KernelError, Reason
from dranet.model.claim import Claim, ClaimRef, PodRef, PodSandbox
from dranet.model.device import DeviceKind
from dranet.model.plan import PreparedClaim, PreparedDevice
from dranet.model.status import AttachedLink, DeviceStatus, EventReason
from dranet.telemetry import Metrics

log = logging.getLogger(__name__)

MAX_REMEMBERED = 1000
"""Claims. A node has a few hundred at most."""

PREPARED_SECONDS = 1.0
"""How long the status of a prepared claim waits for that of the attached one: both take one request to the
API server, and none while the pod starts."""


class Announcer:
    """Reports to users, by the claim's status and Events, what became of their devices."""

    def __init__(
        self,
        driver_name: str,
        node_name: str,
        reporter: Reporter,
        metrics: Metrics,
        records_of_pod: Callable[[str], Sequence[PreparedClaim]] = lambda _: (),
        on_attached: Callable[[str], None] | None = None,
    ) -> None:
        """
        Args:
            records_of_pod: the claims of a pod by its UID, to find out whether a claim is still in it.
            on_attached: called, on any thread, with the UID of a pod that has its devices.
        """
        self._driver_name = driver_name
        self._node = ObjectRef.of_node(node_name)
        self._reporter = reporter
        self._metrics = metrics
        self._records_of_pod = records_of_pod
        self._on_attached = on_attached
        self._lock = threading.Lock()
        self._links: dict[str, Sequence[AttachedLink]] = {}
        """By UID of a claim in a pod: as attached, to be written again with what is known since then."""
        self._lost: dict[str, dict[int, DranetError]] = {}
        """By claim UID and position of the device: leases that have ended."""
        self._left_to_others: dict[str, tuple[PreparedClaim, Sequence[AttachedLink]]] = {}
        """By claim UID: what another instance was to report."""

    def prepared(self, record: PreparedClaim) -> None:
        self._reporter.add_normal("Prepared", ObjectRef.of_pod(record.pod), _describe(record))
        self._forget_links([record.claim])
        statuses = [report_prepared(self._driver_name, device) for device in record.devices]
        will_attach = any(device.plan is not None for device in record.devices)
        self._reporter.set_statuses(
            record.claim, statuses, rest_seconds=PREPARED_SECONDS if will_attach else 0.0
        )

    def prepare_failed(self, ref: ClaimRef, claim: Claim | None, error: DranetError) -> None:
        """``claim`` is ``None`` if it could not be fetched."""
        self._metrics.claim_errors.labels("prepare", error.reason).inc()
        if claim is not None:
            from dranet.claims.config import select_results  # loaded with what decodes claims

            ours = select_results(claim, self._driver_name)
            self._reporter.set_statuses(ref, [report_prepare_failed(own.result, error) for own in ours])
        self._warn(ObjectRef.of_claim(ref), EventReason.CLAIM_PREPARE_FAILED, f"{error.reason}: {error}")

    def attached(self, records: Sequence[PreparedClaim], links: Sequence[AttachedLink]) -> None:
        """Report that the devices were verified in the pod's network namespace."""
        self._remember(records, links)
        for record in records:
            with self._lock:
                self._left_to_others.pop(record.claim.uid, None)
            self._write_attached(record, links)
            self._reporter.add_normal("Attached", ObjectRef.of_pod(record.pod), _describe(record))
        self._note_attached(records)

    def found_attached(self, records: Sequence[PreparedClaim], links: Sequence[AttachedLink]) -> None:
        """As :meth:`attached`, while another instance of the driver reports it."""
        self._remember(records, links)
        with self._lock:
            left = {
                uid: waiting for uid, waiting in self._left_to_others.items() if self._is_in_pod(waiting[0])
            }
            self._left_to_others = left | {record.claim.uid: (record, links) for record in records}
        for record in records:
            self._reporter.supersede_statuses(record.claim, self._statuses_attached(record, links))
        self._note_attached(records)

    def write_again(self, pod_uid: str) -> None:
        """Write the statuses of an attached pod again: more is known than they contain."""
        for record in self._records_of_pod(pod_uid):
            with self._lock:
                links = self._links.get(record.claim.uid)
            if links is not None and self._is_in_pod(record):
                statuses = self._statuses_attached(record, links)
                with self._lock:  # the links are forgotten before the end of the pod is reported
                    if self._links.get(record.claim.uid) is links:
                        self._reporter.set_statuses(record.claim, statuses)

    def others_are_gone(self) -> None:
        """Report what an instance that ended may have left unwritten about devices still in pods."""
        with self._lock:
            left, self._left_to_others = self._left_to_others, {}
        for record, links in left.values():
            if self._is_in_pod(record):
                self._write_attached(record, links)

    def _is_in_pod(self, record: PreparedClaim) -> bool:
        current = {r.claim.uid: r for r in self._records_of_pod(record.pod.uid)}.get(record.claim.uid)
        return current is not None and bool(current.netns_path)

    def _remember(self, records: Sequence[PreparedClaim], links: Sequence[AttachedLink]) -> None:
        with self._lock:
            self._links.update((record.claim.uid, links) for record in records)
            while len(self._links) > MAX_REMEMBERED:  # another instance may have reported their end
                del self._links[next(iter(self._links))]

    def _forget_links(self, claims: Iterable[ClaimRef]) -> None:
        with self._lock:
            for claim in claims:
                self._links.pop(claim.uid, None)

    def _note_attached(self, records: Sequence[PreparedClaim]) -> None:
        if self._on_attached is not None:
            for pod_uid in dict.fromkeys(record.pod.uid for record in records):
                self._on_attached(pod_uid)

    def lease_lost(self, record: PreparedClaim, position: int, error: DranetError) -> None:
        """Report that the lease of one device has ended; the pod lost its address, or never got it."""
        with self._lock:
            self._lost.setdefault(record.claim.uid, {})[position] = error
        self._write_remembered(record)
        self._warn(ObjectRef.of_pod(record.pod), str(error.reason), str(error))

    def lease_back(self, record: PreparedClaim, position: int) -> None:
        with self._lock:
            self._lost.get(record.claim.uid, {}).pop(position, None)
        self._write_remembered(record)

    def _write_remembered(self, record: PreparedClaim) -> None:
        with self._lock:
            links = self._links.get(record.claim.uid)
        if links is not None:
            self._write_attached(record, links)

    def lease_forgotten(self, claim_uid: str) -> None:
        with self._lock:
            self._lost.pop(claim_uid, None)
            self._links.pop(claim_uid, None)

    def _write_attached(self, record: PreparedClaim, links: Sequence[AttachedLink]) -> None:
        self._reporter.set_statuses(record.claim, self._statuses_attached(record, links))

    def _statuses_attached(
        self, record: PreparedClaim, links: Sequence[AttachedLink]
    ) -> Sequence[DeviceStatus]:
        with self._lock:
            lost = dict(self._lost.get(record.claim.uid, {}))
        statuses = []
        for position, device in enumerate(record.devices):
            status = report_attached(self._driver_name, device, find_attached(device, links))
            error = lost.get(position)
            statuses.append(status if error is None else report_lease_lost(status, error))
        return statuses

    def attach_failed(self, records: Sequence[PreparedClaim], error: DranetError) -> None:
        """Report a failed attach: the host is as before, and the kubelet retries."""
        self._metrics.claim_errors.labels("attach", error.reason).inc()
        self._forget_links(record.claim for record in records)
        for record in records:
            statuses = [report_attach_failed(self._driver_name, device, error) for device in record.devices]
            self._reporter.set_statuses(record.claim, statuses)
        if records:
            note = f"{error.reason}: {error}"
            self._warn(ObjectRef.of_pod(records[0].pod), _attach_failure_of(records, error), note)

    def container_refused(self, pod: PodSandbox, error: DranetError) -> None:
        """Report a container with a claim that another pod uses; that pod is not disturbed."""
        self._metrics.claim_errors.labels("container", error.reason).inc()
        self._warn(ObjectRef.of_pod(PodRef(pod.namespace, pod.name, pod.uid)), str(error.reason), str(error))

    def runs_bare(self, pod: PodSandbox, container: str, error: DranetError) -> None:
        """Report a container that was started while no driver ran to check its devices."""
        self._metrics.claim_errors.labels("container", error.reason).inc()
        note = f"container {container} runs, although {error}"
        regarding = ObjectRef.of_pod(PodRef(pod.namespace, pod.name, pod.uid))
        self._warn(regarding, EventReason.RUNS_WITHOUT_DEVICES, note)

    def unprepare_failed(self, ref: ClaimRef, error: DranetError) -> None:
        self._metrics.claim_errors.labels("unprepare", error.reason).inc()
        self._warn(ObjectRef.of_claim(ref), str(error.reason), str(error))

    def addresses_not_released(self, ref: ClaimRef, error: DranetError) -> None:
        """Report addresses that their source does not release; reconcile tries again."""
        self._metrics.claim_errors.labels("unprepare", error.reason).inc()
        self._warn(ObjectRef.of_claim(ref), str(error.reason), f"addresses are not released: {error}")

    def addresses_in_conflict(self, pod: PodRef, error: DranetError) -> None:
        """Report addresses that are in use elsewhere; the pod gets them all the same."""
        self._metrics.claim_errors.labels("probe", error.reason).inc()
        self._warn(ObjectRef.of_pod(pod), str(error.reason), str(error))

    def address_check_failed(self, record: PreparedClaim, error: DranetError) -> None:
        """Report addresses that are not the claim's any more, by their source; the pod keeps them."""
        self._metrics.claim_errors.labels("check", error.reason).inc()
        self._warn(ObjectRef.of_pod(record.pod), str(error.reason), f"addresses in doubt: {error}")

    def release_failed(
        self, ref: ClaimRef, error: DranetError, devices: Sequence[PreparedDevice] = ()
    ) -> None:
        """Report devices that are still in the namespace of a pod that has ended; Unprepare retries."""
        self._metrics.claim_errors.labels("release", error.reason).inc()
        self._forget_links([ref])
        if devices:
            statuses = [report_release_failed(self._driver_name, device, error) for device in devices]
            self._reporter.set_statuses(ref, statuses)
        self._warn(ObjectRef.of_claim(ref), str(error.reason), str(error))

    def released(self, report: ReleaseReport) -> None:
        """Report returned devices, with host state that was not restored and devices that are gone."""
        self._forget_links([report.claim])
        lost = [f"{device}: gone, destroyed with the pod or unplugged" for device in report.missing]
        complaints = [*lost, *report.problems]
        if report.devices:
            statuses = [
                report_released(self._driver_name, device, _complaints_of(device, report.devices, complaints))
                for device in report.devices
            ]
            self._reporter.set_statuses(report.claim, statuses)
            names = _name_devices(report.devices)
            self._reporter.add_normal("Released", ObjectRef.of_claim(report.claim), names)
        if complaints:
            self._metrics.not_restored.inc(len(complaints))
            note = f"after claim {report.claim}: {'; '.join(complaints)}"
            log.warning("host state not restored %s", note)
            self._warn(self._node, EventReason.HOST_STATE_NOT_RESTORED, note)

    def metadata_failed(self, record: PreparedClaim, error: DranetError) -> None:
        self._metrics.claim_errors.labels("metadata", error.reason).inc()
        note = f"the file about the devices of claim {record.claim} is not up to date: {error}"
        log.warning("%s", note)
        self._warn(ObjectRef.of_pod(record.pod), str(error.reason), note)

    def virtual_functions(self, note: str) -> None:
        """Report on the node that virtual functions are not as the rules of the file want them."""
        self._warn(self._node, EventReason.VIRTUAL_FUNCTIONS, note)

    def store_trouble(self, reason: Reason, note: str) -> None:
        """Report that the disk refuses or has damaged records; everything except Prepare works."""
        self._warn(self._node, str(reason), note)

    def health_changed(self, device: str, pods: Sequence[PodRef], *, healthy: bool, message: str) -> None:
        """Report a device that became unhealthy, or recovered, to ``pods`` that have it and on the node."""
        kind = NORMAL if healthy else WARNING
        reason = EventReason.DEVICE_HEALTHY if healthy else EventReason.DEVICE_UNHEALTHY
        for regarding in (self._node, *map(ObjectRef.of_pod, pods)):
            self._reporter.add_event(EventNote(regarding, kind, reason, f"device {device}: {message}"))

    def _warn(self, regarding: ObjectRef, reason: str, note: str) -> None:
        self._reporter.add_event(EventNote(regarding, WARNING, reason, note))


def _attach_failure_of(records: Sequence[PreparedClaim], error: DranetError) -> EventReason:
    """Choose between RDMA and network devices, as DraNet does."""
    moving = [one.device.kind for record in records for one in record.devices if one.plan is not None]
    at_rdma = isinstance(error, KernelError) and "rdma" in error.operation.lower()
    if at_rdma or all(kind is DeviceKind.RDMA for kind in moving):
        return EventReason.RDMA_DEVICE_ATTACH_FAILED
    return EventReason.NETWORK_DEVICE_ATTACH_FAILED


def _complaints_of(
    device: PreparedDevice, devices: Sequence[PreparedDevice], complaints: Sequence[str]
) -> list[str]:
    """Return those that name this device, and those that name no device of the claim."""
    others = tuple(f"{other.device.name}:" for other in devices if other.device.name != device.device.name)
    return [complaint for complaint in complaints if not complaint.startswith(others)]


def _name_devices(devices: Sequence[PreparedDevice]) -> str:
    return ", ".join(device.device.name for device in devices)


def _describe(record: PreparedClaim) -> str:
    return f"claim {record.claim}: {_name_devices(record.devices)}"
