"""What befalls the node during the soak. Each fault happens for certain: what it has changed is looked at."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

from dranet.cluster import paths
from testbed.containerd.runtime import ContainerdRuntime
from testbed.runtime.standin import StandInRuntime
from tests.survival.environment import READY_SECONDS, Stage
from tests.survival.faults.node_changes import end_namespace
from tests.survival.soak_pods import persist

Fault = Callable[[Stage, random.Random], Awaitable[None]]

REPAIR_SECONDS = 90.0
"""A driver whose slices are taken again and again waits longer each time before it writes them anew, and for
a watch that breaks again and again: up to 30 s each (``cluster/slices.py``)."""


async def stop_for_seconds(stage: Stage, chance: random.Random) -> None:
    """SIGSTOP of the driver, wherever it is, and SIGCONT."""
    os.kill(stage.driver.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(chance.uniform(1.0, 4.0))
        assert _state_of(stage.driver.pid) == "T"
    finally:
        os.kill(stage.driver.pid, signal.SIGCONT)


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def restart_runtime(stage: Stage, _: random.Random) -> None:
    await _restart_runtime(stage, crashes=False)


async def crash_runtime(stage: Stage, _: random.Random) -> None:
    """SIGKILL of containerd, and a new one."""
    await _restart_runtime(stage, crashes=True)


async def _restart_runtime(stage: Stage, *, crashes: bool) -> None:
    runtime, since = stage.runtime, stage.log_size()
    assert isinstance(runtime, ContainerdRuntime | StandInRuntime)
    pid = runtime.pid if isinstance(runtime, ContainerdRuntime) else 0
    await (runtime.crash() if crashes else runtime.restart())
    if isinstance(runtime, ContainerdRuntime):
        assert runtime.pid not in (0, pid)
    await stage.until(lambda: "connected to the runtime" in stage.log(since), "the driver is back there")


async def restart_kubelet(stage: Stage, _: random.Random) -> None:
    """It wipes the slices, finds the driver anew and prepares every claim once more."""
    since = stage.log_size()
    await stage.testbed.kubelet.restart()
    await stage.until(lambda: "registered with the kubelet" in stage.log(since), "the driver is registered")


async def take_api_server_away(stage: Stage, chance: random.Random) -> None:
    server = stage.testbed.server
    port = server.port
    await server.stop()
    await asyncio.sleep(chance.uniform(1.0, 5.0))
    await server.start(port=port)


async def wipe_slices(stage: Stage, _: random.Random) -> None:
    """By hand: they are there again, and are others."""
    before = _slices(stage)
    for name in before.values():
        await persist(partial(stage.testbed.api.delete, f"{paths.RESOURCE_SLICES}/{name}"))
    await stage.until(
        lambda: bool(_slices(stage)) and not before.keys() & _slices(stage).keys(),
        "new slices",
        REPAIR_SECONDS,
    )


def _slices(stage: Stage) -> dict[str, str]:
    found = [item["metadata"] for item in stage.testbed.server.objects("resourceslices")]
    return {metadata["uid"]: metadata["name"] for metadata in found}


class EndNamespaces:
    """A pod of the fault's own loses its network namespace, and everything in it dies."""

    def __init__(self) -> None:
        self._count = 0

    async def __call__(self, stage: Stage, _: random.Random) -> None:
        self._count += 1
        name = f"victim{self._count}"
        await stage.add_pod(name)
        await stage.wait_running(name)
        sandbox = stage.testbed.sandbox(name)
        assert sandbox is not None
        await end_namespace(stage, name)
        assert not await asyncio.to_thread(Path(sandbox.netns_path).exists)
        await stage.delete_pods(name)


async def kill_driver(stage: Stage, chance: random.Random) -> None:
    """SIGKILL, and a start after a while."""
    await stage.driver.kill()
    await asyncio.sleep(chance.uniform(0.0, 3.0))
    await stage.start_driver()


async def restart_driver(stage: Stage, chance: random.Random) -> None:
    """SIGTERM: it drains, ends well, and is started again after a while."""
    ended = await stage.driver.stop(READY_SECONDS)
    assert ended.exit_code == 0, ended.log
    await asyncio.sleep(chance.uniform(0.0, 2.0))
    await stage.start_driver()


async def roll_driver(stage: Stage, _: random.Random) -> None:
    """Two instances: the new one takes over before the old one goes."""
    old = stage.driver.pid
    roll = await stage.testbed.roll_driver(READY_SECONDS)
    assert roll.old.exit_code == 0, roll.old.log
    assert stage.driver.pid not in (0, old)


OF_PEERS: Mapping[str, Fault] = {
    "driver stopped for seconds": stop_for_seconds,
    "runtime restart": restart_runtime,
    "runtime killed": crash_runtime,
    "kubelet restart": restart_kubelet,
    "API server away": take_api_server_away,
    "slices wiped": wipe_slices,
    "namespace deleted": EndNamespaces(),
}
"""The driver's process lives through them."""

OF_DRIVER: Mapping[str, Fault] = {
    "driver killed": kill_driver,
    "driver restarted": restart_driver,
    "rolling update": roll_driver,
}

UNATTENDED = frozenset(
    {"driver stopped for seconds", "runtime restart", "runtime killed", "driver killed", "driver restarted"}
)
"""Nobody answers hooks meanwhile, so no pod starts whose containers do not name its claim: nothing else can
hold those back (docs/operations/troubleshooting.md)."""
