"""Updates of the driver under a storm of pods: what they cost the pods (nothing), and how long they take.

Two instances overlap at each update, as with a DaemonSet's surge. Hardware, API server, kubelet and runtime
are the testbed's; the driver's processes, sockets, namespaces and moves are real. Times depend on the
machine's speed; the counts, which must be zero, do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from benchmarks.measure import Result, Series
from testbed.cluster import Roll, Testbed
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.runtimes import stand_in
from testbed.storm import Damage, Storm

HARDWARE = "dgx-h100"
WORKERS = 8
ROLLS = 15
PODS_BETWEEN = 8
READY_SECONDS = 60.0
PREPARE_BOUND_MS = 10_000.0
"""A pod that comes while the driver is updated must not wait longer: the kubelet's patience is 45 s."""


def run() -> Iterator[Result]:
    """Counts first: their bounds are exact."""
    rolls, damage, devices = asyncio.run(_measure())
    lacking = devices - (damage.fewest_devices or 0)
    yield _count("updates of the driver", len(rolls))
    yield _count("pods that ran", damage.started)
    yield _count("failed prepares", len(damage.failed_prepares), most=0)
    yield _count("other failures that the kubelet saw", len(damage.failures), most=0)
    yield _count("pods that ran bare", len(damage.bare), most=0)
    yield _count("pods that did not come or go", len(damage.lost), most=0)
    yield _count("devices that were missing in a slice", lacking, most=0)
    yield _times("Prepare of a pod, as the kubelet sees it", damage.prepare_seconds, bound=PREPARE_BOUND_MS)
    yield _times("start of a successor until it is the leader", [roll.ready_seconds for roll in rolls])
    yield _times("end of the old instance", [roll.stop_seconds for roll in rolls])


async def _measure() -> tuple[list[Roll], Damage, int]:
    async with Testbed(load_hardware(HARDWARE), stand_in, WORK_DIR) as testbed:
        testbed.driver = testbed.add_instance()
        await testbed.driver.start()
        await testbed.driver.wait_ready(READY_SECONDS)
        storm, rolls = Storm(testbed, WORKERS), []
        devices = sum(len(slice_["spec"]["devices"]) for slice_ in await testbed.fetch_slices())
        async with storm.raging() as damage:
            for _ in range(ROLLS):
                await storm.wait_started(PODS_BETWEEN)
                rolls.append(await testbed.roll_driver(READY_SECONDS))
            await storm.wait_started(PODS_BETWEEN)
        return rolls, damage, devices


def _count(title: str, number: int, most: int | None = None) -> Result:
    return Result(
        title, Series(title, (float(number),), unit=""), bound=None if most is None else float(most)
    )


def _times(title: str, seconds: Sequence[float], bound: float | None = None) -> Result:
    """The bound is on the longest: p99 shows it where there are fewer than 100."""
    samples = tuple(value * 1000 for value in seconds)
    return Result(f"{title} (longest {max(samples):.0f} ms)", Series(title, samples), bound=bound)
