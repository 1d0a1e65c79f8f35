"""What programs outside the node's kernel say about its devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from dranet.model.device import AttributeValue


class DeviceIdentity(Struct, frozen=True):
    """By what a provider recognises a device; empty where the node does not know it."""

    name: str
    ifname: str = ""
    mac: str = ""
    pci_address: str = ""


class Provided(Struct, frozen=True):
    """What a provider says about a device."""

    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
