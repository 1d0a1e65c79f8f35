"""A ResourceClaim's spec and its DeviceClasses -> the requests and constraints that an allocator works on.

Parsed once, used for every node. A selector that does not compile is an error only when a device is asked
about, as for a real scheduler: an alternative that is never reached does no harm.

``matchAttribute`` and ``distinctAttribute`` compare sets: a scalar has one element, a list attribute has
several. Matching devices have an element in common, all of them together; distinct ones have none in common,
any two of them. Elements carry their type, so the number 1 and the text "1" differ. ``distinctAttribute``
follows its specification; older schedulers remembered one value for each request, so that two devices of one
request could be equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dranet.cel import CelError
from dranet.desk.allocation.capacity import Amounts, read_amounts
from dranet.desk.allocation.devices import Candidate, Elements
from dranet.desk.allocation.failures import AllocationError, Cause
from dranet.desk.cel import DeviceSelector
from dranet.desk.kubeapi.objects import JsonObject

_KNOWN_OF_CONSTRAINT = ("matchAttribute", "distinctAttribute", "requests")


@dataclass(frozen=True, slots=True, eq=False)
class Constraint:
    """One constraint of a claim."""

    attribute: str
    distinct: bool
    requests: frozenset[str]
    """Whose devices it covers; empty for all."""

    def __str__(self) -> str:
        return f"{'distinctAttribute' if self.distinct else 'matchAttribute'} {self.attribute}"

    def covers(self, request: str) -> bool:
        return covers(self.requests, request)

    def add(self, elements: Elements | None, before: Elements | None) -> Elements | None:
        """What the constraint knows of its devices after one more; ``None`` if it forbids that one.

        Args:
            elements: those of the new device; ``None`` if it lacks the attribute.
            before: what this returned for the device before, ``None`` for the first.
        """
        if elements is None:
            return None
        if before is None:
            return elements
        if self.distinct:
            return before | elements if before.isdisjoint(elements) else None
        return (before & elements) or None

    def conflicts(self, candidate: Candidate, others: Sequence[Candidate]) -> tuple[Candidate, ...]:
        """The devices against which it forbids the candidate, for an explanation."""
        elements = candidate.elements(self.attribute)
        if elements is None:
            return ()
        if self.distinct:
            return tuple(o for o in others if not elements.isdisjoint(o.elements(self.attribute) or ()))
        strangers = tuple(o for o in others if elements.isdisjoint(o.elements(self.attribute) or ()))
        return strangers or tuple(others)


def covers(requests: frozenset[str], name: str) -> bool:
    """An empty list covers all; a request's own name covers its alternatives."""
    return not requests or not requests.isdisjoint({name, name.partition("/")[0]})


def parse_constraints(bodies: Iterable[JsonObject], claim: str) -> tuple[Constraint, ...]:
    """Raises :class:`AllocationError` for a kind of constraint that is not modelled here."""
    return tuple(_parse_constraint(index, body, claim) for index, body in enumerate(bodies))


def _parse_constraint(index: int, body: JsonObject, claim: str) -> Constraint:
    unknown = next((key for key, value in body.items() if value and key not in _KNOWN_OF_CONSTRAINT), "")
    attribute = body.get("matchAttribute") or body.get("distinctAttribute")
    if unknown or not attribute:
        what = f"constraint #{index}: {unknown or 'a constraint without an attribute'} is not modelled here"
        raise AllocationError(f"claim {claim}: {what}", Cause.NOT_MODELLED, claim=claim)
    distinct = not body.get("matchAttribute")
    return Constraint(str(attribute), distinct, frozenset(body.get("requests") or ()))


_KNOWN_OF_CLAIM = frozenset({"requests", "constraints", "config"})
_KNOWN_OF_CLASS = frozenset({"selectors", "config", "extendedResourceName"})
_KNOWN_OF_REQUEST = frozenset({"name", "exactly", "firstAvailable"})
_KNOWN_OF_ALTERNATIVE = frozenset(
    {"deviceClassName", "selectors", "allocationMode", "count", "tolerations", "capacity"}
)


@dataclass(frozen=True, slots=True, eq=False)
class Selector:
    """One CEL selector and the object that contains it."""

    of_class: str
    """The DeviceClass, or empty for the request's own."""
    request: str
    index: int
    """Its place among the selectors of the same owner."""
    expression: str
    program: DeviceSelector | CelError
    """The error if it does not compile."""

    @property
    def origin(self) -> str:
        return f"DeviceClass {self.of_class}" if self.of_class else f"request {self.request}"

    def __str__(self) -> str:
        return f"selector of {self.origin} ({self.expression})"


@dataclass(frozen=True, slots=True, eq=False)
class Alternative:
    """What one request asks for, or one of its prioritised alternatives."""

    name: str
    """``req`` or ``req/sub``, as in the result."""
    class_name: str
    class_configs: tuple[JsonObject, ...]
    selectors: tuple[Selector, ...]
    """Those of the class first."""
    expressions: tuple[str, ...]
    """The expressions of the selectors."""
    count: int | None
    """``None`` asks for all devices."""
    admin_access: bool
    tolerations: tuple[JsonObject, ...]
    asked: Amounts
    """What is asked of capacities, by the names that the claim writes."""
    constraints: tuple[Constraint, ...]
    """Those of the claim that cover it."""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    name: str
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ClaimView:
    """One claim to allocate."""

    label: str
    """``namespace/name``."""
    requests: tuple[Request, ...]
    constraints: tuple[Constraint, ...]
    configs: tuple[JsonObject, ...]


def parse_claim(claim: JsonObject, classes: Mapping[str, JsonObject]) -> ClaimView:
    """One claim with the DeviceClasses by name.

    Raises:
        AllocationError: a class that does not exist, an amount that is invalid, or a feature that is not
            modelled here.
    """
    metadata, devices = claim["metadata"], claim["spec"].get("devices") or {}
    label = f"{metadata.get('namespace', '')}/{metadata['name']}"
    _refuse_unknown(devices, _KNOWN_OF_CLAIM, "spec.devices", label)
    constraints = parse_constraints(devices.get("constraints") or (), label)
    context = _Context(label, constraints, classes)
    requests = tuple(_parse_request(request, context) for request in devices.get("requests") or ())
    return ClaimView(label, requests, constraints, tuple(devices.get("config") or ()))


@dataclass(frozen=True, slots=True)
class _Context:
    """What the requests of one claim are read with."""

    claim: str
    constraints: tuple[Constraint, ...]
    classes: Mapping[str, JsonObject]


def _parse_request(request: JsonObject, context: _Context) -> Request:
    name, claim = request["name"], context.claim
    _refuse_flat(request, claim)
    _refuse_unknown(request, _KNOWN_OF_REQUEST, f"request {name}", claim)
    if "exactly" in request:
        known = _KNOWN_OF_ALTERNATIVE | {"adminAccess"}
        return Request(name, (_parse_alternative(name, request["exactly"], context, known),))
    known = _KNOWN_OF_ALTERNATIVE | {"name"}
    subrequests = request.get("firstAvailable") or ()
    if not subrequests:
        what = f"claim {claim}: request {name}: a request of another kind is not modelled here"
        raise AllocationError(what, Cause.NOT_MODELLED, claim=claim, request=name)
    options = (_parse_alternative(f"{name}/{s['name']}", s, context, known) for s in subrequests)
    return Request(name, tuple(options))


def _parse_alternative(name: str, body: JsonObject, context: _Context, known: frozenset[str]) -> Alternative:
    claim, where, class_name = context.claim, f"request {name}", body["deviceClassName"]
    _refuse_unknown(body, known, where, claim)
    if class_name not in context.classes:
        what = f"claim {claim}: {where}: DeviceClass {class_name} does not exist"
        raise AllocationError(what, Cause.CLASS_MISSING, claim=claim, request=name)
    of_class = context.classes[class_name].get("spec") or {}
    _refuse_unknown(of_class, _KNOWN_OF_CLASS, f"DeviceClass {class_name}", claim)
    selectors = (
        *_parse_selectors(of_class, class_name, name, claim),
        *_parse_selectors(body, "", name, claim),
    )
    return Alternative(
        name=name,
        class_name=class_name,
        class_configs=tuple(of_class.get("config") or ()),
        selectors=selectors,
        expressions=tuple(selector.expression for selector in selectors),
        count=_parse_count(body, where, claim),
        admin_access=bool(body.get("adminAccess")),
        tolerations=tuple(body.get("tolerations") or ()),
        asked=_parse_asked(body.get("capacity") or {}, where, claim),
        constraints=tuple(c for c in context.constraints if c.covers(name)),
    )


def _parse_asked(capacity: JsonObject, where: str, claim: str) -> Amounts:
    _refuse_unknown(capacity, frozenset({"requests"}), f"{where}: capacity", claim)
    try:
        return read_amounts(capacity.get("requests") or {})
    except CelError as error:
        what = f"claim {claim}: {where}: {error.message}"
        raise AllocationError(what, Cause.CAPACITY_INVALID, claim=claim) from error


def _parse_count(body: JsonObject, where: str, claim: str) -> int | None:
    mode = body.get("allocationMode") or "ExactCount"
    if mode not in ("ExactCount", "All"):
        what = f"claim {claim}: {where}: the allocationMode {mode} is not modelled here"
        raise AllocationError(what, Cause.NOT_MODELLED, claim=claim)
    return None if mode == "All" else int(body.get("count") or 1)


def _parse_selectors(owner: JsonObject, of_class: str, request: str, claim: str) -> Iterator[Selector]:
    for index, entry in enumerate(owner.get("selectors") or ()):
        where = f"selector #{index} of {f'DeviceClass {of_class}' if of_class else f'request {request}'}"
        _refuse_unknown(entry, frozenset({"cel"}), where, claim)
        expression = entry["cel"]["expression"]
        yield Selector(of_class, request, index, expression, _compile(expression))


@lru_cache(maxsize=512)
def _compile(expression: str) -> DeviceSelector | CelError:
    try:
        return DeviceSelector.compile(expression)
    except CelError as error:
        return error


def _refuse_flat(request: JsonObject, claim: str) -> None:
    """The form of v1beta1, which no server takes in v1."""
    flat = next((key for key in request if key in _KNOWN_OF_ALTERNATIVE | {"adminAccess"}), "")
    if flat:
        name = request["name"]
        raise AllocationError(
            f"claim {claim}: request {name}: {flat} belongs below exactly, as in exactly.{flat}",
            Cause.NOT_MODELLED,
            claim=claim,
            request=name,
            hint="dranet validate --convert FILE writes the form of v1beta1 as that of v1",
        )


def _refuse_unknown(body: JsonObject, known: frozenset[str], where: str, claim: str) -> None:
    """What is not known here could change the outcome; what is not set cannot."""
    unknown = next((key for key, value in body.items() if value and key not in known), "")
    if unknown:
        what = f"claim {claim}: {where}: {unknown} is not modelled here"
        raise AllocationError(what, Cause.NOT_MODELLED, claim=claim)
