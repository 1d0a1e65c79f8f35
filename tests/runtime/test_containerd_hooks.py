"""The driver's hooks under a real containerd and runc: NICs, device nodes and limits of real containers.

The hooks, the store, the gate and the kernel are the driver's own; only the cluster above them is left out.
The NIC is a veth of the private tree.
"""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec import structs

from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.model.claim import (
    FOLDER,
    Container,
    ContainerAdjustment,
    NcclSettings,
    PodSandbox,
    WorkloadSettings,
)
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import CharDevice
from dranet.model.plan import AttachPlan, PreparedDevice, RdmaAccess
from dranet.runtime.containers import CdiDevice
from dranet.runtime.nri import NriPlugin, RuntimeHooks
from testbed.containerd.fetch import ContainerdUnavailable, Toolchain
from testbed.containerd.runtime import ContainerdRuntime
from testbed.runtime.contract import (
    ContainerSpec,
    RunningContainer,
    RunningSandbox,
    RuntimeFailure,
    SandboxSpec,
)
from tests.driver.bench import POD_UID, Bench
from tests.driver.rdma_tree import RdmaTree
from tests.runtime.private_node import in_private_node
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.runtime

SANDBOX = SandboxSpec("default", "pod", POD_UID)
NULL = CharDevice("/dev/infiniband/uverbs7", 1, 3, 0o640)
"""A name no host has, with the numbers of the null device: it can be opened everywhere."""

WRITE_LIMITS = ("sh", "-c", "cat /proc/self/limits > /limits; sleep infinity")


class Wrapped:
    """The driver's hooks as they are; a test may stand in the way of one."""

    def __init__(self, hooks: RuntimeHooks) -> None:
        self._hooks = hooks
        self.misses_run = False
        self.looks_at_others = True
        self.created: list[str] = []
        self.shown: list[Container] = []

    def connected(
        self, runtime_name: str, runtime_version: str, request_timeout_seconds: float | None
    ) -> None:
        self._hooks.connected(runtime_name, runtime_version, request_timeout_seconds)

    def disconnected(self, reason: str) -> None:
        self._hooks.disconnected(reason)

    def synchronize(self, pods: Sequence[PodSandbox], containers: Sequence[Container]) -> None:
        self._hooks.synchronize(pods, containers)

    def run_pod_sandbox(self, pod: PodSandbox) -> bool:
        return not self.misses_run and self._hooks.run_pod_sandbox(pod)

    def stop_pod_sandbox(self, pod: PodSandbox) -> bool:
        return self._hooks.stop_pod_sandbox(pod)

    def remove_pod_sandbox(self, pod: PodSandbox) -> bool:
        return self._hooks.remove_pod_sandbox(pod)

    def create_container(self, pod: PodSandbox, container: Container) -> ContainerAdjustment:
        self.created.append(container.name)
        self.shown.append(container)
        if not self.looks_at_others:
            container = structs.replace(container, devices=(), rlimits=())
        return self._hooks.create_container(pod, container)

    def start_container(self, pod: PodSandbox, container: Container) -> bool:
        return self._hooks.start_container(pod, container)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@pytest.fixture
def node() -> Iterator[Namespace]:
    """The private tree's own namespace, with one NIC."""
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")  # as the CNI plugin would, for ever
    ip("netns", "attach", "node", str(os.getpid()))
    here = Namespace("node", NetworkNamespace.open("/run/netns/node"))
    here.ip("link", "add", "rail0", "type", "veth", "peer", "name", "far0")
    here.ip("addr", "add", "172.16.0.5/24", "dev", "rail0")
    yield here
    here.netns.close()
    ip("link", "del", "far0")
    ip("netns", "del", "node")


@pytest.fixture
def bench(folder: Path, node: Namespace) -> Iterator[Bench]:
    made = Bench(folder, node, sysfs_root=show_adapter(folder / "sys").root)
    yield made
    made.close()


def show_adapter(root: Path) -> RdmaTree:
    """``mlx5_0`` with the node :data:`NULL`."""
    tree = RdmaTree(root)
    tree.write("class/infiniband/mlx5_0/node_guid", "0c42:a103:0021:1000")
    attributes = {"ibdev": "mlx5_0", "dev": "1:3", "uevent": "DEVMODE=0640"}
    tree.write_all("class/infiniband_verbs/uverbs7", **attributes)
    return tree


@pytest.fixture
def hooks(bench: Bench) -> Wrapped:
    return Wrapped(bench.hooks)


@pytest_asyncio.fixture
async def runtime(toolchain: Toolchain, folder: Path, hooks: Wrapped) -> AsyncIterator[ContainerdRuntime]:
    """A running containerd with the hooks connected."""
    running = ContainerdRuntime(toolchain, folder / "ctd", folder / "nri.sock", folder / "cdi")
    try:
        await running.start()
    except ContainerdUnavailable as error:
        pytest.skip(str(error))
    plugin = NriPlugin(folder / "nri.sock", "dra.net", "10", hooks)
    plugin.start()
    try:
        assert plugin.wait_ready(10), plugin.last_failure
        yield running
    finally:
        await running.stop()
        plugin.stop()


@pytest.fixture
def other(folder: Path, node: Namespace) -> Iterator[Bench]:
    """Another instance of the driver over the same folders, as during an update."""
    made = Bench(folder, node)
    yield made
    made.close()


@pytest.fixture
def other_hooks(runtime: ContainerdRuntime, folder: Path, other: Bench) -> Iterator[Wrapped]:
    """Those of the other instance, connected under the same name and index."""
    assert runtime is not None
    hooks = Wrapped(other.hooks)
    plugin = NriPlugin(folder / "nri.sock", "dra.net", "10", hooks)
    plugin.start()
    try:
        assert plugin.wait_ready(10), plugin.last_failure
        yield hooks
    finally:
        plugin.stop()


def take_home(sandbox: RunningSandbox, ifname: str) -> None:
    """Move a link out of the pod, into the namespace of the private tree's init."""
    inside = ("nsenter", f"--net={sandbox.netns_path}")
    subprocess.run((*inside, "ip", "link", "set", ifname, "netns", "1"), check=True)


def container_of(bench: Bench, name: str = "main") -> ContainerSpec:
    """A container that brings the claim, with the ready file that Prepare's CDI device mounts."""
    gate = bench.gate.mount_for("claim-uid")
    bench.cdi.write("claim-uid", [CdiDevice("nic", mounts=(gate,))])
    return ContainerSpec(name, cdi_devices=(bench.cdi.device_id("claim-uid", "nic"),))


async def read_memlock(runtime: ContainerdRuntime, container: RunningContainer) -> list[str]:
    """Soft and hard, of a container that began with ``WRITE_LIMITS``."""
    limits = await runtime.exec_in_container(container, ["cat", "/limits"])
    (line,) = [line for line in limits.stdout.splitlines() if line.startswith("Max locked memory")]
    return line.split()[3:5]


@in_private_node
async def test_a_container_has_its_nic_and_opens_its_rdma_node(
    runtime: ContainerdRuntime, bench: Bench, node: Namespace
) -> None:
    before = node.picture()
    bench.prepare("rail0", "net1", rdma=RdmaAccess(nodes=(NULL,)))
    sandbox = await runtime.run_sandbox(SANDBOX)
    container = await runtime.create_container(sandbox, container_of(bench))
    shown = await runtime.exec_in_container(container, ["ip", "addr", "show", "dev", "net1"])
    assert "inet 172.16.0.5/24" in shown.stdout
    assert "mtu 1400" in shown.stdout
    assert container.devices[NULL.path] == "1:3"
    script = f"echo x > {NULL.path} && cat {NULL.path} && stat -c '%a %t:%T' {NULL.path}"
    opened = await runtime.exec_in_container(container, ["sh", "-c", script])
    assert (opened.exit_code, opened.stdout, opened.stderr) == (0, "640 1:3\n", "")
    await runtime.remove_sandbox(sandbox.id)
    assert node.picture() == before


@in_private_node
async def test_a_container_may_lock_as_much_memory_as_its_claim_says(
    runtime: ContainerdRuntime, bench: Bench
) -> None:
    """Less than it inherits: without CAP_SYS_RESOURCE, as here, nobody may give more."""
    memlock = 1 << 20
    inherited = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    assert inherited == resource.RLIM_INFINITY or inherited > memlock
    device = Device("mlx5_0", DeviceKind.RDMA, rdma_device="mlx5_0")
    bench.put(
        PreparedDevice("hca", "node", device, plan=AttachPlan("mlx5_0"), rdma=RdmaAccess((NULL,), memlock))
    )
    sandbox = await runtime.run_sandbox(SANDBOX)
    spec = replace(container_of(bench), command=WRITE_LIMITS)
    container = await runtime.create_container(sandbox, spec)
    assert await read_memlock(runtime, container) == [str(memlock)] * 2


@in_private_node
async def test_a_sandbox_that_ran_without_us_gets_its_nic_with_its_first_container(
    runtime: ContainerdRuntime, bench: Bench, hooks: Wrapped
) -> None:
    """The runtime says neither that the pod runs nor, by Synchronize, that it exists: an old one can do so
    while a plugin connects."""
    bench.prepare("rail0", "net1")
    hooks.misses_run = True
    sandbox = await runtime.run_sandbox(SANDBOX)
    assert not bench.gate.is_open("claim-uid")
    container = await runtime.create_container(sandbox, container_of(bench))
    shown = await runtime.exec_in_container(container, ["ip", "addr", "show", "dev", "net1"])
    assert "inet 172.16.0.5/24" in shown.stdout
    assert hooks.created == ["main"]


@in_private_node
async def test_a_nic_that_was_taken_from_a_pod_is_back_before_its_next_container(
    runtime: ContainerdRuntime, bench: Bench
) -> None:
    bench.prepare("rail0", "net1")
    sandbox = await runtime.run_sandbox(SANDBOX)
    await runtime.create_container(sandbox, container_of(bench, "first"))
    take_home(sandbox, "net1")
    container = await runtime.create_container(sandbox, container_of(bench, "second"))
    shown = await runtime.exec_in_container(container, ["ip", "addr", "show", "dev", "net1"])
    assert "inet 172.16.0.5/24" in shown.stdout


@in_private_node
async def test_a_container_without_its_nic_is_refused_with_our_reason(
    runtime: ContainerdRuntime, bench: Bench, hooks: Wrapped, node: Namespace
) -> None:
    bench.prepare("rail0", "net1")
    sandbox = await runtime.run_sandbox(SANDBOX)
    node.ip("link", "del", "far0")
    node.ip("link", "add", "far0", "type", "veth", "peer", "name", "near0")
    with pytest.raises(RuntimeFailure, match="rail0 that was prepared is not on this node"):
        await runtime.create_container(sandbox, container_of(bench))
    assert hooks.created == ["main"]
    assert len(bench.told.failures) == 1


@in_private_node
async def test_a_pod_on_the_hosts_network_is_refused_with_our_reason(
    runtime: ContainerdRuntime, bench: Bench, node: Namespace
) -> None:
    before = node.picture()
    bench.prepare("rail0", "net1")
    with pytest.raises(RuntimeFailure, match="runs on the host's network"):
        await runtime.run_sandbox(SandboxSpec("default", "pod", POD_UID, host_network=True))
    assert node.picture() == before
    assert len(bench.told.failures) == 1


@in_private_node
async def test_a_pod_on_the_hosts_network_gets_an_rdma_only_device_that_stays_where_it_is(
    runtime: ContainerdRuntime, bench: Bench
) -> None:
    """In shared mode. The ready file leads to the namespace of the sandbox's process, and ends with it."""
    device = Device("mlx5_0", DeviceKind.RDMA, rdma_device="mlx5_0", rdma_guid="0c42:a103:0021:1000")
    old = CharDevice("/dev/infiniband/uverbs3", 231, 195)
    bench.put(PreparedDevice("hca", "node", device, plan=AttachPlan("mlx5_0"), rdma=RdmaAccess((old,))))
    other = await runtime.run_sandbox(SandboxSpec("default", "other", "other", host_network=True))
    with pytest.raises(RuntimeFailure):
        await runtime.create_container(other, container_of(bench))
    spec = SandboxSpec("default", "pod", POD_UID, host_network=True)
    sandbox = await runtime.run_sandbox(spec)
    assert bench.gate.is_open("claim-uid")
    container = await runtime.create_container(sandbox, container_of(bench))
    assert (container.devices[NULL.path], old.path in container.devices) == ("1:3", False)
    assert [claim.claim.uid for claim in bench.told.attached_claims] == ["claim-uid"]
    await runtime.remove_sandbox(sandbox.id)
    assert not bench.gate.is_open("claim-uid")
    assert bench.told.stuck == []


@in_private_node
async def test_a_pod_whose_sandbox_ran_on_the_hosts_network_without_us_gets_no_container(
    runtime: ContainerdRuntime, bench: Bench, hooks: Wrapped
) -> None:
    bench.prepare("rail0", "net1")
    hooks.misses_run = True
    sandbox = await runtime.run_sandbox(SandboxSpec("default", "pod", POD_UID, host_network=True))
    with pytest.raises(RuntimeFailure, match="runs on the host's network"):
        await runtime.create_container(sandbox, container_of(bench))


@in_private_node
async def test_the_next_sandbox_of_a_pod_gets_the_nic_and_keeps_it_when_the_last_one_is_removed(
    runtime: ContainerdRuntime, bench: Bench, node: Namespace
) -> None:
    before = node.picture()
    bench.prepare("rail0", "net1")
    first = await runtime.run_sandbox(SANDBOX)
    await runtime.create_container(first, container_of(bench))
    await runtime.stop_sandbox(first.id)
    second = await runtime.run_sandbox(replace(SANDBOX, attempt=1))
    container = await runtime.create_container(second, container_of(bench))
    await runtime.remove_sandbox(first.id)
    shown = await runtime.exec_in_container(container, ["ip", "addr", "show", "dev", "net1"])
    assert "inet 172.16.0.5/24" in shown.stdout
    await runtime.remove_sandbox(second.id)
    assert node.picture() == before


# --- two instances, as during an update ------------------------------------------------------------------


def prepare_with_memlock(bench: Bench) -> None:
    """A NIC with an RDMA node, and a limit that every container may be given: less than it inherits."""
    bench.prepare("rail0", "net1", rdma=RdmaAccess((NULL,), 1 << 20))


@in_private_node
async def test_two_instances_give_a_container_its_nic_node_and_limit_once_and_say_so_once(
    runtime: ContainerdRuntime,
    bench: Bench,
    hooks: Wrapped,
    other: Bench,
    other_hooks: Wrapped,
    node: Namespace,
) -> None:
    before = node.picture()
    prepare_with_memlock(bench)
    sandbox = await runtime.run_sandbox(SANDBOX)
    spec = replace(container_of(bench), command=WRITE_LIMITS)
    container = await runtime.create_container(sandbox, spec)
    shown = await runtime.exec_in_container(container, ["ip", "addr", "show", "dev", "net1"])
    assert "inet 172.16.0.5/24" in shown.stdout
    assert container.devices[NULL.path] == "1:3"
    assert await read_memlock(runtime, container) == [str(1 << 20)] * 2
    assert len(bench.told.attached_links + other.told.attached_links) == 1
    assert len(bench.told.found_links + other.told.found_links) == 1
    await runtime.remove_sandbox(sandbox.id)
    assert node.picture() == before
    assert len(bench.told.reports + other.told.reports) == 1
    assert not bench.told.failures + other.told.failures
    assert hooks.created == other_hooks.created == ["main"]


@in_private_node
async def test_the_runtime_shows_the_second_instance_what_the_first_one_adds(
    runtime: ContainerdRuntime, bench: Bench, hooks: Wrapped, other_hooks: Wrapped
) -> None:
    prepare_with_memlock(bench)
    sandbox = await runtime.run_sandbox(SANDBOX)
    await runtime.create_container(sandbox, container_of(bench))
    (mine,), (others,) = hooks.shown, other_hooks.shown
    first, second = sorted((mine, others), key=lambda container: len(container.devices))
    assert NULL.path not in [node.path for node in first.devices]
    assert [node for node in second.devices if node not in first.devices] == [
        structs.replace(NULL, file_mode=None)
    ]
    assert len(second.rlimits) == len(first.rlimits) + 1


@in_private_node
async def test_a_container_to_which_both_instances_add_the_same_fails(
    runtime: ContainerdRuntime, bench: Bench, hooks: Wrapped, other_hooks: Wrapped
) -> None:
    """Why an instance looks at what the container has already."""
    hooks.looks_at_others = other_hooks.looks_at_others = False
    bench.prepare("rail0", "net1", rdma=RdmaAccess((NULL,)))
    sandbox = await runtime.run_sandbox(SANDBOX)
    with pytest.raises(RuntimeFailure, match="both tried to set"):
        await runtime.create_container(sandbox, container_of(bench))


@in_private_node
async def test_a_container_to_which_both_instances_add_the_same_limit_fails(
    runtime: ContainerdRuntime, bench: Bench, hooks: Wrapped, other_hooks: Wrapped
) -> None:
    hooks.looks_at_others = other_hooks.looks_at_others = False
    bench.prepare("rail0", "net1", rdma=RdmaAccess((), 1 << 20))
    sandbox = await runtime.run_sandbox(SANDBOX)
    with pytest.raises(RuntimeFailure, match="both tried to set"):
        await runtime.create_container(sandbox, container_of(bench))


@in_private_node
async def test_two_instances_give_a_container_its_files_variables_and_memory_once(
    runtime: ContainerdRuntime, bench: Bench, hooks: Wrapped, other_hooks: Wrapped
) -> None:
    """And the runtime shows plugins the variables of image and pod, among which may be the user's own."""
    record = bench.prepare("rail0", "net1")
    wishes = WorkloadSettings(NcclSettings(config_file=True), ucx_net_devices=True, memory_policy="bind")
    (device,) = record.devices
    near = structs.replace(device, workload=wishes, device=structs.replace(device.device, numa_node=0))
    bench.store.put(structs.replace(record, devices=(near,)))
    sandbox = await runtime.run_sandbox(SANDBOX)
    spec = replace(container_of(bench), env=(("UCX_NET_DEVICES", "all"),))
    container = await runtime.create_container(sandbox, spec)
    assert container.env["NCCL_CONF_FILE"] == f"{FOLDER}/nccl.conf"
    assert container.env["UCX_NET_DEVICES"] == "all"
    assert container.memory_nodes == "0"
    shown = await runtime.exec_in_container(container, ["cat", f"{FOLDER}/nccl.conf"])
    assert shown.stdout.startswith("# Written by dranet for container main of pod default/pod.")
    (mine,), (others,) = hooks.shown, other_hooks.shown
    first, second = sorted((mine, others), key=lambda one: len(one.env))
    assert (first.env["PATH"], first.env["UCX_NET_DEVICES"]) == ("/bin", "all"), "of the image, of the pod"
    assert second.env["NCCL_CONF_FILE"] == f"{FOLDER}/nccl.conf"
    assert (first.memory_nodes, second.memory_nodes) == ("", "0")
