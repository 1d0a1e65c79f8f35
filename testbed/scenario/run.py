"""Run a scenario, on a testbed of its own or on another counterpart, and report to a narrator.

What each step does is in ``steps``; here is only the order, the clock and the bookkeeping.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from dranet.errors import DranetError
from testbed.cluster import RuntimeFactory, Testbed
from testbed.runtime.contract import RuntimeFailure
from testbed.scenario.counterpart import Counterpart
from testbed.scenario.on_testbed import OnTestbed
from testbed.scenario.scenario import Scenario, load_scenario_hardware
from testbed.scenario.steps import perform
from testbed.scenario.walk import Lines, Walk


class Narrator(Protocol):
    """Hears of every step, as it happens."""

    def begin(self, title: str) -> None: ...

    def end(self, report: StepReport) -> None: ...


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step's outcome; ``error`` is empty for a step that was as expected."""

    title: str
    seconds: float
    lines: Lines = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class ScenarioReport:
    """What became of a scenario on a runtime. Steps after the first failure were not tried."""

    scenario: str
    runtime: str
    steps: tuple[StepReport, ...]
    driver_log: str = ""
    """The end of the driver's log, where a step failed."""

    @property
    def passed(self) -> bool:
        return not any(step.error for step in self.steps)

    @property
    def failed_step(self) -> str:
        """Title of the first step that was not as expected; empty if all were."""
        return next((step.title for step in self.steps if step.error), "")

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps)


async def run_scenario(
    scenario: Scenario, make_runtime: RuntimeFactory, work_dir: Path, narrator: Narrator
) -> ScenarioReport:
    """Boot a testbed of the scenario's hardware, walk through it, take the testbed down.

    What a step finds wrong is in the report and does not raise.

    Raises:
        InvalidFile: the hardware file.
    """
    execution = Execution(narrator)
    testbed = Testbed(
        load_scenario_hardware(scenario),
        make_runtime,
        work_dir,
        judges_parameters=not scenario.has_wrong_parameters,
    )
    log = ""
    async with AsyncExitStack() as stack:
        title = "Boot the testbed: hardware, fabric, API server, scheduler, kubelet, container runtime"
        if await execution.perform(title, lambda: _boot(testbed, stack)):
            log = await walk_scenario(scenario, OnTestbed(testbed), execution)
            await execution.perform("Take the testbed down", lambda: _close(stack))
    return ScenarioReport(scenario.name, testbed.runtime.name, tuple(execution.reports), log)


async def _boot(testbed: Testbed, stack: AsyncExitStack) -> Lines:
    await stack.enter_async_context(testbed)
    hardware = testbed.node.hardware
    return (f"{hardware.description}; runtime: {testbed.runtime.name}",)


async def walk_scenario(
    scenario: Scenario, cluster: Counterpart, execution: Execution, patience: float = 1.0
) -> str:
    """Every step until one fails; the end of the driver's log then."""
    walk = Walk(cluster, await cluster.read_host_state(), patience)
    for step in scenario.steps:
        if not await execution.perform(step.title, partial(perform, walk, step.action)):
            return cluster.driver.log_tail()
    return ""


async def _close(stack: AsyncExitStack) -> Lines:
    await stack.aclose()
    return ()


class Execution:
    """Times each piece of work and keeps its report."""

    def __init__(self, narrator: Narrator) -> None:
        self.reports: list[StepReport] = []
        self._narrator = narrator

    async def perform(self, title: str, work: Callable[[], Awaitable[Lines]]) -> bool:
        """Whether it went as expected."""
        self._narrator.begin(title)
        begin = time.monotonic()
        lines: Lines = ()
        error = ""
        try:
            lines = await work()
        except (DranetError, RuntimeFailure) as failure:
            error = str(failure)
        report = StepReport(title, time.monotonic() - begin, lines, error)
        self.reports.append(report)
        self._narrator.end(report)
        return not error
