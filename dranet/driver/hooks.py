"""The runtime's hooks: pod sandbox runs -> attach; stops -> give back; container created -> its devices.

Called on the NRI thread, one at a time, with every other pod of the node waiting behind. So: memory and the
kernel only, no API server, no slow disk. A hook that cannot do its work answers with an error, because a
late or missing answer lets the pod start without its NIC. Implements ``runtime.nri.RuntimeHooks``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dranet.driver.announce import Announcer
from dranet.driver.attachments import Attachments
from dranet.errors import DranetError
from dranet.model.device import DeviceKind
from dranet.model.facts import CharDevice
from dranet.model.plan import PreparedClaim
from dranet.model.sandbox import Container, ContainerAdjustment, PodSandbox
from dranet.store import ClaimStore

log = logging.getLogger(__name__)


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
        self._budget_seconds = budget_seconds

    def connected(self, runtime_name: str, runtime_version: str) -> None:
        log.info(
            "connected to the runtime", extra={"context": {"runtime": f"{runtime_name} {runtime_version}"}}
        )

    def disconnected(self, reason: str) -> None:
        log.warning("the runtime is away (%s); reconnecting", reason)

    def synchronize(self, pods: Sequence[PodSandbox]) -> None:
        """Take a snapshot and answer at once; reconcile follows outside the hook."""
        self._attachments.forget_sandboxes_except(pod.id for pod in pods)
        self._on_synchronized(RuntimeSnapshot(tuple(pods), self._store.get_all()))

    def run_pod_sandbox(self, pod: PodSandbox) -> bool:
        """Attach the pod's devices. Returns whether the pod has any."""
        claims = self._moving_claims(pod)
        if claims:
            self._attach(pod, claims)
        return bool(claims)

    def create_container(self, pod: PodSandbox, container: Container) -> ContainerAdjustment:
        """Make up for an attach that was missed, then add the RDMA nodes that the pod's NICs need.

        Raises:
            DranetError: the attach failed, or the container brings a claim that another pod has.
        """
        self._attachments.check_owner(pod, container.mounts)
        claims = self._moving_claims(pod)
        if not all(self._attachments.is_attached(claim, pod.id) for claim in claims):
            log.warning(
                "the pod's sandbox started without us; attaching now",
                extra={"context": {"pod": f"{pod.namespace}/{pod.name}", "container": container.name}},
            )
            self._attach(pod, claims)
        return ContainerAdjustment(devices=_rdma_nodes(claims))

    def stop_pod_sandbox(self, pod: PodSandbox) -> bool:
        """Give the sandbox's devices back. Returns whether it had any.

        Raises:
            DranetError: a claim's devices are still in the pod; those of the others are back.
        """
        if not self._moving_claims(pod):
            return False
        reports = self._attachments.release_sandbox(pod, timeout_seconds=self._budget_seconds)
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

    def _attach(self, pod: PodSandbox, claims: Sequence[PreparedClaim]) -> None:
        try:
            links = self._attachments.attach_pod(pod, timeout_seconds=self._budget_seconds)
        except DranetError as error:
            context = {"pod": f"{pod.namespace}/{pod.name}", "reason": error.reason}
            log.warning("attach failed: %s", error, extra={"context": context})
            self._announcer.attach_failed(claims, error)
            raise
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


def _rdma_nodes(claims: Sequence[PreparedClaim]) -> tuple[CharDevice, ...]:
    """The character devices of the claims' NICs, each once (``rdma_cm`` is shared)."""
    nodes = {
        node.path: node
        for claim in claims
        for prepared in claim.devices
        if prepared.plan is not None and prepared.device.kind is not DeviceKind.GPU
        for node in prepared.device.char_devices
    }
    return tuple(nodes.values())
