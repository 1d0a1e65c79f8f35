"""How near the devices of a claim are, and how near they could be: from the facts of a capture alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cache

from dranet.claims.alignment import level, pair
from dranet.desk.allocation.allocator import ClusterDevices, InUse, Node, allocate
from dranet.desk.templates.candidates import assumed_classes
from dranet.desk.templates.choose import Choice
from dranet.desk.templates.trial import Distances
from dranet.model.device import Device
from dranet.model.facts import Distance, distance
from tests.desk.templates.layout_clusters import JsonObject, World

Rank = tuple[int, int]
"""The worst level and the sum of all."""
UNKNOWN = len(Distance)


def good_nics(machine: World, count: int, rdma: bool) -> list[Device]:
    """Those that a person would choose from: with a link and of one fabric, unless there are too few."""
    kind = [
        nic for nic in machine.nics.values() if (nic.attributes["dra.net/rdma"] if rdma else is_hardware(nic))
    ]
    port = "rdmaPortState" if rdma else "state"
    up = [n for n in kind if n.attributes.get(f"dra.net/{port}", "up") in ("ACTIVE", "up", "unknown")]
    most = Counter(nic.attributes.get("dra.net/rdmaLinkLayer") for nic in up).most_common(1)
    of_one_fabric = [
        nic for nic in up if not rdma or nic.attributes.get("dra.net/rdmaLinkLayer") == most[0][0]
    ]
    return next((nics for nics in (of_one_fabric, up) if len(nics) >= count), kind)


def is_hardware(nic: Device) -> bool:
    return bool(nic.ifname) and nic.attributes["dra.net/virtual"] is False


def best_rank(
    machine: World, nics: Iterable[Device], gpu_count: int, nic_count: int, taken: Collection[str] = ()
) -> Rank:
    """The best that a pod can have of what is not ``taken``, by going through every way to share it out."""
    gpus = [gpu for name, gpu in machine.gpus.items() if name not in taken]
    free = [nic for nic in nics if nic.name not in taken]
    return _best(_table(free, gpus), gpu_count, nic_count)


def rank_of(devices: Iterable[Device], machine: World) -> Rank:
    """What a pod has got, measured likewise."""
    chosen = {device.name for device in devices}
    gpus = [gpu for name, gpu in machine.gpus.items() if name in chosen]
    nics = [nic for name, nic in machine.nics.items() if name in chosen]
    return _best(_table(nics, gpus), len(gpus), len(nics))


def _table(nics: Iterable[Device], gpus: Sequence[Device]) -> tuple[tuple[int, ...], ...]:
    return tuple(sorted(tuple(_level(nic, gpu) for gpu in gpus) for nic in nics))


def _level(nic: Device, gpu: Device) -> int:
    found = distance(nic, gpu)
    return UNKNOWN if found is None else int(found)


@cache
def _best(levels: tuple[tuple[int, ...], ...], gpu_count: int, nic_count: int) -> Rank:
    """The least worst level, and of all ways without a worse one the least sum."""
    ways = ((worst, _least_sum(levels, gpu_count, nic_count, worst)) for worst in range(UNKNOWN + 1))
    return next((worst, least) for worst, least in ways if least is not None)


def _least_sum(levels: Sequence[tuple[int, ...]], gpu_count: int, nic_count: int, worst: int) -> int | None:
    """One NIC after the other is left out or given to a GPU; of ways with equal numbers of NICs on each GPU
    only the nearest is kept."""
    most = -(-nic_count // gpu_count)
    ways = {(0,) * len(levels[0]): 0}
    for row in levels:
        for numbers, total in list(ways.items()):
            for gpu, far in enumerate(row):
                if far > worst or numbers[gpu] == most or sum(numbers) == nic_count:
                    continue
                more = (*numbers[:gpu], numbers[gpu] + 1, *numbers[gpu + 1 :])
                ways[more] = min(total + far, ways.get(more, total + far))
    full = [total for numbers, total in ways.items() if _is_even(numbers, gpu_count, nic_count)]
    return min(full, default=None)


def _is_even(numbers: Sequence[int], gpu_count: int, nic_count: int) -> bool:
    """All NICs on so many GPUs, and no GPU with two more than another."""
    used = sorted(numbers, reverse=True)[:gpu_count]
    return sum(numbers) == sum(used) == nic_count and used[0] - used[-1] <= 1


def distances_of(devices: Iterable[Device], machine: World) -> Distances:
    chosen = {device.name for device in devices}
    nics = [nic for name, nic in machine.nics.items() if name in chosen]
    gpus = [gpu for name, gpu in machine.gpus.items() if name in chosen]
    return tuple(sorted(pair(nics, gpus).distances, key=level))


def has_rdma(machine: World) -> bool:
    return any(nic.attributes["dra.net/rdma"] for nic in machine.nics.values())


def classes_of(choice: Choice) -> dict[str, JsonObject]:
    """Those that the manifests bring, and the vendor's."""
    written = {o["metadata"]["name"]: o for o in choice.manifests if o["kind"] == "DeviceClass"}
    return {**assumed_classes(choice.candidates.request, choice.hardware), **(choice.known or {}), **written}


def allocate_choice(choice: Choice, machine: World, taken: Iterable[str] = ()) -> list[Device]:
    """What a pod gets by the manifests alone, while others have the devices ``taken``."""
    claims = [
        {"metadata": {"namespace": "default", "name": o["metadata"]["name"]}, "spec": o["spec"]["spec"]}
        for o in choice.first_templates
    ]
    in_use = InUse(frozenset(machine.ids(taken)))
    allocations = allocate(
        claims, Node(machine.node, {}), ClusterDevices(machine.slices, classes_of(choice), in_use)
    )
    return machine.devices(r["device"] for a in allocations for r in a["devices"]["results"])
