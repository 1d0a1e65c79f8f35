"""An explanation as a document for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dranet.desk.allocation.outcome import AttemptResult
from dranet.desk.allocation.selection import Removal
from dranet.desk.allocation.taints import DeviceId
from dranet.desk.explain.explanation import (
    Alignment,
    AllocatedDevice,
    ConstraintReport,
    DevicePair,
    Explanation,
    NodeGroup,
    NodeReport,
    Note,
    RequestReport,
    Step,
    ValueRow,
)
from dranet.desk.templates.notes import format_distances
from dranet.model.facts import Distance
from dranet.terminal import CONTINUED, PROSE, Screen, format_table, printable


def to_document(explanation: Explanation) -> dict[str, Any]:
    """What programs read; devices as ``driver/pool/device``."""
    subject = explanation.subject
    return {
        "kind": subject.kind,
        "name": subject.label,
        "verdict": explanation.conclusion.value,
        "possible": explanation.conclusion.is_good,
        "headline": explanation.headline,
        "fix": explanation.fix or None,
        "remarks": list(explanation.remarks),
        "claims": [
            {"name": claim.label, "podClaim": claim.pod_claim or None, "madeFrom": claim.origin or None}
            for claim in subject.claims
        ],
        "allocated": _list_allocated(explanation.allocated),
        "alignment": _alignment(explanation.alignment),
        "nodes": [_group(group) for group in explanation.groups],
        "notLookedAt": [{"reason": reason, "nodes": list(names)} for reason, names in explanation.excluded],
    }


def _group(group: NodeGroup) -> dict[str, Any]:
    report = group.report
    return {
        "nodes": list(group.nodes),
        "ending": report.ending.name,
        "pools": [
            {"pool": pool, "devices": count, "defect": defect or None} for pool, count, defect in report.pools
        ],
        "failure": {
            "cause": report.failure.cause,
            "message": report.failure.message,
            "reason": report.failure.reason,
            "hint": report.failure.hint or None,
            "request": report.failure.request or None,
            "device": report.failure.device or None,
        }
        if report.failure
        else None,
        "gives": _list_allocated(report.allocated) if not report.failure and not report.blocked else [],
        "alignment": _alignment(report.alignment),
        "requests": [_request(request) for request in report.requests],
        "constraints": [_constraint(constraint) for constraint in report.constraints],
        "nearestMisses": [
            {"text": miss.text, "devices": _ids(miss.devices), "fix": miss.fix or None}
            for miss in group.misses
        ],
    }


def _request(request: RequestReport) -> dict[str, Any]:
    return {
        "claim": request.claim,
        "request": request.name,
        "deviceClass": request.class_name,
        "wanted": "All" if request.wanted is None else request.wanted,
        "seen": request.seen,
        "removed": [
            {
                "by": step.removal.name,
                "what": step.what or None,
                "expression": step.expression or None,
                "devices": [
                    {"device": "/".join(note.id), "detail": note.text or None} for note in step.devices
                ],
            }
            for step in request.steps
        ],
        "left": _ids(request.left),
        "satisfied": request.satisfied,
        "blocked": request.blocked,
    }


def _constraint(report: ConstraintReport) -> dict[str, Any]:
    return {
        "claim": report.claim,
        "index": report.index,
        "attribute": report.attribute,
        "distinct": report.distinct,
        "values": [
            {
                "value": row.value or None,
                "devices": {name: _ids(ids) for name, ids in row.devices.items()},
            }
            for row in report.rows
        ],
        "common": list(report.common),
    }


def _list_allocated(allocated: Sequence[AllocatedDevice]) -> list[dict[str, str]]:
    return [
        {"claim": e.claim, "request": e.request, "device": "/".join(e.id)}
        | ({"gpu": "/".join(e.pair.gpu), "distance": _level(e.pair.distance)} if e.pair else {})
        for e in allocated
    ]


def _alignment(alignment: Alignment | None) -> dict[str, Any] | None:
    if alignment is None:
        return None
    return {
        "distances": [_level(one) for one in alignment.distances],
        "best": [_level(one) for one in alignment.best],
        "better": [
            {"nic": "/".join(one.nic), "gpu": "/".join(one.gpu), "distance": _level(one.distance)}
            for one in alignment.better
        ],
        "heldBy": list(alignment.holders),
        "fix": alignment.fix or None,
        "assumption": alignment.assumption or None,
    }


def _level(distance: Distance | None) -> str:
    return "unknown" if distance is None else distance.name


def _ids(ids: Sequence[DeviceId]) -> list[str]:
    return ["/".join(device) for device in ids]


GROUPS_SHOWN = 3
_NAMES_SHOWN = 4
_ROWS_SHOWN = 10
_COLUMNS_WITH_NAMES = 3

_STEPS = {
    Removal.POOL_INCOMPLETE: "in a pool whose slices are not all there yet",
    Removal.POOL_INVALID: "in a pool that contradicts itself",
    Removal.NOT_MODELLED: "cannot be judged here",
    Removal.IN_USE: "in use by",
    Removal.TAINT: "tainted",
    Removal.CAPACITY: "too little capacity",
    Removal.COUNTERS: "too little left of what devices share",
    Removal.TAKEN: "taken by an earlier request of this pod",
    Removal.LIMIT: "more devices than a claim may have",
}


def render(explanation: Explanation, screen: Screen, *, shows_all: bool = False) -> Iterator[str]:
    """All lines of the answer."""
    width = min(screen.columns or PROSE, PROSE)
    style = screen.bold if explanation.conclusion.is_good else screen.red
    yield from map(style, _wrap(f"{_title(explanation)}: {explanation.headline}", width))
    if explanation.fix:
        yield from _wrap(explanation.fix, width, "fix: ")
    for remark in explanation.remarks:
        yield from _wrap(remark, width, "note: ")
    if explanation.allocated:
        yield ""
        if explanation.groups:
            yield screen.bold("allocated already")
        yield from _allocated_table(
            explanation.allocated, screen, by_claim=len(explanation.subject.claims) > 1
        )
        yield from _render_alignment(explanation.alignment, width, "")
    shown = explanation.groups if shows_all else explanation.groups[:GROUPS_SHOWN]
    for group in shown:
        yield ""
        yield from _render_group(group, screen, width)
    yield from _render_rest(explanation, explanation.groups[len(shown) :], width)


def _render_rest(explanation: Explanation, rest: Sequence[NodeGroup], width: int) -> Iterator[str]:
    """The nodes without further details."""
    if rest or explanation.excluded:
        yield ""
    if rest:
        nodes = _count(sum(len(group.nodes) for group in rest), "more node")
        reports = _count(len(rest), "other story", "other stories")
        yield f"{nodes} with {reports} (--all shows them)"
    for reason, names in explanation.excluded:
        yield from _wrap(f"{_count(len(names), 'node')} not looked at ({_names(names)}): {reason}", width)


def _title(explanation: Explanation) -> str:
    subject = explanation.subject
    number = len(subject.claims)
    claims = f" with {number} claims" if number > 1 else ""
    return f"{subject.kind} {subject.label}{claims}"


def _render_group(group: NodeGroup, screen: Screen, width: int) -> Iterator[str]:
    report = group.report
    where = f"node {report.node}"
    if len(group.nodes) > 1:
        where = f"{len(group.nodes)} nodes like {report.node} ({_names(group.nodes[1:])})"
    yield from map(screen.bold, _wrap(f"{where}: {_ending(report)}", width))
    if report.ending is AttemptResult.ALLOCATED:
        yield from _indent(_allocated_table(report.allocated, screen))
        yield from _render_alignment(report.alignment, width, CONTINUED)
        return
    yield from _render_troubles(report, width)
    table = list(_request_table(report, screen))
    yield from _indent(table)
    for number, request in enumerate(report.blocked if report.pools else ()):
        funnel = _render_funnel(request, width)
        yield from _section(funnel) if table or number else funnel
    for constraint in report.constraints:
        yield from _section(_render_constraint(constraint, width))
    if group.misses:
        yield from _section([f"{CONTINUED}nearest miss{'es' if len(group.misses) > 1 else ''}"])
    for miss in group.misses:
        yield from _wrap(miss.text, width, f"{CONTINUED}  - ")


def _render_troubles(report: NodeReport, width: int) -> Iterator[str]:
    if report.failure and report.failure.cause != "SELECTOR_FAILED":  # the request has it
        yield from _wrap(report.failure.message, width, CONTINUED)
    for pool, count, defect in report.pools:
        if defect:
            yield from _wrap(f"pool {pool} ({_count(count, 'device')} here) is {defect}", width, CONTINUED)


def _section(lines: Iterable[str]) -> Iterator[str]:
    yield ""
    yield from lines


def _ending(report: NodeReport) -> str:
    if report.ending is AttemptResult.ALLOCATED:
        return "would give"
    if report.failure:
        return "the attempt breaks off"
    if not report.pools:
        return "no driver publishes devices for it"
    return f"cannot satisfy request {report.blocked[0].request}" if report.blocked else "cannot satisfy it"


def _request_table(report: NodeReport, screen: Screen) -> Iterator[str]:
    """One line for each request, or alternative."""
    if len(report.requests) < 2 or not report.pools:
        return
    several = len({request.claim for request in report.requests}) > 1
    header = (*(("CLAIM",) if several else ()), "REQUEST", "CLASS", "WANTS", "FITTING", "")
    rows = [
        (
            *((request.claim.partition("/")[2],) if several else ()),
            request.name,
            request.class_name,
            "all" if request.wanted is None else str(request.wanted),
            f"{len(request.left)} of {request.seen}",
            _selection(request, report),
        )
        for request in report.requests
    ]
    columns = screen.columns - len(CONTINUED) if screen.columns else None
    for lines in format_table(header, rows, columns):
        yield from lines


def _selection(request: RequestReport, report: NodeReport) -> str:
    if request.blocked:
        return "<- no further than this" if len(report.requests) > 1 else ""
    names = [f"{r.claim}/{r.request}" for r in report.requests]
    blocked = next((f"{r.claim}/{r.request}" for r in report.blocked), "")
    before = not blocked or names.index(f"{request.claim}/{request.request}") < names.index(blocked)
    return "" if before else "not reached"


def _render_funnel(request: RequestReport, width: int) -> Iterator[str]:
    """How many devices were seen, what each step took, and what was left."""
    yield f"{CONTINUED}request {request.name}"
    digits = len(str(request.seen)) + 1
    yield f"{CONTINUED}  {request.seen:>{digits}}  seen"
    for step in request.steps:
        number = f"-{len(step.devices)}"
        yield from _wrap(_describe(step), width, f"{CONTINUED}  {number:>{digits}}  ")
    wanted = "all that match" if request.wanted is None else request.wanted
    yield f"{CONTINUED}  {len(request.left):>{digits}}  left, {wanted} wanted"


def _describe(step: Step) -> str:
    if step.removal in (Removal.CLASS_SELECTOR, Removal.REQUEST_SELECTOR):
        return f"{step.what}: {' '.join(step.expression.split())}"
    if step.removal is Removal.FAILED:
        why = next((note.text for note in step.devices), "")
        return f"{step.what or 'a selector'} fails ({why}): {' '.join(step.expression.split())}"
    if step.removal is Removal.CONSTRAINT:
        return step.what
    if step.removal is Removal.IN_USE:
        return f"{_STEPS[step.removal]} {_by_text(step.devices)}"
    what = _STEPS.get(step.removal, step.removal.value)
    what = f"{what} {step.what}" if step.what else what
    if step.removal in (Removal.POOL_INCOMPLETE, Removal.POOL_INVALID):
        return what
    details = {note.text for note in step.devices} - {""}
    detail = f": {min(details)}" if len(details) == 1 else ""
    return f"{what}{detail} ({_names([note.name for note in step.devices])})"


def _by_text(notes: Sequence[Note]) -> str:
    """The claims that have them, each with its devices: ``team-a/train-0 (pci-0000-18-00-0)``."""
    holders: dict[str, list[str]] = {}
    for note in notes:
        holders.setdefault(note.text or "another claim", []).append(note.name)
    shown = [f"{claim} ({_names(names)})" for claim, names in holders.items()]
    more = len(shown) - _NAMES_SHOWN
    return ", ".join(shown[:_NAMES_SHOWN]) + (f" and {_count(more, 'other claim')}" if more > 0 else "")


def _render_constraint(report: ConstraintReport, width: int) -> Iterator[str]:
    """The values of every request that it covers, side by side."""
    kind = "distinctAttribute" if report.distinct else "matchAttribute"
    among = " and ".join(report.requests)
    if report.distinct:
        summary = f"{_count(sum(1 for row in report.rows if row.value), 'value')} among {among}"
    else:
        number = len(report.common)
        summary = f"{among} have {_count(number, 'value') if number else 'no value'} in common"
    title = f"constraint {report.index + 1} ({kind} {report.attribute}): {summary}"
    yield from _wrap(title, width, CONTINUED)
    header = (report.attribute.rpartition("/")[2], *report.requests)
    rows = [
        (
            row.value or "(lacks it)",
            *(_cell(row.devices[name], len(report.requests)) for name in report.requests),
        )
        for row in _choose_rows(report)
    ]
    for lines in format_table(header, rows, width - len(CONTINUED) - 2):
        yield from (f"{CONTINUED}  {line}" for line in lines)
    if len(rows) < len(report.rows):
        yield f"{CONTINUED}  and {_count(len(report.rows) - len(rows), 'more value')}"


def _choose_rows(report: ConstraintReport) -> Sequence[ValueRow]:
    """What they have in common, and some of the rest of each request, in the order of the story."""
    chosen = [row for row in report.rows if row.value in report.common][:_ROWS_SHOWN]
    each = max(_ROWS_SHOWN - len(chosen), 0) // max(len(report.requests), 1)
    for name in report.requests:
        others = [row for row in report.rows if row.devices[name] and row not in chosen]
        chosen += others[:each]
    return [row for row in report.rows if row in chosen]


def _cell(devices: Sequence[DeviceId], columns: int) -> str:
    """Names, or with many columns their number."""
    if columns > _COLUMNS_WITH_NAMES:
        return str(len(devices) or "-")
    names = [device[2] for device in devices]
    if len(names) < 2:
        return "".join(names) or "-"
    return f"{len(names)}: {_names(names, 2)}"


def _allocated_table(
    allocated: Sequence[AllocatedDevice], screen: Screen, *, by_claim: bool = False
) -> Iterator[str]:
    by_claim = by_claim or len({entry.claim for entry in allocated}) > 1
    by_pair = any(entry.pair for entry in allocated)
    header = (
        *(("CLAIM",) if by_claim else ()),
        *("REQUEST", "DEVICE", "POOL", "DRIVER"),
        *(("DISTANCE",) if by_pair else ()),
    )
    rows = [
        (
            *((e.claim.partition("/")[2],) if by_claim else ()),
            *(e.request, e.id[2], e.id[1], e.id[0]),
            *((_describe_pair(e.pair),) if by_pair else ()),
        )
        for e in allocated
    ]
    columns = screen.columns - len(CONTINUED) if screen.columns else None
    for lines in format_table(header, rows, columns):
        yield from lines


def _describe_pair(pair: DevicePair | None) -> str:
    return f"{_level(pair.distance)} to {pair.gpu[2]}" if pair else ""


def _render_alignment(alignment: Alignment | None, width: int, indent: str) -> Iterator[str]:
    """The best possible, what would be better, and the claim that gets it."""
    if alignment is None:
        return
    yield from _render_distances(alignment, width, indent)
    if alignment.fix:
        yield from _wrap(alignment.fix, width, f"{indent}fix: ")
    if alignment.assumption:
        text = f"no attribute has the NUMA nodes of the GPUs; they are those of {alignment.assumption}"
        yield from _wrap(text, width, f"{indent}assumed: ")


def _render_distances(alignment: Alignment, width: int, indent: str) -> Iterator[str]:
    mine = format_distances(alignment.distances)
    if not alignment.better:
        known = " known" if None in alignment.best else ""
        yield from _wrap(f"aligned: {mine}, the best{known} of this node", width, indent)
        return
    pairs = [f"{one.nic[2]} is {_level(one.distance)} to {one.gpu[2]}" for one in alignment.better]
    holders = _names([f"claim {holder}" for holder in alignment.holders])
    state = f"in use by {holders}" if holders else "free"
    best = format_distances(alignment.best)
    text = f"misaligned: {mine}, and {best} is the best of this node; {_names(pairs)} ({state})"
    yield from _wrap(text, width, indent)


def _indent(lines: Iterable[str]) -> Iterator[str]:
    return (CONTINUED + line for line in lines)


def _wrap(text: str, width: int, start: str = "") -> list[str]:
    return textwrap.wrap(
        printable(text),
        max(width, len(start) + 24),
        initial_indent=start,
        subsequent_indent=" " * len(start) or "  ",
        break_on_hyphens=False,
    )


def _names(names: Sequence[str], most: int = _NAMES_SHOWN) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _count(number: int, word: str, many: str = "") -> str:
    return f"{number} {word if number == 1 else many or word + 's'}"
