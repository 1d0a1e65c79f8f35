"""An explanation as a document for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dranet.desk.allocation.explain.explanation import (
    AllocatedDevice,
    ConstraintReport,
    Explanation,
    NodeGroup,
    RequestReport,
)
from dranet.desk.allocation.taints import DeviceId


def to_document(explanation: Explanation) -> str:
    """Indented JSON; devices as ``driver/pool/device``."""
    subject = explanation.subject
    document = {
        "kind": subject.kind,
        "name": subject.label,
        "verdict": explanation.conclusion.value,
        "possible": explanation.conclusion.is_good,
        "headline": explanation.headline,
        "mend": explanation.fix or None,
        "remarks": list(explanation.remarks),
        "claims": [
            {"name": claim.label, "podClaim": claim.pod_claim or None, "madeFrom": claim.origin or None}
            for claim in subject.claims
        ],
        "allocated": _given(explanation.allocated),
        "nodes": [_group(group) for group in explanation.groups],
        "notLookedAt": [{"reason": reason, "nodes": list(names)} for reason, names in explanation.excluded],
    }
    return json.dumps(document, indent=2)


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
        "gives": _given(report.allocated) if not report.failure and not report.blocked else [],
        "requests": [_request(request) for request in report.requests],
        "constraints": [_constraint(constraint) for constraint in report.constraints],
        "nearestMisses": [
            {"text": miss.text, "devices": _ids(miss.devices), "mend": miss.fix or None}
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


def _given(allocated: Sequence[AllocatedDevice]) -> list[dict[str, str]]:
    return [{"claim": e.claim, "request": e.request, "device": "/".join(e.id)} for e in allocated]


def _ids(ids: Sequence[DeviceId]) -> list[str]:
    return ["/".join(device) for device in ids]
