"""Partial decoding of a damaged record: unreadable fields are dropped. Pure.

The result may be enough to restore devices, and is never used to attach: an attach is all or nothing, while a
restore without one route is better than none.
"""

from __future__ import annotations

import json
import re
from typing import Any

from dranet.model.plan import PreparedClaim
from dranet.store.record_json import RecordError, decode_record

_MOST_LEFT_OUT = 200
_STEP = re.compile(r"\.(?P<field>\w+)|\[(?P<item>\d+)\]|\[(?P<key>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\]")


def decode_partially(text: str) -> PreparedClaim | None:
    """Return the record without its unreadable parts.

    ``None`` if too little is left to restore devices: the pod, the namespace and the host state of each link
    are needed.
    """
    for _ in range(_MOST_LEFT_OUT):
        try:
            record = decode_record(PreparedClaim, text)
        except RecordError as error:
            shorter = _leave_out(text, error)
            if shorter is None:
                return None
            text = shorter
        else:
            return record if _is_enough(record) else None
    return None


def _is_enough(record: PreparedClaim) -> bool:
    known = [plan.is_on_top or (plan.host is not None and bool(plan.pod_ifname)) for plan in record.plans]
    return bool(record.netns_path) and bool(known) and all(known)


def _leave_out(text: str, error: RecordError) -> str | None:
    """Drop what the error names: a field, which then takes its default, or the object that lacks a required
    field. Return ``None`` if nothing would be left."""
    steps = [_key_of(match) for match in _STEP.finditer(error.path)]
    if error.why == "is missing":
        steps = steps[:-1]
    document: Any = json.loads(text)
    while steps:
        if _remove(document, steps):
            return json.dumps(document)
        steps = steps[:-1]
    return None


def _remove(document: Any, steps: list[str | int]) -> bool:
    """Return whether it was there."""
    holder = document
    try:
        for step in steps[:-1]:
            holder = holder[step]
        del holder[steps[-1]]
    except (KeyError, IndexError, TypeError):
        return False
    return True


def _key_of(match: re.Match[str]) -> str | int:
    if match["item"] is not None:
        return int(match["item"])
    if match["key"] is not None:
        return match["key"][1:-1]
    return match["field"]
