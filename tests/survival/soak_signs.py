"""What a driver that leaks, or leaves something behind, shows: memory, descriptors, threads, leftovers."""

from __future__ import annotations

import asyncio
import os
import re
import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from testbed.cluster import Testbed
from testbed.containerd.node import find_cgroup_processes
from testbed.node.iproute import NETNS_FOLDER

SETTLE_SECONDS = 10.0
_LOOK_SECONDS = 0.5
_POD_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OF_INSTANCES = ("generation", "health.json", ".lock")
"""What the state folder has while an instance lives, whatever it has done."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Of a driver that has nothing to do, with no pod on the node."""

    rss_kib: int
    pss_kib: int
    descriptors: int
    threads: int

    def __str__(self) -> str:
        return (
            f"RSS {self.rss_kib / 1024:.1f} MiB, PSS {self.pss_kib / 1024:.1f} MiB, "
            f"{self.descriptors} descriptors, {self.threads} threads"
        )


BOUNDS = Measure(rss_kib=3 * 1024, pss_kib=3 * 1024, descriptors=3, threads=2)
"""By how much the last third of the measures may lie above the first one. Memory: what an allocator keeps of
a busy moment differs by 1 to 2 MiB from one moment to the next. Ten minutes put about 80 pods between the
two, so that 40 KiB left by each would show; a longer soak sees smaller leaks. Descriptors: connections to the
API server that are kept open. Threads: a pool's, which are made when they are first needed."""


async def measure(pid: int) -> Measure:
    """When two looks in a row find the same, or after :data:`SETTLE_SECONDS`."""
    before, deadline = _read(pid), asyncio.get_running_loop().time() + SETTLE_SECONDS
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        now = _read(pid)
        if now == before or asyncio.get_running_loop().time() > deadline:
            return now
        before = now


def _read(pid: int) -> Measure:
    process = Path(f"/proc/{pid}")
    memory = (process / "smaps_rollup").read_text()
    return Measure(
        rss_kib=_find_kib("Rss", memory),
        pss_kib=_find_kib("Pss", memory),
        descriptors=len([*(process / "fd").iterdir()]),
        threads=len([*(process / "task").iterdir()]),
    )


def _find_kib(name: str, memory: str) -> int:
    found = re.search(rf"^{name}: +(\d+) kB", memory, re.MULTILINE)
    assert found is not None
    return int(found[1])


def summarize_third(measures: Sequence[Measure]) -> Measure:
    """The median of each number."""
    columns = zip(*(asdict(found).values() for found in measures), strict=True)
    return Measure(*(int(statistics.median(column)) for column in columns))


def find_growth(measures: Sequence[Measure]) -> list[str]:
    """What lies higher in the last third than in the first one, by more than :data:`BOUNDS`."""
    third = max(len(measures) // 3, 1)
    first, last = asdict(summarize_third(measures[:third])), asdict(summarize_third(measures[-third:]))
    return [
        f"{key}: {first[key]} in the first third, {last[key]} in the last one"
        for key, bound in asdict(BOUNDS).items()
        if last[key] - first[key] > bound
    ]


def list_left(testbed: Testbed, cgroup: str) -> list[str]:
    """Everything beside links that pods, claims and dead instances may leave, one in a line; ``cgroup`` is
    the runtime's, if it has one. Names of instances are left out: another one lives at the end."""
    places = testbed.places
    state = places.work_dir / "state"
    files = [path for path in _walk(state) if path.is_file() or path.is_socket()]
    found = [f"file {path.relative_to(state)}" for path in files if not path.name.endswith(_OF_INSTANCES)]
    found += [f"lock {path.name}" for path in state.glob("instances/*")]
    found += [f"socket in {path.parent.name}" for path in _walk(places.kubelet_root) if path.is_socket()]
    found += [f"CDI spec {path.name}" for path in places.cdi_dir.iterdir()]
    found += [f"claim {uid} in the store" for uid in _list_claims(state / "claims")]
    for folder in (NETNS_FOLDER, places.netns_dir):
        found += [f"namespace {path.name}" for path in folder.glob("*")]
    found += [f"process {name} of a pod" for name in _list_processes(cgroup)]
    return sorted(_POD_UID.sub("UID", line) for line in found)


def _walk(folder: Path) -> Iterator[Path]:
    """The files below it; folders may go while they are read."""
    for path, _, names in os.walk(folder):
        yield from (Path(path, name) for name in names)


def _list_claims(store: Path) -> list[str]:
    return [path.stem for path in store.glob("*.json")]


def _list_processes(cgroup: str) -> list[str]:
    """What runs in the cgroups of pods. One in which nothing runs is no trace of ours: a containerd that is
    killed while it makes a sandbox may forget that, and a real kubelet removes what is left."""
    pids = find_cgroup_processes(cgroup) if cgroup else set()
    names = []
    for pid in pids:
        with suppress(OSError):  # it has ended
            names.append(Path(f"/proc/{pid}/comm").read_text().strip())
    return names
