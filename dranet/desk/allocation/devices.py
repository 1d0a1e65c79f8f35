"""One device of a ResourceSlice, read once for all nodes and requests.

A field that is not known here makes the device one that cannot be judged: :attr:`Candidate.obstacle` names
it, and a search that would give the device to somebody breaks off instead of guessing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dranet.cel import CelError, Version
from dranet.cel.scalars import parse_quantity
from dranet.desk.allocation.capacity import Capacity, qualify
from dranet.desk.allocation.constraints import Elements
from dranet.desk.allocation.nodes import JsonObject, Reach
from dranet.desk.allocation.taints import AppliedTaint, DeviceId, TaintRule

CounterId = tuple[str, str]
"""Counter set and counter."""

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
    obstacle: str
    """Why nobody can say here who may have it, or empty."""
    unreadable: str
    """Why no selector can be asked about it, or empty; an obstacle as well."""
    _found: dict[str, Attribute | None] = field(default_factory=dict)
    """The attributes that somebody has asked for: most are never."""

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


def parse_device(spec: JsonObject, body: JsonObject, obstacle: str, rules: Iterable[TaintRule]) -> Candidate:
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
        obstacle=obstacle or next(_unknown_fields(body), "") or unreadable,
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
    """Of an attribute whose type is known: no other is ever asked about."""
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
