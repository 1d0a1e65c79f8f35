"""``python -m benchmarks [NAME...]``: run, print a table, write JSON; exit 1 when a bound is not held."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from benchmarks import image, pod_start, runtime_start
from benchmarks.measure import HEADER
from dranet.terminal import format_table
from testbed.debian.packages import Unavailable
from testbed.isolation import run_isolated
from tools.image.debian import ImageError

NAMES = (
    "selectors",
    "scan",
    "hook",
    "rates",
    "driver",
    "capabilities",
    "rolling_update",
    "pod_start",
    "runtime_start",
    "moves",
    "explain",
    "image",
    "scrape",
    "store",
)
MODEL = "alignment_model"
"""Measures nothing and has files of its own, so it runs only where it is named, alone."""
_FETCH = {"pod_start": pod_start.fetch, "runtime_start": runtime_start.fetch, "image": image.fetch}
RESULTS = Path(__file__).parent / "results"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "name", nargs="*", choices=(*NAMES, MODEL, []), help="which to run; default: all that measure"
    )
    parser.add_argument(
        "--output", type=Path, default=RESULTS / "latest.local.json", help="where the JSON goes"
    )
    options = parser.parse_args()
    if MODEL in options.name:
        if len(options.name) > 1:
            parser.error(f"{MODEL} runs alone")
        return int(import_module(f"benchmarks.{MODEL}.__main__").main())
    options.output.parent.mkdir(parents=True, exist_ok=True)
    names = _choose(options.name or NAMES)
    codes = [
        run_isolated(partial(_run_one, name, options.output.with_suffix(f".{name}.part"))) for name in names
    ]
    return max(codes, default=0) or _merge(options.output)


def _choose(names: Sequence[str]) -> Sequence[str]:
    """Print and leave out what this machine cannot measure. The private trees have no network."""
    missing = set()
    for name, fetch in _FETCH.items():
        if name in names:
            try:
                fetch()
            except (Unavailable, ImageError) as error:
                print(f"not measured: {name}: {error}", file=sys.stderr)
                missing.add(name)
    return [name for name in names if name not in missing]


def _run_one(name: str, part: Path) -> int:
    """One benchmark in a private tree of its own."""
    print(f"measuring: {name} ...", file=sys.stderr, flush=True)
    results = list(import_module(f"benchmarks.{name}").run())
    part.write_text(json.dumps([result.as_json() for result in results]))
    blocks = format_table(HEADER, [result.as_row() for result in results])
    print("\n".join(line for block in blocks for line in block), flush=True)
    return 0


def _merge(output: Path) -> int:
    rows = []
    for part in sorted(output.parent.glob(f"{output.stem}.*.part")):
        rows += json.loads(part.read_text())
        part.unlink()
    machine = {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}
    output.write_text(json.dumps({"machine": machine, "results": rows}, indent=2) + "\n")
    missed = [row["title"] for row in rows if not row["within_bound"]]
    print(f"\nwritten to {output}")
    if missed:
        print(f"bound not held: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
