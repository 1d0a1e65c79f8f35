"""Clusters for the tests of ``claim new``: layouts as slices, with our GPUs or those of a vendor's driver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from dranet.cluster.slice_plan import build_pages
from dranet.inventory.offer import take_inventory
from dranet.inventory.policy import Policy
from dranet.inventory.slices import build_slices
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import NodeFacts
from tests.data.layouts import read_layout

JsonObject = dict[str, Any]

VENDOR = "gpu.example.com"


class Gpus(StrEnum):
    """Who publishes the GPUs, and what of their place it says."""

    OURS = "ours"
    VENDOR = "a vendor's with root and address"
    VENDOR_NUMA = "a vendor's with NUMA node, too"
    VENDOR_ADDRESS = "a vendor's with the address alone"


@dataclass(frozen=True, slots=True)
class World:
    """One node: its slices, and the devices behind them with their true places."""

    node: str
    slices: tuple[JsonObject, ...]
    gpus: Mapping[str, Device]
    nics: Mapping[str, Device]

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
def world(layout: str, gpus: Gpus = Gpus.OURS, node: str = "node-1") -> World:
    """A layout as one node of a cluster, with all its GPUs."""
    return build_world(read_layout(layout).facts, gpus, node)


def build_world(facts: NodeFacts, gpus: Gpus = Gpus.OURS, node: str = "node-1") -> World:
    """A machine as one node of a cluster, with all its GPUs."""
    decisions = take_inventory(facts, {}, Policy())
    devices = [decision.device for decision in decisions]
    offered = [decision.device for decision in decisions if decision.published]
    cards = [device for device in devices if device.kind is DeviceKind.GPU]
    nics = [device for device in offered if device.kind is not DeviceKind.GPU]
    if gpus is Gpus.OURS:
        slices = _slices("dra.net", [*nics, *cards], node)
    else:
        theirs = [_vendors(card, gpus) for card in cards]
        slices = [*_slices("dra.net", nics, node), _slice(VENDOR, theirs, node)]
    return World(node, tuple(slices), {g.name: g for g in cards}, {n.name: n for n in nics})


def _slices(driver: str, devices: list[Device], node: str) -> list[JsonObject]:
    return [_slice(driver, list(page), node) for page in build_pages(build_slices(devices))]


def _slice(driver: str, devices: Any, node: str) -> JsonObject:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


def _vendors(card: Device, gpus: Gpus) -> JsonObject:
    attributes: JsonObject = {
        "type": {"string": "gpu"},
        "resource.kubernetes.io/pciBusID": {"string": card.pci_address},
    }
    if gpus is not Gpus.VENDOR_ADDRESS:
        attributes["resource.kubernetes.io/pcieRoot"] = {"string": card.pcie_root}
    if gpus is Gpus.VENDOR_NUMA and card.numa_node is not None:
        attributes["resource.kubernetes.io/numaNode"] = {"int": card.numa_node}
    return {"name": card.name, "attributes": attributes}
