"""Attach, release and reconcile with the real store, gate and kernel, in throw-away namespaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from dranet.claims.plan import plan_device
from dranet.driver.announce import Announcer
from dranet.driver.attachments import Attachments, ReleaseReport
from dranet.driver.gate import ReadyGate
from dranet.driver.hooks import PodHooks, RuntimeSnapshot
from dranet.driver.reconcile import Reconciler
from dranet.errors import ClaimError, DranetError, KernelError, Reason
from dranet.kernel.linkstate import read_link_state
from dranet.model.claim import ClaimRef, PodRef
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import CharDevice
from dranet.model.network import NetworkConfig
from dranet.model.plan import PreparedClaim, PreparedDevice
from dranet.model.sandbox import Container, PodSandbox
from dranet.model.status import AttachedLink
from dranet.runtime.cdi import CdiSpecs
from dranet.store import ClaimStore
from dranet.telemetry import Metrics
from tests.namespaces import Namespace

pytestmark = pytest.mark.kernel

POD_UID = "pod-uid"
UVERBS = CharDevice("/dev/infiniband/uverbs0", 231, 192)


class Told(Announcer):
    """Remembers what it was told instead of telling the API server."""

    def __init__(self) -> None:
        self.attached_links: list[AttachedLink] = []
        self.attached_claims: list[PreparedClaim] = []
        self.failures: list[tuple[Sequence[PreparedClaim], DranetError]] = []
        self.reports: list[ReleaseReport] = []

    def attached(self, records: Sequence[PreparedClaim], links: Sequence[AttachedLink]) -> None:
        self.attached_links += links
        self.attached_claims += records

    def attach_failed(self, records: Sequence[PreparedClaim], error: DranetError) -> None:
        self.failures.append((records, error))

    def released(self, report: ReleaseReport) -> None:
        self.reports.append(report)


class Bench:
    """The part of the driver that moves devices, over a state folder; another one is the driver restarted."""

    def __init__(self, folder: Path, node: Namespace, boot_id: str = "boot") -> None:
        self.node = node
        self.told = Told()
        self.store = ClaimStore(folder / "claims.db")
        self.store.open()
        self.gate = ReadyGate(folder)
        self.attachments = Attachments(self.store, self.gate)
        self.snapshots: list[RuntimeSnapshot] = []
        self.hooks = PodHooks(
            self.store, self.attachments, self.told, self.snapshots.append, budget_seconds=5
        )
        self.cdi = CdiSpecs(folder / "cdi", "dra.net")
        self.reconciler = Reconciler(
            boot_id=boot_id,
            store=self.store,
            attachments=self.attachments,
            gate=self.gate,
            cdi=self.cdi,
            announcer=self.told,
            metrics=Metrics(),
        )

    def prepare(self, ifname: str, pod_ifname: str, uid: str = "claim-uid") -> PreparedClaim:
        config = NetworkConfig.model_validate({"interface": {"name": pod_ifname, "mtu": 1400}})
        device = Device(f"dev-{ifname}", DeviceKind.NIC, ifname=ifname, char_devices=(UVERBS,))
        host = self.node.run(lambda: read_link_state(ifname))
        plan = plan_device(device, host, config, rdma_exclusive=False)
        prepared = PreparedDevice(request="nic", pool="node", device=device, plan=plan)
        record = PreparedClaim(
            ClaimRef("default", uid, uid), PodRef("default", "pod", POD_UID), (prepared,), boot_id="boot"
        )
        self.store.put(record)
        return record

    def run_sandbox(self, pod: PodSandbox) -> bool:
        return self.node.run(lambda: self.hooks.run_pod_sandbox(pod))

    def stop_sandbox(self, pod: PodSandbox) -> bool:
        return self.node.run(lambda: self.hooks.stop_pod_sandbox(pod))

    def reconcile(self, *pods: PodSandbox) -> None:
        """As after a Synchronize with these pods."""
        self.hooks.synchronize(pods)
        self.node.run(lambda: self.reconciler.reconcile(self.snapshots[-1]))

    def close(self) -> None:
        self.attachments.close()
        self.store.close()


@pytest.fixture
def start(tmp_path: Path, node: Namespace) -> Iterator[Callable[..., Bench]]:
    started: list[Bench] = []

    def make(boot_id: str = "boot") -> Bench:
        if started:
            started[-1].close()  # the driver before was killed
        started.append(Bench(tmp_path, node, boot_id))
        return started[-1]

    yield make
    for bench in started:
        bench.close()


def sandbox(pod: Namespace, number: int = 1, *, stopped: bool = False) -> PodSandbox:
    pid = 0 if stopped else 4711
    return PodSandbox(f"sandbox-{number}", "pod", "default", POD_UID, netns_path=str(pod.path), pid=pid)


def names(namespace: Namespace) -> set[str]:
    return {link["ifname"] for link in namespace.read("link")}


def test_the_gate_opens_with_the_attach_and_shuts_with_the_release(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    bench = start()
    before = node.picture()
    bench.prepare("eth1", "net1")
    assert not bench.gate.is_open("claim-uid")
    assert bench.run_sandbox(sandbox(pod))
    assert bench.gate.is_open("claim-uid")
    assert "net1" in names(pod)
    assert bench.stop_sandbox(sandbox(pod))
    assert not bench.gate.is_open("claim-uid")
    assert node.picture() == before


def test_a_pod_without_claims_passes_untouched(start: Callable[..., Bench], pod: Namespace) -> None:
    bench = start()
    assert not bench.run_sandbox(sandbox(pod))
    assert not bench.stop_sandbox(sandbox(pod))


def test_a_claim_on_the_hosts_network_is_refused(start: Callable[..., Bench], node: Namespace) -> None:
    bench = start()
    bench.prepare("eth1", "net1")
    host_networked = PodSandbox("s", "pod", "default", POD_UID, netns_path="", pid=1)
    with pytest.raises(ClaimError, match="hostNetwork"):
        bench.run_sandbox(host_networked)
    assert "eth1" in names(node)
    ((records, error),) = bench.told.failures
    assert [record.claim.uid for record in records] == ["claim-uid"]
    assert error.reason is Reason.UNSUPPORTED_CLAIM


def test_two_claims_of_a_pod_are_attached_together_or_not_at_all(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    bench = start()
    before = node.picture()
    bench.prepare("eth1", "net1", "claim-a")
    bench.prepare("eth2", "eth0", "claim-b")  # the name of the pod's own interface
    with pytest.raises(KernelError) as caught:
        bench.run_sandbox(sandbox(pod))
    assert caught.value.reason is Reason.ATTACH_FAILED
    assert node.picture() == before
    assert not bench.gate.list_open()


def test_a_container_gets_the_rdma_nodes_of_the_pods_nics(
    start: Callable[..., Bench], pod: Namespace
) -> None:
    bench = start()
    bench.prepare("eth1", "net1")
    bench.run_sandbox(sandbox(pod))
    adjustment = bench.hooks.create_container(sandbox(pod), Container("c", "main", "sandbox-1"))
    assert adjustment.devices == (UVERBS,)


def test_a_container_of_a_sandbox_that_we_missed_makes_up_for_it(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    bench = start()
    bench.prepare("eth1", "net1")
    node.run(lambda: bench.hooks.create_container(sandbox(pod), Container("c", "main", "sandbox-1")))
    assert "net1" in names(pod)
    assert bench.gate.is_open("claim-uid")


def test_the_end_of_an_old_sandbox_leaves_the_new_one_alone(
    start: Callable[..., Bench], pod: Namespace, make_namespace: Callable[..., Namespace]
) -> None:
    bench = start()
    bench.prepare("eth1", "net1")
    bench.run_sandbox(sandbox(pod, 1))
    second = make_namespace()
    bench.run_sandbox(sandbox(second, 2))  # the first one ended without a word
    assert "net1" in names(second)
    assert not bench.stop_sandbox(sandbox(pod, 1))
    assert "net1" in names(second)
    assert bench.stop_sandbox(sandbox(second, 2))


def test_a_stopped_sandbox_gets_nothing_any_more(start: Callable[..., Bench], pod: Namespace) -> None:
    bench = start()
    bench.prepare("eth1", "net1")
    bench.run_sandbox(sandbox(pod))
    bench.stop_sandbox(sandbox(pod))
    with pytest.raises(KernelError, match="has been stopped"):
        bench.run_sandbox(sandbox(pod))


def test_reconcile_attaches_what_the_hook_missed(start: Callable[..., Bench], pod: Namespace) -> None:
    start().prepare("eth1", "net1")
    bench = start()
    bench.reconcile(sandbox(pod))
    assert "net1" in names(pod)
    assert bench.gate.is_open("claim-uid")
    assert [link.pod_ifname for link in bench.told.attached_links] == ["net1"]


def test_reconcile_adopts_what_is_attached_and_disturbs_nothing(
    start: Callable[..., Bench], pod: Namespace
) -> None:
    first = start()
    first.prepare("eth1", "net1")
    first.run_sandbox(sandbox(pod))
    before = pod.picture()
    bench = start()
    bench.reconcile(sandbox(pod))
    assert pod.picture() == before
    assert bench.stop_sandbox(sandbox(pod))


def test_a_nic_that_was_lost_from_a_running_pod_shuts_the_gate_again(
    start: Callable[..., Bench], pod: Namespace
) -> None:
    first = start()
    first.prepare("eth1", "net1")
    first.run_sandbox(sandbox(pod))
    pod.ip("link", "del", "net1")
    bench = start()
    bench.reconcile(sandbox(pod))
    assert not bench.gate.is_open("claim-uid")
    ((_, error),) = bench.told.failures
    assert error.reason is Reason.DEVICE_NOT_FOUND


def test_a_namespace_that_vanished_before_the_hook_is_a_named_error(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    bench = start()
    before = node.picture()
    bench.prepare("eth1", "net1")
    gone = sandbox(pod)
    pod.delete()
    with pytest.raises(KernelError) as caught:
        bench.run_sandbox(gone)
    assert caught.value.reason is Reason.NETNS_GONE
    assert node.picture() == before


def test_reconcile_gives_back_what_a_vanished_pod_held(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    first = start()
    before = node.picture()
    record = first.prepare("eth1", "net1")
    first.run_sandbox(sandbox(pod))
    bench = start()
    bench.reconcile()
    assert node.picture() == before
    assert bench.store.get("claim-uid") == record  # still prepared: the kubelet has not said otherwise
    assert bench.told.reports == [ReleaseReport(record.claim)]


def test_reconcile_leaves_alone_what_a_hook_has_changed_since_the_snapshot(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    bench = start()
    bench.prepare("eth1", "net1")
    bench.hooks.synchronize([])  # the pod is not there yet ...
    bench.run_sandbox(sandbox(pod))  # ... and runs before reconcile does
    node.run(lambda: bench.reconciler.reconcile(bench.snapshots[-1]))
    assert "net1" in names(pod)
    assert bench.gate.is_open("claim-uid")


def test_after_a_reboot_nothing_of_the_old_boot_is_left(start: Callable[..., Bench]) -> None:
    first = start()
    first.prepare("eth1", "net1")
    first.gate.open("claim-uid")
    bench = start(boot_id="next boot")
    bench.reconciler.forget_other_boots()
    bench.reconciler.sweep_leftovers()
    assert bench.store.get_all() == ()
    assert not bench.gate.list_open()


def test_ready_files_and_cdi_specs_without_a_record_are_swept(start: Callable[..., Bench]) -> None:
    bench = start()
    bench.gate.open("nobody")
    bench.reconciler.sweep_leftovers()
    assert not bench.gate.list_open()
    assert bench.cdi.list_claims() == set()
