"""Publish: the node has more devices all at once, or fewer, and the driver dies between two writes."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from itertools import zip_longest
from pathlib import Path

from dranet.failpoints import Failpoint
from dranet.model.capture import Capture, encode_capture
from dranet.model.facts import Link, NodeFacts, PciFunction
from tests.survival.environment import READY_SECONDS, Stage
from tests.survival.kill_points.armed import find_points
from tests.survival.kill_points.bench import Bench, a_bench, steps_of
from tests.survival.verification import Verdict

FEW, MANY = 3, 140
"""NICs: one slice of them, and several."""


async def die_while_slices_are_written(stage: Stage) -> None:
    """What the next driver finds half written becomes the whole pool, and nothing beside it."""
    async with a_bench(stage, claims=1) as bench:
        for number in (FEW, MANY):
            await asyncio.to_thread(_capture(stage, number).write_text, _encode(number))
        await _change_to(bench, FEW)
        grows = [*find_points([await _change_to(bench, MANY)], _steps(Failpoint.PUBLISH_SLICE_DELETED))]
        shrinks = [*find_points([await _change_to(bench, FEW)], _steps(Failpoint.PUBLISH_SLICE_CREATED))]
        for grow, shrink in zip_longest(grows, shrinks):
            for point, number in ((grow, MANY), (shrink, FEW)):
                if point is None:
                    await _change_to(bench, number)
                else:
                    await bench.attempt(point, f"{number} devices", partial(_die, bench, point, number))


def _steps(but: Failpoint) -> frozenset[Failpoint]:
    return steps_of("publish", without=frozenset({but}))


def _capture(stage: Stage, number: int) -> Path:
    return stage.testbed.places.work_dir / f"{number}-nics.json"


def _encode(number: int) -> str:
    """A machine with so many NICs."""
    links, functions = [], []
    for index in range(number):
        address = f"{index // 32:04x}:21:{index % 32:02x}.0"
        functions.append(PciFunction(address, 0x020000, 0x15B3, 0x1021, driver="mlx5_core", path=(address,)))
        links.append(
            Link(100 + index, f"rail{index}", flags=1, carrier=True, parent_bus="pci", pci_address=address)
        )
    return encode_capture(Capture(NodeFacts(links=tuple(links), pci_functions=tuple(functions))))


async def _change_to(bench: Bench, number: int) -> Counter[str]:
    """Another driver that finds so many devices, and has published them; the steps of it."""
    if bench.armed.driver.is_running:
        await bench.armed.driver.kill()
    begin = len(bench.armed.read_journal())
    await bench.armed.start(settings=_settings(bench, number))
    await bench.armed.driver.wait_ready(READY_SECONDS)
    return Counter(bench.armed.read_journal(begin))


def _settings(bench: Bench, number: int) -> dict[str, str]:
    return {"facts_file": str(_capture(bench.stage, number))}


async def _die(bench: Bench, point: str, number: int) -> Verdict:
    await bench.armed.driver.kill()
    await bench.armed.start(point, _settings(bench, number))
    await bench.armed.wait_killed(point)
    await _change_to(bench, number)
    slices = await bench.stage.testbed.fetch_slices()
    names = [device["name"] for found in slices for device in found["spec"]["devices"]]
    pools = {
        (found["spec"]["pool"]["generation"], found["spec"]["pool"]["resourceSliceCount"]) for found in slices
    }
    assert len(names) == len(set(names)) == number, f"{len(names)} devices, {len(set(names))} names"
    assert [count for _, count in pools] == [len(slices)], f"{pools}, and there are {len(slices)} slices"
    return Verdict()
