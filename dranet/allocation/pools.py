"""ResourceSlices -> the pools and devices that an allocator may use for one node.

Source: ``staging/src/k8s.io/dynamic-resource-allocation/structured`` of Kubernetes. Not played: shared
counters, amounts of capacity and binding conditions; a device that needs them is marked ``unsupported``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dranet.cel import Version

JsonObject = dict[str, Any]

DeviceId = tuple[str, str, str]
"""Driver, pool, device."""

_UNSUPPORTED = ("consumesCounters", "bindsToNode", "bindingConditions")


@dataclass(frozen=True, slots=True)
class Node:
    """The node to allocate for."""

    name: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One device in a slice, with the node selection that applies to it."""

    id: DeviceId
    attributes: Mapping[str, tuple[str, Any]]
    """Qualified name -> (type, value) as in ``DeviceAttribute``."""
    capacity: Mapping[str, str]
    taints: tuple[JsonObject, ...]
    node_name: str
    node_selector: JsonObject | None
    shared: bool
    """``allowMultipleAllocations``: each allocation gets a share of its own."""
    unsupported: str
    """A field of the device whose meaning is not played here, or empty."""

    @property
    def driver(self) -> str:
        return self.id[0]

    def __str__(self) -> str:
        return "/".join(self.id)

    def cel_attributes(self) -> dict[str, Any]:
        return {
            name: Version(value) if kind == "version" else value
            for name, (kind, value) in self.attributes.items()
        }


@dataclass(frozen=True, slots=True)
class Pool:
    """What of a pool reaches the node; ``defect`` says why nothing may be taken from it."""

    driver: str
    name: str
    devices: tuple[Candidate, ...]
    defect: str = ""


def gather_pools(slices: Iterable[JsonObject], node: Node) -> tuple[Pool, ...]:
    """Pools with at least one slice for the node, ordered by driver and name; devices in slice order."""
    groups: dict[tuple[str, str], list[JsonObject]] = defaultdict(list)
    for entry in slices:
        groups[entry["spec"]["driver"], entry["spec"]["pool"]["name"]].append(entry)
    pools = (_gather_pool(driver, name, groups[driver, name], node) for driver, name in sorted(groups))
    return tuple(pool for pool in pools if pool is not None)


def matches_node(selector: JsonObject, node: Node) -> bool:
    """A ``v1.NodeSelector``: terms are alternatives, the requirements of one term all hold."""
    return any(_term_matches(term, node) for term in selector.get("nodeSelectorTerms") or ())


def _gather_pool(driver: str, name: str, slices: Sequence[JsonObject], node: Node) -> Pool | None:
    """The newest generation counts over the slices of every node: older ones are leftovers."""
    newest = max(_generation(s) for s in slices)
    current = sorted(
        (s for s in slices if _generation(s) == newest), key=lambda s: str(s["metadata"]["name"])
    )
    every = [candidate for entry in current for candidate in _iter_candidates(entry)]
    devices = tuple(c for c in every if _reaches(c, node))
    if not devices and not any(_slice_reaches(entry, node) for entry in current):
        return None
    expected = current[0]["spec"]["pool"]["resourceSliceCount"]
    doubles = sorted(device for (_, _, device), n in Counter(c.id for c in every).items() if n > 1)
    if len(current) != expected:
        return Pool(driver, name, devices, f"incomplete: {len(current)} of {expected} slices")
    return Pool(driver, name, devices, f"invalid: device {doubles[0]} twice" if doubles else "")


def _generation(entry: JsonObject) -> int:
    return int(entry["spec"]["pool"].get("generation", 0))


def _iter_candidates(entry: JsonObject) -> Iterable[Candidate]:
    spec = entry["spec"]
    for device in spec.get("devices") or ():
        yield _parse_device(spec, device, device if spec.get("perDeviceNodeSelection") else spec)


def _parse_device(spec: JsonObject, device: JsonObject, selection: JsonObject) -> Candidate:
    driver = spec["driver"]
    attributes = device.get("attributes") or {}
    capacity = device.get("capacity") or {}
    return Candidate(
        id=(driver, spec["pool"]["name"], device["name"]),
        attributes={qualify(name, driver): next(iter(value.items())) for name, value in attributes.items()},
        capacity={qualify(name, driver): str(value["value"]) for name, value in capacity.items()},
        taints=tuple(device.get("taints") or ()),
        node_name=selection.get("nodeName", ""),
        node_selector=selection.get("nodeSelector"),
        shared=bool(device.get("allowMultipleAllocations")),
        unsupported=_find_unsupported(device),
    )


def _find_unsupported(device: JsonObject) -> str:
    """An allocation of a shared device takes of each of its capacities, all of it where nothing else is said;
    without that count there would be more shares here than a real scheduler gives."""
    if device.get("allowMultipleAllocations") and device.get("capacity"):
        return "capacity that is shared"
    return next((key for key in _UNSUPPORTED if device.get(key)), "")


def qualify(name: str, driver: str) -> str:
    """A name without a domain is in its driver's."""
    return name if "/" in name else f"{driver}/{name}"


def _slice_reaches(entry: JsonObject, node: Node) -> bool:
    spec = entry["spec"]
    if spec.get("perDeviceNodeSelection"):
        return False
    return _selection_reaches(spec.get("nodeName", ""), spec.get("nodeSelector"), node)


def _reaches(candidate: Candidate, node: Node) -> bool:
    return _selection_reaches(candidate.node_name, candidate.node_selector, node)


def _selection_reaches(node_name: str, selector: JsonObject | None, node: Node) -> bool:
    """Validation made sure that exactly one of the three is set; the third is ``allNodes``."""
    if node_name:
        return node_name == node.name
    return selector is None or matches_node(selector, node)


def _term_matches(term: JsonObject, node: Node) -> bool:
    expressions = [(r, node.labels) for r in term.get("matchExpressions") or ()]
    fields = [(r, {"metadata.name": node.name}) for r in term.get("matchFields") or ()]
    return bool(expressions or fields) and all(
        _requirement_holds(r, values) for r, values in expressions + fields
    )


def _requirement_holds(requirement: JsonObject, values: Mapping[str, str]) -> bool:
    value = values.get(requirement["key"])
    listed: Sequence[str] = requirement.get("values") or ()
    match requirement["operator"]:
        case "In":
            return value in listed
        case "NotIn":
            return value not in listed
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and int(value) > int(listed[0])
        case "Lt":
            return value is not None and int(value) < int(listed[0])
    return False
