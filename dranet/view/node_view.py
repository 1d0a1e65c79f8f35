"""A node, or the capture of one, with the decisions of the driver about its devices."""

from __future__ import annotations

import socket

from dranet.inventory.policy import Policy
from dranet.model.device import Device
from dranet.pictures import node_view
from dranet.settings import Settings

SHAPING_SETTINGS = (
    "filter",
    "attributes_file",
    "prefer_attributes",
    "list_attributes",
    "offer_link_kinds",
    "move_ib_interfaces",
    "publish_gpus",
    "node_addresses",
    "pci_ids",
    "sysfs_root",
    "procfs_root",
)
"""The settings that decide which devices are offered, and with which attributes."""


class NodeView(node_view.Look, frozen=True):
    """The facts of a node, the driver's decisions about its devices, and the policy behind them."""

    policy: Policy
    is_capture: bool = False

    def node_name(self, settings: Settings) -> str:
        """The setting; without it the captured host's name, or this one's."""
        captured = self.facts.host.name if self.is_capture else ""
        return settings.node_name or captured or socket.gethostname()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What could not be read, and what the operator's rules could not do."""
        rules = (warning for decision in self.inventory for warning in decision.warnings)
        return (*self.facts.warnings, *rules)

    @property
    def offered(self) -> tuple[Device, ...]:
        """In the order of publishing."""
        return tuple(decision.device for decision in self.inventory if decision.published)
