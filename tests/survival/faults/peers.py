"""Runtime, kubelet and API server go away and come back, with pods running."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dranet.driver.gpus import PATIENCE_SECONDS as PATIENCE_OF_GPUS
from dranet.driver.reports.reporter import RETRY_SECONDS
from testbed.containerd.runtime import ContainerdRuntime
from testbed.runtime.standin import StandInRuntime
from tests.survival.environment import READY_SECONDS, Stage
from tests.survival.faults.common import begin, end, wait_log
from tests.survival.objects import Way
from tests.survival.verification import PATIENCE_SECONDS

AWAY_SECONDS = 120.0
"""Long enough for every wait between two tries, of the driver and of the others, to grow to its most."""


async def runtime_restart(stage: Stage) -> None:
    await begin(stage)
    since, pid = stage.log_size(), _pid(stage)
    await _restart(stage)
    await wait_log(stage, "connected to the runtime", since)
    assert _pid(stage) != pid or stage.runtime.name == "stand-in"
    await end(stage, "runtime restart")


async def runtime_crash(stage: Stage) -> None:
    """SIGKILL, and a pod that ends and one that begins before the driver has found the new one."""
    await begin(stage)
    since, pid = stage.log_size(), _pid(stage)
    assert pid
    os.kill(pid, signal.SIGKILL)
    await stage.add_pod("meanwhile", Way.SHARED, number=2)
    await _restart(stage)
    await wait_log(stage, "connected to the runtime", since)
    assert _pid(stage) != pid
    await stage.wait_running("meanwhile")
    await end(stage, "runtime killed")


def _pid(stage: Stage) -> int:
    """Of a real one; the stand-in has no process of its own."""
    return stage.runtime.pid if isinstance(stage.runtime, ContainerdRuntime) else 0


async def _restart(stage: Stage) -> None:
    assert isinstance(stage.runtime, ContainerdRuntime | StandInRuntime)
    await stage.runtime.restart()


async def kubelet_restart(stage: Stage) -> None:
    """It wipes the slices, registers the driver again and has every claim prepared once more."""
    await begin(stage)
    since, old = stage.log_size(), {s["metadata"]["uid"] for s in await stage.testbed.fetch_slices()}
    await stage.testbed.kubelet.restart()
    await wait_log(stage, "registered with the kubelet", since)
    await wait_log(stage, "published 4 devices", since)
    assert not old & {s["metadata"]["uid"] for s in await stage.testbed.fetch_slices()}
    await end(stage, "kubelet restart")


async def api_server_away(stage: Stage) -> None:
    """Nobody reaches it for minutes. A pod that was prepared before starts meanwhile, the driver is killed
    and starts again, and what is to be said of it all is said afterwards."""
    await begin(stage)
    testbed = stage.testbed
    testbed.kubelet.hold_sandboxes(True)
    await stage.add_pod("held", Way.SHARED, number=2)
    await testbed.kubelet.wait_prepared(testbed.pod_uid("held"))
    port = testbed.server.port
    await testbed.server.stop()
    async with _refusing(port) as refused:
        testbed.kubelet.hold_sandboxes(False)
        await wait_log(stage, "attached pod=default/held", 0)
        await stage.driver.kill()
        await stage.driver.start()
        await asyncio.sleep(AWAY_SECONDS)  # what is done to the driver, not a wait for it
        pid = stage.driver.pid
    await testbed.server.start(port=port)
    await stage.driver.wait_ready(READY_SECONDS + PATIENCE_OF_GPUS)  # as far away as a watch may try next
    assert stage.driver.pid == pid, "it has waited, and not begun anew"
    assert refused, "nobody has asked"
    await stage.wait_running("held")
    await stage.assert_well(PATIENCE_SECONDS + RETRY_SECONDS[1])  # the status's next try may be so far away
    await end(stage, "API server away for two minutes")


@asynccontextmanager
async def _refusing(port: int) -> AsyncIterator[list[float]]:
    """Accept each connection and break it at once; the times at which."""
    refused: list[float] = []

    def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        refused.append(time.monotonic())
        writer.transport.abort()

    async with await asyncio.start_server(refuse, "127.0.0.1", port):
        yield refused
