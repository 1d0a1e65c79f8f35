"""What an attempt on one node came to, and what kept each device from each request.

:class:`Outcome` is what :meth:`dranet.desk.allocation.allocator.Attempt.on` returns; it is cheap. The
reasons for every device are worked out by :func:`dranet.desk.allocation.outcome.review`, on demand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from dranet.desk.allocation.devices import Candidate, Node
from dranet.desk.allocation.failures import AllocationError, Cause
from dranet.desk.allocation.pools import Pool
from dranet.desk.allocation.requests import Alternative, Constraint, Selector
from dranet.desk.allocation.selection import NodeContext, Removal, SelectedDevice, Selection, Slot
from dranet.desk.allocation.taints import AppliedTaint, find_untolerated


class AttemptResult(Enum):
    """How an attempt on a node ended."""

    ALLOCATED = "every request has its devices"
    UNSATISFIED = "some request cannot be satisfied on this node"
    POOL_INVALID = "unsatisfied, and an invalid pool may be the reason; another node may do"
    BROKE_OFF = "an error ended it; no other node is tried"


@dataclass(frozen=True, slots=True)
class Removed:
    """One device, the first reason against it, and the particulars of that reason."""

    candidate: Candidate
    removal: Removal
    detail: str = ""
    """For people: the rest of a sentence that begins with the removal."""
    selector: Selector | None = None
    taint: AppliedTaint | None = None
    constraint: Constraint | None = None
    against: tuple[Candidate, ...] = ()
    """The devices chosen before that a constraint holds against it; empty if it lacks the attribute."""
    error: AllocationError | None = None


@dataclass(frozen=True, slots=True)
class AlternativeReview:
    """What one alternative of a slot (or its only one) found on the node."""

    alternative: Alternative
    had: tuple[Candidate, ...]
    """What it took, or would have taken: enough of them if there are ``alternative.count``."""
    spare: tuple[Candidate, ...]
    """What else would have fitted."""
    removed: tuple[Removed, ...]
    """Every other device of every pool that reaches the node, in the order of the search."""

    @property
    def satisfied(self) -> bool:
        """Whether this alternative could be met at that point of the search."""
        if self.alternative.count is None:
            return bool(self.had) and all(r.removal in _NOT_OF_ALL for r in self.removed)
        return len(self.had) >= self.alternative.count


_NOT_OF_ALL = frozenset(
    {Removal.NOT_ON_NODE, Removal.CLASS_SELECTOR, Removal.REQUEST_SELECTOR, Removal.CAPACITY}
)
"""What is removed by these is no part of "all devices"."""


@dataclass(frozen=True, slots=True)
class SlotReview:
    slot: Slot
    alternatives: tuple[AlternativeReview, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one node."""

    node: Node
    ending: AttemptResult
    slots: tuple[Slot, ...]
    """All requests of all claims, in the order in which they are decided."""
    selected: tuple[SelectedDevice, ...]
    """All devices if it ended well; else those chosen when the search first came as far as it ever did."""
    deepest: int
    """Index of the slot that the search could not get past; ``len(slots)`` if it ended well."""
    context: NodeContext
    """What was there to choose from; for :mod:`dranet.desk.allocation.outcome`."""
    error: AllocationError | None = None

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The pools that reach the node, in the order of preference."""
        return self.context.pools

    @property
    def blocked(self) -> Slot | None:
        """The slot that the search could not get past."""
        return self.slots[self.deepest] if self.deepest < len(self.slots) else None


def review(outcome: Outcome) -> tuple[SlotReview, ...]:
    """For every slot in order. Never raises: what made an attempt break off is among the reasons."""
    return tuple(_Review(outcome, slot).run() for slot in outcome.slots)


def review_slot(outcome: Outcome, slot: Slot) -> SlotReview:
    """The same for one slot."""
    return _Review(outcome, slot).run()


def summarize(outcome: Outcome) -> str:
    """Why a node does not do, in one line: what the slot that could not be got past lacked."""
    slot = outcome.blocked
    if outcome.error or slot is None:
        return str(outcome.error or "")
    options = review_slot(outcome, slot).alternatives
    reasons = [(option.alternative.name, _count_reasons(option)) for option in options]
    clauses = [f"{name}: {why}" if len(options) > 1 else why for name, why in reasons if why]
    clauses += [f"pool {pool} is {pool.defect}" for pool in outcome.pools if pool.defect]
    published = sum(len(pool.devices) for pool in outcome.pools)
    why = "; ".join(clauses) or f"only {published} devices are published for this node"
    return f"claim {slot.claim.label}: request {slot.request.name} cannot be satisfied: {why}"


class _Review:
    """The review of one slot."""

    def __init__(self, outcome: Outcome, slot: Slot) -> None:
        self._outcome = outcome
        self._slot = slot
        self._context = outcome.context
        self._selection = Selection(self._context)
        for pick in outcome.selected:
            if pick.slot.index < slot.index:
                self._selection.push(pick.slot, pick.alternative, pick.candidate)

    def run(self) -> SlotReview:
        return SlotReview(self._slot, tuple(self._look(option) for option in self._slot.request.alternatives))

    def _look(self, option: Alternative) -> AlternativeReview:
        before: dict[Candidate, Removed | None] = {
            candidate: self._find(option, candidate) for candidate in self._context.usable
        }
        had = self._have(option, [candidate for candidate, reason in before.items() if reason is None])
        enough = option.count is not None and len(had) >= option.count
        others = [c for c, reason in before.items() if reason is None and c not in had]
        beside = {} if enough else {candidate: self._find(option, candidate) for candidate in others}
        for _ in had:
            self._selection.pop()
        reasons = before | beside
        spare = tuple(candidate for candidate in others if reasons[candidate] is None)
        every = (reason for pool in self._outcome.pools for reason in self._of_pool(pool, reasons))
        removed = tuple(r for r in every if r is not None and r.candidate not in had)
        return AlternativeReview(option, had, spare, removed)

    def _have(self, option: Alternative, candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
        """What the search chose, or the first devices that fit together; they stay pushed."""
        chosen = [
            pick.candidate
            for pick in self._outcome.selected
            if pick.slot is self._slot and pick.alternative is option
        ]
        had: list[Candidate] = []
        for candidate in chosen or candidates:
            if option.count is not None and len(had) == option.count:
                break
            if self._find(option, candidate) is None:
                self._selection.push(self._slot, option, candidate)
                had.append(candidate)
        return tuple(had)

    def _of_pool(self, pool: Pool, reasons: dict[Candidate, Removed | None]) -> Iterator[Removed | None]:
        why = Removal.POOL_INCOMPLETE if pool.incomplete else Removal.POOL_INVALID
        for candidate in pool.every:
            reason = None if pool.defect else reasons[candidate]
            if candidate in pool.elsewhere and not (reason and reason.error):
                yield Removed(candidate, Removal.NOT_ON_NODE)
            else:
                yield Removed(candidate, why, pool.defect) if pool.defect else reason

    def _find(self, option: Alternative, candidate: Candidate) -> Removed | None:
        if not self._selection.has_room(self._slot, 1):
            return Removed(candidate, Removal.LIMIT)
        try:
            removal = self._selection.find_removal(self._slot, option, candidate)
        except AllocationError as error:
            selector = self._context.selector_results.of(option, candidate).selector
            kind = Removal.NOT_MODELLED if error.cause is Cause.NOT_MODELLED else Removal.FAILED
            return Removed(candidate, kind, error.message, selector=selector, error=error)
        return None if removal is None else self._describe(option, candidate, removal)

    def _describe(self, option: Alternative, candidate: Candidate, removal: Removal) -> Removed:
        match removal:
            case Removal.CLASS_SELECTOR | Removal.REQUEST_SELECTOR:
                selector = self._context.selector_results.of(option, candidate).selector
                return Removed(candidate, removal, str(selector), selector=selector)
            case Removal.NOT_ON_NODE:
                return Removed(candidate, removal)
            case Removal.IN_USE:
                return self._describe_in_use(candidate)
            case Removal.TAKEN:
                return self._describe_taken(candidate)
            case Removal.CAPACITY if self._is_of_all(option, candidate):
                before = self._context.shortage(option, candidate, {})
                return self._describe_in_use(candidate) if before else self._describe_taken(candidate)
            case Removal.CAPACITY:
                return Removed(candidate, removal, str(self._selection.find_shortage(option, candidate)))
            case Removal.COUNTERS:
                return Removed(candidate, removal, str(self._selection.find_counter_shortage(candidate)))
            case Removal.TAINT:
                taint = find_untolerated(candidate.taints, option.tolerations)
                return Removed(candidate, removal, str(taint), taint=taint)
            case _:
                return self._describe_constraint(option, candidate)

    def _describe_constraint(self, option: Alternative, candidate: Candidate) -> Removed:
        constraint = self._selection.find_constraint(option, candidate)
        assert constraint is not None
        others = self._selection.covered_by(constraint, self._slot.claim)
        against = constraint.conflicts(candidate, others)
        return Removed(candidate, Removal.CONSTRAINT, str(constraint), constraint=constraint, against=against)

    def _describe_taken(self, candidate: Candidate) -> Removed:
        takers = (_name(pick) for pick in self._selection.selected if pick.candidate is candidate)
        return Removed(candidate, Removal.TAKEN, ", ".join(takers))

    def _describe_in_use(self, candidate: Candidate) -> Removed:
        holders = self._context.in_use.holders.get(candidate.id, ())
        return Removed(candidate, Removal.IN_USE, ", ".join(holders))

    def _is_of_all(self, option: Alternative, candidate: Candidate) -> bool:
        """Whether it belongs to "all devices": those that would do if no claim had them."""
        return option.count is None and self._context.could_suffice(option, candidate)


def _name(pick: SelectedDevice) -> str:
    return f"request {pick.alternative.name} of {pick.slot.claim.label}"


def _count_reasons(option: AlternativeReview) -> str:
    """``2 in use; 3 not matched by the selector ...``; empty if nothing speaks against any device."""
    counts = Counter(_phrase(removed) for removed in option.removed if removed.removal not in _OF_POOL)
    reasons = [f"{count} {phrase}" for phrase, count in sorted(counts.items())]
    if reasons and option.had and option.alternative.count is not None:
        reasons.insert(0, f"{len(option.had)} of {option.alternative.count} would fit")
    return "; ".join(reasons)


_OF_POOL = frozenset({Removal.NOT_ON_NODE, Removal.POOL_INCOMPLETE, Removal.POOL_INVALID})


def _phrase(removed: Removed) -> str:
    match removed.removal:
        case Removal.IN_USE | Removal.TAKEN:
            return "in use"
        case Removal.CLASS_SELECTOR | Removal.REQUEST_SELECTOR:
            return f"not matched by the {removed.detail}"
        case Removal.TAINT:
            return f"with the taint {removed.detail} that the request does not tolerate"
        case Removal.CONSTRAINT:
            return f"against the constraint {removed.detail}"
        case Removal.CAPACITY:
            return f"without enough capacity ({removed.detail})"
        case Removal.COUNTERS:
            return f"without enough of a shared counter ({removed.detail})"
        case Removal.LIMIT:
            return "over the limit of 32 devices in a claim"
    return removed.detail or removed.removal.value
