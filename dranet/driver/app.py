"""The driver as a whole: build, start in order, drain, stop.

Start: store, first scan, runtime, kubelet, publish, ready. Stop: not ready, refuse Prepare, wait for pods
that are prepared but not yet running, then kubelet, runtime, reports, store. Slices stay published: a quick
restart keeps them, and the kubelet wipes them after 30 s if we do not come back.

Two instances may overlap on a node (``driver.instances``): both answer the kubelet and the runtime, the
duties are of one. Who leaves then refuses nobody: it waits until the other is ready, and serves what
still comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
from collections.abc import AsyncIterator, Collection, Sequence

from dranet import __version__
from dranet.cluster.client import ApiClient
from dranet.cluster.events import ObjectRef
from dranet.cluster.nodes import fetch_node_addresses
from dranet.cluster.pods import fetch_claim_for_node
from dranet.cluster.slices import PublishListeners, SlicePublisher
from dranet.driver.attachments import Attachments
from dranet.driver.captured import CapturedFacts
from dranet.driver.doctor.features import Features
from dranet.driver.gate import ReadyGate
from dranet.driver.health.file import HealthFile
from dranet.driver.health.monitor import HealthMonitor, build_rules, do_nothing
from dranet.driver.health.signs import SignSource
from dranet.driver.hooks import PodHooks
from dranet.driver.instances.handover import Handover, InstanceState
from dranet.driver.instances.leaving import Leaving
from dranet.driver.instances.roster import FOLDER, Instances
from dranet.driver.leases import Leases
from dranet.driver.lifelines import Lifelines
from dranet.driver.metadata.device_metadata import DeviceMetadata
from dranet.driver.metadata.files import MetadataFiles
from dranet.driver.policy import PolicySource
from dranet.driver.prepare import Preparer
from dranet.driver.probes.readiness import Readiness
from dranet.driver.probes.ready_file import ReadyFile
from dranet.driver.probes.server import ProbeServer
from dranet.driver.publish import FactsReader, Inventory, PublishLoop
from dranet.driver.reconcile import Reconciler
from dranet.driver.reports.announce import Announcer
from dranet.driver.reports.reporter import Reporter
from dranet.driver.reports.writer import ApiWriter
from dranet.driver.snapshots import SnapshotQueue
from dranet.driver.succession import Succession
from dranet.driver.workers import Workers
from dranet.errors import KernelError
from dranet.filelock import FileLock
from dranet.kernel.attachment.uplink import UplinkRules
from dranet.kernel.boot import read_boot_id
from dranet.kernel.discovery.scan import NodeScanner
from dranet.kernel.lifelines import LifelineTarget
from dranet.kernel.podlinks import PodLinks
from dranet.kubelet.kubelet_plugin import KubeletPlugin
from dranet.runtime.cdi import CdiSpecs
from dranet.runtime.nri import NriPlugin
from dranet.settings import Settings
from dranet.store import ClaimStore
from dranet.telemetry import Metrics

log = logging.getLogger(__name__)

CANCEL_AGAIN_SECONDS = 0.5
HEALTH_ECHO_SECONDS = 1.0
"""When a health stream ends, the kubelet forgets what all instances said. It may notice that after we do."""
WORKER_THREADS = 4
"""For blocking kernel and disk work, which one lock serialises for the most part."""


async def run_driver(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT, then drain.

    Raises:
        SettingsError: the driver refuses to start.
        StoreError: the store cannot be opened.
        KernelError: changes of the node cannot be followed any more.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(Workers(WORKER_THREADS))
    FileLock.pod_uid = settings.pod_uid
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # What the operator wrote is judged before anything outside is asked.
    policy, reader = PolicySource(settings), _open_reader(settings)
    async with _api_client(settings) as client:
        try:
            await Driver(settings, client, policy, reader).run(stop)
        except ExceptionGroup as group:
            raise _first(group) from group


def _open_reader(settings: Settings) -> FactsReader:
    if settings.facts_file is None:
        return NodeScanner(settings.sysfs_root, settings.procfs_root, pci_ids=settings.pci_ids)
    captured = CapturedFacts(str(settings.facts_file))
    captured.read()
    return captured


class Driver:
    """Every part of the driver, wired; :meth:`run` starts, serves and stops them."""

    def __init__(
        self, settings: Settings, client: ApiClient, policy: PolicySource, reader: FactsReader
    ) -> None:
        self._settings = settings
        self._client = client
        self._policy = policy
        self._boot_id = read_boot_id(settings.procfs_root)
        self._metrics = Metrics()
        self._store = ClaimStore(settings.state_dir / "claims.db")
        self._gate = ReadyGate(settings.state_dir)
        self._cdi = CdiSpecs(settings.cdi_dir, settings.driver_name)
        self._lifelines = self._build_lifelines()
        self._reporter = self._build_reporter()
        self._announcer = Announcer(
            settings.driver_name,
            settings.node_name,
            self._reporter,
            self._metrics,
            self._store.get_by_pod,
        )
        self._pod_links = PodLinks(self._note_pod_change)
        self._attachments = Attachments(
            self._store, self._gate, self._get_uplink_rules, self._announcer.released, self._pod_links
        )
        self._leases = Leases(self._store, self._attachments, self._announcer, self._metrics)
        self._inventory = Inventory(reader, policy.get, self._store, self._metrics)
        self._health = self._build_health()
        self._metadata = self._build_metadata()
        self._leases.on_links = self._metadata.links_changed
        self._publisher = self._build_publisher()
        self._reconciler = self._build_reconciler()
        self._snapshots = SnapshotQueue()
        self._preparer = self._build_preparer()
        self._succession = Succession(self._preparer.hand_on)
        self._nri = self._build_nri()
        self._kubelet = self._build_kubelet()
        self._publish = PublishLoop(
            self._inventory,
            self._publisher,
            self._metrics,
            settings.rescan_seconds,
            on_scan=do_nothing,
            health=self._health,
        )
        self._health.on_change = self._kubelet.health_changed
        self._health.on_taints = self._publish.publish
        self._publish.set_lifelines(self._lifelines.targets)
        self._handover = self._build_handover()
        self._leaving = Leaving(self._handover, self._kubelet, self._store, self._reporter)
        self._readiness = Readiness(
            settings.pod_uid, self._handover, self._leaving, self._nri, self._kubelet, self._publisher
        )
        self._loop = asyncio.get_running_loop()
        self._store.on_foreign_change = self._note_foreign_change
        self._ready_file = (
            ReadyFile(settings.ready_file, self._readiness.read) if settings.ready_file else None
        )
        self._probes = ProbeServer(
            settings.bind_address,
            self._metrics,
            self._readiness.read,
            may_wait=lambda: bool(self._handover.others),
            read_features=Features(settings, self._publisher, self._kubelet, self._nri).read,
        )
        self._set_up_gauges()

    def _build_reporter(self) -> Reporter:
        driver, node = self._settings.driver_name, self._settings.node_name
        return Reporter(ApiWriter(self._client, driver, node), self._metrics, ObjectRef.of_node(node))

    def _note_pod_change(self, pod_uid: str) -> None:
        self._health.pod_changed(pod_uid)

    def _build_lifelines(self) -> Lifelines:
        return Lifelines(
            self._settings.node_addresses,
            self._client.url,
            lambda: fetch_node_addresses(self._client, self._settings.node_name),
            on_news=self._set_lifelines,
            retry_seconds=self._settings.rescan_seconds,
        )

    def _set_lifelines(self, targets: Sequence[LifelineTarget]) -> None:
        self._publish.set_lifelines(targets)

    def _get_uplink_rules(self) -> UplinkRules:
        return UplinkRules(self._lifelines.targets, self._settings.sysfs_root)

    def _build_health(self) -> HealthMonitor:
        settings = self._settings
        return HealthMonitor(
            self._inventory,
            SignSource(self._inventory, self._store, self._pod_links, settings.sysfs_root),
            settings.node_name,
            build_rules(settings),
            HealthFile(settings.state_dir / "health.json", self._boot_id),
            self._announcer,
            self._metrics.health,
            is_on_duty=lambda: self._handover.state is InstanceState.ON_DUTY,
        )

    def _build_metadata(self) -> DeviceMetadata:
        settings = self._settings
        return DeviceMetadata(
            driver_name=settings.driver_name,
            sysfs_root=settings.sysfs_root,
            store=self._store,
            files=MetadataFiles(settings.state_dir, settings.driver_name),
            cdi=self._cdi,
            policy=lambda: self._inventory.view.policy,
            events=self._reporter,
            metrics=self._metrics,
            enabled=settings.device_metadata,
        )

    def _build_publisher(self) -> SlicePublisher:
        return SlicePublisher(
            self._client,
            self._settings.driver_name,
            self._settings.node_name,
            listeners=PublishListeners(
                failed=lambda reason: self._metrics.api_errors.labels(reason).inc(),
                wrote=lambda verb: self._metrics.slices.writes.labels(verb).inc(),
                missing=self._metrics.slices.show_missing,
            ),
        )

    def _build_reconciler(self) -> Reconciler:
        return Reconciler(
            boot_id=self._boot_id,
            store=self._store,
            attachments=self._attachments,
            gate=self._gate,
            cdi=self._cdi,
            metadata=self._metadata,
            announcer=self._announcer,
            metrics=self._metrics,
        )

    def _build_nri(self) -> NriPlugin:
        hooks = PodHooks(
            self._store,
            self._attachments,
            self._announcer,
            self._snapshots.put,
            self._settings.hook_budget_seconds,
            self._metadata,
            self._succession.ask,
        )
        return NriPlugin(
            self._settings.nri_socket,
            self._settings.driver_name,
            self._settings.nri_index,
            hooks,
            observe=self._metrics.observe_nri,
            is_our_mount=lambda mount: self._gate.find_claim(mount) is not None,
        )

    def _build_preparer(self) -> Preparer:
        return Preparer(
            driver_name=self._settings.driver_name,
            boot_id=self._boot_id,
            sysfs_root=self._settings.sysfs_root,
            fetch=lambda ref: fetch_claim_for_node(self._client, ref, self._settings.node_name),
            inventory=self._inventory,
            store=self._store,
            attachments=self._attachments,
            leases=self._leases,
            cdi=self._cdi,
            gate=self._gate,
            runtime_ready=lambda: self._nri.is_ready,
            announcer=self._announcer,
            metrics=self._metrics,
            metadata=self._metadata,
        )

    def _build_kubelet(self) -> KubeletPlugin:
        return KubeletPlugin(
            self._settings.driver_name,
            self._settings.dra_socket,
            self._settings.registration_socket,
            self._preparer,
            health=self._health,
            shared=bool(self._settings.pod_uid),
        )

    def _build_handover(self) -> Handover:
        settings = self._settings
        return Handover(
            settings.state_dir,
            Instances(settings.state_dir / FOLDER, settings.pod_uid, settings.sockets_of),
            self._metrics.handover,
            is_fit=lambda: bool(self._kubelet.registered) and self._nri.is_ready,
            on_state=self._note_state,
            on_company=self._look_at_store,
            on_gone=self._note_gone,
        )

    def _note_state(self, state: InstanceState) -> None:
        """Ports are the node's: the one with the duties answers probes for all."""
        if state is InstanceState.ON_DUTY:
            self._probes.want_port()
        elif state is not InstanceState.WAITING:
            self._probes.release_port()

    def _look_at_store(self) -> None:
        """What another instance has written may be ours to mind (leases), or more than we understand."""
        if self._store.is_newer:
            self._handover.step_aside("a newer driver has written the records of this node's claims")
        else:
            self._handover.come_back()

    def _note_foreign_change(self) -> None:
        """Called on any thread."""
        self._loop.call_soon_threadsafe(self._leases.committed)

    def _note_gone(self) -> None:
        """The kubelet has forgotten the health of our devices with the stream of the other one."""
        self._announcer.others_are_gone()
        self._kubelet.health_changed()
        asyncio.get_running_loop().call_later(HEALTH_ECHO_SECONDS, self._kubelet.health_changed)

    def _set_up_gauges(self) -> None:
        """Gauges that are read when they are scraped."""
        self._metrics.build_info.labels(__version__).set(1)
        self._metrics.prepared_claims.set_function(lambda: len(self._store.get_all()))
        self._metrics.inventory.attributes_file_ok.set_function(lambda: not self._policy.problem)
        self._metrics.last_published.set_function(lambda: self._publisher.last_published)

    async def run(self, stop: asyncio.Event) -> None:
        """Start every part in order, serve until ``stop`` is set, then drain and stop in reverse.

        A second driver on the node that is not to overlap is refused before it touches anything that the
        first one uses.
        """
        self._kubelet.take_ownership()
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._handover.leave)
            self._handover.join()
            self._store.open()
            stack.enter_context(contextlib.closing(self._store))
            stack.enter_context(contextlib.closing(self._pod_links))
            stack.enter_context(contextlib.closing(self._attachments))
            await self._prepare_state()
            await stack.enter_async_context(self._serving())
            await self._work_until(stop)

    async def _work_until(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(self._probes.run(), name="probes"),
                tasks.create_task(self._kubelet.watch(), name="kubelet"),
                tasks.create_task(self._publish.run(), name="publish: scan"),
                tasks.create_task(self._reporter.run(), name="report"),
                tasks.create_task(self._reconcile_loop(), name="reconcile"),
                tasks.create_task(self._succession.run(), name="succession"),
                tasks.create_task(self._lifelines.run(), name="lifelines"),
                tasks.create_task(self._health.run(), name="health"),
                tasks.create_task(self._handover.run(self._do_duties), name="hand-over"),
            ]
            if self._ready_file is not None:
                background.append(tasks.create_task(self._ready_file.run(), name="ready file"))
            _settle_memory()
            log.info("started", extra={"context": {"version": __version__}})
            await stop.wait()
            await self._leaving.run(self._settings.drain_seconds)
            await _end(background)

    async def _do_duties(self) -> None:
        """What one instance of the node does for all, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publisher.run(), name="publish: slices")
            tasks.create_task(self._leases.run(), name="leases")

    async def _prepare_state(self) -> None:
        """Before anybody can call: put aside what a reboot made void, and see the node once.

        While a node boots, its tables may change too fast to be read. Prepare and publish scan again.
        """
        await asyncio.to_thread(self._reconciler.forget_other_boots)
        await asyncio.to_thread(self._reconciler.sweep_leftovers)
        await asyncio.to_thread(self._health.recall)
        try:
            await asyncio.to_thread(self._inventory.scan)
        except KernelError as error:
            log.warning("the first scan failed, and is done again: %s", error)

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        """Probes, runtime and kubelet, in this order; stopped in reverse."""
        async with contextlib.AsyncExitStack() as stack:
            await self._probes.start()
            stack.push_async_callback(self._probes.stop)
            if self._ready_file is not None:
                stack.callback(self._ready_file.remove)
                self._ready_file.start()
            self._nri.start()
            stack.push_async_callback(asyncio.to_thread, self._nri.stop)
            await self._kubelet.start()
            stack.push_async_callback(self._kubelet.stop)
            yield

    async def _reconcile_loop(self) -> None:
        while True:
            snapshot = await self._snapshots.get()
            await asyncio.to_thread(self._reconciler.reconcile, snapshot)


async def _end(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel, until they have ended: where a cancellation meets the end of a wait, it may be lost
    (``asyncio.wait_for`` before Python 3.12)."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_SECONDS)


def _first(error: Exception) -> Exception:
    """The error of one part, however many groups of tasks it came through."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _settle_memory() -> None:
    """What start-up made lives for ever: no collection has to look at it again."""
    gc.collect()
    gc.freeze()


def _api_client(settings: Settings) -> ApiClient:
    if settings.kubeconfig:
        return ApiClient.from_kubeconfig(settings.kubeconfig)
    return ApiClient.from_in_cluster()
