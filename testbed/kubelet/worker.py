"""One pod on the stand-in's node, from its binding to its last word: one task per pod.

Source of the behaviour: ``pkg/kubelet`` of Kubernetes (``syncPod``, ``SyncTerminatingPod``,
``SyncTerminatedPod``): devices are prepared before the sandbox, the sandbox runs before the containers,
and a pod is not gone before its sandbox is stopped and its claims are unprepared.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from dranet.cluster.client import Backoff
from dranet.errors import ClusterError
from dranet.pb import podresources_pb2 as pb
from testbed.kubelet.api import KubeletApi, now_text
from testbed.kubelet.claims import ClaimBook, PodDevices, pick_cdi_ids
from testbed.kubelet.health import HealthBoard
from testbed.kubelet.nouns import JsonObject, KubeletOptions, Phase, PodFailure, PodStage, PodTimings
from testbed.kubelet.podresources import CountedDevices, build_resources
from testbed.kubelet.podspec import ContainerView, PodView
from testbed.kubelet.status import Progress, StartedContainer, build_status
from testbed.runtime.contract import (
    ContainerSpec,
    PodRuntime,
    RunningContainer,
    RunningSandbox,
    RuntimeFailure,
)

log = logging.getLogger(__name__)


_Result = TypeVar("_Result")


class _PodEnds(Exception):
    """The pod is to end: whatever was being started is of no use."""


class SandboxHold:
    """Open unless a test holds pods between Prepare and RunPodSandbox."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    def hold(self, hold: bool) -> None:
        """Close it, or let everybody through."""
        if hold:
            self._open.clear()
        else:
            self._open.set()

    async def wait_open(self) -> None:
        """Return at once when it is open."""
        await self._open.wait()


@dataclass(frozen=True, slots=True)
class WorkerRoom:
    """What all workers of a node share."""

    api: KubeletApi
    book: ClaimBook
    counted: CountedDevices
    runtime: PodRuntime
    health: HealthBoard
    hold: SandboxHold
    options: KubeletOptions
    on_stage: Callable[[], None]


class PodWorker:
    """Drives one pod; gets changes by :meth:`update`, :meth:`vanish`, :meth:`refresh`, :meth:`resync`."""

    def __init__(self, pod: PodView, room: WorkerRoom) -> None:
        self.pod = pod
        self.stage = PodStage.PENDING
        self.timings = PodTimings()
        self.sandbox: RunningSandbox | None = None
        self._room = room
        self._devices: PodDevices = {}
        self._containers: dict[str, StartedContainer] = {}
        self._failure: PodFailure | None = None
        self._written: JsonObject = {}
        self._vanished = False
        self._stopped = False
        self._ending = asyncio.Event()
        self._wake = asyncio.Event()
        self._must_start = True
        self.update(pod)

    @property
    def containers(self) -> dict[str, RunningContainer]:
        """Running containers by name."""
        return {name: started.running for name, started in self._containers.items()}

    @property
    def resources(self) -> pb.PodResources:
        """What the pod was given."""
        return build_resources(self.pod, self._room.counted.get(self.pod.uid), self._devices)

    @property
    def failure(self) -> str:
        """Why the last try failed; empty if it did not."""
        return self._failure.message if self._failure else ""

    def update(self, pod: PodView) -> None:
        """A newer version of the object."""
        self.pod = pod
        if pod.deleting:
            self._ending.set()
            self._wake.set()

    def vanish(self) -> None:
        """The object was deleted by force: end what runs here, and write nothing more."""
        self._vanished = True
        self._ending.set()
        self._wake.set()

    def refresh(self) -> None:
        """Something that the status shows may have changed."""
        self._wake.set()

    def resync(self) -> None:
        """The kubelet restarted: prepare again, without disturbing what runs."""
        self._must_start = True
        self._wake.set()

    async def run(self) -> None:
        """The pod's whole life."""
        backoff = self._new_backoff()
        while not self._ending.is_set():
            self._wake.clear()
            if await self._sync():
                backoff.reset()
                await self._wake.wait()
            else:
                await self._pause(backoff.next_seconds())
        await self._end()
        self._reach(PodStage.GONE)

    async def _sync(self) -> bool:
        """One round; whether nothing is left to do until something changes."""
        try:
            if self._must_start:
                self._must_start = False
                await self._start_once()
            await self._write_status()
        except _PodEnds:
            return True
        except (PodFailure, ClusterError) as failure:
            self._must_start = True
            await self._report(failure)
            return False
        return True

    async def _start_once(self) -> None:
        """Everything that is not done yet, in order; what succeeded in an earlier try stays."""
        self.timings = replace(self.timings, tries=self.timings.tries + 1)
        self._room.counted.give(self.pod)
        with self._timed(Phase.PREPARE):
            self._devices = await self._unless_ending(self._room.book.prepare(self.pod))
        self._reach(PodStage.PREPARED)
        if self.sandbox is None:
            await self._unless_ending(self._room.hold.wait_open())
            with self._timed(Phase.SANDBOX):
                self.sandbox = await self._run_sandbox()
        self._reach(PodStage.SANDBOX)
        with self._timed(Phase.CONTAINERS):
            for container in self.pod.containers:
                await self._run_container(container, self.sandbox)
        self._failure = None
        self._reach(PodStage.RUNNING)

    async def _run_sandbox(self) -> RunningSandbox:
        try:
            return await self._room.runtime.run_sandbox(self.pod.sandbox)
        except RuntimeFailure as error:
            raise PodFailure("FailedCreatePodSandBox", f"Failed to create pod sandbox: {error}") from error

    async def _run_container(self, container: ContainerView, sandbox: RunningSandbox) -> None:
        if self._ending.is_set():
            raise _PodEnds
        if container.name in self._containers:
            return
        variables = self._room.counted.environment(self.pod.uid, container.name)
        cdi_devices = pick_cdi_ids(container.claims, self._devices)
        spec = ContainerSpec(container.name, cdi_devices, container.command, (*container.env, *variables))
        try:
            running = await self._room.runtime.create_container(sandbox, spec)
        except RuntimeFailure as error:
            raise PodFailure(
                "Failed", f"Error: {error}", container=container.name, waiting_reason="CreateContainerError"
            ) from error
        runtime = self._room.runtime.name.partition(" ")[0]
        self._containers[container.name] = StartedContainer(running, f"{runtime}://{running.id}", now_text())

    async def _end(self) -> None:
        """Until it has all succeeded; the object stays Terminating meanwhile."""
        backoff = self._new_backoff()
        while True:
            try:
                await self._end_once()
            except (PodFailure, ClusterError) as failure:
                await self._report(failure)
            else:
                return
            await asyncio.sleep(backoff.next_seconds())

    async def _end_once(self) -> None:
        """The sandbox is stopped before its claims are unprepared and removed after the object is gone: the
        kubelet leaves that to its collection of garbage."""
        if self.sandbox is not None and not self._stopped:
            await self._ask_runtime(self._room.runtime.stop_sandbox(self.sandbox.id))
            self._stopped = True
            self._containers.clear()
        await self._room.book.unprepare(self.pod)
        self._room.counted.take_back(self.pod.uid)
        if not self._vanished:
            await self._room.api.delete_for_good(self.pod)
        if self.sandbox is not None:
            await self._ask_runtime(self._room.runtime.remove_sandbox(self.sandbox.id))
            self.sandbox = None

    async def _ask_runtime(self, call: Awaitable[None]) -> None:
        try:
            await call
        except RuntimeFailure as error:
            raise PodFailure("FailedKillPod", f"error killing pod: {error}") from error

    async def _report(self, failure: PodFailure | ClusterError) -> None:
        log.info("pod %s/%s: %s", self.pod.namespace, self.pod.name, failure)
        if isinstance(failure, ClusterError) or self._vanished:
            return
        self._failure = failure
        await self._room.api.warn(self.pod, failure.reason, failure.message)
        with suppress(ClusterError):
            await self._write_status()

    async def _write_status(self) -> None:
        """Only what changed since we last wrote it, so that our own write does not wake us without end."""
        if self._vanished or self._ending.is_set():
            return
        progress = Progress(
            sandbox_ready=self.sandbox is not None,
            containers=dict(self._containers),
            failure=self._failure,
            health={container.name: self._build_health(container) for container in self.pod.containers},
        )
        status = build_status(self.pod, progress, now_text())
        if _without_times(status) != self._written:
            await self._room.api.write_status(self.pod, status)
            self._written = _without_times(status)

    def _build_health(self, container: ContainerView) -> Sequence[JsonObject]:
        return [
            {
                "name": f"claim:{pod_claim}/{request}" if request else f"claim:{pod_claim}",
                "resources": [
                    self._room.health.build_status(device)
                    for device in self._devices.get(pod_claim, ())
                    if device.serves(request)
                ],
            }
            for pod_claim, request in container.claims
        ]

    def _reach(self, stage: PodStage) -> None:
        if stage > self.stage:
            self.stage = stage
            self._room.on_stage()

    @contextmanager
    def _timed(self, phase: Phase) -> Iterator[None]:
        """Keep the seconds of the first success."""
        begin = time.monotonic()
        yield
        self.timings = self.timings.with_phase(phase, time.monotonic() - begin)

    async def _unless_ending(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """The result of ``work``, which is cut off when the pod is to end."""
        task = asyncio.create_task(work)
        ending = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait({task, ending}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise _PodEnds
        finally:
            task.cancel()
            ending.cancel()
            await asyncio.wait({task, ending})

    async def _pause(self, seconds: float) -> None:
        """Wait before the next try, but not when the pod is to end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()

    def _new_backoff(self) -> Backoff:
        return Backoff(self._room.options.pod_retry_seconds, self._room.options.pod_retry_cap_seconds)


def _without_times(status: JsonObject) -> JsonObject:
    """What must differ for a write to be worth it."""
    conditions = [{**condition, "lastTransitionTime": None} for condition in status["conditions"]]
    return {**status, "conditions": conditions, "startTime": None}
