"""The alignment verdict: how near the network devices of a pod are to its GPUs, and whether it could be
better.

Devices and GPUs are matched by :mod:`dranet.claims.pairing`, RDMA devices apart from the others, and those of
InfiniBand apart from those of Ethernet, because a rail and the interface to the storage are not alternatives
to each other. The best match is chosen among all devices of the kind that the node offers and that work,
including those that other pods hold. The verdict becomes the condition ``TopologyAligned`` and a part of the
entry's data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from dranet.claims.pairing import Pair, choose, level, pair, rank
from dranet.model.attributes import RDMA_LINK_LAYER
from dranet.model.device import Device, DeviceKind
from dranet.model.distance import Distance, distance
from dranet.model.gpus import Doubt, GpusOfPod, GpuSource, PodGpu
from dranet.model.status import Condition, ConditionReason, ConditionType

JsonObject = dict[str, Any]

MAX_GPUS_IN_DATA = 16
"""More than any node has; the nearest of them."""
MAX_DOUBTS_IN_MESSAGE = 4

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
        return _condition(None, ConditionReason.PLACE_UNKNOWN, _describe_unknown(verdict))
    return _condition(True, _REASONS[verdict.distance], _describe_aligned(verdict, verdict.distance))


def build_alignment(verdict: Verdict) -> JsonObject:
    """The same as data: this device's row of the table of distances, and the verdict on it."""
    data: JsonObject = {"distance": _name(verdict.distance)}
    if verdict.gpu is not None:
        data |= {"gpu": verdict.gpu.name, "gpuSource": str(verdict.gpu.source)}
    data["best"] = _name(None if verdict.is_unclear else verdict.best)
    if verdict.better is not None and verdict.is_surely_worse:
        data["better"] = _describe_better(verdict.better)
    nearest = sorted(verdict.row, key=_nearness)[:MAX_GPUS_IN_DATA]
    return {**data, "distances": {gpu.name: _name(found) for gpu, found in sorted(nearest, key=_gpu_name)}}


def _nearness(measured: Measured) -> int:
    return len(Distance) if measured.distance is None else measured.distance


def _gpu_name(measured: Measured) -> str:
    return measured.gpu.name


def _name(value: Distance | None) -> str:
    return "unknown" if value is None else value.name


def _describe_better(better: Better) -> JsonObject:
    data: JsonObject = {"device": better.candidate.device.name, "distance": better.distance.name}
    data["gpu"] = better.gpu.name
    return {**data, "claim": better.candidate.holder} if better.candidate.holder else data


def _describe_aligned(verdict: Verdict, found: Distance) -> str:
    limit = "" if found is Distance.PIX else "; nothing nearer on this node"
    return f"{_describe_pair(verdict.gpu, found)}{limit}"


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


def _describe_unknown(verdict: Verdict) -> str:
    if verdict.gpu is None:
        return "the node does not report where the GPU sits"
    return f"the node does not report how far it is from {verdict.gpu.name}"


def _describe_doubts(verdict: Verdict) -> Condition:
    told = list(verdict.doubts[:MAX_DOUBTS_IN_MESSAGE])
    more = len(verdict.doubts) - len(told)
    text = "; ".join([*(doubt.text for doubt in told), *([f"and {more} more"] if more else [])])
    is_other: bool = all(map(_is_other_driver, verdict.doubts))
    reason = ConditionReason.OTHER_DRIVERS_DEVICES if is_other else ConditionReason.GPUS_UNCLEAR
    return _condition(None, reason, text)


def _is_other_driver(doubt: Doubt) -> bool:
    return doubt.is_other_driver


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
    """One GPU of the pod and how far it is."""

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
        """Whether it is worse than possible, beyond doubt."""
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


def is_rdma(device: Device) -> bool:
    """Whether it does RDMA, with an interface or without one."""
    return device.kind is DeviceKind.RDMA or bool(device.rdma_device)


def _network_of(device: Device) -> tuple[bool, str]:
    """The properties that devices share with their alternatives: RDMA, and its link layer."""
    layer = device.attributes.get(RDMA_LINK_LAYER.qualified) if is_rdma(device) else ""
    return is_rdma(device), str(layer or "")


def _judge_kind(
    nics: Sequence[Device], gpus: GpusOfPod, candidates: Sequence[AlignmentCandidate]
) -> Iterator[Verdict]:
    if not gpus.gpus:
        yield from (Verdict((), None, None, None, doubts=gpus.doubts) for _ in nics)
        return
    pairs = pair(nics, gpus.gpus).pairs
    pool = [*map(AlignmentCandidate, nics), *_others(nics, candidates)]
    dislikes = [_OWN] * len(nics) + [_HELD if item.holder else _FREE for item in pool[len(nics) :]]
    chosen = choose([item.device for item in pool], gpus.gpus, len(nics), dislikes)
    could_be = _could_be(pairs, chosen)
    free = [found for found in chosen if found.nic >= len(nics)]
    for nic, found, best in zip(nics, pairs, could_be, strict=True):
        row = tuple(Measured(gpu, distance(nic, gpu)) for gpu in gpus.gpus)
        is_worse = found.distance is not None and level(best) < found.distance
        choice = _find_better(found, free) if is_worse else None
        if choice is not None:
            free = [other for other in free if other is not choice] or free
        better = None if choice is None else _describe(choice, pool, gpus.gpus)
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
    if not nearer:
        return None
    return min(nearer, key=lambda other: (other.gpu != found.gpu, level(other.distance), other.nic))


def _describe(choice: Pair, pool: Sequence[AlignmentCandidate], gpus: Sequence[PodGpu]) -> Better:
    assert choice.gpu is not None
    assert choice.distance is not None
    return Better(pool[choice.nic], gpus[choice.gpu], choice.distance)
