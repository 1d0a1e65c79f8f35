"""Taints of devices: those of their drivers, those that a DeviceTaintRule adds, and how requests tolerate
them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dranet.desk.allocation.failures import AllocationError, Cause
from dranet.desk.kubeapi.objects import JsonObject

DeviceId = tuple[str, str, str]
"""Driver, pool, device."""

_EFFECTS = ("NoSchedule", "NoExecute")
"""All others, known (``None``) or not, keep nothing away."""
_SELECTED_BY = ("driver", "pool", "device")


@dataclass(frozen=True, slots=True)
class AppliedTaint:
    """One taint of one device."""

    key: str
    value: str
    effect: str
    rule: str = ""
    """The DeviceTaintRule that added it; empty for the driver's own."""

    @classmethod
    def parse(cls, body: JsonObject, rule: str = "") -> AppliedTaint:
        return cls(body.get("key") or "", body.get("value") or "", body.get("effect") or "", rule)

    def __str__(self) -> str:
        value = f"={self.value}" if self.value else ""
        rule = f" of the DeviceTaintRule {self.rule}" if self.rule else ""
        return f"{self.key}{value}:{self.effect}{rule}"


@dataclass(frozen=True, slots=True)
class TaintRule:
    """One DeviceTaintRule. What is not given in its selector matches everything, no selector nothing."""

    taint: AppliedTaint
    driver: str
    pool: str
    device: str

    def applies_to(self, device: DeviceId) -> bool:
        wanted = (self.driver, self.pool, self.device)
        return all(not want or want == have for want, have in zip(wanted, device, strict=True))


def parse_rules(bodies: Iterable[JsonObject]) -> tuple[TaintRule, ...]:
    """Rules that select something, in the order of their names.

    Raises:
        AllocationError: a rule selects by what is not modelled here.
    """
    rules = (_parse_rule(body) for body in sorted(bodies, key=lambda b: str(b["metadata"]["name"])))
    return tuple(rule for rule in rules if rule is not None)


def _parse_rule(body: JsonObject) -> TaintRule | None:
    name, spec = body["metadata"]["name"], body.get("spec") or {}
    selector = spec.get("deviceSelector")
    if selector is None:
        return None
    for field, value in selector.items():
        if value and field not in _SELECTED_BY:
            what = f"DeviceTaintRule {name}: deviceSelector.{field} is not modelled here"
            raise AllocationError(what, Cause.NOT_MODELLED)
    driver, pool, device = (selector.get(field) or "" for field in _SELECTED_BY)
    return TaintRule(AppliedTaint.parse(spec.get("taint") or {}, name), driver, pool, device)


def find_untolerated(
    taints: Sequence[AppliedTaint], tolerations: Sequence[JsonObject]
) -> AppliedTaint | None:
    """The first taint that keeps a device from a request."""
    return next((taint for taint in taints if not is_tolerated(taint, tolerations)), None)


def is_tolerated(taint: AppliedTaint, tolerations: Sequence[JsonObject]) -> bool:
    """Whether a taint does not apply with these tolerations."""
    return taint.effect not in _EFFECTS or any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: JsonObject, taint: AppliedTaint) -> bool:
    key, effect = toleration.get("key") or "", toleration.get("effect") or ""
    if effect not in ("", taint.effect) or key not in ("", taint.key):
        return False
    operator = toleration.get("operator") or "Equal"
    if operator == "Equal":
        return bool(key) and (toleration.get("value") or "") == taint.value
    return bool(operator == "Exists")
