"""The driver with the rights of its DaemonSet and no others, as a container of a real containerd.

All stories that are told of the ordinary one there, and every shipped scenario.
"""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dranet.security.seccomp import SECCOMP_NAME
from testbed.cluster import RuntimeFactory
from testbed.containerd.fetch import Toolchain
from testbed.driver.pod import DriverPod, DriverRuntime, driver_in_a_pod
from testbed.driver.pod_spec import build_pod_spec, read_pod_spec
from testbed.node.iproute import read_json
from testbed.runtime.contract import RuntimeFailure
from testbed.scenario.run import run_scenario
from testbed.scenario.scenario import known_scenarios, load_scenario
from tests.runtime import fail_closed, metadata_story, workload_story
from tests.runtime.conftest import ALL_LANES
from tests.runtime.private_node import REPOSITORY, in_own_private_node
from tests.runtime.rights import (
    DHCP,
    build_manifests,
    find_what_is_let_through,
    run_udhcpd,
    without_capability,
)
from tests.runtime.test_containerd_driver import IN_CONTAINERS
from tests.support.dhcp_servers import find_busybox
from tests.support.waiting import until_in_thread
from tools.manifests import pod_security

pytestmark = pytest.mark.runtime

DAEMONSET = REPOSITORY / "deploy" / "daemonset.yaml"
CALL_AS_X32 = "import ctypes; ctypes.CDLL(None).syscall(0x40000000 + 39)"
"""getpid(2) by the numbers of an ABI that the profile does not have; i386 ends alike."""

Play = Callable[[RuntimeFactory, Path], None]


def _of_driver(story: fail_closed.Story) -> Play:
    return lambda make_runtime, folder: fail_closed.play(make_runtime, folder, story)


class _Silent:
    """A narrator that says nothing: the report has what went wrong."""

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_: None


def _of_scenario(name: str) -> Play:
    def play(make_runtime: RuntimeFactory, folder: Path) -> None:
        scenario = load_scenario(name)
        if "containerd" not in scenario.runtimes:
            pytest.skip(scenario.why_not_everywhere)
        report = asyncio.run(run_scenario(scenario, make_runtime, folder, _Silent()))
        assert report.passed, "\n".join((*(s.error for s in report.steps if s.error), report.driver_log))

    return play


async def a_nic_has_an_address_from_a_dhcp_server(pod: fail_closed.Pod) -> None:
    testbed = pod.testbed
    bridge = next(
        str(link["ifname"])
        for link in read_json("ip", "-netns", "fabric", "-json", "link", "show", "type", "bridge")
    )
    folder = testbed.places.work_dir / "dhcp"
    await asyncio.to_thread(folder.mkdir)
    server = await asyncio.to_thread(run_udhcpd, find_busybox(), folder, bridge)
    try:
        await testbed.apply(build_manifests(DHCP))
        await pod.wait_running()
        assert "inet 10.64.0.1" in await pod.run("ip", "addr", "show", "dev", "net1")
        await pod.delete()
    finally:
        server.kill()
        server.wait()


@asynccontextmanager
async def _a_hanging_process(pod: fail_closed.Pod) -> AsyncIterator[None]:
    """A pod that went while the driver was dead, all but a process in its namespace; the driver is back."""
    testbed, driver = pod.testbed, pod.testbed.driver
    assert isinstance(driver, DriverPod)
    assert isinstance(testbed.runtime, DriverRuntime)
    testbed.runtime.has_real_proc = True
    await driver.renew()
    await driver.start()
    await driver.wait_ready(fail_closed.SECONDS)
    await pod.start()
    await pod.wait_running()
    sandbox = testbed.sandbox("worker")
    assert sandbox is not None
    path = Path(sandbox.netns_path)
    hanging = hang_in(path)
    try:
        await driver.kill()
        await testbed.delete_pod("worker")
        await until_in_thread(lambda: not path.exists(), "the path of the namespace is gone")
        await driver.start()
        yield
    finally:
        hanging.kill()
        hanging.wait()


def hang_in(netns_path: Path) -> subprocess.Popen[bytes]:
    """A process of the pod that nobody ends."""
    return subprocess.Popen(["nsenter", f"--net={netns_path}", "sleep", "infinity"])


async def a_nic_comes_back_from_a_namespace_that_only_a_process_keeps(pod: fail_closed.Pod) -> None:
    async with _a_hanging_process(pod):
        async with asyncio.timeout(fail_closed.SECONDS):
            await pod.testbed.kubelet.wait_gone(pod.uid)
        await until_in_thread(lambda: pod.testbed.node.snapshot() == pod.before, "the node is as it was")
        log = pod.testbed.driver.log_file.read_text()
        assert "a namespace whose path is gone lives on: /host/proc/" in log


async def without_sys_ptrace_such_a_nic_stays_away(pod: fail_closed.Pod) -> None:
    assert isinstance(pod.testbed.runtime, DriverRuntime)
    (container,) = pod.testbed.runtime.spec["containers"]
    without_capability("SYS_PTRACE")(container)
    async with _a_hanging_process(pod):
        log = pod.testbed.driver.log_file
        await until_in_thread(
            lambda: "the kernel has not brought the link back yet" in log.read_text(), "the driver says so"
        )
        assert "lives on" not in log.read_text()
        left = pod.before.differences(await asyncio.to_thread(pod.testbed.node.snapshot))
        assert any(f"link {fail_closed.NIC}:" in line for line in left)


async def whoever_takes_it_over_has_the_ways_that_the_page_says(pod: fail_closed.Pod) -> None:
    runtime, driver = pod.testbed.runtime, pod.testbed.driver
    assert isinstance(runtime, DriverRuntime)
    assert isinstance(driver, DriverPod)
    runtime.has_real_proc = True
    (container,) = runtime.spec["containers"]
    always, by_ptrace = (
        ["all of /proc/sys: done"],
        ["files of the node: done", "memory of its processes: done"],
    )
    for wanted in ([*always, *by_ptrace], always):
        await driver.renew()
        await driver.start()
        await driver.wait_ready(fail_closed.SECONDS)
        assert (await find_what_is_let_through(pod, sys.executable, "left")).splitlines() == wanted
        if platform.machine() == "x86_64":
            ended = await driver.run_in_container(sys.executable, "-c", CALL_AS_X32)
            assert ended.exit_code == 128 + signal.SIGSYS
        if wanted != always:
            without_capability("SYS_PTRACE")(container)


async def without_its_profile_the_container_is_refused_by_the_name_of_the_file(pod: fail_closed.Pod) -> None:
    runtime, driver = pod.testbed.runtime, pod.testbed.driver
    assert isinstance(runtime, DriverRuntime)
    assert isinstance(driver, DriverPod)
    (container,) = runtime.spec["containers"]
    profile = container["securityContext"]["seccompProfile"]
    profile["localhostProfile"] = "dranet-of-nobody.json"
    await driver.renew()
    with pytest.raises(RuntimeFailure, match=r"seccomp/dranet-of-nobody\.json"):
        await driver.start()
    profile["localhostProfile"] = SECCOMP_NAME
    await driver.start()
    await driver.wait_ready(fail_closed.SECONDS)


OF_ITS_OWN = (
    without_its_profile_the_container_is_refused_by_the_name_of_the_file,
    whoever_takes_it_over_has_the_ways_that_the_page_says,
    a_nic_has_an_address_from_a_dhcp_server,
    a_nic_comes_back_from_a_namespace_that_only_a_process_keeps,
    without_sys_ptrace_such_a_nic_stays_away,
)
PLAYS = {
    **{story.__name__: _of_driver(story) for story in (*OF_ITS_OWN, *IN_CONTAINERS, *fail_closed.STORIES)},
    "metadata": metadata_story.play,
    "workload": workload_story.play,
    **{f"scenario {path.stem}": _of_scenario(path.stem) for path in known_scenarios()},
}
IN_EACH_RUN = (
    "a_driver_that_is_killed_inside_its_hook_lets_no_container_start_bare",
    "scenario every-setting",
)
"""All of them with ``make test-runtime``."""


def test_the_rendered_daemonset_has_these_rights() -> None:
    spec, _ = read_pod_spec(DAEMONSET)
    wanted = build_pod_spec()
    assert {
        key: spec.get(key, False) for key in pod_security.build_pod_security()
    } == pod_security.build_pod_security()
    assert "securityContext" not in spec
    assert [v for v in spec["volumes"] if "hostPath" in v] == wanted["volumes"]
    for kind in ("initContainers", "containers"):
        (ours,), (theirs,) = wanted[kind], spec[kind]
        assert theirs["securityContext"] == ours["securityContext"]
        names = {mount["name"] for mount in ours["volumeMounts"]}
        assert [m for m in theirs["volumeMounts"] if m["name"] in names] == ours["volumeMounts"]


if os.environ.get(ALL_LANES):  # else with its own image alone: test_containerd_security_image.py

    @in_own_private_node
    def test_the_rendered_daemonset_is_what_runs(toolchain: Toolchain, folder: Path) -> None:
        make_runtime = driver_in_a_pod(toolchain, DAEMONSET)
        fail_closed.play(make_runtime, folder, fail_closed.a_pod_has_its_nic_and_gives_it_back)


@pytest.fixture(params=list(PLAYS) if os.environ.get(ALL_LANES) else IN_EACH_RUN)
def play(request: pytest.FixtureRequest) -> Play:
    return PLAYS[str(request.param)]


@pytest.mark.usefixtures("play")
@in_own_private_node
def test_the_driver_can_do_its_work(toolchain: Toolchain, folder: Path, play: Play) -> None:
    play(driver_in_a_pod(toolchain), folder)
