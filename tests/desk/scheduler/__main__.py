"""Give generated cases to the real scheduler and print how it differs from ``dranet explain``.

Exit codes: 0 no difference without a reason; 1 some; 3 this machine lacks what is needed, which is named.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from e2e.access import LaneUnavailable
from e2e.cluster import build
from e2e.cluster.controlplane import ControlPlaneKit, find_kit
from testbed.debian.packages import Unavailable
from testbed.isolation import WORK_DIR, IsolationRefused, run_isolated
from tests.desk.scheduler.claim_new import ClaimReport, fill_machines
from tests.desk.scheduler.running import Report, run
from tests.desk.scheduler.settings import SETTINGS, Setting
from tests.desk.templates.layout_clusters import Gpus

FAILED, CANNOT_RUN_HERE = 1, 3


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    settings = [s for s in SETTINGS if s.version == options.version and options.setting in ("", s.name)]
    try:
        kit = find_kit(build.print_progress, options.version)
        return run_isolated(lambda: asyncio.run(_run(kit, settings, options)))
    except (LaneUnavailable, Unavailable, IsolationRefused) as missing:
        sys.stdout.write(f"skipped: {missing}\n")
        return CANNOT_RUN_HERE


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    versions = sorted({setting.version for setting in SETTINGS})
    parser = argparse.ArgumentParser(prog="python -m tests.desk.scheduler", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, metavar="N", help="for each setting")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="the same cases for the same seed")
    parser.add_argument("--version", choices=versions, default=versions[-1])
    parser.add_argument(
        "--layouts",
        nargs="*",
        choices=[gpus.name for gpus in Gpus],
        metavar="GPUS",
        help=f"fill the machines of tests/data by claim new instead; who publishes the GPUs, of "
        f"{', '.join(gpus.name for gpus in Gpus)}; default: each",
    )
    parser.add_argument(
        "--setting", default="", choices=("", *(s.name for s in SETTINGS)), help="default: all of the version"
    )
    return parser.parse_args(arguments)


async def _run(kit: ControlPlaneKit, settings: Iterable[Setting], options: argparse.Namespace) -> int:
    """In the private tree."""
    unexplained = 0
    for setting in settings:
        if options.layouts is not None:
            publishers = [Gpus[name] for name in options.layouts] or list(Gpus)
            filled = await fill_machines(kit, setting, publishers, Path(WORK_DIR))
            _print_claims(filled, kit.kubernetes.version)
            unexplained += len(filled.differences)
            continue
        report = await run(kit, setting, options.cases, options.seed, Path(WORK_DIR))
        _print(report, kit.kubernetes.version)
        unexplained += len(report.unexplained)
    return FAILED if unexplained else 0


def _print(report: Report, version: str) -> None:
    endings = ", ".join(f"{count} {ending}" for ending, count in report.endings.most_common())
    total = sum(report.endings.values())
    lines = [f"{version} {report.setting.name}, seed {report.seed}: {total} cases: {endings}"]
    reasons = Counter(difference.reason for difference in report.differences if difference.reason)
    lines += [f"  {count} differ: {reason}" for reason, count in reasons.most_common()]
    lines += [f"  case {d.case} ({d.theme}): {d.text}" for d in report.unexplained]
    lines += [f"  {len(report.unexplained)} differences without a reason"]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def _print_claims(report: ClaimReport, version: str) -> None:
    counts = ", ".join(f"{number} {what}" for what, number in report.counts.most_common())
    lines = [f"{version} {report.setting.name}, claim new on each layout: {counts}"]
    lines += [f"  {difference}" for difference in report.differences]
    lines += [f"  the scheduler gave up after ten seconds: {title}" for title in report.given_up]
    lines += [f"  {len(report.differences)} differences"]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
