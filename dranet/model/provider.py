"""Facts about devices from outside the node's kernel: of a cloud's metadata service, of a webhook.

An answer is a hint that comes over the network, so it is checked here before it becomes a fact: a value that
the API server would refuse takes the whole slice with it, and no provider may change a fact of the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from dranet.model.attributes import CATALOGUE, MAC, cut_text, is_qualified_name
from dranet.model.device import AttributeValue, Device
from dranet.model.facts import ProvidedAttribute, ProvidedFacts

_OWN_NAMES = frozenset(attribute.qualified for attribute in CATALOGUE)
_INT64 = range(-(2**63), 2**63)
MAX_PROVIDED_ATTRIBUTES = 16
"""More of one device would displace facts of the kernel, as a slice takes 32."""


class DeviceIdentity(Struct, frozen=True):
    """By what a provider recognises a device; empty where the node does not know it."""

    name: str
    ifname: str = ""
    mac: str = ""
    pci_address: str = ""


def identify(device: Device) -> DeviceIdentity:
    mac = device.attributes.get(MAC.qualified, "")
    return DeviceIdentity(device.name, device.ifname, str(mac), device.pci_address)


class ProfileRequest(Struct, frozen=True):
    """One device of a claim asks for a profile."""

    key: str
    """Which device, or share of one, of the claim."""
    device: DeviceIdentity
    config: Mapping[str, Any]
    """What the claim, its class and the provider of configs want, ``profile`` included."""

    @property
    def profile(self) -> str:
        return str(self.config["profile"])


class ProvidedConfig(Struct, frozen=True):
    """What a provider wants for a device, or gives for a profile; as an administrator's word, no policy
    limits it."""

    owner: str
    """As messages call it: ``profile rail (from the webhook provider http://127.0.0.1:8080)``."""
    parameters: Mapping[str, object]


class CheckedAttributes(Struct, frozen=True):
    attributes: tuple[ProvidedAttribute, ...] = ()
    """Sorted by name."""
    problems: tuple[str, ...] = ()
    """Why others are left out, one clause each."""


def check_attributes(values: Mapping[str, object]) -> CheckedAttributes:
    """Keep what a slice can take; ``values`` by qualified name are from outside and may be anything."""
    kept: list[ProvidedAttribute] = []
    problems: list[str] = []
    for name in sorted(values, key=str):
        try:
            kept.append(_check(name, values[name]))
        except ValueError as error:
            problems.append(f"{str(name)[:_SHOWN]!r} {error}")
    excess = kept[MAX_PROVIDED_ATTRIBUTES:]
    problems += [f"{one.name!r} is one too many: {MAX_PROVIDED_ATTRIBUTES} have a place" for one in excess]
    return CheckedAttributes(tuple(kept[:MAX_PROVIDED_ATTRIBUTES]), tuple(problems))


_SHOWN = 100


def _check(name: object, value: object) -> ProvidedAttribute:
    if not isinstance(name, str) or not is_qualified_name(name):
        raise ValueError("is no qualified attribute name, e.g. gce.dra.net/block")
    if name in _OWN_NAMES:
        raise ValueError("is published by the driver itself")
    match value:
        case bool():
            return ProvidedAttribute(name, boolean=value)
        case int() if value in _INT64:
            return ProvidedAttribute(name, integer=value)
        case str() if value and cut_text(value) == value:
            return ProvidedAttribute(name, string=value)
        case str():
            raise ValueError("must be text of 1 to 64 bytes")
        case _:
            raise ValueError("must be text, a 64-bit integer, or true or false")


class ProvidedIndex:
    """The facts of providers, to be found by device."""

    def __init__(self, facts: Iterable[ProvidedFacts]) -> None:
        self._by_key: dict[str, dict[str, AttributeValue]] = {}
        for one in facts:
            key = one.device or one.mac.lower() or one.rdma_device
            values = self._by_key.setdefault(key, {})
            values |= {attribute.name: attribute.value for attribute in one.attributes}

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def attributes_for(self, device: Device) -> dict[str, AttributeValue]:
        """By qualified name; those of the device itself before those of the node."""
        mac = str(device.attributes.get(MAC.qualified, "")).lower()
        found: dict[str, AttributeValue] = dict(self._by_key.get("", {}))
        for key in (device.rdma_device, mac, device.name):
            if key:
                found |= self._by_key.get(key, {})
        return found
