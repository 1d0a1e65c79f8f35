"""The API server misbehaves, people meddle and the clock steps: slices and statuses end as they should.

Lane: sockets; the server is the testbed's. What goes wrong is drawn from a seed, which the test's name has.
For a longer run: ``make chaos``.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random

import pytest

from dranet.cluster.transport import MAX_CROWD_CONNECTIONS
from testbed.apiserver.faults import Chaos, ChaosPlan
from testbed.apiserver.traffic import RequestRecord
from tests.chaos.environment import CLAIMS, Stage, is_drivers, performing

pytestmark = pytest.mark.socket

SEEDS = range(int(os.environ.get("CHAOS_SEEDS", "2")))
"""More of them for a longer run."""
SCENES = 30
CALM_SECONDS = 30.0
WRITES_PER_DEED = 12
"""Bound of the driver's writes for each thing that happened, trouble included. A hot loop makes thousands."""

RATES = {
    Chaos.THROTTLE: 0.03,
    Chaos.ERROR: 0.06,
    Chaos.UNAVAILABLE: 0.03,
    Chaos.CONFLICT: 0.06,
    Chaos.EXPIRED: 0.1,
    Chaos.RESET_BEFORE: 0.05,
    Chaos.RESET_AFTER: 0.05,
    Chaos.DELAY: 0.08,
    Chaos.STALL: 0.02,
    Chaos.WATCH_GAP: 0.05,
    Chaos.WATCH_STALL: 0.03,
    Chaos.WATCH_RESET: 0.05,
}


def build_plan(seed: int) -> ChaosPlan:
    def spares(record: RequestRecord) -> bool:
        return not is_drivers(record)

    return ChaosPlan(seed, RATES, spares=spares, delay_seconds=0.15, stall_seconds=0.5)


async def play(stage: Stage, chance: random.Random) -> int:
    """One act; how many things happened."""
    deeds = 0
    for _ in range(SCENES):
        if chance.random() < 0.5:
            stage.publish_at_random(chance)
        for _ in range(chance.randrange(4)):
            stage.report_at_random(chance)
            deeds += 1
        if chance.random() < 0.3:
            await stage.meddle(chance)
        if chance.random() < 0.1:
            stage.clock.step(chance.choice((-7200, -30, 30, 86400)))
        deeds += 3
        await let_the_driver_work(stage, chance.randrange(1, 12))
        stage.note_duplicates()
    return deeds


async def let_the_driver_work(stage: Stage, requests: int) -> None:
    """Until it has asked so many things of the server, or has nothing more to ask."""
    seen = len(stage.server.requests)
    try:
        async with asyncio.timeout(0.3):
            while True:
                if len(stage.server.requests) >= seen + requests:
                    return
                await asyncio.sleep(0.002)
    except TimeoutError:
        return


async def wait_calm(stage: Stage) -> None:
    """Until the server has what is wanted, and the driver says so, its Events written, too."""
    try:
        async with asyncio.timeout(CALM_SECONDS):
            while stage.find_differences() or not stage.publisher.is_published:
                stage.note_duplicates()
                await asyncio.sleep(0.01)
        assert await stage.reporter.flush(CALM_SECONDS), "Events are still waiting"
    except TimeoutError:
        pytest.fail(
            f"{stage.find_differences() or stage.publisher.last_error} after {CALM_SECONDS:g} s of calm"
        )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", SEEDS)
async def test_after_the_trouble_slices_and_statuses_are_as_wanted(seed: int) -> None:
    plan, chance = build_plan(seed), random.Random(seed)
    async with performing(plan) as stage:
        stage.publish_at_random(chance)
        plan.switch(on=True)
        deeds = await play(stage, chance)
        plan.switch(on=False)
        stage.server.drop_watches()  # a gap that no later event has shown
        await wait_calm(stage)
        assert stage.duplicates == []
        assert sum(plan.counts.values()) > deeds / 4, f"hardly any trouble: {plan.counts}"
        assert stage.count_writes() < WRITES_PER_DEED * (deeds + sum(plan.counts.values()))
        assert len(stage.wanted_statuses) > CLAIMS / 2


@pytest.mark.timeout(120)
async def test_trouble_leaves_nothing_behind_in_memory(caplog: pytest.LogCaptureFixture) -> None:
    """After the first act everything has its size; later ones add nothing that stays."""
    caplog.set_level(logging.CRITICAL, "dranet")  # what is captured holds the errors that it tells of
    plan, chance = build_plan(99), random.Random(99)
    async with performing(plan) as stage:
        stage.publish_at_random(chance)
        sizes = []
        for _ in range(3):
            plan.switch(on=True)
            await play(stage, chance)
            plan.switch(on=False)
            stage.server.drop_watches()
            await wait_calm(stage)
            stage.server.requests.clear()
            stage.server.compact()
            await wait_calm(stage)
            gc.collect()
            names = [task.get_name() for task in asyncio.all_tasks()]
            of_server = sum(name.startswith("apiserver-") for name in names)
            sizes.append((count_of_the_driver(), len(names) - of_server, of_server))
        objects, tasks, connections = zip(*sizes, strict=True)
        assert max(tasks[1:]) <= tasks[0] + 3, f"tasks pile up: {tasks}"
        # How many wait for their next request varies, within what each of the two clients keeps; a watch has
        # three tasks.
        assert max(connections) <= 2 * MAX_CROWD_CONNECTIONS + 3, f"connections pile up: {connections}"
        assert objects[-1] <= objects[1] * 1.1, f"objects pile up: {objects}"


def count_of_the_driver() -> int:
    """Objects of classes of ours that the server stand-in has no part in."""
    rooms = ("dranet.cluster", "dranet.driver", "dranet.model")
    return sum(str(type(thing).__module__).startswith(rooms) for thing in gc.get_objects())


@pytest.mark.timeout(60)
async def test_without_trouble_the_same_play_needs_few_writes() -> None:
    """The bound above is generous to what trouble costs; this is what the work itself costs."""
    plan, chance = build_plan(7), random.Random(7)
    async with performing(plan) as stage:
        stage.publish_at_random(chance)
        deeds = await play(stage, chance)
        await wait_calm(stage)
        assert plan.counts == {}
        assert stage.duplicates == []
        assert stage.count_writes() < 3 * deeds
