"""The distances of claims' NICs to their GPUs, of whatever driver, next to the best of the node.

The rules are those of the verdict on the node (:mod:`dranet.claims.alignment`): RDMA NICs are compared with
RDMA NICs, those of one link layer among themselves, and devices with admin access do not count. Here GPUs are
a choice as well, among those of the driver and type that the claims have. A MIG device counts as its GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dranet.claims.alignment import level, pair, rank
from dranet.desk.allocation.allocator import Attempt, AttemptResult, ClusterDevices
from dranet.desk.allocation.devices import InUse, Node
from dranet.desk.allocation.failures import AllocationError
from dranet.desk.allocation.pools import Inventory, Pool
from dranet.desk.explain.explanation import Alignment, AllocatedDevice, DevicePair, Taken
from dranet.desk.hardware.nodes import Hardware, Spot, is_gpu, profile_of, read_hardware
from dranet.desk.hardware.places import text_of
from dranet.desk.hardware.spots import NodeSpots, find_spots
from dranet.desk.templates.advice import describe_command, describe_constraint
from dranet.desk.templates.candidates import NotAvailable, assumed_classes
from dranet.desk.templates.choose import Choice, choose_claim
from dranet.desk.templates.notes import format_distances
from dranet.desk.templates.request import ClaimRequest
from dranet.desk.templates.trial import Distances, find_best
from dranet.model.facts import distance

_NONE_IN_USE = InUse()


@dataclass(frozen=True, slots=True)
class _Choices:
    """The NICs of one network and the GPUs that some claims have, and what they could have instead."""

    nics: tuple[Spot, ...]
    gpus: tuple[Spot, ...]
    other_nics: tuple[Spot, ...]
    other_gpus: tuple[Spot, ...]

    def pair(self) -> tuple[DevicePair, ...]:
        """Each NIC with its GPU, in their order."""
        pairs = pair(self.nics, self.gpus).pairs
        return tuple(_measure(self.nics[one.nic], self.gpus[one.gpu or 0]) for one in pairs)

    def find_best(self, in_use: InUse = _NONE_IN_USE) -> tuple[DevicePair, ...]:
        """The best pairs of all devices that are not in use, with its own GPUs where they are as good."""
        nics = (*self.nics, *(nic for nic in self.other_nics if not in_use.holds(nic.device.id)))
        gpus = (*self.gpus, *(gpu for gpu in self.other_gpus if not in_use.holds(gpu.device.id)))
        ways = (
            find_best(nics, some, len(self.gpus), len(self.nics))
            for some in (self.gpus, _one_for_each_place(gpus))
        )
        best = min(ways, key=lambda way: rank(way.distances))
        return tuple(_measure(nic, gpu) for nic, gpu in best.pairs)


def read_spots(pools: Iterable[Pool]) -> NodeSpots:
    """Places of the devices of one node."""
    return find_spots(device for pool in pools if not pool.defect for device in pool.devices)


def align(taken: Taken, spots: NodeSpots, in_use: InUse) -> Alignment | None:
    """Pair NICs and GPUs of some claims; ``None`` without a NIC and a GPU on this node.

    Args:
        taken: all devices of the claims; those with an allocation may be in use.
        spots: the places on the node.
        in_use: what all claims have.
    """
    used = [device for device in taken if not device.is_admin]
    gpus = _one_for_each_place(spots.gpus[device.id] for device in used if device.id in spots.gpus)
    by_network: dict[object, list[int]] = defaultdict(list)
    for index, device in enumerate(taken):
        if device.id in spots.nics and not device.is_admin:
            by_network[_network_of(spots.nics[device.id])].append(index)
    if not gpus or not by_network:
        return None
    paired = list(taken)
    compared: list[tuple[_Choices, tuple[DevicePair, ...]]] = []
    for indexes in by_network.values():
        choices = _find_choices([spots.nics[taken[index].id] for index in indexes], gpus, used, spots)
        pairs = choices.pair()
        compared.append((choices, pairs))
        for index, found in zip(indexes, pairs, strict=True):
            paired[index] = replace(taken[index], pair=found)
    alignment = _compare(tuple(paired), compared, in_use)
    if spots.assumption is None:
        return alignment
    platform = spots.assumption.platform
    return replace(alignment, assumption=f"{platform.name}, by {platform.source}")


def _network_of(nic: Spot) -> object:
    """What a NIC has in common with those that could take its place."""
    return nic.has_rdma, nic.fabric, nic.device.shared


def _kind_of(gpu: Spot) -> object:
    return gpu.device.driver, text_of(gpu.device, f"{gpu.device.driver}/type")


def _one_for_each_place(gpus: Iterable[Spot]) -> tuple[Spot, ...]:
    """Parts of one GPU are one."""
    places: dict[object, Spot] = {}
    for gpu in gpus:
        places.setdefault(gpu.pci_path or gpu.device.id, gpu)
    return tuple(places.values())


def _find_choices(
    nics: Sequence[Spot], gpus: tuple[Spot, ...], used: Iterable[AllocatedDevice], spots: NodeSpots
) -> _Choices:
    own = {device.id for device in used}
    kinds = {_kind_of(spots.gpus[device]) for device in own if device in spots.gpus}
    network = _network_of(nics[0])
    others = (spot for spot in spots.nics.values() if spot.device.id not in own and spot.is_offered)
    other_gpus = (spot for spot in spots.gpus.values() if spot.device.id not in own and spot.is_offered)
    return _Choices(
        tuple(nics),
        gpus,
        tuple(nic for nic in others if nic.is_up and _network_of(nic) == network),
        tuple(gpu for gpu in other_gpus if _kind_of(gpu) in kinds),
    )


def _measure(nic: Spot, gpu: Spot) -> DevicePair:
    return DevicePair(nic.device.id, gpu.device.id, distance(nic, gpu))


def _compare(
    taken: Taken, compared: Iterable[tuple[_Choices, Sequence[DevicePair]]], in_use: InUse
) -> Alignment:
    pairs, best, better, holders = list[DevicePair](), list[DevicePair](), list[DevicePair](), list[str]()
    for choices, mine in compared:
        pairs += mine
        possible = choices.find_best()
        best += possible
        if _rank(possible) >= _rank(mine):
            continue
        free = choices.find_best(in_use)
        chosen = free if _rank(free) < _rank(mine) else possible
        better += [one for one in chosen if one not in mine]
        own = {spot.device.id for spot in (*choices.nics, *choices.gpus)}
        wanted = [device for one in better for device in (one.nic, one.gpu) if device not in own]
        holders += [holder for device in wanted for holder in in_use.holders.get(device, ())]
    unique = tuple(dict.fromkeys(holders))
    return Alignment(taken, _distances(pairs), _distances(best), tuple(better), unique)


def _rank(pairs: Iterable[DevicePair]) -> tuple[int, int]:
    return rank([one.distance for one in pairs])


def _distances(pairs: Iterable[DevicePair]) -> Distances:
    return tuple(sorted((one.distance for one in pairs), key=level))


# --- the claim that gets more ------------------------------------------------------------------------


def find_fix(alignment: Alignment, node: Node, cluster: ClusterDevices) -> str:
    """The claim of ``claim new`` that gets a better pair on this node, or waits for one, as the allocator
    finds; empty where none does.

    Args:
        alignment: that of some claims.
        node: where they are.
        cluster: with the slices of this node.
    """
    taken = alignment.taken
    spots = read_spots(Inventory.read(cluster.slices).pools_for(node))
    request = _read_request(taken, spots)
    if request is None:
        return ""
    drivers = {device.id[0] for device in taken}
    slices = [entry for entry in cluster.slices if entry["spec"]["driver"] in drivers]
    nodes = [{"metadata": {"name": node.name, "labels": node.labels}}]
    hardware = read_hardware(slices, nodes, [node.name], request.gpu_part)
    try:
        choice = choose_claim(request, hardware, cluster.classes)
        got = align(_allocate(choice, hardware, node, _without(cluster, taken)), spots, InUse())
    except (AllocationError, NotAvailable):
        return ""
    found = got.distances if got else choice.attempt.trials[0].pods[0].distances
    if rank(found) >= rank(alignment.distances) or not choice.attempt.shape.is_aligning:
        return ""
    claims = {device.claim for device in taken if device.id in spots.nics or device.id in spots.gpus}
    one = "one claim for all: " if len(claims) > 1 else ""
    how = f"writes a claim that {'gets' if got else 'waits for'} {format_distances(found)}"
    return f"{one}{describe_command(request)} {how} ({describe_constraint(choice)})"


def _read_request(taken: Taken, spots: NodeSpots) -> ClaimRequest | None:
    """What was asked for, in numbers; ``None`` where ``claim new`` writes no such claim. A claim for NICs
    alone next to one with NICs and GPUs is for another purpose, such as storage."""
    used = [device for device in taken if not device.is_admin]
    with_nics = {device.claim for device in used if device.id in spots.nics}
    with_gpus = {device.claim for device in used if device.id in spots.gpus}
    nics = [spots.nics[device.id] for device in used if device.id in spots.nics]
    gpus = [spots.gpus[device.id] for device in used if device.id in spots.gpus]
    has_pair_and_more = with_nics & with_gpus and with_nics - with_gpus
    is_known = all(is_gpu(gpu.device) or profile_of(gpu.device) for gpu in gpus)
    is_one_kind = (
        len({(nic.has_rdma, nic.device.shared) for nic in nics}) == 1
        and len({(gpu.device.driver, profile_of(gpu.device)) for gpu in gpus}) == 1
    )
    if has_pair_and_more or not is_known or not is_one_kind or nics[0].device.shared:
        return None
    part = profile_of(gpus[0].device)
    return ClaimRequest(len(gpus), len(nics), rdma=nics[0].has_rdma, gpu_part=part)


def _allocate(choice: Choice, hardware: Hardware, node: Node, cluster: ClusterDevices) -> Taken:
    """What a pod with the manifests would get."""
    written = {one["metadata"]["name"]: one for one in choice.classes}
    assumed = assumed_classes(choice.candidates.request, hardware)
    claims = [
        {"metadata": {**template["metadata"], "namespace": ""}, "spec": template["spec"]["spec"]}
        for template in choice.first_templates
    ]
    attempt = Attempt(claims, replace(cluster, classes={**assumed, **cluster.classes, **written}))
    outcome = attempt.on(node)
    selected = outcome.selected if outcome.ending is AttemptResult.ALLOCATED else ()
    return tuple(
        AllocatedDevice(pick.slot.claim.label, pick.alternative.name, pick.candidate.id) for pick in selected
    )


def _without(cluster: ClusterDevices, taken: Taken) -> ClusterDevices:
    """As if these devices were free."""
    own = {device.id for device in taken}
    shares = {device: used for device, used in cluster.in_use.shares.items() if device not in own}
    return replace(cluster, in_use=InUse(cluster.in_use.devices - own, shares))
