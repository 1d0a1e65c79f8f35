"""The parts of the driver, each made and told of the others that it works with: the one place for wiring."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from functools import partial

from dranet.cluster.claims import fetch_claim
from dranet.cluster.client import ApiClient
from dranet.cluster.node_slices import NodeDevices
from dranet.cluster.nodes import fetch_node
from dranet.cluster.pods import fetch_claim_for_node, fetch_other_results
from dranet.cluster.slices import PublishListeners, SlicePublisher
from dranet.driver.alignment.pod_gpus import PodGpus
from dranet.driver.alignment.verdicts import Verdicts
from dranet.driver.alignment.watch import AlignmentWatch
from dranet.driver.attachments import Attachments
from dranet.driver.containers import ContainerFiles
from dranet.driver.features import Features
from dranet.driver.gpus.containers import GpuContainers
from dranet.driver.gpus.servers import GpuInquiry, GpuServers, OwnGpus
from dranet.driver.health.file import HealthFile
from dranet.driver.health.monitor import HealthMonitor, build_rules
from dranet.driver.health.observations import HealthObserver
from dranet.driver.hooks import PodHooks
from dranet.driver.instances.leader import Drain, InstanceState, Leadership
from dranet.driver.instances.members import FOLDER, Members
from dranet.driver.leases import Leases
from dranet.driver.metrics.reading import CounterReader
from dranet.driver.metrics.scrape import Scraper, set_up_gauges
from dranet.driver.metrics.snapshot import take_snapshot
from dranet.driver.prepare import Preparer
from dranet.driver.probes.access import Access, TokenReviews
from dranet.driver.probes.readiness import Readiness, ReadyFile
from dranet.driver.probes.server import ProbeServer
from dranet.driver.probes.tls import TlsFiles, open_tls
from dranet.driver.protected_addresses import ProtectedAddresses
from dranet.driver.publish import FactsReader, Inventory, PublishLoop
from dranet.driver.reassign import ClaimReassigner
from dranet.driver.recent_events import RecentEvents
from dranet.driver.reconcile.actions import ActionLog
from dranet.driver.reconcile.loop import FileReconciler, OwnerReconciler, ReconcileLoop
from dranet.driver.reconcile.pods import PodReconciler
from dranet.driver.reconcile.runtime_view import RuntimeView, SnapshotQueue
from dranet.driver.reports.announcer import Announcer
from dranet.driver.reports.reporter import Reporter
from dranet.driver.start_gate import StartGate, StartWindows
from dranet.driver.status_page.source import PageSource, PartsKnowledge
from dranet.driver.workload.metadata import DeviceMetadata, MetadataFiles
from dranet.driver.workload.pack import WorkloadFiles, WorkloadPack
from dranet.kernel.attachment.uplink import UplinkRules
from dranet.kernel.discovery.protected_addresses import ProtectedAddress
from dranet.kernel.namespaces.pod_links import PodLinks
from dranet.kernel.sysfs.irq import InterruptFiles
from dranet.kernel.sysfs.procfs import read_boot_id, read_uptime
from dranet.kubelet.kubelet_plugin import KubeletPlugin
from dranet.kubelet.pod_resources import PodResources
from dranet.model.claim import PodRef
from dranet.model.findings import Finding
from dranet.runtime.cdi import CdiSpecs
from dranet.runtime.nri import NriPlugin
from dranet.settings import Authentication, DeviceMetrics, PublishGpus, Settings
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics
from dranet.view.policy import PolicySource

HEALTH_ECHO_SECONDS = 1.0
"""When a health stream ends, the kubelet forgets what all instances said. It may notice that after we do."""


class Parts:
    """Every part of the driver, knowing those that it works with. Nothing runs yet, and no file is open."""

    def __init__(
        self, settings: Settings, client: ApiClient, policy: PolicySource, reader: FactsReader
    ) -> None:
        self.settings = settings
        self.client = client
        self.policy = policy
        self.boot_id = read_boot_id(settings.procfs_root)
        self.metrics = Metrics()
        client.observer = self.metrics.api
        self.store = ClaimStore(settings.state_dir / "claims.db")
        self.gate = StartGate(settings.state_dir)
        self.windows = StartWindows(self.gate)
        self.cdi = CdiSpecs(settings.cdi_dir, settings.driver_name)
        self.node_devices = NodeDevices(client, settings.driver_name, settings.node_name)
        self.pod_gpus = PodGpus(
            lambda: self.inventory.view, self.store.get_by_pod, self.node_devices, settings.driver_name
        )
        self.verdicts = self._build_verdicts()
        self.gpu_inquiry = build_gpu_inquiry(self)
        self.gpus = build_gpus(self, is_live=reader.is_live)
        self.protected_addresses = self._build_protected_addresses()
        self.happenings = RecentEvents()
        self.reporter = self._build_reporter()
        self.announcer = Announcer(
            settings.driver_name,
            settings.node_name,
            self.reporter,
            self.metrics,
            self.store.get_by_pod,
            on_attached=self.pod_gpus.notify,
        )
        self.alignment = self._build_alignment()
        self.pod_links = PodLinks(self._note_pod_change)
        self.attachments = Attachments(
            self.store,
            self.gate,
            self._get_uplink_rules,
            self.announcer.released,
            self.pod_links,
            InterruptFiles(settings.sysfs_root, settings.procfs_root),
            observer=self.metrics.attach,
            sysfs_root=settings.sysfs_root,
        )
        self.leases = Leases(self.store, self.attachments, self.announcer, self.metrics)
        self.inventory = Inventory(reader, policy.get, self.store, self.metrics, self.gpus.judge)
        self.gpu_containers = GpuContainers(settings.vendor_cdi_dirs, lambda: self.inventory.view.facts.gpus)
        self.health = self._build_health()
        self.metadata = self._build_metadata()
        self.leases.on_links = self.metadata.links_changed
        self.workload = self._build_workload()
        self.publisher = self._build_publisher()
        self.actions = ActionLog(self.metrics)
        self.actions.on_action = self.happenings.add
        self.files = self._build_files()
        self.snapshots = SnapshotQueue()
        self.runtime_view = RuntimeView()
        self.preparer = self._build_preparer()
        self.reconcile = self._build_reconcile()
        self.succession = ClaimReassigner(self.preparer.reassign)
        self.nri = self._build_nri()
        self.kubelet = self._build_kubelet()
        self.publish = PublishLoop(
            self.inventory,
            self.publisher,
            self.metrics,
            settings.rescan_seconds,
            on_scan=self._note_scan,
            health=self.health,
            may_publish=self.gpus.may_publish,
        )
        self.health.on_change = self.kubelet.health_changed
        self.health.on_taints = self.publish.publish
        self.publish.set_protected_addresses(self.protected_addresses.targets)
        self.handover = self._build_handover()
        self.leaving = Drain(self.handover, self.kubelet, self.store, self.reporter)
        self.readiness = Readiness(
            settings.pod_uid, self.handover, self.leaving, self.nri, self.kubelet, self.publisher
        )
        self._loop = asyncio.get_running_loop()
        self.store.on_foreign_change = self._note_foreign_change
        self.store.on_trouble = self.announcer.store_trouble
        self.store.on_write = self.metrics.store.write_seconds.observe
        self.ready_file = ReadyFile(settings.ready_file, self.readiness.read) if settings.ready_file else None
        self.probes = build_port(self, is_live=reader.is_live)

    def _build_reporter(self) -> Reporter:
        return Reporter(
            self.client,
            self.settings.driver_name,
            self.settings.node_name,
            self.metrics,
            self.verdicts.complete,
            self._find_pod,
            self.happenings,
        )

    def _find_pod(self, claim_uid: str) -> PodRef | None:
        record = self.store.get(claim_uid)
        return None if record is None else record.pod

    def _build_verdicts(self) -> Verdicts:
        return Verdicts(
            self.pod_gpus,
            lambda: self.inventory.view,
            self.store,
            lambda: self.health.unhealthy,
            self.metrics.alignment,
        )

    def _build_alignment(self) -> AlignmentWatch:
        return AlignmentWatch(
            self.verdicts,
            self.store,
            self.node_devices,
            self.announcer.write_again,
            partial(fetch_other_results, self.client),
            PodResources(self.settings.pod_resources_socket).read,
        )

    def _note_scan(self) -> None:
        facts = self.inventory.view.facts
        self.reconcile.scanned(facts.links)
        self.alignment.scanned(facts.gpus)

    def _note_pod_change(self, pod_uid: str) -> None:
        self.health.pod_changed(pod_uid)

    def _build_protected_addresses(self) -> ProtectedAddresses:
        return ProtectedAddresses(
            self.settings.node_addresses,
            self.client.url,
            self.gpu_inquiry.fetch_addresses,
            on_news=self._set_protected_addresses,
            retry_seconds=self.settings.rescan_seconds,
        )

    async def _ask_about_gpus(self) -> None:
        """A device plugin may have come since the last look at the Node, and no watch tells of it."""
        if self.settings.publish_gpus is PublishGpus.AUTO:
            await self.gpu_inquiry.look()

    def look_again(self) -> None:
        self.publish.look_again()

    def call_soon(self, call: Callable[[], None]) -> None:
        """On the event loop, from any thread; too late at the end."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    def _set_protected_addresses(self, targets: Sequence[ProtectedAddress]) -> None:
        self.publish.set_protected_addresses(targets)

    def _get_uplink_rules(self) -> UplinkRules:
        return UplinkRules(self.protected_addresses.targets, self.settings.sysfs_root)

    def _build_health(self) -> HealthMonitor:
        settings = self.settings
        return HealthMonitor(
            self.inventory,
            HealthObserver(self.inventory, self.store, self.pod_links, settings.sysfs_root),
            settings.node_name,
            build_rules(settings),
            HealthFile(settings.state_dir / "health.json", self.boot_id),
            self.announcer,
            self.metrics.health,
            is_on_duty=lambda: self.handover.state is InstanceState.LEADER,
        )

    def _build_metadata(self) -> DeviceMetadata:
        settings = self.settings
        return DeviceMetadata(
            self.store,
            MetadataFiles(settings.state_dir, settings.driver_name),
            self.cdi,
            self.announcer,
            lambda: self.inventory.view.policy,
            settings.sysfs_root,
            enabled=settings.device_metadata,
        )

    def _build_workload(self) -> WorkloadPack:
        return WorkloadPack(
            WorkloadFiles(self.settings.state_dir),
            self.gate,
            self.settings.sysfs_root,
            read_facts=lambda: self.inventory.view.facts,
            get_gpus=lambda pod_uid: [gpu.device for gpu in self.pod_gpus.get(pod_uid).gpus],
            can_set_memory_policy=lambda: bool(self.nri.traits.nri_version),
            procfs_root=self.settings.procfs_root,
        )

    def _build_publisher(self) -> SlicePublisher:
        return SlicePublisher(
            self.client,
            self.settings.driver_name,
            self.settings.node_name,
            listeners=PublishListeners(
                failed=lambda reason: self.metrics.api.errors.labels(reason).inc(),
                wrote=lambda verb: self.metrics.slices.writes.labels(verb).inc(),
                missing=self.metrics.slices.show_missing,
            ),
        )

    def _build_files(self) -> FileReconciler:
        return FileReconciler(
            self.boot_id,
            self.store,
            self.attachments,
            self.gate,
            ContainerFiles(self.gate, self.cdi, self.metadata, self.workload),
            self.windows,
            self.actions,
        )

    def _doubt(self, claim_uid: str) -> None:
        """The reconcile loop is built after what calls this."""
        self.reconcile.doubt(claim_uid)

    def _build_reconcile(self) -> ReconcileLoop:
        pods = PodReconciler(self.store, self.attachments, self.metadata, self.announcer, self.actions)
        owners = OwnerReconciler(
            self.settings.driver_name,
            lambda ref: fetch_claim(self.client, ref),
            self.preparer.forget,
            self.actions,
            patience_seconds=self.settings.reconcile_seconds,
        )
        return ReconcileLoop(
            self.store,
            self.runtime_view,
            self.snapshots,
            pods,
            self.files,
            owners,
            self.actions,
            self.preparer.finish,
            self.settings.reconcile_seconds,
            on_look=self.metrics.reconcile.looked,
        )

    def _build_nri(self) -> NriPlugin:
        hooks = PodHooks(
            self.store,
            self.attachments,
            self.announcer,
            self.snapshots.put,
            self.settings.hook_budget_seconds,
            self.metadata,
            self.succession.ask,
            self.runtime_view,
            self.windows,
            self.workload,
            on_container=self.alignment.container_seen,
            on_late=self.metrics.attach.late_hooks.inc,
        )
        return NriPlugin(
            self.settings.nri_socket,
            self.settings.driver_name,
            self.settings.nri_index,
            hooks,
            observe=self.metrics.runtime.observe,
            on_ready=self.metrics.runtime.begun,
            is_our_mount=lambda source: self.gate.find_claim_by_source(source) is not None,
            on_death=partial(os.kill, os.getpid(), signal.SIGTERM),  # a successor has the thread again
        )

    def _build_preparer(self) -> Preparer:
        return Preparer(
            driver_name=self.settings.driver_name,
            boot_id=self.boot_id,
            sysfs_root=self.settings.sysfs_root,
            procfs_root=self.settings.procfs_root,
            vendor_device=self.gpu_containers.find_vendor_device,
            on_gpus_free=self.look_again,
            on_held=self._doubt,
            ask_about_gpus=self._ask_about_gpus,
            fetch=lambda ref: fetch_claim_for_node(self.client, ref, self.settings.node_name),
            inventory=self.inventory,
            store=self.store,
            attachments=self.attachments,
            leases=self.leases,
            cdi=self.cdi,
            gate=self.gate,
            runtime_ready=lambda: self.nri.is_ready,
            announcer=self.announcer,
            metrics=self.metrics,
            metadata=self.metadata,
            workload=self.workload,
        )

    def _build_kubelet(self) -> KubeletPlugin:
        return KubeletPlugin(
            self.settings.driver_name,
            self.settings.dra_socket,
            self.settings.registration_socket,
            self.preparer,
            health=self.health,
            shared=bool(self.settings.pod_uid),
            trait=f"the state folder {self.settings.state_dir}",
            on_registration=self._note_registration,
        )

    def _build_handover(self) -> Leadership:
        settings = self.settings
        return Leadership(
            settings.state_dir,
            Members(settings.state_dir / FOLDER, settings.pod_uid, settings.sockets_of, settings.driver_name),
            self.metrics.handover,
            is_fit=lambda: bool(self.kubelet.registered) and self.nri.is_ready,
            on_state=self._note_state,
            on_company=self._look_at_store,
            on_gone=self._note_gone,
        )

    def _note_state(self, state: InstanceState) -> None:
        """Ports are the node's: the one with the duties answers probes for all."""
        node = f"node {self.settings.node_name}"
        self.happenings.add("Normal", "Instance", node, f"this instance of the driver is {state}")
        if state is InstanceState.LEADER:
            self.probes.want_port()
        elif state is not InstanceState.WAITING:
            self.probes.release_port()

    def _look_at_store(self) -> None:
        """What another instance has written may be ours to mind (leases), or more than we understand."""
        if self.store.is_newer:
            self.handover.step_aside("a newer driver has written the records of this node's claims")
        else:
            self.handover.come_back()

    def _note_foreign_change(self) -> None:
        """Called on any thread."""
        self._loop.call_soon_threadsafe(self.leases.committed)

    def _note_registration(self, registered: bool, _: str) -> None:
        """The kubelet has started, or has lost us and found us again."""
        if registered:
            self.reconcile.ask("the kubelet has registered the driver")

    def _note_gone(self) -> None:
        """The kubelet has forgotten the health of our devices with the stream of the other one."""
        self.announcer.others_are_gone()
        self.reconcile.ask("another instance is gone")
        self.kubelet.health_changed()
        asyncio.get_running_loop().call_later(HEALTH_ECHO_SECONDS, self.kubelet.health_changed)


def build_gpu_inquiry(parts: Parts) -> GpuInquiry:
    """Asks the Node object and the kubelet's device plugins."""
    settings = parts.settings
    return GpuInquiry(
        partial(fetch_node, parts.client, settings.node_name),
        PodResources(settings.pod_resources_socket).read_givers,
        lambda: parts.gpus,
    )


def build_gpus(parts: Parts, *, is_live: bool) -> GpuServers:
    """Decides whether GPUs are ours to offer; remembers across a boot which were, unless they are of a
    capture."""
    settings = parts.settings
    own = OwnGpus(settings.state_dir / "gpus.json")
    return GpuServers(
        settings.publish_gpus,
        parts.node_devices,
        parts.metrics.inventory,
        is_answering=lambda: parts.publisher.is_listed,
        on_news=parts.look_again,
        on_gpus=lambda: parts.call_soon(parts.node_devices.want),
        ask=parts.gpu_inquiry.ask,
        read_uptime=partial(read_uptime, settings.procfs_root),
        own=own if is_live else None,
        return_seconds=settings.gpu_return_seconds,
    )


def build_port(parts: Parts, *, is_live: bool) -> ProbeServer:
    """The last part to be built: it asks all others. Nothing listens yet.

    Raises:
        SettingsError: certificate, key or CA cannot be used.
    """
    settings = parts.settings
    has_tokens = settings.metrics_authentication is Authentication.KUBERNETES
    tls = open_tls(settings)
    findings = _Findings(parts, tls)
    set_up_gauges(parts)
    return ProbeServer(
        settings.bind_address,
        parts.metrics,
        parts.readiness.read,
        may_wait=lambda: bool(parts.handover.others),
        read_features=findings.read,
        read_fault=lambda: parts.nri.fault,
        read_metrics=_build_scraper(parts, is_live=is_live).render,
        read_page=PageSource(PartsKnowledge(parts, findings.read), parts.gate).read,
        access=Access(
            settings.node_page,
            settings.metrics_authentication,
            TokenReviews(parts.client) if has_tokens else None,
            parts.client.is_own_token,
        ),
        tls=tls,
    )


class _Findings:
    """What was found out about the driver's surroundings while it runs."""

    def __init__(self, parts: Parts, tls: TlsFiles | None) -> None:
        self._features = Features(parts.settings, parts.publisher, parts.kubelet, parts.nri, parts.gpus)
        self._tls = tls

    def read(self) -> list[Finding]:
        return [*self._features.read(), *(self._tls.read_findings() if self._tls is not None else ())]


def _build_scraper(parts: Parts, *, is_live: bool) -> Scraper:
    return Scraper(
        parts.metrics,
        lambda: take_snapshot(
            parts.inventory.view, parts.store, parts.pod_links, parts.health, parts.verdicts
        ),
        CounterReader(parts.settings.sysfs_root),
        parts.settings.device_metrics if is_live else DeviceMetrics.OFF,  # a capture has no counters
    )
