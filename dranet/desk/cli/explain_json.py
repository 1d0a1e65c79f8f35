"""An explanation as a document for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dranet.desk.allocation.explain.explanation import (
    ConstraintStory,
    Explanation,
    Given,
    NodeGroup,
    RequestStory,
)
from dranet.desk.allocation.taints import DeviceId


def to_document(explanation: Explanation) -> str:
    """Indented JSON; devices as ``driver/pool/device``."""
    subject = explanation.subject
    document = {
        "kind": subject.kind,
        "name": subject.label,
        "verdict": explanation.verdict.value,
        "possible": explanation.verdict.is_good,
        "headline": explanation.headline,
        "mend": explanation.mend or None,
        "remarks": list(explanation.remarks),
        "claims": [
            {"name": claim.label, "podClaim": claim.pod_claim or None, "madeFrom": claim.origin or None}
            for claim in subject.claims
        ],
        "allocated": _given(explanation.given),
        "nodes": [_group(group) for group in explanation.groups],
        "notLookedAt": [{"reason": reason, "nodes": list(names)} for reason, names in explanation.excluded],
    }
    return json.dumps(document, indent=2)


def _group(group: NodeGroup) -> dict[str, Any]:
    story = group.story
    return {
        "nodes": list(group.nodes),
        "ending": story.ending.name,
        "pools": [
            {"pool": pool, "devices": count, "defect": defect or None} for pool, count, defect in story.pools
        ],
        "failure": {
            "cause": story.failure.cause,
            "message": story.failure.message,
            "reason": story.failure.reason,
            "hint": story.failure.hint or None,
            "request": story.failure.request or None,
            "device": story.failure.device or None,
        }
        if story.failure
        else None,
        "gives": _given(story.given) if not story.failure and not story.blocked else [],
        "requests": [_request(request) for request in story.requests],
        "constraints": [_constraint(constraint) for constraint in story.constraints],
        "nearestMisses": [
            {"text": miss.text, "devices": _ids(miss.devices), "mend": miss.mend or None}
            for miss in group.misses
        ],
    }


def _request(request: RequestStory) -> dict[str, Any]:
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


def _constraint(story: ConstraintStory) -> dict[str, Any]:
    return {
        "claim": story.claim,
        "index": story.index,
        "attribute": story.attribute,
        "distinct": story.distinct,
        "values": [
            {
                "value": row.value or None,
                "devices": {name: _ids(ids) for name, ids in row.devices.items()},
            }
            for row in story.rows
        ],
        "common": list(story.common),
    }


def _given(given: Sequence[Given]) -> list[dict[str, str]]:
    return [{"claim": e.claim, "request": e.request, "device": "/".join(e.id)} for e in given]


def _ids(ids: Sequence[DeviceId]) -> list[str]:
    return ["/".join(device) for device in ids]
