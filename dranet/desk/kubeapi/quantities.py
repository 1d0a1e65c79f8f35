"""Quantities as a server stores them: parsed and written in the canonical form (``apimachinery``
``resource``).

``1024Mi`` comes back as ``1Gi``: a client that compares texts updates without end. Apart from the reader of
the driver on purpose: two sides that share a fault would never notice it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from math import ceil
from typing import Any

from dranet.desk.kubeapi.kinds import RESOURCE_CLAIMS, RESOURCE_SLICES, Kind
from dranet.desk.kubeapi.objects import JsonObject

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?\d+))?"
)
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_EXPONENTS = {suffix: exponent for exponent, suffix in _DECIMAL.items()}


def parse_quantity(value: object) -> Fraction | None:
    """Return the exact value; ``None`` if it is no quantity. Numbers are also quantities."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    number = Fraction(match["number"])
    if match["exponent"]:
        return number * Fraction(10) ** int(match["exponent"])
    suffix = match["suffix"] or ""
    if suffix.endswith("i"):
        return number * Fraction(1024) ** _BINARY.index(suffix)
    return number * Fraction(10) ** _EXPONENTS[suffix]


def canonical_quantity(value: object) -> str:
    """The text that a server answers with; what is no quantity comes back as it is."""
    amount, text = parse_quantity(value), str(value)
    match = _QUANTITY.fullmatch(text)
    if amount is None or match is None:
        return text
    if text.endswith("i") and amount.denominator == 1 and abs(amount) >= 1024:
        return _with_binary_suffix(int(amount))
    return _with_decimal_suffix(amount, exponent_form=bool(match["exponent"]))


def _with_binary_suffix(number: int) -> str:
    power = 0
    while number % 1024 == 0 and power < len(_BINARY) - 1:
        number //= 1024
        power += 1
    return f"{number}{_BINARY[power]}"


def _with_decimal_suffix(amount: Fraction, *, exponent_form: bool) -> str:
    number, exponent = ceil(amount * 10**9), -9
    if number == 0:
        return "0"
    while number % 1000 == 0 and exponent < 18:
        number //= 1000
        exponent += 3
    if exponent_form:
        return f"{number}e{exponent}" if exponent else str(number)
    return f"{number}{_DECIMAL[exponent]}"


def canonicalize(kind: Kind, body: JsonObject) -> None:
    """Write every quantity of an object in its canonical form, in place."""
    for holder, key in _iter_quantities(kind, body):
        if parse_quantity(holder[key]) is not None:
            holder[key] = canonical_quantity(holder[key])


def _iter_quantities(kind: Kind, body: JsonObject) -> Iterator[tuple[Any, Any]]:
    """Where quantities are: each with what holds it and its key or index."""
    if kind is RESOURCE_SLICES:
        spec = body.get("spec") or {}
        for device in spec.get("devices") or ():
            for capacity in (device.get("capacity") or {}).values():
                yield from _iter_capacity(capacity)
            yield from _iter_counters(device.get("consumesCounters"))
        yield from _iter_counters(spec.get("sharedCounters"))
    elif kind is RESOURCE_CLAIMS:
        allocation = (body.get("status") or {}).get("allocation") or {}
        for result in (allocation.get("devices") or {}).get("results") or ():
            consumed = result.get("consumedCapacity") or {}
            yield from ((consumed, name) for name in consumed)


def _iter_counters(sets: Any) -> Iterator[tuple[Any, Any]]:
    for entry in sets or ():
        for counter in (entry.get("counters") or {}).values():
            if "value" in counter:
                yield counter, "value"


def _iter_capacity(capacity: JsonObject) -> Iterator[tuple[Any, Any]]:
    if "value" in capacity:
        yield capacity, "value"
    policy = capacity.get("requestPolicy") or {}
    if "default" in policy:
        yield policy, "default"
    values = policy.get("validValues") or []
    yield from ((values, index) for index in range(len(values)))
    limits = policy.get("validRange") or {}
    yield from ((limits, name) for name in ("min", "max", "step") if name in limits)
