"""Attach prepared claims to their pod and return the devices to the host: store and kernel change together.

* attach: commit *where* (sandbox, namespace) -> kernel steps -> verify -> open the start gate
* release: close the gate -> kernel restores the host -> commit *nowhere*

A kill between any two of these leaves a state that the next reconcile adopts, finishes or undoes, because
both kernel calls are idempotent. Neither waits for a disk that refuses: the plan was on the disk before the
kubelet was answered. Never called from the event loop itself. The lock reaches across two instances of the
driver, and under it the store is read afresh."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from dranet.driver.instances.members import NodeLock
from dranet.driver.pod_devices import (
    HeldNamespaces,
    OpenNamespace,
    check_has_own_network,
    iter_nodes,
    refresh_nodes,
)
from dranet.driver.start_gate import StartGate, may_be_shared
from dranet.errors import DranetError, KernelError, Reason, StoreError
from dranet.failpoints import Failpoint, reached
from dranet.kernel.attachment.attach import attach, set_down
from dranet.kernel.attachment.checks import (
    UplinkRules,
    find_absent,
    find_down,
    find_lost,
    find_strayed,
    verify,
)
from dranet.kernel.attachment.detach import INTERRUPTS, DetachReport, detach
from dranet.kernel.namespaces.netns import NetworkNamespace, find_netns, open_netns, read_netns_id
from dranet.kernel.namespaces.pod_links import PodLinks
from dranet.kernel.sysfs.irq import InterruptFiles
from dranet.model.claim import ClaimRef, PodSandbox
from dranet.model.facts import CharDevice
from dranet.model.plan import AttachPlan, PreparedClaim, PreparedDevice
from dranet.model.status import AttachedLink
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics
from dranet.telemetry.metrics import AttachMetrics

log = logging.getLogger(__name__)

LOCK_FILE = "devices.lock"
"""Next to the store: instances that share the store share the lock."""
PATIENCE_SECONDS = 20.0
"""How long a call waits for others. The kubelet gives a call 30 s: it is to hear who has the devices."""
RETURN_SECONDS = 60.0
"""The kernel takes down one dead namespace after another, each with a stop of every driver in it; a NIC is on
neither side meanwhile. One whose PCI function is there and that is away for longer is taken for lost."""
_LOOK_SECONDS = 0.02
_DISK_SECONDS = 1.0
"""How long an attach waits for a disk, once the kernel has done its part."""


class StillReturning(KernelError):
    """The kernel has not brought a NIC of a dead namespace back yet; the same release may succeed later."""


class AttachReport(Struct, frozen=True):
    """The links of a pod as read back."""

    links: tuple[AttachedLink, ...]
    is_news: bool
    """False where all was already in place: another instance has attached and reported it."""


class ReleaseReport(Struct, frozen=True):
    """What a release found: ``problems`` are parts of the host state that could not be restored."""

    claim: ClaimRef
    missing: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    error: DranetError | None = None
    """Why devices of the claim are still in the pod; the same release may succeed later."""
    devices: tuple[PreparedDevice, ...] = ()
    """All devices of the claim."""


class _Progress(Struct):
    total: int
    begun: int = 0
    """Links that were moved or made."""


class Attachments:
    """The attached devices of this node. One lock: the kernel serialises namespace moves anyway. Methods with
    a ``deadline`` (``time.monotonic()``) wait until then for others, and for the kernel where they ask it;
    they raise :class:`KernelError` where others take longer or a namespace cannot be entered."""

    def __init__(
        self,
        store: ClaimStore,
        gate: StartGate,
        uplink_rules: Callable[[], UplinkRules] = UplinkRules,
        on_released: Callable[[ReleaseReport], None] | None = None,
        pod_links: PodLinks | None = None,
        interrupts: InterruptFiles = INTERRUPTS,
        metrics: AttachMetrics | None = None,
    ) -> None:
        """``uplink_rules`` decide, at each attach, whether the node itself needs a link. ``on_released``
        hears of releases that no caller asked for: a sandbox ended without notice."""
        self._metrics = metrics or Metrics().attach
        self._store = store
        self.gate = gate
        self._uplink_rules = uplink_rules
        self._on_released = on_released
        self._interrupts = interrupts
        self._sysfs_root = interrupts.sysfs_root
        self._lock = NodeLock(store.folder / LOCK_FILE)
        self._namespaces = HeldNamespaces(pod_links)
        self._stopped_sandboxes: set[str] = set()
        self._progress: dict[str, _Progress] = {}
        """By sandbox, while its devices are being attached."""
        self._returning_since: dict[str, float] = {}
        """By claim UID: when its NICs were first seen on neither side."""

    @contextmanager
    def locked(
        self, timeout_seconds: float = PATIENCE_SECONDS, reason: Reason | None = None
    ) -> Iterator[None]:
        """Hold every device still, on the whole node; the store is read afresh. Repeatable in a thread.
        Raises KernelError where others hold them for longer, and StoreError where the lock's file cannot be
        used, or the records are a newer driver's by now."""
        with self._lock.hold(timeout_seconds, reason):
            self._store.check_version()
            try:
                yield
            finally:
                self._namespaces.keep_only(self._store.get_all())

    def _locked_until(self, deadline: float) -> AbstractContextManager[None]:
        return self.locked(deadline - time.monotonic(), Reason.HOOK_DEADLINE_EXCEEDED)

    def attach_pod(
        self, pod: PodSandbox, *, deadline: float, expected: Sequence[PreparedClaim] | None = None
    ) -> AttachReport | None:
        """Make sure that every prepared device of the pod is in its namespace, all or nothing. Idempotent.

        It waits for others until ``deadline``, and takes the time that the drivers need from then on. It
        stops when the sandbox is stopped. ``expected`` makes it a no-op when the pod's records are no longer
        those (leases aside), or its release has begun (reconcile works from a snapshot). Returns ``None``
        when the pod has no devices, or is not to have them. Raises ClaimError for a pod on the host's network
        whose device needs a namespace, KernelError for what the kernel refused (the host is as before), and
        StoreError where the disk did: no container starts, and a later call finishes or releases."""
        with self._locked_until(deadline):
            claims = self._get_moving(pod)
            if not claims or (expected is not None and not _are_same(claims, expected)):
                return None
            if pod.id in self._stopped_sandboxes or any(c.stopped_sandbox_id == pod.id for c in claims):
                if expected is not None:  # its release has been asked for since, and waits for us
                    return None
                raise KernelError(f"pod sandbox {pod.id} of {pod.namespace}/{pod.name} has been stopped")
            check_has_own_network(pod, claims)
            self._release_earlier_sandbox(pod, claims)
            was_attached = all(self.is_attached(claim, pod.id) for claim in claims)
            is_news = not was_attached or bool(self._ask(pod, claims, verify))
            return AttachReport(self._attach(pod, claims), is_news)

    def describe_progress(self, sandbox_id: str) -> str:
        """How far the running attach of this sandbox is; empty if no attach runs."""
        progress = self._progress.get(sandbox_id)
        return f"{progress.begun} of {progress.total} devices are in the pod so far" if progress else ""

    def set_links_down(self, claim_uid: str) -> None:
        """Set the links of a prepared claim down, so that the runtime's hook need not wait for their drivers.
        A claim in a sandbox is left alone. :meth:`release_claim` sets them up again. After an error
        (DeviceError: a link is the node's uplink) the attach goes without."""
        with self.locked():
            claim = self._store.get(claim_uid)
            if claim is not None and not claim.netns_path:
                set_down(_plans_set_down(claim), self._uplink_rules())
                reached(Failpoint.PREPARE_LINKS_SET_DOWN)

    def _get_moving(self, pod: PodSandbox) -> tuple[PreparedClaim, ...]:
        return tuple(claim for claim in self._store.get_by_pod(pod.uid) if claim.plans)

    def _release_earlier_sandbox(self, pod: PodSandbox, claims: Iterable[PreparedClaim]) -> None:
        """It ended without a word."""
        for claim in claims:
            if claim.netns_path and claim.sandbox_id != pod.id:
                report = self._release(claim)
                if self._on_released is not None:
                    self._on_released(report)

    def _attach(self, pod: PodSandbox, claims: tuple[PreparedClaim, ...]) -> tuple[AttachedLink, ...]:
        netns = NetworkNamespace.open(pod.place)
        stays = all(claim.sandbox_id == pod.id for claim in claims)  # what was in the pod, also if this fails
        self._progress[pod.id] = _Progress(len(_plans(claims)))
        try:
            links = self._attach_in(netns, pod, claims)
            stays = True
        except Exception:
            self._metrics.rollbacks.inc()
            for claim in claims:
                self.gate.close(claim.claim.uid)  # it may have been open since an earlier attach
            raise
        finally:
            del self._progress[pod.id]
            if stays and not pod.is_on_host_network:
                self._namespaces.hold(pod.uid, pod.id, netns)
            else:
                netns.close()  # nothing of the pod is in it
        for claim in claims:
            if not may_be_shared(claim):
                self.gate.open(claim.claim.uid, pod.place)
            self.gate.note_attached(claim.claim.uid, pod.place)
            reached(Failpoint.ATTACH_GATE_OPENED)
        return links

    def _attach_in(
        self, netns: NetworkNamespace, pod: PodSandbox, claims: Sequence[PreparedClaim]
    ) -> tuple[AttachedLink, ...]:
        placed = self._commit_place(pod, claims, read_netns_id(netns))

        def read_nodes() -> None:
            self._commit_nodes(placed, lambda: nullcontext(netns), time.monotonic() + _DISK_SECONDS)

        def why_stop() -> str:
            return "the pod sandbox has been stopped" if pod.id in self._stopped_sandboxes else ""

        links: tuple[AttachedLink, ...] = ()
        if pod.is_on_host_network:
            read_nodes()
        else:
            links = attach(
                _plans(claims),
                netns,
                self._uplink_rules(),
                why_stop=why_stop,
                interrupts=self._interrupts,
                observe=partial(self._observe_step, pod),
                confirm=read_nodes,
            )
        reached(Failpoint.ATTACH_VERIFIED)
        return links

    def _observe_step(self, pod: PodSandbox, step: str, seconds: float) -> None:
        if step in ("move-link", "create-link"):
            self._progress[pod.id].begun += 1
        self._metrics.step_seconds.labels(step).observe(seconds)

    def _commit_place(
        self, pod: PodSandbox, claims: Sequence[PreparedClaim], netns_id: str
    ) -> Sequence[PreparedClaim]:
        placed = [replace(c, sandbox_id=pod.id, netns_path=pod.place, netns_id=netns_id) for c in claims]
        if placed != list(claims):
            self._store.put_all(placed, durable=False, deadline=time.monotonic() + _DISK_SECONDS)
            reached(Failpoint.ATTACH_PLACE_COMMITTED)
        return placed

    def _commit_nodes(
        self, claims: Sequence[PreparedClaim], open_namespace: OpenNamespace, deadline: float
    ) -> tuple[PreparedClaim, ...]:
        fresh = refresh_nodes(claims, open_namespace, self._sysfs_root)
        if fresh != tuple(claims):
            self._store.put_all(fresh, durable=False, deadline=deadline)
        return fresh

    def read_nodes(self, pod: PodSandbox, *, deadline: float) -> tuple[CharDevice, ...]:
        """The RDMA nodes for a container of a pod that has its devices, as the kernel numbers them now.
        Raises DeviceError where one is not there."""
        if not any(iter_nodes(self._get_moving(pod))):
            return ()
        with self._locked_until(deadline):
            claims = self._get_moving(pod)
            open_namespace = partial(self._namespaces.open, claims[0], pod.netns_path)
            return tuple(iter_nodes(self._commit_nodes(claims, open_namespace, deadline)))

    def find_missing(self, pod: PodSandbox, *, deadline: float) -> tuple[str, ...]:
        """Names of the pod's prepared devices that are not in its namespace as planned; asks the kernel."""
        with self._locked_until(deadline):
            claims = self._get_moving(pod)
            absent = [claim for claim in claims if not self.is_attached(claim, pod.id)]
            return _names(_plans(absent)) if absent else self._ask(pod, claims, verify)

    def find_absent(self, pod: PodSandbox, *, deadline: float) -> tuple[str, ...]:
        """Names of the pod's prepared devices that are not in its namespace at all, or were never seen there
        as planned; asks the kernel. What the pod's own processes have set on them since is theirs."""
        with self._locked_until(deadline):
            claims = self._get_moving(pod)
            if not all(self.is_attached(claim, pod.id) for claim in claims):
                return _names(_plans(claims))
            return self._ask(pod, claims, find_absent)

    def shut_if_lost(self, pod: PodSandbox, *, deadline: float) -> tuple[str, ...]:
        """Close the gates of a pod that lacks devices which are not on the host either; return their names.
        An attach would fail, after it had overwritten what the pod has set on the other devices."""
        with self._locked_until(deadline):
            claims = self._get_moving(pod)
            if not claims:
                return ()
            with self._namespaces.open(claims[0], pod.netns_path) as netns:
                lost = find_lost(_plans(claims), netns) if netns is not None else ()
            if lost:
                for claim in claims:
                    self.gate.close(claim.claim.uid)
            return lost

    def is_namespace_gone(self, claim: PreparedClaim) -> bool:
        """Whether the path no longer leads to the namespace with the claim's devices. Our descriptor may be
        its last reference."""
        with open_netns(claim.netns_path, claim.netns_id) or nullcontext() as opened:
            return opened is None

    def has_come_back(self, claim: PreparedClaim) -> bool:
        """Whether a device of a claim without a sandbox is on the host as a pod had configured it."""
        return bool(find_strayed(claim.plans))

    def _ask(
        self,
        pod: PodSandbox,
        claims: Sequence[PreparedClaim],
        find: Callable[[Sequence[AttachPlan], NetworkNamespace], tuple[str, ...]],
    ) -> tuple[str, ...]:
        """What ``find`` misses in the namespace of the pod: all, where that is gone."""
        if not claims:
            return ()
        with self._namespaces.open(claims[0], pod.netns_path) as netns:
            plans = _plans(claims)
            return _names(plans) if netns is None else find(plans, netns)

    def is_attached(self, claim: PreparedClaim, sandbox_id: str) -> bool:
        """Whether the claim's devices were verified in this sandbox."""
        current = self._store.get(claim.claim.uid)
        return (
            current is not None
            and current.sandbox_id == sandbox_id
            and self.gate.is_attached(claim.claim.uid)
        )

    def release_sandbox(self, pod: PodSandbox, *, timeout_seconds: float) -> tuple[ReleaseReport, ...]:
        """Return the devices that this very sandbox holds (a newer one of the same pod keeps its own). One
        report for each claim; a claim that is stuck (``error``) keeps no other one. ``timeout_seconds`` is
        how long to wait for others, and for the kernel to bring NICs back from a dead namespace."""
        self._stopped_sandboxes.add(pod.id)  # at once: a running attach must not attach again after us
        reports: dict[str, ReleaseReport] = {}
        for _ in _looks(timeout_seconds):
            reports = {uid: r for uid, r in reports.items() if not isinstance(r.error, StillReturning)}
            reports |= {r.claim.uid: r for r in self._release_placed(pod, timeout_seconds)}
            if not any(isinstance(r.error, StillReturning) for r in reports.values()):
                break
        return tuple(reports.values())

    def _release_placed(self, pod: PodSandbox, timeout_seconds: float) -> tuple[ReleaseReport, ...]:
        with self.locked(timeout_seconds):
            claims = self._get_moving(pod)
            missed = [c for c in claims if not c.sandbox_id and c.stopped_sandbox_id != pod.id]
            if missed:
                self._store.put_all([_stopped(claim, pod.id) for claim in missed], durable=False)
            placed = [claim for claim in claims if claim.sandbox_id == pod.id]
            return tuple(self._try_release(_stopped(c, pod.id), pod.netns_path) for c in placed)

    def _try_release(self, claim: PreparedClaim, netns_path: str) -> ReleaseReport:
        try:
            return self._release(claim, netns_path)
        except DranetError as error:
            return ReleaseReport(claim.claim, error=error, devices=claim.devices)
        except Exception as error:
            log.exception("bug in the release of claim %s", claim.claim)
            bug = KernelError(f"bug in the driver: {error!r}", reason=Reason.DETACH_FAILED)
            return ReleaseReport(claim.claim, error=bug)

    def forget_sandbox(self, sandbox_id: str) -> None:
        """The runtime has removed the sandbox; it cannot come back."""
        self._stopped_sandboxes.discard(sandbox_id)

    def forget_sandboxes_except(self, sandbox_ids: Iterable[str]) -> None:
        """The runtime knows these and no others; removals may have been missed."""
        self._stopped_sandboxes.intersection_update(sandbox_ids)

    def release_claim(
        self, claim_uid: str, *, expected: PreparedClaim | None = None, return_seconds: float = 0.0
    ) -> ReleaseReport | None:
        """Return a claim's devices to the host, wherever they are; ``None`` when no pod has had them.

        ``expected`` makes it a no-op when the record has changed (leases aside) since a snapshot.
        ``return_seconds`` is how long to wait for NICs that the kernel brings back from a dead namespace; the
        lock is free meanwhile, so the caller must not hold it. Raises KernelError (``DETACH_FAILED``) while a
        device is in the pod, or on its way back (:class:`StillReturning`); the same call may succeed
        later."""
        returning: StillReturning | None = None
        for _ in _looks(return_seconds):
            try:
                return self._release_now(claim_uid, expected)
            except StillReturning as error:
                returning = error
        assert returning is not None
        raise returning

    def _release_now(self, claim_uid: str, expected: PreparedClaim | None) -> ReleaseReport | None:
        with self.locked():
            release, claim = self._release, self._store.get(claim_uid)
            if claim is None:  # its record may be readable in part
                release, claim = self._restore, self._store.get_set_aside(claim_uid)
            elif expected is not None and not _are_same([claim], [expected]):
                return None
            if claim is None:
                return None
            if claim.netns_path or self.has_come_back(claim):
                return release(claim)
            self._set_up_again(claim)
            return None

    def _set_up_again(self, claim: PreparedClaim) -> None:
        """Restore the links that :meth:`set_links_down` has set down and no pod has had."""
        plans = _plans_set_down(claim)
        if find_down(plans):
            for problem in detach(plans, None, interrupts=self._interrupts).problems:
                log.warning("not restored: %s", problem, extra={"context": {"claim": claim.claim}})

    def _release(self, claim: PreparedClaim, netns_path: str = "") -> ReleaseReport:
        report = self._restore(claim, netns_path)
        self._store.put_all([replace(claim, sandbox_id="", netns_path="", netns_id="")], durable=False)
        reached(Failpoint.RELEASE_PLACE_CLEARED)
        return report

    def _restore(self, claim: PreparedClaim, netns_path: str = "") -> ReleaseReport:
        start = time.perf_counter()
        try:
            self.gate.close(claim.claim.uid)
        except StoreError as error:  # it shuts by itself with the sandbox, whose end this is
            log.warning("%s", error)
        reached(Failpoint.RELEASE_GATE_CLOSED)
        with self._namespaces.open(claim, netns_path) as netns:
            report = _detach(claim, netns, self._interrupts)
        self._check_returned(claim, report.missing if netns is None else ())
        planned = Counter(plan.device for plan in claim.plans)  # several times, where it has several shares
        stuck = planned - Counter((*report.restored, *report.missing))
        if stuck:
            raise KernelError(
                f"could not restore {', '.join(stuck)}: {'; '.join(report.problems)}",
                operation="detach",
                reason=Reason.DETACH_FAILED,
            )
        reached(Failpoint.RELEASE_DEVICES_HOME)
        self._metrics.detach_seconds.observe(time.perf_counter() - start)
        return ReleaseReport(claim.claim, report.missing, report.problems, devices=claim.devices)

    def _check_returned(self, claim: PreparedClaim, missing: Sequence[str]) -> None:
        """Raises StillReturning where a PCI function is there and its link on neither side: a NIC that is
        taken for lost too early would come back as the pod had it, and stay so."""
        functions, hardware = self._sysfs_root / "bus/pci/devices", _hardware(claim)
        awaited = [name for name in missing if name in hardware and (functions / hardware[name]).exists()]
        if awaited:
            waited = time.monotonic() - self._returning_since.setdefault(claim.claim.uid, time.monotonic())
            if waited < RETURN_SECONDS:
                raise StillReturning(
                    f"{', '.join(awaited)}: the kernel has not brought the link back yet from the pod's "
                    f"network namespace, which is gone ({waited:.1f} s)",
                    operation="detach",
                    reason=Reason.DETACH_FAILED,
                )
        self._returning_since.pop(claim.claim.uid, None)

    def close(self) -> None:
        """Attached devices stay where they are."""
        with self._lock.close() as is_still:
            if is_still:
                self._namespaces.keep_only(())


def _detach(claim: PreparedClaim, netns: NetworkNamespace | None, interrupts: InterruptFiles) -> DetachReport:
    """Where the path to the namespace is gone, a process that lives in it or a mount of it elsewhere may keep
    the namespace, and the NICs in it."""
    report = detach(claim.plans, netns, interrupts=interrupts)
    if netns is None and not _hardware(claim).keys().isdisjoint(report.missing):
        with find_netns(claim.netns_id, near=claim.netns_path) as hidden:
            if hidden is not None:
                return detach(claim.plans, hidden, interrupts=interrupts)
    return report


def _hardware(claim: PreparedClaim) -> dict[str, str]:
    """The PCI address of each device that has one: these outlive a namespace."""
    devices = (prepared.device for prepared in claim.devices)
    return {device.name: device.pci_address for device in devices if device.pci_address}


def _looks(seconds: float) -> Iterator[None]:
    """Look once, and again until ``seconds`` are over."""
    deadline = time.monotonic() + seconds
    yield
    while time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        yield


def _plans_set_down(claim: PreparedClaim) -> tuple[AttachPlan, ...]:
    return tuple(d.plan for d in claim.devices if d.plan is not None and d.is_set_down_early)


def _plans(claims: Sequence[PreparedClaim]) -> tuple[AttachPlan, ...]:
    return tuple(plan for claim in claims for plan in claim.plans)


def _names(plans: Sequence[AttachPlan]) -> tuple[str, ...]:
    return tuple(plan.device for plan in plans)


def _stopped(claim: PreparedClaim, sandbox_id: str) -> PreparedClaim:
    """Recorded for other instances and later processes: the runtime may still list the sandbox as running."""
    return replace(claim, stopped_sandbox_id=sandbox_id)


def _are_same(claims: Sequence[PreparedClaim], expected: Sequence[PreparedClaim]) -> bool:
    """Leases aside, which may have been renewed meanwhile."""
    return [claim.without_leases() for claim in claims] == [claim.without_leases() for claim in expected]
