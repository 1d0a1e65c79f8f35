"""The driver itself is stopped within a hook, for longer than anybody waits."""

from __future__ import annotations

import asyncio
import os
import signal

from testbed.kubelet.nouns import PodStage
from tests.runtime.fail_closed import signal_inside_the_hook
from tests.survival.environment import Stage
from tests.survival.faults.common import end
from tests.survival.objects import Way

STOPPED_SECONDS = 10.0


async def stopped_in_a_hook(stage: Stage) -> None:
    """The runtime gives up and goes on; no container starts until the driver does."""
    await stage.ensure_driver()
    await stage.add_pod("shared", Way.SHARED, claims=2)
    await stage.wait_running("shared")
    testbed = stage.testbed
    with signal_inside_the_hook(stage.driver.pid, signal.SIGSTOP) as stopped:
        await stage.add_pod("moved")
        await stage.until(stopped.is_set, "the hook has begun")
        await asyncio.sleep(STOPPED_SECONDS)  # what is done to the driver, not a wait for it
    uid = testbed.pod_uid("moved")
    assert testbed.kubelet.stage(uid) < PodStage.RUNNING
    assert testbed.kubelet.failure(uid), "the runtime has given up on it"
    os.kill(stage.driver.pid, signal.SIGCONT)
    await stage.wait_running("moved")
    await end(stage, "SIGSTOP for 10 s within a hook")
