"""Depth first, first fit, with backtracking: the search for the devices of a pod's claims on one node.

Slots are decided in the order of claims and requests, alternatives in the order of preference, devices in the
order of the pools. The devices of one request are combinations: each comes after the one before. The first
descent is the plain one; later ones leave out what is lost
(:mod:`dranet.desk.allocation.pruning`) and what has failed before from the same state. A slot that was
never reached takes no part in that, so that the deepest one is where a plain search would also have
stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dranet.desk.allocation.devices import Candidate
from dranet.desk.allocation.failures import AllocationError, Cause
from dranet.desk.allocation.pruning import Pruning, Rest
from dranet.desk.allocation.requests import Alternative, ClaimView
from dranet.desk.allocation.selection import NodeContext, Removal, SelectedDevice, Selection, Slot
from dranet.desk.kubeapi.objects import MAX_RESULTS

MAX_CHOICES = 20_000
"""Choices of a device before the search gives up, some seconds. Packing amounts into devices can take
exponential time; a real scheduler gives up after ten seconds."""

_Key = tuple[object, ...]


class Search:
    """One attempt on one node; :meth:`run` it once."""

    def __init__(self, slots: Sequence[Slot], context: NodeContext, *, prune: bool = True) -> None:
        self.deepest = -1
        """The slot that was come to at most."""
        self.best: tuple[SelectedDevice, ...] = ()
        """What was chosen when that was come to first."""
        self.choices = 0
        """How often a device was chosen for a count, taken back or not."""
        self._slots = slots
        self._context = context
        self._prune = prune
        self._selection = Selection(context)
        self._all_devices: dict[Alternative, tuple[Candidate, ...]] = {}
        self._pruning: Pruning | None = None
        self._failed: set[_Key] = set()

    def run(self) -> bool:
        """Whether everything was found; :attr:`best` has it then.

        Raises:
            AllocationError: the attempt broke off.
        """
        for claim in {slot.claim: None for slot in self._slots}:
            for option in (option for request in claim.requests for option in request.alternatives):
                if option.count is None:
                    self._all_devices[option] = tuple(self._find_all(option))
            self._check_size(claim)
        return self._solve(0)

    def _find_all(self, option: Alternative) -> Iterator[Candidate]:
        """What "all devices" are: the matching ones whose whole capacity is enough, had by others or not."""
        for pool in self._context.pools:
            if pool.defect:
                cause = Cause.ALL_OF_INCOMPLETE if pool.incomplete else Cause.ALL_OF_INVALID
                what = f"request {option.name} asks for all devices: pool {pool} is {pool.defect}"
                raise AllocationError(what, cause, request=option.name)
        for candidate in self._context.usable:
            unwanted = self._context.find_unwanted(option, candidate)
            if unwanted is None and self._context.could_suffice(option, candidate):
                yield candidate

    def _check_size(self, claim: ClaimView) -> None:
        least = sum(min(self._size(option) for option in r.alternatives) for r in claim.requests)
        if least > MAX_RESULTS:
            what = f"claim {claim.label} asks for {least} devices, {MAX_RESULTS} are the most"
            raise AllocationError(what, Cause.TOO_MANY_DEVICES, claim=claim.label)

    def _size(self, option: Alternative) -> int:
        return len(self._all_devices[option]) if option.count is None else option.count

    def _solve(self, index: int) -> bool:
        """Satisfy the slots from ``index`` on."""
        if index > self.deepest:
            self.deepest, self.best = index, tuple(self._selection.selected)
        elif self._is_hopeless(index):
            return False
        if index == len(self._slots):
            return True
        slot = self._slots[index]
        if any(self._solve_option(slot, option) for option in slot.request.alternatives):
            return True
        self._failed.add(self._key(index))
        return False

    def _solve_option(self, slot: Slot, option: Alternative) -> bool:
        if not self._selection.has_room(slot, self._size(option)):
            return False
        if option.count is None:
            return self._take_all(slot, option)
        return self._take_some(slot, option, option.count, 0)

    def _take_some(self, slot: Slot, option: Alternative, missing: int, start: int) -> bool:
        if missing == 0:
            return self._solve(slot.index + 1)
        rest = Rest(option, missing, start)
        if start and self._is_hopeless(slot.index, rest):
            return False
        usable = self._context.usable
        for place in range(start, len(usable)):
            if self._selection.find_removal(slot, option, usable[place]):
                continue
            self._count()
            self._selection.push(slot, option, usable[place])
            if self._take_some(slot, option, missing - 1, place + 1):
                return True
            self._selection.pop()
        if start:
            self._failed.add(self._key(slot.index, rest))
        return False

    def _take_all(self, slot: Slot, option: Alternative) -> bool:
        """A constraint that forbids one of them cannot be met by looking further."""
        height = len(self._selection.selected)
        wanted = self._all_devices[option]
        for candidate in wanted:
            removal = self._selection.find_removal(slot, option, candidate, of_all=True)
            if removal is Removal.CONSTRAINT:
                broken = self._selection.find_constraint(option, candidate)
                what = f"request {option.name} asks for all devices: {candidate} breaks {broken}"
                raise AllocationError(
                    what, Cause.ALL_AGAINST_CONSTRAINT, request=option.name, device=str(candidate)
                )
            if removal:
                break
            self._selection.push(slot, option, candidate)
        if wanted and len(self._selection.selected) == height + len(wanted) and self._solve(slot.index + 1):
            return True
        while len(self._selection.selected) > height:
            self._selection.pop()
        return False

    def _count(self) -> None:
        self.choices += 1
        if self.choices > MAX_CHOICES and self._prune:
            what = f"no answer after {MAX_CHOICES} choices of a device"
            raise AllocationError(
                what, Cause.GAVE_UP, hint="ask for less in one pod, or for less various amounts"
            )

    def _is_hopeless(self, index: int, rest: Rest | None = None) -> bool:
        """Whether it has failed from here before, or must."""
        if not self._prune:
            return False
        if self._key(index, rest) in self._failed:
            return True
        if self._pruning is None:
            self._pruning = Pruning(self._context, self._slots, self._all_devices)
        return self._pruning.is_lost(self._selection, index, self.deepest, rest)

    def _key(self, index: int, rest: Rest | None = None) -> _Key:
        """All of the state that the slots from ``index`` on depend on."""
        selection = self._selection
        claims = {slot.claim: None for slot in self._slots[index:]}
        return (
            index,
            rest and (rest.alternative, rest.missing, rest.start),
            selection.taken,
            tuple(selection.taken_by[claim] for claim in claims),
            tuple(selection.results[claim] for claim in claims),
            tuple(selection.known_to(c) for claim in claims for c in claim.constraints),
            tuple(tuple(sorted(taken.items())) for taken in selection.counters.values()),
            frozenset((device, tuple(sorted(s[-1].items()))) for device, s in selection.used.items() if s),
        )
