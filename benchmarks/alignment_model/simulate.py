"""Jobs come to a node, run and leave; each gets GPUs and NICs by one of the policies below.

Arrivals are a Poisson process, running times are exponential, and a job that finds no room goes away (to
another node). All randomness is of one seed. Replicas are independent, so intervals come from their spread.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from benchmarks.alignment_model.machines import Machine
from dranet.claims.alignment import level, pair

SEED = 20250623
REPLICAS, JOBS, WARM_UP = 60, 500, 50
LOAD = 0.9
"""GPUs that arriving jobs want, of those that there are."""
SIZES = {1: 0.4, 2: 0.3, 4: 0.2, 8: 0.1}
"""How many GPUs a job has, and how often; a machine with fewer goes without the large ones."""


class Policy(StrEnum):
    """The part that chooses the devices of a job."""

    RANDOM = "random"
    """A device plugin for GPUs and one for NICs, which know nothing of each other: any that are free."""
    ALIGNED = "aligned"
    """A claim with a constraint: GPUs and NICs in order, but only what is near; else the job gets none."""
    MIXED = "mixed"
    """Every second job, by chance, comes with such a claim; the others take any."""


def sizes_on(machine: Machine) -> list[int]:
    """Those of which a job finds room on the empty machine."""
    return [size for size in SIZES if size <= machine.most_gpus]


@dataclass(frozen=True, slots=True)
class Placement:
    """One job that found room. ``is_possible``: aligned devices were free when it came."""

    size: int
    levels: tuple[int, ...]
    """The distance from each NIC to its GPU."""
    is_near: bool
    """All of them are near enough."""
    is_possible: bool


@dataclass(slots=True)
class Node:
    """What is free."""

    machine: Machine
    gpus: set[int] = field(default_factory=set)
    nics: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.gpus = set(range(len(self.machine.gpus)))
        self.nics = set(range(len(self.machine.nics)))

    def find_any(self, size: int, draw: random.Random) -> Devices | None:
        """``size`` GPUs and their number of NICs, by chance."""
        nics = size * self.machine.nics_per_gpu
        if len(self.gpus) < size or len(self.nics) < nics:
            return None
        return tuple(draw.sample(sorted(self.gpus), size)), tuple(draw.sample(sorted(self.nics), nics))

    def find_near(self, size: int) -> Devices | None:
        """The first GPUs that have enough near NICs left; no GPU takes what another could not do without,
        because NICs are near to all GPUs of a group or to none of it."""
        gpus: list[int] = []
        nics: list[int] = []
        for gpu in sorted(self.gpus):
            order = [nic for nic in nearest_first(self.machine, gpu) if nic in self.nics and nic not in nics]
            if len(gpus) < size and len(order) >= self.machine.nics_per_gpu:
                gpus.append(gpu)
                nics += order[: self.machine.nics_per_gpu]
        return (tuple(gpus), tuple(nics)) if len(gpus) == size else None

    def take(self, devices: Devices) -> None:
        self.gpus.difference_update(devices[0])
        self.nics.difference_update(devices[1])

    def release(self, devices: Devices) -> None:
        self.gpus.update(devices[0])
        self.nics.update(devices[1])


Devices = tuple[tuple[int, ...], tuple[int, ...]]

_ORDERS: dict[tuple[str, int], tuple[int, ...]] = {}


def nearest_first(machine: Machine, gpu: int) -> tuple[int, ...]:
    """The NICs that are near to a GPU, the nearest first."""
    key = machine.name, gpu
    if key not in _ORDERS:
        levels = [level(pair([nic], [machine.gpus[gpu]]).distances[0]) for nic in machine.nics]
        near = [nic for nic in range(len(machine.nics)) if levels[nic] <= machine.near]
        _ORDERS[key] = tuple(sorted(near, key=lambda nic: (levels[nic], nic)))
    return _ORDERS[key]


def run(machine: Machine, policy: Policy, replica: int, jobs: int = JOBS) -> list[Placement]:
    """One replica: the jobs that found room, in order, without those of the beginning."""
    draw = random.Random(f"{SEED} {machine.name} {policy} {replica}")
    sizes = sizes_on(machine)
    weights = [SIZES[size] for size in sizes]
    mean = sum(s * w for s, w in zip(sizes, weights, strict=True)) / sum(weights)
    rate = LOAD * machine.most_gpus / mean
    node, now = Node(machine), 0.0
    running: list[tuple[float, int, Devices]] = []
    placed: list[Placement] = []
    for number in range(jobs + WARM_UP):
        now += draw.expovariate(rate)
        while running and running[0][0] <= now:
            node.release(heapq.heappop(running)[2])
        (size,) = draw.choices(sizes, weights)
        wants_near = policy is Policy.ALIGNED or (policy is Policy.MIXED and draw.random() < 0.5)
        any_devices, near_devices = node.find_any(size, draw), node.find_near(size)
        devices = near_devices if wants_near else any_devices
        if number >= WARM_UP and any_devices is not None:
            placed.append(_describe(machine, size, devices, near_devices is not None))
        if devices is not None:
            node.take(devices)
            heapq.heappush(running, (now + draw.expovariate(1.0), number, devices))
    return placed


def _describe(machine: Machine, size: int, devices: Devices | None, is_possible: bool) -> Placement:
    distances = machine.distances(*devices) if devices is not None else ()
    near = bool(distances) and all(map(machine.is_near, distances))
    return Placement(size, tuple(map(level, distances)), near, is_possible)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over replicas, and half the width of its 95 % interval."""

    value: float
    plus_minus: float

    def as_json(self) -> list[float]:
        return [round(self.value, 4), round(self.plus_minus, 4)]


def estimate(values: Sequence[float]) -> Estimate:
    """For independent values; 2.00 is Student's t for 60 of them."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return Estimate(statistics.fmean(values), 2.00 * error)


def simulate(machine: Machine, policy: Policy) -> dict[str, object]:
    """All replicas, as the row of the results."""
    replicas = [run(machine, policy, replica) for replica in range(REPLICAS)]
    by_size = {str(size): _of_size(machine, replicas, size) for size in sizes_on(machine)}
    return {"levels": _share_of_levels(replicas), "by_size": by_size}


def _share_of_levels(replicas: Sequence[Sequence[Placement]]) -> dict[str, float]:
    """Over all pairs of all jobs."""
    counted = Counter(found for placed in replicas for job in placed for found in job.levels)
    return {str(found): round(counted[found] / counted.total(), 4) for found in sorted(counted)}


def _of_size(machine: Machine, replicas: Sequence[Sequence[Placement]], size: int) -> dict[str, object]:
    found: dict[str, list[float]] = defaultdict(list)
    for placed in replicas:
        for name, values in _quantities(machine, [job for job in placed if job.size == size]):
            if values:
                found[name].append(statistics.fmean(values))
    rows: dict[str, object] = {name: estimate(values).as_json() for name, values in found.items()}
    levels = [
        _bandwidth(machine, job) for placed in replicas for job in placed if job.size == size and job.levels
    ]
    rows["bandwidth_sd"] = round(statistics.pstdev(levels), 4)
    return rows


def _quantities(machine: Machine, jobs: Sequence[Placement]) -> Iterator[tuple[str, list[float]]]:
    started = [job for job in jobs if job.levels]
    yield "aligned", [float(job.is_near) for job in started]
    yield "bandwidth", [_bandwidth(machine, job) for job in started]
    yield "possible", [float(job.is_possible) for job in jobs]


def _bandwidth(machine: Machine, job: Placement) -> float:
    """A collective is as fast as its slowest NIC."""
    return machine.bandwidth.near if job.is_near else machine.bandwidth.far
