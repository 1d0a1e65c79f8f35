"""The drivers of 1,000 nodes on a real API server and etcd: what each phase costs, and jobs with claims.

Two processes run all drivers, each with its own connections and token (``drivers.py``). Everything shares
one machine: seconds show how long this machine is busy, while requests and bytes hold anywhere. It runs by
itself, ``python -m benchmarks.scale_cluster``, and prints the tables of ``docs/dev/scale-1000-nodes.md``
and ``docs/dev/scheduler-jobs.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.scale_cluster.cluster import open_plane, populate
from benchmarks.scale_cluster.counting import Traffic
from benchmarks.scale_cluster.fleet import Fleet, open_fleet
from benchmarks.scale_cluster.jobs import Job, run_jobs
from benchmarks.scale_cluster.phases import Meter, Phase, print_progress
from benchmarks.scale_cluster.tables import print_jobs, print_phases
from e2e.access import LaneUnavailable
from e2e.cluster import build
from e2e.cluster.controlplane import ControlPlane, ControlPlaneKit, find_kit
from testbed.debian.packages import Unavailable
from testbed.isolation import WORK_DIR, IsolationRefused, run_isolated

CANNOT_RUN_HERE = 3
WATCHES = 2
"""Watches of each driver: its own slices, and those of other drivers on a node with GPUs."""
DRY_RUNS = 3
"""By which a driver asks what the server keeps: at its start, and when its watch was cut."""
FEATURES_SECONDS = 300.0
"""A driver that is younger does not ask again."""
_OUTPUT = Path(__file__).parents[1] / "results/scale_cluster.local.json"
_LOGS = Path(".cache/benchmarks/scale_cluster").resolve()


@dataclass(frozen=True, slots=True)
class Size:
    """How large the cluster is, and how long it is watched."""

    nodes: int
    pods: int
    idle_seconds: float

    @property
    def names(self) -> list[str]:
        return [f"node-{number:04}" for number in range(self.nodes)]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    size = Size(options.nodes, options.pods, options.idle_seconds)
    try:
        kit = find_kit(build.print_progress)
        return run_isolated(partial(_run, kit, size, options.output))
    except (LaneUnavailable, Unavailable, IsolationRefused) as missing:
        print(f"not measured: {missing}", file=sys.stderr)
        return CANNOT_RUN_HERE


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale_cluster", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000, metavar="N")
    parser.add_argument("--pods", type=int, default=512, metavar="N", help="of each job; at most N nodes")
    parser.add_argument(
        "--idle-seconds", type=float, default=330.0, metavar="S", help="how long the idle drivers are watched"
    )
    parser.add_argument("--output", type=Path, default=_OUTPUT, help="where the JSON goes")
    return parser.parse_args(arguments)


def _run(kit: ControlPlaneKit, size: Size, output: Path) -> int:
    """Measure in the private tree, print, and write."""
    logging.getLogger("dranet.cluster").setLevel(logging.ERROR)  # our own watches end as well
    phases, jobs = asyncio.run(_measure(kit, size))
    version = kit.kubernetes.version
    print(f"Kubernetes {version}, {size.nodes:,} nodes\n")
    print_phases(phases, size.nodes)
    print_jobs(jobs)
    results = {
        "version": version,
        "nodes": size.nodes,
        "phases": [phase.as_json() for phase in phases],
        "jobs": [job.as_json() for job in jobs],
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(results, indent=2) + "\n")
    print(f"written to {output}")
    return 0


async def _measure(kit: ControlPlaneKit, size: Size) -> tuple[list[Phase], list[Job]]:
    print_progress("starting the control plane ...")
    async with open_plane(kit, WORK_DIR, _LOGS) as plane, plane.connect() as api:
        print_progress(f"creating {size.nodes:,} nodes with a pod of the driver each ...")
        tokens = await populate(api, size.names)
        log = _LOGS / "drivers.log"
        async with open_fleet(plane.plan.kubeconfig("admin"), tokens, log) as fleet:
            phases = await _measure_phases(plane, fleet, size)
            return phases, await run_jobs(plane, api, size.pods)


async def _measure_phases(plane: ControlPlane, fleet: Fleet, size: Size) -> list[Phase]:
    meter = Meter(plane, fleet)
    nodes = size.nodes

    def are_watching(traffic: Traffic) -> bool:
        has_begun = traffic.count("watch", 200) >= WATCHES * nodes
        return has_begun and traffic.watching == WATCHES * nodes and traffic.published == nodes

    def have_written(traffic: Traffic) -> bool:
        return (
            traffic.published == nodes and traffic.count("update", 200) > 0
        )  # some may get no answer in time

    def have_returned(traffic: Traffic) -> bool:
        asks_again = size.idle_seconds >= FEATURES_SECONDS
        dry_runs = DRY_RUNS * nodes if asks_again else 0
        return are_watching(traffic) and traffic.count("create", 201, 422) >= dry_runs

    idle = f"idle, {size.idle_seconds:g} s"
    change = "a NIC of every node loses its carrier"
    return [
        await meter.measure("all drivers start at once", partial(fleet.order, "start"), are_watching),
        await meter.measure(change, partial(fleet.order, "change"), have_written),
        await meter.watch(idle, size.idle_seconds),
        await meter.measure("the API server restarts", meter.restart_apiserver, have_returned),
        await meter.measure("all drivers restart at once", partial(fleet.order, "restart"), are_watching),
    ]


if __name__ == "__main__":
    sys.exit(main())
