"""A choice of devices that somebody else made, tried against every rule of our allocator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dranet.desk.allocation.allocator import Attempt, Outcome
from dranet.desk.allocation.requests import Alternative
from dranet.desk.allocation.selection import Selection, Slot
from tests.desk.scheduler.cases import Json


def rebuild(attempt: Attempt, outcome: Outcome, allocations: Sequence[Json]) -> tuple[Json, ...]:
    """The allocations as ours would be with these devices; empty if some rule forbids them."""
    selection = Selection(outcome.context)
    by_id = {candidate.id: candidate for candidate in outcome.context.usable}
    for slot, allocation in zip(attempt.slots, _by_slot(attempt, allocations), strict=True):
        results = [r for r in allocation["devices"]["results"] if _find(slot, r["request"])]
        option = _find(slot, results[0]["request"]) if results else None
        if option is None or any(r["request"] != option.name for r in results):
            return ()
        if option.count is not None and len(results) != option.count:
            return ()
        for result in results:
            candidate = by_id.get((result["driver"], result["pool"], result["device"]))
            if candidate is None or selection.find_removal(
                slot, option, candidate, of_all=option.count is None
            ):
                return ()
            selection.push(slot, option, candidate)
    return attempt.allocations(replace(outcome, selected=tuple(selection.selected)))


def _by_slot(attempt: Attempt, allocations: Sequence[Json]) -> Iterator[Json]:
    """The allocation of each slot's claim."""
    yield from (allocations[attempt.views.index(slot.claim)] for slot in attempt.slots)


def _find(slot: Slot, request: str) -> Alternative | None:
    return next((option for option in slot.request.alternatives if option.name == request), None)
