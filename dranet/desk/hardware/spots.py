"""All NICs and GPUs of one node with their places, also those that ``claim new`` leaves out: shared NICs,
parts of GPUs (MIG), and GPUs of several drivers. A part is where its GPU is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dranet.desk.allocation.devices import Candidate
from dranet.desk.hardware.nodes import Spot, is_gpu_or_part, is_network_device
from dranet.desk.hardware.places import PLACES, DeviceId, Place, address_of, locate, text_of
from dranet.desk.hardware.platforms import Assumption


@dataclass(frozen=True, slots=True)
class NodeSpots:
    """By device, in the scheduler's order."""

    nics: Mapping[DeviceId, Spot]
    gpus: Mapping[DeviceId, Spot]
    assumption: Assumption | None = None
    """Where no attribute has the NUMA nodes of the GPUs."""


def find_spots(devices: Iterable[Candidate]) -> NodeSpots:
    """Read the devices of one node. One GPU that two drivers publish, or a GPU and its parts, have one
    place: that of the device which publishes most of it."""
    devices = tuple(devices)
    nics = [device for device in devices if is_network_device(device)]
    gpus = [device for device in devices if is_gpu_or_part(device)]
    addresses = _find_addresses(gpus)
    whole: dict[str, Candidate] = {}
    for gpu in gpus:
        address = address_of(gpu)
        if address and _count_places(gpu) > (_count_places(whole[address]) if address in whole else -1):
            whole[address] = gpu
    places, assumption = locate(nics, list(whole.values()))
    at = {address: places[gpu.id] for address, gpu in whole.items()}
    return NodeSpots(
        {nic.id: Spot(nic, places[nic.id]) for nic in nics},
        {gpu.id: Spot(gpu, at.get(addresses[gpu.id], Place())) for gpu in gpus},
        assumption,
    )


def _count_places(device: Candidate) -> int:
    return sum(device.find_attribute(name) is not None for name in PLACES)


def _find_addresses(gpus: Sequence[Candidate]) -> dict[DeviceId, str]:
    """A part may publish the UUID of its GPU in place of an address."""
    by_uuid = {_uuid_of(gpu, "uuid"): address_of(gpu) for gpu in gpus if _uuid_of(gpu, "uuid")}
    return {gpu.id: address_of(gpu) or by_uuid.get(_uuid_of(gpu, "parentUUID"), "") for gpu in gpus}


def _uuid_of(device: Candidate, name: str) -> str:
    return text_of(device, f"{device.driver}/{name}").lower()
