"""A node, or the capture of one, with the decisions of the driver about its devices; and these devices as
documents for programs: JSON, YAML, and the ResourceSlices that the driver would write."""

from __future__ import annotations

import json
import socket
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from dranet.cluster.slice_plan import CreateSlice, DesiredPool, build_pages, plan_sync
from dranet.inventory.policy import Decision, Policy
from dranet.inventory.slices import build_slices, fit_attributes
from dranet.inventory.topology import nearest
from dranet.model.attributes import cut_text
from dranet.model.device import Device, DeviceKind
from dranet.pictures.summary import Look
from dranet.settings import Settings

SHAPING_SETTINGS = (
    "filter",
    "shared_devices",
    "default_bandwidth",
    "assumed_bandwidth",
    "virtual_functions_file",
    "attributes_file",
    "prefer_attributes",
    "list_attributes",
    "offer_link_kinds",
    "move_ib_interfaces",
    "publish_gpus",
    "node_addresses",
    "state_dir",
    "lldp",
    "lldpd_file",
    "rail_pattern",
    "pci_ids",
    "sysfs_root",
    "procfs_root",
)
"""The settings that decide which devices are offered, and with which attributes."""


class NodeView(Look, frozen=True):
    policy: Policy
    is_capture: bool = False
    allocated: Mapping[str, int] | None = None
    """Bits per second that prepared claims have, by device; ``None`` if it is not known."""

    def node_name(self, settings: Settings) -> str:
        """The setting; without it the captured host's name, or this one's."""
        captured = self.facts.host.name if self.is_capture else ""
        return settings.node_name or captured or socket.gethostname()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What could not be read, and what the operator's rules could not do."""
        return (*self.facts.warnings, *(warning for d in self.inventory for warning in d.warnings))

    @property
    def offered(self) -> tuple[Device, ...]:
        """In the order of publishing."""
        return tuple(decision.device for decision in self.inventory if decision.published)


Document = Mapping[str, Any]


def describe_devices(look: NodeView, shown: Iterable[Decision]) -> list[Document]:
    """Everything known of each device, with the same keys for all."""
    gpus = [device for device in look.devices if device.kind is DeviceKind.GPU]
    by_address = {device.pci_address: device.name for device in look.devices if device.pci_address}
    virtual_functions: dict[str, list[str]] = defaultdict(list)
    for device in look.devices:
        if device.physical_function:
            virtual_functions[device.physical_function].append(device.name)
    return [
        describe(decision)
        | {
            "deviceNodes": [node.path for node in decision.device.char_devices],
            "attributes": {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in sorted(decision.device.attributes.items())
            },
            "bandwidth": _describe_bandwidth(decision.device, look.allocated),
            "attributesLeftOut": dict(fit_attributes(decision.device, look.policy).left_out),
            "physicalFunction": by_address.get(decision.device.physical_function),
            "virtualFunctions": virtual_functions.get(decision.device.pci_address, []),
            "nearestGpus": _nearest(decision.device, gpus),
        }
        for decision in shown
    ]


def _describe_bandwidth(device: Device, allocated: Mapping[str, int] | None) -> Document | None:
    """Bits per second."""
    if device.bandwidth is None:
        return None
    have = None if allocated is None else allocated.get(device.name, 0)
    return {"capacity": device.bandwidth.total, "default": device.bandwidth.default, "allocated": have}


def describe(decision: Decision) -> dict[str, Any]:
    device = decision.device
    return {
        "name": device.name,
        "kind": str(device.kind),
        "published": decision.published,
        "reason": decision.reason,
        "pod": decision.pod or None,
        "ifName": device.ifname or None,
        "rdmaDevice": device.rdma_device or None,
        "numaNode": device.numa_node,
        "pciAddress": device.pci_address or None,
        "pcieRoot": device.pcie_root or None,
        "pciPath": list(device.pci_path),
    }


def _nearest(device: Device, gpus: Sequence[Device]) -> Document | None:
    found = None if device.kind is DeviceKind.GPU else nearest(device, gpus)
    if found is None:
        return None
    return {"distance": found.distance.name, "devices": [gpu.name for gpu in found.devices]}


def build_slice_objects(look: NodeView, driver: str, node: str) -> list[Document]:
    """The ResourceSlices as the driver would create them; it adds the Node as their owner."""
    pages = build_pages(build_slices(look.offered, look.policy))
    plan = plan_sync((), DesiredPool(driver, node, node, pages))
    return [write.body for write in plan.writes if isinstance(write, CreateSlice)]


def to_json(document: object) -> str:
    """Indented; text that is no text (odd bytes in an interface name) as ``\\udc..`` escapes."""
    return json.dumps(document, indent=2)


def to_yaml(documents: Sequence[object]) -> str:
    import yaml  # costs what only this output has to pay

    dumper = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper
    text: str = yaml.dump_all(
        map(_sendable, documents), Dumper=dumper, sort_keys=False, allow_unicode=True, width=1_000_000
    )
    return text.rstrip("\n")


def serialize(document: object, form: str) -> str:
    """A document as ``json`` or ``yaml``."""
    return to_json(document) if form == "json" else to_yaml([document])


def _sendable(value: Any) -> Any:
    """A copy, so that nothing in it needs an alias, of what JSON would have of it: of an enum its value. YAML
    has no escape for half a character: ours does it."""
    if isinstance(value, Enum):
        return _sendable(value.value)
    if isinstance(value, str):
        return value if cut_text(value) is not None else value.encode(errors="backslashreplace").decode()
    if isinstance(value, Mapping):
        return {key: _sendable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_sendable(item) for item in value]
    return value
