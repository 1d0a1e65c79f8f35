"""Migrate: a store as an earlier version left it, with a pod that runs and a record that nobody can read."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path

from dranet.failpoints import Failpoint
from tests.support.records import JsonObject, edit_record, read_texts, write_text
from tests.survival.environment import Stage
from tests.survival.kill_points.armed import find_points
from tests.survival.kill_points.bench import Bench, a_bench, steps_of
from tests.survival.verification import Verdict

EARLIER_VERSION = 2
_NEWER_FIELDS = ("pod_claim_name", "metadata", "netns_id")
"""Of a record, that the earlier version did not have, or did not have at first."""
_NEWER_DEVICE_FIELDS = ("alternative",)


async def die_while_the_store_is_migrated(stage: Stage, claims: int) -> None:
    """The pod keeps what it has; it goes as any other, once another driver is there."""
    async with a_bench(stage, claims) as bench:
        name = await bench.add_running_pod()
        for point in find_points([await _rehearse(bench)], steps_of("migrate")):
            await bench.attempt(point, "a pod runs", partial(_die, bench, point, name))
        await bench.delete_pod(name)
        await bench.stage.assert_well()


async def _rehearse(bench: Bench) -> Counter[str]:
    """The first record is written soon after the driver is ready."""
    await _put_back(bench)
    begin = len(bench.armed.read_journal())
    await bench.start_driver()
    await bench.wait_reached(Failpoint.MIGRATE_COMMITTED, begin)
    await bench.stage.assert_well()
    return Counter(bench.armed.read_journal(begin))


async def _die(bench: Bench, point: str, name: str) -> Verdict:
    await _put_back(bench)
    await bench.armed.start(point)
    await bench.armed.wait_killed(point)
    await bench.start_driver()
    return await bench.judge(name)


async def _put_back(bench: Bench) -> None:
    await bench.armed.driver.kill()
    await asyncio.to_thread(write_earlier, bench.stage.testbed.places.work_dir / "state" / "claims")


def write_earlier(path: Path) -> None:
    """Make every record what the earlier version would have written, and add one that nobody can read."""
    for claim_uid in read_texts(path):
        edit_record(path, claim_uid, _downgrade)
    write_text(path, "broken", "{")


def _downgrade(record: JsonObject) -> None:
    record["version"] = EARLIER_VERSION
    for field in _NEWER_FIELDS:
        record.pop(field, None)
    for device in record["devices"]:
        for field in _NEWER_DEVICE_FIELDS:
            device.pop(field, None)
