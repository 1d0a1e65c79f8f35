"""Drivers that kill themselves at a step: arming them, and what they did until then."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from dranet.failpoints import Failpoint
from testbed.driver.process import DriverProcess
from tests.survival.builds.dying_driver import JOURNAL, ORDER
from tests.survival.environment import Stage

UNCOUNTED = frozenset(
    {
        *(Failpoint.ATTACH_STATUS_WRITTEN, Failpoint.HANDOVER_REQUEST_LEFT),
        *(Failpoint.MIGRATE_STAGED, Failpoint.MIGRATE_REPLACED, Failpoint.MIGRATE_COMMITTED),
    }
)
"""How often these are reached depends on the moment: statuses that follow each other soon are one write, and
who waits asks again. Only their first time is a point."""


SLOW_SECONDS, HOOK_SECONDS = 0.6, 0.5
"""What a link takes to move, and how long a hook may take: one link is enough for it to be answered."""


class Armed:
    """One driver of the test build. ``folder`` is its own; ``rdma`` is where it is written down in whose
    namespace each RDMA device is, ``None``: they do not move. ``slow``: hooks are answered while links are
    still moving, when it is armed."""

    def __init__(
        self, stage: Stage, driver: DriverProcess, folder: Path, rdma: Path | None, *, slow: bool = False
    ) -> None:
        self._stage = stage
        self.driver = driver
        self.folder = folder
        folder.mkdir(exist_ok=True)
        build = (sys.executable, "-m", "tests.survival.builds.dying_driver", str(folder))
        self._command: tuple[str, ...] = (*build, "--rdma", str(rdma)) if rdma else build
        self._settings: Mapping[str, str] = {}
        if slow:
            self._command += ("--slow", str(SLOW_SECONDS))
            self._settings = {"hook_budget_seconds": str(HOOK_SECONDS)}

    async def start(self, die_at: str = "", settings: Mapping[str, str] | None = None) -> None:
        """Start it; does not wait."""
        settings = {**self._settings, **(settings or {})}
        await self.driver.start(settings, command=(*self._command, "--die-at", die_at))

    async def arm(self, point: str) -> None:
        """It runs, and counts from now on."""
        order = self.folder / ORDER
        order.with_suffix(".new").write_text(point)
        order.with_suffix(".new").rename(order)
        os.kill(self.driver.pid, signal.SIGUSR1)
        await self._stage.until(lambda: not order.exists(), f"the driver is armed for {point}")

    async def wait_killed(self, point: str) -> None:
        """It has died as it should, at that very step.

        Raises:
            AssertionError: it has not, in time.
        """
        step = point.partition("@")[0].rpartition(":")[0]
        await self._stage.until(lambda: not self.driver.is_running, f"the driver dies at {point}", 40)
        assert self.driver.exit_code == -signal.SIGKILL, f"{self.driver.exit_code}: {self.driver.log_tail()}"
        assert self.read_journal()[-1] == step

    def read_journal(self, since: int = 0) -> list[str]:
        """The steps that it has reached, in order."""
        journal = self.folder / JOURNAL
        return journal.read_text().splitlines()[since:] if journal.exists() else []


def find_points(counts: Iterable[Counter[str]], wanted: frozenset[Failpoint]) -> Iterator[str]:
    """The first and the last time of each wanted step, by what rehearsals have counted.

    Raises:
        AssertionError: a step was never reached; names it.
    """
    fewest = dict.fromkeys(wanted, 0)
    for number, count in enumerate(counts):
        for step in wanted:
            fewest[step] = min(fewest[step], count[step]) if number else count[step]
    missed = sorted(step for step, count in fewest.items() if not count)
    assert not missed, f"failpoints that were not reached: {', '.join(missed)}"
    for step in Failpoint:
        if step in wanted:
            yield f"{step}:1"
            if fewest[step] > 1 and step not in UNCOUNTED:
                yield f"{step}:{fewest[step]}"
