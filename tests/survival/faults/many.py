"""Many pods at once, on one NIC that they share."""

from __future__ import annotations

import asyncio

from tests.survival.environment import Stage
from tests.survival.objects import Way

ALL_SECONDS = 200.0
"""For the whole crowd: the testbed's API server, scheduler and kubelet are one process."""


async def many_pods(stage: Stage, count: int) -> None:
    """Created at once, and deleted at once when they all run: more pods than NICs."""
    await stage.ensure_driver()
    names = [f"many{number}" for number in range(1, count + 1)]
    await asyncio.gather(*(stage.add_pod(n, Way.SHARED, number) for number, n in enumerate(names, 1)))
    await stage.wait_running(*names, seconds=ALL_SECONDS)
    await stage.assert_well()
    await stage.conclude(f"{count} pods created and deleted at once", tries=count)
    assert stage.judge.containers_seen >= count
