"""What ``/readyz`` says: one line for each part of the driver, and why it is not ready."""

from __future__ import annotations

from collections.abc import Mapping

from dranet.cluster.slices import SlicePublisher
from dranet.driver.instances.handover import Handover, InstanceState
from dranet.driver.instances.leaving import Leaving
from dranet.driver.probes.routes import PartState
from dranet.kubelet.kubelet_plugin import KubeletPlugin
from dranet.runtime.nri import NriPlugin


class Readiness:
    """Asks the parts; ``pod_uid`` is empty for an instance that is alone on its node."""

    def __init__(
        self,
        pod_uid: str,
        handover: Handover,
        leaving: Leaving,
        runtime: NriPlugin,
        kubelet: KubeletPlugin,
        publisher: SlicePublisher,
    ) -> None:
        self._pod_uid = pod_uid
        self._handover = handover
        self._leaving = leaving
        self._runtime = runtime
        self._kubelet = kubelet
        self._publisher = publisher

    def read(self) -> Mapping[str, PartState]:
        """By part; all must be ready."""
        return {
            "driver": PartState(not self._leaving.begun, "draining" if self._leaving.begun else ""),
            **({"instance": self._read_instance()} if self._pod_uid else {}),
            "runtime": self._read_runtime(),
            "kubelet": PartState(bool(self._kubelet.registered), self._kubelet.describe_registration()),
            "slices": self._read_slices(),
        }

    def _read_instance(self) -> PartState:
        """Whether others are ready changes nothing: a DaemonSet with surge deletes an old pod at once that
        ceases to be ready beside a newer one."""
        state, newcomers = self._handover.state, self._handover.newcomers
        told = f"pod {self._pod_uid} is {state}"
        if newcomers:
            told += f"; {', '.join(sorted(newcomers))} not ready to take over yet"
        return PartState(state in (InstanceState.ON_DUTY, InstanceState.RETIRED), told)

    def _read_runtime(self) -> PartState:
        if self._runtime.is_ready:
            return PartState(True)
        reason = f"NRI is not connected: {self._runtime.last_failure or 'not tried yet'}"
        return PartState(False, self._runtime.fault or reason)

    def _read_slices(self) -> PartState:
        if self._handover.state is not InstanceState.ON_DUTY:
            return PartState(True, "published by another instance")
        return PartState(self._publisher.is_published, self._publisher.last_error)
