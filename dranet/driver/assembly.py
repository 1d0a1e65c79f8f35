"""The one place that constructs: every service of the driver, made from those that it works with.

:class:`Services` has a property for each service; the first access builds it, and what it needs before it.
Where two services need each other, the one that is built first gets a function that asks for the other when
it is called. Nothing is attached to a service afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from functools import cached_property, partial

from dranet.cluster.claims import fetch_claim, fetch_claim_for_node, fetch_other_results
from dranet.cluster.client import ApiClient
from dranet.cluster.nodes import NodeDevices, fetch_node
from dranet.cluster.slices import PublishListeners, SlicePublisher
from dranet.driver.alignment.pod_gpus import PodGpus
from dranet.driver.alignment.watch import AlignmentWatch, Verdicts
from dranet.driver.attachments import Attachments
from dranet.driver.containers import ContainerFiles, WorkloadFiles, WorkloadPack
from dranet.driver.features import judge_all, judge_virtual_functions
from dranet.driver.gpus import GpuCallbacks, GpuContainers, GpuInquiry, GpuRules, GpuServers, OwnGpus
from dranet.driver.health import (
    HEALTH_ECHO_SECONDS,
    HealthCallbacks,
    HealthFile,
    HealthMonitor,
    HealthObserver,
    build_rules,
)
from dranet.driver.hooks import ContainerServices, HookListeners, PodHooks, RuntimeView, SnapshotQueue
from dranet.driver.instances.leader import Drain, InstanceState, Leadership
from dranet.driver.instances.members import FOLDER, Members, WorkLocks
from dranet.driver.metadata import DeviceMetadata, MetadataFiles
from dranet.driver.metrics.reading import CounterReader, take_snapshot
from dranet.driver.metrics.scrape import Scraper, set_up_gauges
from dranet.driver.optional_services import OptionalServices
from dranet.driver.prepare import ClaimReassigner, ClaimState, PrepareListeners, Preparer, PrepareSources
from dranet.driver.probes.http import Access, TokenReviews
from dranet.driver.probes.server import PortContent, ProbeServer, Readiness, ReadyFile
from dranet.driver.probes.tls import open_tls
from dranet.driver.protected_addresses import ProtectedAddresses
from dranet.driver.publish import FactsReader, Inventory, PublishLoop
from dranet.driver.reconcile import (
    ActionLog,
    FileReconciler,
    OwnerReconciler,
    PodReconciler,
    ReconcileLoop,
    Reconcilers,
)
from dranet.driver.reports.announcer import Announcer
from dranet.driver.reports.reporter import RecentEvents, Reporter
from dranet.driver.start_gate import StartGate, StartWindows
from dranet.driver.status_page.source import PageSource, StatusSources
from dranet.errors import Reason
from dranet.kernel.attachment.checks import UplinkRules
from dranet.kernel.discovery.scan import ProtectedAddress
from dranet.kernel.namespaces.pod_links import PodLinks
from dranet.kernel.sysfs.files import read_boot_id, read_uptime
from dranet.kernel.sysfs.irq import InterruptFiles
from dranet.kubelet.kubelet_plugin import KubeletPlugin
from dranet.kubelet.pod_resources import PodResources
from dranet.model.findings import Finding
from dranet.runtime.containers import CdiSpecs
from dranet.runtime.nri import NriListeners, NriPlugin
from dranet.settings import DeviceMetrics, PublishGpus, Settings
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics
from dranet.view.policy import PolicySource


class Services(OptionalServices):
    """Nothing runs yet, and no file is open. To be made on the event loop that they will run on."""

    def __init__(
        self,
        settings: Settings,
        client: ApiClient,
        policy: PolicySource,
        reader: FactsReader,
        metrics: Metrics,
    ) -> None:
        """Raises SettingsError where certificate, key or CA of the port, or the ipam_file, cannot be used."""
        self.settings = settings
        self._client = client
        self._policy = policy
        self._reader = reader
        self._metrics = metrics
        self._boot_id = read_boot_id(settings.procfs_root)
        self._loop = asyncio.get_running_loop()
        self._gate = StartGate(settings.state_dir)
        self._windows = StartWindows(self._gate)
        self._cdi = CdiSpecs(settings.cdi_dir, settings.driver_name)
        self._runtime_view = RuntimeView()
        self._snapshots = SnapshotQueue()
        self._recent_events = RecentEvents()
        self.node_devices = NodeDevices(client, settings.driver_name, settings.node_name)
        self._gpu_containers = GpuContainers(settings.vendor_cdi_dirs, lambda: self.inventory.view.facts.gpus)
        self.pod_links = PodLinks(self._note_pod_change)
        self._tls = open_tls(settings)
        for name in dir(type(self)):
            if isinstance(getattr(type(self), name), cached_property):
                getattr(self, name)

    # --- what is kept: records, gates, files of containers ---

    @cached_property
    def store(self) -> ClaimStore:
        return ClaimStore(
            self.settings.state_dir / "claims",
            on_foreign_change=lambda: self._call_soon(self.leases.committed),  # it may have added some
            on_trouble=self._note_store_trouble,
            on_write=self._metrics.store.write_seconds.observe,
        )

    @cached_property
    def _metadata(self) -> DeviceMetadata:
        return DeviceMetadata(
            self.store,
            MetadataFiles(self.settings.state_dir, self.settings.driver_name),
            self._cdi,
            self._announcer,
            lambda: self.inventory.view.policy,
            self.settings.sysfs_root,
            enabled=self.settings.device_metadata,
        )

    @cached_property
    def _workload(self) -> WorkloadPack:
        return WorkloadPack(
            WorkloadFiles(self.settings.state_dir),
            self._gate,
            self.settings.sysfs_root,
            read_facts=lambda: self.inventory.view.facts,
            get_gpus=lambda pod_uid: [gpu.device for gpu in self._pod_gpus.get(pod_uid).gpus],
            can_set_memory_policy=lambda: bool(self.nri.capabilities.nri_version),
            procfs_root=self.settings.procfs_root,
        )

    @cached_property
    def _container_files(self) -> ContainerFiles:
        return ContainerFiles(self._gate, self._cdi, self._metadata, self._workload)

    # --- publish: scan, decide, write slices ---

    @cached_property
    def inventory(self) -> Inventory:
        reader = self._reader
        if self.neighbours is not None:
            from dranet.driver.lldp import ReaderWithNeighbours

            reader = ReaderWithNeighbours(reader, self.neighbours, self.settings.offer_link_kinds)
        return Inventory(
            reader,
            self._policy.get,
            self.store,
            self._metrics,
            self._gpus.judge,
            lambda: self.providers.facts if self._reader.is_live else (),  # a capture has its own
        )

    @cached_property
    def publish(self) -> PublishLoop:
        publish = PublishLoop(
            self.inventory,
            self.publisher,
            self._metrics,
            self.settings.rescan_seconds,
            on_scan=self._note_scan,
            health=self.health,
            may_publish=self._gpus.may_publish,
        )
        publish.set_protected_addresses(self.protected_addresses.targets)
        return publish

    @cached_property
    def publisher(self) -> SlicePublisher:
        return SlicePublisher(
            self._client,
            self.settings.driver_name,
            self.settings.node_name,
            listeners=PublishListeners(
                failed=lambda reason: self._metrics.api.errors.labels(reason).inc(),
                wrote=lambda verb: self._metrics.slices.writes.labels(verb).inc(),
                missing=self._metrics.slices.show_missing,
            ),
        )

    @cached_property
    def protected_addresses(self) -> ProtectedAddresses:
        return ProtectedAddresses(
            self.settings.node_addresses,
            self._client.url,
            self.gpu_inquiry.fetch_addresses,
            on_change=self._note_addresses,
            retry_seconds=self.settings.rescan_seconds,
        )

    @cached_property
    def health(self) -> HealthMonitor:
        return HealthMonitor(
            HealthObserver(self.inventory, self.store, self.pod_links, self.settings.sysfs_root),
            build_rules(self.settings),
            HealthFile(self.settings.state_dir / "health.json", self._boot_id),
            self._announcer,
            self._metrics.health,
            HealthCallbacks(
                on_change=self._note_health,
                on_taints=self._note_taints,
                is_leader=lambda: self.leadership.state is InstanceState.LEADER,
            ),
        )

    def _note_scan(self) -> None:
        if self.virtual_functions is not None:
            self.virtual_functions.scanned()
        facts = self.inventory.view.facts
        self.reconcile.scanned(facts.links)
        self.alignment.scanned(facts.gpus)
        self.providers.scanned()

    # --- GPUs: which driver serves them, which pods have them, how they are aligned ---

    @cached_property
    def gpu_inquiry(self) -> GpuInquiry:
        return GpuInquiry(
            partial(fetch_node, self._client, self.settings.node_name),
            PodResources(self.settings.pod_resources_socket).read_givers,
            lambda: self._gpus,
            on_node=self.cloud.note_node,
        )

    @cached_property
    def _gpus(self) -> GpuServers:
        own = OwnGpus(self.settings.state_dir / "gpus.json")
        return GpuServers(
            self.node_devices,
            self._metrics.inventory,
            GpuRules(
                self.settings.publish_gpus,
                self.settings.gpu_return_seconds,
                own if self._reader.is_live else None,  # a capture's GPUs are not remembered
                partial(read_uptime, self.settings.procfs_root),
            ),
            GpuCallbacks(
                is_answering=lambda: self.publisher.is_listed,
                on_news=self._look_again,
                on_gpus=lambda: self._call_soon(self.node_devices.want),
                ask=self.gpu_inquiry.ask,
            ),
        )

    @cached_property
    def _pod_gpus(self) -> PodGpus:
        return PodGpus(
            lambda: self.inventory.view, self.store.get_by_pod, self.node_devices, self.settings.driver_name
        )

    @cached_property
    def _verdicts(self) -> Verdicts:
        return Verdicts(
            self._pod_gpus,
            lambda: self.inventory.view,
            self.store,
            lambda: self.health.unhealthy,
            self._metrics.alignment,
        )

    @cached_property
    def alignment(self) -> AlignmentWatch:
        return AlignmentWatch(
            self._verdicts,
            self.store,
            self.node_devices,
            self._announcer.write_again,
            partial(fetch_other_results, self._client),
            PodResources(self.settings.pod_resources_socket).read,
        )

    # --- reports: status, Events, recent events ---

    @cached_property
    def reporter(self) -> Reporter:
        return Reporter(
            self._client,
            self.settings.driver_name,
            self.settings.node_name,
            self._metrics,
            self._verdicts.complete,
            self._find_pod,
            self._recent_events,
        )

    @cached_property
    def _announcer(self) -> Announcer:
        return Announcer(
            self.settings.driver_name,
            self.settings.node_name,
            self.reporter,
            self._metrics,
            self.store.get_by_pod,
            on_attached=self._pod_gpus.notify,
        )

    # --- prepare: what the kubelet asks for ---

    @cached_property
    def kubelet(self) -> KubeletPlugin:
        return KubeletPlugin(
            self.settings.driver_name,
            self.settings.dra_socket,
            self.settings.registration_socket,
            self._preparer,
            health=self.health,
            shared_identity=f"the state folder {self.settings.state_dir}" if self.settings.pod_uid else None,
            on_registration=self._note_registration,
        )

    @cached_property
    def _work(self) -> WorkLocks:
        return WorkLocks(self.store.folder)

    @cached_property
    def _preparer(self) -> Preparer:
        return Preparer(
            driver_name=self.settings.driver_name,
            boot_id=self._boot_id,
            sources=PrepareSources(
                fetch=lambda ref: fetch_claim_for_node(self._client, ref, self.settings.node_name),
                get_offered=self.inventory.get_offered,
                is_runtime_ready=lambda: self.nri.is_ready,
                sysfs_root=self.settings.sysfs_root,
                procfs_root=self.settings.procfs_root,
                find_vendor_device=self._gpu_containers.find_vendor_device,
                find_ipam=self._ipam.find,
                find_node=self._find_pool_node,
                check_addresses=self._open_address_check(),
                find_provided=self.providers.find_config,
                refresh_gpu_owners=self._ask_about_gpus,
            ),
            state=ClaimState(
                self.store,
                self.attachments,
                self.leases,
                self._container_files,
                self._work,
                self._ipam,
                self.providers.profiles,
            ),
            announcer=self._announcer,
            metrics=self._metrics,
            listeners=PrepareListeners(self._look_again, self._note_held),
        )

    async def _ask_about_gpus(self) -> None:
        """Look at the Node again: no watch reports a device plugin that has come since."""
        if self.settings.publish_gpus is PublishGpus.AUTO:
            await self.gpu_inquiry.look()

    @cached_property
    def reassigner(self) -> ClaimReassigner:
        return ClaimReassigner(self._preparer.reassign)

    def _note_registration(self, registered: bool, _: str) -> None:
        if registered:
            self.reconcile.ask("the kubelet has registered the driver")

    # --- hooks and attachments: what the runtime reports ---

    @cached_property
    def nri(self) -> NriPlugin:
        return NriPlugin(
            self.settings.nri_socket,
            self.settings.driver_name,
            self.settings.nri_index,
            self._hooks,
            listeners=NriListeners(
                hook_run=self._metrics.runtime.observe,
                died=partial(os.kill, os.getpid(), signal.SIGTERM),  # the next process has the thread again
                ready=self._metrics.runtime.begun,
            ),
            is_our_mount=lambda source: self._gate.find_claim(source) is not None,
        )

    @cached_property
    def _hooks(self) -> PodHooks:
        return PodHooks(
            self.store,
            self.attachments,
            self._announcer,
            HookListeners(
                synchronized=self._snapshots.put,
                claim_wanted=self.reassigner.ask,
                container_seen=self.alignment.container_seen,
                late=self._metrics.attach.late_hooks.inc,
            ),
            self.settings.hook_budget_seconds,
            self._runtime_view,
            ContainerServices(self._windows, self._metadata, self._workload),
        )

    @cached_property
    def attachments(self) -> Attachments:
        return Attachments(
            self.store,
            self._gate,
            lambda: UplinkRules(self.protected_addresses.targets, self.settings.sysfs_root),
            self._announcer.released,
            self.pod_links,
            InterruptFiles(self.settings.sysfs_root, self.settings.procfs_root),
            self._metrics.attach,
        )

    # --- reconcile: records against runtime, kernel, files and API server ---

    @cached_property
    def _actions(self) -> ActionLog:
        return ActionLog(self._metrics, self._recent_events.add)

    @cached_property
    def files(self) -> FileReconciler:
        return FileReconciler(
            self._boot_id,
            self.store,
            self.attachments,
            self._gate,
            self._container_files,
            self._windows,
            self._actions,
        )

    @cached_property
    def reconcile(self) -> ReconcileLoop:
        pods = PodReconciler(self.store, self.attachments, self._metadata, self._announcer, self._actions)
        owners = OwnerReconciler(
            self.settings.driver_name,
            lambda ref: fetch_claim(self._client, ref),
            self._preparer.forget,
            self._actions,
            patience_seconds=self.settings.reconcile_seconds,
        )
        return ReconcileLoop(
            self.store,
            self._runtime_view,
            self._snapshots,
            Reconcilers(pods, self.files, owners, self._look_outside),
            self._actions,
            self._preparer.finish,
            self.settings.reconcile_seconds,
        )

    # --- instances: which of them leads, and how one leaves ---

    @cached_property
    def leadership(self) -> Leadership:
        folder = self.settings.state_dir / FOLDER
        return Leadership(
            self.settings.state_dir,
            Members(folder, self.settings.pod_uid, self.settings.sockets_of, self.settings.driver_name),
            self._metrics.handover,
            is_fit=lambda: bool(self.kubelet.capabilities.registered) and self.nri.is_ready,
            on_state=self._note_state,
            on_company=self._check_store_version,
            on_gone=self._note_gone,
        )

    @cached_property
    def drain(self) -> Drain:
        return Drain(self.leadership, self.kubelet, self.store, self.reporter)

    def _note_state(self, state: InstanceState) -> None:
        """A port belongs to the node: the leader answers probes for all instances."""
        node = f"node {self.settings.node_name}"
        self._recent_events.add("Normal", "Instance", node, f"this instance of the driver is {state}")
        if state is InstanceState.LEADER:
            self.probes.want_port()
        elif state is not InstanceState.WAITING:
            self.probes.release_port()

    def _check_store_version(self) -> None:
        """Another instance may have written records that this one cannot read."""
        if self.store.is_newer:
            self.leadership.step_aside("a newer driver has written the records of this node's claims")
        else:
            self.leadership.come_back()

    def _note_gone(self) -> None:
        """With the stream of the other instance, the kubelet has forgotten the health of our devices."""
        self._announcer.others_are_gone()
        self.reconcile.ask("another instance is gone")
        self.kubelet.health_changed()
        asyncio.get_running_loop().call_later(HEALTH_ECHO_SECONDS, self.kubelet.health_changed)

    # --- the port: probes, metrics, status page ---

    @cached_property
    def readiness(self) -> Readiness:
        return Readiness(
            self.settings.pod_uid, self.leadership, self.drain, self.nri, self.kubelet, self.publisher
        )

    @cached_property
    def ready_file(self) -> ReadyFile | None:
        file = self.settings.ready_file
        return ReadyFile(file, self.readiness.read) if file else None

    @cached_property
    def probes(self) -> ProbeServer:
        set_up_gauges(self._metrics, self.store, self._policy, self.publisher, self.kubelet, self.nri)
        status = StatusSources(
            self.settings,
            self.leadership,
            self.readiness,
            self.inventory,
            self.store,
            self._gate,
            self.health,
            self._verdicts,
            self._recent_events,
            self._read_findings,
        )
        return ProbeServer(
            self.settings.bind_address,
            self._metrics,
            PortContent(
                self.readiness.read,
                read_features=self._read_findings,
                read_fault=lambda: self.nri.fault,
                read_page=PageSource(status).read,
                read_metrics=self._build_scraper().render,
            ),
            may_wait=lambda: bool(self.leadership.others),
            access=Access(
                self.settings.node_page,
                self.settings.metrics_authentication,
                TokenReviews(self._client),
                self._client.is_own_token,
            ),
            tls=self._tls,
        )

    def _build_scraper(self) -> Scraper:
        return Scraper(
            self._metrics,
            lambda: take_snapshot(
                self.inventory.view,
                self.store.get_all(),
                self.pod_links,
                self.health.get_states(),
                self._verdicts.get_latest,
            ),
            CounterReader(self.settings.sysfs_root),
            self.settings.device_metrics if self._reader.is_live else DeviceMetrics.OFF,  # not of a capture
        )

    def _read_findings(self) -> list[Finding]:
        certificates = self._tls.read_findings() if self._tls is not None else ()
        served = self._gpus.served if self._gpus.has_gpus else None
        peers = self.publisher.features, self.kubelet.capabilities, self.nri.capabilities
        findings = judge_all(self.settings, *peers, served, self._ipam.read_state())
        functions = self.virtual_functions
        if functions is not None:
            findings += judge_virtual_functions(functions.states, self._policy.vf_problem)
        return [*findings, *certificates, *self.providers.read_findings()]

    # --- calls to services that are built later than their callers ---

    def _note_store_trouble(self, reason: Reason, note: str) -> None:
        self._announcer.store_trouble(reason, note)

    def _note_addresses(self, targets: Sequence[ProtectedAddress]) -> None:
        self.publish.set_protected_addresses(targets)

    def _note_health(self) -> None:
        self.kubelet.health_changed()

    def _note_taints(self) -> None:
        self.publish.publish()

    def _note_held(self, claim_uid: str) -> None:
        self.reconcile.doubt(claim_uid)

    def _note_pod_change(self, pod_uid: str) -> None:
        self.health.pod_changed(pod_uid)

    def _look_again(self) -> None:
        self.publish.look_again()

    def _call_soon(self, call: Callable[[], None]) -> None:
        """On the event loop, from any thread; without effect once the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)
