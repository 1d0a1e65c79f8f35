"""Which network device works for which GPU, and the best that a choice of devices can give.

Devices and GPUs are matched one to one, so that the worst distance is the least possible, and of all such
matches the sum. With more devices than GPUs, each GPU has as many as any other, or one more. An unknown
distance is worse than any known one and stays unknown. One measure for all who ask: ``dranet claim new``,
the verdict on a pod (``TopologyAligned``) and the model of what alignment is worth.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from dranet.dataclass import dataclass
from dranet.model.distance import Distance, Placed, distance

_UNKNOWN = len(Distance)
"""The level of an unknown distance: one beyond the farthest."""
_FORBIDDEN = 1 << 40
"""Far above the sum of all costs that are allowed."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One device with the GPU that it is for."""

    nic: int
    """Its index among the devices asked about."""
    gpu: int | None
    """Its index; ``None`` where there are no GPUs."""
    distance: Distance | None


@dataclass(frozen=True, slots=True)
class Pairing:
    """One :class:`Pair` for each device, in their order."""

    pairs: tuple[Pair, ...]

    @property
    def distances(self) -> tuple[Distance | None, ...]:
        """Of each device to its GPU, in the order of the devices."""
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

    ``dislikes`` has a small number for each candidate: of choices that are equally near, the one with the
    smaller sum of these.
    """
    count = min(count, len(candidates))
    if not gpus:
        likely = sorted(range(len(candidates)), key=lambda i: dislikes[i] if dislikes else 0)
        return tuple(Pair(index, None, None) for index in sorted(likely[:count]))
    table = [[distance(nic, gpu) for gpu in gpus] for nic in candidates]
    kept = _without_the_surplus(table, dislikes, count)
    match = _Match([table[nic] for nic in kept], [dislikes[nic] if dislikes else 0 for nic in kept], count)
    return tuple(Pair(kept[row], gpu, table[kept[row]][gpu]) for row, gpu in match.solve())


def _without_the_surplus(
    table: Sequence[Sequence[Distance | None]], dislikes: Sequence[int], count: int
) -> list[int]:
    """Indices of the candidates that can matter: of those alike (all functions of one card), ``count``."""
    alike: dict[tuple[Distance | None, ...], list[int]] = defaultdict(list)
    for index, distances in enumerate(table):
        alike[tuple(distances)].append(index)
    if dislikes:
        for group in alike.values():
            group.sort(key=lambda index: dislikes[index])
    return sorted(index for group in alike.values() for index in group[:count])


class _Match:
    """A matching of GPUs (rows) with devices (columns).

    Each GPU has as many rows as every GPU must have devices, and one row more, which may stay without:
    for that there are columns of no cost, as many as such rows are to be left over.
    """

    def __init__(
        self, table: Sequence[Sequence[Distance | None]], dislikes: Sequence[int], count: int
    ) -> None:
        gpus = range(len(table[0])) if table else range(0)
        each, more = divmod(count, len(gpus)) if gpus else (0, 0)
        self._levels = [[level(row[gpu]) for row in table] for gpu in gpus]
        self._dislikes = dislikes
        self._rows = [(gpu, False) for gpu in gpus for _ in range(each)]
        self._idle = 0
        if more:
            self._rows += [(gpu, True) for gpu in gpus]
            self._idle = len(gpus) - more

    def solve(self) -> list[tuple[int, int]]:
        """Position of the device and of its GPU, in the order of the devices."""
        for allowed in range(_UNKNOWN + 1):
            if not all(any(cost < _FORBIDDEN for cost in self._costs(row, allowed)) for row in self._rows):
                continue
            columns, total = _assign([self._costs(row, allowed) for row in self._rows])
            if total < _FORBIDDEN:
                found = zip(self._rows, columns, strict=True)
                return sorted((column, gpu) for (gpu, _), column in found if column < len(self._dislikes))
        return []

    def _costs(self, row: tuple[int, bool], allowed: int) -> list[int]:
        """What each column costs; a device always more than a column of no cost."""
        gpu, may_stay_without = row
        scale = sum(self._dislikes) + 1
        costs = [
            (found + 1) * scale + dislike if found <= allowed else _FORBIDDEN
            for found, dislike in zip(self._levels[gpu], self._dislikes, strict=True)
        ]
        return costs + [0 if may_stay_without else _FORBIDDEN] * self._idle


def _assign(costs: Sequence[Sequence[int]]) -> tuple[list[int], int]:
    """For each row its column, with the least sum, and that sum. There must be as many columns as rows, or
    more."""
    work = _Assignment(costs)
    for row in range(len(costs)):
        work.add(row)
    columns = [0] * len(costs)
    for column, holder in enumerate(work.row_of):
        if holder is not None:
            columns[holder] = column
    return columns, sum(costs[row][column] for row, column in enumerate(columns))


class _Assignment:
    """Rows get columns one after the other, by the shortest augmenting path; prices keep costs comparable."""

    def __init__(self, costs: Sequence[Sequence[int]]) -> None:
        self._costs = costs
        width = len(costs[0]) if costs else 0
        self.row_of: list[int | None] = [None] * width
        self._row_price = [0] * len(costs)
        self._column_price = [0] * width

    def add(self, start: int) -> None:
        """Give row ``start`` a column, moving rows that have one where that is cheaper."""
        ways = dict.fromkeys(range(len(self.row_of)), _FORBIDDEN << 1)
        """The cheapest known way to each column that is not taken yet."""
        came_from: dict[int, int | None] = {}
        taken: list[int] = []
        row: int | None = start
        last: int | None = None
        while row is not None:
            for column, way in ways.items():
                found = self._costs[row][column] - self._row_price[row] - self._column_price[column]
                if found < way:
                    ways[column], came_from[column] = found, last
            last = min(ways, key=lambda column: (ways[column], column))
            self._raise_prices(start, taken, ways, ways[last])
            del ways[last]
            taken.append(last)
            row = self.row_of[last]
        self._flip(last, start, came_from)

    def _raise_prices(self, start: int, taken: Sequence[int], ways: dict[int, int], step: int) -> None:
        self._row_price[start] += step
        for column in taken:
            holder = self.row_of[column]
            assert holder is not None
            self._row_price[holder] += step
            self._column_price[column] -= step
        for column in ways:
            ways[column] -= step

    def _flip(self, column: int | None, start: int, came_from: Mapping[int, int | None]) -> None:
        """Along the path that was found, give each row the column after its own."""
        while column is not None:
            before = came_from[column]
            self.row_of[column] = start if before is None else self.row_of[before]
            column = before
