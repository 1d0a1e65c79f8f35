"""Hand-over: an update under a pod that runs, and one of the two instances dies on the way."""

from __future__ import annotations

import os
import signal
from collections import Counter
from functools import partial

from dranet.failpoints import Failpoint
from tests.survival.environment import READY_SECONDS, Stage
from tests.survival.kill_points.armed import Armed, find_points
from tests.survival.kill_points.bench import Bench, a_bench, steps_of
from tests.survival.verification import Verdict

DEVICES = 5
"""What the driver publishes of the hardware."""
_OF_THE_NEW = frozenset(
    {
        Failpoint.HANDOVER_JOINED,
        Failpoint.HANDOVER_REQUEST_LEFT,
        Failpoint.HANDOVER_LEAD_LOCKED,
        Failpoint.HANDOVER_DUTIES_TAKEN,
    }
)
_AT_THE_END = frozenset(
    {
        Failpoint.HANDOVER_GOODBYE_SENT,
        Failpoint.HANDOVER_DEREGISTERED,
        Failpoint.HANDOVER_SOCKETS_REMOVED,
        Failpoint.HANDOVER_NAME_REMOVED,
    }
)
"""Reached when the old one is told to stop."""


async def die_while_the_driver_is_updated(stage: Stage, claims: int) -> None:
    """The pod keeps what it has, the slices stay, and whoever is left does all the work."""
    async with a_bench(stage, claims, is_shared=True) as bench:
        by_new, by_old = await _rehearse(bench)
        all_steps = steps_of("hand-over")
        points = [*find_points([by_new], _OF_THE_NEW), *find_points([by_old], all_steps - _OF_THE_NEW)]
        for point in points:
            await bench.attempt(point, "a pod runs", partial(_die, bench, point))


async def _rehearse(bench: Bench) -> tuple[Counter[str], Counter[str]]:
    old, new = bench.armed, _add(bench)
    begin = len(old.read_journal())
    await new.start()
    await new.driver.wait_ready(READY_SECONDS)
    await old.driver.stop()
    _take(bench, new)
    return Counter(new.read_journal()), Counter(old.read_journal(begin))


def _add(bench: Bench) -> Armed:
    return bench.arm_later(bench.stage.testbed.add_instance())


def _take(bench: Bench, armed: Armed) -> None:
    """It is the one that has the node from now on."""
    bench.armed, bench.stage.testbed.driver = armed, armed.driver


async def _die(bench: Bench, point: str) -> Verdict:
    name = await bench.add_running_pod()
    if Failpoint(point.rpartition(":")[0]) in _OF_THE_NEW:
        await _let_new_die(bench, point)
    else:
        await _let_old_die(bench, point)
    verdict = await bench.judge(name)
    devices = sum(len(found["spec"]["devices"]) for found in await bench.stage.testbed.fetch_slices())
    assert devices == DEVICES, f"{devices} devices are published"
    if not verdict.is_clean:
        return verdict
    await bench.delete_pod(name)
    return await bench.judge()


async def _let_new_die(bench: Bench, point: str) -> None:
    """The old one goes on, until a third one comes."""
    old, new, third = bench.armed, _add(bench), _add(bench)
    await new.start(point)
    await new.wait_killed(point)
    await third.start()
    await third.driver.wait_ready(READY_SECONDS)
    _take(bench, third)
    ended = await old.driver.stop()
    assert ended.exit_code == 0, ended.log


async def _let_old_die(bench: Bench, point: str) -> None:
    old, new = bench.armed, _add(bench)
    await old.arm(point)
    await new.start()
    if Failpoint(point.rpartition(":")[0]) in _AT_THE_END:
        await new.driver.wait_ready(READY_SECONDS)
        os.kill(old.driver.pid, signal.SIGTERM)
    await old.wait_killed(point)
    _take(bench, new)
    await new.driver.wait_ready(READY_SECONDS)
