"""The nearest misses on a node: which single thing, had it not been in the way, would have been enough.

Each blocker of the report is removed by itself and the whole attempt is made again. Only what then succeeds
is reported, with the devices that it would have allocated.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dranet.desk.allocation.allocator import Attempt
from dranet.desk.allocation.capacity import qualify
from dranet.desk.allocation.devices import Candidate
from dranet.desk.allocation.failures import AllocationError
from dranet.desk.allocation.outcome import AttemptResult, Outcome
from dranet.desk.allocation.selection import Removal
from dranet.desk.allocation.taints import DeviceId
from dranet.desk.explain.blockers import (
    AllConstraints,
    AskedCapacity,
    AttemptInputs,
    Blocker,
    ClaimConstraint,
    InUseBy,
    Miss,
    NotOffered,
    PoolIncomplete,
    SelectorOfClass,
    SelectorOfRequest,
    Tainted,
    Together,
)
from dranet.desk.explain.explanation import (
    ConstraintReport,
    NodeReport,
    RequestReport,
    Step,
)
from dranet.desk.explain.node_report import values_of
from dranet.desk.kubeapi.objects import JsonObject

MOST_ATTEMPTS = 48
"""Attempts for one node: each blocker costs one."""

_MENDABLE = (
    Removal.IN_USE,
    Removal.TAINT,
    Removal.CAPACITY,
    Removal.COUNTERS,
    Removal.POOL_INCOMPLETE,
)
_ATTRIBUTES = (
    "resource.kubernetes.io/pcieRoot",
    "dra.net/pcieSwitch",
    "resource.kubernetes.io/numaNode",
    "dra.net/numaNode",
)
"""What devices are aligned by, the nearest first."""

_CLAIMS_TRIED = 16


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A node where an attempt did not succeed."""

    inputs: AttemptInputs
    report: NodeReport
    not_offered: tuple[tuple[JsonObject, str], ...] = ()
    """Slices of devices that the driver keeps to itself, each with the reason."""


def find_misses(failed: FailedAttempt) -> tuple[Miss, ...]:
    """Find what can change without the claim, then in the claim; classes only if nothing else helps."""
    for tier in (_around, _together, _of_classes):
        found = tuple(_unique(tier(failed)))
        if found:
            return found
    return ()


def _unique(misses: Iterator[Miss]) -> Iterator[Miss]:
    seen: set[str] = set()
    for miss in misses:
        if miss.text not in seen:
            seen.add(miss.text)
            yield miss


def _around(failed: FailedAttempt) -> Iterator[Miss]:
    """Other claims, taints, pools, held-back devices; then constraints and the requests' own selectors."""
    requests = sorted(failed.report.requests, key=lambda request: not request.blocked)
    steps = [(request, step) for request in requests for step in request.steps]
    for request, step in steps[:MOST_ATTEMPTS]:
        if step.removal in _MENDABLE:
            yield from _try_step(failed, request, step)
    for body, reason in failed.not_offered:
        yield from _try_not_offered(failed, body, reason)
    for constraint in failed.report.constraints:
        yield from _try_constraint(failed, constraint)
    for request, step in steps[:MOST_ATTEMPTS]:
        if step.removal is Removal.REQUEST_SELECTOR:
            blocker = SelectorOfRequest(request.claim, request.name, step.index)
            yield from _try_selector(failed, request, step, blocker)


def _of_classes(failed: FailedAttempt) -> Iterator[Miss]:
    for request in failed.report.blocked:
        for step in request.steps:
            if step.removal is Removal.CLASS_SELECTOR:
                blocker = SelectorOfClass(request.class_name, step.index)
                yield from _try_selector(failed, request, step, blocker)


def _together(failed: FailedAttempt) -> Iterator[Miss]:
    """More than one thing is in the way."""
    yield from itertools.islice(_of_claims(failed), NAMES_SHOWN)
    everything = InUseBy(_in_use_here(failed))
    if everything.devices and _succeeds(failed.inputs, everything):
        yield Miss(everything, (), "it would fit if no other claim had devices", "wait, or end other pods")
    elif everything.devices:
        yield from _try_in_use_and_tainted(failed, everything)
    if any(claim["spec"].get("devices", {}).get("constraints") for claim in failed.inputs.claims):
        outcome = _succeeds(failed.inputs, AllConstraints())
        if outcome:
            yield Miss(AllConstraints(), (), "it would fit if none of the constraints were there")


def _try_in_use_and_tainted(failed: FailedAttempt, everything: InUseBy) -> Iterator[Miss]:
    """A node that is drained while others run on it."""
    steps = (step for request in failed.report.requests for step in request.steps)
    taints = tuple(dict.fromkeys(step.taint for step in steps if step.taint))
    both = Together((everything, *(Tainted("", "", taint.key, taint.effect) for taint in taints)))
    if taints and _succeeds(failed.inputs, both):
        those = f"the taint{'s' if len(taints) > 1 else ''} {', '.join(map(str, taints))}"
        text = f"it would fit if no other claim had devices and {those} were not there"
        yield Miss(both, (), text, "wait until the taint is cleared, then until other pods end")


def _of_claims(failed: FailedAttempt) -> Iterator[Miss]:
    """Everything that one other claim has here."""
    devices: dict[str, list[DeviceId]] = {}
    for device in _in_use_here(failed):
        for name in failed.inputs.cluster.in_use.holders[device]:
            devices.setdefault(name, []).append(device)
    for held in itertools.islice(devices.values(), _CLAIMS_TRIED):
        yield from _try_in_use(failed, tuple(held))


def _in_use_here(failed: FailedAttempt) -> tuple[DeviceId, ...]:
    pools = {pool for pool, _, _ in failed.report.pools}
    held = failed.inputs.cluster.in_use.holders
    return tuple(device for device in held if f"{device[0]}/{device[1]}" in pools)


def _succeeds(inputs: AttemptInputs, blocker: Blocker) -> Outcome | None:
    """The attempt without the blocker, if it succeeds."""
    changed = blocker.without(inputs)
    try:
        outcome = Attempt(changed.claims, changed.cluster).on(inputs.node)
    except AllocationError:
        return None
    return outcome if outcome.ending is AttemptResult.ALLOCATED else None


# --- one blocker ---------------------------------------------------------------------------------------


def _try_step(failed: FailedAttempt, request: RequestReport, step: Step) -> Iterator[Miss]:
    ids = tuple(note.id for note in step.devices)
    match step.removal:
        case Removal.IN_USE:
            yield from _try_in_use(failed, ids)
        case Removal.TAINT:
            yield from _try_taint(failed, request, step, ids)
        case Removal.COUNTERS:
            yield from _try_in_use(failed, _in_use_here(failed))
        case Removal.CAPACITY:
            yield from _try_capacity(failed, request, step, ids)
        case Removal.POOL_INCOMPLETE:
            for driver, pool in dict.fromkeys(device[:2] for device in ids):
                incomplete = PoolIncomplete(driver, pool)
                if _succeeds(failed.inputs, incomplete):
                    text = f"pool {driver}/{pool} would be enough, once all of its slices are published"
                    yield Miss(incomplete, ids, text, "wait for its driver, or look at its log")


def _try_in_use(failed: FailedAttempt, ids: tuple[DeviceId, ...]) -> Iterator[Miss]:
    """Freed together first; then only those that were needed."""
    outcome = _succeeds(failed.inputs, InUseBy(ids)) if ids else None
    if outcome is None:
        return
    needed = tuple(pick.candidate.id for pick in outcome.selected if pick.candidate.id in ids)
    if not needed or not _succeeds(failed.inputs, InUseBy(needed)):
        needed = ids
    holders = failed.inputs.cluster.in_use.holders
    claims = ", ".join(dict.fromkeys(name for device in needed for name in holders.get(device, ())))
    text = f"{join_names(needed)} would fit, but {are(needed)} in use by {claims or 'another claim'}"
    verb = "are" if ", " in claims else "is"
    yield Miss(InUseBy(needed), needed, text, f"wait until {claims} {verb} released" if claims else "")


def _try_taint(
    failed: FailedAttempt, request: RequestReport, step: Step, ids: tuple[DeviceId, ...]
) -> Iterator[Miss]:
    if step.taint is None:
        return
    blocker = Tainted(request.claim, request.name, step.taint.key, step.taint.effect)
    outcome = _succeeds(failed.inputs, blocker)
    if outcome is None:
        blocker = Tainted("", "", step.taint.key, step.taint.effect)
        outcome = _succeeds(failed.inputs, blocker)
        tainted = (note for r in failed.report.requests for note in r.removed_by(Removal.TAINT))
        ids = tuple(note.id for note in tainted)
    if outcome:
        needed = _picked(outcome, ids)
        text = f"{join_names(needed)} would fit, but {are(needed)} tainted: {step.what}"
        where = f"request {request.name}" if blocker.request else "all requests"
        yield Miss(blocker, needed, text, f"clear the taint, or tolerate it in {where}")


def _try_capacity(
    failed: FailedAttempt, request: RequestReport, step: Step, ids: tuple[DeviceId, ...]
) -> Iterator[Miss]:
    blocker = AskedCapacity(request.claim, request.name)
    outcome = _succeeds(failed.inputs, blocker)
    if outcome:
        needed = _picked(outcome, ids)
        detail = next((note.text for note in step.devices if note.id in needed and note.text), "")
        why = f" ({detail})" if detail else ""
        have = "have" if len(needed) > 1 else "has"
        text = f"{join_names(needed)} would fit, but {have} too little capacity{why}"
        yield Miss(blocker, needed, text, f"ask for less, or for what it has, in request {request.name}")


def _try_not_offered(failed: FailedAttempt, body: JsonObject, reason: str) -> Iterator[Miss]:
    blocker = NotOffered(body)
    outcome = _succeeds(failed.inputs, blocker)
    if outcome:
        names = {device["name"] for device in body["spec"]["devices"]}
        needed = tuple(pick.candidate.id for pick in outcome.selected if pick.candidate.id[2] in names)
        them = "them" if len(needed) > 1 else "it"
        text = f"{join_names(needed)} would fit, but the driver holds {them} back: {reason}"
        yield Miss(blocker, needed, text)


def _try_constraint(failed: FailedAttempt, report: ConstraintReport) -> Iterator[Miss]:
    blocker = ClaimConstraint(report.claim, report.index)
    outcome = _succeeds(failed.inputs, blocker)
    if outcome is None:
        return
    kind = "distinctAttribute" if report.distinct else "matchAttribute"
    picked = [pick for pick in outcome.selected if pick.slot.claim.label == report.claim]
    covered = [pick.candidate for pick in picked if pick.alternative.name in report.requests]
    detail = ", ".join(f"{c.id[2]} ({describe_value(c, report.attribute)})" for c in covered[:NAMES_SHOWN])
    text = f"without constraint {report.index + 1} ({kind} {report.attribute}) it would get {detail}"
    instead = "" if report.distinct else _find_other_attribute(failed, report)
    fix = f"match {instead} instead: it can be met here" if instead else ""
    yield Miss(blocker, tuple(c.id for c in covered), text, fix)


def _find_other_attribute(failed: FailedAttempt, report: ConstraintReport) -> str:
    """The nearest one that the same devices can be aligned by here."""
    others = (name for name in _ATTRIBUTES if name != report.attribute)
    return next(
        (n for n in others if _succeeds(failed.inputs, ClaimConstraint(report.claim, report.index, n))), ""
    )


def _try_selector(
    failed: FailedAttempt, request: RequestReport, step: Step, blocker: SelectorOfRequest | SelectorOfClass
) -> Iterator[Miss]:
    outcome = _succeeds(failed.inputs, blocker)
    if outcome is None:
        return
    ids = tuple(note.id for note in step.devices)
    picked = [
        pick.candidate
        for pick in outcome.selected
        if pick.candidate.id in ids and pick.alternative.name == request.name
    ]
    if not picked:
        return
    values = list(describe_named_values(step.expression, picked[0]))
    why = f" ({', '.join(values)})" if values else ""
    needed = tuple(candidate.id for candidate in picked)
    yield Miss(blocker, needed, f"{join_names(needed)} would fit, except for {step.what}{why}")


def _picked(outcome: Outcome, ids: Sequence[DeviceId]) -> tuple[DeviceId, ...]:
    picked = tuple(pick.candidate.id for pick in outcome.selected if pick.candidate.id in ids)
    return picked or tuple(ids)


NAMES_SHOWN = 3

_NAMED = re.compile(
    r"""(?<=\])\s*\.\s*\??\s*([A-Za-z_]\w*)|\[\s*\??["']([^"']+)["']\s*\]|["']([^"']+)["']\s+in\b"""
)
"""How an expression names attributes."""


def describe_value(candidate: Candidate, attribute: str) -> str:
    values = ", ".join(values_of(candidate, attribute))
    return f"{attribute.rpartition('/')[2]} {values}" if values else f"no {attribute.rpartition('/')[2]}"


def describe_named_values(expression: str, candidate: Candidate) -> Iterator[str]:
    """The device's values of the attributes that the expression names."""
    words = {name for found in _NAMED.findall(expression) for name in found}
    for name in candidate.attributes:
        short = name.rpartition("/")[2]
        if short in words:
            yield f"{short} is {', '.join(values_of(candidate, qualify(name, candidate.driver)))}"


def join_names(ids: Sequence[DeviceId]) -> str:
    names = [device[2] for device in ids]
    if len(names) > NAMES_SHOWN:
        return f"{', '.join(names[:NAMES_SHOWN])} and {len(names) - NAMES_SHOWN} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def are(ids: Sequence[DeviceId]) -> str:
    return "are" if len(ids) > 1 else "is"
