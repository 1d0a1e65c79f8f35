"""What explain says is true: its verdict, each reason for which a device was removed, and each near miss."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest
from hypothesis import given, settings

from dranet.desk.allocation.allocator import ClusterDevices
from dranet.desk.allocation.devices import Node
from dranet.desk.allocation.selection import Removal
from dranet.desk.explain.blockers import AttemptInputs, InUseBy, Miss, Together
from dranet.desk.explain.explain import ClusterView, explain
from dranet.desk.explain.explanation import (
    Conclusion,
    Explanation,
    NodeReport,
    Note,
    RequestReport,
    Step,
)
from dranet.desk.explain.subject import Subject, WantedClaim, with_label
from tests.desk.allocation import random_clusters
from tests.desk.allocation.brute_force import (
    BruteForce,
    Entry,
    capacity_suffices,
    counters_suffice,
    tolerates,
)
from tests.desk.allocation.brute_force import World as BruteWorld
from tests.desk.allocation.test_against_brute_force import THOROUGH, by_brute_force, situations

pytestmark = pytest.mark.timeout(900)
"""Thousands of searches in three tests, on a machine that may be busy."""

Json = dict[str, Any]
NODE_BODY = {"metadata": {"name": random_clusters.NODE}}
VERDICTS = {
    "allocated": Conclusion.POSSIBLE,
    "unsatisfied": Conclusion.IMPOSSIBLE,
    "pool invalid": Conclusion.IMPOSSIBLE,
    "broke off": Conclusion.BROKEN,
}


def explain_situation(situation: Json) -> Explanation:
    classes = [{"metadata": {"name": name}, **body} for name, body in random_clusters.CLASSES.items()]
    claims = tuple(WantedClaim(claim) for claim in situation["claims"])
    world = ClusterView(
        situation["slices"],
        classes,
        situation["allocated"],
        [NODE_BODY],
        situation["rules"],
        only_node=random_clusters.NODE,
    )
    return explain(Subject("pod", "n/p", claims), world)


@pytest.mark.slow
@settings(THOROUGH, max_examples=1000)
@given(situations(failing=True))
def test_the_verdict_is_that_of_an_allocator_that_tries_everything(situation: Json) -> None:
    explanation = explain_situation(situation)
    ending = by_brute_force(situation).run()[0]

    assert explanation.conclusion is VERDICTS[ending]
    assert explanation.headline


@pytest.mark.slow
@settings(THOROUGH, max_examples=1000)
@given(situations(failing=True))
def test_every_removal_is_true_by_itself(situation: Json) -> None:
    (group,) = explain_situation(situation).groups
    facts = Facts(situation, group.report)
    for request in group.report.requests:
        every = [*request.left, *(note.id for step in request.steps for note in step.devices)]
        assert len(every) == request.seen
        for step in request.steps:
            for note in step.devices:
                assert facts.holds(request, step, note), (request.name, step, note)


@pytest.mark.slow
@settings(THOROUGH, max_examples=500)
@given(situations(failing=False))
def test_a_near_miss_can_really_be_had_without_its_obstacle(situation: Json) -> None:
    (group,) = explain_situation(situation).groups
    for miss in group.misses:
        assert play_without(miss, situation)[0] == "allocated", miss.text


def play_without(miss: Miss, situation: Json) -> tuple[Any, ...]:
    """By brute force, from raw objects in which the obstacle is not there."""
    blockers = miss.blocker.blockers if isinstance(miss.blocker, Together) else (miss.blocker,)
    taken = {device for o in blockers if isinstance(o, InUseBy) for device in o.devices}
    allocated = [_without_results(claim, taken) for claim in situation["allocated"]]
    cluster = ClusterDevices(situation["slices"], random_clusters.CLASSES, taint_rules=situation["rules"])
    claims = tuple(with_label(claim) for claim in situation["claims"])
    case = miss.blocker.without(AttemptInputs(claims, Node(random_clusters.NODE, {}), cluster))
    world = BruteWorld(
        case.cluster.slices,
        case.cluster.classes,
        allocated,
        situation["rules"],
        random_clusters.NODE,
        random_clusters.PREDICATES,
    )
    return BruteForce(world, list(case.claims)).run()


def _without_results(claim: Json, devices: set[tuple[str, str, str]]) -> Json:
    results = claim["status"]["allocation"]["devices"]["results"]
    kept = [r for r in results if (r["driver"], r["pool"], r["device"]) not in devices]
    return {**claim, "status": {"allocation": {"devices": {"results": kept}}}}


@dataclass
class Facts:
    """Asks the raw objects whether a device is what the story says of it."""

    situation: Json
    report: NodeReport

    def holds(self, request: RequestReport, step: Step, note: Note) -> bool:
        match step.removal:
            case Removal.CLASS_SELECTOR | Removal.REQUEST_SELECTOR:
                return not random_clusters.PREDICATES[step.expression](note.id[0], self.body(note))
            case Removal.IN_USE:
                return note.id in self.had_alone() or self.is_missed_of_all(request, note)
            case Removal.TAINT:
                return self.is_tainted(request, step, note)
            case Removal.CONSTRAINT:
                return self.breaks(request, step, note)
            case Removal.POOL_INCOMPLETE | Removal.POOL_INVALID:
                return any(pool == "/".join(note.id[:2]) and defect for pool, _, defect in self.report.pools)
            case Removal.TAKEN:
                return any(given.id == note.id for given in self.report.allocated)
            case Removal.FAILED:
                return self.fails(request, note)
            case Removal.CAPACITY:
                return not capacity_suffices(self.brute.world, self.beside(request, note))
            case Removal.COUNTERS:
                return not counters_suffice(self.brute.world, self.beside(request, note))
        return step.removal is not Removal.NOT_ON_NODE

    @cached_property
    def brute(self) -> BruteForce:
        return by_brute_force(self.situation)

    def beside(self, request: RequestReport, note: Note) -> list[Entry]:
        """The device, and all that may have been chosen before it."""
        requests = {(r.claim, r.name): r for r in self.report.requests}
        devices = {d.id: d for _, found in self.brute.world.pools for d in found}
        chosen = [(requests[given.claim, given.request], given.id) for given in self.report.allocated]
        chosen += [(request, device) for device in (*request.left, note.id)]
        return [Entry(0, r.name, self.option(r), devices[device]) for r, device in chosen]

    def body(self, note: Note) -> Json:
        """Of the newest generation that has it."""
        found = [
            (entry["spec"]["pool"]["generation"], body)
            for entry in self.situation["slices"]
            if (entry["spec"]["driver"], entry["spec"]["pool"]["name"]) == note.id[:2]
            for body in entry["spec"]["devices"]
            if body["name"] == note.id[2]
        ]
        newest: Json = max(found, key=lambda pair: pair[0])[1]
        return newest

    def option(self, request: RequestReport) -> Json:
        claim = next(c for c in self.situation["claims"] if f"n/{c['metadata']['name']}" == request.claim)
        base, _, sub = request.name.partition("/")
        body: Json = next(r for r in claim["spec"]["devices"]["requests"] if r["name"] == base)
        return next(s for s in body["firstAvailable"] if s["name"] == sub) if sub else body["exactly"]

    def had_alone(self) -> set[tuple[str, str, str]]:
        return {
            (r["driver"], r["pool"], r["device"])
            for claim in self.situation["allocated"]
            for r in claim["status"]["allocation"]["devices"]["results"]
            if not r.get("adminAccess") and not r.get("shareID")
        }

    def is_missed_of_all(self, request: RequestReport, note: Note) -> bool:
        """Others have too much of a shared device that is one of "all devices"."""
        entry, world = self.beside(request, note)[-1], self.brute.world
        wants_all = entry.option.get("allocationMode") == "All"
        return wants_all and bool(world.shares(entry.device)) and not capacity_suffices(world, [entry])

    def is_tainted(self, request: RequestReport, step: Step, note: Note) -> bool:
        assert step.taint is not None
        told = {"key": step.taint.key, "value": step.taint.value, "effect": step.taint.effect}
        added = [rule["spec"]["taint"] for rule in self.situation["rules"]]
        known = told in [{"value": "", **taint} for taint in (*self.body(note).get("taints", ()), *added)]
        tolerated = any(tolerates(t, told) for t in self.option(request).get("tolerations", ()))
        return known and told["effect"] != "None" and not tolerated

    def breaks(self, request: RequestReport, step: Step, note: Note) -> bool:
        """The device lacks the attribute, or some device chosen before has another (or the same) value."""
        claim = next(c for c in self.situation["claims"] if f"n/{c['metadata']['name']}" == request.claim)
        constraint = claim["spec"]["devices"]["constraints"][step.index]
        attribute = constraint.get("matchAttribute") or constraint["distinctAttribute"]
        mine = _values(note.id, self.body(note), attribute)
        if mine is None:
            return True
        before = [given.id for given in self.report.allocated if given.claim == request.claim]
        before += [device for device in request.left if device != note.id]
        others = [_values(device, self.body(Note(device)), attribute) or set() for device in before]
        if "distinctAttribute" in constraint:
            return any(mine & other for other in others)
        return not set.intersection(mine, *others) if others else False

    def fails(self, request: RequestReport, note: Note) -> bool:
        try:
            for entry in self.option(request).get("selectors", ()):
                random_clusters.PREDICATES[entry["cel"]["expression"]](note.id[0], self.body(note))
        except KeyError:
            return True
        return bool(note.text)


def _values(device: tuple[str, str, str], body: Json, attribute: str) -> set[tuple[str, Any]] | None:
    attributes = body.get("attributes", {})
    domain, _, short = attribute.partition("/")
    value = attributes.get(attribute, attributes.get(short) if domain == device[0] else None)
    if value is None:
        return None
    ((kind, content),) = value.items()
    return {(kind.removesuffix("s"), item) for item in (content if kind.endswith("s") else [content])}
