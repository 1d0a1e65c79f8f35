"""How near the devices of a claim are, and how near they could be: from the facts of a capture alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dranet.allocation.allocator import ClusterDevices, InUse, Node, allocate
from dranet.model.device import Device
from dranet.model.pairing import level, pair
from dranet.templates.choose import Choice
from dranet.templates.manifests import assumed_classes
from dranet.templates.trial import Distances, find_best
from tests.templates.worlds import JsonObject, World


def good_nics(machine: World, count: int, rdma: bool) -> list[Device]:
    """Those that a person would choose from: with a link, unless there are too few."""
    kind = [
        nic for nic in machine.nics.values() if (nic.attributes["dra.net/rdma"] if rdma else is_hardware(nic))
    ]
    port = "rdmaPortState" if rdma else "state"
    up = [n for n in kind if n.attributes.get(f"dra.net/{port}", "up") in ("ACTIVE", "up", "unknown")]
    return up if len(up) >= count else kind


def is_hardware(nic: Device) -> bool:
    return bool(nic.ifname) and nic.attributes["dra.net/virtual"] is False


def best_of(
    machine: World, nics: Iterable[Device], gpu_count: int, nic_count: int, taken: Collection[str] = ()
) -> Distances:
    """The best that a pod can have of what is not ``taken``."""
    find = find_best.__wrapped__  # devices cannot be hashed
    free = tuple(nic for nic in nics if nic.name not in taken)
    gpus = tuple(gpu for name, gpu in machine.gpus.items() if name not in taken)
    return find(free, gpus, gpu_count, nic_count).distances


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
    return {**assumed_classes(choice.fitting.ask, choice.hardware), **written}


def allocate_choice(choice: Choice, machine: World, taken: Iterable[str] = ()) -> list[Device]:
    """What a pod gets by the manifests alone, while others have the devices ``taken``."""
    claims = [
        {"metadata": {"namespace": "default", "name": o["metadata"]["name"]}, "spec": o["spec"]["spec"]}
        for o in choice.manifests
        if o["kind"] == "ResourceClaimTemplate"
    ]
    in_use = InUse(frozenset(machine.ids(taken)))
    allocations = allocate(
        claims, Node(machine.node, {}), ClusterDevices(machine.slices, classes_of(choice), in_use)
    )
    return machine.devices(r["device"] for a in allocations for r in a["devices"]["results"])
