"""A ResourceClaim's spec and its DeviceClasses -> the requests and constraints that an allocator works on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dranet.allocation.pools import Candidate, JsonObject, qualify
from dranet.cel import CelError, DeviceSelector
from dranet.errors import ClaimError, Reason

_UNSUPPORTED = ("capacity", "derivedAttributes")


class Unschedulable(ClaimError):
    """No devices can be had for the pod now; it may be tried again when something changes."""

    default_reason = Reason.DEVICE_NOT_FOUND


class AllocationError(Unschedulable):
    """The attempt broke off: a selector failed, a class is missing, a pool is in transition."""


@dataclass(frozen=True, slots=True)
class Selector:
    """One CEL selector and who wrote it."""

    origin: str
    selector: DeviceSelector

    def __str__(self) -> str:
        return f"{self.origin} ({self.selector.expression})"


@dataclass(frozen=True, slots=True, eq=False)
class Alternative:
    """What one request asks for, or one of its prioritised alternatives."""

    name: str
    """``req`` or ``req/sub``, as the result will say."""
    class_name: str
    selectors: tuple[Selector, ...]
    count: int | None
    """``None`` asks for all devices."""
    admin_access: bool
    tolerations: tuple[JsonObject, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    name: str
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True)
class Constraint:
    """``matchAttribute`` (``distinct`` false) or ``distinctAttribute`` over some or all requests."""

    attribute: str
    distinct: bool
    requests: frozenset[str]

    def __str__(self) -> str:
        return f"{'distinctAttribute' if self.distinct else 'matchAttribute'} {self.attribute}"

    def covers(self, request: str) -> bool:
        return covers(self.requests, request)

    def value_of(self, candidate: Candidate) -> tuple[str, Any] | None:
        """Type and value of the attribute, by qualified name or by the driver's own."""
        found = candidate.attributes.get(qualify(self.attribute, candidate.driver))
        if found is not None and isinstance(found[1], list):
            raise AllocationError(f"{self} on {candidate}: list attributes are not played here")
        return found

    def accepts(self, candidate: Candidate, others: Sequence[Candidate]) -> bool:
        """Whether ``candidate`` fits beside the devices chosen so far for the covered requests."""
        value = self.value_of(candidate)
        if value is None:
            return False
        values = [self.value_of(other) for other in others]
        return value not in values if self.distinct else all(value == other for other in values)


@dataclass(frozen=True, slots=True, eq=False)
class ClaimView:
    """One claim to allocate."""

    label: str
    requests: tuple[Request, ...]
    constraints: tuple[Constraint, ...]
    configs: tuple[JsonObject, ...]


def parse_claim(claim: JsonObject, classes: Mapping[str, JsonObject]) -> ClaimView:
    """Raises :class:`AllocationError` for a class that does not exist, a selector that does not compile,
    or a feature that is not played here."""
    metadata, devices = claim["metadata"], claim["spec"].get("devices") or {}
    return ClaimView(
        label=f"{metadata.get('namespace', '')}/{metadata['name']}",
        requests=tuple(_parse_request(request, classes) for request in devices.get("requests") or ()),
        constraints=tuple(_parse_constraint(entry) for entry in devices.get("constraints") or ()),
        configs=tuple(devices.get("config") or ()),
    )


def covers(requests: frozenset[str], name: str) -> bool:
    """An empty list covers all; a request's own name covers its alternatives."""
    return not requests or not requests.isdisjoint({name, name.partition("/")[0]})


def tolerates(tolerations: Sequence[JsonObject], taint: JsonObject) -> bool:
    """Whether a taint keeps no device from this request; only NoSchedule and NoExecute ever do."""
    if taint.get("effect") not in ("NoSchedule", "NoExecute"):
        return True
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: JsonObject, taint: JsonObject) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")


def _parse_request(request: JsonObject, classes: Mapping[str, JsonObject]) -> Request:
    name = request["name"]
    if "exactly" in request:
        return Request(name, (_parse_alternative(name, request["exactly"], classes),))
    subrequests = request.get("firstAvailable") or ()
    return Request(name, tuple(_parse_alternative(f"{name}/{s['name']}", s, classes) for s in subrequests))


def _parse_alternative(name: str, exact: JsonObject, classes: Mapping[str, JsonObject]) -> Alternative:
    class_name = exact["deviceClassName"]
    if class_name not in classes:
        raise AllocationError(f"request {name}: DeviceClass {class_name} does not exist")
    unsupported = next((key for key in _UNSUPPORTED if exact.get(key)), "")
    if unsupported:
        raise AllocationError(f"request {name}: {unsupported} is not played here")
    of_class = classes[class_name].get("spec") or {}
    return Alternative(
        name=name,
        class_name=class_name,
        selectors=(
            *_parse_selectors(f"selector of DeviceClass {class_name}", of_class),
            *_parse_selectors(f"selector of request {name}", exact),
        ),
        count=None if exact.get("allocationMode") == "All" else int(exact.get("count") or 1),
        admin_access=bool(exact.get("adminAccess")),
        tolerations=tuple(exact.get("tolerations") or ()),
    )


def _parse_selectors(origin: str, owner: JsonObject) -> Iterator[Selector]:
    for entry in owner.get("selectors") or ():
        try:
            yield Selector(origin, DeviceSelector.compile(entry["cel"]["expression"]))
        except CelError as error:
            raise AllocationError(f"{origin}: {error}") from error


def _parse_constraint(entry: JsonObject) -> Constraint:
    distinct = entry.get("distinctAttribute")
    return Constraint(
        distinct or entry["matchAttribute"], bool(distinct), frozenset(entry.get("requests") or ())
    )
