"""Runs of cases against a scheduler, and the table of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dranet.cluster.client import ApiClient
from e2e.cluster.controlplane import ControlPlaneKit
from tests.desk.scheduler.cases import Case, generate
from tests.desk.scheduler.predictions import Difference, find_difference, foretell, is_told
from tests.desk.scheduler.reasons import find_reason
from tests.desk.scheduler.settings import Setting, open_scheduler
from tests.desk.scheduler.submission import find_rules_path, give, prepare, schedule

_AT_ONCE = 250
"""Cases in one cluster at a time: a scheduler looks at the slices of all of them for every pod."""
_PER_CLUSTER = 1000


@dataclass
class Report:
    """What came of the cases of one setting."""

    setting: Setting
    seed: int
    kinds: Counter[str] = field(default_factory=Counter)
    """By theme."""
    endings: Counter[str] = field(default_factory=Counter)
    """``allocated``, ``Unschedulable``, ``SchedulerError``, ``refused`` by the API server, ``untold``."""
    differences: list[Difference] = field(default_factory=list)

    @property
    def unexplained(self) -> list[Difference]:
        return [difference for difference in self.differences if not difference.reason]


async def run(kit: ControlPlaneKit, setting: Setting, count: int, seed: int, folder: Path) -> Report:
    """Give ``count`` cases to the scheduler; inside a private tree only."""
    report = Report(setting, seed)
    cases = generate(count, seed, setting.dialect)
    for number, some in enumerate(_batched(cases, _PER_CLUSTER)):
        async with open_scheduler(kit, setting, folder / f"{setting.slug}-{number}") as api:
            await prepare(api)
            rules_path = await find_rules_path(api)
            for chunk in _batched(some, _AT_ONCE):
                await _run_chunk(api, chunk, rules_path, report)
    return report


def _batched(cases: Sequence[Case], size: int) -> Iterator[Sequence[Case]]:
    return (cases[start : start + size] for start in range(0, len(cases), size))


async def _run_chunk(api: ApiClient, cases: Sequence[Case], rules_path: str, report: Report) -> None:
    given = await give(api, cases, rules_path)
    foretold = {one.case.number: foretell(one) for one in given if not one.refusal}
    await schedule(api, given)
    for one in given:
        report.kinds[one.case.theme] += 1
        if one.answer is None:
            report.endings["refused"] += 1
            continue
        if not is_told(foretold[one.case.number]):
            report.endings["untold"] += 1
            continue
        report.endings[one.answer.reason or "allocated"] += 1
        difference = find_difference(report.setting, one, foretold[one.case.number])
        if difference is not None:
            reason = find_reason(report.setting, one, foretold[one.case.number])
            report.differences.append(replace(difference, reason=reason))
