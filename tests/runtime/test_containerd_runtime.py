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
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from dranet.driver.start_gate import StartGate
from dranet.model.claim import ContainerAdjustment, Mount
from dranet.runtime.containers import CdiDevice, CdiSpecs
from dranet.runtime.nri import NriPlugin
from testbed.containerd import node as containerd_node
from testbed.containerd.cri import CriClient
from testbed.containerd.fetch import ContainerdUnavailable, Toolchain
from testbed.containerd.runtime import ContainerdRuntime
from testbed.pb import cri_pb2
from testbed.runtime.contract import (
    ContainerSpec,
    PodRuntime,
    RunningSandbox,
    RuntimeFailure,
    SandboxSpec,
)
from tests.runtime.private_node import in_private_node
from tests.runtime.stories import NULL, Hooks
from tests.support.waiting import wait_until

pytestmark = pytest.mark.runtime

OWN_NETNS = "/proc/self/ns/net"


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
        read_mounts_of_the_tree(),
        frozenset(re.findall(r"^ *(\S+):", net, re.MULTILINE)),
        # Others come and go meanwhile, which glob() does not bear.
        frozenset(Path(path, cgroup) for path, names, _ in os.walk("/sys/fs/cgroup") if cgroup in names),
    )


def read_mounts_of_the_tree() -> tuple[containerd_node.Mount, ...]:
    """Those on its own ``/run``, and whatever was mounted later. The folder that it hides has the network
    namespaces of the machine's other tests, which end whenever these do."""
    mounts = containerd_node.read_mounts()
    return mounts[max(number for number, mount in enumerate(mounts) if mount.target == "/run") :]


def read_inode(path: str) -> int:
    return Path(path).stat().st_ino


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
    runtime: ContainerdRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine may let us look into it before it has ended; here the look waits for the end."""
    look = CriClient.exec_sync

    async def look_late(
        client: CriClient, container_id: str, command: Sequence[str]
    ) -> cri_pb2.ExecSyncResponse:
        await runtime._wait_exit_code(container_id)
        return await look(client, container_id, command)

    monkeypatch.setattr(CriClient, "exec_sync", look_late)
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
async def test_a_sandbox_that_replaces_another_finds_the_gate_shut(
    runtime: ContainerdRuntime, cdi: CdiSpecs, folder: Path
) -> None:
    """The driver's own gate, and nobody there to shut it: the link dangles with the end of the first."""
    gate = StartGate(folder)
    cdi.write("c1", [CdiDevice("nic0", mounts=(gate.mount_for("c1"),))])
    spec = ContainerSpec("main", cdi_devices=(cdi.device_id("c1", "nic0"),))
    first = await run_pod(runtime)
    gate.note_attached("c1", first.netns_path)
    gate.open("c1", first.netns_path)
    await runtime.create_container(first, spec)
    await runtime.stop_sandbox(first.id)
    await runtime.remove_sandbox(first.id)
    second = await run_pod(runtime)
    with pytest.raises(RuntimeFailure, match=gate.mount_for("c1").source):
        await runtime.create_container(second, spec)
    gate.note_attached("c1", second.netns_path)
    gate.open("c1", second.netns_path)
    await runtime.create_container(second, spec)


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
async def test_stop_leaves_nothing_after_containerd_was_killed(idle_runtime: ContainerdRuntime) -> None:
    before = read_node_state(idle_runtime._layout.cgroup)
    await start_or_skip(idle_runtime)
    sandbox = await run_pod(idle_runtime)
    await idle_runtime.create_container(sandbox, ContainerSpec("main"))
    os.kill(idle_runtime.pid, signal.SIGKILL)
    await idle_runtime.stop()
    await idle_runtime.stop()
    assert_left_as_found(idle_runtime, before)


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
