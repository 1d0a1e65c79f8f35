"""The table of ``dranet nodes``, and the same as a document for programs."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from dranet.desk.fleet.nodes import FleetNode, ProblemSeverity, Use
from dranet.model.device import Bandwidth
from dranet.model.status import ConditionType
from dranet.pictures.summary import bandwidth_text
from dranet.terminal import PROSE, Screen, count_of, cut, format_table

MOST_ROWS = 40
"""More nodes without a problem than these are grouped."""

_MOST_TEXT = 160
_UNKNOWN, _NONE = "?", "-"
_PLURALS = {
    "ResourceClaim": "resourceclaims",
    "Node": "nodes",
    "Pod": "pods",
    "DeviceTaintRule": "devicetaintrules",
    "Event": "events",
}
_Row = tuple[str, ...]
_BANDWIDTH: _Row = ("BANDWIDTH",)


def render(
    nodes: Sequence[FleetNode], refused: Sequence[str], screen: Screen, *, is_wide: bool, shows_all: bool
) -> Iterator[str]:
    """A row for each node, or for many that are alike, and a line about all of them."""
    width = min(screen.columns or PROSE, PROSE)
    if not nodes:
        yield "no node to show"
    else:
        has_bandwidth = any(node.bandwidth.offered for node in nodes)
        header: _Row = ("NODE", "DRIVER", "NICS", "GPUS", *(_BANDWIDTH if has_bandwidth else ()))
        header = (*header, "CLAIMS", "MISALIGNED")
        header = (*header, "POD", "SLICES", "PROBLEMS") if is_wide else (*header, "PROBLEMS")
        groups = [[node] for node in nodes] if shows_all else list(_group(nodes))
        rows = [_row(group, is_wide=is_wide, has_bandwidth=has_bandwidth) for group in groups]
        heading, *lines = format_table(header, rows, screen.columns)
        yield from map(screen.bold, heading)
        for group, of_row in zip(groups, lines, strict=True):
            yield from (_colour(group[0].severity, line, screen) for line in of_row)
        yield ""
        yield from textwrap.wrap(_summarize(nodes), width)
        if not any(node.slices or node.pods for node in nodes):
            yield "no node has a pod or a ResourceSlice of the driver: is it installed?"
    if refused:
        kinds = ", ".join(_PLURALS[kind] for kind in refused)
        text = f"note: not looked at, because this user may not list them: {kinds}"
        yield from textwrap.wrap(text, width, subsequent_indent="      ")


def _colour(severity: ProblemSeverity | None, line: str, screen: Screen) -> str:
    if severity is None:
        return line
    return screen.red(line) if severity is ProblemSeverity.PROBLEM else screen.yellow(line)


def _group(nodes: Sequence[FleetNode]) -> Iterator[list[FleetNode]]:
    """Nodes with problems each, the others by version and devices where they are many."""
    healthy: dict[object, list[FleetNode]] = defaultdict(list)
    for node in nodes:
        if node.problems:
            yield [node]
        else:
            healthy[node.version, node.nics.offered, node.gpus.offered, node.bandwidth.offered].append(node)
    is_many = sum(map(len, healthy.values())) > MOST_ROWS
    for group in healthy.values():
        yield from [group] if is_many else ([node] for node in group)


def _row(group: Sequence[FleetNode], *, is_wide: bool, has_bandwidth: bool) -> _Row:
    first = group[0]
    name = first.name if len(group) == 1 else f"{len(group)} like {first.name}"
    misaligned = sum(len(node.misaligned_pods) for node in group)
    claims = sum(len(node.claims) for node in group)
    attached = sum(len(node.attached_claims) for node in group)
    cells = (
        name,
        _driver(first),
        _use([node.nics for node in group]),
        _use([node.gpus for node in group]),
        *((_bandwidth([node.bandwidth for node in group]),) if has_bandwidth else ()),
        f"{attached}/{claims}" if claims else _NONE,
        str(misaligned or _NONE),
    )
    if not is_wide:
        return (*cells, _shorten(first))
    pods = ", ".join(pod.name for pod in first.pods or ()) if len(group) == 1 else ""
    slices = sum(len(node.slices) for node in group)
    return (*cells, pods or _NONE, str(slices), "; ".join(problem.text for problem in first.problems))


def _driver(node: FleetNode) -> str:
    if node.pods is None:
        return _UNKNOWN
    if not node.pods:
        return _NONE
    return node.version if any(pod.is_ready for pod in node.pods) else f"{node.version} not ready"


def _use(uses: Sequence[Use]) -> str:
    offered = sum(use.offered for use in uses)
    return f"{sum(use.allocated for use in uses)}/{offered}" if offered else _NONE


def _bandwidth(uses: Sequence[Use]) -> str:
    """``20/100 Gb/s``."""
    found = _sum(uses)
    return (
        bandwidth_text(Bandwidth(found["offered"], None), found["allocated"]) if found["offered"] else _NONE
    )


def _shorten(node: FleetNode) -> str:
    """The worst problem, and how many there are besides."""
    if not node.problems:
        return ""
    more = f" (and {len(node.problems) - 1} more)" if len(node.problems) > 1 else ""
    return cut(node.problems[0].text, _MOST_TEXT) + more


def _summarize(nodes: Sequence[FleetNode]) -> str:
    """``3 nodes: 1 with problems, 1 with warnings; 12 of 30 NICs and 9 of 24 GPUs allocated ...``."""
    severities = [node.severity for node in nodes]
    troubles = [
        f"{severities.count(severity)} with {severity}s"
        for severity in ProblemSeverity
        if severity in severities
    ]
    devices = [
        f"{sum(use.allocated for use in uses)} of {sum(use.offered for use in uses)} {word}"
        for word, uses in (("NICs", [n.nics for n in nodes]), ("GPUs", [n.gpus for n in nodes]))
    ]
    misaligned = sum(len(node.misaligned_pods) for node in nodes)
    parts = [
        f"{count_of(len(nodes), 'node')}: {', '.join(troubles) or 'no problems'}",
        f"{' and '.join(devices)} allocated",
        *((count_of(misaligned, "misaligned pod"),) if misaligned else ()),
    ]
    return "; ".join(parts)


def to_document(nodes: Sequence[FleetNode], refused: Sequence[str]) -> dict[str, Any]:
    """For programs."""
    return {
        "summary": {
            "nodes": len(nodes),
            **{f"with{str(s).title()}s": sum(n.severity is s for n in nodes) for s in ProblemSeverity},
            "nics": _sum([node.nics for node in nodes]),
            "gpus": _sum([node.gpus for node in nodes]),
            "bandwidth": _sum([node.bandwidth for node in nodes]),
            "misalignedPods": sum(len(node.misaligned_pods) for node in nodes),
        },
        "nodes": [_describe(node) for node in nodes],
        "notLookedAt": [_PLURALS[kind] for kind in refused],
    }


def _sum(uses: Sequence[Use]) -> dict[str, int]:
    return {"allocated": sum(u.allocated for u in uses), "offered": sum(u.offered for u in uses)}


def _describe(node: FleetNode) -> dict[str, Any]:
    return {
        "name": node.name,
        "driver": None
        if node.pods is None
        else [
            {"pod": pod.name, "version": pod.version, "ready": pod.is_ready, "reason": pod.trouble or None}
            for pod in node.pods
        ],
        "nics": _sum([node.nics]),
        "gpus": _sum([node.gpus]),
        "bandwidth": _sum([node.bandwidth]),
        "resourceSlices": len(node.slices),
        "claims": {
            "allocated": sorted(node.claims),
            "prepared": sorted(node.prepared_claims),
            "attached": sorted(node.attached_claims),
        },
        "misalignedPods": [
            {
                "pod": pod,
                "devices": [
                    {"device": d.device[2], "message": d.conditions[ConditionType.ALIGNED].get("message")}
                    for d in node.devices
                    if d.is_misaligned and pod in (*d.users, f"claim {d.claim}")
                ],
            }
            for pod in node.misaligned_pods
        ],
        "problems": [
            {"severity": str(problem.severity), "reason": problem.reason, "text": problem.text}
            for problem in node.problems
        ],
    }
