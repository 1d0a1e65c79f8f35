"""What the runtime's hooks promise: verified before a container, with what RDMA needs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet.driver.hooks import HookListeners, PodHooks
from dranet.errors import ClaimError, DeviceError, KernelError, Reason
from dranet.model.claim import MEMLOCK, UNLIMITED, Container, PodSandbox, Rlimit
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import CharDevice
from dranet.model.plan import AttachPlan, PreparedDevice, RdmaAccess
from tests.driver.bench import POD_UID, UVERBS, Bench, names, sandbox
from tests.driver.rdma_tree import RdmaTree
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.kernel

# --- how long a hook may take ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runtime_waits", "budget", "warned"),
    [(20.0, "3", False), (3.0, "2.55", True), (None, "3", True), (0.5, "0.425", True)],
)
def test_a_hook_takes_no_longer_than_the_runtime_waits(
    start: Callable[..., Bench],
    caplog: pytest.LogCaptureFixture,
    runtime_waits: float | None,
    budget: str,
    warned: bool,
) -> None:
    bench = start()
    own = PodHooks(bench.store, bench.attachments, bench.told, HookListeners(bench.snapshots.append), 3.0)
    caplog.set_level(logging.INFO)
    caplog.clear()
    own.connected("containerd", "2.1.9", runtime_waits)
    assert [vars(record)["context"]["budget_seconds"] for record in caplog.records[:1]] == [budget]
    assert ("hook_budget_seconds" in caplog.text) is warned
    assert ("plugin_request_timeout must be 3.53 s" in caplog.text) is (runtime_waits is None)


# --- who is told of containers --------------------------------------------------------------------------


def test_containers_of_pods_with_devices_are_told_on_and_no_others(
    start: Callable[..., Bench], pod: Namespace
) -> None:
    bench = start()
    bench.prepare("eth1", "net1")
    told: list[str] = []
    own = PodHooks(
        bench.store,
        bench.attachments,
        bench.told,
        HookListeners(
            bench.snapshots.append,
            container_seen=lambda owner, container: told.append(f"{owner.name}/{container.name}"),
        ),
        30.0,
    )
    mine, other = sandbox(pod), PodSandbox("s-other", "other", "default", "uid-other", "/run/netns/x", 1)
    bench.node.run(lambda: own.run_pod_sandbox(mine))
    bench.node.run(lambda: own.create_container(mine, Container("c1", "main", mine.id)))
    own.create_container(other, Container("c2", "main", other.id))
    assert told == ["pod/main"]
    containers = [Container("c1", "main", mine.id, running=True), Container("c2", "main", other.id)]
    own.synchronize([mine, other], containers)
    assert told == ["pod/main", "pod/main"]


# --- a container starts only when all is there ----------------------------------------------------------


def test_a_container_of_a_whole_pod_changes_and_reports_nothing(
    start: Callable[..., Bench], pod: Namespace
) -> None:
    bench = start()
    bench.prepare("eth1", "net1")
    bench.run_sandbox(sandbox(pod))
    before = pod.picture()
    told = list(bench.told.attached_links)
    bench.create_container(sandbox(pod))
    assert pod.picture() == before
    assert bench.told.attached_links == told


HARM = {
    "an address is gone": "addr flush dev net1",
    "the link is down": "link set net1 down",
    "the link has another name": "link set net1 down\nlink set net1 name mine\nlink set mine up",
}


@pytest.mark.parametrize("harm", HARM)
def test_what_a_pod_lacks_is_made_up_for_before_a_container_starts(
    start: Callable[..., Bench], node: Namespace, pod: Namespace, harm: str
) -> None:
    bench = start()
    host = node.picture()
    bench.prepare("eth1", "net1", config={"addresses": ["172.16.0.5/24"]})
    bench.run_sandbox(sandbox(pod))
    (whole,) = pod.read("addr", "show", "dev", "net1")
    pod.ip_lines(HARM[harm])
    bench.create_container(sandbox(pod))
    assert pod.read("addr", "show", "dev", "net1") == [whole]
    assert bench.gate.is_open("claim-uid")
    bench.stop_sandbox(sandbox(pod))
    assert node.picture() == host


def test_a_nic_that_somebody_took_home_is_attached_again(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    bench = start()
    bench.prepare("eth1", "net1")
    bench.run_sandbox(sandbox(pod))
    pod.ip("link", "set", "net1", "netns", node.name, "name", "eth1")
    bench.create_container(sandbox(pod))
    assert "net1" in names(pod)
    assert "eth1" not in names(node)


def test_a_container_without_its_nic_is_refused_and_the_pod_gets_an_event(
    start: Callable[..., Bench], pod: Namespace
) -> None:
    bench = start()
    bench.prepare("eth1", "net1")
    bench.run_sandbox(sandbox(pod))
    pod.ip("link", "del", "net1")
    with pytest.raises(DeviceError) as caught:
        bench.create_container(sandbox(pod))
    assert caught.value.reason is Reason.DEVICE_NOT_FOUND
    assert [error for _, error in bench.told.failures] == [caught.value]
    assert not bench.gate.is_open("claim-uid")


def test_a_container_of_a_sandbox_without_its_namespace_is_refused(
    start: Callable[..., Bench], pod: Namespace
) -> None:
    bench = start()
    bench.prepare("eth1", "net1")
    gone = sandbox(pod)
    pod.delete()
    with pytest.raises(KernelError) as caught:
        bench.create_container(gone)
    assert caught.value.reason is Reason.NETNS_GONE
    assert len(bench.told.failures) == 1


@pytest.mark.parametrize("hook", ["run", "create"])
def test_a_pod_on_the_hosts_network_is_refused_in_whichever_hook_comes_first(
    start: Callable[..., Bench], node: Namespace, hook: str
) -> None:
    bench = start()
    before = node.picture()
    bench.prepare("eth1", "net1")
    host_networked = PodSandbox("s", "pod", "default", POD_UID, netns_path="", pid=1)
    with pytest.raises(ClaimError, match="hostNetwork") as caught:
        (bench.run_sandbox if hook == "run" else bench.create_container)(host_networked)
    assert caught.value.reason is Reason.UNSUPPORTED_CLAIM
    assert len(bench.told.failures) == 1
    assert node.picture() == before
    assert not bench.gate.list_claims()


# --- the same hook twice --------------------------------------------------------------------------------


def test_a_sandbox_that_is_run_twice_is_disturbed_by_nothing(
    start: Callable[..., Bench], pod: Namespace
) -> None:
    bench = start()
    route = {"destination": "10.9.0.0/16", "gateway": "172.16.0.1"}
    bench.prepare("eth1", "net1", config={"addresses": ["172.16.0.5/24"], "routes": [route]})
    bench.run_sandbox(sandbox(pod))
    before = pod.picture()
    bench.run_sandbox(sandbox(pod))
    assert pod.picture() == before


def test_two_copies_of_the_plugin_do_no_harm(tmp_path: Path, node: Namespace, pod: Namespace) -> None:
    """During a rolling update the runtime calls both; each has the other's commits in its file alone."""
    old = Bench(tmp_path, node)
    before = node.picture()
    old.prepare("eth1", "net1")
    new = Bench(tmp_path, node)
    try:
        old.run_sandbox(sandbox(pod))
        inside = pod.picture()
        new.run_sandbox(sandbox(pod))
        for bench in (old, new):
            assert bench.create_container(sandbox(pod)).devices == (UVERBS,)
        assert pod.picture() == inside
        for bench in (old, new):
            bench.stop_sandbox(sandbox(pod))
            assert node.picture() == before
            assert not bench.gate.is_open("claim-uid")
        assert old.told.failures + new.told.failures == []
    finally:
        new.close()
        old.close()


def test_the_second_copy_of_the_plugin_gives_back_what_the_first_one_attached(
    tmp_path: Path, node: Namespace, pod: Namespace
) -> None:
    old = Bench(tmp_path, node)
    before = node.picture()
    old.prepare("eth1", "net1")
    new = Bench(tmp_path, node)
    for bench in (old, new):
        bench.run_sandbox(sandbox(pod))
    old.close()
    assert new.stop_sandbox(sandbox(pod))
    new.close()
    assert node.picture() == before


# --- RDMA -----------------------------------------------------------------------------------------------


def an_rdma_device(name: str, rdma: RdmaAccess) -> PreparedDevice:
    """In shared namespace mode: nothing of it moves."""
    device = Device(name, DeviceKind.RDMA, rdma_device=name, char_devices=(UVERBS,))
    return PreparedDevice("hca", "node", device, plan=AttachPlan(name), rdma=rdma)


def test_a_gpu_or_admin_access_adds_nothing_to_other_containers(
    start: Callable[..., Bench], pod: Namespace
) -> None:
    nvidia = Device("gpu-0", DeviceKind.GPU, char_devices=(CharDevice("/dev/nvidia0", 195, 0),))
    admin = replace(an_rdma_device("mlx5_0", RdmaAccess((UVERBS,), UNLIMITED)), plan=None, admin_access=True)
    bench = start()
    bench.put(PreparedDevice("gpu", "node", nvidia), "claim-a")
    bench.put(admin, "claim-b")
    adjustment = bench.create_container(sandbox(pod))
    assert (adjustment.devices, adjustment.rlimits) == ((), ())


MI = 1 << 20


@pytest.mark.parametrize(
    ("asked", "has", "limit"),
    [
        ([None, None], None, None),
        ([64 * MI, None], None, (64 * MI, 64 * MI)),
        ([64 * MI, 256 * MI], None, (256 * MI, 256 * MI)),
        ([64 * MI, UNLIMITED], None, (UNLIMITED, UNLIMITED)),
        ([64 * MI], (8 * MI, 8 * MI), (64 * MI, 64 * MI)),
        ([64 * MI], (8 * MI, 128 * MI), (64 * MI, 128 * MI)),
        ([64 * MI], (8 * MI, UNLIMITED), (64 * MI, UNLIMITED)),
        ([UNLIMITED], (8 * MI, 128 * MI), (UNLIMITED, UNLIMITED)),
        ([64 * MI], (64 * MI, 64 * MI), None),
        ([64 * MI], (128 * MI, UNLIMITED), None),
        ([64 * MI], (UNLIMITED, UNLIMITED), None),
        ([UNLIMITED], (UNLIMITED, UNLIMITED), None),
    ],
)
def test_a_container_may_lock_the_most_that_a_claim_asks_for_or_keeps_more(
    start: Callable[..., Bench],
    pod: Namespace,
    tmp_path: Path,
    asked: list[int | None],
    has: tuple[int, int] | None,
    limit: tuple[int, int] | None,
) -> None:
    tree = RdmaTree(tmp_path / "sys")
    bench = start(sysfs_root=tree.root)
    for number, memlock in enumerate(asked):
        tree.add(f"mlx5_{number}", number)
        bench.put(an_rdma_device(f"mlx5_{number}", RdmaAccess((UVERBS,), memlock)), f"claim-{number}")
    bench.run_sandbox(sandbox(pod))
    files = Rlimit("RLIMIT_NOFILE", soft=1024, hard=1024)
    own = (files, Rlimit(MEMLOCK, *has)) if has else (files,)
    expected = (Rlimit(MEMLOCK, *limit),) if limit else ()
    assert bench.create_container(sandbox(pod), rlimits=own).rlimits == expected
