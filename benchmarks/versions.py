"""``python -m benchmarks.versions CHECKOUT``: what the driver costs, against that of another checkout.

Both run in turn on one testbed with 1,000 links and a full scan each second: processor time until ready and
of ten seconds at rest, duration of a scan, memory. A third series is this checkout with every optional
capability off. Private trees have a ``/tmp`` of their own, so the other checkout must be outside it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import dranet
from benchmarks.capabilities import ALL_OFF, read_processor_ms, read_scans
from benchmarks.driver import LINKS, add_links, read_rss_mb
from benchmarks.measure import HEADER, Result, Series
from dranet.terminal import format_table
from testbed.cluster import Testbed
from testbed.isolation import WORK_DIR, run_isolated
from testbed.node.hardware import load_hardware
from testbed.runtimes import stand_in

ROUNDS = 7
REST_SECONDS = 10.0
_READY_SECONDS = 60.0
_EACH_SECOND = {"rescan_seconds": "1"}
_MEASURED = {
    "processor time until ready": "ms",
    f"processor time of {REST_SECONDS:g} s at rest": "ms",
    f"full scan of {LINKS} links": "ms",
    "memory": "MB",
}

Samples = dict[str, tuple[list[float], ...]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions", description=__doc__)
    parser.add_argument("checkout", type=Path, help="folder of the other version, as of `git worktree add`")
    other = parser.parse_args().checkout.resolve()
    if not (other / "dranet/__main__.py").is_file():
        parser.error(f"{other} is no checkout of this project: it has no dranet/__main__.py")
    return run_isolated(partial(_run, other))


def _run(other: Path) -> int:
    samples = asyncio.run(_measure(other))
    rows = [result.as_row() for result in _compare(samples)]
    print("\n".join(line for block in format_table(HEADER, rows) for line in block), flush=True)
    return 0


def _compare(samples: Samples) -> Iterator[Result]:
    for index, (what, unit) in enumerate(_MEASURED.items()):
        floor = Series("the other checkout", tuple(samples["other"][index]), unit)
        for name in ("by default", "all off"):
            yield Result(f"{what}, {name}", Series(name, tuple(samples[name][index]), unit), floor)


async def _measure(other: Path) -> Samples:
    here = Path(dranet.__file__).parent.parent
    builds: Mapping[str, tuple[Path, Mapping[str, str]]] = {
        "other": (other, {}),
        "by default": (here, {}),
        "all off": (here, ALL_OFF),
    }
    samples: Samples = {name: tuple([] for _ in _MEASURED) for name in builds}
    async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR) as testbed:
        await asyncio.to_thread(add_links)
        for number in range(ROUNDS):
            print(f"round {number + 1} of {ROUNDS} ...", file=sys.stderr, flush=True)
            for name, (folder, settings) in builds.items():
                command = ("env", f"PYTHONPATH={folder}", sys.executable, "-P", "-m", "dranet", "run")
                await testbed.driver.start({**settings, **_EACH_SECOND}, command=command)
                for series, value in zip(samples[name], await _measure_one(testbed), strict=True):
                    series.append(value)
                await testbed.driver.stop()
    return samples


async def _measure_one(testbed: Testbed) -> tuple[float, ...]:
    """In the order of ``_MEASURED``."""
    await testbed.driver.wait_ready(_READY_SECONDS)
    pid = testbed.driver.pid
    until_ready = read_processor_ms(pid)
    await asyncio.sleep(1)
    worked, (seconds, scans) = read_processor_ms(pid), await read_scans()
    await asyncio.sleep(REST_SECONDS)
    more_seconds, more_scans = await read_scans()
    at_rest = read_processor_ms(pid) - worked
    scan_ms = (more_seconds - seconds) / (more_scans - scans) * 1000
    return until_ready, at_rest, scan_ms, read_rss_mb(pid)


if __name__ == "__main__":
    sys.exit(main())
