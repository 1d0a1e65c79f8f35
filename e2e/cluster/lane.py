"""The lane of a real cluster on this machine: each part of the suite gets one, with its hardware."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from e2e.access import Access
from e2e.cluster import build, local
from e2e.cluster.local import LANE, ClusterKit, Options
from e2e.run import OpenLane
from testbed.node.hardware import Hardware

__all__ = ["LANE", "build_opener", "prepare"]


def prepare() -> ClusterKit:
    """Look for everything, fetch and build what is missing.

    Raises:
        LaneUnavailable: what is missing, by name.
        Unavailable: no etcd or no containerd can be had.
    """
    return local.prepare(build.print_progress)


def build_opener(kit: ClusterKit) -> OpenLane:
    logs = Path(os.environ.get("E2E_LOGS", ".cache/e2e")).resolve()
    sys.stdout.write(f"e2e: {LANE}: {kit}; logs in {logs}\n")
    return partial(_open, kit, logs)


@asynccontextmanager
async def _open(
    kit: ClusterKit, logs: Path, hardware: Hardware, work_dir: Path, feature_gates: Sequence[str]
) -> AsyncIterator[Access]:
    options = Options(feature_gates=dict.fromkeys(feature_gates, True))
    async with local.open_cluster(kit, hardware, work_dir, logs, options) as cluster:
        yield cluster.build_access()
