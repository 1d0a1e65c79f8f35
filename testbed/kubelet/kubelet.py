"""The stand-in kubelet: real plugin sockets on one side, a real runtime or its stand-in on the other.

It does what the kubelet of Kubernetes 1.34 and later does around dynamic resources, in the same order and
with the same patience: registration, slice wiping, batched Prepare, CDI names per container, sandbox,
containers, health, Unprepare before a pod's final status, and the pod resources socket. It knows drivers only
through their sockets. It lacks probes, init containers, restarts of containers, volumes, eviction and
checkpoints on disk (a reboot decides what is left of them).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, EventType, Snapshot, WatchEvent, list_and_watch
from dranet.pb import podresources_pb2 as pb
from testbed.kubelet.api import KubeletApi
from testbed.kubelet.claims import ClaimBook
from testbed.kubelet.health import HealthBoard
from testbed.kubelet.nouns import KubeletOptions, PodStage, PodTimings
from testbed.kubelet.plugins import PluginManager
from testbed.kubelet.podresources import CountedDevices, PodResourcesServer
from testbed.kubelet.podspec import PodView, parse_pod
from testbed.kubelet.worker import PodWorker, SandboxHold, WorkerRoom
from testbed.runtime.contract import PodRuntime, RunningContainer, RunningSandbox

log = logging.getLogger(__name__)


class TestbedKubelet:
    """The kubelet of ``node_name``; ``root`` is its root folder (``plugins_registry`` is below it).

    The caller starts and stops the runtime; stop the kubelet first.
    """

    __test__ = False  # not a test class, whatever pytest thinks of its name

    def __init__(
        self,
        client: ApiClient,
        runtime: PodRuntime,
        root: Path,
        node_name: str,
        options: KubeletOptions | None = None,
    ) -> None:
        options = options or KubeletOptions()
        self._api = KubeletApi(client, node_name)
        self._pod_selector = options.pod_selector
        self._hold = SandboxHold()
        self._plugins = PluginManager(
            root, options, wipe_slices=self._api.wipe_slices, on_change=self._note_plugins
        )
        self._book = ClaimBook(self._api, self._plugins)
        self._health = HealthBoard(options, self._refresh_pods)
        self._counted = CountedDevices()
        self._room = WorkerRoom(
            self._api,
            self._book,
            self._counted,
            runtime,
            self._health,
            self._hold,
            options,
            self._note_change,
        )
        self._resources = PodResourcesServer(root, self._read_resources)
        self._workers: dict[str, PodWorker] = {}
        self._tasks: dict[asyncio.Task[None], PodWorker] = {}
        self._follower: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Register the node, wipe its slices, look for plugins, then take pods.

        Raises:
            ClusterError: the API server does not want this node.
        """
        await self._api.register_node()
        await self._api.wipe_slices()
        await self._plugins.start()
        await self._resources.start()
        self._follower = asyncio.create_task(self._follow_pods(), name="kubelet pods")

    async def stop(self) -> None:
        """Stop working; pods keep what they have, as when a real kubelet stops. Repeatable."""
        tasks = set(self._tasks) | ({self._follower} if self._follower else set())
        self._follower = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._health.stop()
        await self._resources.stop()
        await self._plugins.stop()

    async def restart(self) -> None:
        """As a restarted kubelet: slices wiped, plugins found again, every claim prepared again."""
        await self._resources.stop()
        await self._plugins.stop()
        self._book.forget_prepared()
        await self._api.wipe_slices()
        await self._plugins.start()
        await self._resources.start()
        for worker in self._workers.values():
            worker.resync()

    async def start_after_reboot(self, *, keeps_checkpoint: bool) -> None:
        """After :meth:`stop` and a reboot of the node: every pod is started again. The checkpoint holds which
        claims pods had; none of them counts as prepared.

        Raises:
            ClusterError: the API server does not want this node.
        """
        self._workers.clear()
        if keeps_checkpoint:
            self._book.forget_prepared()
        else:
            self._book.forget_all()
        await self.start()

    @property
    def registered_drivers(self) -> tuple[str, ...]:
        """Drivers with a connected plugin."""
        return tuple(plugin.info.driver for plugin in self._plugins.plugins if plugin.connected)

    def add_device_plugin(self, resource: str, ids: Sequence[str], variable: str = "") -> None:
        """From now on pods get devices by number; the kubelet knows which, and the plugin names them to the
        container in a ``variable``."""
        self._counted.offer(resource, ids, variable)

    def _read_resources(self) -> list[pb.PodResources]:
        return [worker.resources for worker in self._workers.values() if worker.stage is not PodStage.GONE]

    def hold_sandboxes(self, hold: bool) -> None:
        """Hold pods after Prepare and before their sandbox, or let them go on."""
        self._hold.hold(hold)

    def timings(self, pod_uid: str) -> PodTimings:
        """How long each phase took, also for a pod that is gone. KeyError: never seen here."""
        return self._workers[pod_uid].timings

    def stage(self, pod_uid: str) -> PodStage:
        """How far the pod has come; PENDING for one that was never seen."""
        return self._workers[pod_uid].stage if pod_uid in self._workers else PodStage.PENDING

    def failure(self, pod_uid: str) -> str:
        """Why the last try failed; empty if it did not."""
        return self._workers[pod_uid].failure if pod_uid in self._workers else ""

    def sandbox(self, pod_uid: str) -> RunningSandbox | None:
        """The pod's sandbox, if it runs."""
        return self._workers[pod_uid].sandbox if pod_uid in self._workers else None

    def containers(self, pod_uid: str) -> Mapping[str, RunningContainer]:
        """The pod's running containers by name."""
        return self._workers[pod_uid].containers if pod_uid in self._workers else {}

    async def wait_stage(self, pod_uid: str, stage: PodStage) -> None:
        """Wait until the pod has come that far (no deadline of its own)."""
        while self.stage(pod_uid) < stage:
            await self._wait_changed()

    async def wait_prepared(self, pod_uid: str) -> None:
        """Wait until every driver has prepared the pod's claims."""
        await self.wait_stage(pod_uid, PodStage.PREPARED)

    async def wait_running(self, pod_uid: str) -> None:
        """Wait until all containers run."""
        await self.wait_stage(pod_uid, PodStage.RUNNING)

    async def wait_gone(self, pod_uid: str) -> None:
        """Wait until sandbox, claims and object are gone."""
        await self.wait_stage(pod_uid, PodStage.GONE)

    async def wait_driver(self, driver: str, *, registered: bool = True) -> None:
        """Wait until the driver has a connected plugin (or none)."""
        while (driver in self.registered_drivers) != registered:
            await self._wait_changed()

    async def _follow_pods(self) -> None:
        selector = f"spec.nodeName={self._api.node_name}"
        stream = list_and_watch(
            self._api.client, paths.pods(), field_selector=selector, label_selector=self._pod_selector
        )
        async with contextlib.aclosing(stream) as changes:
            async for change in changes:
                if isinstance(change, Snapshot):
                    self._note_all([parse_pod(pod) for pod in change.items])
                else:
                    self._note_event(change)

    def _note_all(self, pods: list[PodView]) -> None:
        for uid in self._workers.keys() - {pod.uid for pod in pods}:
            self._workers[uid].vanish()
        for pod in pods:
            self._note_pod(pod)

    def _note_event(self, event: WatchEvent) -> None:
        pod = parse_pod(event.object)
        if event.type is not EventType.DELETED:
            self._note_pod(pod)
        elif pod.uid in self._workers:
            self._workers[pod.uid].vanish()

    def _note_pod(self, pod: PodView) -> None:
        if pod.uid in self._workers:
            self._workers[pod.uid].update(pod)
            return
        worker = PodWorker(pod, self._room)
        self._workers[pod.uid] = worker
        task = asyncio.create_task(worker.run(), name=f"pod {pod.namespace}/{pod.name}")
        self._tasks[task] = worker
        task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("bug in the stand-in kubelet, %s", task.get_name(), exc_info=error)

    def _note_plugins(self) -> None:
        self._health.follow(self._plugins.plugins)
        self._note_change()

    def _refresh_pods(self) -> None:
        for worker in self._workers.values():
            worker.refresh()

    def _note_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _wait_changed(self) -> None:
        await self._changed.wait()
