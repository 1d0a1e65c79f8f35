"""The conclusion in one clause, and the hint that would most likely help."""

from __future__ import annotations

from collections.abc import Sequence

from dranet.desk.allocation.outcome import AttemptResult
from dranet.desk.allocation.selection import Removal
from dranet.desk.explain.explanation import (
    Conclusion,
    ConstraintReport,
    NodeGroup,
    NodeReport,
    RequestReport,
    Step,
)

_BREAKS_OFF = "that ends the attempt for the whole pod, on every node"


def write_headline(conclusion: Conclusion, groups: Sequence[NodeGroup], looked_at: int) -> tuple[str, str]:
    """Return the clause that follows the name of the claim or pod, and a hint, which may be empty."""
    if conclusion is Conclusion.POSSIBLE:
        number = sum(len(group.nodes) for group in groups if group.report.ending is AttemptResult.ALLOCATED)
        return f"it can be allocated on {_of_nodes(number, looked_at)}", ""
    if conclusion in (Conclusion.BROKEN, Conclusion.UNKNOWN):
        return _describe_failure(conclusion, groups)
    best = groups[0]
    fix = next((miss.fix for miss in best.misses if miss.fix), "")
    where = "no node" if looked_at > 1 else f"node {best.report.node}"
    verb = "can" if looked_at > 1 else "cannot"
    return f"{where} {verb} give its devices: {describe_blocked(best.report)}", fix


def describe_no_node(reasons: Sequence[str]) -> tuple[str, str]:
    """Where no node is left whose devices could be looked at."""
    if reasons:
        return f"no node may run it: {'; '.join(reasons)}", ""
    return "there is no node to look at", "give ResourceSlices, or the capture of a node (--capture)"


def _of_nodes(number: int, every: int) -> str:
    return "the only node" if every == 1 else f"{number} of {every} nodes"


def _describe_failure(conclusion: Conclusion, groups: Sequence[NodeGroup]) -> tuple[str, str]:
    """Describe the failure that decides: one that is not modelled only where nothing else failed."""
    failed = [group.report.failure for group in groups if group.report.failure]
    failure = min(failed, key=lambda failure: failure.cause == "NOT_MODELLED")
    if conclusion is Conclusion.UNKNOWN:
        return f"cannot be decided here: {failure.message}", failure.hint
    if failure.cause != "SELECTOR_FAILED":
        return f"the attempt breaks off: {failure.message}", failure.hint
    what = f"a selector of request {failure.request} fails on device {failure.device}"
    return f"{what}: {failure.reason}; {_BREAKS_OFF}", failure.hint


def describe_blocked(report: NodeReport) -> str:
    """Why the request that the search could not get past was not satisfied, in a clause."""
    if not report.pools:
        return "no driver publishes devices for it"
    clauses = [
        f"{name_request(r, report)} {_describe_request(r, report.constraints)}" for r in report.blocked
    ]
    return "; ".join(clauses) or "it cannot be satisfied"


def name_request(request: RequestReport, report: NodeReport) -> str:
    """By its name, and by that of its claim where another claim has a request of this name."""
    claims = {other.claim for other in report.requests if other.request == request.request}
    of_claim = f" of claim {request.claim.partition('/')[2]}" if len(claims) > 1 else ""
    return f"request {request.name}{of_claim}"


def _describe_request(request: RequestReport, constraints: Sequence[ConstraintReport]) -> str:
    wanted = request.wanted or 1
    if request.seen < wanted:
        return f"wants {wanted} devices, {request.seen} are published"
    before, step = find_decisive(request)
    if step is None:
        return "fits by itself, but not together with the others"
    after = before - len(step.devices)
    what = "all devices that match" if request.wanted is None else _devices(wanted)
    apart = [c for c in constraints if step.removal is Removal.CONSTRAINT and c.index == step.index]
    if apart and not apart[0].common and not apart[0].distinct and request.name in apart[0].requests:
        return f"wants {what}, but {_describe_apart(request, apart[0], before)}"
    return f"wants {what}, {_describe_step(step, before, after)}"


def _describe_apart(request: RequestReport, constraint: ConstraintReport, before: int) -> str:
    """No value is there on all sides."""
    attribute = constraint.attribute.rpartition("/")[2]
    others = " and ".join(name for name in constraint.requests if name != request.name)
    devices = (
        f"none of the {before} that match has" if before > 1 else "the only one that matches does not have"
    )
    shared = f"of a device that fits {others}" if others else "of the others"
    return f"{devices} the {attribute} {shared} (constraint {constraint.index + 1})"


def find_decisive(request: RequestReport) -> tuple[int, Step | None]:
    """The step after which there were too few, and how many there were before it."""
    left, wanted = request.seen, request.wanted or 1
    forbidden: tuple[int, Step] | None = None
    for step in request.steps:
        if left - len(step.devices) < wanted:
            return left, step
        if request.wanted is None and step.removal in _OF_ALL:
            forbidden = forbidden or (left, step)
        left -= len(step.devices)
    return forbidden or (left, None)


_OF_ALL = (Removal.IN_USE, Removal.TAINT, Removal.COUNTERS, Removal.TAKEN)
"""Where all matching devices are wanted, one of them is enough."""


def _describe_step(step: Step, before: int, after: int) -> str:
    number = len(step.devices)
    some = f"{number} of the {before} that match" if after else f"all {before} that match"
    some = some if before > 1 else "the only one that matches"
    match step.removal:
        case Removal.CLASS_SELECTOR | Removal.REQUEST_SELECTOR:
            return f"but {step.what} leaves {after or 'none'} of {before}"
        case Removal.IN_USE:
            return f"but {some} {_is(number)} in use"
        case Removal.TAINT:
            return f"but {some} {_is(number)} tainted ({step.what})"
        case Removal.TAKEN:
            return f"but {some} {_is(number)} taken by earlier requests"
        case Removal.CONSTRAINT:
            if before == 1:
                return f"but {step.what} rules out the only one that is left"
            return f"but {step.what} leaves {after or 'none'} of the {before} that match"
        case Removal.CAPACITY:
            return f"but {some} {'has' if number == 1 else 'have'} too little capacity"
        case Removal.COUNTERS:
            return f"but too little is left of what {some} share with devices in use"
        case Removal.POOL_INCOMPLETE | Removal.POOL_INVALID:
            return f"but {_devices(number)} {_is(number)} {step.removal.value}"
    return f"but {some}: {step.removal.value}"


def _devices(number: int) -> str:
    return "1 device" if number == 1 else f"{number} devices"


def _is(number: int) -> str:
    return "is" if number == 1 else "are"
