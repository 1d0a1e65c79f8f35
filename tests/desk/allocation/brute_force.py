"""An allocator that tries everything, written from the documented rules and from nothing of ours.

It keeps no state: each time a device is to be added it looks at the whole list of devices chosen so far and
asks of every rule whether the list still keeps it. It is hopelessly slow, and that is the point. Selectors
are Python functions here, by their expression.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

Json = dict[str, Any]
Id = tuple[str, str, str]
Predicates = Mapping[str, Callable[[str, Json], bool]]
"""By expression: (driver, device of the slice) -> bool; KeyError where the selector fails."""

MOST = 32


class Broken(Exception):
    """The attempt broke off; the text is the name of the cause."""


@dataclass(frozen=True, eq=False)
class Entry:
    """One device given to one request of one claim."""

    claim: int
    request: str
    option: Json
    device: Device


@dataclass(frozen=True, eq=False)
class Device:
    id: Id
    body: Json
    here: bool = True
    """It reaches the node, not only its slice does."""

    def attribute(self, name: str) -> set[tuple[str, Any]] | None:
        attributes = self.body.get("attributes", {})
        domain, _, short = name.partition("/")
        value = attributes.get(name, attributes.get(short) if domain == self.id[0] else None)
        if value is None:
            return None
        ((kind, content),) = value.items()
        return {(kind.removesuffix("s"), item) for item in (content if kind.endswith("s") else [content])}

    def capacities(self) -> dict[str, Json]:
        found: dict[str, Json] = self.body.get("capacity", {})
        return found

    @property
    def shared(self) -> bool:
        return bool(self.body.get("allowMultipleAllocations"))

    def counters(self) -> Iterator[tuple[tuple[str, str, str, str], int]]:
        for entry in self.body.get("consumesCounters", ()):
            for name, counter in entry["counters"].items():
                yield (*self.id[:2], entry["counterSet"], name), int(counter["value"])


@dataclass
class World:
    """All that there is."""

    slices: Sequence[Json]
    classes: Mapping[str, Json]
    allocated: Sequence[Json]
    """Claims with an allocation."""
    rules: Sequence[Json]
    """DeviceTaintRules."""
    node: str
    predicates: Predicates
    pools: list[tuple[str, list[Device]]] = field(init=False)
    """``ok``, ``incomplete`` or ``invalid``, and what is in slices that reach the node."""
    everywhere: list[Device] = field(init=False)
    totals: dict[tuple[str, str, str, str], int] = field(init=False)

    def __post_init__(self) -> None:
        self.everywhere, self.totals, found = [], {}, []
        keys = sorted({(s["spec"]["driver"], s["spec"]["pool"]["name"]) for s in self.slices})
        for key in keys:
            pool = self._pool(key)
            if pool is not None:
                found.append(pool)
        self.pools = [(state, here) for last in (False, True) for state, here, late in found if late is last]

    def _pool(self, key: tuple[str, str]) -> tuple[str, list[Device], bool] | None:
        of_pool = [s for s in self.slices if (s["spec"]["driver"], s["spec"]["pool"]["name"]) == key]
        reaching = [s for s in of_pool if self._reaches(s)]
        if not reaching:
            return None
        used = max(s["spec"]["pool"]["generation"] for s in reaching)
        current = [s for s in of_pool if s["spec"]["pool"]["generation"] == used]
        current.sort(key=lambda s: s["metadata"]["name"])
        every = [Device((*key, d["name"]), d) for s in current for d in s["spec"].get("devices", ())]
        near = [s for s in current if self._reaches(s)]
        expected = near[0]["spec"]["pool"]["resourceSliceCount"]
        newest = max(s["spec"]["pool"]["generation"] for s in of_pool)
        if newest > used and len(near) != expected:
            return None
        sets = [c for s in current for c in s["spec"].get("sharedCounters", ())]
        totals = {
            (*key, c["name"], n): int(v["value"]) for c in sets for n, v in c.get("counters", {}).items()
        }
        here = [d["name"] for s in near for d in s["spec"].get("devices", ())]
        invalid = len(set(here)) != len(here) or len({c["name"] for c in sets}) != len(sets)
        invalid = invalid or any(counter not in totals for d in every for counter, _ in d.counters())
        incomplete = expected not in (len(near), len(current))
        state = "incomplete" if incomplete else "invalid" if invalid else "ok"
        usable = [
            Device((*key, d["name"]), d, not s["spec"].get("perDeviceNodeSelection") or self._selects(d))
            for s in near
            for d in s["spec"].get("devices", ())
        ]
        late = state == "ok" and any(
            d.get("bindingConditions") for s in near for d in s["spec"].get("devices", ())
        )
        self.everywhere += every
        self.totals |= totals
        return state, usable, late

    def _reaches(self, entry: Json) -> bool:
        spec = entry["spec"]
        if spec.get("perDeviceNodeSelection"):
            return any(self._selects(device) for device in spec.get("devices", ()))
        return self._selects(spec)

    def _selects(self, spec: Json) -> bool:
        return bool(spec.get("allNodes")) or spec.get("nodeName") == self.node

    def results(self) -> Iterator[Json]:
        for claim in self.allocated:
            yield from (
                r for r in claim["status"]["allocation"]["devices"]["results"] if not r.get("adminAccess")
            )

    @cached_property
    def had(self) -> set[Id]:
        return {(r["driver"], r["pool"], r["device"]) for r in self.results() if "shareID" not in r}

    @cached_property
    def _shares(self) -> list[tuple[Id, dict[str, int]]]:
        return [
            (
                (r["driver"], r["pool"], r["device"]),
                {n: int(v) for n, v in r.get("consumedCapacity", {}).items()},
            )
            for r in self.results()
            if "shareID" in r
        ]

    def shares(self, device: Device) -> list[dict[str, int]]:
        return [share for holder, share in self._shares if holder == device.id]

    def taints(self, device: Device) -> list[Json]:
        added = []
        for rule in self.rules:
            selector = rule["spec"].get("deviceSelector")
            wanted = None if selector is None else [selector.get(k) for k in ("driver", "pool", "device")]
            if wanted is not None and all(w in (None, h) for w, h in zip(wanted, device.id, strict=True)):
                added.append(rule["spec"]["taint"])
        return [*device.body.get("taints", ()), *added]


# --- every rule, of a whole list -----------------------------------------------------------------------


def nobody_else_has_it(world: World, entries: Sequence[Entry]) -> bool:
    for position, entry in enumerate(entries):
        before = [e for e in entries[:position] if e.device.id == entry.device.id]
        if entry.option.get("adminAccess"):
            if not entry.device.shared and any(e.claim == entry.claim for e in before):
                return False
        elif entry.device.id in world.had or (before and not entry.device.shared):
            return False
    return True


def counters_suffice(world: World, entries: Sequence[Entry]) -> bool:
    left = Counter(world.totals)
    for device in world.everywhere:
        if device.id in world.had or world.shares(device):
            for counter, amount in device.counters():
                left[counter] -= amount
    wanted: set[tuple[str, str, str, str]] = set()
    shared: set[Id] = set()
    for entry in entries:
        device = entry.device
        has_share = bool(world.shares(device)) or device.id in world.had or device.id in shared
        if device.shared and has_share:
            continue
        shared |= {device.id} if device.shared else set()
        for counter, amount in device.counters():
            left[counter] -= amount
            wanted.add(counter)
    return all(left[counter] >= 0 for counter in wanted)


def taints_are_tolerated(world: World, entries: Sequence[Entry]) -> bool:
    for entry in entries:
        for taint in world.taints(entry.device):
            tolerated = any(tolerates(t, taint) for t in entry.option.get("tolerations", ()))
            if taint["effect"] in ("NoSchedule", "NoExecute") and not tolerated:
                return False
    return True


def tolerates(toleration: Json, taint: Json) -> bool:
    same_effect = toleration.get("effect", "") in ("", taint["effect"])
    same_key = toleration.get("key", "") in ("", taint["key"])
    exists = toleration.get("operator") == "Exists"
    same_value = bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")
    return same_effect and same_key and (exists or same_value)


def constraints_hold(claims: Sequence[Json], entries: Sequence[Entry]) -> bool:
    for number, claim in enumerate(claims):
        for constraint in claim["spec"]["devices"].get("constraints", ()):
            covered = [
                entry.device.attribute(constraint.get("matchAttribute") or constraint["distinctAttribute"])
                for entry in entries
                if entry.claim == number and _covers(constraint, entry.request)
            ]
            values = [value for value in covered if value is not None]
            if len(values) != len(covered):
                return False
            if "matchAttribute" in constraint and values and not set.intersection(*values):
                return False
            pairs = itertools.combinations(values, 2)
            if "distinctAttribute" in constraint and any(one & other for one, other in pairs):
                return False
    return True


def _covers(constraint: Json, request: str) -> bool:
    names = constraint.get("requests", ())
    return not names or request in names or request.partition("/")[0] in names


def capacity_suffices(world: World, entries: Sequence[Entry]) -> bool:
    for entry in entries:
        device, asked = entry.device, _asked(entry)
        if not set(asked) <= set(device.capacities()):
            return False
        for name, capacity in device.capacities().items():
            amount = take(capacity, asked.get(name))
            gone = sum(share.get(name, 0) for share in world.shares(device))
            if amount is None or gone + amount > int(capacity["value"]):
                return False
    for device in {entry.device.id: entry.device for entry in entries if entry.device.shared}.values():
        for name, capacity in device.capacities().items():
            gone = sum(share.get(name, 0) for share in world.shares(device))
            takers = [e for e in entries if e.device.id == device.id]
            if gone + sum(take(capacity, _asked(e).get(name)) or 0 for e in takers) > int(capacity["value"]):
                return False
    return True


def _asked(entry: Entry) -> dict[str, int]:
    requests = entry.option.get("capacity", {}).get("requests", {})
    return {name: int(amount) for name, amount in requests.items()}


def take(capacity: Json, asked: int | None) -> int | None:
    """How much of a capacity one allocation gets; ``None`` if it may not ask for so much."""
    policy = capacity.get("requestPolicy")
    if policy is None:
        return int(capacity["value"]) if asked is None else asked
    if asked is None:
        return int(policy["default"])
    if "validValues" in policy:
        return next((v for v in sorted(map(int, policy["validValues"])) if v >= asked), None)
    limits = policy.get("validRange", {"min": str(asked)})
    amount = int(limits["min"])
    if "step" in limits:
        while amount < asked:
            amount += int(limits["step"])
    amount = max(amount, asked)
    return amount if amount <= int(limits.get("max", amount)) else None


# --- the search ----------------------------------------------------------------------------------------


@dataclass
class BruteForce:
    world: World
    claims: Sequence[Json]
    all_of: dict[int, list[Device]] = field(default_factory=dict)
    """By ``id`` of the option."""

    def run(self) -> tuple[Any, ...]:
        """``("allocated", entries)``, ``("broke off", cause)``, or the word of a failure alone."""
        try:
            self._check()
            found = self._go([], 0, None, 0, 0)
        except Broken as broken:
            return "broke off", str(broken)
        if found is not None:
            return "allocated", found
        invalid = any(state == "invalid" for state, _ in self.world.pools)
        return ("pool invalid",) if invalid else ("unsatisfied",)

    def first_of_all(self) -> list[Entry] | None:
        """The first of all whole assignments that keeps every rule; for where nothing can break off."""
        choices = [
            [
                [Entry(claim, name, option, device) for device in devices]
                for name, option in options
                for devices in self._combinations(option)
            ]
            for claim, options in self._slots
        ]
        for assignment in itertools.product(*choices):
            entries = list(itertools.chain.from_iterable(assignment))
            if self._keeps_every_rule(entries):
                return entries
        return None

    def _combinations(self, option: Json) -> Iterator[Sequence[Device]]:
        if option.get("allocationMode") == "All":
            yield from [self.all_of[id(option)]] if self.all_of[id(option)] else []
            return
        fitting = [d for d in self._usable if self._matches(option, d)]
        yield from itertools.combinations(fitting, option.get("count", 1))

    def _check(self) -> None:
        """What is looked at before the search."""
        for _, options in self._slots:
            if any(option["deviceClassName"] not in self.world.classes for _, option in options):
                raise Broken("CLASS_MISSING")
        for number, claim in enumerate(self.claims):
            least = 0
            for _, options in [slot for slot in self._slots if slot[0] == number]:
                least += min(self._size(option) for _, option in options)
            if least > MOST:
                raise Broken("TOO_MANY_DEVICES")
            assert claim

    def _size(self, option: Json) -> int:
        if option.get("allocationMode") != "All":
            return int(option.get("count", 1))
        for state, _ in self.world.pools:
            if state != "ok":
                raise Broken(f"ALL_OF_{state.upper()}")
        matching = [d for d in self._usable if self._matches(option, d)]
        self.all_of[id(option)] = [
            d for d in matching if capacity_suffices(self._untouched, [Entry(-1, "", option, d)])
        ]
        return len(self.all_of[id(option)])

    @cached_property
    def _untouched(self) -> World:
        """Where nobody has anything."""
        return replace(self.world, allocated=[])

    @cached_property
    def _slots(self) -> list[tuple[int, list[tuple[str, Json]]]]:
        slots = []
        for number, claim in enumerate(self.claims):
            for request in claim["spec"]["devices"]["requests"]:
                name = request["name"]
                subs = [(f"{name}/{s['name']}", s) for s in request.get("firstAvailable", ())]
                slots.append((number, subs or [(name, request["exactly"])]))
        return slots

    @cached_property
    def _usable(self) -> list[Device]:
        return [device for state, devices in self.world.pools if state == "ok" for device in devices]

    def _matches(self, option: Json, device: Device) -> bool:
        """The node is looked at after all selectors."""
        of_class = self.world.classes[option["deviceClassName"]].get("spec", {}).get("selectors", ())
        for selector in (*of_class, *option.get("selectors", ())):
            try:
                if not self.world.predicates[selector["cel"]["expression"]](device.id[0], device.body):
                    return False
            except KeyError as error:
                raise Broken("SELECTOR_FAILED") from error
        return device.here

    def _keeps_every_rule(self, entries: Sequence[Entry]) -> bool:
        return (
            nobody_else_has_it(self.world, entries)
            and counters_suffice(self.world, entries)
            and taints_are_tolerated(self.world, entries)
            and constraints_hold(self.claims, entries)
            and capacity_suffices(self.world, entries)
            and all(sum(e.claim == n for e in entries) <= MOST for n in range(len(self.claims)))
        )

    def _go(
        self, entries: list[Entry], slot: int, option: tuple[str, Json] | None, missing: int, start: int
    ) -> list[Entry] | None:
        """What follows the entries: the rest of a slot's option, or the next slot."""
        slots = self._slots
        if option is None:
            if slot == len(slots):
                return entries
            return next(
                (found for o in slots[slot][1] if (found := self._begin(entries, slot, o)) is not None), None
            )
        if missing == 0:
            return self._go(entries, slot + 1, None, 0, 0)
        usable = self._usable
        for position in range(start, len(usable)):
            more = [*entries, Entry(slots[slot][0], option[0], option[1], usable[position])]
            if not nobody_else_has_it(self.world, more) or not self._matches(option[1], usable[position]):
                continue
            if self._keeps_every_rule(more):
                found = self._go(more, slot, option, missing - 1, position + 1)
                if found is not None:
                    return found
        return None

    def _begin(self, entries: list[Entry], slot: int, option: tuple[str, Json]) -> list[Entry] | None:
        claim = self._slots[slot][0]
        size = self._size(option[1])
        if sum(entry.claim == claim for entry in entries) + size > MOST:
            return None
        if option[1].get("allocationMode") != "All":
            return self._go(entries, slot, option, size, 0)
        wanted = self.all_of[id(option[1])]
        more = entries
        for device in wanted:
            more = [*more, Entry(claim, option[0], option[1], device)]
            if not (
                nobody_else_has_it(self.world, more)
                and counters_suffice(self.world, more)
                and taints_are_tolerated(self.world, more)
            ):
                return None
            if not constraints_hold(self.claims, more):
                raise Broken("ALL_AGAINST_CONSTRAINT")
            if not capacity_suffices(self.world, more):
                return None
        return self._go(more, slot + 1, None, 0, 0) if wanted else None
