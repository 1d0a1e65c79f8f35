"""What devices give in parts, over all of a node: capacity of shared devices, counters of pools.

A bound for :mod:`dranet.desk.allocation.prospects`: requests that need more together than there is altogether
cannot be met, however it is divided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dranet.desk.allocation.capacity import consume
from dranet.desk.allocation.devices import Candidate
from dranet.desk.allocation.requests import Alternative
from dranet.desk.allocation.state import Ground, State

Resource = tuple[str, ...]
"""A capacity by name, or a counter by pool and name, whatever its set."""
Volumes = dict[Resource, int]


class Supply:
    """One for each search."""

    def __init__(self, ground: Ground) -> None:
        self._whole: Counter[Resource] = Counter()
        for device in ground.usable:
            used = ground.in_use.shares.get(device.id, {})
            for name, capacity in device.capacity.items() if device.shared else ():
                self._whole[(name,)] += max(capacity.value - used.get(name, 0), 0)
        for pool, counters in ground.available.items():
            for (_, name), amount in counters.items():
                self._whole[*pool, name] += max(amount, 0)

    def left(self, state: State) -> Volumes:
        """What is there beside the devices chosen so far."""
        left = Counter(self._whole)
        for stack in state.used.values():
            for name, amount in stack[-1].items() if stack else ():
                left[(name,)] -= amount
        for pool, counters in state.counters.items():
            for (_, name), amount in counters.items():
                left[*pool, name] -= amount
        return dict(left)


def find_least(alternative: Alternative, devices: Iterable[Candidate]) -> Volumes:
    """What one of these devices takes at the least; nothing is said of what some take and others do not."""
    least: Volumes | None = None
    for device in devices:
        taken = _taken(alternative, device)
        if least is None:
            least = taken
        else:
            least = {
                resource: min(amount, taken[resource])
                for resource, amount in least.items()
                if resource in taken
            }
        if not least:
            return {}
    return least or {}


def _taken(alternative: Alternative, device: Candidate) -> Volumes:
    """A shared device may have taken its counters already."""
    if device.shared:
        return {(name,): amount for name, amount in consume(device.capacity, alternative.asked)}
    taken: Counter[Resource] = Counter()
    for (_, name), amount in device.counters:
        taken[*device.pool, name] += amount
    return dict(taken)
