"""Capacity of devices that several claims share (KEP-5075): what a request takes, and whether it is there.

Amounts are integers of billionths (1e-9), the precision of Kubernetes' quantities. Steps are also counted
exactly, as the API server does where one of the numbers is a fraction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dranet.cel.values import CelError, parse_quantity
from dranet.desk.kubeapi.objects import JsonObject
from dranet.quantity import NANO

_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k"), (0, ""), (-3, "m"), (-6, "u"))

Amounts = Mapping[str, int]
"""By name: what is used by the qualified one, what is asked for by the one that the claim writes."""


def qualify(name: str, driver: str) -> str:
    """A name without a domain is in its driver's."""
    return name if "/" in name else f"{driver}/{name}"


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """Which amounts of a capacity may be asked for."""

    default: int | None
    values: tuple[int, ...]
    low: int | None
    high: int | None
    step: int | None

    @classmethod
    def parse(cls, body: JsonObject) -> RequestPolicy:
        limits = body.get("validRange") or {}
        low, high, step = (_read(limits.get(key)) for key in ("min", "max", "step"))
        values = tuple(sorted(parse_quantity(str(value)) for value in body.get("validValues") or ()))
        return cls(_read(body.get("default")), values, low, high, step or None)

    def fit(self, asked: int) -> int | None:
        """Return the smallest allowed amount that is not less than ``asked``; ``None`` if no such amount
        exists."""
        if self.low is not None:
            amount = max(asked, self.low)
            if self.step:
                amount = self.low - (self.low - amount) // self.step * self.step
            return amount if self.high is None or amount <= self.high else None
        if self.values:
            return next((value for value in self.values if value >= asked), None)
        return asked


@dataclass(frozen=True, slots=True)
class Capacity:
    """One capacity of one device."""

    spelling: str
    """Its name as the driver publishes it, with or without a domain: results repeat it, requests must."""
    text: str
    """As published, for the selectors."""
    value: int
    policy: RequestPolicy | None

    @classmethod
    def parse(cls, spelling: str, body: JsonObject) -> Capacity:
        """Raises :class:`dranet.cel.CelError` for what is no quantity."""
        policy = body.get("requestPolicy")
        text = str(body["value"])
        return cls(spelling, text, parse_quantity(text), RequestPolicy.parse(policy) if policy else None)

    def take(self, asked: int | None) -> int | None:
        """Return what an allocation takes: what it asks for, else the default, else all; ``None`` if not
        allowed."""
        if asked is None and self.policy and self.policy.default is not None:
            return self.policy.default
        amount = self.value if asked is None else asked
        return self.policy.fit(amount) if self.policy else amount


@dataclass(frozen=True, slots=True)
class Shortage:
    """Which capacity is too little."""

    name: str
    asked: int | None
    """``None`` where the request does not name it and so takes the default."""
    free: int | None = None
    """``None`` if the device does not have it at all, or its policy has no such amount."""
    absent: bool = False
    spelling: str = ""
    """The name by which it is there after all."""

    def __str__(self) -> str:
        if self.absent:
            return f"it has no capacity {self.name}" + (f", but {self.spelling}" if self.spelling else "")
        if self.free is None:
            return f"{format_amount(self.asked or 0)} of {self.name} is not an amount that may be asked for"
        taken = "by default" if self.asked is None else f"{format_amount(self.asked)} asked for"
        return f"{self.name}: {format_amount(self.free)} left, {taken}"


def find_shortage(
    capacities: Mapping[str, Capacity], asked: Amounts, used: Amounts, *, counted: bool
) -> Shortage | None:
    """Find the first capacity that keeps a request from a device.

    Schedulers compare names as they are written: a request for ``bw`` does not match a capacity that is
    published with the driver's domain, or the other way round.

    Args:
        capacities: the device's, by qualified name.
        asked: by the names that the claim writes.
        used: what other claims have taken, by qualified name.
        counted: whether ``used`` counts: the device is shared, or was.
    """
    published = {capacity.spelling for capacity in capacities.values()}
    for name in asked:
        if name not in published:
            return Shortage(name, asked[name], absent=True, spelling=_find_spelling(name, capacities))
    for name, capacity in capacities.items():
        wanted = asked.get(capacity.spelling)
        if not counted and wanted is None:
            continue
        amount = capacity.take(wanted)
        if amount is None:
            return Shortage(name, wanted)
        free = capacity.value - (used.get(name, 0) if counted else 0)
        if amount > free:
            return Shortage(name, wanted, free)
    return None


def _find_spelling(name: str, capacities: Mapping[str, Capacity]) -> str:
    """With a domain what lacks it, or the other way round."""
    same = (c for qualified, c in capacities.items() if name in (qualified, qualified.partition("/")[2]))
    return next((capacity.spelling for capacity in same), "")


def consume(capacities: Mapping[str, Capacity], asked: Amounts) -> tuple[tuple[str, int], ...]:
    """Return what one allocation of a shared device takes of each capacity, by qualified name."""
    taken = ((name, capacity.take(asked.get(capacity.spelling))) for name, capacity in capacities.items())
    return tuple((name, amount) for name, amount in taken if amount is not None)


def format_amount(amount: int, like: str = "") -> str:
    """A quantity, with a binary suffix if ``like`` has one."""
    sign, amount = ("-", -amount) if amount < 0 else ("", amount)
    if like.endswith("i") and amount % NANO == 0:
        whole, power = amount // NANO, 0
        while whole and whole % 1024 == 0 and power < len(_BINARY) - 1:
            whole, power = whole // 1024, power + 1
        return f"{sign}{whole}{_BINARY[power]}"
    for exponent, suffix in _DECIMAL:
        unit = 10 ** (exponent + 9)
        if amount >= unit and amount % unit == 0:
            return f"{sign}{amount // unit}{suffix}"
    return f"{sign}{amount}n" if amount else "0"


def read_amounts(bodies: Mapping[str, object]) -> dict[str, int]:
    """By name, as written. Raises :class:`dranet.cel.CelError` for what is no quantity, or negative."""
    amounts = {name: parse_quantity(str(text)) for name, text in bodies.items()}
    for name, amount in amounts.items():
        if amount < 0:
            raise CelError(f"capacity {name}: {bodies[name]} is negative")
    return amounts


def _read(value: object) -> int | None:
    return None if value is None else parse_quantity(str(value))
