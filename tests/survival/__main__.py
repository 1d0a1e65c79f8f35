"""``python -m tests.survival``: a soak for minutes, with progress and a table at the end (``make soak``)."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import secrets
import sys
from dataclasses import asdict
from pathlib import Path

from testbed.cluster import RuntimeFactory
from testbed.containerd.fetch import ContainerdUnavailable
from testbed.isolation import IsolationRefused, run_isolated
from tests.survival.environment import CONTAINERD, find_runtime
from tests.survival.soak import RUNTIMES, Report, soak
from tests.survival.soak_signs import summarize_third
from tests.survival.table import render

REFUSED = 77
"""Exit code where this machine cannot have the runtime, or a private tree."""

_LOG_LINE = "%(asctime)s.%(msecs)03d %(name)s: %(message)s"


def main() -> int:
    options = _parse_arguments()
    try:
        make_runtime = find_runtime(options.runtime)
        return run_isolated(lambda: _soak(options, make_runtime))
    except (ContainerdUnavailable, IsolationRefused) as refused:
        _say(str(refused))
        return REFUSED


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.survival", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long, about (600)")
    parser.add_argument("--runtime", choices=RUNTIMES, default=CONTAINERD, help=f"({CONTAINERD})")
    parser.add_argument("--seed", type=int, default=0, help="of an earlier run, to do the same again")
    parser.add_argument("--logs", type=Path, help="keep the logs in this folder where something is wrong")
    parser.add_argument("--json", type=Path, help="write the report to this file, too")
    return parser.parse_args()


def _soak(options: argparse.Namespace, make_runtime: RuntimeFactory) -> int:
    seed = options.seed or secrets.randbelow(10**6)
    _keep_what_the_testbed_says(options.logs)
    _say(f"soak for {options.seconds:g} s on {options.runtime}; repeat with SEED={seed}")
    report = asyncio.run(soak(options.seconds, make_runtime, seed, _say, options.logs))
    _show(report)
    if report.wrong and options.logs:
        _say(f"logs: {options.logs.resolve()}")
    if options.json:
        options.json.write_text(json.dumps(asdict(report)))
    return 1 if report.wrong else 0


def _keep_what_the_testbed_says(folder: Path | None) -> None:
    """Its parts complain of each fault, which is no news between the lines of progress."""
    if folder is None:
        logging.getLogger().addHandler(logging.NullHandler())
        return
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "testbed.log"
    logging.basicConfig(filename=file, filemode="w", level=logging.INFO, format=_LOG_LINE)


def _show(report: Report) -> None:
    _say("")
    for title, counts in (("pods", report.pods), ("faults", report.faults)):
        _say(f"{title}: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    _say(f"pods deleted while they started: {report.hurried}")
    third = max(len(report.measures) // 3, 1)
    _say(f"first third: {summarize_third(report.measures[:third])}")
    _say(f"last third:  {summarize_third(report.measures[-third:])}")
    if report.row is not None:
        _say(render([report.row]))
    _say("\n".join(report.wrong) or f"all well (seed {report.seed})")


def _say(text: str) -> None:
    os.write(sys.stdout.fileno(), f"{text}\n".encode())


if __name__ == "__main__":
    sys.exit(main())
