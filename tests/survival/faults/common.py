"""What the faults have in common: two pods before, all well afterwards, and one more pod then."""

from __future__ import annotations

import asyncio
import re

from testbed.node.iproute import in_namespace, read_text
from tests.survival.environment import Stage
from tests.survival.objects import SHARE_SETTING, Way

MOVED_NIC = "enp35s0np0"
RECONCILE_SECONDS = 2

SETTINGS = {**SHARE_SETTING, "rescan_seconds": "1", "reconcile_seconds": str(RECONCILE_SECONDS)}
"""For the driver: it looks every few seconds at what it looks at every few minutes elsewhere."""


async def begin(stage: Stage) -> None:
    """A pod with a NIC of its own and one with two links on a shared NIC run, and all is well."""
    await stage.ensure_driver()
    await stage.add_pod("moved")
    await stage.add_pod("shared", Way.SHARED, claims=2)
    await stage.wait_running("moved", "shared")
    await stage.assert_well()


async def end(stage: Stage, fault: str, tries: int = 1) -> None:
    """All is well with the pods of before; one goes, another comes in its place; then all go."""
    await stage.assert_well()
    await stage.delete_pods("moved")
    await stage.add_pod("after")
    await stage.wait_running("after")
    await stage.conclude(fault, tries)


async def in_pod(stage: Stage, pod: str, *command: str) -> str:
    """Run it in the pod's network namespace, past everybody."""
    sandbox = stage.testbed.sandbox(pod)
    assert sandbox is not None
    return await asyncio.to_thread(read_text, *in_namespace(sandbox.netns_path, *command))


async def wait_log(stage: Stage, text: str, since: int, seconds: float = 30.0) -> None:
    """Until the driver has written something that ``text``, a regular expression, is found in."""
    await stage.until(lambda: bool(re.search(text, stage.log(since))), f"the log says {text}", seconds)
