"""Pods of a real containerd and runc, with our NRI plugin and our CDI files on the other side.

Nothing is mocked. The tests run in a private tree of namespaces (the testbed's isolation), in a child
pytest; what is seen outside are their results, and the host sees nothing of the pods. Each test boots a
containerd of its own and checks that nothing of it is left.
"""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from dranet.driver.gate import ReadyGate
from dranet.errors import KernelError
from dranet.model.facts import CharDevice
from dranet.model.sandbox import Container, ContainerAdjustment, Mount, PodSandbox
from dranet.runtime.cdi import CdiDevice, CdiSpecs
from dranet.runtime.nri import NriPlugin
from dranet.testbed.containerd import node as containerd_node
from dranet.testbed.containerd.fetch import ContainerdUnavailable, Toolchain
from dranet.testbed.containerd.runtime import ContainerdRuntime
from dranet.testbed.runtime.contract import (
    ContainerSpec,
    PodRuntime,
    RunningSandbox,
    RuntimeFailure,
    SandboxSpec,
)
from tests.runtime.private_node import in_private_node

pytestmark = pytest.mark.runtime

OWN_NETNS = "/proc/self/ns/net"
NULL = CharDevice("/dev/infiniband/uverbs7", 1, 3)
"""A name no host has, with the numbers of the null device: it can be opened everywhere."""


class Hooks:
    """Records what the runtime says; ``fail_pod``, ``adjustment`` and ``may_go_on`` say how to answer."""

    def __init__(self) -> None:
        self.pods_at_start: Sequence[PodSandbox] = ()
        self.calls: list[tuple[str, PodSandbox]] = []
        self.fail_pod: KernelError | None = None
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.adjustment = ContainerAdjustment()
        self.mounts: tuple[Mount, ...] = ()
        self.runtime_version = ""

    def named(self, hook: str) -> PodSandbox:
        return next(pod for name, pod in self.calls if name == hook)

    def connected(
        self, runtime_name: str, runtime_version: str, request_timeout_seconds: float | None
    ) -> None:
        del request_timeout_seconds
        self.runtime_version = f"{runtime_name} {runtime_version}"

    def disconnected(self, reason: str) -> None:
        del reason

    def synchronize(self, pods: Sequence[PodSandbox]) -> None:
        self.pods_at_start = pods

    def run_pod_sandbox(self, pod: PodSandbox) -> bool:
        self.calls.append(("run", pod))
        self.may_go_on.wait(timeout=20)
        if self.fail_pod is not None:
            raise self.fail_pod
        return True

    def stop_pod_sandbox(self, pod: PodSandbox) -> bool:
        self.calls.append(("stop", pod))
        return True

    def remove_pod_sandbox(self, pod: PodSandbox) -> bool:
        self.calls.append(("remove", pod))
        return True

    def create_container(self, pod: PodSandbox, container: Container) -> ContainerAdjustment:
        self.mounts += container.mounts
        self.calls.append(("create", pod))
        return self.adjustment


@dataclasses.dataclass(frozen=True)
class NodeState:
    """What a runtime could leave behind."""

    processes: frozenset[int]
    mounts: tuple[containerd_node.Mount, ...]
    links: frozenset[str]
    cgroups: frozenset[Path]


def read_node_state(cgroup: str) -> NodeState:
    net = Path("/proc/self/net/dev").read_text()
    return NodeState(
        frozenset(int(entry.name) for entry in Path("/proc").glob("[0-9]*")),
        containerd_node.read_mounts(),
        frozenset(re.findall(r"^ *(\S+):", net, re.MULTILINE)),
        frozenset(Path("/sys/fs/cgroup").glob(f"**/{cgroup}")),
    )


def read_inode(path: str) -> int:
    return Path(path).stat().st_ino


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 10) -> None:
    until = time.monotonic() + seconds
    tick = threading.Event()
    while not condition():
        assert time.monotonic() < until, f"still not: {what}"
        tick.wait(0.02)


def assert_left_as_found(runtime: ContainerdRuntime, before: NodeState) -> None:
    cgroup = runtime._layout.cgroup
    wait_until(lambda: read_node_state(cgroup).links == before.links, "the pods' links are gone")
    wait_until(lambda: read_node_state(cgroup).processes == before.processes, "all processes are gone")
    assert read_node_state(cgroup) == before


@pytest.fixture
def idle_runtime(toolchain: Toolchain, folder: Path) -> ContainerdRuntime:
    return ContainerdRuntime(toolchain, folder / "ctd", folder / "nri.sock", folder / "cdi")


async def start_or_skip(runtime: ContainerdRuntime) -> None:
    try:
        await runtime.start()
    except ContainerdUnavailable as error:
        pytest.skip(str(error))


@pytest_asyncio.fixture
async def runtime(idle_runtime: ContainerdRuntime) -> AsyncIterator[ContainerdRuntime]:
    """A running containerd; at the end nothing of it may be left, whatever the test did."""
    before = read_node_state(idle_runtime._layout.cgroup)
    await start_or_skip(idle_runtime)
    try:
        yield idle_runtime
    finally:
        await idle_runtime.stop()
    assert_left_as_found(idle_runtime, before)


@pytest.fixture
def hooks() -> Hooks:
    return Hooks()


@pytest.fixture
def plugin(runtime: ContainerdRuntime, folder: Path, hooks: Hooks) -> Iterator[NriPlugin]:
    assert runtime.pid
    plugin = NriPlugin(folder / "nri.sock", "dranet-test", "10", hooks)
    plugin.start()
    assert plugin.wait_ready(10), plugin.last_failure
    yield plugin
    hooks.may_go_on.set()
    plugin.stop()


@pytest.fixture
def cdi(folder: Path) -> CdiSpecs:
    return CdiSpecs(folder / "cdi", "dra.net")


async def run_pod(
    runtime: PodRuntime, name: str = "trainer", *, host_network: bool = False
) -> RunningSandbox:
    return await runtime.run_sandbox(
        SandboxSpec("default", name, f"uid-of-{name}", annotations={"a": "b"}, host_network=host_network)
    )


@in_private_node
async def test_a_pod_runs_in_a_network_namespace_of_its_own(runtime: ContainerdRuntime) -> None:
    sandbox = await run_pod(runtime)
    container = await runtime.create_container(sandbox, ContainerSpec("main", env=(("RANK", "0"),)))
    shown = await runtime.exec_in_container(container, ["ip", "-4", "addr", "show", "dev", "eth0"])
    assert shown.exit_code == 0
    assert "inet 10.88.0." in shown.stdout
    inside = await runtime.exec_in_container(container, ["readlink", "/proc/self/ns/net"])
    assert inside.stdout.strip() == f"net:[{read_inode(sandbox.netns_path)}]"
    assert inside.stdout.strip() != f"net:[{read_inode(OWN_NETNS)}]"
    assert container.env["RANK"] == "0"
    assert container.devices["/dev/null"] == "1:3"


@in_private_node
async def test_a_container_that_ends_at_once_is_a_failure_with_its_exit_code(
    runtime: ContainerdRuntime,
) -> None:
    with pytest.raises(RuntimeFailure, match="exit code 4"):
        await runtime.create_container(
            await run_pod(runtime), ContainerSpec("main", command=("sh", "-c", "exit 4"))
        )


@in_private_node
async def test_exec_reports_exit_code_and_both_streams(runtime: ContainerdRuntime) -> None:
    container = await runtime.create_container(await run_pod(runtime), ContainerSpec("main"))
    done = await runtime.exec_in_container(container, ["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (done.exit_code, done.stdout, done.stderr) == (3, "out\n", "err\n")


@in_private_node
async def test_a_pod_on_the_host_network_has_no_namespace_path(runtime: ContainerdRuntime) -> None:
    sandbox = await run_pod(runtime, host_network=True)
    container = await runtime.create_container(sandbox, ContainerSpec("main"))
    inside = await runtime.exec_in_container(container, ["readlink", "/proc/self/ns/net"])
    assert sandbox.netns_path == ""
    assert inside.stdout.strip() == f"net:[{read_inode(OWN_NETNS)}]"


@in_private_node
async def test_stop_and_remove_can_be_repeated_and_the_namespace_is_gone(runtime: ContainerdRuntime) -> None:
    sandbox = await run_pod(runtime)
    for _ in range(2):
        await runtime.stop_sandbox(sandbox.id)
    with pytest.raises(FileNotFoundError):
        read_inode(sandbox.netns_path)
    for _ in range(2):
        await runtime.remove_sandbox(sandbox.id)
    await runtime.remove_sandbox("0" * 64)


@in_private_node
async def test_a_cdi_device_reaches_the_container_and_can_be_opened(
    runtime: ContainerdRuntime, cdi: CdiSpecs, folder: Path
) -> None:
    source = folder / "topology of this pod.xml"
    source.write_text("<system/>")
    mount = Mount(str(source), "/etc/topology.xml")
    cdi.write("c1", [CdiDevice("nic0", (NULL,), (mount,), (("DEVICE", "nic0"),))])
    container = await runtime.create_container(
        await run_pod(runtime), ContainerSpec("main", cdi_devices=(cdi.device_id("c1", "nic0"),))
    )
    assert container.devices[NULL.path] == "1:3"
    assert container.env["DEVICE"] == "nic0"
    assert container.mounts["/etc/topology.xml"] == str(source)
    opened = await runtime.exec_in_container(
        container, ["sh", "-c", f"echo x > {NULL.path}; cat {NULL.path}"]
    )
    assert (opened.exit_code, opened.stderr) == (0, "")


@in_private_node
async def test_a_device_that_was_not_given_cannot_be_opened(runtime: ContainerdRuntime) -> None:
    """Without this the test above would show nothing of the device cgroup."""
    container = await runtime.create_container(await run_pod(runtime), ContainerSpec("main"))
    opened = await runtime.exec_in_container(container, ["sh", "-c", "mknod /tmp/m c 1 1 && head -c1 /tmp/m"])
    assert opened.exit_code != 0
    assert "Operation not permitted" in opened.stderr


@in_private_node
async def test_a_container_does_not_start_before_its_ready_file_exists(
    runtime: ContainerdRuntime, cdi: CdiSpecs, folder: Path
) -> None:
    ready = folder / "ready"
    cdi.write("c1", [CdiDevice("nic0", mounts=(Mount(str(ready), "/run/dranet/ready"),))])
    spec = ContainerSpec("main", cdi_devices=(cdi.device_id("c1", "nic0"),))
    sandbox = await run_pod(runtime)
    with pytest.raises(RuntimeFailure, match=str(ready)):
        await runtime.create_container(sandbox, spec)
    ready.touch()
    container = await runtime.create_container(sandbox, spec)
    assert container.mounts["/run/dranet/ready"] == str(ready)


@in_private_node
async def test_a_sandbox_that_replaces_another_finds_the_gate_shut(
    runtime: ContainerdRuntime, cdi: CdiSpecs, folder: Path
) -> None:
    """The driver's own gate, and nobody there to shut it: the link dangles with the end of the first."""
    gate = ReadyGate(folder / "state")
    cdi.write("c1", [CdiDevice("nic0", mounts=(gate.mount_for("c1"),))])
    spec = ContainerSpec("main", cdi_devices=(cdi.device_id("c1", "nic0"),))
    first = await run_pod(runtime)
    gate.open("c1", first.netns_path)
    await runtime.create_container(first, spec)
    await runtime.stop_sandbox(first.id)
    await runtime.remove_sandbox(first.id)
    second = await run_pod(runtime)
    with pytest.raises(RuntimeFailure, match=gate.mount_for("c1").source):
        await runtime.create_container(second, spec)
    gate.open("c1", second.netns_path)
    await runtime.create_container(second, spec)


@in_private_node
async def test_an_unknown_cdi_device_fails_the_container(runtime: ContainerdRuntime, cdi: CdiSpecs) -> None:
    with pytest.raises(RuntimeFailure, match=r"dra\.net/claim=c1-nic9"):
        await runtime.create_container(
            await run_pod(runtime), ContainerSpec("main", cdi_devices=(cdi.device_id("c1", "nic9"),))
        )


@in_private_node
@pytest.mark.usefixtures("plugin")
async def test_our_plugin_sees_the_life_of_a_pod(runtime: ContainerdRuntime, hooks: Hooks) -> None:
    assert hooks.runtime_version.startswith(runtime.name)
    sandbox = await run_pod(runtime)
    await runtime.create_container(sandbox, ContainerSpec("main"))
    await runtime.stop_sandbox(sandbox.id)
    await runtime.remove_sandbox(sandbox.id)
    assert [name for name, _ in hooks.calls] == ["run", "create", "stop", "remove"]
    assert {pod.id for _, pod in hooks.calls} == {sandbox.id}
    pod = hooks.named("run")
    assert (pod.namespace, pod.name, pod.uid) == ("default", "trainer", "uid-of-trainer")
    assert pod.netns_path == sandbox.netns_path
    assert pod.pid > 0
    assert pod.annotations["a"] == "b"


@in_private_node
async def test_our_error_fails_the_pod_with_our_text(
    runtime: ContainerdRuntime, plugin: NriPlugin, hooks: Hooks
) -> None:
    hooks.fail_pod = KernelError("cannot move eth1: no such device")
    with pytest.raises(RuntimeFailure, match="cannot move eth1: no such device"):
        await run_pod(runtime)
    wait_until(lambda: len(hooks.calls) == 3, "the runtime took the pod down")
    assert [name for name, _ in hooks.calls] == ["run", "stop", "remove"]
    hooks.fail_pod = None
    assert (await run_pod(runtime)).netns_path
    assert plugin.is_ready


@in_private_node
@pytest.mark.usefixtures("plugin")
async def test_our_adjustment_reaches_the_container(
    runtime: ContainerdRuntime, hooks: Hooks, folder: Path
) -> None:
    source = folder / "nccl.conf"
    source.write_text("NCCL_DEBUG=INFO\n")
    hooks.adjustment = ContainerAdjustment(
        devices=(NULL,),
        env=(("NCCL_CONF_FILE", "/etc/nccl.conf"),),
        mounts=(Mount(str(source), "/etc/nccl.conf"),),
    )
    container = await runtime.create_container(await run_pod(runtime), ContainerSpec("main"))
    assert container.devices[NULL.path] == "1:3"
    assert container.env["NCCL_CONF_FILE"] == "/etc/nccl.conf"
    assert container.mounts["/etc/nccl.conf"] == str(source)
    done = await runtime.exec_in_container(container, ["sh", "-c", f"cat /etc/nccl.conf > {NULL.path}"])
    assert done.exit_code == 0


@in_private_node
@pytest.mark.usefixtures("plugin")
async def test_a_hook_that_is_late_lets_the_pod_run_and_the_ready_file_stops_its_container(
    runtime: ContainerdRuntime, hooks: Hooks, cdi: CdiSpecs, folder: Path
) -> None:
    """The runtime fails open after two seconds: the reason for the ready file."""
    ready = folder / "ready"
    cdi.write("c1", [CdiDevice("nic0", mounts=(Mount(str(ready), "/run/dranet/ready"),))])
    hooks.may_go_on.clear()
    sandbox = await run_pod(runtime)
    assert hooks.named("run").id == sandbox.id
    with pytest.raises(RuntimeFailure, match=str(ready)):
        await runtime.create_container(
            sandbox, ContainerSpec("main", cdi_devices=(cdi.device_id("c1", "nic0"),))
        )


@in_private_node
@pytest.mark.usefixtures("plugin")
async def test_our_plugin_is_told_the_mounts_of_a_containers_cdi_devices(
    runtime: ContainerdRuntime, hooks: Hooks, cdi: CdiSpecs, folder: Path
) -> None:
    """By them the driver knows a container that brings the claim of another pod."""
    source = folder / "ready"
    source.write_text("attached")
    ready = Mount(str(source), "/run/dranet/ready")
    cdi.write("c1", [CdiDevice("nic0", mounts=(ready,))])
    sandbox = await run_pod(runtime)
    await runtime.create_container(sandbox, ContainerSpec("main", cdi_devices=(cdi.device_id("c1", "nic0"),)))
    assert (ready.source, ready.destination) in {(m.source, m.destination) for m in hooks.mounts}


@in_private_node
@pytest.mark.usefixtures("plugin")
async def test_pods_outlive_a_restart_of_containerd_and_the_plugin_finds_them_again(
    runtime: ContainerdRuntime, hooks: Hooks
) -> None:
    sandbox = await run_pod(runtime)
    container = await runtime.create_container(sandbox, ContainerSpec("main"))
    first = runtime.pid
    await runtime.restart()
    assert runtime.pid not in {0, first}
    wait_until(lambda: bool(hooks.pods_at_start), "synchronized with the pod")
    assert [(pod.id, pod.netns_path, pod.running) for pod in hooks.pods_at_start] == [
        (sandbox.id, sandbox.netns_path, True)
    ]
    assert (await runtime.exec_in_container(container, ["true"])).exit_code == 0


@in_private_node
async def test_stop_leaves_nothing_after_containerd_was_killed(idle_runtime: ContainerdRuntime) -> None:
    before = read_node_state(idle_runtime._layout.cgroup)
    await start_or_skip(idle_runtime)
    sandbox = await run_pod(idle_runtime)
    await idle_runtime.create_container(sandbox, ContainerSpec("main"))
    os.kill(idle_runtime.pid, signal.SIGKILL)
    await idle_runtime.stop()
    await idle_runtime.stop()
    cgroup = idle_runtime._layout.cgroup
    wait_until(lambda: read_node_state(cgroup).processes == before.processes, "all processes are gone")
    assert read_node_state(cgroup).mounts == before.mounts
    assert read_node_state(cgroup).cgroups == before.cgroups


@in_private_node
async def test_a_failed_start_leaves_nothing_and_says_why(toolchain: Toolchain, folder: Path) -> None:
    (folder / "bin").symlink_to(toolchain.bin_dir)
    (folder / "images.tar").write_bytes(b"no archive")
    broken = dataclasses.replace(toolchain, folder=folder)
    runtime = ContainerdRuntime(broken, folder / "ctd", folder / "nri.sock", folder / "cdi")
    before = read_node_state(runtime._layout.cgroup)
    with pytest.raises(RuntimeFailure, match="images import"):
        await start_or_skip(runtime)
    assert_left_as_found(runtime, before)


async def test_it_refuses_to_run_outside_private_namespaces(tmp_path: Path) -> None:
    if read_inode("/proc/self/ns/pid") != 0xEFFFFFFC:
        pytest.skip("this whole machine is in a pid namespace already")
    nowhere = Toolchain(tmp_path, "1.7.24", {})
    runtime = ContainerdRuntime(nowhere, tmp_path, Path("/run/n.sock"), tmp_path)
    with pytest.raises(ContainerdUnavailable, match=r"Not(Root|Isolated)"):
        await runtime.start()
