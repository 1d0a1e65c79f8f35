"""A review of an attempt on one node, as a report.

It contains what the allocator did; only the order is meant for readers. A device that is in use *and* also
not matched by a selector, or tainted, is listed under the latter, because freeing it would not help.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from dranet.cel import CelError
from dranet.desk.allocation.devices import Candidate
from dranet.desk.allocation.failures import AllocationError
from dranet.desk.allocation.outcome import AlternativeReview, Outcome, Removed, SlotReview
from dranet.desk.allocation.requests import Alternative, Constraint
from dranet.desk.allocation.selection import Removal
from dranet.desk.allocation.selectors import SelectorResults
from dranet.desk.allocation.taints import DeviceId, find_untolerated
from dranet.desk.explain.explanation import (
    AllocatedDevice,
    ConstraintReport,
    Failure,
    NodeReport,
    Note,
    RequestReport,
    Step,
    ValueRow,
)

ORDER = (
    Removal.NOT_ON_NODE,
    Removal.POOL_INCOMPLETE,
    Removal.POOL_INVALID,
    Removal.NOT_MODELLED,
    Removal.FAILED,
    Removal.CLASS_SELECTOR,
    Removal.REQUEST_SELECTOR,
    Removal.TAINT,
    Removal.IN_USE,
    Removal.CAPACITY,
    Removal.COUNTERS,
    Removal.TAKEN,
    Removal.CONSTRAINT,
    Removal.LIMIT,
)
"""Order of the steps: first what the device is, then which claim has it, then what it conflicts with."""

_MISSING = re.compile(r"no attribute or capacity '([^']+)'")
_DESCRIBED_BY_STEP = (Removal.CLASS_SELECTOR, Removal.REQUEST_SELECTOR, Removal.TAINT, Removal.CONSTRAINT)
"""The step describes all of its devices alike."""

_COULD_BE = (Removal.TAKEN, Removal.CONSTRAINT, Removal.LIMIT)
"""What these remove fits the request by itself."""


def report_node(outcome: Outcome, reviews: Sequence[SlotReview]) -> NodeReport:
    """The story of one node.

    Args:
        outcome: what came of the attempt.
        reviews: one for each slot; may be empty where the attempt succeeded.
    """
    error = outcome.error
    return NodeReport(
        node=outcome.node.name,
        ending=outcome.ending,
        reached=outcome.deepest,
        pools=tuple((str(pool), len(pool.devices), pool.defect) for pool in outcome.pools),
        requests=tuple(
            _report_request(slot, review, outcome) for slot in reviews for review in slot.alternatives
        ),
        constraints=tuple(_report_constraints(outcome, reviews)),
        allocated=tuple(
            AllocatedDevice(
                pick.slot.claim.label,
                pick.alternative.name,
                pick.candidate.id,
                bool(pick.alternative.admin_access),
            )
            for pick in outcome.selected
        ),
        failure=_report_failure(error, outcome) if error else None,
    )


def _report_request(slot: SlotReview, review: AlternativeReview, outcome: Outcome) -> RequestReport:
    removed = [
        _sharpen(entry, review.alternative, outcome.context.selector_results)
        for entry in review.removed
        if entry.removal is not Removal.NOT_ON_NODE
    ]
    left = (*review.had, *review.spare)
    return RequestReport(
        claim=slot.slot.claim.label,
        name=review.alternative.name,
        class_name=review.alternative.class_name,
        wanted=review.alternative.count,
        seen=len(removed) + len(left),
        steps=tuple(_group(removed, slot)),
        left=tuple(candidate.id for candidate in left),
        satisfied=review.satisfied,
        blocked=slot.slot is outcome.blocked,
    )


def _report_failure(error: AllocationError, outcome: Outcome) -> Failure:
    """With what it is about by itself, and names that are near one that no device has."""
    cause, hint = _cause_of(error), error.hint
    missing = _MISSING.search(cause)
    names = {
        name.rpartition("/")[2]
        for pool in outcome.pools
        for device in pool.devices
        for name in (*device.attributes, *device.capacity)
    }
    if missing and missing[1] not in names:
        near = difflib.get_close_matches(missing[1], sorted(names), n=2, cutoff=0.7)
        asked = f"did you mean {' or '.join(near)}? " if near else ""
        hint = f"no device of this node has {missing[1]}: {asked}else {hint}"
    return Failure(error.cause.name, error.message, cause, hint, error.request, error.device)


def _cause_of(error: AllocationError) -> str:
    """The message of CEL, without the expression that it cites."""
    cause = error.__cause__
    return cause.cause if isinstance(cause, CelError) else error.message


def _sharpen(entry: Removed, alternative: Alternative, selector_results: SelectorResults) -> Removed:
    """Look further at a device that is in use: would it match at all?"""
    if entry.removal not in (Removal.IN_USE, Removal.TAKEN):
        return entry
    result = selector_results.of(alternative, entry.candidate)
    if result.error:
        return entry
    if result.selector:
        removal = Removal.CLASS_SELECTOR if result.selector.of_class else Removal.REQUEST_SELECTOR
        return replace(entry, removal=removal, selector=result.selector, detail="")
    taint = find_untolerated(entry.candidate.taints, alternative.tolerations)
    return replace(entry, removal=Removal.TAINT, taint=taint, detail="") if taint else entry


def _group(removed: Sequence[Removed], slot: SlotReview) -> Iterator[Step]:
    """Devices that the same thing removed, together; in the order of :data:`ORDER`."""
    groups: dict[Step, list[Note]] = {}
    for entry in removed:
        detail = entry.detail if entry.removal not in _DESCRIBED_BY_STEP else ""
        note = Note(entry.candidate.id, _cause_of(entry.error) if entry.error else detail)
        groups.setdefault(_describe(entry, slot), []).append(note)
    for step in sorted(groups, key=lambda step: (ORDER.index(step.removal), step.index, step.what)):
        yield replace(step, devices=tuple(groups[step]))


def _describe(entry: Removed, slot: SlotReview) -> Step:
    """The step in words, still without devices."""
    match entry.removal:
        case Removal.CLASS_SELECTOR | Removal.REQUEST_SELECTOR | Removal.FAILED if entry.selector:
            index = entry.selector.index
            what = f"selector {index + 1} of {entry.selector.origin}"
            return Step(entry.removal, what, (), index, entry.selector.expression)
        case Removal.TAINT if entry.taint:
            return Step(entry.removal, str(entry.taint), (), taint=entry.taint)
        case Removal.CONSTRAINT if entry.constraint:
            index = slot.slot.claim.constraints.index(entry.constraint)
            return Step(entry.removal, f"constraint {index + 1} ({entry.constraint})", (), index)
    return Step(entry.removal, "", ())


# --- constraints: the values on both sides -------------------------------------------------------------


def _report_constraints(outcome: Outcome, reviews: Sequence[SlotReview]) -> Iterator[ConstraintReport]:
    """Those that turned a device down for the request that the search could not get past."""
    for slot in reviews:
        if slot.slot is not outcome.blocked:
            continue
        of_claim = [other for other in reviews if other.slot.claim is slot.slot.claim]
        broken = {
            id(entry.constraint)
            for review in slot.alternatives
            for entry in review.removed
            if entry.removal is Removal.CONSTRAINT
        }
        for index, constraint in enumerate(slot.slot.claim.constraints):
            if id(constraint) in broken:
                yield _report_constraint(
                    slot.slot.claim.label, index, constraint, of_claim, outcome.context.selector_results
                )


def _report_constraint(
    claim: str,
    index: int,
    constraint: Constraint,
    slots: Iterable[SlotReview],
    selector_results: SelectorResults,
) -> ConstraintReport:
    fitting = {
        review.alternative.name: fitting_devices(review, selector_results)
        for slot in slots
        for review in slot.alternatives
        if constraint.covers(review.alternative.name)
    }
    alone = {name.partition("/")[0] for name, devices in fitting.items() if devices}
    fitting = {
        name: devices for name, devices in fitting.items() if devices or name.partition("/")[0] not in alone
    }
    by_value: dict[str, dict[str, list[DeviceId]]] = {}
    for request, candidates in fitting.items():
        for candidate in candidates:
            for value in values_of(candidate, constraint.attribute):
                by_value.setdefault(value, {name: [] for name in fitting})[request].append(candidate.id)
    rows = (
        ValueRow(value, {name: tuple(ids) for name, ids in by_value[value].items()})
        for value in sorted(by_value, key=lambda value: (not value, value))
    )
    return ConstraintReport(
        claim, index, constraint.attribute, constraint.distinct, tuple(fitting), tuple(rows)
    )


def fitting_devices(review: AlternativeReview, selector_results: SelectorResults) -> tuple[Candidate, ...]:
    """Every free device that fits the alternative by itself, whatever else the claim asks for."""
    others = (
        entry.candidate
        for entry in review.removed
        if entry.removal in _COULD_BE
        and _fits_by_itself(review.alternative, entry.candidate, selector_results)
    )
    return (*review.had, *review.spare, *others)


def _fits_by_itself(
    alternative: Alternative, candidate: Candidate, selector_results: SelectorResults
) -> bool:
    """A device that another request took was not looked at any further."""
    tolerated = find_untolerated(candidate.taints, alternative.tolerations) is None
    return tolerated and selector_results.of(alternative, candidate).matches


def values_of(candidate: Candidate, attribute: str) -> tuple[str, ...]:
    """In words; one empty text if the device lacks the attribute."""
    elements = candidate.elements(attribute)
    if elements is None:
        return ("",)
    return tuple(sorted(_word(kind, value) for kind, value in elements))


def _word(kind: str, value: object) -> str:
    """Text in quotes where it could be taken for something else."""
    if kind == "bool":
        return str(value).lower()
    text = str(value)
    plain = kind != "string" or not (text in ("", "true", "false") or text.lstrip("-").isdecimal())
    return text if plain else f'"{text}"'
