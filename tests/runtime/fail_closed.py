"""Stories of a driver that is killed, stopped and held up inside its hook; no pod may start bare.

The driver is the ordinary program in a process of its own. Nothing in it knows of these tests: they see in
the kernel's notifications that it has begun to move a NIC, and send their signal at that moment, some 18 ms
before the kernel is done. API server, scheduler and kubelet are the testbed's; whoever tells a story brings
the container runtime.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from testbed.cluster import RuntimeFactory, Testbed
from testbed.containerd.fetch import ContainerdUnavailable
from testbed.driver.process import DriverProcess
from testbed.kubelet.nouns import PodStage
from testbed.node.hardware import load_hardware
from testbed.node.hoststate import HostState
from testbed.node.iproute import in_namespace, read_json
from testbed.runtime.contract import RestartableRuntime
from tests.support.objects import device_class
from tests.support.waiting import until_in_thread

NIC = "enp35s0np0"
ADDRESS = "10.64.0.1"
VERBS = "/dev/infiniband/uverbs0"
RUNTIME_GIVES_UP = 2.0
"""``plugin_request_timeout`` of containerd, in seconds."""
OUT_OF_TIME = 1.55
"""Longer than a hook of the driver takes, shorter than the runtime waits."""
SECONDS = 40

BUSY_DRIVER = """
import signal, sys, threading
from dranet.cli.main import main

busy = False

def compute():
    while busy:
        sum(range(1000))

def change(*_):
    global busy
    busy = not busy
    for _ in range(4):
        threading.Thread(target=compute, daemon=True).start()

signal.signal(signal.SIGUSR1, change)
sys.exit(main())
"""
"""The ordinary driver, with four threads that always want to compute from one SIGUSR1 until the next."""

RTMGRP_LINK, RTM_NEWLINK, RTM_DELLINK, IFF_UP = 1, 16, 17, 1
NLMSG_HEADER_BYTES = 16

MANIFESTS: list[dict[str, Any]] = [
    device_class("rail0", f'device.attributes["dra.net"].ifName == "{NIC}"'),
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "nic"},
        "spec": {
            "devices": {
                "requests": [{"name": "nic", "exactly": {"deviceClassName": "rail0"}}],
                "config": [{"opaque": {"driver": "dra.net", "parameters": {"interface": {"name": "net1"}}}}],
            }
        },
    },
    {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "worker"},
        "spec": {
            "resourceClaims": [{"name": "nic", "resourceClaimName": "nic"}],
            "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "nic"}]}}],
        },
    },
]


class Pod:
    """The worker of a testbed, and the node around it."""

    def __init__(self, testbed: Testbed, before: HostState) -> None:
        self.testbed = testbed
        self.before = before

    @property
    def uid(self) -> str:
        return self.testbed.pod_uid("worker")

    @property
    def failure(self) -> str:
        return self.testbed.kubelet.failure(self.uid)

    @property
    def containers(self) -> Mapping[str, object]:
        return self.testbed.containers("worker")

    async def start(self) -> None:
        await self.testbed.apply(MANIFESTS)

    async def wait_running(self) -> None:
        async with asyncio.timeout(SECONDS):
            await self.testbed.kubelet.wait_running(self.uid)

    async def run(self, *command: str) -> str:
        container = self.testbed.containers("worker")["main"]
        done = await self.testbed.runtime.exec_in_container(container, command)
        assert done.exit_code == 0, done.stderr
        return done.stdout

    def link(self) -> dict[str, Any]:
        """Its NIC as ``ip`` sees it from outside; empty where it has none."""
        sandbox = self.testbed.sandbox("worker")
        assert sandbox is not None
        links = read_json(*in_namespace(sandbox.netns_path, "ip", "-json", "address"))
        return next((link for link in links if link["ifname"] == "net1"), {})

    async def assert_whole(self) -> None:
        """As the container itself sees it."""
        shown = await self.run("ip", "addr", "show", "dev", "net1")
        assert f"inet {ADDRESS}/24" in shown
        assert "UP" in shown

    async def wait_event(self, what: str, is_it: Callable[[dict[str, Any]], bool]) -> str:
        """The message of an event that tells of it: who fails, writes it a moment later."""
        deadline = time.monotonic() + SECONDS
        while True:
            events = await self.testbed.fetch_events("worker")
            told = [str(event["message"]) for event in events if is_it(event)]
            if told:
                return told[0]
            assert time.monotonic() < deadline, f"no event says {what}: {self.failure}: {events}"
            await asyncio.sleep(0.02)

    async def delete(self) -> None:
        """The pod goes, and the node is as it was."""
        await self.testbed.delete_pod("worker")
        async with asyncio.timeout(SECONDS):
            await self.testbed.kubelet.wait_gone(self.uid)
        try:
            await until_in_thread(
                lambda: self.testbed.node.snapshot() == self.before, "the node is as it was", SECONDS
            )
        except AssertionError as error:
            left = self.before.differences(self.testbed.node.snapshot())
            raise AssertionError("\n".join((*left, self.testbed.driver.log_tail()))) from error

    def gate(self) -> list[str]:
        """Ready files that let a container start."""
        ready = self.testbed.places.work_dir / "state" / "ready"
        return [entry.name for entry in ready.glob("*") if entry.exists()]


Story = Callable[[Pod], Awaitable[None]]


@asynccontextmanager
async def a_cluster(make_runtime: RuntimeFactory, folder: Path) -> AsyncIterator[Pod]:
    """A testbed with the driver ready."""
    testbed = Testbed(load_hardware("two-nic"), make_runtime, folder)
    try:
        await testbed.__aenter__()
    except ContainerdUnavailable as error:
        pytest.skip(str(error))
    async with closing(testbed):
        await asyncio.to_thread(open_verbs_to_everybody, testbed.node.sysfs_root)
        before = await asyncio.to_thread(testbed.node.snapshot)
        await testbed.driver.start()
        await testbed.driver.wait_ready(SECONDS)
        yield Pod(testbed, before)


@asynccontextmanager
async def closing(testbed: Testbed) -> AsyncIterator[None]:
    try:
        yield
    finally:
        if testbed.driver.pid:  # one that is stopped cannot be told to end
            os.kill(testbed.driver.pid, signal.SIGCONT)
        await testbed.__aexit__()


def open_verbs_to_everybody(sysfs: Path) -> None:
    """This kernel has no RDMA: behind the node of the device is the null device, which can be opened."""
    verbs = next((sysfs / "class/infiniband_verbs").glob("uverbs0"))
    (verbs / "dev").write_text("1:3\n")
    (verbs / "uevent").write_text("MAJOR=1\nMINOR=3\nDEVNAME=infiniband/uverbs0\nDEVMODE=0666\n")


@contextmanager
def signal_inside_the_hook(pid: int, number: signal.Signals) -> Iterator[threading.Event]:
    """Send a signal to the driver as soon as the kernel says that the NIC leaves: its hook has begun to move
    it. Once; the event says that it was sent."""
    sent, over = threading.Event(), threading.Event()
    index = socket.if_nametoindex(NIC)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as notifications:
        notifications.bind((0, RTMGRP_LINK))
        notifications.settimeout(0.1)

        def watch() -> None:
            with suppress(PermissionError):  # a hook takes some 20 ms: on a busy machine we are to be next
                os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
            while not (sent.is_set() or over.is_set()):
                with suppress(TimeoutError):
                    if is_leaving(notifications.recv(65536), index):
                        os.kill(pid, number)
                        sent.set()

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield sent
        finally:
            over.set()
            watcher.join()


def is_leaving(notification: bytes, ifindex: int) -> bool:
    """Whether it says that this link is gone (``rtnetlink(7)``: one message each)."""
    _, kind, _, _, _ = struct.unpack_from("=IHHII", notification)
    (index,) = struct.unpack_from("=i", notification, NLMSG_HEADER_BYTES + 4)
    return bool(index == ifindex and kind == RTM_DELLINK)


def play(make_runtime: RuntimeFactory, folder: Path, story: Story) -> None:
    """Tell a story on a testbed of its own."""

    async def tell() -> None:
        async with a_cluster(make_runtime, folder) as pod:
            await story(pod)

    asyncio.run(tell())


async def a_pod_has_its_nic_and_opens_its_verbs_node(pod: Pod) -> None:
    await pod.start()
    await pod.wait_running()
    await pod.assert_whole()
    node = await pod.run("sh", "-c", f"echo x > {VERBS} && cat {VERBS} && stat -c '%a %t:%T' {VERBS}")
    assert node == "666 1:3\n"
    await pod.delete()


async def a_pod_has_near_cpus_for_its_queues_in_a_sysfs_that_it_cannot_write(pod: Pod) -> None:
    of_cpus = pod.testbed.node.sysfs_root / "devices/system"
    for cpus in (of_cpus / "cpu/online", *of_cpus.glob("node/node*/cpulist")):
        cpus.write_text("0\n")  # which every machine has
    manifests = deepcopy(MANIFESTS)
    (config,) = manifests[1]["spec"]["devices"]["config"]
    config["opaque"]["parameters"]["cpuLocality"] = {"xps": True, "rps": True}
    await pod.testbed.apply(manifests)
    await pod.wait_running()
    file = "/sys/class/net/net1/queues/rx-0/rps_cpus"
    mask, refusal = (await pod.run("sh", "-c", f"cat {file}; (echo 0 > {file}) 2>&1 || true")).splitlines()
    assert int(mask, 16) == 1
    assert "Read-only file system" in refusal
    await pod.delete()


async def a_driver_that_is_killed_inside_its_hook_lets_no_container_start_bare(pod: Pod) -> None:
    driver = pod.testbed.driver
    with signal_inside_the_hook(driver.pid, signal.SIGKILL):
        await pod.start()
        await until_in_thread(lambda: not driver.is_running, "the driver is dead")
        await until_in_thread(lambda: bool(pod.failure), "the kubelet cannot start the container")
    half = await asyncio.to_thread(pod.link)
    assert half, "the link has moved: it was killed inside its hook"
    assert "no such file or directory" in pod.failure
    assert (pod.containers, pod.gate()) == ({}, []), "and before the hook's end, which opens the gate"
    await driver.start()
    await pod.wait_running()
    await pod.assert_whole()
    await pod.delete()


async def a_pod_that_goes_while_its_driver_is_dead_gives_its_nic_back(pod: Pod) -> None:
    driver = pod.testbed.driver
    with signal_inside_the_hook(driver.pid, signal.SIGKILL):
        await pod.start()
        await until_in_thread(lambda: not driver.is_running, "the driver is dead")
        await until_in_thread(lambda: bool(pod.failure), "the kubelet cannot start the container")
    sandbox = pod.testbed.sandbox("worker")
    assert sandbox is not None
    await asyncio.to_thread(pod.testbed.node.reclaim, sandbox.netns_path)
    await pod.testbed.delete_pod("worker")
    await driver.start()
    async with asyncio.timeout(SECONDS):
        await pod.testbed.kubelet.wait_gone(pod.uid)
    await until_in_thread(lambda: pod.testbed.node.snapshot() == pod.before, "the node is as it was")


async def a_driver_that_hangs_for_longer_than_the_runtime_waits_lets_no_container_start_bare(
    pod: Pod,
) -> None:
    driver = pod.testbed.driver
    with signal_inside_the_hook(driver.pid, signal.SIGSTOP):
        begin = time.monotonic()
        await pod.start()
        await until_in_thread(lambda: bool(pod.failure), "the kubelet cannot start the container")
    assert time.monotonic() - begin > RUNTIME_GIVES_UP, "the runtime waited"
    assert pod.testbed.kubelet.stage(pod.uid) is PodStage.SANDBOX, "and went on without us"
    assert "no such file or directory" in pod.failure
    assert (pod.containers, pod.gate()) == ({}, [])
    os.kill(driver.pid, signal.SIGCONT)
    await pod.wait_running()
    await pod.assert_whole()
    await pod.delete()


async def a_hook_that_is_held_up_is_answered_in_time_and_its_work_goes_on(pod: Pod) -> None:
    driver = pod.testbed.driver
    connections = count_connections(driver)
    with signal_inside_the_hook(driver.pid, signal.SIGSTOP) as stopped:
        await pod.start()
        await until_in_thread(stopped.is_set, "the hook has begun")
        await asyncio.sleep(OUT_OF_TIME)  # what is done to the driver, not a wait for it
        os.kill(driver.pid, signal.SIGCONT)
        await pod.wait_running()
    await pod.assert_whole()
    assert count_connections(driver) == connections, "the runtime has heard an answer"
    await pod.delete()


async def a_pod_that_outlives_its_runtime_keeps_its_nic_and_gives_it_back(pod: Pod) -> None:
    """A runtime that was started anew says nothing of the end of older pods."""
    runtime, driver = pod.testbed.runtime, pod.testbed.driver
    assert isinstance(runtime, RestartableRuntime)
    await pod.start()
    await pod.wait_running()
    for restart in (runtime.restart, runtime.crash):
        before = count_connections(driver)
        await restart()
        await until_in_thread(
            partial(lambda seen: count_connections(driver) > seen, before), "it is connected again"
        )
        await driver.wait_ready(SECONDS)
        await pod.assert_whole()
    await pod.delete()
    assert pod.gate() == []


def count_connections(driver: DriverProcess) -> int:
    return driver.log_file.read_text().count("connected to the runtime")


async def a_driver_whose_threads_never_rest_attaches_in_time(pod: Pod) -> None:
    driver = pod.testbed.driver
    await driver.stop()
    await driver.start(command=(sys.executable, "-c", BUSY_DRIVER, "run"))
    await driver.wait_ready(SECONDS)
    os.kill(driver.pid, signal.SIGUSR1)
    await pod.start()
    await pod.wait_running()
    os.kill(driver.pid, signal.SIGUSR1)
    await pod.assert_whole()
    events = [event["message"] for event in await pod.testbed.fetch_events("worker")]
    assert not any("HookDeadlineExceeded" in message for message in events), events
    await pod.delete()


async def a_second_pod_of_the_claim_gets_no_container_while_no_driver_is_there(pod: Pod) -> None:
    """The kubelet has prepared the claim, and starts whoever names it without asking anybody."""
    testbed, driver = pod.testbed, pod.testbed.driver
    await pod.start()
    await pod.wait_running()
    await driver.kill()
    await testbed.apply([{**MANIFESTS[-1], "metadata": {"name": "second"}}])
    uid = testbed.pod_uid("second")
    await until_in_thread(
        lambda: bool(testbed.kubelet.failure(uid)), "the kubelet cannot start its container"
    )
    assert "no such file or directory" in testbed.kubelet.failure(uid)
    assert not testbed.containers("second")
    await driver.start()
    await driver.wait_ready(SECONDS)  # a veth that nobody gives back dies with its pod
    await pod.assert_whole()
    await testbed.delete_pod("worker")
    async with asyncio.timeout(SECONDS):
        await testbed.kubelet.wait_gone(pod.uid)
        await testbed.kubelet.wait_running(uid)
    container = testbed.containers("second")["main"]
    shown = await testbed.runtime.exec_in_container(container, ("ip", "addr", "show", "dev", "net1"))
    assert f"inet {ADDRESS}/24" in shown.stdout, "it is its turn"
    await testbed.delete_pod("second")
    async with asyncio.timeout(SECONDS):
        await testbed.kubelet.wait_gone(uid)
    await until_in_thread(lambda: testbed.node.snapshot() == pod.before, "the node is as it was")


async def a_pod_has_its_nic_and_gives_it_back(pod: Pod) -> None:
    await pod.start()
    await pod.wait_running()
    await pod.assert_whole()
    await pod.delete()


EVERYWHERE: tuple[Story, ...] = (
    a_pod_that_outlives_its_runtime_keeps_its_nic_and_gives_it_back,
    a_second_pod_of_the_claim_gets_no_container_while_no_driver_is_there,
)
"""Those in which runtimes differ."""

STORIES: tuple[Story, ...] = (
    *EVERYWHERE,
    a_driver_that_is_killed_inside_its_hook_lets_no_container_start_bare,
    a_pod_that_goes_while_its_driver_is_dead_gives_its_nic_back,
    a_driver_that_hangs_for_longer_than_the_runtime_waits_lets_no_container_start_bare,
    a_hook_that_is_held_up_is_answered_in_time_and_its_work_goes_on,
    a_driver_whose_threads_never_rest_attaches_in_time,
)
