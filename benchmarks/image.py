"""The container image: start to serving inside its root filesystem, against the driver in the virtualenv.

Both run in turn on one testbed node. The image has another Python, that of its Debian, which is part of what
is compared. A busy machine distorts CPU time least; memory is the driver's ``VmRSS`` when it is ready.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Result, Series
from testbed.cluster import Testbed
from testbed.driver.process import COMMAND
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.rootfs import mount_root
from testbed.runtimes import stand_in
from tools.image.build import find_or_build

STARTS = 12
BOUND = 1.15
"""The image must not start slower than a development tree."""


@dataclass(frozen=True, slots=True)
class Start:
    """One start: from exec until ``/readyz`` answers 200."""

    wall_ms: float
    cpu_ms: float
    memory_mb: float


def fetch() -> None:
    """Build the image, which needs the network unless its packages are cached.

    Raises:
        PackagesUnavailable, ImageError: it cannot be built on this machine.
    """
    find_or_build()


def run() -> Iterator[Result]:
    inside = (*mount_root(find_or_build().root), "/usr/bin/dranet", "run")
    starts = asyncio.run(_measure({"image": inside, "virtualenv": COMMAND}))
    ours, theirs = starts["image"], starts["virtualenv"]
    yield Result(
        "image: start to serving, against the virtualenv",
        Series("image", tuple(start.wall_ms for start in ours)),
        Series("virtualenv", tuple(start.wall_ms for start in theirs)),
    )
    yield Result(
        "image: CPU time until it serves, against the virtualenv",
        Series("image", tuple(start.cpu_ms for start in ours)),
        Series("virtualenv", tuple(start.cpu_ms for start in theirs)),
        BOUND,
    )
    yield Result(
        "image: memory when it serves, against the virtualenv",
        Series("image", tuple(start.memory_mb for start in ours), unit="MB"),
        Series("virtualenv", tuple(start.memory_mb for start in theirs), unit="MB"),
        BOUND,
    )


async def _measure(builds: Mapping[str, Sequence[str]]) -> dict[str, list[Start]]:
    starts: dict[str, list[Start]] = {name: [] for name in builds}
    async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR) as testbed:
        for turn in range(STARTS + 1):
            for name, command in builds.items():
                start = await _start(testbed, command)
                if turn:  # the first one reads the files from the disk
                    starts[name].append(start)
    return starts


async def _start(testbed: Testbed, command: Sequence[str]) -> Start:
    begin = time.perf_counter()
    await testbed.driver.start(command=command)
    await testbed.driver.wait_ready(30)
    elapsed = (time.perf_counter() - begin) * 1000
    process = Path(f"/proc/{testbed.driver.pid}")
    stat, status = process.joinpath("stat").read_text(), process.joinpath("status").read_text()
    await testbed.driver.stop()
    user, system = stat.rpartition(")")[2].split()[11:13]
    memory = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    assert memory is not None
    return Start(elapsed, (int(user) + int(system)) * 1000 / os.sysconf("SC_CLK_TCK"), int(memory[1]) / 1024)
