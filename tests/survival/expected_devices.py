"""What a claim's pod should have, read from its allocation and configs as the API server has them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from testbed.cluster import DRIVER_NAME, JsonObject
from testbed.node.hardware import PlacedNic
from testbed.node.node import Node


@dataclass(frozen=True, slots=True)
class Wanted:
    """One device of this driver that a claim was given."""

    claim: str
    device: str
    share_id: str
    pool: str
    ifname: str
    """In the pod, where the claim names it."""
    addresses: tuple[str, ...]
    """In CIDR form; of a NIC that moves its own where the claim has none."""
    nic: PlacedNic | None
    """``None`` of what is not one of the node's NICs, such as a GPU."""
    moves: bool
    """The NIC itself goes, rather than a link on top of it."""


def find_wanted(claim: JsonObject, node: Node) -> list[Wanted]:
    """Each device of this driver that the claim was given on the node."""
    devices = claim.get("status", {}).get("allocation", {}).get("devices", {})
    return [
        _build_wanted(claim, result, _merge_interface(devices.get("config", ()), result["request"]), node)
        for result in devices.get("results", ())
        if result["driver"] == DRIVER_NAME
    ]


def _build_wanted(claim: JsonObject, result: JsonObject, interface: JsonObject, node: Node) -> Wanted:
    nic = next((nic for nic in node.hardware.nics() if result["device"] == name_device(nic)), None)
    moves = interface.get("type", "passthrough") == "passthrough"
    own = [str(nic.nic.address)] if nic and moves else []
    return Wanted(
        claim=claim["metadata"]["name"],
        device=result["device"],
        share_id=result.get("shareID", ""),
        pool=result["pool"],
        ifname=interface.get("name", ""),
        addresses=tuple(interface.get("addresses") or own),
        nic=nic,
        moves=moves,
    )


def name_device(nic: PlacedNic) -> str:
    """What the driver calls it, after its PCI address."""
    return "pci-" + re.sub("[:.]", "-", nic.placed.address)


def _merge_interface(configs: Iterable[JsonObject], request: str) -> JsonObject:
    """The fields of ``interface`` for one request: a class' first, then the claim's, the later one wins."""
    merged: JsonObject = {}
    ordered = sorted(configs, key=lambda config: config.get("source") != "FromClass")
    for config in ordered:
        opaque = config.get("opaque", {})
        of_all = not config.get("requests")
        if opaque.get("driver") == DRIVER_NAME and (of_all or request in config["requests"]):
            merged |= opaque["parameters"].get("interface", {})
    return merged
