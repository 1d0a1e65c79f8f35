"""Fields that a server drops because their feature gate is off.

The client gets no warning. A field stays where the stored object uses the feature already, so that an
update by a client that does not know it loses nothing. What the object is without the field is then
validated like any other: an attribute that had only a list has no value any more, and is refused. Source:
``dropDisabledFields`` in ``pkg/registry/resource/*/strategy.go``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dranet.desk.kubeapi.kinds import (
    DEVICE_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Kind,
)
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.kubeapi.profiles import Profile


@dataclass(frozen=True, slots=True)
class GatedFields:
    """Fields that need all of these gates. In a path ``[]`` stands for each entry of a list and ``{}`` for
    each value of a map."""

    gates: tuple[str, ...]
    paths: tuple[str, ...]


_DEVICE = "spec.devices.[]"
_RESULT = "status.allocation.devices.results.[]"
_STATUS = "DRAResourceClaimDeviceStatus"


def _under(parent: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{parent}.{name}" for name in names)


def _claim_spec(spec: str) -> tuple[GatedFields, ...]:
    """The gated fields of a claim's spec, which a template has one level deeper."""
    requests = f"{spec}.devices.requests.[]"
    alternatives = (f"{requests}.exactly", f"{requests}.firstAvailable.[]")
    return (
        GatedFields(("DRAPrioritizedList",), (f"{requests}.firstAvailable",)),
        GatedFields(("DRAAdminAccess",), (f"{requests}.exactly.adminAccess",)),
        GatedFields(
            ("DRAConsumableCapacity",),
            (
                *(f"{one}.capacity" for one in alternatives),
                f"{spec}.devices.constraints.[].distinctAttribute",
            ),
        ),
        GatedFields(("DRADerivedAttributes",), tuple(f"{one}.derivedAttributes" for one in alternatives)),
    )


GATED: Mapping[Kind, tuple[GatedFields, ...]] = {
    RESOURCE_SLICES: (
        GatedFields(("DRADeviceTaints",), _under(_DEVICE, "taints")),
        GatedFields(
            ("DRAPartitionableDevices",),
            (
                *_under("spec", "sharedCounters", "perDeviceNodeSelection"),
                *_under(_DEVICE, "consumesCounters", "nodeName", "nodeSelector", "allNodes"),
            ),
        ),
        GatedFields(
            ("DRADeviceBindingConditions", _STATUS),
            _under(_DEVICE, "bindingConditions", "bindingFailureConditions", "bindsToNode"),
        ),
        GatedFields(
            ("DRAConsumableCapacity",),
            _under(_DEVICE, "allowMultipleAllocations", "capacity.{}.requestPolicy"),
        ),
        GatedFields(
            ("DRAListTypeAttributes",),
            _under(f"{_DEVICE}.attributes.{{}}", "ints", "bools", "strings", "versions"),
        ),
        GatedFields(("DRANodeAllocatableResources",), _under(_DEVICE, "nodeAllocatableResources")),
        GatedFields(("DRAPartitionableDevicesType",), ("spec.partitionTypeAttribute",)),
        GatedFields(("DRAOptionalNodeOperations",), ("spec.skipNodeOperations",)),
        GatedFields(
            ("DRADeviceCompatibilityGroups",), _under(_DEVICE, "consumesCounters.[].compatibilityGroups")
        ),
    ),
    RESOURCE_CLAIMS: (
        *_claim_spec("spec"),
        GatedFields(("DRAAdminAccess",), _under(_RESULT, "adminAccess")),
        GatedFields((_STATUS,), ("status.devices",)),
        GatedFields(
            ("DRAConsumableCapacity",),
            (*_under(_RESULT, "shareID", "consumedCapacity"), "status.devices.[].shareID"),
        ),
        GatedFields(
            ("DRADeviceBindingConditions", _STATUS),
            _under(_RESULT, "bindingConditions", "bindingFailureConditions"),
        ),
        GatedFields(("DRAOptionalNodeOperations",), _under(_RESULT, "skipNodeOperations")),
    ),
    RESOURCE_CLAIM_TEMPLATES: _claim_spec("spec.spec"),
    DEVICE_CLASSES: (GatedFields(("DRAExtendedResource",), ("spec.extendedResourceName",)),),
}


def drop_disabled(kind: Kind, body: JsonObject, before: JsonObject | None, profile: Profile) -> None:
    """Remove from ``body``, in place, what this server does not take; ``before`` is what is stored."""
    for fields in GATED.get(kind, ()):
        if profile.has(*fields.gates) or (before is not None and _uses(before, fields)):
            continue
        for path in fields.paths:
            for parent, name in _find_parents(body, path):
                parent.pop(name, None)


def _uses(body: JsonObject, fields: GatedFields) -> bool:
    found = (parent.get(name) for path in fields.paths for parent, name in _find_parents(body, path))
    return any(value not in (None, [], {}) for value in found)


def _find_parents(body: JsonObject, path: str) -> Iterator[tuple[JsonObject, str]]:
    """Every object that may have the last name of ``path``, with that name."""
    *steps, name = path.split(".")
    nodes: list[Any] = [body]
    for step in steps:
        nodes = [child for node in nodes for child in _children(node, step)]
    for node in nodes:
        if isinstance(node, dict):
            yield node, name


def _children(node: Any, step: str) -> list[Any]:
    if step == "[]":
        return node if isinstance(node, list) else []
    if not isinstance(node, dict):
        return []
    return list(node.values()) if step == "{}" else [node.get(step)]
