"""The regular look at pods: what nobody told of is found by asking the kernel. Store and kernel are real."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dranet.driver.attachments import AttachReport
from dranet.driver.hooks import RuntimeSnapshot, lives, placements
from dranet.errors import Reason
from dranet.kernel.namespaces.netns import find_netns
from dranet.model.claim import Container, PodSandbox
from dranet.model.facts import Link
from tests.driver.bench import Bench, names, sandbox
from tests.support.namespaces import Namespace, wait_unchanged

pytestmark = pytest.mark.kernel

PCI = "0000:17:00.0"


def counted(bench: Bench, action: str, reason: str) -> float:
    labels = {"action": action, "reason": reason}
    return bench.metrics.registry.get_sample_value("dranet_reconcile_actions_total", labels) or 0.0


@pytest.fixture
def other_pod(make_namespace: Callable[..., Namespace]) -> Namespace:
    return make_namespace()


def attached(bench: Bench, pod: Namespace) -> PodSandbox:
    """A pod with its NIC, as hooks leave it, to a runtime that has told of it."""
    bench.prepare("eth1", "net1", pci_address=PCI)
    bench.hooks.synchronize(())
    assert bench.run_sandbox(sandbox(pod))
    return sandbox(pod)


@contextmanager
def a_process_in(pod: Namespace) -> Iterator[None]:
    """One that keeps the namespace when its path is gone."""
    command = ["ip", "netns", "exec", pod.name, "sleep", "infinity"]
    with subprocess.Popen(command) as process:
        try:
            until_inside(process.pid, pod)
            yield
        finally:
            process.kill()


def until_inside(pid: int, pod: Namespace) -> None:
    wanted = pod.path.stat().st_ino
    while Path(f"/proc/{pid}/ns/net").stat().st_ino != wanted:
        pass


def test_where_all_is_in_place_a_look_does_nothing_and_says_nothing(
    start: Callable[..., Bench], pod: Namespace
) -> None:
    bench = start()
    attached(bench, pod)
    told = len(bench.told.attached_claims)
    before = pod.picture()
    bench.look()
    assert pod.picture() == before
    assert len(bench.told.attached_claims) == told
    assert not bench.told.failures
    assert not bench.told.reports


def test_what_the_pods_own_processes_have_set_stays(start: Callable[..., Bench], pod: Namespace) -> None:
    bench = start()
    attached(bench, pod)
    pod.ip("link", "set", "net1", "down", "mtu", "1300")
    bench.look()
    (link,) = pod.read("link", "show", "dev", "net1")
    assert link["mtu"] == 1300
    assert "UP" not in link["flags"]


@pytest.mark.parametrize("is_on_top", [False, True])
def test_the_name_that_the_pod_has_given_its_link_stays(
    start: Callable[..., Bench], pod: Namespace, is_on_top: bool
) -> None:
    bench = start()
    config = {"type": "macvlan"} if is_on_top else None
    bench.prepare("eth1", "net1", config=config)
    bench.hooks.synchronize(())
    bench.run_sandbox(sandbox(pod))
    pod.ip_lines("link set net1 down\nlink set net1 name mine\n")
    bench.look()
    assert "mine" in names(pod)
    assert "net1" not in names(pod)
    assert counted(bench, "attached", "device-missing") == 0


def test_a_bond_that_wears_the_address_of_a_device_that_is_gone_is_not_that_device(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    bench = start()
    attached(bench, pod)
    (link,) = pod.read("link", "show", "dev", "net1")
    pod.ip("link", "set", "net1", "netns", node.name)
    pod.ip("link", "add", "mine", "address", link["address"], "type", "bridge")
    bench.look()
    assert "net1" in names(pod)
    assert counted(bench, "attached", "device-missing") == 1


def test_a_device_that_somebody_took_out_of_a_running_pod_is_put_back(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    bench = start()
    attached(bench, pod)
    pod.ip("link", "set", "net1", "netns", node.name)
    bench.look()
    assert "net1" in names(pod)
    assert counted(bench, "attached", "device-missing") == 1
    assert bench.told.attached_links[-1].pod_ifname == "net1"


def test_a_sandbox_that_was_started_without_us_gets_its_device(
    start: Callable[..., Bench], pod: Namespace
) -> None:
    bench = start()
    bench.prepare("eth1", "net1")
    bench.hooks.synchronize(())
    bench.view.note(sandbox(pod))
    bench.look()
    assert "net1" in names(pod)
    assert counted(bench, "attached", "hook-missed") == 1


def test_a_sandbox_whose_end_nobody_told_gives_its_device_back(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    """containerd says no word of the end of pods that are older than itself."""
    bench = start()
    before = node.picture()
    attached(bench, pod)
    pod.delete()
    bench.look()
    assert node.picture() == before
    assert counted(bench, "released", "namespace-gone") == 1
    assert not bench.store.get_all()[0].netns_path


def test_the_same_while_the_runtime_is_away(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    bench = start()
    before = node.picture()
    attached(bench, pod)
    bench.hooks.disconnected("killed")
    bench.look()
    assert "net1" in names(pod), "a namespace that lives may be that of a pod that runs"
    pod.delete()
    bench.look()
    assert node.picture() == before


def test_a_device_in_a_namespace_whose_path_is_gone_is_found_by_a_process_that_is_left_in_it(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    first = start()
    before = node.picture()
    attached(first, pod)
    first.close()  # with the descriptors that it held
    second = start()
    with a_process_in(pod):
        pod.delete()
        second.hooks.synchronize(())
        second.look()
        assert node.picture() == before
    assert counted(second, "released", "namespace-gone") == 1


def test_who_looks_for_a_namespace_opens_nothing_that_would_keep_him_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with find_netns("cookie 0", near=str(tmp_path / "gone")) as found:
        assert found is None


def test_a_namespace_that_lives_without_a_sandbox_gives_its_device_back(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    bench = start()
    before = node.picture()
    attached(bench, pod)
    bench.view.remove(sandbox(pod).id)
    bench.look()
    assert "net1" in names(pod), "it may just be starting, and another instance has attached it"
    bench.look()
    assert node.picture() == before
    assert counted(bench, "released", "sandbox-gone") == 1


def test_many_looks_in_a_row_take_nothing_from_a_sandbox_that_lives(
    start: Callable[..., Bench], pod: Namespace
) -> None:
    """A runtime or a kubelet that comes back asks for a look each."""
    bench = start()
    attached(bench, pod)
    bench.view.remove(sandbox(pod).id)
    for _ in range(5):
        bench.look()
        bench.clock -= 180.0
    assert "net1" in names(pod)


def test_a_sandbox_that_the_runtime_forgot_in_its_list_keeps_its_device(
    start: Callable[..., Bench], pod: Namespace
) -> None:
    """It was being started while we connected, and another instance has attached it."""
    bench = start()
    attached(bench, pod)
    bench.synchronize()
    bench.look()
    bench.create_container(sandbox(pod))  # the first that we hear of it
    bench.look()
    bench.look()
    assert "net1" in names(pod)


def test_a_pod_that_another_instance_attaches_while_we_look_is_left_alone(
    start: Callable[..., Bench], pod: Namespace
) -> None:
    """Its records are placed already, and the runtime has not called us yet."""
    bench = start()
    bench.prepare("eth1", "net1")
    bench.hooks.synchronize(())
    before = placements(bench.store.get_all())
    bench.run_sandbox(sandbox(pod))
    bench.view.remove(sandbox(pod).id)
    snapshot = RuntimeSnapshot(bench.view.read(), bench.store.get_all(), before, is_news=False)
    bench.node.run(lambda: bench.pods.reconcile(snapshot))
    assert "net1" in names(pod)
    assert bench.gate.is_open("claim-uid")


def test_a_pod_whose_hook_may_be_under_way_is_left_to_it(start: Callable[..., Bench], pod: Namespace) -> None:
    bench = start()
    bench.prepare("eth1", "net1")
    bench.hooks.synchronize(())
    bench.view.note(sandbox(pod))
    records = bench.store.get_all()
    snapshot = RuntimeSnapshot(bench.view.read(), records, placements(records), is_news=False)
    bench.node.run(lambda: bench.pods.reconcile(replace(snapshot, known_before=frozenset())))
    assert "net1" not in names(pod)
    known = replace(snapshot, known_before=frozenset([sandbox(pod).id]))
    bench.node.run(lambda: bench.pods.reconcile(known))
    assert "net1" in names(pod)


def test_a_bug_with_one_pod_ends_nothing(
    start: Callable[..., Bench],
    pod: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = start()
    bench.prepare("eth1", "net1", "broken", pod_uid="uid-0")
    attached_pod = sandbox(pod)
    bench.prepare("eth2", "net2", "sound")
    bench.hooks.synchronize(())
    bench.view.note(attached_pod)
    bench.view.note(replace(attached_pod, id="sandbox-0", uid="uid-0"))
    attach = bench.attachments.attach_pod

    def fail_for_one(pod: PodSandbox, **keywords: Any) -> AttachReport | None:
        if pod.uid == "uid-0":
            raise RuntimeError("can't start new thread")
        return attach(pod, **keywords)

    monkeypatch.setattr(bench.attachments, "attach_pod", fail_for_one)
    bench.look()
    assert "net2" in names(pod)
    assert "bug in reconcile" in caplog.text


def test_a_sandbox_of_which_nobody_can_tell_whether_it_lives_is_not_taken_for_alive() -> None:
    assert not lives(PodSandbox("id", "pod", "default", "uid", netns_path="/run/netns/" + "x" * 300))


def test_a_link_that_is_home_under_the_pods_name_is_restored_though_no_record_says_it_was_in_a_pod(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    """The disk was full when it was attached, the driver was killed, and the pod has gone."""
    bench = start()
    before = node.picture()
    unplaced = bench.prepare("eth1", "net1", pci_address=PCI)
    bench.hooks.synchronize(())
    bench.run_sandbox(sandbox(pod))
    pod.ip("link", "set", "net1", "netns", node.name)  # as the kernel does for real hardware
    bench.store.put(unplaced)
    bench.view.remove(sandbox(pod).id)
    bench.look()
    wait_unchanged(before, node, but=("ifindex", "link_index"))
    assert counted(bench, "released", "came-back") == 1


def test_a_link_that_waits_for_its_pod_is_no_stray(start: Callable[..., Bench], node: Namespace) -> None:
    bench = start()
    bench.prepare("eth1", "net1")
    bench.hooks.synchronize(())
    node.ip("link", "set", "eth1", "down")  # by an administrator
    bench.look()
    (link,) = node.read("link", "show", "dev", "eth1")
    assert "UP" not in link["flags"]
    assert not bench.told.reports


def test_sandboxes_without_a_process_are_alive_as_long_as_their_namespace_is(
    start: Callable[..., Bench], pod: Namespace
) -> None:
    """CRI-O runs pods without an infra process, and lists them with pid 0."""
    bench = start()
    attached(bench, pod)
    bench.reconcile(replace(sandbox(pod), pid=0))
    assert "net1" in names(pod)
    assert not bench.told.reports


def test_of_two_sandboxes_of_a_pod_the_one_that_was_not_stopped_gets_the_device(
    start: Callable[..., Bench], pod: Namespace, other_pod: Namespace
) -> None:
    bench = start()
    attached(bench, pod)
    bench.reconcile(sandbox(pod, 1, stopped=True), sandbox(other_pod, 2))
    assert "net1" in names(other_pod)
    assert "net1" not in names(pod)


def test_a_failure_that_stays_is_told_once(start: Callable[..., Bench], pod: Namespace) -> None:
    bench = start()
    attached(bench, pod)
    pod.ip("link", "delete", "net1")
    for _ in range(3):
        bench.look()
    ((records, error),) = bench.told.failures
    assert [record.claim.uid for record in records] == ["claim-uid"]
    assert error.reason is Reason.ATTACH_FAILED or error.reason is Reason.DEVICE_NOT_FOUND
    assert counted(bench, "failed", "device-missing") + counted(bench, "failed", "hook-missed") == 3


def test_a_device_that_is_gone_for_good_costs_the_pod_nothing_else(
    start: Callable[..., Bench], pod: Namespace
) -> None:
    bench = start()
    bench.prepare("eth1", "net1", "sound")
    bench.prepare("eth2", "net2", "broken")
    bench.hooks.synchronize(())
    bench.run_sandbox(sandbox(pod))
    pod.ip("link", "delete", "net2")
    pod.ip("link", "set", "net1", "mtu", "1300")
    for _ in range(3):
        bench.look()
    (link,) = pod.read("link", "show", "dev", "net1")
    assert link["mtu"] == 1300, "what its own processes have set"
    assert not bench.gate.is_open("sound"), "no container starts without all of them"
    ((_, error),) = bench.told.failures
    assert error.reason is Reason.DEVICE_NOT_FOUND


def test_a_container_that_was_started_with_another_pods_claim_while_no_driver_was_there_is_told(
    start: Callable[..., Bench], pod: Namespace, other_pod: Namespace
) -> None:
    bench = start()
    attached(bench, pod)
    second = PodSandbox("sandbox-2", "second", "default", "uid-2", str(other_pod.path), pid=4712)
    mounts = (bench.gate.mount_for("claim-uid"),)
    containers = (
        Container("a", "main", sandbox(pod).id, mounts=mounts, running=True),
        Container("b", "main", second.id, mounts=mounts, running=True),
        Container("c", "created", second.id, mounts=mounts),
    )
    bench.hooks.synchronize((sandbox(pod), second), containers)
    assert bench.told.bare == [("second", "main")]


class TestADeviceThatCameHomeByItself:
    LINKS = (Link(7, "net1", pci_address=PCI), Link(8, "eth3"))
    """As a scan of the node reads them."""

    def test_is_noticed_at_the_next_scan(self, start: Callable[..., Bench], pod: Namespace) -> None:
        bench = start()
        attached(bench, pod)
        pod.delete()
        assert bench.pods.find_returned(self.LINKS) == {sandbox(pod).id}

    def test_is_no_other_than_one_whose_pods_namespace_is_gone(
        self, start: Callable[..., Bench], pod: Namespace
    ) -> None:
        """A release that is under way has brought the link home, and has not written that down."""
        bench = start()
        attached(bench, pod)
        assert not bench.pods.find_returned(self.LINKS)


def test_a_container_that_names_no_claim_and_was_started_while_no_driver_was_there_is_told(
    start: Callable[..., Bench], pod: Namespace
) -> None:
    bench = start()
    bench.prepare("eth1", "net1")
    started = Container("a", "main", sandbox(pod).id, running=True)
    bench.hooks.synchronize((sandbox(pod),), (started, replace(started, id="b", name="new", running=False)))
    assert bench.told.bare == [("pod", "main")]
    bench.reconcile(sandbox(pod))
    bench.hooks.synchronize((sandbox(pod),), (started,))
    assert len(bench.told.bare) == 1, "it has its devices by now"
