"""What programs outside the node's kernel say about its devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from dranet.model.attributes import MAC
from dranet.model.device import AttributeValue, Device


class DeviceIdentity(Struct, frozen=True):
    """By what a provider recognises a device; empty where the node does not know it."""

    name: str
    ifname: str = ""
    mac: str = ""
    pci_address: str = ""


def identify(device: Device) -> DeviceIdentity:
    mac = device.attributes.get(MAC.qualified, "")
    return DeviceIdentity(device.name, device.ifname, str(mac), device.pci_address)


class ProfileWish(Struct, frozen=True):
    """One device of a claim asks for a profile."""

    key: str
    """Which device, or share of one, of the claim."""
    device: DeviceIdentity
    config: Mapping[str, Any]
    """What the claim, its class and the provider of configs want, ``profile`` included."""

    @property
    def profile(self) -> str:
        return str(self.config["profile"])


class Provided(Struct, frozen=True):
    """What a provider says about a device."""

    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
