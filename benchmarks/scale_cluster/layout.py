"""What each node publishes: the devices of a captured machine, as the driver's inventory makes them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from dranet.inventory.offer import take_inventory
from dranet.inventory.slices import Pages, plan_slices
from dranet.model.device import Device
from dranet.model.facts import NodeFacts
from dranet.settings import PublishGpus, Settings
from dranet.view.options import read_capture
from dranet.view.policy import load_policy

CAPTURE = Path(__file__).parents[2] / "tests/data/hgx-b200/capture.json"
DEVICES = 16
"""8 GPUs and 8 NICs."""
UNIQUE = ("mac", "rdmaNodeGuid", "rdmaPortGuid", "uuid")
"""Attributes that no two machines share."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The pages of one node before and after the carrier of one NIC is lost."""

    up: Pages
    down: Pages


def read_layout() -> Layout:
    facts = read_capture(str(CAPTURE), "capture").facts
    up = _plan(facts)
    nic = next(device.ifname for page in up for device in page if device.ifname)
    links = tuple(
        replace(link, operstate="down", carrier=False) if link.ifname == nic else link for link in facts.links
    )
    return Layout(up, _plan(replace(facts, links=links)))


def make_own(pages: Pages, node: str) -> Pages:
    """Return the pages with the addresses and GUIDs of this node alone."""
    return tuple(tuple(_make_own(device, node) for device in page) for page in pages)


def _plan(facts: NodeFacts) -> Pages:
    policy = load_policy(Settings(node_name="any", publish_gpus=PublishGpus.ALWAYS))
    offered: Sequence[Device] = [
        decision.device for decision in take_inventory(facts, {}, policy) if decision.published
    ]
    return plan_slices(offered, policy).pages


def _make_own(device: Device, node: str) -> Device:
    attributes = {
        name: _vary(value, node) if name.rpartition("/")[2] in UNIQUE and isinstance(value, str) else value
        for name, value in device.attributes.items()
    }
    return replace(device, attributes=attributes)


def _vary(value: str, node: str) -> str:
    """Replace each hexadecimal digit by one that depends on the node."""
    digits = iter(hashlib.sha256(f"{node} {value}".encode()).hexdigest())
    return re.sub("[0-9a-f]", lambda _: next(digits), value)
