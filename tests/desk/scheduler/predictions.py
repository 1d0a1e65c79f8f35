"""What ``dranet explain`` says of a case beforehand, and whether the scheduler then did that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dranet.desk.allocation.allocator import AllocationError, Attempt, AttemptResult, Node, Outcome
from dranet.desk.allocation.failures import Cause
from dranet.desk.explain.explain import ClusterView, explain
from dranet.desk.explain.explanation import Conclusion, Explanation
from dranet.desk.explain.subject import pod_subject
from tests.desk.scheduler.cases import Json
from tests.desk.scheduler.rule_check import rebuild
from tests.desk.scheduler.settings import Setting
from tests.desk.scheduler.submission import Answer, Given

MESSAGES = {
    Cause.CLASS_MISSING: "could not retrieve device class",
    Cause.SELECTOR_FAILED: "selector #",
    Cause.ALL_OF_INCOMPLETE: "is currently being updated",
    Cause.ALL_OF_INVALID: "is currently invalid",
    Cause.ALL_AGAINST_CONSTRAINT: "a claim constraint would not be satisfied",
    Cause.TOO_MANY_DEVICES: "exceeds the claim limit",
}
"""What the scheduler's message has, for each cause of ours."""


@dataclass(frozen=True)
class Foretold:
    """The answer of ``explain``, and the attempt behind it on each node where the pod may run."""

    explanation: Explanation
    attempt: Attempt | None = None
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    cause: Cause | None = None
    """Why the attempt breaks off, if it does."""

    @property
    def conclusion(self) -> Conclusion:
        return self.explanation.conclusion

    def allocations(self, node: str) -> tuple[Json, ...] | None:
        """What the claims get on a node; ``None`` if nothing."""
        outcome = self.outcomes.get(node)
        if self.attempt is None or outcome is None or outcome.ending is not AttemptResult.ALLOCATED:
            return None
        return self.attempt.allocations(outcome)


def foretell(one: Given) -> Foretold:
    """From the objects as the server keeps them."""
    claims = [*one.claims, *one.holders]
    world = ClusterView(one.slices, one.classes, claims, one.nodes, one.rules)
    explanation = explain(pod_subject(one.case.pod, claims, (), world.classes_by_name), world)
    excluded = {name for _, names in explanation.excluded for name in names}
    nodes = [Node.parse(node) for node in one.nodes if node["metadata"]["name"] not in excluded]
    try:
        attempt = Attempt(one.claims, world.cluster)
    except AllocationError as error:
        return Foretold(explanation, cause=error.cause)
    outcomes = {node.name: attempt.on(node) for node in nodes}
    cause = next((o.error.cause for o in outcomes.values() if o.error), None)
    return Foretold(explanation, attempt, outcomes, cause)


@dataclass(frozen=True)
class Difference:
    """Where the scheduler did something else."""

    case: int
    theme: str
    text: str
    reason: str = ""
    """Why, if that is known and documented."""


def is_told(foretold: Foretold) -> bool:
    """Whether ``explain`` says yes or no: what it calls unknown can be no difference."""
    return foretold.conclusion is not Conclusion.UNKNOWN


def find_difference(setting: Setting, one: Given, foretold: Foretold) -> Difference | None:
    assert one.answer is not None
    if one.answer.allocations:
        text = _compare_allocations(setting, foretold, one.answer)
    else:
        text = _compare_failures(foretold, one.answer)
    if not text:
        return None
    message = f" ({one.answer.message})" if one.answer.message else ""
    return Difference(one.case.number, one.case.theme, text + message)


def _compare_failures(foretold: Foretold, answer: Answer) -> str:
    """The pod did not get its devices."""
    conclusion = foretold.conclusion
    if conclusion.is_good:
        return f"{answer.reason}, but {conclusion.value}"
    said = "SchedulerError" if conclusion is Conclusion.BROKEN else "Unschedulable"
    if answer.reason != said:
        return f"{answer.reason}, but {conclusion.value}: {foretold.explanation.headline}"
    if foretold.cause and MESSAGES[foretold.cause] not in answer.message:
        return f"another message than {foretold.cause.name}: {foretold.explanation.headline}"
    return ""


def _compare_allocations(setting: Setting, foretold: Foretold, answer: Answer) -> str:
    """On the node that the scheduler chose, or on any if the claims can be used anywhere."""
    if not foretold.conclusion.is_good:
        return f"allocated, but {foretold.conclusion.value}: {foretold.explanation.headline}"
    nodes = [answer.node] if answer.node else list(foretold.outcomes)
    simplify = _without_noise if setting.is_newest else _devices_alone
    got = simplify(answer.allocations)
    if any(simplify(foretold.allocations(node) or ()) == got for node in nodes):
        return ""
    if not setting.is_ordered and any(simplify(_allowed(foretold, node, answer)) == got for node in nodes):
        return ""
    return f"other devices on {answer.node or 'some node'}"


def _allowed(foretold: Foretold, node: str, answer: Answer) -> Sequence[Json]:
    """The scheduler's choice as our allocator would record it, if it keeps every rule."""
    outcome = foretold.outcomes.get(node)
    if foretold.attempt is None or outcome is None:
        return ()
    return rebuild(foretold.attempt, outcome, answer.allocations)


def _devices_alone(allocations: Sequence[Json]) -> Any:
    keys = ("request", "driver", "pool", "device", "adminAccess")
    return [
        ([[r.get(key) for key in keys] for r in a["devices"]["results"]], a.get("nodeSelector"))
        for a in allocations
    ]


def _without_noise(body: Any) -> Any:
    """Without what is random or of the clock."""
    if isinstance(body, dict):
        return {key: _without_noise(value) for key, value in body.items() if not _is_noise(key, value)}
    return [_without_noise(item) for item in body] if isinstance(body, list | tuple) else body


def _is_noise(key: str, value: Any) -> bool:
    return key in ("shareID", "allocationTimestamp") or value in (None, [], {})
