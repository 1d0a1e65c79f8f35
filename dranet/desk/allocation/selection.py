"""What has been chosen so far in one search: pushed device by device, popped when the search goes back.

Every rule about one device is asked here, in the order in which a scheduler asks. Devices in pools without a
defect have places, 0 and up in the order of preference; sets of them are the bits of an integer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from dranet.desk.allocation.capacity import Amounts, Shortage, consume, find_shortage
from dranet.desk.allocation.devices import Candidate, CounterId, Elements, InUse
from dranet.desk.allocation.pools import CounterShortage, Pool, PoolId, find_counter_shortage
from dranet.desk.allocation.requests import Alternative, ClaimView, Constraint, Request
from dranet.desk.allocation.selectors import SelectorResults
from dranet.desk.allocation.taints import find_untolerated
from dranet.desk.kubeapi.objects import MAX_RESULTS

_NOTHING: Amounts = {}


class Removal(StrEnum):
    """Why a device is not given to a request, in the order in which the scheduler looks."""

    NOT_ON_NODE = "does not reach this node"
    POOL_INCOMPLETE = "in an incomplete pool"
    POOL_INVALID = "in an invalid pool"
    IN_USE = "in use by another claim"
    TAKEN = "taken by an earlier request of this pod"
    CLASS_SELECTOR = "not matched by a selector of the DeviceClass"
    REQUEST_SELECTOR = "not matched by a selector of the request"
    FAILED = "a selector fails on it"
    CAPACITY = "too little capacity"
    COUNTERS = "too little left of a shared counter"
    TAINT = "a taint that the request does not tolerate"
    CONSTRAINT = "against a constraint of the claim"
    LIMIT = "over the number of devices that a claim may have"
    NOT_MODELLED = "something of it is not modelled here"


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """One request of one claim: what the search decides one after the other."""

    index: int
    claim: ClaimView
    request: Request


@dataclass(frozen=True, slots=True, eq=False)
class SelectedDevice:
    """One device chosen for one alternative of a slot."""

    slot: Slot
    alternative: Alternative
    candidate: Candidate
    consumed: tuple[tuple[str, int], ...] = ()
    """For a shared device: (capacity name, consumed amount in 1e-9 units)."""


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What stays the same during a search on one node."""

    pools: tuple[Pool, ...]
    available: Mapping[PoolId, Mapping[CounterId, int]]
    """What allocated claims leave of each pool's counters."""
    in_use: InUse
    selector_results: SelectorResults
    usable: tuple[Candidate, ...] = field(init=False)
    """Devices of pools without a defect, by place; those of other nodes among them, because selectors are
    also evaluated for them."""
    places: Mapping[Candidate, int] = field(init=False)
    _elsewhere: frozenset[Candidate] = field(init=False)

    def __post_init__(self) -> None:
        usable = tuple(device for pool in self.pools if not pool.defect for device in pool.every)
        object.__setattr__(self, "usable", usable)
        object.__setattr__(self, "places", {device: place for place, device in enumerate(usable)})
        elsewhere = frozenset[Candidate]().union(*(pool.elsewhere for pool in self.pools))
        object.__setattr__(self, "_elsewhere", elsewhere)

    def find_unwanted(self, alternative: Alternative, candidate: Candidate) -> Removal | None:
        """Find a reason against the device that does not depend on other claims: a selector, or the node.

        Raises:
            AllocationError: a selector fails on it, or it cannot be judged.
        """
        result = self.selector_results.of(alternative, candidate)
        if candidate in self._elsewhere and result.selector is None:
            return Removal.NOT_ON_NODE
        if result.error:
            raise result.error
        if result.selector is None:
            return None
        return Removal.CLASS_SELECTOR if result.selector.of_class else Removal.REQUEST_SELECTOR

    def is_free(self, alternative: Alternative, candidate: Candidate) -> bool:
        """Whether no other claim has it; admin access ignores other claims."""
        return alternative.admin_access or candidate.id not in self.in_use.devices

    def could_suffice(self, alternative: Alternative, candidate: Candidate) -> bool:
        """Whether its capacity would do if no claim had any of it."""
        return (
            find_shortage(candidate.capacity, alternative.asked, _NOTHING, counted=candidate.shared) is None
        )

    def shortage(self, alternative: Alternative, candidate: Candidate, also: Amounts) -> Shortage | None:
        """What is too little of its capacity, when this run has taken ``also``."""
        asked, counted = alternative.asked, candidate.shared or candidate.id in self.in_use.shares
        if not asked and not (counted and candidate.capacity):
            return None
        used = self.in_use.shares.get(candidate.id, _NOTHING)
        if also:
            used = dict(Counter(used) + Counter(also))
        return find_shortage(candidate.capacity, asked, used, counted=counted)


@dataclass(slots=True)
class Selection:
    """The stack of devices chosen so far, and what follows from it."""

    context: NodeContext
    selected: list[SelectedDevice] = field(default_factory=list)
    taken: int = 0
    """Places of the devices that are no longer to be had."""
    taken_by: Counter[ClaimView] = field(default_factory=Counter)
    """The same by claim, for admin access."""
    results: Counter[ClaimView] = field(default_factory=Counter)
    """How many devices each claim has."""
    used: dict[Candidate, list[dict[str, int]]] = field(default_factory=dict)
    """What shares of this run have taken of a shared device, after each of them."""
    counters: dict[PoolId, Counter[CounterId]] = field(default_factory=dict)
    """What this run has taken of each pool's counters."""
    common: dict[Constraint, list[Elements]] = field(default_factory=dict)
    """What each constraint knows of its devices, after each of them."""

    def push(self, slot: Slot, alternative: Alternative, candidate: Candidate) -> None:
        """Choose a device that nothing speaks against."""
        consumed: tuple[tuple[str, int], ...] = ()
        if self._takes_counters(candidate):
            self.counters.setdefault(candidate.pool, Counter()).update(dict(candidate.counters))
        if candidate.shared:
            consumed = consume(candidate.capacity, alternative.asked)
            stack = self.used.setdefault(candidate, [])
            stack.append(dict(Counter(stack[-1] if stack else _NOTHING) + Counter(dict(consumed))))
        else:
            self.taken |= 1 << self.context.places[candidate]
            self.taken_by[slot.claim] |= 1 << self.context.places[candidate]
        for constraint, elements in self._constrain(alternative, candidate):
            self.common.setdefault(constraint, []).append(elements or frozenset())
        self.results[slot.claim] += 1
        self.selected.append(SelectedDevice(slot, alternative, candidate, consumed))

    def pop(self) -> None:
        """Take the last choice back."""
        pick = self.selected.pop()
        candidate, claim = pick.candidate, pick.slot.claim
        self.results[claim] -= 1
        for constraint in pick.alternative.constraints:
            self.common[constraint].pop()
        if candidate.shared:
            self.used[candidate].pop()
        else:
            self.taken_by[claim] &= ~(1 << self.context.places[candidate])
            if not any(other.candidate is candidate for other in self.selected):
                self.taken &= ~(1 << self.context.places[candidate])
        if self._takes_counters(candidate):
            self.counters[candidate.pool].subtract(dict(candidate.counters))

    def find_removal(
        self, slot: Slot, alternative: Alternative, candidate: Candidate, *, of_all: bool = False
    ) -> Removal | None:
        """The first reason against a usable device; ``None`` if it can be had.

        Args:
            of_all: it is one of "all devices", whose selectors and capacity were looked at before the search;
                what this run takes of the capacity comes last then.

        Raises:
            AllocationError: a selector fails on it, or it cannot be judged.
        """
        if self.is_taken(slot, alternative, candidate):
            return Removal.TAKEN
        if not self.context.is_free(alternative, candidate):
            return Removal.IN_USE
        if not of_all:
            if unwanted := self.context.find_unwanted(alternative, candidate):
                return unwanted
            if self.find_shortage(alternative, candidate):
                return Removal.CAPACITY
        if self.find_counter_shortage(candidate):
            return Removal.COUNTERS
        if find_untolerated(candidate.taints, alternative.tolerations):
            return Removal.TAINT
        if self.find_constraint(alternative, candidate):
            return Removal.CONSTRAINT
        return Removal.CAPACITY if of_all and self.find_shortage(alternative, candidate) else None

    def has_room(self, slot: Slot, count: int) -> bool:
        """Whether the claim may have so many more devices."""
        return self.results[slot.claim] + count <= MAX_RESULTS

    def is_taken(self, slot: Slot, alternative: Alternative, candidate: Candidate) -> bool:
        """A shared device never is. Admin access may look at a device that others have, but not twice in one
        claim; what it looks at is not given to another claim of the same pod, though."""
        if candidate.shared:
            return False
        taken = self.taken_by[slot.claim] if alternative.admin_access else self.taken
        return bool(taken >> self.context.places[candidate] & 1)

    def find_shortage(self, alternative: Alternative, candidate: Candidate) -> Shortage | None:
        stack = self.used.get(candidate)
        return self.context.shortage(alternative, candidate, stack[-1] if stack else _NOTHING)

    def find_counter_shortage(self, candidate: Candidate) -> CounterShortage | None:
        if not self._takes_counters(candidate):
            return None
        available = self.context.available.get(candidate.pool, {})
        return find_counter_shortage(available, self.counters.get(candidate.pool, {}), candidate)

    def find_constraint(self, alternative: Alternative, candidate: Candidate) -> Constraint | None:
        """The first constraint that forbids the device."""
        constrained = self._constrain(alternative, candidate)
        return next((constraint for constraint, elements in constrained if elements is None), None)

    def known_to(self, constraint: Constraint) -> Elements | None:
        """What a constraint knows of its devices; ``None`` before the first."""
        stack = self.common.get(constraint)
        return stack[-1] if stack else None

    def covered_by(self, constraint: Constraint, claim: ClaimView) -> Sequence[Candidate]:
        """The devices chosen so far that a constraint of the claim covers."""
        return [
            p.candidate
            for p in self.selected
            if p.slot.claim is claim and constraint in p.alternative.constraints
        ]

    def _constrain(
        self, alternative: Alternative, candidate: Candidate
    ) -> Iterator[tuple[Constraint, Elements | None]]:
        for constraint in alternative.constraints:
            elements = candidate.elements(constraint.attribute)
            yield constraint, constraint.add(elements, self.known_to(constraint))

    def _takes_counters(self, candidate: Candidate) -> bool:
        """A shared device takes them with its first share only."""
        if not candidate.counters or not candidate.shared:
            return bool(candidate.counters)
        return not self.used.get(candidate) and not self.context.in_use.holds(candidate.id)
