"""What the cluster's objects cannot say: devices that a node has and its driver keeps to itself, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dranet.cluster.slice_content import device_to_json
from dranet.inventory.slices import build_slices
from dranet.model.device import Device
from dranet.view.node_view import NodeView

NotOffered = tuple[tuple[dict[str, Any], str], ...]


def find_held_back(looks: Mapping[str, NodeView], driver: str) -> dict[str, NotOffered]:
    """By node: for each reason a slice of the devices that are not published for it, as if they were."""
    return {node: tuple(_iter_slices(node, look, driver)) for node, look in looks.items()}


def _iter_slices(node: str, look: NodeView, driver: str) -> Iterator[tuple[dict[str, Any], str]]:
    by_reason: dict[str, list[Device]] = {}
    for decision in look.inventory:
        device = decision.device
        if not decision.published and (device.pci_address or device.rdma_device):
            by_reason.setdefault(decision.reason, []).append(device)
    for number, (reason, devices) in enumerate(by_reason.items()):
        pages = build_slices(devices, look.policy)
        pool = {"name": f"{node} (held back {number})", "generation": 1, "resourceSliceCount": 1}
        bodies = [device_to_json(device) for page in pages for device in page]
        spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": bodies}
        yield {"kind": "ResourceSlice", "metadata": {"name": pool["name"]}, "spec": spec}, reason
