"""Which network device works for which GPU, and the best that a choice of devices can give.

Devices and GPUs are matched one to one, so that the worst distance is the least possible, and of all such
matches the sum. With more devices than GPUs, each GPU has as many as any other, or one more. An unknown
distance is worse than any known one and stays unknown. One measure for all who ask: ``dranet claim new``,
the alignment verdict on a pod (``TopologyAligned``) and the model of what alignment is worth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from dranet.model.distance import Distance, Placed, distance

_UNKNOWN = len(Distance)
"""The level of an unknown distance: one beyond the farthest."""


class Pair(Struct, frozen=True):
    """One device with the GPU that it is for."""

    nic: int
    """Its index among the devices asked about."""
    gpu: int | None
    """Its index; ``None`` where there are no GPUs."""
    distance: Distance | None


class Pairing(Struct, frozen=True):
    """One :class:`Pair` for each device, in their order."""

    pairs: tuple[Pair, ...]

    @property
    def distances(self) -> tuple[Distance | None, ...]:
        """The distance of each device to its GPU, in the order of the devices."""
        return tuple(pair.distance for pair in self.pairs)

    @property
    def rank(self) -> tuple[int, int]:
        """The worst and the sum, which compare: the smaller pairing is the better one."""
        return rank(self.distances)


def level(value: Distance | None) -> int:
    """A number to compare by: unknown is the worst."""
    return _UNKNOWN if value is None else int(value)


def rank(distances: Sequence[Distance | None]) -> tuple[int, int]:
    """What makes one set of distances better than another: its worst, then its sum; smaller is better."""
    levels = [level(value) for value in distances]
    return max(levels, default=0), sum(levels)


def pair(nics: Sequence[Placed], gpus: Sequence[Placed]) -> Pairing:
    """Every one of ``nics`` with its GPU."""
    return Pairing(choose(nics, gpus, len(nics)))


def best_possible(
    candidates: Sequence[Placed], gpus: Sequence[Placed], count: int
) -> tuple[Distance | None, ...]:
    """The distances, nearest first, that the best ``count`` of ``candidates`` have to these GPUs."""
    chosen = choose(candidates, gpus, count)
    return tuple(sorted((pair.distance for pair in chosen), key=level))


def choose(
    candidates: Sequence[Placed], gpus: Sequence[Placed], count: int, dislikes: Sequence[int] = ()
) -> tuple[Pair, ...]:
    """The best ``count`` of ``candidates`` (all, where there are fewer), in their order.

    ``dislikes`` has a small number for each candidate: among equally near choices, the one with the smaller
    sum wins.
    """
    count = min(count, len(candidates))
    if not gpus:
        likely = sorted(range(len(candidates)), key=lambda i: dislikes[i] if dislikes else 0)
        return tuple(Pair(index, None, None) for index in sorted(likely[:count]))
    match = _Match(_find_kinds(candidates, gpus, dislikes), len(gpus), count)
    return tuple(Pair(nic, gpu, distance(candidates[nic], gpus[gpu])) for nic, gpu in match.solve())


class _Kind(Struct, frozen=True):
    """Devices that are alike, as functions of one card are: as far from each GPU, and as much disliked."""

    levels: tuple[int, ...]
    dislike: int
    members: list[int]


def _find_kinds(candidates: Sequence[Placed], gpus: Sequence[Placed], dislikes: Sequence[int]) -> list[_Kind]:
    """In the order of their first members."""
    kinds: dict[tuple[tuple[int, ...], int], _Kind] = {}
    for index, nic in enumerate(candidates):
        key = tuple(level(distance(nic, gpu)) for gpu in gpus), dislikes[index] if dislikes else 0
        kinds.setdefault(key, _Kind(*key, [])).members.append(index)
    return list(kinds.values())


class _Match:
    """How many devices of each kind each GPU gets, ``count`` in all.

    The work grows with the number of kinds, which is one of places on the node, and hardly with that of
    devices.
    """

    def __init__(self, kinds: Sequence[_Kind], gpus: int, count: int) -> None:
        self._kinds = kinds
        self._gpus = range(gpus)
        self._each, self._more = divmod(count, gpus)
        self._scale = 1 + sum(kind.dislike * len(kind.members) for kind in kinds)
        """What a level is worth: more than all dislikes."""

    def solve(self) -> list[tuple[int, int]]:
        """Each chosen device with its GPU, in the order of the devices."""
        for allowed in range(_UNKNOWN + 1):
            costs = [self._costs(kind, allowed) for kind in self._kinds]
            flow = _Flow(costs, [len(kind.members) for kind in self._kinds])
            if self._fill(flow):
                return sorted(self._hand_out(flow))
        return []

    def _costs(self, kind: _Kind, allowed: int) -> list[int | None]:
        """For each GPU; ``None``: farther than allowed."""
        return [found * self._scale + kind.dislike if found <= allowed else None for found in kind.levels]

    def _fill(self, flow: _Flow) -> bool:
        """What every GPU must have, then one more for as many GPUs as there are devices for."""
        for gpu in self._gpus:
            needed = self._each
            while needed:
                added = flow.add([gpu], needed)
                if added is None:
                    return False
                needed -= added.amount
        may_have_more = list(self._gpus)
        for _ in range(self._more):
            added = flow.add(may_have_more, 1)
            if added is None:
                return False
            may_have_more.remove(added.gpu)
        return True

    def _hand_out(self, flow: _Flow) -> Iterator[tuple[int, int]]:
        for kind, assigned in zip(self._kinds, flow.assigned, strict=True):
            gpus = [gpu for gpu in self._gpus for _ in range(assigned[gpu])]
            yield from zip(kind.members, gpus, strict=False)


class _Added(NamedTuple):
    """Devices that a GPU has got."""

    gpu: int
    amount: int


class _Flow:
    """GPUs get devices one after the other, each time by the cheapest way (successive shortest paths): one
    that is left, or one of another GPU, which gets another one for it. So the sum of all costs is the least
    at any time."""

    def __init__(self, costs: Sequence[Sequence[int | None]], left: list[int]) -> None:
        """``costs`` by kind and GPU; ``left`` are the devices of each kind."""
        self._costs = costs
        self._left = left
        self.assigned = [[0] * len(row) for row in costs]
        """By kind and GPU."""

    def add(self, gpus: Sequence[int], most: int) -> _Added | None:
        """Give one of ``gpus`` up to ``most`` devices more; ``None`` where there is no way."""
        ways = _Ways(self._costs, self.assigned, gpus)
        ends = [kind for kind, way in ways.to_kind.items() if self._left[kind]]
        if not ends:
            return None
        end = min(ends, key=lambda kind: (ways.to_kind[kind].cost, kind))
        first, hops = ways.trace(end)
        amount = min(most, self._left[end], *(self.assigned[kind][gpu] for gpu, kind in hops))
        self._left[end] -= amount
        gets = first
        for gpu, kind in hops:
            self.assigned[kind][gets] += amount
            self.assigned[kind][gpu] -= amount
            gets = gpu
        self.assigned[end][gets] += amount
        return _Added(first, amount)


class _Way(NamedTuple):
    cost: int
    before: int | None


def _reach(ways: dict[int, _Way], place: int, way: _Way) -> bool:
    """Whether it is cheaper than the known one, and taken. One that is as cheap is not: a way would go in a
    circle."""
    if place in ways and ways[place].cost <= way.cost:
        return False
    ways[place] = way
    return True


class _Ways:
    """The cheapest ways from some GPUs to each kind, over kinds and GPUs that have some of them."""

    def __init__(
        self, costs: Sequence[Sequence[int | None]], assigned: Sequence[Sequence[int]], gpus: Sequence[int]
    ) -> None:
        self._costs = costs
        self._assigned = assigned
        self._to_gpu = {gpu: _Way(0, None) for gpu in gpus}
        """``before`` is the kind of which the GPU gives one away."""
        self.to_kind: dict[int, _Way] = {}
        """``before`` is the GPU that gets one."""
        while self._go_on():
            pass

    def _go_on(self) -> bool:
        """One step from all that has been reached (Bellman and Ford); whether anything became cheaper."""
        has_found = False
        for kind, row in enumerate(self._costs):
            for gpu, way in tuple(self._to_gpu.items()):
                cost = row[gpu]
                if cost is not None:
                    has_found |= _reach(self.to_kind, kind, _Way(way.cost + cost, gpu))
            for gpu, amount in enumerate(self._assigned[kind]):
                cost = row[gpu]
                if amount and cost is not None and kind in self.to_kind:
                    has_found |= _reach(self._to_gpu, gpu, _Way(self.to_kind[kind].cost - cost, kind))
        return has_found

    def trace(self, end: int) -> tuple[int, list[tuple[int, int]]]:
        """Where the way to kind ``end`` begins, and the GPUs on it with the kind that each gives away."""
        hops: list[tuple[int, int]] = []
        kind: int | None = end
        gpu = 0
        while kind is not None:
            found = self.to_kind[kind].before
            assert found is not None
            gpu, kind = found, self._to_gpu[found].before
            if kind is not None:
                hops.append((gpu, kind))
        return gpu, hops[::-1]
