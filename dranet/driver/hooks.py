"""The runtime's hooks: pod sandbox runs -> attach; stops -> give back; container created -> its devices.

Called on the NRI thread, one at a time, with every other pod of the node waiting behind. So: memory and the
kernel only, no API server, no slow disk. A hook whose work is not done in time answers with an error, because
a late or missing answer lets the pod start without its NIC; what was done is undone, if need be behind the
answer. Implements ``runtime.nri.RuntimeHooks``.

During an update two instances of the driver are connected, and the runtime calls each of them for each event,
one after the other. Whoever comes second finds the work done, and has nothing to tell and nothing to add.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from dranet import marks
from dranet.driver.attachments import Attachments, ReleaseReport
from dranet.driver.in_time import run_in_time
from dranet.driver.metadata.device_metadata import DeviceMetadata
from dranet.driver.reconcile.runtime_view import (
    ASSUMED_REQUEST_TIMEOUT_SECONDS,
    RuntimeSnapshot,
    RuntimeView,
    placements,
)
from dranet.driver.reports.announce import Announcer
from dranet.driver.start_windows import StartWindows
from dranet.driver.workload.pack import WorkloadPack
from dranet.errors import ClaimError, DranetError, Reason
from dranet.model.claim import ClaimRef
from dranet.model.plan import PreparedClaim, PreparedDevice
from dranet.model.sandbox import MEMLOCK, UNLIMITED, Container, ContainerAdjustment, PodSandbox, Rlimit
from dranet.model.status import AttachedLink
from dranet.store.claim_store import ClaimStore

log = logging.getLogger(__name__)

T = TypeVar("T")

_USABLE_SHARE = 0.85
"""Of the runtime's patience. The rest is for the way there and back, on a node that is busy."""

_ATTACH_SHARE = 0.85
"""Of a hook's time, until which attaching may begin another step. A device in firmware's hands takes a tenth
of a second and more, so eight need most of a hook; to undo them goes on behind the answer."""

ContainerListener = Callable[[PodSandbox, Container], None]
"""Told of each container of a pod that has claims, in the hook, so it must not block."""

LATE_RELEASE_SECONDS = 30.0
"""How long the give-back of what was attached too late waits for others. No runtime waits for it."""


class PodHooks:
    """What each hook does for pods that have claims of ours; the others pass untouched."""

    def __init__(
        self,
        store: ClaimStore,
        attachments: Attachments,
        announcer: Announcer,
        on_synchronized: Callable[[RuntimeSnapshot], None],
        budget_seconds: float,
        metadata: DeviceMetadata | None = None,
        on_waiting: Callable[[ClaimRef], None] = lambda _: None,
        view: RuntimeView | None = None,
        windows: StartWindows | None = None,
        workload: WorkloadPack | None = None,
        on_container: ContainerListener = lambda _pod, _container: None,
        on_late: Callable[[], None] = lambda: None,
    ) -> None:
        """``metadata`` tells containers of their devices; ``None``: nobody does. ``on_waiting`` is told of a
        claim that another pod waits for; it must not block. ``view`` is kept to what the runtime tells.
        ``windows`` let containers start. ``workload`` gives them what is for the programs in them; ``None``:
        nobody does. ``on_container`` is told of each container of a pod with devices, ``on_late`` of each
        hook that was not done in time."""
        self._store = store
        self._attachments = attachments
        self._announcer = announcer
        self._on_synchronized = on_synchronized
        self._metadata = metadata
        self._on_waiting = on_waiting
        self._view = view or RuntimeView()
        self._windows = windows or StartWindows(attachments.gate)
        self._workload = workload
        self._on_container = on_container
        self._on_late = on_late
        self._wanted_seconds = budget_seconds
        self._budget_seconds = min(budget_seconds, ASSUMED_REQUEST_TIMEOUT_SECONDS * _USABLE_SHARE)
        self._patience_seconds = ASSUMED_REQUEST_TIMEOUT_SECONDS
        self._placed_before: Mapping[str, str] = {}

    def connected(
        self, runtime_name: str, runtime_version: str, request_timeout_seconds: float | None
    ) -> None:
        """Take as much time as was configured and the runtime has; the list of pods comes next."""
        self._placed_before = placements(self._store.get_all())
        self._patience_seconds = request_timeout_seconds or ASSUMED_REQUEST_TIMEOUT_SECONDS
        self._view.patience_seconds = self._patience_seconds
        usable = self._patience_seconds * _USABLE_SHARE
        self._budget_seconds = min(self._wanted_seconds, usable)
        context = {
            "runtime": f"{runtime_name} {runtime_version}",
            "budget_seconds": f"{self._budget_seconds:.3g}",
        }
        log.info("connected to the runtime", extra={"context": context})
        if usable < self._wanted_seconds:
            log.warning(
                "hook_budget_seconds is %g, and the runtime waits no longer than %g s for a plugin%s: a hook "
                "takes %.3g s at most",
                self._wanted_seconds,
                self._patience_seconds,
                "" if request_timeout_seconds else " by default",
                self._budget_seconds,
            )

    def disconnected(self, reason: str) -> None:
        self._view.lose()
        log.warning("the runtime is away (%s); reconnecting", reason)

    def synchronize(self, pods: Sequence[PodSandbox], containers: Sequence[Container] = ()) -> None:
        """Take a snapshot and answer at once; reconcile follows outside the hook."""
        self._view.replace(pods)
        self._attachments.forget_sandboxes_except(pod.id for pod in pods)
        records = self._store.get_all()
        self._tell_bare(pods, containers)
        self._tell_containers(pods, containers)
        self._on_synchronized(RuntimeSnapshot(tuple(pods), records, self._placed_before))

    def _tell_containers(self, pods: Sequence[PodSandbox], containers: Iterable[Container]) -> None:
        known = {pod.id: pod for pod in pods if self._moving_claims(pod)}
        for container in containers:
            pod = known.get(container.pod_sandbox_id)
            if pod is not None:
                self._on_container(pod, container)

    def _tell_bare(self, pods: Sequence[PodSandbox], containers: Iterable[Container]) -> None:
        """Containers that were started while no driver was there to see to their devices."""
        known = {pod.id: pod for pod in pods}
        for container in containers:
            pod = known.get(container.pod_sandbox_id)
            if pod is not None and container.running:
                for error in self._find_lacks(pod, container):
                    context = {"pod": f"{pod.namespace}/{pod.name}", "container": container.name}
                    log.error("container runs without its devices: %s", error, extra={"context": context})
                    self._announcer.runs_bare(pod, container.name, error)

    def _find_lacks(self, pod: PodSandbox, container: Container) -> Iterator[ClaimError]:
        """Nothing held the container back: it names no claim, as pods need not, or one of another pod whose
        containers were just being started."""
        for foreign in self._attachments.find_foreign(pod, container.mounts):
            yield foreign.describe(pod)
        late = [
            claim
            for claim in self._moving_claims(pod)
            if pod.id not in (claim.sandbox_id, claim.stopped_sandbox_id)
        ]
        if late:
            names = ", ".join(str(claim.claim) for claim in late)
            yield ClaimError(
                f"the devices of claim {names} were not in its pod when it was started; they come now",
                hint="restart it if it has looked for them; a container that names the claim in "
                "resources.claims waits for them",
                reason=Reason.ATTACH_FAILED,
            )

    def run_pod_sandbox(self, pod: PodSandbox) -> bool:
        """Attach the pod's devices. Returns whether the pod has any.

        Raises:
            DranetError: they are not attached, and the host is as before.
        """
        self._view.note(pod)
        claims = self._moving_claims(pod)
        if claims:
            attach = partial(self._attach, pod, claims)
            self._in_time(pod, claims, "attaching", attach, lambda _: self._take_back(pod))
            marks.reached(marks.Step.ATTACH_BEFORE_ANSWER)
        return bool(claims)

    def create_container(self, pod: PodSandbox, container: Container) -> ContainerAdjustment:
        """Look whether the pod's devices are there and make up for what is not; then add the RDMA nodes and
        limits that they need.

        Raises:
            DranetError: they are not all there, or the container brings a claim that another pod has.
        """
        self._view.note(pod)
        if self._store.is_newer:
            return ContainerAdjustment()
        self._check_owner(pod, container)
        claims = self._moving_claims(pod)
        extras: ContainerAdjustment | None = None
        if claims:
            self._on_container(pod, container)
            let_start = partial(self._let_start, pod, container, claims)
            # Late or not, what is there stays: other containers of the pod may be at work with it.
            extras = self._in_time(pod, claims, "looking for the devices", let_start)
            marks.reached(marks.Step.ATTACH_BEFORE_CONTAINER)
        devices = [device for claim in claims for device in claim.devices if device.plan is not None]
        adjustment = replace(
            extras or ContainerAdjustment(),
            rlimits=_rlimits(devices, container),
        )
        return adjustment.without(container)

    def start_container(self, pod: PodSandbox, container: Container) -> bool:
        """The container has its mounts: nobody else is to start with them. Returns whether its pod has
        devices. Where the disk refuses, or hangs, the regular look shuts the gates later: an error here would
        end the container."""
        claims = self._moving_claims(pod)
        if claims:
            end = partial(self._windows.end, pod.uid, container.id, claims)
            try:
                run_in_time(end, self._budget_seconds, f"shutting the gates of {pod.namespace}/{pod.name}")
            except DranetError as error:
                log.warning("left open for now: %s", error)
        return bool(claims)

    def _check_owner(self, pod: PodSandbox, container: Container) -> None:
        for foreign in self._attachments.find_foreign(pod, container.mounts):
            error = foreign.describe(pod)
            context = {"pod": f"{pod.namespace}/{pod.name}", "container": container.name}
            log.warning("container refused: %s", error, extra={"context": context})
            self._announcer.container_refused(pod, error)
            if foreign.record is not None:
                self._on_waiting(foreign.record.claim)
            raise error

    def _let_start(
        self, pod: PodSandbox, container: Container, claims: Sequence[PreparedClaim], deadline: float
    ) -> ContainerAdjustment:
        """Its RDMA nodes, and what it gets for the programs in it, if any of its claims asks for that."""
        self._ensure_attached(pod, container, claims, deadline)
        nodes = self._attachments.read_nodes(pod, deadline=deadline)
        extras = self._workload.adjust(pod, container, claims) if self._workload is not None else None
        self._windows.begin(pod.uid, container.id, claims)
        return replace(extras or ContainerAdjustment(), devices=nodes)

    def _ensure_attached(
        self, pod: PodSandbox, container: Container, claims: Sequence[PreparedClaim], deadline: float
    ) -> None:
        missing = self._attachments.find_missing(pod, deadline=deadline)
        if missing:
            # The sandbox started without us, or somebody has taken a device away since.
            context = {"pod": f"{pod.namespace}/{pod.name}", "container": container.name}
            log.warning("attaching what the pod lacks: %s", ", ".join(missing), extra={"context": context})
            self._attach(pod, claims, deadline)
        elif self._metadata is not None and (links := self._metadata.refreshed(claims, pod.netns_path)):
            self._announcer.attached(claims, links)

    def stop_pod_sandbox(self, pod: PodSandbox) -> bool:
        """Give the sandbox's devices back. Returns whether it had any.

        Raises:
            DranetError: a claim's devices are still in the pod; those of the others are back.
        """
        self._view.remove(pod.id)
        self._windows.forget(pod.uid)
        if not self._moving_claims(pod):
            return False
        seconds = self._budget_seconds
        release = partial(self._release, pod, timeout_seconds=seconds * _ATTACH_SHARE)
        with self._noting_late():
            reports = run_in_time(release, seconds, f"giving back the devices of {pod.namespace}/{pod.name}")
        for report in reports:
            if report.error is not None:
                raise report.error
        marks.reached(marks.Step.RELEASE_BEFORE_STOP_ANSWER)
        return bool(reports)

    def _release(self, pod: PodSandbox, *, timeout_seconds: float) -> tuple[ReleaseReport, ...]:
        reports = self._attachments.release_sandbox(pod, timeout_seconds=timeout_seconds)
        for report in reports:
            context = {"claim": report.claim, "pod": f"{pod.namespace}/{pod.name}"}
            if report.error is None:
                log.info("given back", extra={"context": context})
                if self._metadata is not None:
                    self._metadata.released(report.claim.uid)
                self._announcer.released(report)
            else:
                log.warning("release failed: %s", report.error, extra={"context": context})
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

    def _in_time(
        self,
        pod: PodSandbox,
        claims: Sequence[PreparedClaim],
        what: str,
        work: Callable[[float], T],
        after_late_end: Callable[[T], None] | None = None,
    ) -> T | None:
        """Do the work of a hook that attaches, given its deadline by ``time.monotonic()``; what fails becomes
        the runtime's answer, and also goes to the log and to users. ``None`` where a newer driver does it."""
        seconds, begin = self._budget_seconds, time.monotonic()
        deadline = begin + seconds * _ATTACH_SHARE
        # Halfway from the end of our time to that of the runtime's: an answer takes a while, too.
        heard_until = begin + (seconds + self._patience_seconds) / 2
        what = f"{what} for {pod.namespace}/{pod.name}"
        try:
            work_now = partial(work, deadline)
            with self._noting_late():
                return run_in_time(work_now, seconds, what, after_late_end, heard_until=heard_until)
        except DranetError as error:
            if error.reason is Reason.STORE_NEWER:
                return None  # since we looked: the hook of the newer driver does it
            context = {"pod": f"{pod.namespace}/{pod.name}", "reason": error.reason}
            log.warning("attach failed: %s", error, extra={"context": context})
            if self._keeps_devices(pod, claims, error):
                self._announcer.container_refused(pod, error)
            else:
                self._announcer.attach_failed(claims, error)
            raise

    @contextmanager
    def _noting_late(self) -> Iterator[None]:
        try:
            yield
        except DranetError as error:
            if error.reason is Reason.HOOK_DEADLINE_EXCEEDED:
                self._on_late()
            raise

    def _keeps_devices(self, pod: PodSandbox, claims: Sequence[PreparedClaim], error: DranetError) -> bool:
        """The devices were in the pod before, and stay; with an address less, where a lease has ended."""
        if error.reason is Reason.DHCP_LEASE_EXPIRED:
            return all(claim.sandbox_id == pod.id for claim in claims)
        return all(self._attachments.is_attached(claim, pod.id) for claim in claims)

    def _take_back(self, pod: PodSandbox) -> None:
        """The runtime was told that the pod failed; a container must not find its gate open.

        Not where it was told too late: then it has started the pod without us, its containers may be at work
        with the device, and another instance may have found it in place.
        """
        self._release(pod, timeout_seconds=LATE_RELEASE_SECONDS)

    def _attach(self, pod: PodSandbox, claims: Sequence[PreparedClaim], deadline: float) -> None:
        report = self._attachments.attach_pod(pod, deadline=deadline)
        if report is None:
            return  # unprepared meanwhile
        claims = self._moving_claims(pod)  # the attach has noted names and nodes of RDMA devices
        links: Sequence[AttachedLink] = report.links
        if self._metadata is not None:
            links = self._metadata.attached(claims, links, pod.netns_path)
            marks.reached(marks.Step.ATTACH_METADATA_WRITTEN)
        if not report.is_news:
            self._announcer.found_attached(claims, links)
            return
        log.info(
            "attached",
            extra={
                "context": {
                    "pod": f"{pod.namespace}/{pod.name}",
                    "links": ",".join(f"{link.device}={link.pod_ifname}" for link in links),
                }
            },
        )
        self._announcer.attached(claims, links)


def _rlimits(devices: Iterable[PreparedDevice], container: Container) -> tuple[Rlimit, ...]:
    """The memory that the container may lock: the most that one of the claims asks for. A container that
    may lock more keeps that."""
    asked = [d.rdma.memlock_bytes for d in devices if d.rdma.memlock_bytes is not None]
    if not asked:
        return ()
    most = UNLIMITED if UNLIMITED in asked else max(asked)
    given = next((limit for limit in reversed(container.rlimits) if limit.type == MEMLOCK), None)
    if given is None:
        return (Rlimit(MEMLOCK, soft=most, hard=most),)
    if given.permits(most):
        return ()
    keeps_hard = given.hard == UNLIMITED or UNLIMITED != most < given.hard
    return (Rlimit(MEMLOCK, soft=most, hard=given.hard if keeps_hard else most),)
