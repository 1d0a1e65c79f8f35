"""What happened -> claim status, Events and metrics.

The walks (prepare, hooks, reconcile) say what happened in one line; how it is told to users is decided
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
from dranet.claims.select import select_results
from dranet.cluster.events import NORMAL, WARNING, ObjectRef
from dranet.driver.attachments import ReleaseReport
from dranet.driver.reports.reporter import EventNote, Reporter
from dranet.errors import DranetError, KernelError, Reason
from dranet.model.claim import Claim, ClaimRef, PodRef
from dranet.model.device import DeviceKind
from dranet.model.event_reason import EventReason
from dranet.model.plan import PreparedClaim, PreparedDevice
from dranet.model.sandbox import PodSandbox
from dranet.model.status import AttachedLink, DeviceStatus
from dranet.telemetry import Metrics

log = logging.getLogger(__name__)

MAX_REMEMBERED = 1000
"""Claims. A node has a few hundred at most."""

PREPARED_SECONDS = 1.0
"""How long the word that a claim is prepared waits for the one that its pod has the devices: the API server
is asked once for both, and not while the pod starts."""

RecordsOfPod = Callable[[str], Sequence[PreparedClaim]]
"""By pod UID (``ClaimStore.get_by_pod``)."""


def do_nothing(_: str) -> None:
    """Nobody listens."""


def ignore(_word: str, _about: ObjectRef, _told: str) -> None:
    """Nobody listens."""


class Announcer:
    """Tells users, through the claim's status and Events, what became of their devices."""

    def __init__(
        self,
        driver_name: str,
        node_name: str,
        reporter: Reporter,
        metrics: Metrics,
        records_of_pod: RecordsOfPod = lambda _: (),
    ) -> None:
        """``records_of_pod`` tells whether a claim is still in its pod."""
        self._driver_name = driver_name
        self._node = ObjectRef.of_node(node_name)
        self._reporter = reporter
        self._metrics = metrics
        self._records_of_pod = records_of_pod
        self._lock = threading.Lock()
        self.on_attached: Callable[[str], None] = do_nothing
        """Called with the UID of a pod that has its devices, on any thread."""
        self.on_normal: Callable[[str, ObjectRef, str], None] = ignore
        """Told what makes no Event because all is well: a word, about whom, and a sentence."""
        self._links: dict[str, Sequence[AttachedLink]] = {}
        """By claim in a pod: as attached, to say it again together with what is known since."""
        self._lost: dict[str, dict[int, DranetError]] = {}
        """By claim and position of the device: leases that have ended."""
        self._left_to_others: dict[str, tuple[PreparedClaim, Sequence[AttachedLink]]] = {}
        """By claim: what another instance was to tell of."""

    def prepared(self, record: PreparedClaim) -> None:
        """The plan is committed; the pod's sandbox may run."""
        told = f"claim {record.claim}: {_name_devices(record.devices)}"
        self.on_normal("Prepared", _pod_object(record.pod), told)
        self._forget_links([record.claim])
        statuses = [report_prepared(self._driver_name, device) for device in record.devices]
        will_attach = any(device.plan is not None for device in record.devices)
        self._reporter.set_statuses(
            record.claim, statuses, rest_seconds=PREPARED_SECONDS if will_attach else 0.0
        )

    def prepare_failed(self, ref: ClaimRef, claim: Claim | None, error: DranetError) -> None:
        """``claim`` is ``None`` where it could not even be fetched."""
        self._metrics.claim_errors.labels("prepare", error.reason).inc()
        if claim is not None:
            ours = select_results(claim, self._driver_name)
            self._reporter.set_statuses(ref, [report_prepare_failed(own.result, error) for own in ours])
        self._warn(_claim_object(ref), EventReason.CLAIM_PREPARE_FAILED, f"{error.reason}: {error}")

    def attached(self, records: Sequence[PreparedClaim], links: Sequence[AttachedLink]) -> None:
        """The devices were verified in the pod's namespace."""
        self._remember(records, links)
        for record in records:
            with self._lock:
                self._left_to_others.pop(record.claim.uid, None)
            self._tell_attached(record, links)
            told = f"claim {record.claim}: {_name_devices(record.devices)}"
            self.on_normal("Attached", _pod_object(record.pod), told)
        self._note_attached(records)

    def found_attached(self, records: Sequence[PreparedClaim], links: Sequence[AttachedLink]) -> None:
        """The same, and another instance of the driver tells users."""
        self._remember(records, links)
        with self._lock:
            left = {uid: told for uid, told in self._left_to_others.items() if self._is_in_pod(told[0])}
            self._left_to_others = left | {record.claim.uid: (record, links) for record in records}
        for record in records:
            self._reporter.supersede_statuses(record.claim, self._statuses_attached(record, links))
        self._note_attached(records)

    def tell_again(self, pod_uid: str) -> None:
        """More is known of a pod that has its devices than its claims say."""
        for record in self._records_of_pod(pod_uid):
            with self._lock:
                links = self._links.get(record.claim.uid)
            if links is not None and self._is_in_pod(record):
                statuses = self._statuses_attached(record, links)
                with self._lock:  # whoever says that the pod has ended forgets the links before
                    if self._links.get(record.claim.uid) is links:
                        self._reporter.set_statuses(record.claim, statuses)

    def others_are_gone(self) -> None:
        """Another instance has ended, perhaps with words unsaid: say them of what pods still have."""
        with self._lock:
            left, self._left_to_others = self._left_to_others, {}
        for record, links in left.values():
            if self._is_in_pod(record):
                self._tell_attached(record, links)

    def _is_in_pod(self, record: PreparedClaim) -> bool:
        current = {r.claim.uid: r for r in self._records_of_pod(record.pod.uid)}.get(record.claim.uid)
        return current is not None and bool(current.netns_path)

    def _remember(self, records: Sequence[PreparedClaim], links: Sequence[AttachedLink]) -> None:
        with self._lock:
            self._links.update((record.claim.uid, links) for record in records)
            while len(self._links) > MAX_REMEMBERED:  # another instance may have told of their end
                del self._links[next(iter(self._links))]

    def _forget_links(self, claims: Iterable[ClaimRef]) -> None:
        with self._lock:
            for claim in claims:
                self._links.pop(claim.uid, None)

    def _note_attached(self, records: Sequence[PreparedClaim]) -> None:
        for pod_uid in dict.fromkeys(record.pod.uid for record in records):
            self.on_attached(pod_uid)

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
            self._links.pop(claim_uid, None)

    def _tell_attached(self, record: PreparedClaim, links: Sequence[AttachedLink]) -> None:
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
        """The host is as before; the runtime refuses the pod and the kubelet tries again."""
        self._metrics.claim_errors.labels("attach", error.reason).inc()
        self._forget_links(record.claim for record in records)
        for record in records:
            self._reporter.set_statuses(
                record.claim,
                [report_attach_failed(self._driver_name, device, error) for device in record.devices],
            )
        if records:
            note = f"{error.reason}: {error}"
            self._warn(_pod_object(records[0].pod), _attach_failure_of(records, error), note)

    def container_refused(self, pod: PodSandbox, error: DranetError) -> None:
        """A container brings a claim that another pod has; that one goes on undisturbed."""
        self._metrics.claim_errors.labels("container", error.reason).inc()
        self._warn(_pod_object(PodRef(pod.namespace, pod.name, pod.uid)), str(error.reason), str(error))

    def runs_bare(self, pod: PodSandbox, container: str, error: DranetError) -> None:
        """A container was started while no driver was there to see to its devices."""
        self._metrics.claim_errors.labels("container", error.reason).inc()
        note = f"container {container} runs, although {error}"
        self._warn(
            _pod_object(PodRef(pod.namespace, pod.name, pod.uid)), EventReason.RUNS_WITHOUT_DEVICES, note
        )

    def unprepare_failed(self, ref: ClaimRef, error: DranetError) -> None:
        """The kubelet repeats the call; the pod stays in Terminating meanwhile."""
        self._metrics.claim_errors.labels("unprepare", error.reason).inc()
        self._warn(_claim_object(ref), str(error.reason), str(error))

    def release_failed(
        self, ref: ClaimRef, error: DranetError, devices: Sequence[PreparedDevice] = ()
    ) -> None:
        """The pod has ended and its devices are still in its namespace; Unprepare tries again."""
        self._metrics.claim_errors.labels("release", error.reason).inc()
        self._forget_links([ref])
        if devices:
            statuses = [report_release_failed(self._driver_name, device, error) for device in devices]
            self._reporter.set_statuses(ref, statuses)
        self._warn(_claim_object(ref), str(error.reason), str(error))

    def released(self, report: ReleaseReport) -> None:
        """The devices are back; parts of the host state may not be, and some may have ceased to exist."""
        self._forget_links([report.claim])
        lost = [f"{device}: gone, destroyed with the pod or unplugged" for device in report.missing]
        complaints = [*lost, *report.problems]
        if report.devices:
            self._tell_released(report, complaints)
            self.on_normal("Released", _claim_object(report.claim), _name_devices(report.devices))
        if complaints:
            self._metrics.not_restored.inc(len(complaints))
            note = f"after claim {report.claim}: {'; '.join(complaints)}"
            log.warning("not given back whole %s", note)
            self._warn(self._node, EventReason.HOST_STATE_NOT_RESTORED, note)

    def _tell_released(self, report: ReleaseReport, complaints: Sequence[str]) -> None:
        """The claim is often gone by now: then this is dropped without a word."""
        statuses = [
            report_released(self._driver_name, device, _complaints_of(device, report.devices, complaints))
            for device in report.devices
        ]
        self._reporter.set_statuses(report.claim, statuses)

    def store_trouble(self, reason: Reason, note: str) -> None:
        """The disk refuses records, or has damaged some; all but Prepare goes on."""
        self._warn(self._node, str(reason), note)

    def health_changed(self, device: str, pods: Sequence[PodRef], *, healthy: bool, message: str) -> None:
        """A device has become unhealthy, or is so no more; ``pods`` have it now."""
        kind = NORMAL if healthy else WARNING
        reason = EventReason.DEVICE_HEALTHY if healthy else EventReason.DEVICE_UNHEALTHY
        for regarding in (self._node, *map(_pod_object, pods)):
            self._reporter.add_event(EventNote(regarding, kind, reason, f"device {device}: {message}"))

    def _warn(self, regarding: ObjectRef, reason: str, note: str) -> None:
        self._reporter.add_event(EventNote(regarding, WARNING, reason, note))


def _attach_failure_of(records: Sequence[PreparedClaim], error: DranetError) -> EventReason:
    """DraNet tells RDMA devices from network devices."""
    moving = [
        device.device.kind for record in records for device in record.devices if device.plan is not None
    ]
    at_rdma = isinstance(error, KernelError) and "rdma" in error.operation.lower()
    if at_rdma or all(kind is DeviceKind.RDMA for kind in moving):
        return EventReason.RDMA_DEVICE_ATTACH_FAILED
    return EventReason.NETWORK_DEVICE_ATTACH_FAILED


def _complaints_of(
    device: PreparedDevice, devices: Sequence[PreparedDevice], complaints: Sequence[str]
) -> list[str]:
    """Those that name this device, and those that name none of the claim."""
    others = tuple(f"{other.device.name}:" for other in devices if other.device.name != device.device.name)
    return [complaint for complaint in complaints if not complaint.startswith(others)]


def _name_devices(devices: Sequence[PreparedDevice]) -> str:
    return ", ".join(device.device.name for device in devices)


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
