"""What an attempt on one node came to, and what kept each device from each request.

:class:`Outcome` is what :meth:`dranet.desk.allocation.allocator.Attempt.on` returns; it is cheap. The
reasons for every device are worked out by :func:`dranet.desk.allocation.review.review`, on demand.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING

from dranet.desk.allocation.constraints import Constraint
from dranet.desk.allocation.devices import Candidate
from dranet.desk.allocation.failures import AllocationError
from dranet.desk.allocation.nodes import Node
from dranet.desk.allocation.pools import Pool
from dranet.desk.allocation.requests import Alternative, ClaimView, Request, Selector
from dranet.desk.allocation.taints import AppliedTaint

if TYPE_CHECKING:
    from dranet.desk.allocation.state import Ground


class Ending(Enum):
    """How an attempt on a node ended."""

    ALLOCATED = "every request has its devices"
    UNSATISFIED = "some request cannot be satisfied on this node"
    POOL_INVALID = "unsatisfied, and an invalid pool may be the reason; another node may do"
    BROKE_OFF = "an error ended it; no other node is tried"


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


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """One request of one claim: what the search decides one after the other."""

    index: int
    claim: ClaimView
    request: Request


@dataclass(frozen=True, slots=True, eq=False)
class Pick:
    """One device chosen for one alternative of a slot."""

    slot: Slot
    alternative: Alternative
    candidate: Candidate
    consumed: tuple[tuple[str, int], ...] = ()
    """Of a shared device: each of its capacities and the billionths that this allocation takes."""


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
        """Whether this alternative could be met where the search stood."""
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
    ending: Ending
    slots: tuple[Slot, ...]
    """All requests of all claims, in the order in which they are decided."""
    picks: tuple[Pick, ...]
    """All devices if it ended well; else those chosen when the search first came as far as it ever did."""
    deepest: int
    """Index of the slot that the search could not get past; ``len(slots)`` if it ended well."""
    ground: Ground
    """What was there to choose from; for :mod:`dranet.desk.allocation.review`."""
    error: AllocationError | None = None

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The pools that reach the node, in the order of preference."""
        return self.ground.pools

    @property
    def blocked(self) -> Slot | None:
        """The slot that the search could not get past."""
        return self.slots[self.deepest] if self.deepest < len(self.slots) else None
