"""RDMA devices in pods through the driver's hooks: who may open a verbs node, and what a container gets.

The namespace mode is exclusive, as the machine's script left it. ``mlx5_0`` has a link, ``mlx5_2`` has none,
``rxe0`` is a software device that manages a fabric.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dranet.claims.plan.device import plan_device
from dranet.errors import KernelError
from dranet.kernel.discovery.hardware import read_management_nodes, read_rdma_nodes
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import CharDevice
from dranet.model.parameters.network import NetworkConfig
from dranet.model.plan import PreparedDevice, RdmaAccess
from testbed.machine.hardware import MACHINE
from tests.driver.bench import Bench, names, sandbox
from tests.machine import kernel_view
from tests.support.namespaces import Namespace
from tests.support.waiting import wait_until

pytestmark = pytest.mark.machine

IGB = MACHINE.function("igb0")
VERBS_CLASS = Path("/sys/class/infiniband_verbs")


@pytest.fixture
def node() -> Iterator[Namespace]:
    """The machine's own namespace."""
    kernel_view.raise_links()
    kernel_view.run("ip", "netns", "attach", "machine", str(os.getpid()))
    with NetworkNamespace.open("/run/netns/machine") as here:
        yield Namespace("machine", here)
    kernel_view.run("ip", "netns", "del", "machine")


@pytest.fixture
def pod(make_namespace: Callable[..., Namespace]) -> Namespace:
    return make_namespace()


@pytest.fixture
def bench(tmp_path: Path, node: Namespace) -> Iterator[Bench]:
    made = Bench(tmp_path, node)
    yield made
    made.close()


@pytest.fixture
def sysfs() -> PseudoFiles:
    return PseudoFiles(Path("/sys"), [])


def in_sysfs(name: str) -> bool:
    return Path("/sys/class/infiniband", name).exists()


def may_open(node: Path) -> bool:
    """From the namespace of the calling thread; the kernel refuses with EPERM."""
    try:
        os.close(os.open(node, os.O_RDWR))
    except PermissionError:
        return False
    return True


def verbs_node(rdma_device: str) -> Path:
    """As the kernel names it, while the device is on the node."""
    mine = (v for v in VERBS_CLASS.glob("uverbs*") if (v / "ibdev").read_text().strip() == rdma_device)
    return Path("/dev/infiniband", next(mine).name)


def an_rdma_only(rdma_device: str) -> PreparedDevice:
    device = Device(f"dev-{rdma_device}", DeviceKind.RDMA, rdma_device=rdma_device)
    plan = plan_device(device, None, NetworkConfig(), rdma_exclusive=True)
    return PreparedDevice("hca", "node", device, plan=plan, rdma=RdmaAccess())


def who_may_open(node: Path, pod: Namespace, other: Namespace) -> tuple[bool, bool, bool]:
    """The node itself, the pod, another pod."""
    return may_open(node), pod.run(lambda: may_open(node)), other.run(lambda: may_open(node))


# --- exclusive mode -------------------------------------------------------------------------------------


def test_the_verbs_node_of_a_nic_opens_in_its_pod_alone(
    bench: Bench, pod: Namespace, make_namespace: Callable[..., Namespace]
) -> None:
    other = make_namespace()
    node = verbs_node("mlx5_0")
    assert who_may_open(node, pod, other) == (True, False, False)
    bench.prepare(kernel_view.ifname(IGB.address), "net1", rdma_device="mlx5_0")
    bench.run_sandbox(sandbox(pod))
    assert who_may_open(node, pod, other) == (False, True, False)
    bench.create_container(sandbox(pod))
    (link,) = [entry for entry in pod.run(rdma_links) if entry["ifname"] == "mlx5_0"]
    assert link["netdev"] == "net1"
    bench.stop_sandbox(sandbox(pod))
    assert who_may_open(node, pod, other) == (True, False, False)
    assert kernel_view.ifname(IGB.address)
    assert bench.told.failures == []
    assert [report.problems for report in bench.told.reports] == [()]


def rdma_links() -> list[dict[str, object]]:
    return kernel_view.rdma("link", "show")


def test_the_verbs_node_of_a_device_without_a_link_opens_in_its_pod_alone(
    bench: Bench, pod: Namespace, make_namespace: Callable[..., Namespace]
) -> None:
    other = make_namespace()
    node = verbs_node("mlx5_2")
    bench.put(an_rdma_only("mlx5_2"))
    bench.run_sandbox(sandbox(pod))
    assert who_may_open(node, pod, other) == (False, True, False)
    assert bench.gate.is_open("claim-uid")
    bench.create_container(sandbox(pod))
    bench.stop_sandbox(sandbox(pod))
    assert who_may_open(node, pod, other) == (True, False, False)
    assert in_sysfs("mlx5_2")


def test_an_rdma_device_that_somebody_took_home_is_back_before_a_container_starts(
    bench: Bench, pod: Namespace
) -> None:
    bench.put(an_rdma_only("mlx5_2"))
    bench.run_sandbox(sandbox(pod))
    pod.run(lambda: kernel_view.run("rdma", "dev", "set", "mlx5_2", "netns", "machine"))
    assert in_sysfs("mlx5_2")
    bench.create_container(sandbox(pod))
    assert not in_sysfs("mlx5_2")
    bench.stop_sandbox(sandbox(pod))
    assert in_sysfs("mlx5_2")


def test_the_second_claim_that_fails_takes_the_rdma_device_of_the_first_one_home(
    bench: Bench, pod: Namespace
) -> None:
    bench.put(an_rdma_only("mlx5_2"), "claim-a")
    bench.prepare(kernel_view.ifname(IGB.address), "net1", "claim-b", rdma_device="mlx5_0")
    pod.ip("link", "add", "net1", "type", "dummy")
    with pytest.raises(KernelError):
        bench.run_sandbox(sandbox(pod))
    assert (in_sysfs("mlx5_0"), in_sysfs("mlx5_2")) == (True, True)
    assert kernel_view.ifname(IGB.address)
    assert names(pod) == {"lo", "net1"}


def test_an_rdma_device_whose_namespace_died_without_a_word_is_home_and_nothing_is_lost(
    tmp_path: Path, node: Namespace, pod: Namespace
) -> None:
    first = Bench(tmp_path, node)
    first.put(an_rdma_only("mlx5_2"))
    first.run_sandbox(sandbox(pod))
    first.close()  # killed
    pod.delete()
    wait_until(lambda: in_sysfs("mlx5_2"), "the kernel returns it", 60)
    bench = Bench(tmp_path, node)
    bench.reconcile()
    assert bench.told.stuck == []
    assert [(report.missing, report.problems) for report in bench.told.reports] == [((), ())]
    bench.close()


# --- nodes ----------------------------------------------------------------------------------------------


def as_devtmpfs_has_it(node: CharDevice) -> CharDevice:
    """What the kernel made of the driver's wish."""
    status = Path(node.path).stat()
    assert stat.S_ISCHR(status.st_mode)
    return CharDevice(
        node.path, os.major(status.st_rdev), os.minor(status.st_rdev), stat.S_IMODE(status.st_mode)
    )


def test_verbs_nodes_have_the_mode_that_devtmpfs_gives_them(sysfs: PseudoFiles) -> None:
    nodes = read_rdma_nodes(sysfs)
    assert {"mlx5_0", "mlx5_1", "mlx5_2", "rxe0", ""} <= nodes.keys()
    for node in nodes.values():
        assert node == as_devtmpfs_has_it(node)
    assert nodes[""].file_mode == 0o666


def test_management_nodes_are_read_of_the_device_that_has_them(sysfs: PseudoFiles) -> None:
    kernel_view.run("modprobe", "ib_umad")
    nodes = read_management_nodes(sysfs, "rxe0")
    # The kernel makes an issm for a port of InfiniBand alone: there is no subnet manager for Ethernet.
    assert [Path(node.path).name[:4] for node in nodes] == ["umad"]
    for node in nodes:
        assert node == as_devtmpfs_has_it(node)
        assert node.file_mode == 0o600
    assert read_management_nodes(sysfs, "mlx5_0") == (), "it has no management datagrams"
    assert sysfs.warnings == []
