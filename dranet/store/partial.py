"""A record of which something cannot be read, without that: enough to give its devices back, never to attach.

A pod gets its NIC whole or not at all; the host is better given back all but one route than nothing. Pure.
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
    """The record without the parts that cannot be read; ``None`` where too little is left for a give-back:
    whose it was, where it is, and the state of the host's links."""
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
    """The same without what the error names: a field gets its default; what lacks a field that has none goes
    as a whole. ``None`` where that would be all."""
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
    """Whether it was there."""
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
