"""Clusters for the tests of ``claim new``: layouts as slices, with our GPUs or a vendor's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from msgspec.structs import replace

from dranet.cluster.slice_plan import build_pages
from dranet.inventory.offer import take_inventory
from dranet.inventory.policy import Policy
from dranet.inventory.slices import build_slices
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import NodeFacts
from tests.data import gpu_drivers
from tests.data.layouts import read_layout

JsonObject = dict[str, Any]
PLUGIN_RESOURCE = "nvidia.com/gpu"


class Gpus(StrEnum):
    """Who publishes the GPUs, and which of its releases; ``tests.data.gpu_drivers`` has the shapes."""

    OURS = "ours"
    VENDOR = "the vendor's before the standard NUMA node"
    VENDOR_NUMA = "the vendor's newest"
    VENDOR_OWN_NAMES = "the vendor's of 2025 with names of its own"
    VENDOR_NO_ROOT = "the vendor's below Hyper-V's VMBus: no root"


_SHAPES = {
    Gpus.VENDOR: gpu_drivers.NO_NUMA,
    Gpus.VENDOR_NUMA: gpu_drivers.NEWEST,
    Gpus.VENDOR_OWN_NAMES: gpu_drivers.OWN_NAMES,
    Gpus.VENDOR_NO_ROOT: gpu_drivers.NO_NUMA,
}


@dataclass(frozen=True, slots=True)
class World:
    """One node: its slices, and the devices behind them with their true places, by their published names."""

    node: str
    slices: tuple[JsonObject, ...]
    gpus: Mapping[str, Device]
    nics: Mapping[str, Device]

    @property
    def gpu_driver(self) -> str:
        """The driver that publishes the GPUs; empty where there are none."""
        drivers = {self.ids([name])[0][0] for name in self.gpus}
        return next(iter(drivers), "")

    def ids(self, names: Iterable[str]) -> list[tuple[str, str, str]]:
        """Driver, pool and device, as an allocation has them."""
        wanted = set(names)
        return [
            (entry["spec"]["driver"], entry["spec"]["pool"]["name"], device["name"])
            for entry in self.slices
            for device in entry["spec"].get("devices") or ()
            if device["name"] in wanted
        ]

    def devices(self, names: Iterable[str]) -> list[Device]:
        return [{**self.gpus, **self.nics}[name] for name in names]

    def only(self, slices: Iterable[JsonObject]) -> World:
        """With the devices that these slices have."""
        names = {device["name"] for entry in slices for device in entry["spec"].get("devices") or ()}
        gpus = {name: gpu for name, gpu in self.gpus.items() if name in names}
        nics = {name: nic for name, nic in self.nics.items() if name in names}
        return World(self.node, tuple(slices), gpus, nics)


@cache
def world(layout: str, gpus: Gpus = Gpus.OURS, node: str = "node-1", has_lists: bool = False) -> World:
    """A layout as one node of a cluster, with all its GPUs."""
    return build_world(read_layout(layout).facts, gpus, node, has_lists)


def build_world(
    facts: NodeFacts, gpus: Gpus = Gpus.OURS, node: str = "node-1", has_lists: bool = False
) -> World:
    """A machine as one node of a cluster, with all its GPUs; our driver has the setting ``list_attributes``
    or not."""
    policy = Policy(list_attributes=has_lists)
    decisions = take_inventory(facts, {}, policy)
    devices = [decision.device for decision in decisions]
    offered = [decision.device for decision in decisions if decision.published]
    cards = [device for device in devices if device.kind is DeviceKind.GPU]
    nics = [device for device in offered if device.kind is not DeviceKind.GPU]
    named_nics = {nic.name: nic for nic in nics}
    if gpus is Gpus.OURS:
        slices = _slices("dra.net", [*nics, *cards], node, policy)
        return World(node, tuple(slices), {card.name: card for card in cards}, named_nics)
    shapes = _SHAPES[gpus]
    read = [replace(card, pcie_root="") if gpus is Gpus.VENDOR_NO_ROOT else card for card in cards]
    slices = [*_slices("dra.net", nics, node, policy), *gpu_drivers.publish(read, facts.host, node, shapes)]
    renamed = [replace(card, name=gpu_drivers.publish_gpu(card, shapes)["name"]) for card in cards]
    return World(node, tuple(slices), {card.name: card for card in renamed}, named_nics)


def _slices(driver: str, devices: list[Device], node: str, policy: Policy) -> list[JsonObject]:
    pages = build_pages(build_slices(devices, policy))
    return [gpu_drivers.build_slice(driver, node, list(page)) for page in pages]


@cache
def plugin_world(layout: str, node: str = "node-1") -> World:
    """Without the GPUs in any slice; the node still has them."""
    machine = world(layout, node=node)
    slices = [
        {**entry, "spec": {**entry["spec"], "devices": [d for d in entry["spec"]["devices"] if _is_nic(d)]}}
        for entry in machine.slices
    ]
    return World(node, tuple(slices), machine.gpus, machine.nics)


def _is_nic(device: JsonObject) -> bool:
    return not device["name"].startswith("gpu-")


def node_of(machine: World, resource: str = PLUGIN_RESOURCE, number: int | None = None) -> JsonObject:
    """The Node, which has all its GPUs, or a ``number`` of them, from a device plugin."""
    number = len(machine.gpus) if number is None else number
    allocatable = {"cpu": "64", "memory": "1Ti", resource: str(number)}
    return {"metadata": {"name": machine.node}, "status": {"allocatable": allocatable}}
