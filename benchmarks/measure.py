"""Time two things in turn and print medians, p99 and the ratio pair by pair."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_CPUCLOCK_SCHED = 2
"""From ``linux/posix-timers.h``."""


@dataclass(frozen=True, slots=True)
class Series:
    """Samples of one quantity; ``unit`` is ``ms`` or ``MB``."""

    name: str
    samples: tuple[float, ...]
    unit: str = "ms"

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def p99(self) -> float:
        """The 99th percentile; the maximum where there are fewer than 100 samples."""
        ordered = sorted(self.samples)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "runs": len(self.samples),
            "median": round(self.median, 3),
            "p99": round(self.p99, 3),
        }


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the report. ``bound`` is the most that the ratio (without a floor: the median) may be."""

    title: str
    ours: Series
    floor: Series | None = None
    bound: float | None = None
    of_p99: bool = False
    """The ratio is that of the two 99th percentiles."""

    @property
    def ratio(self) -> float | None:
        """Median of the ratios pair by pair, which holds when the machine's speed drifts."""
        if self.floor is None:
            return None
        if self.of_p99:
            return self.ours.p99 / self.floor.p99
        return statistics.median(a / b for a, b in zip(self.ours.samples, self.floor.samples, strict=True))

    @property
    def within_bound(self) -> bool:
        value = self.ours.median if self.ratio is None else self.ratio
        return self.bound is None or value <= self.bound

    def as_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "ours": self.ours.as_json(),
            "floor": self.floor.as_json() if self.floor else None,
            "ratio": None if self.ratio is None else round(self.ratio, 3),
            "bound": self.bound,
            "within_bound": self.within_bound,
        }

    def as_row(self) -> tuple[str, ...]:
        unit = self.ours.unit
        return (
            self.title,
            f"{self.ours.median:.1f} {unit}",
            f"{self.ours.p99:.1f} {unit}",
            "-" if self.floor is None else f"{self.floor.median:.1f} {unit}",
            "-" if self.ratio is None else f"{self.ratio:.2f}",
            "-" if self.bound is None else f"<= {self.bound:g}{'' if self.floor else ' ' + unit}",
            "yes" if self.within_bound else "NO",
        )


HEADER = ("MEASURED", "MEDIAN", "P99", "FLOOR", "RATIO", "BOUND", "WITHIN")


def time_ms(action: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1000


def read_processor_seconds(pid: int) -> float:
    """How long all threads of a process have run, ended ones too. The clock is clock_getcpuclockid(3)'s."""
    return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)


def time_in_turn(
    ours: Callable[[], object], floor: Callable[[], object], runs: int, warm_up: int = 1
) -> tuple[Sequence[float], Sequence[float]]:
    """``ours, floor, ours, floor ...``; milliseconds of each."""
    for _ in range(warm_up):
        ours()
        floor()
    pairs = [(time_ms(ours), time_ms(floor)) for _ in range(runs)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]
