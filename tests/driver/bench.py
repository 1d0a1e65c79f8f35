"""The part of the driver that moves devices: the real store, gate and kernel, in throw-away namespaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dranet.claims.plan.device import plan_device
from dranet.driver.attachments import Attachments, ReleaseReport
from dranet.driver.containers import ContainerFiles, WorkloadFiles, WorkloadPack
from dranet.driver.hooks import (
    ContainerServices,
    HookListeners,
    PodHooks,
    RuntimeSnapshot,
    RuntimeView,
    placements,
)
from dranet.driver.metadata import DeviceMetadata, MetadataFiles
from dranet.driver.reconcile import ActionLog, FileReconciler, PodReconciler
from dranet.driver.reports.announcer import Announcer
from dranet.driver.start_gate import StartGate, StartWindows
from dranet.errors import DranetError
from dranet.inventory.policy import DEFAULT_POLICY
from dranet.kernel.attachment.restore import read_link_state
from dranet.kernel.sysfs.irq import InterruptFiles
from dranet.model.claim import ClaimRef, Container, ContainerAdjustment, PodRef, PodSandbox, Rlimit
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import CharDevice, Link, NodeFacts
from dranet.model.parameters.network import NetworkConfig
from dranet.model.plan import PreparedClaim, PreparedDevice, RdmaAccess
from dranet.model.status import AttachedLink
from dranet.runtime.containers import CdiSpecs
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics
from tests.support.namespaces import Namespace

POD_UID = "pod-uid"
UVERBS = CharDevice("/dev/infiniband/uverbs0", 231, 192)
NO_RDMA = RdmaAccess()


class Told(Announcer):
    """Remembers what it was told instead of telling the API server."""

    def __init__(self) -> None:
        self.attached_links: list[AttachedLink] = []
        self.attached_claims: list[PreparedClaim] = []
        self.found_links: list[AttachedLink] = []
        self.found_claims: list[PreparedClaim] = []
        self.failures: list[tuple[Sequence[PreparedClaim], DranetError]] = []
        self.reports: list[ReleaseReport] = []
        self.stuck: list[tuple[str, DranetError]] = []
        self.stuck_devices: list[PreparedDevice] = []
        self.refusals: list[tuple[str, DranetError]] = []
        self.bare: list[tuple[str, str]] = []

    def attached(self, records: Sequence[PreparedClaim], links: Sequence[AttachedLink]) -> None:
        self.attached_links += links
        self.attached_claims += records

    def found_attached(self, records: Sequence[PreparedClaim], links: Sequence[AttachedLink]) -> None:
        self.found_links += links
        self.found_claims += records

    def attach_failed(self, records: Sequence[PreparedClaim], error: DranetError) -> None:
        self.failures.append((records, error))

    def released(self, report: ReleaseReport) -> None:
        self.reports.append(report)

    def release_failed(
        self, ref: ClaimRef, error: DranetError, devices: Sequence[PreparedDevice] = ()
    ) -> None:
        self.stuck.append((ref.uid, error))
        self.stuck_devices += devices

    def container_refused(self, pod: PodSandbox, error: DranetError) -> None:
        self.refusals.append((pod.name, error))

    def runs_bare(self, pod: PodSandbox, container: str, error: DranetError) -> None:
        self.bare.append((pod.name, container))
        self.refusals.append((pod.name, error))


class Bench:
    """The part of the driver that moves devices, over a state folder; another one is the driver restarted."""

    def __init__(
        self, folder: Path, node: Namespace, boot_id: str = "boot", sysfs_root: Path = Path("/sys")
    ) -> None:
        self.node = node
        self.told = Told()
        self.store = ClaimStore(folder / "claims")
        self.store.open()
        self.gate = StartGate(folder)
        self.metrics = Metrics()
        self.windows = StartWindows(self.gate)
        self.attachments = Attachments(
            self.store,
            self.gate,
            on_released=self.told.released,
            interrupts=InterruptFiles(sysfs_root),
            metrics=self.metrics.attach,
        )
        self.snapshots: list[RuntimeSnapshot] = []
        self.waiting: list[ClaimRef] = []
        self.view = RuntimeView()
        self.workload = _build_workload(folder, self.gate)
        self.hooks = PodHooks(
            self.store,
            self.attachments,
            self.told,
            HookListeners(
                self.snapshots.append,
                claim_wanted=self.waiting.append,
                late=self.metrics.attach.late_hooks.inc,
            ),
            budget_seconds=30,
            view=self.view,
            containers=ContainerServices(self.windows, workload=self.workload),
        )
        self.connect()
        self.cdi = CdiSpecs(folder / "cdi", "dra.net")
        metadata = self._build_metadata(folder)
        actions = ActionLog(self.metrics)
        self.clock = 0.0
        self.pods = PodReconciler(
            self.store, self.attachments, metadata, self.told, actions, now=lambda: self.clock
        )
        files = ContainerFiles(self.gate, self.cdi, metadata, self.workload)
        self.files = FileReconciler(
            boot_id, self.store, self.attachments, self.gate, files, self.windows, actions
        )

    def _build_metadata(self, folder: Path) -> DeviceMetadata:
        return DeviceMetadata(
            self.store,
            MetadataFiles(folder, "dra.net"),
            self.cdi,
            self.told,
            lambda: DEFAULT_POLICY,
            Path("/sys"),
        )

    def prepare(
        self,
        ifname: str,
        pod_ifname: str,
        uid: str = "claim-uid",
        *,
        config: Mapping[str, object] | None = None,
        rdma: RdmaAccess = NO_RDMA,
        rdma_device: str = "",
        pci_address: str = "",
        pod_uid: str = POD_UID,
        is_shared: bool = False,
    ) -> PreparedClaim:
        """A claim for one NIC, as Prepare leaves it; from a template, unless other pods may name it.
        ``config`` is that of the claim, beside the name; its ``rdma_device`` goes with it, as in exclusive
        mode."""
        asked = {"mtu": 1400, **(config or {}), "name": pod_ifname}
        interface = {key: value for key, value in asked.items() if key != "routes"}
        parameters = {"interface": interface, "routes": asked.get("routes", [])}
        device = Device(
            f"dev-{ifname}",
            DeviceKind.NIC,
            ifname=ifname,
            pci_address=pci_address,
            rdma_device=rdma_device,
            char_devices=(UVERBS,),
        )
        host = self.node.run(lambda: read_link_state(ifname))
        network = NetworkConfig.model_validate(parameters)
        plan = plan_device(device, host, network, rdma_exclusive=bool(rdma_device))
        prepared = PreparedDevice(request="nic", pool="node", device=device, plan=plan, rdma=rdma)
        return self.put(prepared, uid, pod_uid, pod_claim_name="" if is_shared else "nic")

    def put(
        self,
        device: PreparedDevice,
        uid: str = "claim-uid",
        pod_uid: str = POD_UID,
        pod_claim_name: str = "nic",
    ) -> PreparedClaim:
        """A claim for one device."""
        claim, pod = ClaimRef("default", uid, uid), PodRef("default", "pod", pod_uid)
        record = PreparedClaim(claim, pod, (device,), boot_id="boot", pod_claim_name=pod_claim_name)
        self.store.put(record)
        return record

    def connect(self) -> None:
        """To a runtime with so much patience that a busy machine fails no test."""
        self.hooks.connected("bench", "1", 60.0)

    def run_sandbox(self, pod: PodSandbox) -> bool:
        return self.node.run(lambda: self.hooks.run_pod_sandbox(pod))

    def create_container(
        self, pod: PodSandbox, name: str = "main", rlimits: tuple[Rlimit, ...] = ()
    ) -> ContainerAdjustment:
        container = Container("c", name, pod.id, rlimits=rlimits)
        return self.node.run(lambda: self.hooks.create_container(pod, container))

    def start_container(self, pod: PodSandbox, name: str = "main") -> bool:
        return self.node.run(lambda: self.hooks.start_container(pod, Container("c", name, pod.id)))

    def stop_sandbox(self, pod: PodSandbox) -> bool:
        return self.node.run(lambda: self.hooks.stop_pod_sandbox(pod))

    def reconcile(self, *pods: PodSandbox) -> None:
        """As after a connection, with these pods in its Synchronize, and two regular looks later."""
        self.synchronize(*pods)
        self.look()
        self.look()

    def synchronize(self, *pods: PodSandbox) -> None:
        """As after a connection, with these pods in its Synchronize."""
        self.connect()
        self.hooks.synchronize(pods)
        self.node.run(lambda: self.pods.reconcile(self.snapshots[-1]))

    def look(self) -> None:
        """As every few minutes, with what the runtime has told, and nothing under way."""
        self.clock += 180.0
        records = self.store.get_all()
        snapshot = RuntimeSnapshot(self.view.read(), records, placements(records), is_news=False)
        self.node.run(lambda: self.pods.reconcile(snapshot))

    def close(self) -> None:
        self.attachments.close()
        self.store.close()


def _build_workload(folder: Path, gate: StartGate) -> WorkloadPack:
    """On a node of which a scan has found the loopback alone."""
    facts = NodeFacts(links=(Link(1, "lo"),))
    return WorkloadPack(
        WorkloadFiles(folder),
        gate,
        Path("/sys"),
        lambda: facts,
        lambda _pod_uid: (),
        lambda: False,
        Path("/proc"),
    )


def sandbox(pod: Namespace, number: int = 1, *, stopped: bool = False) -> PodSandbox:
    pid = 0 if stopped else 4711
    return PodSandbox(f"sandbox-{number}", "pod", "default", POD_UID, netns_path=str(pod.path), pid=pid)


def names(namespace: Namespace) -> set[str]:
    return {link["ifname"] for link in namespace.read("link")}
