"""Phrases about devices and what they say of themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dranet.desk.allocation.capacity import qualify
from dranet.desk.allocation.devices import Candidate
from dranet.desk.allocation.explain.tell import values_of
from dranet.desk.allocation.taints import DeviceId

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
