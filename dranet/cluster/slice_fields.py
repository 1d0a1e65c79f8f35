"""The optional fields of a device: those that an API server may not know, or keep behind a feature gate.

A server that does not keep such a field drops it without a word, or refuses the slice whole. Here is where
each stands in a device's JSON, and what becomes of a device without it. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Any

from dranet.cluster.messages import JsonObject
from dranet.model.attributes import STANDARD_NUMA_NODE
from dranet.model.device import TaintEffect

DeviceJson = JsonObject
Page = tuple[DeviceJson, ...]
"""The devices of one slice."""

_LIST_KINDS = {"ints": "int", "bools": "bool", "strings": "string", "versions": "version"}
"""The kinds of a list attribute, each with that of its items."""


class Feature(StrEnum):
    """An optional field that we publish; the text is for people."""

    TAINTS = "device taints"
    OBSERVED_TAINTS = "device taints with effect None"
    SHARED_DEVICES = "devices for several claims"
    LIST_ATTRIBUTES = "list attributes"

    @property
    def gate(self) -> str:
        """The feature gate of Kubernetes that a server keeps the field with, if it knows it at all."""
        return _GATES[self]


_GATES = {
    Feature.TAINTS: "DRADeviceTaints",
    Feature.OBSERVED_TAINTS: "DRADeviceTaints",
    Feature.SHARED_DEVICES: "DRAConsumableCapacity",
    Feature.LIST_ATTRIBUTES: "DRAListTypeAttributes",
}


def find_features(devices: Iterable[Mapping[str, Any]]) -> frozenset[Feature]:
    """Which optional fields these devices have."""
    return frozenset(feature for device in devices for feature in _features_of(device))


def find_lost(sent: Page, stored: Page) -> frozenset[Feature]:
    """Which optional fields of ``sent`` a server has dropped from at least one device."""
    kept = {device.get("name"): _features_of(device) for device in stored}
    lost = (_features_of(device) - kept.get(device["name"], frozenset()) for device in sent)
    return frozenset().union(*lost)


def withhold(page: Page, features: Collection[Feature]) -> Page:
    """The page without these fields; the same object where it has none of them.

    Of a list only the first NUMA node stays, as a scalar: it is the device's own. No other list has an item
    that could stand for it.
    """
    if not find_features(page) & frozenset(features):
        return page
    return tuple(_strip(device, features) for device in page)


def _features_of(device: Mapping[str, Any]) -> frozenset[Feature]:
    found = set()
    if taints := device.get("taints"):
        found.add(Feature.TAINTS)
        if any(_is_observed(taint) for taint in taints):
            found.add(Feature.OBSERVED_TAINTS)
    if device.get("allowMultipleAllocations"):
        found.add(Feature.SHARED_DEVICES)
    if any(_is_list(value) for value in (device.get("attributes") or {}).values()):
        found.add(Feature.LIST_ATTRIBUTES)
    return frozenset(found)


def _strip(device: DeviceJson, features: Collection[Feature]) -> DeviceJson:
    stripped = dict(device)
    if Feature.TAINTS in features:
        stripped.pop("taints", None)
    elif Feature.OBSERVED_TAINTS in features and "taints" in stripped:
        stripped["taints"] = [taint for taint in stripped["taints"] if not _is_observed(taint)]
    if Feature.SHARED_DEVICES in features:
        stripped.pop("allowMultipleAllocations", None)
    if Feature.LIST_ATTRIBUTES in features and "attributes" in stripped:
        stripped["attributes"] = _without_lists(stripped["attributes"])
    return {key: value for key, value in stripped.items() if value not in ([], {})}


def _without_lists(attributes: JsonObject) -> JsonObject:
    kept = {}
    for name, value in attributes.items():
        if not _is_list(value):
            kept[name] = value
        elif name == STANDARD_NUMA_NODE.qualified:
            kept[name] = {_LIST_KINDS[kind]: items[0] for kind, items in value.items()}
    return kept


def _is_list(attribute: Mapping[str, Any]) -> bool:
    return not _LIST_KINDS.keys().isdisjoint(attribute)


def _is_observed(taint: Mapping[str, Any]) -> bool:
    return taint.get("effect") == TaintEffect.NONE
