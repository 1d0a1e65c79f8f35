"""How a GPU gets into containers: by its vendor's CDI device if it has one, otherwise by its device nodes.

Decided once, at Prepare, and recorded with the claim: a second Prepare must return the same, even if the
vendor's spec has changed meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

from dranet.model.attributes import GPU_UUID, GPU_VENDOR
from dranet.model.device import Device, is_shared_node
from dranet.model.facts import CharDevice, Gpu
from dranet.runtime.vendor_cdi import VENDOR_KINDS, VendorSpecs, choose_device

log = logging.getLogger(__name__)


class GpuContainers:
    """Finds the vendor's CDI device of a GPU. Callable from any thread. ``get_gpus`` returns all GPUs of the
    node, as of the last scan."""

    def __init__(self, folders: Sequence[Path], get_gpus: Callable[[], Sequence[Gpu]]) -> None:
        self._specs = VendorSpecs(folders)
        self._get_gpus = get_gpus
        self._lock = Lock()

    def find_vendor_device(self, device: Device) -> str:
        """Return the qualified name of the vendor's CDI device for this GPU; empty if it has no CDI device.

        Blocking: reads the vendor's files if they have changed.
        """
        kind = VENDOR_KINDS.get(str(device.attributes.get(GPU_VENDOR.qualified, "")))
        if kind is None:
            return ""
        others = [
            node
            for gpu in self._get_gpus()
            if gpu.pci_address != device.pci_address
            for node in gpu.char_devices
        ]
        with self._lock:
            devices = self._specs.list_devices(kind)
        uuid = str(device.attributes.get(GPU_UUID.qualified, ""))
        found = choose_device(devices, own_nodes(device.char_devices), own_nodes(others), uuid)
        if found is None and devices:
            log.info(
                "none of the %d CDI devices of kind %s is %s alone: its device nodes are given",
                len(devices),
                kind,
                device.name,
            )
        return found.id if found else ""


def own_nodes(nodes: Sequence[CharDevice]) -> tuple[CharDevice, ...]:
    return tuple(node for node in nodes if not is_shared_node(node.path))


def find_environment(device: Device) -> tuple[tuple[str, str], ...]:
    """Return the variables that a container with this GPU needs. Many images set NVIDIA's to ``all``;
    ``void`` keeps its runtime from adding GPUs to those of the claim, as in NVIDIA's own specs."""
    is_nvidia = device.attributes.get(GPU_VENDOR.qualified) == "nvidia"
    return (("NVIDIA_VISIBLE_DEVICES", "void"),) if is_nvidia else ()
