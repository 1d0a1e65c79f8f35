"""Whether a search that has come this far can still succeed: bounds that never change its outcome.

Each bound leaves rules out, so what it calls lost is lost under all of them. Nothing is called lost where
going on could meet an error: an error ends the attempt and must not be hidden. Tests show that the outcome
stays the same by comparing it with an allocator that tries everything (``tests/desk/allocation``).

Sets of devices are bits of an integer by place (:class:`dranet.desk.allocation.selection.NodeContext`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from dranet.desk.allocation.capacity import consume
from dranet.desk.allocation.devices import Candidate, Element
from dranet.desk.allocation.failures import AllocationError
from dranet.desk.allocation.requests import Alternative, Constraint
from dranet.desk.allocation.selection import NodeContext, Removal, Selection, Slot

Resource = tuple[str, ...]
"""A capacity by name, or a counter by pool and name, whatever its set."""
Volumes = dict[Resource, int]


class Supply:
    """What devices share out over all of a node: capacity of shared devices, counters of pools. One for each
    search."""

    def __init__(self, context: NodeContext) -> None:
        self._whole: Counter[Resource] = Counter()
        for device in context.usable:
            used = context.in_use.shares.get(device.id, {})
            for name, capacity in device.capacity.items() if device.shared else ():
                self._whole[(name,)] += max(capacity.value - used.get(name, 0), 0)
        for pool, counters in context.available.items():
            for (_, name), amount in counters.items():
                self._whole[*pool, name] += max(amount, 0)

    def left(self, selection: Selection) -> Volumes:
        """What the devices chosen so far leave."""
        left = Counter(self._whole)
        for stack in selection.used.values():
            for name, amount in stack[-1].items() if stack else ():
                left[(name,)] -= amount
        for pool, counters in selection.counters.items():
            for (_, name), amount in counters.items():
                left[*pool, name] -= amount
        return dict(left)


def find_least(alternative: Alternative, devices: Iterable[Candidate]) -> Volumes:
    """What each of these devices takes at the least; resources that only some of them take are left out."""
    least: Volumes | None = None
    for device in devices:
        taken = _taken(alternative, device)
        if least is None:
            least = taken
        else:
            least = {
                resource: min(amount, taken[resource])
                for resource, amount in least.items()
                if resource in taken
            }
        if not least:
            return {}
    return least or {}


def _taken(alternative: Alternative, device: Candidate) -> Volumes:
    """A shared device may have taken its counters already."""
    if device.shared:
        return {(name,): amount for name, amount in consume(device.capacity, alternative.asked)}
    taken: Counter[Resource] = Counter()
    for (_, name), amount in device.counters:
        taken[*device.pool, name] += amount
    return dict(taken)


AllDevices = Mapping[Alternative, tuple[Candidate, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class _Option:
    """One alternative of a slot, judged by itself."""

    slot: Slot
    alternative: Alternative
    mask: int
    """The devices that it could have if it were alone."""
    need: int
    """How many of them."""
    every: bool
    """All of them, and no other will do."""
    covering: frozenset[Constraint]
    risky: bool
    """Going through its devices may meet an error."""
    least: Volumes
    """What each device takes at the least of what is given in parts."""

    def fits(self, mask: int) -> bool:
        """Whether these are enough for it."""
        return mask == self.mask if self.every else mask.bit_count() >= self.need


@dataclass(frozen=True, slots=True)
class Rest:
    """What is still to be found of the slot that the search is in."""

    alternative: Alternative
    missing: int
    start: int
    """The first place that may be taken."""


@dataclass(slots=True, eq=False)
class _Left:
    """An option and the devices that are left for it."""

    option: _Option
    mask: int
    need: int

    def fits(self, mask: int) -> bool:
        return self.option.fits(mask) if self.option.every else mask.bit_count() >= self.need


class Pruning:
    """One for each search."""

    def __init__(self, context: NodeContext, slots: Sequence[Slot], all_devices: AllDevices) -> None:
        self._context = context
        self._all_devices = all_devices
        self._slots = slots
        self._options: dict[int, list[_Option]] = {}
        self._judged: dict[tuple[object, ...], tuple[int, bool, Volumes]] = {}
        self._supply = Supply(context)
        self._by_element = {
            constraint: self._group(constraint)
            for constraint in {c for slot in slots for c in slot.claim.constraints}
        }
        self._everything = (1 << len(context.usable)) - 1
        self._shared = self._mask(device for device in context.usable if device.shared)

    def is_lost(self, selection: Selection, first: int, last: int, rest: Rest | None = None) -> bool:
        """Whether the slots from ``first`` to ``last`` cannot all be satisfied next to what is selected;
        ``rest`` if the first of them has some of its devices already."""
        slots = range(first, min(last + 1, len(self._slots)))
        if any(option.risky for index in slots for option in self._options_of(index)):
            return False
        left = [self._look(selection, index, rest if index == first else None) for index in slots]
        if not all(left):
            return True
        if not all(self._meet(selection, constraint, left) for constraint in self._by_element):
            return True
        return not (self._suffices(left, self._everything) and self._is_supplied(selection, left))

    def _look(self, selection: Selection, index: int, rest: Rest | None) -> list[_Left]:
        """The options of a slot that can still be met, each by itself."""
        left = []
        for option in self._options_of(index):
            if rest is not None and option.alternative is not rest.alternative:
                continue
            mask = self._filter(selection, option)
            need = option.need
            if rest is not None:
                mask, need = mask >> rest.start << rest.start, rest.missing
            entry = _Left(option, mask, need)
            if entry.fits(mask) and selection.has_room(option.slot, need):
                left.append(entry)
        return left

    def _filter(self, selection: Selection, option: _Option) -> int:
        """The devices that it could have now."""
        claim = option.slot.claim
        mask = option.mask & ~(
            selection.taken_by[claim] if option.alternative.admin_access else selection.taken
        )
        for constraint in option.covering:
            known = selection.known_to(constraint)
            if known:
                allowed = self._union(constraint, known)
                mask &= ~allowed if constraint.distinct else allowed
        for device in (*selection.used, *self._of_touched_pools(selection)):
            place = self._context.places[device]
            if mask >> place & 1 and (
                selection.find_shortage(option.alternative, device) or selection.find_counter_shortage(device)
            ):
                mask &= ~(1 << place)
        return mask

    def _of_touched_pools(self, selection: Selection) -> list[Candidate]:
        """The devices that compete for counters of which this run has taken some."""
        if not selection.counters:
            return []
        return [
            device for device in self._context.usable if device.counters and device.pool in selection.counters
        ]

    def _meet(self, selection: Selection, constraint: Constraint, left: list[list[_Left]]) -> bool:
        """Whether some value lets all covered slots have their devices; the others are struck out."""
        bound = [options for options in left if all(constraint in o.option.covering for o in options)]
        if not any(constraint in o.option.covering for options in left for o in options):
            return True
        known = selection.known_to(constraint)
        if constraint.distinct:
            union = reduce(or_, (o.mask for options in bound for o in options), 0)
            elements = self._by_element[constraint].items()
            fresh = sum(1 for e, mask in elements if mask & union and e not in (known or ()))
            return sum(min(o.need for o in options) for options in bound) <= fresh
        masks = [mask for e, mask in self._by_element[constraint].items() if known is None or e in known]
        alive = [mask for mask in masks if self._suffices(bound, mask)]
        allowed = reduce(or_, alive, 0)
        for options in left:
            for entry in options:
                if constraint in entry.option.covering:
                    entry.mask &= allowed
            options[:] = [entry for entry in options if entry.fits(entry.mask)]
        return all(left)

    def _suffices(self, left: list[list[_Left]], mask: int) -> bool:
        """Whether the devices of the mask can be enough for these slots; a shared one is enough for many."""
        if not all(any(o.fits(o.mask & mask) for o in options) for options in left):
            return False
        alone = [options for options in left if not any(o.option.alternative.admin_access for o in options)]
        return _have_enough(
            (
                reduce(or_, (o.mask for o in options)) & mask & ~self._shared,
                min(o.need - (o.mask & mask & self._shared).bit_count() for o in options),
            )
            for options in alone
        )

    def _is_supplied(self, selection: Selection, left: list[list[_Left]]) -> bool:
        """Whether there is enough altogether of what is given in parts."""
        if not any(entry.option.least for options in left for entry in options):
            return True
        supply = self._supply.left(selection)
        for resource in {r for options in left for entry in options for r in entry.option.least}:
            wanted = (min(o.option.least.get(resource, 0) * o.need for o in options) for options in left)
            if sum(wanted) > supply.get(resource, 0):
                return False
        return True

    def _options_of(self, index: int) -> list[_Option]:
        if index not in self._options:
            slot = self._slots[index]
            self._options[index] = [
                self._judge_all(slot, option) if option.count is None else self._judge(slot, option)
                for option in slot.request.alternatives
            ]
        return self._options[index]

    def _judge(self, slot: Slot, alternative: Alternative) -> _Option:
        """Judge an alternative; requests of one pod are often alike except for their constraints, so those
        come last."""
        asked = repr((alternative.tolerations, alternative.asked))
        key = alternative.expressions, alternative.admin_access, asked
        if key not in self._judged:
            removals = self._removals(slot, alternative, self._context.usable)
            free = [device for device, removal in removals if removal in (None, Removal.CONSTRAINT)]
            failing = any(removal is Removal.FAILED for _, removal in removals)
            self._judged[key] = self._mask(free), failing, find_least(alternative, free)
        mask, risky, least = self._judged[key]
        for constraint in alternative.constraints:
            mask &= self._union(constraint, self._by_element[constraint])
        covering = frozenset(alternative.constraints)
        return _Option(slot, alternative, mask, alternative.count or 0, False, covering, risky, least)

    def _judge_all(self, slot: Slot, alternative: Alternative) -> _Option:
        """A constraint against one of "all devices" is an error, unless the first is not to be had anyway."""
        devices = self._all_devices[alternative]
        removals = self._removals(slot, alternative, devices)
        covering = frozenset(alternative.constraints)
        risky = bool(covering and removals) and removals[0][1] in (None, Removal.CONSTRAINT)
        complete = bool(devices) and all(removal is None for _, removal in removals)
        need = len(devices) if complete else len(self._context.usable) + 1
        return _Option(slot, alternative, self._mask(devices), need, complete, covering, risky, {})

    def _removals(
        self, slot: Slot, alternative: Alternative, devices: Sequence[Candidate]
    ) -> list[tuple[Candidate, Removal | None]]:
        """The first reason against each device if there were no other request."""
        fresh, of_all = Selection(self._context), alternative.count is None
        return [(d, _find_removal(fresh, slot, alternative, d, of_all=of_all)) for d in devices]

    def _group(self, constraint: Constraint) -> dict[Element, int]:
        """By element of the attribute: the devices that have it."""
        groups: dict[Element, int] = {}
        for place, device in enumerate(self._context.usable):
            for element in device.elements(constraint.attribute) or ():
                groups[element] = groups.get(element, 0) | 1 << place
        return groups

    def _union(self, constraint: Constraint, elements: Iterable[Element]) -> int:
        return reduce(or_, (self._by_element[constraint].get(element, 0) for element in elements), 0)

    def _mask(self, devices: Iterable[Candidate]) -> int:
        return reduce(or_, (1 << self._context.places[device] for device in devices), 0)


def _find_removal(
    fresh: Selection, slot: Slot, alternative: Alternative, device: Candidate, *, of_all: bool
) -> Removal | None:
    try:
        return fresh.find_removal(slot, alternative, device, of_all=of_all)
    except AllocationError:
        return Removal.FAILED


def _have_enough(demands: Iterable[tuple[int, int]]) -> bool:
    """Whether no group of slots wants more devices than there are for the group (Hall's condition, for the
    sets of devices that occur; not for all)."""
    wanted = [(mask, need) for mask, need in demands if need > 0]
    for mask in {mask for mask, _ in wanted}:
        if sum(need for other, need in wanted if not other & ~mask) > mask.bit_count():
            return False
    return True
