"""What a lint finds: a rule, where it is broken, and the mend."""

from __future__ import annotations

from difflib import get_close_matches
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

JsonObject = dict[str, Any]

_SHOWN_MAX = 80


class Severity(StrEnum):
    """How bad it is."""

    ERROR = "error"
    """It is refused, or the pod does not start."""
    WARNING = "warning"
    """It may fail, or does not do what it seems to."""
    NOTE = "note"
    """Worth knowing; nothing is wrong."""


class Rule(Struct, frozen=True):
    """One thing that is looked for."""

    name: str
    severity: Severity
    finds: str
    """What it finds, as a clause of a table."""
    why: str
    """What comes of it, as a sentence."""


class Finding(Struct, frozen=True):
    """One rule broken at one place."""

    rule: Rule
    path: str
    """The field, from the object: ``spec.devices.requests[0].exactly.count``."""
    text: str
    """What is wrong, in a line."""
    mend: str = ""

    @property
    def severity(self) -> Severity:
        return self.rule.severity


def suggest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """``did you mean X?`` if one of ``known`` is spelt like ``name``."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    similar = get_close_matches(name[:_SHOWN_MAX].lower(), by_lower, n=1)
    return f"did you mean {by_lower[similar[0]]}?" if similar else otherwise


def show(value: object) -> str:
    """A name or another value, quoted and short."""
    text = str(value)
    return repr(text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "...")
