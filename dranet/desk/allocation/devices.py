"""Nodes, the devices of ResourceSlices, and the devices that claims already have.

Each device is read once for all nodes and requests. A field that is not known here makes a device one that
cannot be judged: :attr:`Candidate.blocker` names the field, and a search that would allocate the device
breaks off instead of guessing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dranet.cel import CelError, Version
from dranet.cel.values import parse_quantity
from dranet.desk.allocation.capacity import Amounts, Capacity, qualify
from dranet.desk.allocation.taints import AppliedTaint, DeviceId, TaintRule
from dranet.desk.kubeapi.objects import JsonObject


@dataclass(frozen=True, slots=True)
class Node:
    """The node to allocate for."""

    name: str
    labels: Mapping[str, str]

    @classmethod
    def parse(cls, body: JsonObject) -> Node:
        """From a ``v1.Node``."""
        return cls(body["metadata"]["name"], body["metadata"].get("labels") or {})


def matches_node(selector: JsonObject, node: Node) -> bool:
    """A ``v1.NodeSelector``: terms are alternatives, the requirements of one term all hold."""
    return any(_term_matches(term, node) for term in selector.get("nodeSelectorTerms") or ())


@dataclass(frozen=True, slots=True)
class Reach:
    """The nodes that a slice, or one device of it, reaches. Without any field set it reaches no node, because
    only a field of a later version can be meant."""

    node_name: str = ""
    node_selector: JsonObject | None = None
    all_nodes: bool = False

    @classmethod
    def parse(cls, body: JsonObject) -> Reach:
        """From the ``spec`` of a slice or from a device."""
        return cls(body.get("nodeName") or "", body.get("nodeSelector"), bool(body.get("allNodes")))

    def reaches(self, node: Node) -> bool:
        if self.node_name:
            return self.node_name == node.name
        return self.all_nodes or (self.node_selector is not None and matches_node(self.node_selector, node))


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
            return _compare(value, listed) > 0
        case "Lt":
            return _compare(value, listed) < 0
    return False


def _compare(value: str | None, listed: Sequence[str]) -> int:
    """The sign of the difference; zero, which is neither greater nor less, for what are no two numbers."""
    try:
        difference = int(value or "") - int(listed[0])
    except (ValueError, IndexError):
        return 0
    return (difference > 0) - (difference < 0)


CounterId = tuple[str, str]
"""Counter set and counter."""

Element = tuple[str, bool | int | str]
"""Type and value."""
Elements = frozenset[Element]

_SCALARS = ("bool", "int", "string", "version")
_LISTS = {f"{kind}s": kind for kind in _SCALARS}

_KNOWN = frozenset(
    {"name", "attributes", "capacity", "consumesCounters", "nodeName", "nodeSelector", "allNodes", "taints"}
    | {"bindsToNode", "bindingConditions", "bindingFailureConditions", "allowMultipleAllocations"}
)
_KNOWN_OF_COUNTERS = frozenset({"counterSet", "counters"})


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute: its type, and its values; several only for a list."""

    kind: str
    values: tuple[Any, ...]
    listed: bool
    elements: Elements
    """What a constraint compares."""

    @classmethod
    def parse(cls, body: JsonObject) -> Attribute | None:
        """``None`` for a type that is not known here."""
        if not _is_known(body):
            return None
        kind, value = next(iter(body.items()))
        if kind in _SCALARS:
            return cls(kind, (value,), False, frozenset({(kind, value)}))
        elements = frozenset((_LISTS[kind], item) for item in value)
        return cls(_LISTS[kind], tuple(value), True, elements)


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One device; the same object for every node that it reaches."""

    id: DeviceId
    attributes: Mapping[str, JsonObject]
    """As they are in the slice; :meth:`find_attribute` reads them."""
    capacity: Mapping[str, Capacity]
    """By qualified name."""
    counters: tuple[tuple[CounterId, int], ...]
    """What it takes of its pool's counters, in billionths."""
    taints: tuple[AppliedTaint, ...]
    reach: Reach
    shared: bool
    """``allowMultipleAllocations``: each allocation gets a share of its own."""
    binds_to_node: bool
    binding: JsonObject
    """``bindingConditions`` and ``bindingFailureConditions``, where it has them."""
    skipped: tuple[str, ...]
    """``skipNodeOperations`` of its slice."""
    blocker: str
    """Why the device cannot be judged here; empty if it can."""
    unreadable: str
    """Why no selector can be evaluated for it, which is a blocker as well; empty if selectors can."""
    _found: dict[str, Attribute | None] = field(default_factory=dict)
    """Attributes parsed so far, on demand: most are never asked for."""

    @property
    def driver(self) -> str:
        return self.id[0]

    @property
    def pool(self) -> tuple[str, str]:
        return self.id[:2]

    def __str__(self) -> str:
        return "/".join(self.id)

    def find_attribute(self, name: str) -> Attribute | None:
        """By qualified name, as spelled; else what the driver publishes without its own domain."""
        if name not in self._found:
            body = self.attributes.get(name)
            domain, slash, identifier = name.partition("/")
            if body is None and slash and domain == self.driver:
                body = self.attributes.get(identifier)
            self._found[name] = None if body is None else Attribute.parse(body)
        return self._found[name]

    def elements(self, attribute: str) -> Elements | None:
        """What a constraint compares; ``None`` if the device lacks the attribute."""
        found = self.find_attribute(attribute)
        return None if found is None else found.elements

    def cel_attributes(self) -> dict[str, Any]:
        """For a selector. A name with its domain wins over the same one without, hence comes last."""
        ordered = sorted(self.attributes.items(), key=lambda item: "/" in item[0])
        return {qualify(name, self.driver): _cel_value(body) for name, body in ordered}

    def cel_capacity(self) -> dict[str, str]:
        return {name: capacity.text for name, capacity in self.capacity.items()}


def parse_device(spec: JsonObject, body: JsonObject, blocker: str, rules: Iterable[TaintRule]) -> Candidate:
    """One entry of ``spec.devices``; ``obstacle`` is what its slice has that is not known here."""
    driver = spec["driver"]
    device = (driver, spec["pool"]["name"], body["name"])
    attributes = body.get("attributes") or {}
    capacity, counters, broken = _parse_amounts(body, driver)
    own = (AppliedTaint.parse(taint) for taint in body.get("taints") or ())
    unreadable = broken or _unknown_attribute(attributes)
    binding = {k: body[k] for k in ("bindingConditions", "bindingFailureConditions") if body.get(k)}
    return Candidate(
        id=device,
        attributes=attributes,
        capacity=capacity,
        counters=counters,
        taints=(*own, *(rule.taint for rule in rules if rule.applies_to(device))),
        reach=Reach.parse(body if spec.get("perDeviceNodeSelection") else spec),
        shared=bool(body.get("allowMultipleAllocations")),
        binds_to_node=bool(body.get("bindsToNode")),
        binding=binding,
        skipped=tuple(spec.get("skipNodeOperations") or ()),
        blocker=blocker or next(_unknown_fields(body), "") or unreadable,
        unreadable=unreadable,
    )


def _parse_amounts(
    body: JsonObject, driver: str
) -> tuple[dict[str, Capacity], tuple[tuple[CounterId, int], ...], str]:
    """Capacity, counters, and what of them is no quantity."""
    try:
        return _parse_capacity(body.get("capacity") or {}, driver), _parse_counters(body), ""
    except CelError as error:
        return {}, (), error.message


def _parse_capacity(bodies: JsonObject, driver: str) -> dict[str, Capacity]:
    """A name with its domain wins over the same one without, hence comes last."""
    ordered = sorted(bodies.items(), key=lambda item: "/" in item[0])
    return {qualify(name, driver): Capacity.parse(name, body) for name, body in ordered}


def _parse_counters(body: JsonObject) -> tuple[tuple[CounterId, int], ...]:
    taken: Counter[CounterId] = Counter()
    for entry in body.get("consumesCounters") or ():
        for name, counter in (entry.get("counters") or {}).items():
            taken[entry["counterSet"], name] += parse_quantity(str(counter["value"]))
    return tuple(taken.items())


def _unknown_fields(body: JsonObject) -> Iterator[str]:
    yield from (f"{key} is not modelled here" for key, value in body.items() if value and key not in _KNOWN)
    for entry in body.get("consumesCounters") or ():
        for key, value in entry.items():
            if value and key not in _KNOWN_OF_COUNTERS:
                yield f"consumesCounters.{key} is not modelled here"
        for counter in (entry.get("counters") or {}).values():
            yield from (f"a counter's {key} is not modelled here" for key in counter if key != "value")


def _cel_value(body: JsonObject) -> Any:
    """Convert an attribute of a known type for CEL."""
    kind, value = next(iter(body.items()))
    if kind == "version":
        return Version(value)
    return [Version(item) for item in value] if kind == "versions" else value


def _unknown_attribute(attributes: Mapping[str, JsonObject]) -> str:
    unknown = next((name for name, body in attributes.items() if not _is_known(body)), "")
    return f"the type of the attribute {unknown} is not modelled here" if unknown else ""


def _is_known(body: JsonObject) -> bool:
    kind = next(iter(body), "")
    return kind in _SCALARS or (kind in _LISTS and bool(body[kind]))


@dataclass(frozen=True, slots=True)
class InUse:
    """The devices of all allocated claims. Admin access takes nothing away."""

    devices: frozenset[DeviceId] = frozenset()
    """Those that one claim has for itself."""
    shares: Mapping[DeviceId, Amounts] = field(default_factory=dict)
    """Shared ones, and how much of each capacity is gone, in billionths by qualified name."""
    holders: Mapping[DeviceId, tuple[str, ...]] = field(default_factory=dict)
    """The claims, as ``namespace/name``."""

    def holds(self, device: DeviceId) -> bool:
        """Whether a claim has the device or a share of it."""
        return device in self.devices or device in self.shares


def read_devices_in_use(claims: Iterable[JsonObject]) -> InUse:
    """Read the devices in use from the status of all claims of the cluster.

    A result without a share has the device alone, whatever the driver publishes about it now.
    """
    devices: set[DeviceId] = set()
    shares: dict[DeviceId, dict[str, int]] = defaultdict(dict)
    holders: dict[DeviceId, list[str]] = defaultdict(list)
    for claim, result in _iter_results(claims):
        device = (result["driver"], result["pool"], result["device"])
        metadata = claim.get("metadata") or {}
        holders[device].append(f"{metadata.get('namespace', '')}/{metadata.get('name', '')}")
        if not result.get("shareID"):
            devices.add(device)
            continue
        used = shares[device]
        for name, text in (result.get("consumedCapacity") or {}).items():
            key = qualify(name, result["driver"])
            used[key] = used.get(key, 0) + _read_amount(text)
    return InUse(frozenset(devices), dict(shares), {key: tuple(names) for key, names in holders.items()})


def _iter_results(claims: Iterable[JsonObject]) -> Iterator[tuple[JsonObject, JsonObject]]:
    for claim in claims:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        for result in (allocation.get("devices") or {}).get("results") or ():
            if not result.get("adminAccess"):
                yield claim, result


def _read_amount(text: object) -> int:
    """A server stores nothing else than quantities; what a file has instead takes nothing."""
    try:
        return parse_quantity(str(text))
    except CelError:
        return 0
