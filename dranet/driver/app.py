"""The driver as a whole: build, start in order, drain, stop.

Start: store, first scan, runtime, kubelet, publish, ready. Stop: not ready, refuse Prepare, wait for pods
that are prepared but not yet running, then kubelet, runtime, reports, store. Slices stay published: a quick
restart keeps them, and the kubelet wipes them after 30 s if we do not come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
from collections.abc import AsyncIterator, Mapping, Sequence

from dranet import __version__
from dranet.cluster.claims import apply_device_statuses, fetch_claim
from dranet.cluster.client import ApiClient
from dranet.cluster.events import EventRecorder
from dranet.cluster.nodes import fetch_node_addresses
from dranet.cluster.slices import SlicePublisher
from dranet.driver.announce import Announcer
from dranet.driver.attachments import Attachments
from dranet.driver.captured import CapturedFacts
from dranet.driver.gate import ReadyGate
from dranet.driver.health import InventoryHealth
from dranet.driver.hooks import PodHooks, RuntimeSnapshot
from dranet.driver.leases import Leases
from dranet.driver.lifelines import Lifelines
from dranet.driver.policy import PolicySource
from dranet.driver.prepare import Preparer
from dranet.driver.probes import PartState, ProbeServer
from dranet.driver.publish import FactsReader, Inventory, PublishLoop
from dranet.driver.reconcile import Reconciler
from dranet.driver.report import EventNote, Reporter
from dranet.driver.workers import Workers
from dranet.errors import KernelError
from dranet.kernel.attachment.uplink import UplinkRules
from dranet.kernel.boot import read_boot_id
from dranet.kernel.discovery.scan import NodeScanner
from dranet.kernel.lifelines import LifelineTarget
from dranet.kubelet.kubelet_plugin import KubeletPlugin
from dranet.model.claim import ClaimRef
from dranet.model.status import DeviceStatus
from dranet.runtime.cdi import CdiSpecs
from dranet.runtime.nri import NriPlugin
from dranet.settings import Settings
from dranet.store import ClaimStore
from dranet.telemetry import Metrics

log = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0
"""At stop, the last statuses and Events get this long."""
DRAIN_POLL_SECONDS = 0.25
FIELD_MANAGER_MAX_CHARACTERS = 128
"""The API server's limit."""
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
        self._reporter = Reporter(_StatusAndEventWriter(client, settings), self._metrics)
        self._announcer = Announcer(settings.driver_name, settings.node_name, self._reporter, self._metrics)
        self._attachments = Attachments(
            self._store, self._gate, self._get_uplink_rules, self._announcer.released
        )
        self._leases = Leases(self._store, self._attachments, self._announcer, self._metrics)
        self._inventory = Inventory(reader, policy.get, self._store, self._metrics)
        self._publisher = self._build_publisher()
        self._reconciler = self._build_reconciler()
        self._snapshots = SnapshotQueue()
        self._nri = self._build_nri()
        self._kubelet = self._build_kubelet()
        self._publish = PublishLoop(
            self._inventory,
            self._publisher,
            self._metrics,
            settings.rescan_seconds,
            self._kubelet.health_changed,
        )
        self._publish.set_lifelines(self._lifelines.targets)
        self._probes = ProbeServer(settings.bind_address, self._metrics, self._read_state)
        self._draining = False
        self._set_up_gauges()

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

    def _build_publisher(self) -> SlicePublisher:
        return SlicePublisher(
            self._client,
            self._settings.driver_name,
            self._settings.node_name,
            on_failure=lambda reason: self._metrics.api_errors.labels(reason).inc(),
        )

    def _build_reconciler(self) -> Reconciler:
        return Reconciler(
            boot_id=self._boot_id,
            store=self._store,
            attachments=self._attachments,
            gate=self._gate,
            cdi=self._cdi,
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
        )
        return NriPlugin(
            self._settings.nri_socket,
            self._settings.driver_name,
            self._settings.nri_index,
            hooks,
            observe=self._metrics.observe_nri,
        )

    def _build_kubelet(self) -> KubeletPlugin:
        preparer = Preparer(
            driver_name=self._settings.driver_name,
            boot_id=self._boot_id,
            sysfs_root=self._settings.sysfs_root,
            fetch=lambda ref: fetch_claim(self._client, ref),
            inventory=self._inventory,
            store=self._store,
            attachments=self._attachments,
            leases=self._leases,
            cdi=self._cdi,
            gate=self._gate,
            runtime_ready=lambda: self._nri.is_ready,
            announcer=self._announcer,
            metrics=self._metrics,
        )
        return KubeletPlugin(
            self._settings.driver_name,
            self._settings.dra_socket,
            self._settings.registration_socket,
            preparer,
            health=InventoryHealth(self._inventory, self._settings.node_name),
        )

    def _set_up_gauges(self) -> None:
        """Gauges that are read when they are scraped."""
        self._metrics.build_info.labels(__version__).set(1)
        self._metrics.prepared_claims.set_function(lambda: len(self._store.get_all()))
        self._metrics.inventory.attributes_file_ok.set_function(lambda: not self._policy.problem)
        self._metrics.last_published.set_function(lambda: self._publisher.last_published)

    async def run(self, stop: asyncio.Event) -> None:
        """Start every part in order, serve until ``stop`` is set, then drain and stop in reverse.

        A second driver on the node is refused before it touches anything that the first one uses.
        """
        self._kubelet.take_ownership()
        self._store.open()
        with contextlib.closing(self._store), contextlib.closing(self._attachments):
            await self._prepare_state()
            async with self._serving(), asyncio.TaskGroup() as tasks:
                background = [
                    tasks.create_task(self._publish.run(), name="publish: scan"),
                    tasks.create_task(self._publisher.run(), name="publish: slices"),
                    tasks.create_task(self._reporter.run(), name="report"),
                    tasks.create_task(self._reconcile_loop(), name="reconcile"),
                    tasks.create_task(self._lifelines.run(), name="lifelines"),
                    tasks.create_task(self._leases.run(), name="leases"),
                ]
                _settle_memory()
                log.info("started", extra={"context": {"version": __version__}})
                await stop.wait()
                await self._drain()
                for task in background:
                    task.cancel()

    async def _prepare_state(self) -> None:
        """Before anybody can call: put aside what a reboot made void, and see the node once.

        While a node boots, its tables may change too fast to be read. Prepare and publish scan again.
        """
        await asyncio.to_thread(self._reconciler.forget_other_boots)
        await asyncio.to_thread(self._reconciler.sweep_leftovers)
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
            self._nri.start()
            stack.push_async_callback(asyncio.to_thread, self._nri.stop)
            await self._kubelet.start()
            stack.push_async_callback(self._kubelet.stop)
            yield

    async def _reconcile_loop(self) -> None:
        while True:
            snapshot = await self._snapshots.get()
            await asyncio.to_thread(self._reconciler.reconcile, snapshot)

    async def _drain(self) -> None:
        """Refuse new work, let what was promised happen, tell the API server the last words."""
        log.info("draining", extra={"context": {"seconds": self._settings.drain_seconds}})
        self._draining = True
        self._kubelet.refuse("the driver is stopping; the kubelet tries again with its successor")
        deadline = asyncio.get_running_loop().time() + self._settings.drain_seconds
        await self._kubelet.drain(self._settings.drain_seconds)
        told: list[str] = []
        while (waiting := self._pods_waiting()) and asyncio.get_running_loop().time() < deadline:
            if waiting != told:
                log.info("waiting for pod sandboxes to run: %s", ", ".join(waiting))
                told = waiting
            await asyncio.sleep(DRAIN_POLL_SECONDS)
        if waiting:
            log.warning("stopping although prepared pods have not run yet: %s", ", ".join(waiting))
        if not await self._reporter.flush(FLUSH_SECONDS):
            log.warning("some claim statuses or Events were not written in time")

    def _pods_waiting(self) -> list[str]:
        """Pods that were promised a NIC and whose sandbox has not run yet."""
        return [str(record.pod) for record in self._store.get_all() if record.plans and not record.netns_path]

    def _read_state(self) -> Mapping[str, PartState]:
        """One line for each part; all must be ready."""
        refused = self._kubelet.registration_error
        return {
            "driver": PartState(not self._draining, "draining" if self._draining else ""),
            "runtime": PartState(self._nri.is_ready, "" if self._nri.is_ready else self._why_no_runtime()),
            "kubelet": PartState(bool(self._kubelet.registered), refused or _registration(self._kubelet)),
            "slices": PartState(self._publisher.is_published, self._publisher.last_error),
        }

    def _why_no_runtime(self) -> str:
        return f"NRI is not connected: {self._nri.last_failure or 'not tried yet'}"


class SnapshotQueue:
    """From the NRI thread to the event loop; only the newest snapshot counts."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._newest: RuntimeSnapshot | None = None
        self._filled = asyncio.Event()

    def put(self, snapshot: RuntimeSnapshot) -> None:
        """Called on the NRI thread."""
        self._loop.call_soon_threadsafe(self._store, snapshot)

    async def get(self) -> RuntimeSnapshot:
        await self._filled.wait()
        self._filled.clear()
        assert self._newest is not None
        return self._newest

    def _store(self, snapshot: RuntimeSnapshot) -> None:
        self._newest = snapshot
        self._filled.set()


class _StatusAndEventWriter:
    """Implements ``driver.report.Writer`` with the API server behind it."""

    def __init__(self, client: ApiClient, settings: Settings) -> None:
        self._client = client
        manager = f"{settings.driver_name}-{settings.node_name}"
        self._field_manager = manager[:FIELD_MANAGER_MAX_CHARACTERS]
        self._events = EventRecorder(client, component=settings.driver_name, host=settings.node_name)

    async def write_statuses(self, claim: ClaimRef, statuses: Sequence[DeviceStatus]) -> None:
        await apply_device_statuses(self._client, claim, self._field_manager, statuses)

    async def write_event(self, event: EventNote) -> None:
        await self._events.record(event.regarding, event.type, event.reason, event.note)


def _first(error: Exception) -> Exception:
    """The error of one part, however many groups of tasks it came through."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _settle_memory() -> None:
    """What start-up made lives for ever: no collection has to look at it again."""
    gc.collect()
    gc.freeze()


def _registration(kubelet: KubeletPlugin) -> str:
    return "" if kubelet.registered else "the kubelet has not registered the driver yet"


def _api_client(settings: Settings) -> ApiClient:
    if settings.kubeconfig:
        return ApiClient.from_kubeconfig(settings.kubeconfig)
    return ApiClient.from_in_cluster()
