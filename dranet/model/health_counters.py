"""Counters over time: by how much one grew of late, and in how many readings.

Kept are readings that differ from the one before, over a window of time. A steady device keeps one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise

MOST_READINGS = 32
"""Of a link that flaps all the time; what does not fit makes the window shorter, not the memory longer."""


class Counters:
    """The readings of one device's counters, oldest first."""

    def __init__(self, window_seconds: float) -> None:
        self._window = window_seconds
        self._kept: list[tuple[float, Mapping[str, int]]] = []

    def add(self, counters: Mapping[str, int], now: float) -> None:
        """Note a reading; counters that it does not have are as before.

        A counter that fell says that the driver began anew: so do we.
        """
        last = self._kept[-1][1] if self._kept else {}
        if any(value < last.get(name, 0) for name, value in counters.items()):
            self._kept, last = [], {}
        if any(last.get(name) != value for name, value in counters.items()):
            self._kept.append((now, {**last, **counters}))
        self._forget_before(now - self._window)

    def restart(self) -> None:
        """The device changed hands: what came before says nothing about what comes."""
        self._kept = []

    def growth(self, name: str, now: float) -> tuple[int, int]:
        """By how much the counter grew within the window, and in how many readings.

        One that shows for the first time has not grown by all that it says.
        """
        self._forget_before(now - self._window)
        values = [counters[name] for _, counters in self._kept if name in counters]
        steps = sum(later > earlier for earlier, later in pairwise(values))
        return (values[-1] - values[0], steps) if values else (0, 0)

    def names(self) -> Collection[str]:
        """Counters that were ever read."""
        return self._kept[-1][1].keys() if self._kept else ()

    def next_due(self) -> float | None:
        """When the growth becomes less if nothing is read; ``None``: it is none."""
        return self._kept[1][0] + self._window if len(self._kept) > 1 else None

    def _forget_before(self, begin: float) -> None:
        """Keep the last reading that is older than the window: growth is counted from there."""
        while len(self._kept) > 1 and (self._kept[1][0] <= begin or len(self._kept) > MOST_READINGS):
            del self._kept[0]
