"""The nearest misses on a node: which single thing, had it not been in the way, would have been enough.

Each obstacle of the story is taken away by itself and the whole attempt is made again: only what succeeds
then is told, with the devices that it would have given.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dranet.desk.allocation.allocator import Attempt
from dranet.desk.allocation.capacity import qualify
from dranet.desk.allocation.devices import Candidate, JsonObject
from dranet.desk.allocation.explain.explanation import (
    ConstraintStory,
    NodeStory,
    RequestStory,
    Step,
)
from dranet.desk.allocation.explain.obstacles import (
    AllConstraints,
    AskedCapacity,
    Case,
    ClaimConstraint,
    HeldBack,
    InUseBy,
    Miss,
    Obstacle,
    PoolIncomplete,
    SelectorOfClass,
    SelectorOfRequest,
    Tainted,
    Together,
)
from dranet.desk.allocation.explain.tell import values_of
from dranet.desk.allocation.failures import AllocationError
from dranet.desk.allocation.outcome import Ending, Outcome
from dranet.desk.allocation.state import Removal
from dranet.desk.allocation.taints import DeviceId

MOST_ATTEMPTS = 48
"""For one node: each obstacle costs an attempt."""

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
class Scene:
    """A node where an attempt did not succeed."""

    case: Case
    story: NodeStory
    held_back: tuple[tuple[JsonObject, str], ...] = ()
    """Slices of devices that the driver keeps to itself, each with the reason."""


def find_misses(scene: Scene) -> tuple[Miss, ...]:
    """What can change without the claim, then the claim; what the classes say only if nothing else helps."""
    for tier in (_around, _together, _of_classes):
        found = tuple(_unique(tier(scene)))
        if found:
            return found
    return ()


def _unique(misses: Iterator[Miss]) -> Iterator[Miss]:
    seen: set[str] = set()
    for miss in misses:
        if miss.text not in seen:
            seen.add(miss.text)
            yield miss


def _around(scene: Scene) -> Iterator[Miss]:
    """Other claims, taints, pools, held-back devices; then constraints and the requests' own selectors."""
    requests = sorted(scene.story.requests, key=lambda request: not request.blocked)
    steps = [(request, step) for request in requests for step in request.steps]
    for request, step in steps[:MOST_ATTEMPTS]:
        if step.removal in _MENDABLE:
            yield from _try_step(scene, request, step)
    for body, reason in scene.held_back:
        yield from _try_held_back(scene, body, reason)
    for constraint in scene.story.constraints:
        yield from _try_constraint(scene, constraint)
    for request, step in steps[:MOST_ATTEMPTS]:
        if step.removal is Removal.REQUEST_SELECTOR:
            obstacle = SelectorOfRequest(request.claim, request.name, step.index)
            yield from _try_selector(scene, request, step, obstacle)


def _of_classes(scene: Scene) -> Iterator[Miss]:
    for request in scene.story.blocked:
        for step in request.steps:
            if step.removal is Removal.CLASS_SELECTOR:
                obstacle = SelectorOfClass(request.class_name, step.index)
                yield from _try_selector(scene, request, step, obstacle)


def _together(scene: Scene) -> Iterator[Miss]:
    """More than one thing is in the way."""
    yield from itertools.islice(_of_claims(scene), NAMES_SHOWN)
    everything = InUseBy(_in_use_here(scene))
    if everything.devices and _succeeds(scene.case, everything):
        yield Miss(everything, (), "it would fit if no other claim had devices", "wait, or end other pods")
    elif everything.devices:
        yield from _try_in_use_and_tainted(scene, everything)
    if any(claim["spec"].get("devices", {}).get("constraints") for claim in scene.case.claims):
        outcome = _succeeds(scene.case, AllConstraints())
        if outcome:
            yield Miss(AllConstraints(), (), "it would fit if none of the constraints were there")


def _try_in_use_and_tainted(scene: Scene, everything: InUseBy) -> Iterator[Miss]:
    """A node that is drained while others run on it."""
    steps = (step for request in scene.story.requests for step in request.steps)
    taints = tuple(dict.fromkeys(step.taint for step in steps if step.taint))
    both = Together((everything, *(Tainted("", "", taint.key, taint.effect) for taint in taints)))
    if taints and _succeeds(scene.case, both):
        those = f"the taint{'s' if len(taints) > 1 else ''} {', '.join(map(str, taints))}"
        text = f"it would fit if no other claim had devices and {those} were not there"
        yield Miss(both, (), text, "wait until the taint is cleared, then until other pods end")


def _of_claims(scene: Scene) -> Iterator[Miss]:
    """Everything that one other claim has here."""
    devices: dict[str, list[DeviceId]] = {}
    for device in _in_use_here(scene):
        for name in scene.case.cluster.in_use.holders[device]:
            devices.setdefault(name, []).append(device)
    for held in itertools.islice(devices.values(), _CLAIMS_TRIED):
        yield from _try_in_use(scene, tuple(held))


def _in_use_here(scene: Scene) -> tuple[DeviceId, ...]:
    pools = {pool for pool, _, _ in scene.story.pools}
    held = scene.case.cluster.in_use.holders
    return tuple(device for device in held if f"{device[0]}/{device[1]}" in pools)


def _succeeds(case: Case, obstacle: Obstacle) -> Outcome | None:
    """The attempt without the obstacle, if it ends well."""
    changed = obstacle.without(case)
    try:
        outcome = Attempt(changed.claims, changed.cluster).on(case.node)
    except AllocationError:
        return None
    return outcome if outcome.ending is Ending.ALLOCATED else None


# --- one obstacle ---------------------------------------------------------------------------------------


def _try_step(scene: Scene, request: RequestStory, step: Step) -> Iterator[Miss]:
    ids = tuple(note.id for note in step.devices)
    match step.removal:
        case Removal.IN_USE:
            yield from _try_in_use(scene, ids)
        case Removal.TAINT:
            yield from _try_taint(scene, request, step, ids)
        case Removal.COUNTERS:
            yield from _try_in_use(scene, _in_use_here(scene))
        case Removal.CAPACITY:
            yield from _try_capacity(scene, request, step, ids)
        case Removal.POOL_INCOMPLETE:
            for driver, pool in dict.fromkeys(device[:2] for device in ids):
                incomplete = PoolIncomplete(driver, pool)
                if _succeeds(scene.case, incomplete):
                    text = f"pool {driver}/{pool} would be enough, once all of its slices are published"
                    yield Miss(incomplete, ids, text, "wait for its driver, or look at its log")


def _try_in_use(scene: Scene, ids: tuple[DeviceId, ...]) -> Iterator[Miss]:
    """Freed together first; then only those that were needed."""
    outcome = _succeeds(scene.case, InUseBy(ids)) if ids else None
    if outcome is None:
        return
    needed = tuple(pick.candidate.id for pick in outcome.picks if pick.candidate.id in ids)
    if not needed or not _succeeds(scene.case, InUseBy(needed)):
        needed = ids
    holders = scene.case.cluster.in_use.holders
    who = ", ".join(dict.fromkeys(name for device in needed for name in holders.get(device, ())))
    text = f"{say_names(needed)} would fit, but {are(needed)} in use by {who or 'another claim'}"
    verb = "are" if ", " in who else "is"
    yield Miss(InUseBy(needed), needed, text, f"wait until {who} {verb} given back" if who else "")


def _try_taint(scene: Scene, request: RequestStory, step: Step, ids: tuple[DeviceId, ...]) -> Iterator[Miss]:
    if step.taint is None:
        return
    obstacle = Tainted(request.claim, request.name, step.taint.key, step.taint.effect)
    outcome = _succeeds(scene.case, obstacle)
    if outcome is None:
        obstacle = Tainted("", "", step.taint.key, step.taint.effect)
        outcome = _succeeds(scene.case, obstacle)
        tainted = (note for r in scene.story.requests for note in r.removed_by(Removal.TAINT))
        ids = tuple(note.id for note in tainted)
    if outcome:
        needed = _picked(outcome, ids)
        text = f"{say_names(needed)} would fit, but {are(needed)} tainted: {step.what}"
        where = f"request {request.name}" if obstacle.request else "all requests"
        yield Miss(obstacle, needed, text, f"clear the taint, or tolerate it in {where}")


def _try_capacity(
    scene: Scene, request: RequestStory, step: Step, ids: tuple[DeviceId, ...]
) -> Iterator[Miss]:
    obstacle = AskedCapacity(request.claim, request.name)
    outcome = _succeeds(scene.case, obstacle)
    if outcome:
        needed = _picked(outcome, ids)
        told = next((note.text for note in step.devices if note.id in needed and note.text), "")
        why = f" ({told})" if told else ""
        have = "have" if len(needed) > 1 else "has"
        text = f"{say_names(needed)} would fit, but {have} too little capacity{why}"
        yield Miss(obstacle, needed, text, f"ask for less, or for what it has, in request {request.name}")


def _try_held_back(scene: Scene, body: JsonObject, reason: str) -> Iterator[Miss]:
    obstacle = HeldBack(body)
    outcome = _succeeds(scene.case, obstacle)
    if outcome:
        names = {device["name"] for device in body["spec"]["devices"]}
        needed = tuple(pick.candidate.id for pick in outcome.picks if pick.candidate.id[2] in names)
        them = "them" if len(needed) > 1 else "it"
        text = f"{say_names(needed)} would fit, but the driver holds {them} back: {reason}"
        yield Miss(obstacle, needed, text)


def _try_constraint(scene: Scene, story: ConstraintStory) -> Iterator[Miss]:
    obstacle = ClaimConstraint(story.claim, story.index)
    outcome = _succeeds(scene.case, obstacle)
    if outcome is None:
        return
    kind = "distinctAttribute" if story.distinct else "matchAttribute"
    picked = [pick for pick in outcome.picks if pick.slot.claim.label == story.claim]
    covered = [pick.candidate for pick in picked if pick.alternative.name in story.requests]
    told = ", ".join(f"{c.id[2]} ({say_value(c, story.attribute)})" for c in covered[:NAMES_SHOWN])
    text = f"without constraint {story.index + 1} ({kind} {story.attribute}) it would get {told}"
    instead = "" if story.distinct else _find_other_attribute(scene, story)
    mend = f"match {instead} instead: it can be met here" if instead else ""
    yield Miss(obstacle, tuple(c.id for c in covered), text, mend)


def _find_other_attribute(scene: Scene, story: ConstraintStory) -> str:
    """The nearest one that the same devices can be aligned by here."""
    others = (name for name in _ATTRIBUTES if name != story.attribute)
    return next(
        (n for n in others if _succeeds(scene.case, ClaimConstraint(story.claim, story.index, n))), ""
    )


def _try_selector(
    scene: Scene, request: RequestStory, step: Step, obstacle: SelectorOfRequest | SelectorOfClass
) -> Iterator[Miss]:
    outcome = _succeeds(scene.case, obstacle)
    if outcome is None:
        return
    ids = tuple(note.id for note in step.devices)
    picked = [
        pick.candidate
        for pick in outcome.picks
        if pick.candidate.id in ids and pick.alternative.name == request.name
    ]
    if not picked:
        return
    said = list(say_named_values(step.expression, picked[0]))
    why = f" ({', '.join(said)})" if said else ""
    needed = tuple(candidate.id for candidate in picked)
    yield Miss(obstacle, needed, f"{say_names(needed)} would fit, but for {step.what}{why}")


def _picked(outcome: Outcome, ids: Sequence[DeviceId]) -> tuple[DeviceId, ...]:
    picked = tuple(pick.candidate.id for pick in outcome.picks if pick.candidate.id in ids)
    return picked or tuple(ids)


NAMES_SHOWN = 3

_NAMED = re.compile(
    r"""(?<=\])\s*\.\s*\??\s*([A-Za-z_]\w*)|\[\s*\??["']([^"']+)["']\s*\]|["']([^"']+)["']\s+in\b"""
)
"""How an expression names attributes."""


def say_value(candidate: Candidate, attribute: str) -> str:
    values = ", ".join(values_of(candidate, attribute))
    return f"{attribute.rpartition('/')[2]} {values}" if values else f"no {attribute.rpartition('/')[2]}"


def say_named_values(expression: str, candidate: Candidate) -> Iterator[str]:
    """What the device says of the attributes that the expression names."""
    words = {name for found in _NAMED.findall(expression) for name in found}
    for name in candidate.attributes:
        short = name.rpartition("/")[2]
        if short in words:
            yield f"{short} is {', '.join(values_of(candidate, qualify(name, candidate.driver)))}"


def say_names(ids: Sequence[DeviceId]) -> str:
    names = [device[2] for device in ids]
    if len(names) > NAMES_SHOWN:
        return f"{', '.join(names[:NAMES_SHOWN])} and {len(names) - NAMES_SHOWN} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def are(ids: Sequence[DeviceId]) -> str:
    return "are" if len(ids) > 1 else "is"
