"""The alignment verdict: how near a pod's network devices are to its GPUs, and whether they could be nearer.

RDMA devices are matched apart from the others, and those of InfiniBand apart from those of Ethernet, because
a rail and the interface to the storage are not alternatives to each other. The best match is chosen among
all devices of the kind that the node offers and that work, including those that other pods hold. The verdict
becomes the condition ``TopologyAligned`` and a part of the entry's data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from dranet.model.attributes import RDMA_LINK_LAYER
from dranet.model.device import Device, DeviceKind, Doubt, GpusOfPod, GpuSource, PodGpu
from dranet.model.facts import Distance, Placed, distance
from dranet.model.status import Condition, ConditionReason, ConditionType

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
        return tuple(pair.distance for pair in self.pairs)

    @property
    def rank(self) -> tuple[int, int]:
        return rank(self.distances)


def level(value: Distance | None) -> int:
    """A number to compare by: unknown is the worst."""
    return _UNKNOWN if value is None else int(value)


def rank(distances: Sequence[Distance | None]) -> tuple[int, int]:
    """What makes one set of distances better than another: its worst, then its sum; smaller is better."""
    levels = [level(value) for value in distances]
    return max(levels, default=0), sum(levels)


def pair(nics: Sequence[Placed], gpus: Sequence[Placed]) -> Pairing:
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
            costs = [
                [found * self._scale + kind.dislike if found <= allowed else None for found in kind.levels]
                for kind in self._kinds
            ]
            flow = _Flow(costs, [len(kind.members) for kind in self._kinds])
            if self._fill(flow):
                return sorted(self._hand_out(flow))
        return []

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


JsonObject = dict[str, Any]

MAX_GPUS_IN_DATA = 16
"""More than any node has; the nearest of them."""
_MAX_DOUBTS_IN_MESSAGE = 4

_REASONS = {
    Distance.PIX: ConditionReason.SAME_PCIE_SWITCH,
    Distance.PXB: ConditionReason.SAME_PCIE_ROOT,
    Distance.PHB: ConditionReason.SAME_PCIE_ROOT,
    Distance.NODE: ConditionReason.SAME_NUMA_NODE,
    Distance.SYS: ConditionReason.NEAREST_POSSIBLE,
}


def build_condition(verdict: Verdict) -> Condition:
    """True: as near as possible on this node; the reason is the distance. False: a nearer device exists,
    which the message names. Unknown: the message has the cause."""
    if verdict.is_surely_worse:
        return _condition(False, ConditionReason.WORSE_THAN_POSSIBLE, _describe_worse(verdict))
    if verdict.is_unclear:
        return _describe_doubts(verdict)
    if verdict.distance is None:
        what = f"how far it is from {verdict.gpu.name}" if verdict.gpu else "where the GPU sits"
        return _condition(None, ConditionReason.PLACE_UNKNOWN, f"the node does not report {what}")
    limit = "" if verdict.distance is Distance.PIX else "; nothing nearer on this node"
    return _condition(True, _REASONS[verdict.distance], _describe_pair(verdict.gpu, verdict.distance) + limit)


def build_alignment(verdict: Verdict) -> JsonObject:
    """The same as data: this device's row of the table of distances, and the verdict on it."""
    data: JsonObject = {"distance": _name(verdict.distance)}
    if verdict.gpu is not None:
        data |= {"gpu": verdict.gpu.name, "gpuSource": str(verdict.gpu.source)}
    data["best"] = _name(None if verdict.is_unclear else verdict.best)
    if verdict.better is not None and verdict.is_surely_worse:
        data["better"] = _describe_better(verdict.better)
    nearest = sorted(verdict.row, key=lambda measured: level(measured.distance))[:MAX_GPUS_IN_DATA]
    return {**data, "distances": dict(sorted((gpu.name, _name(found)) for gpu, found in nearest))}


def _name(value: Distance | None) -> str:
    return "unknown" if value is None else value.name


def _describe_better(better: Better) -> JsonObject:
    candidate = better.candidate
    data = {"device": candidate.device.name, "distance": better.distance.name, "gpu": better.gpu.name}
    return {**data, "claim": candidate.holder} if candidate.holder else data


def _describe_worse(verdict: Verdict) -> str:
    assert verdict.distance is not None
    text = _describe_pair(verdict.gpu, verdict.distance)
    if verdict.better is None:
        return f"{text}; {_name(verdict.best)} was possible"
    candidate, gpu, found = verdict.better.candidate, verdict.better.gpu, verdict.better.distance
    to = "it" if gpu is verdict.gpu else gpu.name
    held = f"held by claim {candidate.holder}" if candidate.holder else "free"
    return f"{text}; {candidate.device.name} is {found.name} to {to} and {held}"


def _describe_pair(gpu: PodGpu | None, found: Distance) -> str:
    assert gpu is not None
    source = "" if gpu.source is GpuSource.CLAIM else f" (known from {gpu.holder or gpu.source.meaning})"
    return f"{found.name} to {gpu.name}{source}: {found.meaning}"


def _describe_doubts(verdict: Verdict) -> Condition:
    texts = [doubt.text for doubt in verdict.doubts[:_MAX_DOUBTS_IN_MESSAGE]]
    if more := len(verdict.doubts) - len(texts):
        texts.append(f"and {more} more")
    is_other = all(doubt.is_other_driver for doubt in verdict.doubts)
    reason = ConditionReason.OTHER_DRIVERS_DEVICES if is_other else ConditionReason.GPUS_UNCLEAR
    return _condition(None, reason, "; ".join(texts))


def _condition(status: bool | None, reason: ConditionReason, message: str) -> Condition:
    return Condition(ConditionType.ALIGNED, status, reason, message)


_OWN, _FREE, _HELD = range(3)
"""Which of equally near devices is named as the better one."""


class AlignmentCandidate(Struct, frozen=True):
    """A device that the node offers and that works."""

    device: Device
    holder: str = ""
    """The claim that has it, in another pod; empty: it is free."""


class Better(Struct, frozen=True):
    """A device that would have been nearer."""

    candidate: AlignmentCandidate
    gpu: PodGpu
    distance: Distance


class Measured(NamedTuple):
    gpu: PodGpu
    distance: Distance | None


class Verdict(Struct, frozen=True):
    """The alignment of one network device in a pod with GPUs."""

    row: tuple[Measured, ...]
    """The distance to every GPU of the pod."""
    gpu: PodGpu | None
    """The GPU that the device is matched with."""
    distance: Distance | None
    best: Distance | None
    """The best possible distance."""
    better: Better | None = None
    is_worse: bool = False
    doubts: tuple[Doubt, ...] = ()
    """GPUs of the pod without a known place."""

    @property
    def is_unclear(self) -> bool:
        """Whether such a GPU may change the verdict. Nothing is nearer than PIX to a known one."""
        return bool(self.doubts) and self.distance is not Distance.PIX

    @property
    def is_surely_worse(self) -> bool:
        return self.is_worse and not self.doubts


def judge_pod(
    nics: Sequence[Device], gpus: GpusOfPod, candidates: Sequence[AlignmentCandidate]
) -> tuple[Verdict | None, ...]:
    """Return one verdict for each of ``nics``, which are all network devices of the pod; ``None`` when the
    pod has no GPUs. ``candidates`` may also contain devices of ``nics``, recognised by name."""
    verdicts: list[Verdict | None] = [None] * len(nics)
    if not gpus.gpus and not gpus.doubts:
        return tuple(verdicts)
    for network in dict.fromkeys(map(_network_of, nics)):
        mine = [index for index, nic in enumerate(nics) if _network_of(nic) == network]
        kind = [candidate for candidate in candidates if _network_of(candidate.device) == network]
        judged = _judge_kind([nics[index] for index in mine], gpus, kind)
        for index, verdict in zip(mine, judged, strict=True):
            verdicts[index] = verdict
    return tuple(verdicts)


def _network_of(device: Device) -> tuple[bool, str]:
    """The properties that devices share with their alternatives: RDMA, and its link layer."""
    is_rdma = device.kind is DeviceKind.RDMA or bool(device.rdma_device)
    layer = device.attributes.get(RDMA_LINK_LAYER.qualified) if is_rdma else ""
    return is_rdma, str(layer or "")


def _judge_kind(
    nics: Sequence[Device], gpus: GpusOfPod, candidates: Sequence[AlignmentCandidate]
) -> Iterator[Verdict]:
    if not gpus.gpus:
        yield from (Verdict((), None, None, None, doubts=gpus.doubts) for _ in nics)
        return
    places = [gpu.device for gpu in gpus.gpus]
    pairs = pair(nics, places).pairs
    pool = [*map(AlignmentCandidate, nics), *_others(nics, candidates)]
    dislikes = [_OWN] * len(nics) + [_HELD if item.holder else _FREE for item in pool[len(nics) :]]
    chosen = choose([item.device for item in pool], places, len(nics), dislikes)
    could_be = _could_be(pairs, chosen)
    free = [found for found in chosen if found.nic >= len(nics)]
    for nic, found, best in zip(nics, pairs, could_be, strict=True):
        row = tuple(Measured(gpu, distance(nic, gpu.device)) for gpu in gpus.gpus)
        is_worse = found.distance is not None and level(best) < found.distance
        choice = _find_better(found, free) if is_worse else None
        better = None
        if choice is not None and choice.gpu is not None and choice.distance is not None:
            free = [other for other in free if other is not choice] or free
            better = Better(pool[choice.nic], gpus.gpus[choice.gpu], choice.distance)
        gpu = None if found.gpu is None else gpus.gpus[found.gpu]
        yield Verdict(row, gpu, found.distance, best, better, is_worse, gpus.doubts)


def _others(nics: Sequence[Device], candidates: Sequence[AlignmentCandidate]) -> Iterator[AlignmentCandidate]:
    """Yield the devices that the pod does not have; a shared device counts once for each of ``nics``."""
    own = {nic.name for nic in nics}
    for candidate in candidates:
        if candidate.device.name not in own:
            yield from [candidate] * (len(nics) if candidate.device.shared else 1)


def _could_be(pairs: Sequence[Pair], chosen: Sequence[Pair]) -> list[Distance | None]:
    """Return the best possible distances: the nearest device gets the nearest distance of the best choice,
    and so on. If that choice is no better as a whole, the distances stay as they are."""
    mine = [found.distance for found in pairs]
    best = sorted((found.distance for found in chosen), key=level)
    if rank(best) >= rank(mine):
        return mine
    order = sorted(range(len(mine)), key=lambda index: level(mine[index]))
    could_be: list[Distance | None] = [None] * len(mine)
    for place, index in enumerate(order):
        could_be[index] = min(mine[index], best[place], key=level)
    return could_be


def _find_better(found: Pair, alternatives: Sequence[Pair]) -> Pair | None:
    """Return a device of the best choice that is nearer, preferably to the same GPU."""
    nearer = [other for other in alternatives if level(other.distance) < level(found.distance)]
    return min(
        nearer, key=lambda other: (other.gpu != found.gpu, level(other.distance), other.nic), default=None
    )
