"""The stand-in runtime whole: real network namespaces, real sockets, the real plugin and real CDI files."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from dranet.errors import DeviceError
from dranet.model.claim import Container, ContainerAdjustment, Mount, PodSandbox
from dranet.model.facts import CharDevice
from dranet.runtime.containers import CdiDevice, CdiSpecs
from dranet.runtime.nri import NriPlugin
from testbed.runtime.contract import ContainerSpec, RuntimeFailure, SandboxSpec
from testbed.runtime.pod_netns import create_netns, held_netns, remove_netns
from testbed.runtime.standin import EventForm, NriCapabilities, StandInRuntime

pytestmark = pytest.mark.kernel

SECONDS = 10.0
WEB = SandboxSpec("shop", "web", "uid-web", annotations={"team": "a"})
CLAIM = "0b51c6a2-7d3f-4c19-9e5c-000000000001"


def inode(path: str) -> int:
    """Which namespace it is."""
    return Path(path).stat().st_ino


def exists(path: str) -> bool:
    return Path(path).exists()


def left_over(folder: Path) -> list[str]:
    """Files and mounts of namespaces."""
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return [str(path) for path in folder.glob("netns/*")] + [line for line in mounts if str(folder) in line]


class Hooks:
    """Notes what each hook saw, and whether the pod's namespace was there to be opened."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.pods: dict[str, PodSandbox] = {}
        self.containers: tuple[Container, ...] = ()
        self.inodes: dict[str, int] = {}
        self.adjustment = ContainerAdjustment()
        self.error: DeviceError | None = None

    def _note(self, method: str, pod: PodSandbox) -> bool:
        self.calls.append(method)
        self.pods[method] = pod
        if pod.netns_path:
            self.inodes[method] = inode(pod.netns_path)
        return True

    def connected(
        self, runtime_name: str, runtime_version: str, request_timeout_seconds: float | None
    ) -> None: ...

    def disconnected(self, reason: str) -> None: ...

    def synchronize(self, pods: Sequence[PodSandbox], containers: Sequence[Container]) -> None:
        self.containers = tuple(containers)
        for pod in pods:
            self._note("synchronize", pod)

    def run_pod_sandbox(self, pod: PodSandbox) -> bool:
        self._note("run", pod)
        if self.error is not None:
            raise self.error
        return True

    def stop_pod_sandbox(self, pod: PodSandbox) -> bool:
        return self._note("stop", pod)

    def remove_pod_sandbox(self, pod: PodSandbox) -> bool:
        return self._note("remove", pod)

    def create_container(self, pod: PodSandbox, container: Container) -> ContainerAdjustment:
        self._note(f"create {container.name}", pod)
        return self.adjustment

    def start_container(self, pod: PodSandbox, container: Container) -> bool:
        return self._note(f"start {container.name}", pod)


@pytest.fixture
def hooks() -> Hooks:
    return Hooks()


@contextmanager
def connected_plugin(folder: Path, hooks: Hooks, name: str = "dranet") -> Iterator[NriPlugin]:
    plugin = NriPlugin(folder / "nri.sock", name, "10", hooks, wait=lambda stopping, _: stopping.wait(0.001))
    plugin.start()
    yield plugin
    plugin.stop()


@asynccontextmanager
async def running(runtime: StandInRuntime, folder: Path) -> AsyncIterator[StandInRuntime]:
    """Whatever the test does, nothing of the runtime is left on the machine."""
    await runtime.start()
    try:
        yield runtime
    finally:
        await runtime.stop()
        assert left_over(folder) == []


@pytest.fixture
async def runtime(tmp_path: Path, hooks: Hooks) -> AsyncIterator[StandInRuntime]:
    """A runtime with one plugin."""
    made = StandInRuntime(tmp_path / "nri.sock", tmp_path / "cdi", tmp_path / "netns")
    async with running(made, tmp_path):
        with connected_plugin(tmp_path, hooks):
            await made.wait_plugins()
            yield made


@pytest.fixture
def specs(tmp_path: Path) -> CdiSpecs:
    return CdiSpecs(tmp_path / "cdi", "dra.net")


async def test_a_pod_has_a_namespace_of_its_own_that_the_plugin_can_open(
    runtime: StandInRuntime, hooks: Hooks
) -> None:
    sandbox = await runtime.run_sandbox(WEB)
    told = hooks.pods["run"]
    assert (told.id, told.name, told.namespace, told.uid) == (sandbox.id, "web", "shop", "uid-web")
    assert told.netns_path == sandbox.netns_path
    assert told.annotations["team"] == "a"
    assert hooks.inodes["run"] != inode("/proc/self/ns/net")
    assert inode(f"/proc/{told.pid}/ns/net") == hooks.inodes["run"]


async def test_a_command_runs_in_the_pods_namespace_with_its_environment(runtime: StandInRuntime) -> None:
    sandbox = await runtime.run_sandbox(WEB)
    container = await runtime.create_container(sandbox, ContainerSpec("main", env=(("GREETING", "hello"),)))
    seen = await runtime.exec_in_container(
        container, ["sh", "-c", "readlink /proc/self/ns/net; echo $GREETING"]
    )
    assert seen.exit_code == 0
    assert seen.stdout == f"net:[{inode(sandbox.netns_path)}]\nhello\n"
    links = await runtime.exec_in_container(container, ["cat", "/proc/self/net/dev"])
    assert [line.split(":")[0].strip() for line in links.stdout.splitlines()[2:]] == ["lo"]
    ping = [sys.executable, "-c", "import socket; s = socket.create_server(('127.0.0.1', 0)); print('up')"]
    assert (await runtime.exec_in_container(container, ping)).stdout == "up\n"


async def test_a_commands_failure_is_its_exit_code_and_text(runtime: StandInRuntime) -> None:
    container = await runtime.create_container(await runtime.run_sandbox(WEB), ContainerSpec("main"))
    failed = await runtime.exec_in_container(container, ["sh", "-c", "echo no >&2; exit 3"])
    assert (failed.exit_code, failed.stdout, failed.stderr) == (3, "", "no\n")
    assert (await runtime.exec_in_container(container, ["no-such-command"])).exit_code == 127


async def test_a_cancelled_command_is_ended(runtime: StandInRuntime, tmp_path: Path) -> None:
    container = await runtime.create_container(await runtime.run_sandbox(WEB), ContainerSpec("main"))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = f"echo $$ >{fifo}; exec cat {fifo}"
    task = asyncio.create_task(runtime.exec_in_container(container, ["sh", "-c", script]))
    pid = int(await asyncio.to_thread(fifo.read_text))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not exists(f"/proc/{pid}")


async def test_two_pods_do_not_share_a_namespace(runtime: StandInRuntime) -> None:
    one, other = await asyncio.gather(runtime.run_sandbox(WEB), runtime.run_sandbox(WEB))
    assert inode(one.netns_path) != inode(other.netns_path)


async def test_a_host_network_pod_has_no_namespace(runtime: StandInRuntime, hooks: Hooks) -> None:
    sandbox = await runtime.run_sandbox(SandboxSpec("shop", "agent", "uid-agent", host_network=True))
    assert (sandbox.netns_path, hooks.pods["run"].netns_path) == ("", "")
    container = await runtime.create_container(sandbox, ContainerSpec("main"))
    seen = await runtime.exec_in_container(container, ["readlink", "/proc/self/ns/net"])
    assert seen.stdout == f"net:[{inode('/proc/self/ns/net')}]\n"
    await runtime.stop_sandbox(sandbox.id)
    assert hooks.calls[-1] == "stop"


async def test_a_container_gets_what_the_plugin_and_cdi_add(
    runtime: StandInRuntime, hooks: Hooks, specs: CdiSpecs, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    ready.touch()
    nic = CdiDevice(
        "eth1",
        char_devices=(CharDevice("/dev/nvidia0", 195, 0),),
        mounts=(Mount(str(ready), "/run/ready"),),
        env=(("FROM", "cdi"), ("ONLY", "cdi")),
    )
    specs.write(CLAIM, [nic])
    hooks.adjustment = ContainerAdjustment(
        devices=(CharDevice("/dev/infiniband/uverbs0", 231, 192),), env=(("FROM", "nri"),)
    )
    sandbox = await runtime.run_sandbox(WEB)
    spec = ContainerSpec("main", cdi_devices=(specs.device_id(CLAIM, "eth1"),), env=(("MINE", "yes"),))
    container = await runtime.create_container(sandbox, spec)
    assert container.devices == {"/dev/nvidia0": "195:0", "/dev/infiniband/uverbs0": "231:192"}
    assert container.mounts == {"/run/ready": str(ready)}
    assert container.env == {"MINE": "yes", "FROM": "nri", "ONLY": "cdi"}


async def test_a_container_that_names_an_unknown_cdi_device_is_refused_before_any_hook(
    runtime: StandInRuntime, hooks: Hooks, specs: CdiSpecs
) -> None:
    sandbox = await runtime.run_sandbox(WEB)
    spec = ContainerSpec("main", cdi_devices=(specs.device_id(CLAIM, "eth1"),))
    with pytest.raises(RuntimeFailure, match=f"unresolvable CDI devices dra.net/claim={CLAIM}-eth1"):
        await runtime.create_container(sandbox, spec)
    assert hooks.calls == ["run"]


async def test_a_container_whose_mount_source_is_missing_does_not_start(
    runtime: StandInRuntime, hooks: Hooks, specs: CdiSpecs, tmp_path: Path
) -> None:
    """The gate of a claim whose attach was not verified."""
    specs.write(CLAIM, [CdiDevice("eth1", mounts=(Mount(str(tmp_path / "ready"), "/run/ready"),))])
    sandbox = await runtime.run_sandbox(WEB)
    spec = ContainerSpec("main", cdi_devices=(specs.device_id(CLAIM, "eth1"),))
    with pytest.raises(RuntimeFailure, match="no such file or directory"):
        await runtime.create_container(sandbox, spec)
    assert hooks.calls == ["run", "create main"]


async def test_two_plugins_that_set_the_same_item_fail_the_container(
    runtime: StandInRuntime, hooks: Hooks, tmp_path: Path
) -> None:
    hooks.adjustment = ContainerAdjustment(env=(("A", "1"),))
    other = Hooks()
    other.adjustment = ContainerAdjustment(env=(("A", "2"),))
    with connected_plugin(tmp_path, other, "other"):
        await runtime.wait_plugins(2)
        sandbox = await runtime.run_sandbox(WEB)
        with pytest.raises(RuntimeFailure, match='both tried to set env "A"'):
            await runtime.create_container(sandbox, ContainerSpec("main"))


async def test_a_refused_pod_leaves_nothing(runtime: StandInRuntime, hooks: Hooks, tmp_path: Path) -> None:
    hooks.error = DeviceError("NIC eth1 is busy")
    with pytest.raises(RuntimeFailure, match="NIC eth1 is busy"):
        await runtime.run_sandbox(WEB)
    assert hooks.calls == ["run", "stop", "remove"]
    assert left_over(tmp_path) == []


async def test_the_namespace_is_there_at_stop_and_gone_at_remove(
    runtime: StandInRuntime, hooks: Hooks
) -> None:
    sandbox = await runtime.run_sandbox(WEB)
    container = await runtime.create_container(sandbox, ContainerSpec("main"))
    await runtime.stop_sandbox(sandbox.id)
    assert hooks.inodes["stop"] == hooks.inodes["run"]
    assert not exists(sandbox.netns_path)
    assert not exists(f"/proc/{hooks.pods['run'].pid}")
    for refused in (
        runtime.exec_in_container(container, ["true"]),
        runtime.create_container(sandbox, ContainerSpec("more")),
    ):
        with pytest.raises(RuntimeFailure, match="not running"):
            await refused
    await runtime.remove_sandbox(sandbox.id)
    assert hooks.pods["remove"].netns_path == ""
    assert hooks.calls == ["run", "create main", "start main", "stop", "remove"]


async def test_stopping_and_removing_are_repeatable(runtime: StandInRuntime, hooks: Hooks) -> None:
    sandbox = await runtime.run_sandbox(WEB)
    await asyncio.gather(runtime.stop_sandbox(sandbox.id), runtime.stop_sandbox(sandbox.id))
    await runtime.remove_sandbox(sandbox.id)
    await runtime.remove_sandbox(sandbox.id)
    await runtime.stop_sandbox("unknown")
    assert hooks.calls == ["run", "stop", "remove"]


async def test_somebody_may_act_before_the_namespace_ends_which_nobody_else_finds_by_then(
    tmp_path: Path, hooks: Hooks
) -> None:
    seen: list[tuple[list[str], int, list[Path]]] = []

    async def rescue(netns_path: str) -> None:
        seen.append((list(hooks.calls), inode(netns_path), list((tmp_path / "netns").iterdir())))

    runtime = StandInRuntime(
        tmp_path / "nri.sock", tmp_path / "cdi", tmp_path / "netns", before_netns_ends=rescue
    )
    async with running(runtime, tmp_path):
        with connected_plugin(tmp_path, hooks):
            await runtime.wait_plugins()
            sandbox = await runtime.run_sandbox(WEB)
            namespace = inode(sandbox.netns_path)
            await runtime.stop_sandbox(sandbox.id)
    assert seen == [(["run", "stop"], namespace, [])]


async def test_the_runtimes_restart_keeps_pods_but_loses_their_events(
    runtime: StandInRuntime, hooks: Hooks
) -> None:
    sandbox = await runtime.run_sandbox(WEB)
    await runtime.restart()
    await runtime.wait_plugins()
    assert hooks.inodes["synchronize"] == hooks.inodes["run"]
    await runtime.create_container(sandbox, ContainerSpec("main"))
    await runtime.remove_sandbox(sandbox.id)
    assert hooks.calls == ["run", "synchronize", "create main", "start main"]


async def test_a_plugin_that_starts_anew_learns_of_living_pods_and_misses_no_end(
    runtime: StandInRuntime, tmp_path: Path
) -> None:
    sandbox = await runtime.run_sandbox(WEB)
    again = Hooks()
    with connected_plugin(tmp_path, again, "again"):
        await runtime.wait_plugins(2)
        await runtime.remove_sandbox(sandbox.id)
    assert again.calls == ["synchronize", "stop", "remove"]


async def test_it_plays_containerd_1_7_and_2_3(tmp_path: Path, hooks: Hooks) -> None:
    for number, capabilities in enumerate(
        (
            NriCapabilities(nri_version="0.6.1", stop_without_netns_path=True),
            NriCapabilities(nri_version="0.12.0", event_form=EventForm.RPC),
        )
    ):
        folder = tmp_path / str(number)
        runtime = StandInRuntime(
            folder / "nri.sock", folder / "cdi", folder / "netns", capabilities=capabilities
        )
        async with running(runtime, folder):
            with connected_plugin(folder, hooks):
                await runtime.wait_plugins()
                sandbox = await runtime.run_sandbox(WEB)
                await runtime.stop_sandbox(sandbox.id)
                assert (hooks.pods["stop"].netns_path == "") == capabilities.stop_without_netns_path
                assert await runtime.get_plugins() == ("10-dranet",)


async def test_waiting_for_a_plugin_that_does_not_come_fails(tmp_path: Path) -> None:
    runtime = StandInRuntime(tmp_path / "nri.sock", tmp_path / "cdi", tmp_path / "netns")
    async with running(runtime, tmp_path):
        with pytest.raises(RuntimeFailure, match="1 NRI plugins wanted, 0 came"):
            await runtime.wait_plugins(timeout_seconds=0.01)


async def test_it_says_what_keeps_it_from_working(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    runtime = StandInRuntime(tmp_path / "file" / "nri.sock", tmp_path / "cdi", tmp_path / "file" / "netns")
    with pytest.raises(RuntimeFailure, match="cannot listen on the NRI socket"):
        await runtime.start()
    with pytest.raises(RuntimeFailure, match="failed to create the sandbox"):
        await runtime.run_sandbox(WEB)


def test_a_namespace_can_be_made_and_removed_by_an_ordinary_user(tmp_path: Path) -> None:
    """As uid 0 of a user namespace with a mount namespace, where the demo runs without root."""
    script = (
        "from pathlib import Path; import subprocess, sys\n"
        "from testbed.runtime.pod_netns import create_netns, remove_netns\n"
        "path = Path(sys.argv[1]); create_netns(path)\n"
        "subprocess.run(['nsenter', f'--net={path}', '--', 'cat', '/proc/net/dev'], check=True)\n"
        "remove_netns(path); print(path.exists())\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "netns")]
    inside = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", *command], capture_output=True, text=True
    )
    if "unshare failed" in inside.stderr:
        pytest.skip(f"no user namespaces here: {inside.stderr.strip()}")
    assert (inside.returncode, inside.stdout.splitlines()[-1]) == (0, "False"), inside.stderr


def test_removing_a_namespace_is_repeatable_and_making_one_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "netns" / "one"
    create_netns(path)
    with pytest.raises(FileExistsError):
        create_netns(path)
    remove_netns(path)
    remove_netns(path)
    path.touch()
    remove_netns(path)  # a file that nothing is mounted on: a crash between the two steps
    assert not path.exists()


def test_a_held_namespace_is_found_when_its_name_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "cni-one"
    create_netns(path)
    number = inode(str(path))
    with held_netns(path) as held:
        remove_netns(path)
        assert held is not None
        assert inode(held) == number


def test_a_name_without_its_namespace_is_not_held(tmp_path: Path) -> None:
    """As one that was unmounted, and not removed, has it."""
    (tmp_path / "cni-left").touch()
    for name in ("cni-left", "cni-gone"):
        with held_netns(tmp_path / name) as held:
            assert held is None
