"""The runtime's hooks: pod sandbox runs -> attach; stops -> give back; container created -> its devices.

Called on the NRI thread, one at a time, with every other pod of the node waiting behind. So: memory and the
kernel only, no API server, no slow disk. A hook that cannot do its work in time undoes it and answers with an
error, because a late or missing answer lets the pod start without its NIC. Implements
``runtime.nri.RuntimeHooks``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from dranet.driver.announce import Announcer
from dranet.driver.attachments import Attachments
from dranet.errors import DranetError
from dranet.model.device import DeviceKind
from dranet.model.facts import CharDevice
from dranet.model.plan import CreateLink, PreparedClaim, PreparedDevice
from dranet.model.sandbox import MEMLOCK, UNLIMITED, Container, ContainerAdjustment, PodSandbox, Rlimit
from dranet.store import ClaimStore

log = logging.getLogger(__name__)

ASSUMED_REQUEST_TIMEOUT_SECONDS = 2.0
"""``plugin_request_timeout`` of a runtime that does not tell it (before NRI 0.7): the default of them all."""

_USABLE_SHARE = 0.85
"""Of the runtime's patience. The rest is for the way there and back, on a node that is busy."""

_ATTACH_SHARE = 0.35
"""Of a hook's time, until which attaching may begin another step; what is left is for undoing them. Undoing
takes about twice as long as attaching did (eight devices: 0.45 s against 0.2 s on a busy machine), because it
reads the host's state again."""


@dataclass(frozen=True, slots=True)
class RuntimeSnapshot:
    """Pods and records at the moment of Synchronize: no hook can run between the two readings."""

    pods: tuple[PodSandbox, ...]
    records: tuple[PreparedClaim, ...]


class PodHooks:
    """What each hook does for pods that have claims of ours; the others pass untouched."""

    def __init__(
        self,
        store: ClaimStore,
        attachments: Attachments,
        announcer: Announcer,
        on_synchronized: Callable[[RuntimeSnapshot], None],
        budget_seconds: float,
    ) -> None:
        self._store = store
        self._attachments = attachments
        self._announcer = announcer
        self._on_synchronized = on_synchronized
        self._wanted_seconds = budget_seconds
        self._budget_seconds = min(budget_seconds, ASSUMED_REQUEST_TIMEOUT_SECONDS * _USABLE_SHARE)

    def connected(
        self, runtime_name: str, runtime_version: str, request_timeout_seconds: float | None
    ) -> None:
        """Take as much time as was configured and the runtime has."""
        usable = (request_timeout_seconds or ASSUMED_REQUEST_TIMEOUT_SECONDS) * _USABLE_SHARE
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
                request_timeout_seconds or ASSUMED_REQUEST_TIMEOUT_SECONDS,
                "" if request_timeout_seconds else " by default",
                self._budget_seconds,
            )

    def disconnected(self, reason: str) -> None:
        log.warning("the runtime is away (%s); reconnecting", reason)

    def synchronize(self, pods: Sequence[PodSandbox]) -> None:
        """Take a snapshot and answer at once; reconcile follows outside the hook."""
        self._attachments.forget_sandboxes_except(pod.id for pod in pods)
        self._on_synchronized(RuntimeSnapshot(tuple(pods), self._store.get_all()))

    def run_pod_sandbox(self, pod: PodSandbox) -> bool:
        """Attach the pod's devices. Returns whether the pod has any.

        Raises:
            DranetError: they are not attached, and the host is as before.
        """
        deadline = self._attach_deadline()
        claims = self._moving_claims(pod)
        if claims:
            self._attach(pod, claims, deadline)
        return bool(claims)

    def create_container(self, pod: PodSandbox, container: Container) -> ContainerAdjustment:
        """Look whether the pod's devices are there and make up for what is not; then add the RDMA nodes and
        limits that they need.

        Raises:
            DranetError: they are not all there, or the container brings a claim that another pod has.
        """
        deadline = self._attach_deadline()
        self._attachments.check_owner(pod, container.mounts)
        claims = self._moving_claims(pod)
        if claims:
            self._ensure_attached(pod, container, claims, deadline)
        devices = [device for claim in claims for device in claim.devices if device.plan is not None]
        return ContainerAdjustment(devices=_rdma_nodes(devices), rlimits=_rlimits(devices, container))

    def _ensure_attached(
        self, pod: PodSandbox, container: Container, claims: Sequence[PreparedClaim], deadline: float
    ) -> None:
        with self._telling_failure(pod, claims):
            missing = self._attachments.find_missing(pod, deadline=deadline)
        if missing:
            # The sandbox started without us, or somebody has taken a device away since.
            context = {"pod": f"{pod.namespace}/{pod.name}", "container": container.name}
            log.warning("attaching what the pod lacks: %s", ", ".join(missing), extra={"context": context})
            self._attach(pod, claims, deadline)

    def stop_pod_sandbox(self, pod: PodSandbox) -> bool:
        """Give the sandbox's devices back. Returns whether it had any.

        Raises:
            DranetError: a claim's devices are still in the pod; those of the others are back.
        """
        if not self._moving_claims(pod):
            return False
        timeout_seconds = self._budget_seconds * _ATTACH_SHARE
        reports = self._attachments.release_sandbox(pod, timeout_seconds=timeout_seconds)
        for report in reports:
            context = {"claim": report.claim, "pod": f"{pod.namespace}/{pod.name}"}
            if report.error is None:
                log.info("given back", extra={"context": context})
                self._announcer.released(report)
            else:
                log.warning("release failed: %s", report.error, extra={"context": context})
                self._announcer.release_failed(report.claim, report.error)
        for report in reports:
            if report.error is not None:
                raise report.error
        return bool(reports)

    def remove_pod_sandbox(self, pod: PodSandbox) -> bool:
        """Usually nothing is left to do; a missed Stop is made good here."""
        found = self.stop_pod_sandbox(pod)
        self._attachments.forget_sandbox(pod.id)
        return found

    def _moving_claims(self, pod: PodSandbox) -> tuple[PreparedClaim, ...]:
        return tuple(claim for claim in self._store.get_by_pod(pod.uid) if claim.plans)

    def _attach_deadline(self) -> float:
        """Of the hook that begins now, by ``time.monotonic()``."""
        return time.monotonic() + self._budget_seconds * _ATTACH_SHARE

    def _attach(self, pod: PodSandbox, claims: Sequence[PreparedClaim], deadline: float) -> None:
        with self._telling_failure(pod, claims):
            links = self._attachments.attach_pod(pod, deadline=deadline)
        if links is None:
            return  # unprepared meanwhile
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

    @contextmanager
    def _telling_failure(self, pod: PodSandbox, claims: Sequence[PreparedClaim]) -> Iterator[None]:
        """What fails here becomes the runtime's answer; it also goes to the log and to users."""
        try:
            yield
        except DranetError as error:
            context = {"pod": f"{pod.namespace}/{pod.name}", "reason": error.reason}
            log.warning("attach failed: %s", error, extra={"context": context})
            self._announcer.attach_failed(claims, error)
            raise


def _rdma_nodes(devices: Iterable[PreparedDevice]) -> tuple[CharDevice, ...]:
    """The character devices of the NICs, each once (``rdma_cm`` is shared)."""
    nodes = {node.path: node for prepared in devices for node in _rdma_nodes_of(prepared)}
    return tuple(nodes.values())


def _rdma_nodes_of(prepared: PreparedDevice) -> tuple[CharDevice, ...]:
    """As Prepare chose them. A record of an earlier version, which knew no link on top of a device, has them
    with the device alone."""
    steps = prepared.plan.steps if prepared.plan is not None else ()
    is_on_top = any(isinstance(step, CreateLink) for step in steps)
    if prepared.rdma.nodes or is_on_top or prepared.device.kind is DeviceKind.GPU:
        return prepared.rdma.nodes
    return prepared.device.char_devices


def _rlimits(devices: Iterable[PreparedDevice], container: Container) -> tuple[Rlimit, ...]:
    """The memory that the container may lock: the most that one of the claims asks for. A container that
    may lock more keeps that."""
    asked = [d.rdma.memlock_bytes for d in devices if d.rdma.memlock_bytes is not None]
    if not asked:
        return ()
    most = UNLIMITED if UNLIMITED in asked else max(asked)
    given = next((limit for limit in container.rlimits if limit.type == MEMLOCK), None)
    if given is None:
        return (Rlimit(MEMLOCK, soft=most, hard=most),)
    if given.permits(most):
        return ()
    keeps_hard = given.hard == UNLIMITED or UNLIMITED != most < given.hard
    return (Rlimit(MEMLOCK, soft=most, hard=given.hard if keeps_hard else most),)
