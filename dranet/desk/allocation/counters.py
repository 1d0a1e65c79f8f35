"""Counters that devices of a pool share (partitionable devices, KEP-4815): what there is, what is left.

Everything a device takes it takes whole. A shared device takes its part once, however many have a share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dranet.cel import CelError
from dranet.cel.scalars import parse_quantity
from dranet.desk.allocation.capacity import format_amount
from dranet.desk.allocation.devices import Candidate, CounterId
from dranet.desk.allocation.nodes import JsonObject


@dataclass(frozen=True, slots=True)
class CounterShortage:
    """Which counter is too little."""

    counter: CounterId
    asked: int
    free: int

    def __str__(self) -> str:
        (counters, name), free = self.counter, max(self.free, 0)
        return f"{counters}.{name}: {format_amount(free)} left, {format_amount(self.asked)} needed"


class InvalidCounters(Exception):
    """The pool's counters contradict each other; the text says how."""


def parse_counters(sets: Iterable[JsonObject]) -> dict[CounterId, int]:
    """All counters of a pool. Raises :class:`InvalidCounters`."""
    counters: dict[CounterId, int] = {}
    names: set[str] = set()
    for entry in sets:
        if entry["name"] in names:
            raise InvalidCounters(f"counter set {entry['name']} twice")
        names.add(entry["name"])
        for name, counter in (entry.get("counters") or {}).items():
            try:
                counters[entry["name"], name] = parse_quantity(str(counter["value"]))
            except CelError as error:
                raise InvalidCounters(f"counter {entry['name']}.{name}: {error.message}") from error
    return counters


def check_references(counters: Mapping[CounterId, int], devices: Iterable[Candidate]) -> None:
    """Raises :class:`InvalidCounters` if a device takes of what is not there."""
    for device in devices:
        for (name, counter), _ in device.counters:
            if (name, counter) not in counters:
                raise InvalidCounters(
                    f"device {device.id[2]} takes of the counter {name}.{counter}, which is nowhere"
                )


def subtract(counters: Mapping[CounterId, int], devices: Iterable[Candidate]) -> dict[CounterId, int]:
    """What the devices leave; less than nothing is no more than nothing."""
    left = Counter(dict(counters))
    for device in devices:
        for counter, amount in device.counters:
            left[counter] -= amount
    return dict(left)


def find_counter_shortage(
    available: Mapping[CounterId, int], taken: Mapping[CounterId, int], device: Candidate
) -> CounterShortage | None:
    """The first counter that the device would make negative; ``taken`` is what this run has of them."""
    for counter, amount in device.counters:
        free = available.get(counter, 0) - taken.get(counter, 0)
        if amount > free:
            return CounterShortage(counter, amount, free)
    return None
