"""The node that a kubelet gets in the lane of programs, with a real containerd; the kubelet's words are ours.

No kubelet can be had here. What it would ask the runtime for is known from its published source, and is asked
for: the driver's pod as the DaemonSet has it, and pods with the cgroups that a kubelet gives them.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import yaml

from e2e import image
from e2e.access import LaneUnavailable
from e2e.cluster.config import Plan
from e2e.cluster.local import Options, build_access, write_kubelet_files
from e2e.cluster.node import LaneNode, boot_node, check_uncovered
from e2e.hands import ProcHands
from e2e.installation import build_installation
from testbed.cluster import NODE_NAME
from testbed.containerd.fetch import default_cache_dir, fetch_toolchain, find_toolchain
from testbed.containerd.image import BUSYBOX_IMAGE
from testbed.containerd.runtime import ContainerdRuntime
from testbed.debian.packages import Unavailable
from testbed.driver.pod_node import make_volumes
from testbed.driver.pod_spec import (
    NodeView,
    build_container,
    build_sandbox_security,
    list_folders_to_make,
)
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.pb import cri_pb2 as pb
from tests.support.waiting import until

pytestmark = [pytest.mark.timeout(180)]

_ARCHIVE = "E2E_TEST_ARCHIVE"
_LOGS = "E2E_TEST_LOGS"
_MACHINES = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys")
_LOOK_INTO_POD = """
import os, socket
found = set()
for name in os.listdir('/var/run/netns'):
    os.setns(os.open('/var/run/netns/' + name, os.O_RDONLY), os.CLONE_NEWNET)
    found |= {link for _, link in socket.if_nameindex()}
print(sorted(found), os.path.isdir('/host/proc/sys/net/ipv4'), os.listdir('/host/proc/irq')[:1])
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver's image, and a containerd in the cache."""
    try:
        fetch_toolchain(default_cache_dir(), lambda _: None)
        return image.build_archive(tmp_path_factory.mktemp("image") / "built")
    except (Unavailable, LaneUnavailable) as error:
        pytest.skip(str(error))


@pytest.fixture
def _told(monkeypatch: pytest.MonkeyPatch, archive: Path, tmp_path: Path) -> None:
    """What the private tree has to know, which has no way to the outside."""
    monkeypatch.setenv(_ARCHIVE, str(archive))
    monkeypatch.setenv(_LOGS, str(tmp_path / "logs"))


@pytest.mark.runtime
@pytest.mark.private_tree
@pytest.mark.usefixtures("_told")
class TestTheNode:
    def test_the_drivers_pod_starts_there_and_reaches_the_pods_that_the_hands_find(self) -> None:
        async def story(node: LaneNode) -> None:
            uid = str(uuid.uuid4())
            await run_pod(node.runtime, uid)
            hands = ProcHands()
            names = list_names_of(await hands.find_netns(uid))
            assert len(names) == 1, "the pod's namespace has a name that the driver's mount shows"
            found = await hands.inspect_container(uid)
            assert found is not None
            assert found.env["MARK"] == "mine", "the container, not the sandbox"
            said = await run_driver_pod(node, _LOOK_INTO_POD)
            assert "'eth0'" in said, said
            assert said.endswith("exit code 0"), said
            assert "True [" in said, "the kernel's sysctls, and the made-up interrupts"

        on_node(story)

    def test_what_a_kubelet_sets_for_the_whole_machine_stays_in_the_tree(self) -> None:
        async def story(node: LaneNode) -> None:
            write_as_a_kubelet(node.pod_logs)

        before = {name: Path("/proc/sys", name).read_text() for name in _MACHINES}
        on_node(story)
        outside = _read_on_machine()
        assert {name: outside[name] for name in _MACHINES} == before


def list_names_of(netns: str) -> list[str]:
    found = Path(netns).stat()
    return [file.name for file in Path("/var/run/netns").iterdir() if os.path.samestat(file.stat(), found)]


def write_as_a_kubelet(kept: Path) -> None:
    for name in _MACHINES:
        Path("/proc/sys", name).write_text("17\n")
        assert Path("/proc/sys", name).read_text() == "17\n"
    for folder in ("/var/log/pods/a-pod", "/var/log/containers", "/var/lib/kubelet"):
        Path(folder).mkdir()
    assert (kept / "a-pod").is_dir(), "the logs of pods are kept"


def make_folders(folders: Iterable[str]) -> None:
    for folder in folders:
        Path(folder).mkdir(parents=True, exist_ok=True)


def _read_on_machine() -> Mapping[str, str]:
    """Under the covers: a second look at the same files, by another mount of proc."""
    place = WORK_DIR / "proc-of-machine"
    place.mkdir()
    subprocess.run(["mount", "-t", "proc", "proc", str(place)], check=True)
    return {name: (place / "sys" / name).read_text() for name in _MACHINES}


def on_node(story: Callable[[LaneNode], Awaitable[None]]) -> None:
    async def run() -> None:
        toolchain = find_toolchain(default_cache_dir())
        assert toolchain is not None
        async with AsyncExitStack() as stack:
            archive, logs = Path(os.environ[_ARCHIVE]), Path(os.environ[_LOGS])
            hardware = load_hardware("two-nic")
            await story(await boot_node(stack, toolchain, archive, hardware, WORK_DIR, logs))

    asyncio.run(run())


async def run_pod(runtime: ContainerdRuntime, uid: str) -> None:
    """As a kubelet with ``cgroupsPerQOS`` does it."""
    sandbox = build_sandbox(runtime, uid, {})
    sandbox_id = await runtime.cri.run_pod_sandbox(sandbox)
    container = pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name="main"),
        image=pb.ImageSpec(image=BUSYBOX_IMAGE),
        command=["sleep", "infinity"],
        envs=[pb.KeyValue(key="MARK", value="mine")],
    )
    await runtime.cri.start_container(await runtime.cri.create_container(sandbox_id, container, sandbox))


def build_sandbox(runtime: ContainerdRuntime, uid: str, spec: Mapping[str, object]) -> pb.PodSandboxConfig:
    cgroup = f"/{runtime.layout.cgroup}/kubepods/besteffort/pod{uid}"
    return pb.PodSandboxConfig(
        metadata=pb.PodSandboxMetadata(name=f"pod-{uid[:8]}", uid=uid, namespace="default"),
        linux=pb.LinuxPodSandboxConfig(cgroup_parent=cgroup, security_context=build_sandbox_security(spec)),
    )


async def run_driver_pod(node: LaneNode, script: str) -> str:
    """What a Python program prints in the driver's container: its image, mounts, rights, seccomp profile."""
    plan = Plan(WORK_DIR / "kubernetes")
    plan.folder.mkdir()
    write_kubelet_files(plan, node, Options())
    items = build_installation(build_access(plan, node), {})
    (spec,) = (item["spec"]["template"]["spec"] for item in items if item["kind"] == "DaemonSet")
    maps = {item["metadata"]["name"]: item["data"] for item in items if item["kind"] == "ConfigMap"}
    assert yaml.safe_load(maps["dranet"]["settings.yaml"])["sysfs_root"] == str(node.hardware.sysfs_root)
    uid = str(uuid.uuid4())
    view = NodeView(
        NODE_NAME,
        "/var/lib/kubelet",
        volumes=make_volumes(spec, maps, WORK_DIR / "volumes"),
        pod_uid=uid,
    )
    make_folders(list_folders_to_make(spec, view))
    cri, sandbox = node.runtime.cri, build_sandbox(node.runtime, uid, spec)
    sandbox_id = await cri.run_pod_sandbox(sandbox)

    async def run(container: Mapping[str, object], *command: str) -> str:
        built = build_container(spec, container, view)
        built.image.image = str(container["image"])
        if command:
            del built.command[:]
            built.command.extend(command)
        started = await cri.create_container(sandbox_id, built, sandbox)
        await cri.start_container(started)
        return started

    async def has_ended() -> bool:
        return (await cri.fetch_container_status(first)).state == pb.CONTAINER_EXITED

    first = await run(spec["initContainers"][0])
    await until(has_ended, "the seccomp profile")
    assert (await cri.fetch_container_status(first)).exit_code == 0
    python = "/usr/bin/python3.13"
    driver = await run(spec["containers"][0], python, "-c", "import time; time.sleep(600)")
    done = await cri.exec_sync(driver, [python, "-c", script])
    return f"{done.stdout.decode()}{done.stderr.decode()}exit code {done.exit_code}"


def test_what_the_lane_covers_must_not_hold_what_it_needs() -> None:
    check_uncovered([Path("/opt/kubernetes")])
    for place in ("/var/lib/jenkins/workspace/bin", "/var/log/bin"):
        with pytest.raises(LaneUnavailable, match=f"{place} is below /var/l"):
            check_uncovered([Path(place)])
