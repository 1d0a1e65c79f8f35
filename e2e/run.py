"""Runs what a lane supports, prints each step as it happens, and keeps the result of each part."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from dranet.errors import DranetError
from e2e import basics
from e2e.access import Access
from e2e.basics import Basics
from e2e.live_cluster import LiveCluster
from e2e.table import Reach, find_blocker
from testbed.cli.narration import choose_storyteller
from testbed.debian.packages import Unavailable
from testbed.node.hardware import Hardware, load_hardware
from testbed.runtime.contract import RuntimeFailure
from testbed.scenario.run import Execution, ScenarioReport, walk_scenario
from testbed.scenario.scenario import Scenario, known_scenarios, load_scenario

BASICS_HARDWARE = "two-nic"
OpenLane = Callable[[Hardware, Path, Sequence[str]], AbstractAsyncContextManager[Access]]
"""Boots a lane whose node has this hardware, in a folder, with Kubernetes' feature gates on."""


class Became(StrEnum):
    PASSED = "passed"
    FAILED = "FAILED"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one part of the suite. ``why`` it was skipped, or the step that failed."""

    name: str
    became: Became
    why: str = ""
    seconds: float = 0.0


class Book:
    """Outcomes in a file, so that what a private tree has seen outlives it."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def note(self, outcome: Outcome) -> None:
        with self.file.open("a") as lines:
            lines.write(json.dumps(asdict(outcome)) + "\n")
            lines.flush()
            os.fsync(lines.fileno())

    def read(self) -> list[Outcome]:
        if not self.file.exists():
            return []
        rows = [json.loads(line) for line in self.file.read_text().splitlines()]
        return [Outcome(**{**row, "became": Became(row["became"])}) for row in rows]


def choose(names: Sequence[str]) -> list[Scenario]:
    """Those of the names, or all; ``basics`` is not a scenario.

    Raises:
        InvalidFile: an unknown name; the known ones are named.
    """
    chosen = [name for name in names if name != basics.NAME]
    return [
        load_scenario(name) for name in chosen or ([path.stem for path in known_scenarios()] * (not names))
    ]


def note_skipped(scenarios: Sequence[Scenario], reach: Reach, book: Book) -> list[Scenario]:
    """Those that can be walked; the others are noted with what they need."""
    left = []
    for scenario in scenarios:
        if why := find_blocker(scenario, reach):
            book.note(Outcome(scenario.name, Became.SKIPPED, why))
        else:
            left.append(scenario)
    return left


async def walk_on(open_lane: OpenLane, work_dir: Path, scenario: Scenario | None, book: Book) -> None:
    """One scenario, or the basics, on a lane booted for it; one that does not boot is the part's failure."""
    hardware = load_hardware(scenario.hardware if scenario else BASICS_HARDWARE)
    name = scenario.name if scenario else basics.NAME
    try:
        async with open_lane(hardware, work_dir, scenario.feature_gates if scenario else ()) as access:
            await walk(access, scenario, book)
    except Unavailable as missing:
        book.note(Outcome(name, Became.SKIPPED, str(missing)))
    except (DranetError, RuntimeFailure) as error:
        book.note(Outcome(name, Became.FAILED, f"the lane: {error}"))


async def walk(access: Access, scenario: Scenario | None, book: Book) -> None:
    """One scenario, or the basics, on a cluster that is there; what it makes is taken away."""
    name = scenario.name if scenario else basics.NAME
    story = choose_storyteller()
    story.introduce(name, scenario.description if scenario else "what every cluster can show")
    execution = Execution(story)
    begin, log, cluster = time.monotonic(), "", LiveCluster(access, with_classes=scenario is None)
    if scenario is not None:
        cluster.driver.judges_parameters = not scenario.has_wrong_parameters
    try:
        async with cluster:
            if scenario is None:
                log = "" if await Basics(cluster).walk(execution) else cluster.driver.log_tail()
            else:
                log = await walk_scenario(scenario, cluster, execution, access.patience)
        why = ""
    except DranetError as error:
        why = f"before or after the steps: {error}"
    report = ScenarioReport(name, access.lane, tuple(execution.reports), log)
    story.sum_up(report)
    story.close()
    failed = report.failed_step or why
    if why:
        sys.stderr.write(f"e2e: {name}: {why}\n")
    book.note(Outcome(name, Became.FAILED if failed else Became.PASSED, failed, time.monotonic() - begin))


def sum_up(lane: str, outcomes: Sequence[Outcome]) -> str:
    """The closing table: every part by name, and how many became what."""
    width = max((len(outcome.name) for outcome in outcomes), default=0)
    lines = [f"end-to-end on {lane}:"]
    for outcome in outcomes:
        took = f"{outcome.seconds:6.1f} s" if outcome.became is not Became.SKIPPED else " " * 8
        lines.append(f"  {outcome.name:<{width}}  {outcome.became:<7}  {took}  {outcome.why}".rstrip())
    counts = [f"{sum(o.became is kind for o in outcomes)} {kind.lower()}" for kind in Became]
    return "\n".join([*lines, ", ".join(counts)])
