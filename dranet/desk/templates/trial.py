"""A shape tried on a node with the allocator: does the scheduler find the best pairs, and how often?

The same claim is allocated over and over on the otherwise empty node until nothing is left for it. Each time
the distances of its NICs are compared with the best that the devices then left could have given: a claim that
is right on an empty node by luck alone shows itself when the node fills up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from dranet.claims.alignment import best_possible, choose, level, pair, rank
from dranet.desk.allocation.allocator import ClusterDevices, Unschedulable, allocate, read_devices_in_use
from dranet.desk.hardware.nodes import NodeHardware, Spot
from dranet.desk.hardware.places import DeviceId
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.templates.shapes import Shape
from dranet.model.facts import Distance, distance

Distances = tuple[Distance | None, ...]
"""Distances of the NICs of one pod to their GPUs, the nearest first."""

_MAX_PODS = 128
"""More devices than a node has."""


@dataclass(frozen=True, slots=True)
class Pod:
    """What one pod would get, and the best that was left for it."""

    nics: tuple[Spot, ...]
    gpus: tuple[Spot, ...]
    distances: Distances
    best: Distances

    @property
    def is_best(self) -> bool:
        return rank(self.distances) == rank(self.best)


@dataclass(frozen=True, slots=True)
class Trial:
    """One shape on one node."""

    node: str
    pods: tuple[Pod, ...]
    possible: int
    """How many such pods the numbers of devices allow."""
    refusal: str = ""
    """Why not even one fits."""
    pods_of_choices: tuple[int, ...] = ()
    """How many of them have each of :attr:`~dranet.desk.templates.shapes.Shape.of_pods`."""
    has_choice: bool = False
    """The pod takes some of the GPUs, which are not all as far from every NIC."""

    @property
    def is_best_first(self) -> bool:
        return bool(self.pods) and self.pods[0].is_best

    @property
    def is_perfect(self) -> bool:
        """Each pod has the best that was left, and there are as many as there can be."""
        return len(self.pods) == self.possible and all(pod.is_best for pod in self.pods)


def try_shape(
    shape: Shape, hardware: NodeHardware, classes: Mapping[str, JsonObject], gpus: int, nics: int
) -> Trial:
    """Fill the node with pods of this shape. Where a device plugin gives the GPUs, only a pod that takes all
    of them is known to have them.

    Args:
        shape: what to try.
        hardware: the node, with the NICs that count.
        classes: DeviceClasses by name.
        gpus: GPUs of each pod; 0 as well where the claim takes all.
        nics: likewise.
    """
    possible = min((hardware.gpu_count // gpus if gpus else _MAX_PODS), len(hardware.nics) // nics, _MAX_PODS)
    has_shares = any(nic.device.shared for nic in hardware.nics)  # any number of pods, by what they take
    possible = 1 if shape.is_for_one_pod or has_shares else possible
    pods: list[Pod] = []
    claims: list[JsonObject] = []
    unclaimed = hardware.gpus if hardware.has_all(gpus) else ()
    refusal = ""
    counts: list[int] = []
    for choice in shape.of_pods:
        before = len(pods)
        try:
            while len(pods) < possible:
                new = _allocate(choice, hardware, classes, claims)
                pods.append(_judge(new, hardware, claims, unclaimed))
                claims += new
        except Unschedulable as error:
            refusal = str(error)
        counts.append(len(pods) - before)
    has_choice = 0 < gpus < len(hardware.gpus) and len(_levels(hardware)) > 1
    return Trial(hardware.name, tuple(pods), possible, "" if pods else refusal, tuple(counts), has_choice)


def _levels(hardware: NodeHardware) -> set[Distance | None]:
    return {distance(nic, gpu) for nic in hardware.nics for gpu in hardware.gpus}


@dataclass(frozen=True, slots=True)
class Best:
    """The best that some devices can give a pod."""

    distances: Distances = ()
    pairs: tuple[tuple[Spot, Spot], ...] = ()
    """NIC and GPU."""


def best_distances(
    nics: tuple[Spot, ...], gpus: tuple[Spot, ...], gpu_count: int, nic_count: int
) -> Distances:
    """The best that a pod with so many of each can have of these devices, whichever they are."""
    return find_best(nics, gpus, gpu_count, nic_count).distances


@lru_cache(maxsize=256)  # each shape asks it of the same devices
def find_best(nics: tuple[Spot, ...], gpus: tuple[Spot, ...], gpu_count: int, nic_count: int) -> Best:
    """With no more NICs than GPUs, whichever GPUs are left over do not matter; else each choice of GPUs is
    tried, until one is as near as if each NIC had its nearest GPU."""
    if not gpu_count:
        return Best()
    if nic_count <= gpu_count:
        return _best_with(nics, gpus, nic_count)
    floor = sorted(level(best_possible([nic], gpus, 1)[0]) for nic in nics)[:nic_count]
    best: Best | None = None
    for some in combinations(gpus, gpu_count):
        found = _best_with(nics, some, nic_count)
        if best is None or rank(found.distances) < rank(best.distances):
            best = found
        if [level(one) for one in best.distances] == floor:
            break
    return best or Best()


def _best_with(nics: Sequence[Spot], gpus: Sequence[Spot], nic_count: int) -> Best:
    found = choose(nics, gpus, nic_count)
    pairs = tuple((nics[one.nic], gpus[one.gpu]) for one in found if one.gpu is not None)
    return Best(tuple(sorted((one.distance for one in found), key=level)), pairs)


def _allocate(
    shape: Shape,
    hardware: NodeHardware,
    classes: Mapping[str, JsonObject],
    before: Sequence[JsonObject],
) -> list[JsonObject]:
    devices = ClusterDevices(hardware.slices, classes, read_devices_in_use(before))
    claims = [
        {"metadata": {"namespace": "", "name": f"claim-{number}"}, "spec": spec}
        for number, spec in enumerate(shape.specs)
    ]
    allocations = allocate(claims, hardware.node, devices)
    return [
        {**claim, "status": {"allocation": allocation}}
        for claim, allocation in zip(claims, allocations, strict=True)
    ]


def _judge(
    claims: Sequence[JsonObject],
    hardware: NodeHardware,
    before: Sequence[JsonObject],
    unclaimed: tuple[Spot, ...],
) -> Pod:
    """``unclaimed`` are GPUs of the pod that are in no claim."""
    taken, gone = _taken(claims), _taken(before)
    nics = tuple(nic for nic in hardware.nics if nic.device.id in taken)
    claimed = tuple(gpu for gpu in hardware.gpus if gpu.device.id in taken)
    gpus = unclaimed or claimed
    unrelated = (None,) * (len(taken) - len(nics) - len(claimed))
    if not gpus:
        return Pod(nics, gpus, unrelated, ())
    free_nics = tuple(nic for nic in hardware.nics if nic.device.id not in gone)
    free_gpus = tuple(gpu for gpu in hardware.gpus if gpu.device.id not in gone)
    distances = tuple(sorted((*pair(nics, gpus).distances, *unrelated), key=level))
    return Pod(nics, gpus, distances, best_distances(free_nics, free_gpus, len(gpus), len(nics)))


def _taken(claims: Sequence[JsonObject]) -> frozenset[DeviceId]:
    results = (one for claim in claims for one in claim["status"]["allocation"]["devices"]["results"])
    return frozenset((one["driver"], one["pool"], one["device"]) for one in results)
