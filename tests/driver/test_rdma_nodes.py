"""The RDMA nodes that containers get are those of the kernel now, whatever Prepare saw."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet.errors import ClaimError, DeviceError, Reason
from dranet.model.claim import PodSandbox
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import CharDevice
from dranet.model.plan import AttachPlan, PreparedDevice, RdmaAccess, SetSysctl
from tests.driver.bench import POD_UID, Bench, names, sandbox
from tests.driver.rdma_tree import RDMA_CM, RdmaTree, umad, uverbs
from tests.support.namespaces import Namespace
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kernel

GUID, OTHER_GUID = "0c42:a103:0021:1000", "0c42:a103:0021:2000"


@pytest.fixture
def tree(tmp_path: Path) -> RdmaTree:
    return RdmaTree(tmp_path / "sys")


@pytest.fixture
def bench(start: Callable[..., Bench], tree: RdmaTree) -> Bench:
    return start(sysfs_root=tree.root)


def in_shared_mode(name: str, *nodes: CharDevice, guid: str = GUID) -> PreparedDevice:
    """Nothing of it moves."""
    device = Device(name, DeviceKind.RDMA, rdma_device=name, char_devices=nodes[:2], rdma_guid=guid)
    return PreparedDevice("hca", "node", device, plan=AttachPlan(name), rdma=RdmaAccess(nodes))


def recorded(bench: Bench, uid: str = "claim-uid") -> RdmaAccess:
    record = bench.store.get(uid)
    assert record is not None
    return record.devices[0].rdma


def test_each_container_gets_the_nodes_of_all_devices_each_once(
    bench: Bench, tree: RdmaTree, pod: Namespace
) -> None:
    tree.add("mlx5_0", 0, GUID)
    tree.add("mlx5_1", 1, OTHER_GUID)
    tree.add_management("mlx5_0", 0)
    bench.put(in_shared_mode("mlx5_0", uverbs(0), RDMA_CM, umad(0)), "claim-a")
    bench.put(in_shared_mode("mlx5_1", uverbs(1), RDMA_CM, guid=OTHER_GUID), "claim-b")
    bench.run_sandbox(sandbox(pod))
    for container in ("init", "main"):
        given = bench.create_container(sandbox(pod), container).devices
        assert set(given) == {uverbs(0), uverbs(1), RDMA_CM, umad(0)}
        assert len(given) == 4


def test_numbers_that_changed_after_prepare_are_in_the_record_before_the_sandbox_is_answered(
    bench: Bench, tree: RdmaTree, pod: Namespace
) -> None:
    tree.add("mlx5_0", 5, GUID)
    tree.add_management("mlx5_0", 3)
    bench.put(in_shared_mode("mlx5_0", uverbs(2), RDMA_CM, umad(2)))
    bench.run_sandbox(sandbox(pod))
    assert set(recorded(bench).nodes) == {uverbs(5), RDMA_CM, umad(3)}
    assert set(bench.create_container(sandbox(pod)).devices) == {uverbs(5), RDMA_CM, umad(3)}


def test_a_recovery_between_two_containers_renumbers_and_the_second_gets_the_new_node(
    bench: Bench, tree: RdmaTree, pod: Namespace
) -> None:
    tree.add("mlx5_0", 0, GUID)
    bench.put(in_shared_mode("mlx5_0", uverbs(0), RDMA_CM))
    bench.run_sandbox(sandbox(pod))
    assert set(bench.create_container(sandbox(pod), "init").devices) == {uverbs(0), RDMA_CM}
    tree.remove("mlx5_0")
    tree.add("mlx5_9", 0, OTHER_GUID)
    tree.add("mlx5_0", 4, GUID)
    assert set(bench.create_container(sandbox(pod), "main").devices) == {uverbs(4), RDMA_CM}
    assert set(recorded(bench).nodes) == {uverbs(4), RDMA_CM}


def test_a_device_of_another_name_is_found_by_its_guid_and_one_of_its_name_is_not_taken_for_it(
    bench: Bench, tree: RdmaTree, pod: Namespace
) -> None:
    tree.add("mlx5_0", 0, OTHER_GUID)
    tree.add("ibdev3", 1, GUID)
    bench.put(in_shared_mode("mlx5_0", uverbs(0), RDMA_CM))
    bench.run_sandbox(sandbox(pod))
    assert set(bench.create_container(sandbox(pod)).devices) == {uverbs(1), RDMA_CM}
    assert recorded(bench).pod_name == "ibdev3"


def test_a_container_whose_device_is_gone_is_refused_and_gets_no_old_numbers(
    bench: Bench, tree: RdmaTree, pod: Namespace
) -> None:
    tree.add("mlx5_0", 0, GUID)
    bench.put(in_shared_mode("mlx5_0", uverbs(0), RDMA_CM))
    bench.run_sandbox(sandbox(pod))
    tree.remove("mlx5_0")
    tree.add("mlx5_1", 0, OTHER_GUID)
    with pytest.raises(DeviceError, match=r"its RDMA device mlx5_0 .* is not where the pod could use it"):
        bench.create_container(sandbox(pod))


def test_a_container_whose_verbs_node_is_gone_is_refused(
    bench: Bench, tree: RdmaTree, pod: Namespace
) -> None:
    tree.add("mlx5_0", 0, GUID)
    bench.put(in_shared_mode("mlx5_0", uverbs(0), RDMA_CM))
    bench.run_sandbox(sandbox(pod))
    tree.remove("mlx5_0")
    tree.write("class/infiniband/mlx5_0/node_guid", GUID)
    with pytest.raises(DeviceError, match="mlx5_0 has no device node uverbs now"):
        bench.create_container(sandbox(pod))


def test_a_nic_whose_rdma_device_ended_with_the_move_comes_back_and_the_pod_is_refused(
    bench: Bench, node: Namespace, pod: Namespace
) -> None:
    """As bnxt_re before Linux 6.3 does it."""
    before = node.picture()
    record = bench.prepare("eth1", "net1", rdma=RdmaAccess((uverbs(0), RDMA_CM)))
    device = replace(record.devices[0].device, rdma_device="bnxt_re0", rdma_guid=GUID)
    bench.put(replace(record.devices[0], device=device))
    with pytest.raises(
        DeviceError, match=r"bnxt_re0 .*not where the pod could use it.*bnxt_re before Linux 6"
    ):
        bench.run_sandbox(sandbox(pod))
    assert not bench.gate.is_open("claim-uid")
    assert "net1" not in names(pod)
    assert node.picture() == before


def test_a_record_of_an_earlier_version_finds_its_device_by_name(
    bench: Bench, tree: RdmaTree, pod: Namespace
) -> None:
    tree.add("mlx5_0", 3, GUID)
    device = Device("mlx5_0", DeviceKind.RDMA, rdma_device="mlx5_0", char_devices=(uverbs(0),))
    bench.put(PreparedDevice("hca", "node", device, plan=AttachPlan("mlx5_0")))
    bench.run_sandbox(sandbox(pod))
    adjustment = bench.create_container(sandbox(pod))
    assert (adjustment.devices, adjustment.rlimits) == ((uverbs(3),), ())


# --- pods on the host's network -------------------------------------------------------------------------


def on_host_network(pid: int) -> PodSandbox:
    return PodSandbox("sandbox-1", "pod", "default", POD_UID, netns_path="", pid=pid)


@pytest.fixture
def process() -> Iterator[int]:
    """Of a sandbox: it lives until the test ends it, or ends."""
    child = subprocess.Popen(["sleep", "600"])
    yield child.pid
    child.kill()
    child.wait()


def test_a_pod_on_the_hosts_network_gets_an_rdma_only_device_in_shared_mode(
    bench: Bench, tree: RdmaTree, process: int
) -> None:
    pod = on_host_network(process)
    tree.add("efa_0", 2, GUID)
    bench.put(in_shared_mode("efa_0", uverbs(0), RDMA_CM))
    assert bench.run_sandbox(pod)
    assert bench.gate.is_open("claim-uid")
    assert set(bench.create_container(pod).devices) == {uverbs(2), RDMA_CM}
    record = bench.store.get("claim-uid")
    assert record is not None
    assert (record.sandbox_id, record.netns_path) == ("sandbox-1", f"/proc/{process}/ns/net")
    assert [claim.claim.uid for claim in bench.told.attached_claims] == ["claim-uid"]
    bench.stop_sandbox(pod)
    assert not bench.gate.is_open("claim-uid")
    assert [(report.missing, report.problems) for report in bench.told.reports] == [((), ())]
    record = bench.store.get("claim-uid")
    assert record is not None
    assert (record.sandbox_id, record.netns_path) == ("", "")


def test_the_gate_of_a_pod_on_the_hosts_network_shuts_when_its_sandbox_ends_without_a_word(
    bench: Bench, tree: RdmaTree
) -> None:
    tree.add("efa_0", 2, GUID)
    bench.put(in_shared_mode("efa_0", uverbs(0), RDMA_CM))
    with subprocess.Popen(["sleep", "600"]) as child:
        pod = on_host_network(child.pid)
        bench.run_sandbox(pod)
        bench.reconcile(pod)
        assert bench.gate.is_open("claim-uid"), "reconcile finds it in place"
        child.kill()
    assert not bench.gate.is_open("claim-uid")
    bench.reconcile()
    record = bench.store.get("claim-uid")
    assert record is not None
    assert record.sandbox_id == ""
    wait_until(lambda: bool(bench.told.reports), "it was released", 5)


def test_a_pod_on_the_hosts_network_whose_hook_was_missed_is_attached_by_reconcile(
    bench: Bench, tree: RdmaTree, process: int
) -> None:
    tree.add("efa_0", 0, GUID)
    bench.put(in_shared_mode("efa_0", uverbs(0), RDMA_CM))
    bench.reconcile(on_host_network(process))
    assert bench.gate.is_open("claim-uid")


def test_a_device_that_needs_a_namespace_is_refused_on_the_hosts_network(
    bench: Bench, tree: RdmaTree, process: int
) -> None:
    tree.add("efa_0", 0, GUID)
    prepared = in_shared_mode("efa_0", uverbs(0), RDMA_CM)
    needy = AttachPlan("efa_0", (SetSysctl("net/ipv4/tcp_mtu_probing", "1"),))
    bench.put(replace(prepared, plan=needy))
    with pytest.raises(ClaimError, match="efa_0, which needs a network namespace") as caught:
        bench.run_sandbox(on_host_network(process))
    assert caught.value.reason is Reason.UNSUPPORTED_CLAIM
    assert not bench.gate.is_open("claim-uid")


def test_a_gpu_and_an_rdma_only_device_of_one_pod_are_given_on_the_hosts_network(
    bench: Bench, tree: RdmaTree, process: int
) -> None:
    gpu = Device("gpu-0", DeviceKind.GPU, char_devices=(CharDevice("/dev/nvidia0", 195, 0),))
    tree.add("efa_0", 0, GUID)
    bench.put(PreparedDevice("gpu", "node", gpu), "claim-a")
    assert not bench.run_sandbox(on_host_network(process)), "nothing of a GPU is attached"
    bench.put(in_shared_mode("efa_0", uverbs(0), RDMA_CM), "claim-b")
    assert bench.run_sandbox(on_host_network(process))
    assert set(bench.create_container(on_host_network(process)).devices) == {uverbs(0), RDMA_CM}
