"""The runtime's hooks (``runtime.nri.RuntimeHooks``), and the pod sandboxes that they have reported.

Called on the NRI thread, one at a time, with every other pod of the node waiting behind. So: memory and the
kernel only, no API server, no slow disk. A late or missing answer lets the pod start without its NIC, so what
is not done in time goes on behind the answer, and the pod's containers are refused, or wait for the start
gate, until all devices are there (decision 023). During an update the runtime calls two instances of the
driver, one after the other; the second one finds the work done, and has nothing to report and nothing to
add."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dranet.driver.attachments import Attachments, ReleaseReport
from dranet.driver.containers import WorkloadPack
from dranet.driver.executor import run_with_deadline
from dranet.driver.metadata import DeviceMetadata
from dranet.driver.reports.announcer import Announcer
from dranet.driver.start_gate import StartWindows
from dranet.errors import ClaimError, DranetError, HookDeadlineError, Reason
from dranet.failpoints import Failpoint, reached
from dranet.model.claim import (
    MEMLOCK,
    UNLIMITED,
    ClaimRef,
    Container,
    ContainerAdjustment,
    PodSandbox,
    Rlimit,
)
from dranet.model.plan import PreparedClaim, PreparedDevice
from dranet.model.status import AttachedLink
from dranet.store.claim_store import ClaimStore

log = logging.getLogger(__name__)

ASSUMED_REQUEST_TIMEOUT_SECONDS = 2.0
"""``plugin_request_timeout`` of a runtime that does not report it (before NRI 0.7): the default of all."""
T = TypeVar("T")
_USABLE_SHARE = 0.85
"""The part of the runtime's timeout that a hook may use; the rest is for transport on a busy node."""
_WAIT_SHARE = 0.85
"""The part of a container's hook in which it waits for devices; the rest is for a refusal with the reason."""
BEHIND_SECONDS = 60.0
"""How long work that goes on behind a hook's answer waits for other attaches and releases, and for NICs that
the kernel brings back."""


class RuntimeSnapshot(Struct, frozen=True):
    """Pods and records, read so that what differs is not just under way."""

    pods: tuple[PodSandbox, ...] | None
    """``None`` while the runtime is away, and its pods are unknown."""
    records: tuple[PreparedClaim, ...]
    placed_before: Mapping[str, str]
    """Sandboxes by claim, as they were some time before the runtime's pods were asked for. A hook of another
    instance may have attached a pod since, which is then in the records and not among the pods."""
    is_news: bool = True
    """The first look after a connection: what is in place is checked as a whole, and reported to users."""
    known_before: frozenset[str] | None = None
    """Sandboxes that the runtime had reported some time before: the hook of any other may be under way.
    ``None``: does not matter."""


def placements(records: Iterable[PreparedClaim]) -> Mapping[str, str]:
    """Sandboxes by claim UID; empty where the claim is in none."""
    return {record.claim.uid: record.sandbox_id for record in records}


def lives(pod: PodSandbox) -> bool:
    """Whether the sandbox has a network namespace of its own that is there, or has a process on the host's
    network. For others a process means nothing: some runtimes (CRI-O) run sandboxes without any. Where the
    look fails nothing is attached; a restore looks by itself."""
    if pod.is_on_host_network:
        return pod.running
    try:
        return Path(pod.netns_path).exists()
    except OSError:
        return False


class RuntimeView:
    """Pod sandboxes by id. Updated on the NRI thread, read on any. After a restart of the runtime
    (containerd) the end of older ones is not reported: see :func:`lives`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pods: dict[str, PodSandbox] | None = None
        self.patience_seconds = ASSUMED_REQUEST_TIMEOUT_SECONDS
        """How long the runtime waits for a plugin."""

    def replace(self, pods: Iterable[PodSandbox]) -> None:
        with self._lock:
            self._pods = {pod.id: _strip(pod) for pod in pods}

    def note(self, pod: PodSandbox) -> None:
        with self._lock:
            if self._pods is not None:
                self._pods[pod.id] = _strip(pod)

    def remove(self, sandbox_id: str) -> None:
        with self._lock:
            if self._pods is not None:
                self._pods.pop(sandbox_id, None)

    def lose(self) -> None:
        """The runtime is away; when it is back it reports everything again."""
        with self._lock:
            self._pods = None

    def read(self) -> tuple[PodSandbox, ...] | None:
        """Every sandbox that has not stopped, in the order in which they came; ``None``: not known."""
        with self._lock:
            return None if self._pods is None else tuple(self._pods.values())


def _strip(pod: PodSandbox) -> PodSandbox:
    """Annotations may be long, and there may be hundreds of pods."""
    return replace(pod, annotations={}) if pod.annotations else pod


class SnapshotQueue:
    """From the NRI thread to the event loop; only the newest snapshot counts."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._newest: RuntimeSnapshot | None = None
        self._filled = asyncio.Event()

    def put(self, snapshot: RuntimeSnapshot) -> None:
        self._loop.call_soon_threadsafe(self._store, snapshot)

    async def get(self) -> RuntimeSnapshot:
        await self._filled.wait()
        self._filled.clear()
        assert self._newest is not None
        return self._newest

    def _store(self, snapshot: RuntimeSnapshot) -> None:
        self._newest = snapshot
        self._filled.set()


def ignore(*_: object) -> None:
    """The listener of a hook that has none."""


class HookListeners(Struct, frozen=True):
    """Called in the hooks, so they must not block."""

    synchronized: Callable[[RuntimeSnapshot], None]
    """The runtime has listed all its pods."""
    claim_wanted: Callable[[ClaimRef], None] = ignore
    """A pod was refused that brings a claim of another pod."""
    container_seen: Callable[[PodSandbox, Container], None] = ignore
    """A pod with claims has this container, or is about to get it."""
    late: Callable[[], None] = ignore
    """A hook was answered before its work was done."""


class ContainerServices(Struct, frozen=True):
    """What containers need besides the pod's devices; ``None`` where it is switched off."""

    windows: StartWindows
    metadata: DeviceMetadata | None = None
    workload: WorkloadPack | None = None


class PodHooks:
    """What each hook does for pods that have claims of ours; the others pass untouched."""

    def __init__(
        self,
        store: ClaimStore,
        attachments: Attachments,
        announcer: Announcer,
        listeners: HookListeners,
        budget_seconds: float,
        view: RuntimeView | None = None,
        containers: ContainerServices | None = None,
    ) -> None:
        self._store = store
        self._attachments = attachments
        self._announcer = announcer
        self._listeners = listeners
        self._view = view or RuntimeView()
        containers = containers or ContainerServices(StartWindows(attachments.gate))
        self._windows = containers.windows
        self._metadata = containers.metadata
        self._workload = containers.workload
        self._wanted_seconds = budget_seconds
        self._budget_seconds = min(budget_seconds, ASSUMED_REQUEST_TIMEOUT_SECONDS * _USABLE_SHARE)
        self._placed_before: Mapping[str, str] = {}

    def connected(
        self, runtime_name: str, runtime_version: str, request_timeout_seconds: float | None
    ) -> None:
        """Take as much time as was configured and the runtime has; the list of pods comes next. NRI before
        0.7 (containerd 1.7) does not report its timeout: then the setting is believed."""
        self._placed_before = placements(self._store.get_all())
        needed = self._wanted_seconds / _USABLE_SHARE
        patience = request_timeout_seconds or max(ASSUMED_REQUEST_TIMEOUT_SECONDS, needed)
        self._view.patience_seconds = patience
        usable = patience * _USABLE_SHARE
        self._budget_seconds = min(self._wanted_seconds, usable)
        budget = f"{self._budget_seconds:.3g}"
        context = {"runtime": f"{runtime_name} {runtime_version}", "budget_seconds": budget}
        log.info("connected to the runtime", extra={"context": context})
        if usable < self._wanted_seconds:
            log.warning(
                "hook_budget_seconds is %g, and the runtime waits no longer than %g s for a plugin: a hook "
                "takes %s s at most",
                self._wanted_seconds,
                patience,
                budget,
            )
        elif patience > (request_timeout_seconds or ASSUMED_REQUEST_TIMEOUT_SECONDS):
            log.warning(
                "hook_budget_seconds is %g, and the runtime does not report how long it waits for a plugin; "
                "its plugin_request_timeout must be %.3g s or more, or pods start without their devices",
                self._wanted_seconds,
                patience,
            )

    def disconnected(self, reason: str) -> None:
        self._view.lose()
        log.warning("the runtime is away (%s); reconnecting", reason)

    def synchronize(self, pods: Sequence[PodSandbox], containers: Sequence[Container] = ()) -> None:
        """Take a snapshot and answer at once; reconcile follows outside the hook."""
        self._view.replace(pods)
        self._attachments.forget_sandboxes_except(pod.id for pod in pods)
        records = self._store.get_all()
        known = {pod.id: pod for pod in pods}
        for container in containers:
            if (pod := known.get(container.pod_sandbox_id)) is not None:
                if container.running:
                    self._report_bare(pod, container)
                if self._moving_claims(pod):
                    self._listeners.container_seen(pod, container)
        self._listeners.synchronized(RuntimeSnapshot(tuple(pods), records, self._placed_before))

    def _report_bare(self, pod: PodSandbox, container: Container) -> None:
        """The container may have been started while no driver was there to see to its devices."""
        for error in self._find_reasons_bare(pod, container):
            log.error("container runs without its devices: %s", error, extra=_about(pod, container))
            self._announcer.runs_bare(pod, container.name, error)

    def _find_foreign(
        self, pod: PodSandbox, container: Container
    ) -> Iterator[tuple[ClaimError, ClaimRef | None]]:
        """Claims whose ready files a container mounts although its pod has none of their devices, and why.
        The kubelet prepares a claim once, for its first pod, so the driver was not asked about this pod, and
        the ready file exists all the same. ``None``: the claim is not prepared here."""
        find_claim = self._attachments.gate.find_claim
        for claim_uid in filter(None, (find_claim(mount.source) for mount in container.mounts)):
            record = self._store.get(claim_uid)
            subject = f"pod {pod.namespace}/{pod.name} has no devices of claim {claim_uid}"
            if record is None:
                yield ClaimError(f"{subject}: no such claim", reason=Reason.UNSUPPORTED_CLAIM), None
            elif record.pod.uid != pod.uid:
                error = ClaimError(
                    f"{subject}: claim {record.claim} is prepared for pod {record.pod}",
                    hint="it goes on to this pod when that one has ended; with a ResourceClaimTemplate each "
                    "pod gets a claim of its own",
                    reason=Reason.UNSUPPORTED_CLAIM,
                )
                yield error, record.claim

    def _find_reasons_bare(self, pod: PodSandbox, container: Container) -> Iterator[ClaimError]:
        """Nothing held the container back: it names no claim, as pods need not, or one of another pod whose
        containers were just being started."""
        yield from (error for error, _ in self._find_foreign(pod, container))
        claims = self._moving_claims(pod)
        late = [claim for claim in claims if pod.id not in (claim.sandbox_id, claim.stopped_sandbox_id)]
        if late:
            names = ", ".join(str(claim.claim) for claim in late)
            yield ClaimError(
                f"the devices of claim {names} were not in its pod when it was started; they come now",
                hint="restart it if it has looked for them; a container that names the claim in "
                "resources.claims waits for them",
                reason=Reason.ATTACH_FAILED,
            )

    def run_pod_sandbox(self, pod: PodSandbox) -> bool:
        """Attach the pod's devices; slow ones behind the answer, and no container of the pod starts before
        they all are. Returns whether the pod has any. After an error the host is as before."""
        self._view.note(pod)
        claims = self._moving_claims(pod)
        if claims:
            try:
                self._attach_with_deadline(pod, claims, lambda _: self._attach(pod, claims))
            except HookDeadlineError as late:
                log.info("%s; its containers wait for it", late.message, extra=_about(pod))
            reached(Failpoint.ATTACH_BEFORE_ANSWER)
        return bool(claims)

    def create_container(self, pod: PodSandbox, container: Container) -> ContainerAdjustment:
        """Look whether the pod's devices are there and make up for what is not; then add the RDMA nodes and
        limits that they need. The kubelet asks again after an error: they are not all there yet, or the
        container brings a claim that another pod has."""
        self._view.note(pod)
        if self._store.is_newer:
            return ContainerAdjustment()
        self._check_owner(pod, container)
        claims = self._moving_claims(pod)
        extras: ContainerAdjustment | None = None
        if claims:
            self._listeners.container_seen(pod, container)
            let_start = partial(self._let_start, pod, container, claims)
            try:
                extras = self._attach_with_deadline(pod, claims, let_start)
            except HookDeadlineError as late:
                refusal = HookDeadlineError(
                    f"the devices of pod {pod.namespace}/{pod.name} are still being attached: "
                    + (self._attachments.describe_progress(pod.id) or late.message),
                    hint="the attach goes on, and the kubelet tries the container again",
                )
                self._announcer.container_refused(pod, refusal)
                raise refusal from late
            reached(Failpoint.ATTACH_BEFORE_CONTAINER)
        devices = [device for claim in claims for device in claim.devices if device.plan is not None]
        adjustment = replace(extras or ContainerAdjustment(), rlimits=_rlimits(devices, container))
        return adjustment.without(container)

    def start_container(self, pod: PodSandbox, container: Container) -> bool:
        """The container has its mounts: no other container may start with them. Returns whether its pod has
        devices. Where the disk refuses, or hangs, the regular look shuts the gates later: an error here would
        end the container."""
        claims = self._moving_claims(pod)
        if claims:
            end = partial(self._windows.end, pod.uid, container.id, claims)
            what = f"shutting the gates of {pod.namespace}/{pod.name}"
            try:
                run_with_deadline(end, self._budget_seconds, what)
            except DranetError as error:
                log.warning("left open for now: %s", error)
        return bool(claims)

    def _check_owner(self, pod: PodSandbox, container: Container) -> None:
        for error, claim in self._find_foreign(pod, container):
            log.warning("container refused: %s", error, extra=_about(pod, container))
            self._announcer.container_refused(pod, error)
            if claim is not None:
                self._listeners.claim_wanted(claim)
            raise error

    def _let_start(
        self, pod: PodSandbox, container: Container, claims: Sequence[PreparedClaim], deadline: float
    ) -> ContainerAdjustment:
        """Its RDMA nodes, and what it gets for the programs in it, if any of its claims asks for that."""
        missing = self._attachments.find_missing(pod, deadline=deadline)
        if missing:  # the sandbox started without us, or a device was taken away since
            log.warning("attaching what the pod lacks: %s", ", ".join(missing), extra=_about(pod, container))
            self._attach(pod, claims)
        elif self._metadata is not None and (links := self._metadata.refreshed(claims, pod.netns_path)):
            self._announcer.attached(claims, links)
        _check_deadline(deadline)
        nodes = self._attachments.read_nodes(pod, deadline=deadline)
        extras = self._workload.adjust(pod, container, claims) if self._workload is not None else None
        _check_deadline(deadline)
        self._windows.begin(pod.uid, container.id, claims)
        return replace(extras or ContainerAdjustment(), devices=nodes)

    def stop_pod_sandbox(self, pod: PodSandbox) -> bool:
        """Give the sandbox's devices back. Returns whether it had any. What takes longer goes on behind the
        answer: we hold the namespace, so the devices in it wait for us. An error is about claims whose
        devices are still in the pod; those of the others are back."""
        self._view.remove(pod.id)
        self._windows.forget(pod.uid)
        if not self._moving_claims(pod):
            return False
        try:
            reports = self._run_with_deadline(partial(self._release, pod), pod, "restoring the devices")
        except HookDeadlineError as late:
            log.info("%s", late.message, extra=_about(pod))
            return True
        for report in reports:
            if report.error is not None:
                raise report.error
        reached(Failpoint.RELEASE_BEFORE_STOP_ANSWER)
        return bool(reports)

    def _release(self, pod: PodSandbox) -> tuple[ReleaseReport, ...]:
        reports = self._attachments.release_sandbox(pod, timeout_seconds=BEHIND_SECONDS)
        for report in reports:
            about = _about(pod, claim=report.claim)
            if report.error is None:
                log.info("released", extra=about)
                if self._metadata is not None:
                    self._metadata.released(report.claim.uid)
                self._announcer.released(report)
            else:
                log.warning("release failed: %s", report.error, extra=about)
                self._announcer.release_failed(report.claim, report.error, report.devices)
        return reports

    def remove_pod_sandbox(self, pod: PodSandbox) -> bool:
        """Usually nothing is left to do; a missed Stop is made good here."""
        found = self.stop_pod_sandbox(pod)
        self._attachments.forget_sandbox(pod.id)
        return found

    def _moving_claims(self, pod: PodSandbox) -> tuple[PreparedClaim, ...]:
        """None where the records are a newer driver's by now: its hooks know them."""
        claims = () if self._store.is_newer else self._store.get_by_pod(pod.uid)
        return tuple(claim for claim in claims if claim.plans)

    def _attach_with_deadline(
        self, pod: PodSandbox, claims: Sequence[PreparedClaim], work: Callable[[float], T]
    ) -> T | None:
        """Do the work of a hook that attaches, given by when it has to end (``time.monotonic()``) to count.
        What fails becomes the runtime's answer, if that waits for it (HookDeadlineError: it goes on), and
        goes to the log and to users in any case. ``None`` where a newer driver does it."""
        deadline = time.monotonic() + self._budget_seconds * _WAIT_SHARE
        attempt = partial(self._do, pod, claims, partial(work, deadline))
        return self._run_with_deadline(attempt, pod, "attaching")

    def _run_with_deadline(self, work: Callable[[], T], pod: PodSandbox, what: str) -> T:
        try:
            return run_with_deadline(work, self._budget_seconds, f"{what} of {pod.namespace}/{pod.name}")
        except HookDeadlineError:
            self._listeners.late()
            raise

    def _do(self, pod: PodSandbox, claims: Sequence[PreparedClaim], work: Callable[[], T]) -> T | None:
        try:
            return work()
        except HookDeadlineError:
            raise  # nothing has failed
        except DranetError as error:
            if error.reason is Reason.STORE_NEWER:
                return None  # since we looked: the hook of the newer driver does it
            log.warning("attach failed: %s", error, extra=_about(pod, reason=error.reason))
            if self._keeps_devices(pod, claims, error):
                self._announcer.container_refused(pod, error)
            else:
                self._announcer.attach_failed(claims, error)
            raise

    def _keeps_devices(self, pod: PodSandbox, claims: Sequence[PreparedClaim], error: DranetError) -> bool:
        """The devices were in the pod before, and stay; with an address less, where a lease has ended."""
        if error.reason is Reason.DHCP_LEASE_EXPIRED:
            return all(claim.sandbox_id == pod.id for claim in claims)
        return all(self._attachments.is_attached(claim, pod.id) for claim in claims)

    def _attach(self, pod: PodSandbox, claims: Sequence[PreparedClaim]) -> None:
        report = self._attachments.attach_pod(pod, deadline=time.monotonic() + BEHIND_SECONDS)
        if report is None:
            return  # unprepared meanwhile
        claims = self._moving_claims(pod)  # the attach has noted names and nodes of RDMA devices
        links: Sequence[AttachedLink] = report.links
        if self._metadata is not None:
            links = self._metadata.attached(claims, links, pod.netns_path)
            reached(Failpoint.ATTACH_METADATA_WRITTEN)
        if not report.is_news:
            self._announcer.found_attached(claims, links)
            return
        names = ",".join(f"{link.device}={link.pod_ifname}" for link in links)
        log.info("attached", extra=_about(pod, links=names))
        self._announcer.attached(claims, links)


def _about(pod: PodSandbox, container: Container | None = None, **more: object) -> dict[str, object]:
    named = {} if container is None else {"container": container.name}
    return {"context": {"pod": f"{pod.namespace}/{pod.name}", **named, **more}}


def _check_deadline(deadline: float) -> None:
    """The container is refused by now, and its start window would stay open."""
    if time.monotonic() >= deadline:
        raise HookDeadlineError("the devices were attached behind the runtime's answer")


def _rlimits(devices: Iterable[PreparedDevice], container: Container) -> tuple[Rlimit, ...]:
    """The memory that the container may lock: the most that one of the claims asks for. A container that
    may lock more keeps that."""
    asked = [d.rdma.memlock_bytes for d in devices if d.rdma.memlock_bytes is not None]
    if not asked:
        return ()
    most = UNLIMITED if UNLIMITED in asked else max(asked)
    current = next((limit for limit in reversed(container.rlimits) if limit.type == MEMLOCK), None)
    if current is None:
        return (Rlimit(MEMLOCK, soft=most, hard=most),)
    if current.permits(most):
        return ()
    keeps_hard = current.hard == UNLIMITED or UNLIMITED != most < current.hard
    return (Rlimit(MEMLOCK, soft=most, hard=current.hard if keeps_hard else most),)
