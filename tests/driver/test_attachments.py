"""Attach, release and reconcile with the real store, gate and kernel, in throw-away namespaces."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dranet.driver import attachments
from dranet.driver.attachments import ReleaseReport
from dranet.errors import ClaimError, KernelError, Reason, StoreError
from dranet.kernel.attachment.detach import DetachReport, detach
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.model.claim import ClaimRef, Container, Mount, PodRef, PodSandbox
from dranet.model.device import Device, DeviceKind
from dranet.model.plan import AttachPlan, PreparedClaim, PreparedDevice
from tests.driver.bench import POD_UID, UVERBS, Bench, names, sandbox
from tests.support.namespaces import Namespace
from tests.support.records import refuse_writes

pytestmark = pytest.mark.kernel


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


@pytest.mark.smoke
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
    assert not bench.gate.list_claims()


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
    bench.synchronize(sandbox(pod))
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
    assert bench.told.reports == [ReleaseReport(record.claim, devices=record.devices)]


def test_a_nic_that_the_kernel_is_still_bringing_back_from_a_dead_namespace_is_waited_for(
    start: Callable[..., Bench],
    node: Namespace,
    pod: Namespace,
    make_namespace: Callable[..., Namespace],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """It takes namespaces down in its own time, and its NICs are nowhere until it has come to them."""
    (tmp_path / "sys/bus/pci/devices/0000:01:00.0").mkdir(parents=True)
    first, limbo = start(), make_namespace()
    before = _settings(node)
    record = first.prepare("eth1", "net1", pci_address="0000:01:00.0")
    first.run_sandbox(sandbox(pod))
    first.close()
    pod.ip("link", "set", "net1", "down", "netns", limbo.name)
    pod.delete()

    def detach_early(
        plans: Sequence[AttachPlan], netns: NetworkNamespace | None, **options: Any
    ) -> DetachReport:
        report = detach(plans, netns, **options)
        if report.missing:
            limbo.ip("link", "set", "net1", "netns", node.name, "name", "dev7")
        return report

    monkeypatch.setattr(attachments, "detach", detach_early)
    bench = start()
    bench.attachments._sysfs_root = tmp_path / "sys"
    bench.reconcile()
    assert bench.told.reports == [ReleaseReport(record.claim, devices=record.devices)]
    assert _settings(node) == before


def _settings(node: Namespace) -> dict[str, tuple[int, list[str]]]:
    return {link["ifname"]: (link["mtu"], link["flags"]) for link in node.read("link")}


def test_a_nic_that_is_gone_for_good_is_not_waited_for_long(
    start: Callable[..., Bench], pod: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachments, "RETURN_SECONDS", 0.1)
    first = start()
    first.prepare("eth1", "net1", pci_address="0000:01:00.0")
    first.run_sandbox(sandbox(pod))
    first.close()
    pod.delete()  # and the veth with it
    bench = start()
    bench.reconcile()
    assert [report.missing for report in bench.told.reports] == [("dev-eth1",)]


def test_a_sandbox_replaced_while_no_driver_runs_finds_the_gate_shut(
    start: Callable[..., Bench], pod: Namespace, make_namespace: Callable[..., Namespace]
) -> None:
    first = start()
    first.prepare("eth1", "net1")
    first.run_sandbox(sandbox(pod, 1))
    first.close()  # killed; then the kubelet replaces the sandbox
    gate = Path(first.gate.mount_for("claim-uid").source)
    assert gate.exists()
    pod.delete()
    make_namespace()
    assert not gate.exists()


def test_reconcile_leaves_alone_what_a_hook_has_changed_since_the_snapshot(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    bench = start()
    bench.prepare("eth1", "net1")
    bench.hooks.synchronize([])  # the pod is not there yet ...
    bench.run_sandbox(sandbox(pod))  # ... and runs before reconcile does
    node.run(lambda: bench.pods.reconcile(bench.snapshots[-1]))
    assert "net1" in names(pod)
    assert bench.gate.is_open("claim-uid")


def test_after_a_reboot_nothing_of_the_old_boot_is_left(start: Callable[..., Bench]) -> None:
    first = start()
    first.prepare("eth1", "net1")
    first.gate.note_attached("claim-uid", "/proc/self/ns/net")
    first.gate.open("claim-uid", "/proc/self/ns/net")
    bench = start(boot_id="next boot")
    bench.files.forget_other_boots()
    bench.files.sweep_leftovers()
    assert bench.store.get_all() == ()
    assert not bench.gate.list_claims()


def test_ready_files_and_cdi_specs_without_a_record_are_swept(start: Callable[..., Bench]) -> None:
    bench = start()
    bench.gate.note_attached("nobody", "/proc/self/ns/net")
    bench.gate.open("nobody", "/proc/self/ns/net")
    bench.files.sweep_leftovers()
    assert not bench.gate.list_claims()
    assert bench.cdi.list_claims() == set()


def test_a_claim_that_cannot_be_given_back_keeps_no_other_claim_of_the_pod(
    start: Callable[..., Bench], node: Namespace, pod: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    bench = start()
    bench.prepare("eth1", "net1", "claim-a")
    bench.prepare("eth2", "net2", "claim-b")
    bench.run_sandbox(sandbox(pod))
    with make_stuck("dev-eth1"), pytest.raises(KernelError, match="busy"):
        bench.stop_sandbox(sandbox(pod))
    assert "eth2" in names(node)
    assert [report.claim.uid for report in bench.told.reports] == ["claim-b"]
    assert [uid for uid, _ in bench.told.stuck] == ["claim-a"]
    assert "dev-eth1" in caplog.text
    assert bench.stop_sandbox(sandbox(pod)), "the next call finds the rest"
    assert "eth1" in names(node)


@contextmanager
def make_stuck(device: str) -> Iterator[None]:
    """The kernel does not let go of it."""
    real = detach

    def refuse(plans: Sequence[AttachPlan], netns: NetworkNamespace | None, **options: Any) -> DetachReport:
        if device in {plan.device for plan in plans}:
            return DetachReport(problems=(f"{device}: busy",))
        return real(plans, netns, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attachments, "detach", refuse)
        yield


def test_a_failed_attach_leaves_a_line_in_the_log(
    start: Callable[..., Bench], pod: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    bench = start()
    bench.prepare("eth1", "eth0")
    with pytest.raises(KernelError):
        bench.run_sandbox(sandbox(pod))
    assert "attach failed" in caplog.text


def test_a_gate_that_cannot_be_opened_leaves_the_nic_where_it_can_be_given_back(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    bench = start()
    before = node.picture()
    bench.prepare("eth1", "net1")
    file = Path(bench.gate.mount_for("claim-uid").source)
    file.mkdir(parents=True)
    with pytest.raises(StoreError):
        bench.run_sandbox(sandbox(pod))
    file.rmdir()
    pod.delete()  # the runtime gives the sandbox up without a word
    bench.node.run(lambda: bench.attachments.release_claim("claim-uid"))
    assert node.picture() == before


def test_an_attached_pod_needs_no_writable_store_any_more(
    start: Callable[..., Bench], pod: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = start()
    bench.prepare("eth1", "net1")
    bench.run_sandbox(sandbox(pod))
    refuse_writes(bench.store, monkeypatch)
    bench.reconcile(sandbox(pod))
    assert bench.told.failures == []
    assert bench.gate.is_open("claim-uid")


def test_reconcile_tells_of_a_device_without_a_link_too(start: Callable[..., Bench], pod: Namespace) -> None:
    bench = start()
    device = Device("hca-0", DeviceKind.RDMA, rdma_device="mlx5_0")
    prepared = PreparedDevice("hca", "node", device, plan=AttachPlan("hca-0"))
    record = PreparedClaim(
        ClaimRef("default", "c", "claim-uid"), PodRef("default", "pod", POD_UID), (prepared,), boot_id="boot"
    )
    bench.store.put(record)
    bench.reconcile(sandbox(pod))
    assert bench.gate.is_attached("claim-uid")
    assert [claim.claim.uid for claim in bench.told.attached_claims] == ["claim-uid"]


def test_sandboxes_that_the_runtime_no_longer_knows_are_forgotten(
    start: Callable[..., Bench], pod: Namespace
) -> None:
    bench = start()
    bench.prepare("eth1", "net1")
    bench.stop_sandbox(sandbox(pod, 1))
    bench.stop_sandbox(sandbox(pod, 2))
    bench.hooks.synchronize([sandbox(pod, 2, stopped=True)])  # the removal of the first one was missed
    assert bench.attachments._stopped_sandboxes == {"sandbox-2"}


def test_a_gate_that_cannot_be_shut_keeps_nothing_in_a_pod_that_has_ended(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    first = start()
    before = node.picture()
    first.prepare("eth1", "net1")
    first.run_sandbox(sandbox(pod))
    bench = start()
    file = Path(bench.gate.mount_for("claim-uid").source)
    file.unlink()
    (file / "in the way").mkdir(parents=True)
    bench.reconcile()
    assert node.picture() == before
    with pytest.raises(StoreError, match="ready file"):
        bench.gate.close("claim-uid")


def test_a_container_that_brings_another_pods_ready_file_does_not_start(
    start: Callable[..., Bench], pod: Namespace, make_namespace: Callable[..., Namespace]
) -> None:
    """Two pods that share a claim: the kubelet prepares it once, for the first."""
    bench = start()
    bench.prepare("eth1", "net1")
    bench.run_sandbox(sandbox(pod))
    gate = bench.gate.mount_for("claim-uid")
    other = PodSandbox("s2", "other", "default", "other-uid", netns_path=str(make_namespace().path), pid=1)
    container = Container("c", "main", "s2", mounts=(Mount("/data", "/data"), gate))
    with pytest.raises(ClaimError, match="pod default/pod") as caught:
        bench.hooks.create_container(other, container)
    assert caught.value.reason is Reason.UNSUPPORTED_CLAIM
    own = bench.hooks.create_container(sandbox(pod), replace(container, pod_sandbox_id="sandbox-1"))
    assert own.devices == (UVERBS,)


def test_a_pod_without_claims_waits_for_nobody(start: Callable[..., Bench], pod: Namespace) -> None:
    bench = start()
    bench.hooks.connected("impatient", "1", 0.01)
    with ThreadPoolExecutor(1) as elsewhere, bench.attachments.locked():
        assert elsewhere.submit(bench.hooks.stop_pod_sandbox, sandbox(pod)).result() is False


def test_a_namespace_that_cannot_be_opened_is_not_taken_for_a_dead_one(
    start: Callable[..., Bench], pod: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start()
    record = first.prepare("eth1", "net1")
    first.run_sandbox(sandbox(pod))
    bench = start()
    real = os.open

    def refuse(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if str(path) == str(pod.path):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, flags, mode)

    with monkeypatch.context() as short:
        short.setattr(os, "open", refuse)
        with pytest.raises(KernelError):
            bench.node.run(lambda: bench.attachments.release_claim("claim-uid"))
    assert "net1" in names(pod)
    bench.node.run(lambda: bench.attachments.release_claim("claim-uid"))
    assert bench.store.get("claim-uid") == record
    assert "net1" not in names(pod)


class Killed(BaseException):
    """SIGKILL: nothing that the driver catches."""


STEPS = [
    ("run", "store", "put_all"),
    ("run", "kernel", "attach"),
    ("run", "gate", "open"),
    ("stop", "gate", "close"),
    ("stop", "kernel", "detach"),
    ("stop", "store", "put_all"),
]


@pytest.mark.parametrize(("hook", "owner", "step"), STEPS)
@pytest.mark.parametrize("is_listed", [True, False])
def test_a_kill_after_any_step_leaves_what_reconcile_finishes_or_undoes(
    start: Callable[..., Bench],
    node: Namespace,
    pod: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    hook: str,
    owner: str,
    step: str,
    is_listed: bool,
) -> None:
    """The runtime may still list a sandbox that it stops: it runs as long as nobody has said otherwise."""
    first = start()
    before = node.picture()
    first.prepare("eth1", "net1")
    if hook == "stop":
        first.run_sandbox(sandbox(pod))
    target = {"store": first.store, "gate": first.gate, "kernel": attachments}[owner]
    real = getattr(target, step)

    def do_and_die(*arguments: object, **named: object) -> None:
        real(*arguments, **named)
        raise Killed

    with monkeypatch.context() as kill:
        kill.setattr(target, step, do_and_die)
        with pytest.raises(Killed):
            (first.run_sandbox if hook == "run" else first.stop_sandbox)(sandbox(pod))
    bench = start()
    bench.reconcile(*([sandbox(pod)] if is_listed else []))
    pod_runs = is_listed and (hook, owner) != ("stop", "store")  # by then its end is on the disk
    assert bench.gate.is_open("claim-uid") is pod_runs
    assert ("net1" in names(pod)) is pod_runs
    assert pod_runs or node.picture() == before
