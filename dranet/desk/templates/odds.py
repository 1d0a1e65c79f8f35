"""What luck gives: the distances between NICs and GPUs that were chosen without regard to each other.

The kubelet chooses the GPUs of a device plugin after the scheduler has chosen the NICs. Every combination is
taken to be as likely as any other. Devices are counted by places, not one by one: those within one distance
form a branch, its parts within the next nearer one form smaller branches, and choices that take the same
numbers from branches that are alike have the same distances. So 8 GPUs and 32 NICs are exact as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import comb
from typing import Any, NamedTuple

from dranet.claims.alignment import level, pair, rank
from dranet.desk.hardware.nodes import NodeHardware, Spot
from dranet.desk.templates.trial import Distances
from dranet.model.facts import Distance, distance

_Shape = Any
"""How many GPUs and NICs are taken from each branch: nested tuples, in an order of their own."""
_Spots = tuple[Spot, ...]

_FARTHEST = len(Distance)
"""The level of an unknown distance."""
_LARGEST_DENOMINATOR = 100
_SMALLEST = Fraction(1, 1000)


@dataclass(frozen=True, slots=True)
class Odds:
    """The share of all combinations of GPUs and NICs for each result, the best result first.

    Distances of equal :func:`~dranet.claims.alignment.rank` are one result.
    """

    shares: tuple[tuple[Distances, Fraction], ...]

    @property
    def best(self) -> Distances:
        return self.shares[0][0]

    @property
    def chance(self) -> Fraction:
        """The probability of the best result."""
        return self.shares[0][1]

    @property
    def by_worst(self) -> dict[Distance | None, Fraction]:
        """The probability of each distance as that of the pod's farthest NIC, the nearest first."""
        found: dict[Distance | None, Fraction] = defaultdict(Fraction)
        for distances, share in self.shares:
            found[distances[-1]] += share
        return dict(found)

    def __str__(self) -> str:
        """``PIX in 1/8, NODE in 3/8, SYS in 1/2``, of a pod's farthest NIC."""
        words = (one.name if one is not None else "unknown" for one in self.by_worst)
        texts = format_shares(tuple(self.by_worst.values()))
        return ", ".join(f"{word} in {text}" for word, text in zip(words, texts, strict=True))


def format_shares(shares: Sequence[Fraction]) -> list[str]:
    """``3/7``; percentages, ``2.1 %``, where one of them is not easy to read as a fraction."""
    if all(share.denominator <= _LARGEST_DENOMINATOR for share in shares):
        return list(map(str, shares))
    return [f"{float(100 * share):.2g} %" if share >= _SMALLEST else "less than 0.1 %" for share in shares]


class _Taken(NamedTuple):
    """Some of the devices of a branch: one example, and how many choices are like it."""

    gpus: _Spots
    nics: _Spots
    ways: int


_Choices = dict[_Shape, _Taken]
Measure = Callable[[_Spots, _Spots], Distances | None]
"""NICs and GPUs of a pod -> its distances; ``None`` for a combination that cannot be."""


def measure_pod(nics: _Spots, gpus: _Spots) -> Distances:
    """Each NIC to a GPU of its own, the nearest first."""
    return tuple(sorted(pair(nics, gpus).distances, key=level))


def alignment_odds(node: NodeHardware, gpus: int, nics: int, measure: Measure = measure_pod) -> Odds | None:
    """What a pod with any ``gpus`` of the GPUs of this node and any ``nics`` of its NICs gets.

    Args:
        node: with the devices that may be chosen.
        gpus: how many.
        nics: how many.
        measure: what counts; the same for devices of branches that are alike.

    Returns:
        ``None`` where the node has too few of them, or where the distances are no tree: devices within one
        distance of a third one are farther from each other.
    """
    choices = _choose(node.gpus, node.nics, _FARTHEST, (gpus, nics))
    results: dict[tuple[int, int], Distances] = {}
    counts: dict[tuple[int, int], int] = defaultdict(int)
    for taken in choices.values() if choices else ():
        if (len(taken.gpus), len(taken.nics)) == (gpus, nics):
            if (found := measure(taken.nics, taken.gpus)) is None:
                continue
            results.setdefault(rank(found), found)
            counts[rank(found)] += taken.ways
    total = sum(counts.values())
    return Odds(tuple((results[r], Fraction(counts[r], total)) for r in sorted(counts))) if counts else None


def _choose(gpus: _Spots, nics: _Spots, within: int, most: tuple[int, int]) -> _Choices | None:
    """The choices from one branch, whose pairs are all within this level; ``None`` where they are not."""
    if any(level(distance(nic, gpu)) > within for nic in nics for gpu in gpus):
        return None
    if not within:
        return dict(_choose_alike(gpus, nics, most))
    found: _Choices = {(): _Taken((), (), 1)}
    for branch in _split(gpus, nics, within - 1):
        part = _choose(*branch, within - 1, most)
        if part is None:
            return None
        found = _join(found, part, most)
    return found


def _choose_alike(gpus: _Spots, nics: _Spots, most: tuple[int, int]) -> Iterator[tuple[_Shape, _Taken]]:
    for g, n in product(range(min(len(gpus), most[0]) + 1), range(min(len(nics), most[1]) + 1)):
        yield (g, n), _Taken(gpus[:g], nics[:n], comb(len(gpus), g) * comb(len(nics), n))


def _join(found: _Choices, part: _Choices, most: tuple[int, int]) -> _Choices:
    joined: _Choices = {}
    for (shape, one), (new, other) in product(found.items(), part.items()):
        gpus, nics = one.gpus + other.gpus, one.nics + other.nics
        if len(gpus) > most[0] or len(nics) > most[1]:
            continue
        key = tuple(sorted((*shape, new))) if other.gpus or other.nics else shape
        ways = one.ways * other.ways + (joined[key].ways if key in joined else 0)
        joined[key] = _Taken(gpus, nics, ways)
    return joined


def _split(gpus: _Spots, nics: _Spots, within: int) -> Iterator[tuple[_Spots, _Spots]]:
    """The branches of devices that are within this level, over others if need be."""
    left_gpus, left_nics = list(gpus), list(nics)
    while left_gpus or left_nics:
        branch_gpus, branch_nics = left_gpus[:1], [] if left_gpus else left_nics[:1]
        size = 0
        while size != (size := len(branch_gpus) + len(branch_nics)):
            branch_nics = [n for n in left_nics if n in branch_nics or _is_near(n, branch_gpus, within)]
            branch_gpus = [g for g in left_gpus if g in branch_gpus or _is_near(g, branch_nics, within)]
        yield tuple(branch_gpus), tuple(branch_nics)
        left_gpus = [g for g in left_gpus if g not in branch_gpus]
        left_nics = [n for n in left_nics if n not in branch_nics]


def _is_near(spot: Spot, others: Sequence[Spot], within: int) -> bool:
    return any(level(distance(spot, other)) <= within for other in others)
