"""The state of each service of the driver, as in ``/readyz``, and a file that exists while all are ready."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from dranet import files
from dranet.cluster.slices import SlicePublisher
from dranet.driver.instances.leader import Drain, InstanceState, Leadership
from dranet.driver.probes.server import PartState
from dranet.errors import SettingsError
from dranet.kubelet.kubelet_plugin import KubeletPlugin
from dranet.runtime.nri import NriPlugin


class Readiness:
    """Reads the state of the services. ``pod_uid`` is empty for an instance that is alone on its node."""

    def __init__(
        self,
        pod_uid: str,
        handover: Leadership,
        leaving: Drain,
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
        """Return the states by service; all must be ready."""
        return {
            "driver": PartState(not self._leaving.begun, "draining" if self._leaving.begun else ""),
            **({"instance": self._read_instance()} if self._pod_uid else {}),
            "runtime": self._read_runtime(),
            "kubelet": PartState(bool(self._kubelet.registered), self._kubelet.describe_registration()),
            "slices": self._read_slices(),
        }

    def _read_instance(self) -> PartState:
        """Other instances do not matter: a DaemonSet with surge deletes an old pod at once when it becomes
        unready next to a newer one."""
        state, newcomers = self._handover.state, self._handover.newcomers
        detail = f"pod {self._pod_uid} is {state}"
        if newcomers:
            detail += f"; {', '.join(sorted(newcomers))} not ready to take over yet"
        return PartState(state in (InstanceState.LEADER, InstanceState.RETIRED), detail)

    def _read_runtime(self) -> PartState:
        if self._runtime.is_ready:
            return PartState(True)
        reason = f"NRI is not connected: {self._runtime.last_failure or 'not tried yet'}"
        return PartState(False, self._runtime.fault or reason)

    def _read_slices(self) -> PartState:
        if self._handover.state is not InstanceState.LEADER:
            return PartState(True, "published by another instance")
        return PartState(self._publisher.is_published, self._publisher.last_error)


log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Interval at which the driver's own state is read, from memory only."""


class ReadyFile:
    """Keeps a file while the driver is ready, from :meth:`start` to :meth:`remove`: the readiness probe of
    this instance.

    On the host's network all pods of the driver share their ports, so while two instances overlap an HTTP
    probe of the new pod reaches the old one. A DaemonSet with surge would delete the old pod before the new
    one is ready. A file in the pod's own volume cannot be confused.
    """

    def __init__(self, path: Path, read_state: Callable[[], Mapping[str, PartState]]) -> None:
        self._path = path
        self._read_state = read_state
        self._there = False

    def start(self) -> None:
        """Remove what an earlier container of the pod left.

        Raises:
            SettingsError: the folder is missing or cannot be written.
        """
        try:
            files.remove_file(self._path)
            files.touch(self._path)
            files.remove_file(self._path)
        except OSError as error:
            raise SettingsError(
                f"--ready-file: cannot write {self._path}: {error.strerror}",
                hint=files.hint_for(error, "mount an emptyDir at its folder"),
            ) from error

    async def run(self) -> None:
        """Follow the driver's state, until cancelled."""
        while True:
            self.update()
            await asyncio.sleep(LOOK_SECONDS)

    def update(self) -> None:
        """Create or remove the file as the state is now. If the disk refuses, that is logged once and the
        probe fails."""
        ready = all(state.ready for state in self._read_state().values())
        if ready == self._there:
            return
        try:
            if ready:
                files.touch(self._path)
            else:
                files.remove_file(self._path)
        except OSError as error:
            log.warning("ready file %s: %s", self._path, error.strerror)
        self._there = ready

    def remove(self) -> None:
        """Remove the file for good; repeatable."""
        with contextlib.suppress(OSError):
            files.remove_file(self._path)
        self._there = False
