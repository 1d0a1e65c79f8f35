"""How near a network device is to the GPUs of its pod, in words: the condition ``TopologyAligned`` and what
stands in the entry's data. :mod:`dranet.claims.verdict` judges.
"""

from __future__ import annotations

from typing import Any

from dranet.claims.verdict import Better, Measured, Verdict
from dranet.model.distance import Distance
from dranet.model.pod_gpu import Doubt, GpuSource, PodGpu
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
    """True: as near as the node could have given, the reason says how near. False: something nearer was
    there, and the message names it. Unknown: why."""
    if verdict.is_told_worse:
        return _condition(False, ConditionReason.WORSE_THAN_POSSIBLE, _describe_worse(verdict))
    if verdict.is_unclear:
        return _describe_doubts(verdict)
    if verdict.distance is None:
        return _condition(None, ConditionReason.PLACE_UNKNOWN, _describe_unknown(verdict))
    return _condition(True, _REASONS[verdict.distance], _describe_aligned(verdict, verdict.distance))


def build_alignment(verdict: Verdict) -> JsonObject:
    """The same for programs: this device's row of the table of distances, and the verdict on it."""
    data: JsonObject = {"distance": _name(verdict.distance)}
    if verdict.gpu is not None:
        data |= {"gpu": verdict.gpu.name, "gpuSource": str(verdict.gpu.source)}
    data["best"] = _name(None if verdict.is_unclear else verdict.best)
    if verdict.better is not None and verdict.is_told_worse:
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
    told = "" if gpu.source is GpuSource.CLAIM else f" (known from {gpu.told_by or gpu.source.meaning})"
    return f"{found.name} to {gpu.name}{told}: {found.meaning}"


def _describe_unknown(verdict: Verdict) -> str:
    if verdict.gpu is None:
        return "the node does not tell where the GPU sits"
    return f"the node does not tell how far it is from {verdict.gpu.name}"


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
