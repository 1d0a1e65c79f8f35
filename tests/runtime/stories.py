"""Stories of a runtime and our plugin, told the same on the stand-in and on each real containerd.

What a story finds out holds for all of them: where one differs, the stand-in is wrong and is mended. Whoever
tells a story brings the runtime, and says whether it plays or is a containerd 1.7.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from dranet.errors import DeviceError
from dranet.model.claim import Container, ContainerAdjustment, Mount, PodSandbox
from dranet.model.facts import CharDevice
from dranet.runtime.containers import CdiDevice, CdiSpecs
from dranet.runtime.nri import NriPlugin
from dranet.wire import MAX_SEND_BYTES
from testbed.runtime.contract import (
    ContainerSpec,
    RestartableRuntime,
    RunningSandbox,
    RuntimeFailure,
    SandboxSpec,
)
from tests.support.waiting import until

SECONDS = 20.0
NULL = CharDevice("/dev/infiniband/uverbs7", 1, 3)
"""A name no host has, with the numbers of the null device: it can be opened everywhere."""
POD = SandboxSpec("default", "trainer", "uid-of-trainer", annotations={"a": "b"})
MAIN = ContainerSpec("main")
RUNTIME_GIVES_UP = 2.0
SIZE = 300_000
"""Of the annotations of one pod, in bytes; sixteen of them are more than 4 MiB, and eight are less."""


class Hooks:
    """Notes what the runtime says; a test says how to answer."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, PodSandbox]] = []
        self.lists: list[tuple[PodSandbox, ...]] = []
        self.containers: tuple[Container, ...] = ()
        self.shown: list[Container] = []
        self.losses: list[str] = []
        self.fails: dict[str, str] = {}
        self.adjustment = ContainerAdjustment()
        self.before: Callable[[str], None] = lambda _: None
        self.runtime = ""

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def pod_at(self, name: str) -> PodSandbox:
        return next(pod for told, pod in self.calls if told == name)

    def _note(self, name: str, pod: PodSandbox) -> bool:
        self.calls.append((name, pod))
        self.before(name)
        if name in self.fails:
            raise DeviceError(self.fails[name])
        return True

    def connected(
        self, runtime_name: str, runtime_version: str, request_timeout_seconds: float | None
    ) -> None:
        del request_timeout_seconds
        self.runtime = f"{runtime_name} {runtime_version}"

    def disconnected(self, reason: str) -> None:
        self.losses.append(reason)

    def synchronize(self, pods: Sequence[PodSandbox], containers: Sequence[Container]) -> None:
        self.containers = tuple(containers)
        self.lists.append(tuple(pods))

    def run_pod_sandbox(self, pod: PodSandbox) -> bool:
        return self._note("run", pod)

    def stop_pod_sandbox(self, pod: PodSandbox) -> bool:
        return self._note("stop", pod)

    def remove_pod_sandbox(self, pod: PodSandbox) -> bool:
        return self._note("remove", pod)

    def create_container(self, pod: PodSandbox, container: Container) -> ContainerAdjustment:
        self.shown.append(container)
        self._note("create", pod)
        return self.adjustment

    def start_container(self, pod: PodSandbox, container: Container) -> bool:
        del container
        return self._note("start", pod)


@dataclass
class Stage:
    """A runtime with one plugin connected."""

    runtime: RestartableRuntime
    folder: Path
    is_old: bool
    """As containerd 1.7."""
    hooks: Hooks = field(default_factory=Hooks)

    @property
    def ours(self) -> Path:
        """What the plugin knows for a mount of its own."""
        return self.folder / "ours"

    @property
    def cdi(self) -> CdiSpecs:
        return CdiSpecs(self.folder / "cdi", "dra.net")

    @contextmanager
    def plugin(self, hooks: Hooks) -> Iterator[NriPlugin]:
        made = NriPlugin(
            self.folder / "nri.sock",
            "dra.net",
            "10",
            hooks,
            is_our_mount=lambda source: source == str(self.ours),
        )
        made.start()
        assert made.wait_ready(SECONDS), made.last_failure
        try:
            yield made
        finally:
            made.stop()

    def gated(self, ready: Path) -> ContainerSpec:
        """A container that cannot start before this file exists."""
        self.cdi.write("c1", [CdiDevice("nic0", mounts=(Mount(str(ready), "/run/dranet/ready"),))])
        return ContainerSpec("main", cdi_devices=(self.cdi.device_id("c1", "nic0"),))

    async def end(self, sandbox: RunningSandbox) -> None:
        await self.runtime.stop_sandbox(sandbox.id)
        await self.runtime.remove_sandbox(sandbox.id)


Story = Callable[[Stage], Awaitable[None]]


@asynccontextmanager
async def a_stage(runtime: RestartableRuntime, folder: Path, *, is_old: bool) -> AsyncIterator[Stage]:
    stage = Stage(runtime, folder, is_old)
    await runtime.start()
    try:
        with stage.plugin(stage.hooks):
            yield stage
    finally:
        await runtime.stop()


def exists(path: str) -> bool:
    return Path(path).exists()


async def a_pods_life_is_told(stage: Stage) -> None:
    assert stage.hooks.runtime.startswith(stage.runtime.name)
    sandbox = await stage.runtime.run_sandbox(POD)
    await stage.runtime.create_container(sandbox, MAIN)
    await stage.end(sandbox)
    hooks = stage.hooks
    assert hooks.names == ["run", "create", "start", "stop", "remove"]
    assert {pod.id for _, pod in hooks.calls} == {sandbox.id}
    assert {(pod.namespace, pod.name, pod.uid) for _, pod in hooks.calls} == {
        ("default", "trainer", "uid-of-trainer")
    }
    assert hooks.pod_at("run").netns_path == hooks.pod_at("create").netns_path == sandbox.netns_path
    assert hooks.pod_at("run").pid > 0
    assert hooks.pod_at("run").annotations["a"] == "b"
    assert hooks.pod_at("stop").netns_path == ("" if stage.is_old else sandbox.netns_path)
    assert hooks.pod_at("remove").netns_path == ""


async def the_namespace_is_there_when_its_pod_stops_and_gone_when_it_is_removed(stage: Stage) -> None:
    seen: dict[str, bool] = {}
    sandbox = await stage.runtime.run_sandbox(POD)
    stage.hooks.before = lambda name: seen.update({name: exists(sandbox.netns_path)})
    await stage.end(sandbox)
    assert seen == {"stop": True, "remove": False}


async def what_we_add_is_in_the_container(stage: Stage) -> None:
    source = stage.folder / "nccl.conf"
    source.write_text("NCCL_DEBUG=INFO\n")
    stage.hooks.adjustment = ContainerAdjustment(
        devices=(NULL,),
        env=(("NCCL_CONF_FILE", "/etc/nccl.conf"),),
        mounts=(Mount(str(source), "/etc/nccl.conf"),),
    )
    container = await stage.runtime.create_container(await stage.runtime.run_sandbox(POD), MAIN)
    assert container.devices[NULL.path] == "1:3"
    assert container.env["NCCL_CONF_FILE"] == "/etc/nccl.conf"
    assert container.mounts["/etc/nccl.conf"] == str(source)


async def an_answer_longer_than_a_frame_arrives_whole(stage: Stage) -> None:
    """More than 4096 bytes in one frame would end the connection, and the container would start without."""
    stage.hooks.adjustment = ContainerAdjustment(env=(("TOPOLOGY", "x" * 100_000),))
    container = await stage.runtime.create_container(await stage.runtime.run_sandbox(POD), MAIN)
    assert container.env["TOPOLOGY"] == "x" * 100_000
    assert not stage.hooks.losses


async def an_answer_over_the_limit_fails_its_container_and_no_other(stage: Stage) -> None:
    sandbox = await stage.runtime.run_sandbox(POD)
    stage.hooks.adjustment = ContainerAdjustment(env=(("TOPOLOGY", "x" * MAX_SEND_BYTES),))
    with pytest.raises(RuntimeFailure, match=f"over the limit of {MAX_SEND_BYTES}"):
        await stage.runtime.create_container(sandbox, MAIN)
    stage.hooks.adjustment = ContainerAdjustment()
    await stage.runtime.create_container(sandbox, MAIN)
    assert not stage.hooks.losses


async def a_container_does_not_start_before_its_ready_file_exists(stage: Stage) -> None:
    ready = stage.folder / "ready"
    spec = stage.gated(ready)
    sandbox = await stage.runtime.run_sandbox(POD)
    with pytest.raises(RuntimeFailure, match=str(ready)):
        await stage.runtime.create_container(sandbox, spec)
    ready.touch()
    container = await stage.runtime.create_container(sandbox, spec)
    assert container.mounts["/run/dranet/ready"] == str(ready)
    assert str(ready) in {mount.source for mount in stage.hooks.shown[-1].mounts}


async def an_unknown_cdi_device_fails_the_container_before_any_hook(stage: Stage) -> None:
    sandbox = await stage.runtime.run_sandbox(POD)
    with pytest.raises(RuntimeFailure, match=r"dra\.net/claim=c1-nic9"):
        await stage.runtime.create_container(
            sandbox, ContainerSpec("main", cdi_devices=(stage.cdi.device_id("c1", "nic9"),))
        )
    assert stage.hooks.names == ["run"]


async def a_pod_that_we_refuse_fails_with_our_text_and_is_taken_down(stage: Stage) -> None:
    stage.hooks.fails["run"] = "cannot move eth1: no such device"
    with pytest.raises(RuntimeFailure, match="cannot move eth1: no such device"):
        await stage.runtime.run_sandbox(POD)
    await until(lambda: len(stage.hooks.calls) == 3, "the pod was taken down")
    assert stage.hooks.names == ["run", "stop", "remove"]
    stage.hooks.fails.clear()
    assert (await stage.runtime.run_sandbox(POD)).netns_path
    assert not stage.hooks.losses


async def a_container_that_we_refuse_fails_with_our_text_and_its_pod_lives(stage: Stage) -> None:
    sandbox = await stage.runtime.run_sandbox(POD)
    stage.hooks.fails["create"] = "the pod lacks net1"
    with pytest.raises(RuntimeFailure, match="the pod lacks net1"):
        await stage.runtime.create_container(sandbox, MAIN)
    stage.hooks.fails.clear()
    await stage.runtime.create_container(sandbox, MAIN)
    assert stage.hooks.names == ["run", "create", "create", "start"]


async def an_error_of_ours_at_the_end_does_not_keep_the_pod(stage: Stage) -> None:
    stage.hooks.fails = {"stop": "still busy", "remove": "still busy"}
    sandbox = await stage.runtime.run_sandbox(POD)
    await stage.end(sandbox)
    assert stage.hooks.names == ["run", "stop", "remove"]
    assert not exists(sandbox.netns_path)


async def a_late_hook_lets_the_pod_run_and_its_container_is_held_back(stage: Stage) -> None:
    """The runtime fails open after two seconds: the reason for the ready file."""
    spec, may_go_on = stage.gated(stage.folder / "ready"), threading.Event()
    stage.hooks.before = lambda name: None if name != "run" else assert_set(may_go_on)
    begin = time.monotonic()
    sandbox = await stage.runtime.run_sandbox(POD)
    assert time.monotonic() - begin > 0.95 * RUNTIME_GIVES_UP
    with pytest.raises(RuntimeFailure, match=str(stage.folder / "ready")):
        await stage.runtime.create_container(sandbox, spec)
    assert stage.hooks.names == ["run"], "nobody was asked about the container"
    may_go_on.set()
    await until(lambda: len(stage.hooks.lists) == 2, "the plugin is back")
    assert [(pod.id, pod.running) for pod in stage.hooks.lists[1]] == [(sandbox.id, True)]
    assert len(stage.hooks.losses) == 1


def assert_set(event: threading.Event) -> None:
    assert event.wait(SECONDS)


async def pods_outlive_a_restart_and_their_end_is_not_told(stage: Stage) -> None:
    await _outlives(stage, stage.runtime.restart)


async def pods_outlive_a_crash_and_their_end_is_not_told(stage: Stage) -> None:
    await _outlives(stage, stage.runtime.crash)


async def _outlives(stage: Stage, restart: Callable[[], Awaitable[None]]) -> None:
    runtime, hooks = stage.runtime, stage.hooks
    stage.ours.touch()
    stage.hooks.adjustment = ContainerAdjustment(mounts=(Mount(str(stage.ours), "/ours"),))
    sandbox = await runtime.run_sandbox(POD)
    container = await runtime.create_container(sandbox, MAIN)
    await restart()
    await until(lambda: len(hooks.lists) == 2, "synchronized anew")
    assert [(pod.id, pod.uid, pod.netns_path, pod.running) for pod in hooks.lists[1]] == [
        (sandbox.id, POD.uid, sandbox.netns_path, True)
    ]
    assert [
        (each.id, each.pod_sandbox_id, each.name, each.running, [mount.destination for mount in each.mounts])
        for each in hooks.containers
    ] == [(container.id, sandbox.id, "main", True, ["/ours"])]
    assert (await runtime.exec_in_container(container, ["true"])).exit_code == 0
    await runtime.create_container(sandbox, ContainerSpec("second"))
    await stage.end(sandbox)
    later = await runtime.run_sandbox(replace(POD, name="later", uid="uid-of-later"))
    await stage.end(later)
    assert hooks.names == ["run", *["create", "start"] * 2, "run", "stop", "remove"], (
        "nothing of the old pod's end"
    )


async def a_plugin_that_starts_anew_learns_of_living_pods_and_misses_no_end(stage: Stage) -> None:
    first = await stage.runtime.run_sandbox(POD)
    second = await stage.runtime.run_sandbox(replace(POD, name="other", uid="uid-of-other"))
    await stage.runtime.stop_sandbox(second.id)
    again = Hooks()
    with stage.plugin(again):
        assert {pod.id: pod.running for pod in again.lists[0]} == {first.id: True, second.id: False}
        await stage.end(first)
        await stage.runtime.remove_sandbox(second.id)
    assert again.names == ["stop", "remove", "remove"]


async def a_pod_gets_a_new_sandbox_beside_its_stopped_one(stage: Stage) -> None:
    first = await stage.runtime.run_sandbox(POD)
    await stage.runtime.stop_sandbox(first.id)
    second = await stage.runtime.run_sandbox(replace(POD, attempt=1))
    assert second.id != first.id
    assert second.netns_path != first.netns_path
    assert [(name, pod.id, pod.uid) for name, pod in stage.hooks.calls] == [
        ("run", first.id, POD.uid),
        ("stop", first.id, POD.uid),
        ("run", second.id, POD.uid),
    ]
    again = Hooks()
    with stage.plugin(again):
        assert {pod.id: pod.running for pod in again.lists[0]} == {first.id: False, second.id: True}
    await stage.runtime.remove_sandbox(first.id)
    assert stage.hooks.calls[-1][0] == "remove"
    assert stage.hooks.calls[-1][1].id == first.id


async def two_copies_of_us_are_both_told(stage: Stage) -> None:
    other = Hooks()
    with stage.plugin(other):
        sandbox = await stage.runtime.run_sandbox(POD)
        await stage.runtime.create_container(sandbox, MAIN)
        await stage.end(sandbox)
    assert stage.hooks.names == other.names == ["run", "create", "start", "stop", "remove"]


async def of_many_pods_at_once_each_is_told_once_and_one_at_a_time(stage: Stage) -> None:
    at_work, most = [0], [0]

    def work(_: str) -> None:
        at_work[0] += 1
        most[0] = max(most[0], at_work[0])
        threading.Event().wait(0.005)  # longer than it takes another thread to have its turn
        at_work[0] -= 1

    stage.hooks.before = work
    pods = [replace(POD, name=f"p{number}", uid=f"uid-{number}") for number in range(12)]
    sandboxes = await asyncio.gather(*map(stage.runtime.run_sandbox, pods))
    await asyncio.gather(*map(stage.end, sandboxes))
    ids = sorted(sandbox.id for sandbox in sandboxes)
    for name in ("run", "stop", "remove"):
        assert sorted(pod.id for told, pod in stage.hooks.calls if told == name) == ids
    assert most == [1]
    assert not stage.hooks.losses


async def more_pods_than_fit_a_message_are_all_synchronized(stage: Stage) -> None:
    """A 1.7 sends them in one message of more than 4 MiB; a later one in parts, of eight entries at least."""
    notes = {"note": "x" * SIZE}
    pods = [replace(POD, name=f"p{number}", uid=f"uid-{number}", annotations=notes) for number in range(16)]
    sandboxes = await asyncio.gather(*map(stage.runtime.run_sandbox, pods))
    again = Hooks()
    with stage.plugin(again):
        (told,) = again.lists
        assert {pod.id for pod in told} == {sandbox.id for sandbox in sandboxes}
        assert {len(pod.annotations["note"]) for pod in told} == {SIZE}
    assert not again.losses


EVERYWHERE: tuple[Story, ...] = (
    a_pods_life_is_told,
    what_we_add_is_in_the_container,
    an_answer_longer_than_a_frame_arrives_whole,
    pods_outlive_a_restart_and_their_end_is_not_told,
    more_pods_than_fit_a_message_are_all_synchronized,
    a_pod_gets_a_new_sandbox_beside_its_stopped_one,
)
"""Those that runtimes differ in, or that go wrong when they do."""

STORIES: tuple[Story, ...] = (
    *EVERYWHERE,
    the_namespace_is_there_when_its_pod_stops_and_gone_when_it_is_removed,
    an_answer_over_the_limit_fails_its_container_and_no_other,
    a_container_does_not_start_before_its_ready_file_exists,
    an_unknown_cdi_device_fails_the_container_before_any_hook,
    a_pod_that_we_refuse_fails_with_our_text_and_is_taken_down,
    a_container_that_we_refuse_fails_with_our_text_and_its_pod_lives,
    an_error_of_ours_at_the_end_does_not_keep_the_pod,
    a_late_hook_lets_the_pod_run_and_its_container_is_held_back,
    pods_outlive_a_crash_and_their_end_is_not_told,
    a_plugin_that_starts_anew_learns_of_living_pods_and_misses_no_end,
    two_copies_of_us_are_both_told,
    of_many_pods_at_once_each_is_told_once_and_one_at_a_time,
)
