"""Fabrics as the ResourceSlices that the driver publishes of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dranet.desk.fabric.links import Link, group_by_node
from tests.desk.fabric.fabrics import cable, change, swap, unplug

JsonObject = dict[str, Any]


def attributes(link: Link) -> JsonObject:
    """The attributes of one NIC; what is unknown is left out, as the driver does."""
    texts = {
        "ifName": link.ifname,
        "type": "device",
        "pciAddress": link.slot,
        "pciDevice": link.model,
        "switchChassisId": link.switch,
        "switchName": link.switch_name,
        "switchPortId": link.port,
    }
    numbers = {"rail": link.rail, "linkSpeedMbps": link.speed_mbps}
    found: JsonObject = {f"dra.net/{name}": {"string": text} for name, text in texts.items() if text}
    found |= {f"dra.net/{name}": {"int": number} for name, number in numbers.items() if number is not None}
    return {**found, "dra.net/rdma": {"bool": True}, "dra.net/virtual": {"bool": False}}


def make_slice(node: str, devices: Mapping[str, JsonObject], **pool: int) -> JsonObject:
    """One slice of a node: device -> attributes."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-dra.net-{pool.get('generation', 1)}"},
        "spec": {
            "driver": "dra.net",
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1, **pool},
            "devices": [{"name": name, "attributes": one} for name, one in devices.items()],
        },
    }


def make_slices(links: Iterable[Link]) -> list[JsonObject]:
    """A slice for each node."""
    return [
        make_slice(node, {link.device: attributes(link) for link in own})
        for node, own in group_by_node(links).items()
    ]


def placed(node: str, **values: str) -> JsonObject:
    """A node whose cloud reports its place: ``gce_block="b1"`` is ``gce.dra.net/block``."""
    parts = {name: name.partition("_") for name in values}
    found = {f"{parts[name][0]}.dra.net/{parts[name][2]}": {"string": text} for name, text in values.items()}
    return make_slice(node, {"eth0": {"dra.net/ifName": {"string": "eth0"}, **found}})


FLEET = Path(__file__).parents[2] / "data/fleet/two-units.json"
"""The fleet of the documentation: two units of eight nodes, with cables that do not fit."""


def make_fleet() -> str:
    """Its text, a device on each line. ``python -m tests.desk.fabric.slices`` writes it."""
    cabling = cable(2, 8)
    swap(cabling, ("gpu-2", 3), ("gpu-2", 5))
    unplug(cabling, ("gpu-5", 1))
    change(cabling, ("gpu-12", 6), speed_mbps=200_000)
    change(cabling, ("gpu-10", 2), switch="02:00:00:00:00:02", switch_name="leaf-0-2", port="Ethernet1/40")
    slices = [
        json.dumps(one).replace('{"name": "pci-', '\n  {"name": "pci-')
        for one in make_slices(cabling.values())
    ]
    return '{"apiVersion": "v1", "kind": "List", "items": [\n' + ",\n".join(slices) + "\n]}\n"


if __name__ == "__main__":
    FLEET.write_text(make_fleet())
