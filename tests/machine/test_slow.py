"""Eight NICs that take 0.25 s each to open and to close, under a real containerd with its default timeouts.

The kernel opens and closes them one after the other, under RTNL: together that takes twice as long as the
runtime waits for a plugin. What a pod needs of them, and its host, is here with the kernel's own counters.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import pytest_asyncio

from dranet.model.device import Device
from testbed.containerd import node
from testbed.containerd import runtime as containerd_runtime
from testbed.containerd.fetch import Toolchain, read_toolchain
from testbed.containerd.runtime import ContainerdRuntime
from testbed.machine.guest import CONTAINERDS, IN_MACHINE
from tests.machine import slow_nics
from tests.machine.slow_nics import NAMES, NICS, Counts, Driver, Started, start_pod

pytestmark = [pytest.mark.machine, pytest.mark.timeout(300)]

RUNTIME_WAITS_SECONDS = 2.0
"""``plugin_request_timeout`` by default."""
POD_SECONDS, ATTEMPTS = 20.0, 3
"""What the devices may add to a pod's start, and how often the kubelet tries."""
KUBELET_WAITS_SECONDS = 30.0
"""For Unprepare, as for every call to a driver."""
SLOWER_OPEN_MS = 1000
"""To open one, so that all take longer than both hooks of an attempt."""
SLOW_RETURN_MS = 2500
"""To close one, so that the kernel takes 20 s to return all of a dead namespace."""
_BOOT_SECONDS = 90.0

FIGURES = "slow-nics"
"""File of the exchange folder with what was measured."""

MAJORS = {"1.7": 1, "2.x": 2}


@pytest.fixture
def devices() -> Iterator[Mapping[str, Device]]:
    with slow_nics.loaded():
        yield slow_nics.read_devices()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, because of the sockets; on a tmpfs."""
    with TemporaryDirectory(prefix="s", dir="/run") as folder:
        yield Path(folder)


@pytest.fixture
def forwarding() -> Iterator[None]:
    """As it was: the CNI plugin switches it on, and namespaces that other tests make take it over."""
    place = Path("/proc/sys/net/ipv4/ip_forward")
    before = place.read_text()
    yield
    place.write_text(before)


def find_toolchain(lane: str) -> Toolchain:
    for folder in filter(None, os.environ[CONTAINERDS].split(os.pathsep)):
        toolchain = read_toolchain(Path(folder))
        if toolchain.major == MAJORS[lane]:
            return toolchain
    pytest.skip(f"no containerd {lane} was fetched for the machine")


@pytest_asyncio.fixture
async def runtime(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch, forwarding: None
) -> AsyncIterator[ContainerdRuntime]:
    """A containerd of the machine's own, which is the private tree that it asks for."""
    del forwarding
    monkeypatch.setattr(node, "check_rights", node.check_root)
    monkeypatch.setattr(containerd_runtime, "_BOOT_SECONDS", _BOOT_SECONDS)
    node.enable_controllers()
    toolchain = find_toolchain(request.param)
    (folder / "c").mkdir()
    running = ContainerdRuntime(toolchain, folder / "c", folder / "nri.sock", folder / "cdi")
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


async def a_running_pod(driver: Driver, runtime: ContainerdRuntime) -> Started:
    """A pod with all eight, and what must be true of the way there."""
    plain_seconds = await slow_nics.measure_plain_pod(runtime)
    before = slow_nics.read_counts()
    driver.start()
    started = await start_pod(runtime, await driver.prepare())
    took = slow_nics.read_counts().since(before)
    note(
        f"{runtime.name}: {started.attempts} attempts, {started.seconds:.1f} s, "
        f"without devices {plain_seconds:.1f} s, {took}"
    )
    assert started.seen == set(NAMES), "the container's first process found them all"
    assert started.seconds - plain_seconds <= POD_SECONDS
    assert started.attempts <= ATTEMPTS
    assert took == Counts(opens=(1,) * NICS, stops=(1,) * NICS), "none flaps"
    check_hooks(driver, runtime)
    starts = [call for call in driver.calls if call.method == "StartContainer"]
    assert len(starts) == 1, "no other container was made"
    assert not slow_nics.host_picture()
    return started


def note(line: str) -> None:
    with (Path(os.environ[IN_MACHINE]) / FIGURES).open("a") as figures:
        figures.write(f"{line}\n")


def check_hooks(driver: Driver, runtime: ContainerdRuntime) -> None:
    """The runtime had each answer in time."""
    note("  " + ", ".join(f"{call.method} {call.outcome} {call.seconds:.2f} s" for call in driver.calls))
    late = [call for call in driver.calls if call.seconds >= RUNTIME_WAITS_SECONDS]
    assert not late
    assert "timed out" not in runtime.log_file.read_text(errors="replace")
    assert driver.plugin.is_ready, driver.plugin.last_failure


@pytest.mark.parametrize("runtime", MAJORS, indirect=True)
async def test_eight_slow_nics_reach_their_pod_and_come_back(
    runtime: ContainerdRuntime, devices: Mapping[str, Device], folder: Path
) -> None:
    assert [device.pci_address for device in devices.values()] == [f"0001:00:0{i}.0" for i in range(NICS)]
    before = slow_nics.host_picture()
    driver = Driver(folder, devices)
    try:
        started = await a_running_pod(driver, runtime)
        counted = slow_nics.read_counts()
        await runtime.remove_sandbox(started.sandbox.id)
        unprepared = await driver.unprepare()
        note(f"  Unprepare {unprepared:.1f} s")
        assert unprepared < KUBELET_WAITS_SECONDS
        check_hooks(driver, runtime)
        assert slow_nics.host_picture() == before
        took = slow_nics.read_counts().since(counted)
        assert took == Counts(opens=(1,) * NICS, stops=(1,) * NICS), "none flaps on its way back"
        assert not driver.store.get_all()
    finally:
        driver.end()


@pytest.mark.parametrize("runtime", ["2.x"], indirect=True)
async def test_slower_nics_need_more_attempts_and_are_waited_for_when_their_namespace_dies(
    runtime: ContainerdRuntime, devices: Mapping[str, Device], folder: Path
) -> None:
    """A namespace that dies without the driver: the kernel returns its NICs, and nothing else meanwhile."""
    slow_nics.set_times(open_ms=SLOWER_OPEN_MS, stop_ms=250)
    before = slow_nics.host_picture()
    driver = Driver(folder, devices)
    try:
        started = await a_running_pod(driver, runtime)
        assert started.refusals, "the first container was refused"
        assert all("still" in refusal and "attach" in refusal for refusal in started.refusals)
    finally:
        driver.end()
    slow_nics.set_times(open_ms=0, stop_ms=SLOW_RETURN_MS)
    await runtime.remove_sandbox(started.sandbox.id)
    driver = Driver(folder, devices)
    try:
        driver.start()
        unprepared = await driver.unprepare()
        note(f"  Unprepare {unprepared:.1f} s")
        assert unprepared < KUBELET_WAITS_SECONDS
        check_hooks(driver, runtime)
        assert slow_nics.host_picture() == before
        assert not driver.store.get_all()
    finally:
        driver.end()
        slow_nics.set_times(open_ms=0, stop_ms=0)
