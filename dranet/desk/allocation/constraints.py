"""``matchAttribute`` and ``distinctAttribute``: what devices of one claim must have in common, or must not.

A value is a set: a scalar has one element, a list attribute has several. Matching devices have an
element in common, all of them together; distinct ones have none in common, any two of them. Elements carry
their type, so the number 1 and the text "1" are not the same.

``distinctAttribute`` is played as it is specified. Older schedulers remembered one value for each request and
so let two devices of one request be equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dranet.desk.allocation.failures import AllocationError, Cause
from dranet.desk.allocation.nodes import JsonObject

if TYPE_CHECKING:
    from dranet.desk.allocation.devices import Candidate

Element = tuple[str, bool | int | str]
"""Type and value."""
Elements = frozenset[Element]

_KNOWN = ("matchAttribute", "distinctAttribute", "requests")


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
            elements: of the new device; ``None`` if it lacks the attribute.
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
    return tuple(_parse(index, body, claim) for index, body in enumerate(bodies))


def _parse(index: int, body: JsonObject, claim: str) -> Constraint:
    unknown = next((key for key, value in body.items() if value and key not in _KNOWN), "")
    attribute = body.get("matchAttribute") or body.get("distinctAttribute")
    if unknown or not attribute:
        what = f"constraint #{index}: {unknown or 'a constraint without an attribute'} is not modelled here"
        raise AllocationError(f"claim {claim}: {what}", Cause.NOT_MODELLED, claim=claim)
    distinct = not body.get("matchAttribute")
    return Constraint(str(attribute), distinct, frozenset(body.get("requests") or ()))
