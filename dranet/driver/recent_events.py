"""Recent events, as the status page shows them: a bounded list in memory."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from dranet.cluster.events import NORMAL, EventNote, ObjectRef

MOST_KEPT = 200
LONGEST_TEXT = 400
"""Characters; what is longer ends with an ellipsis."""


class RecentEvent(Struct, frozen=True):
    """One thing that happened, once or several times in a row."""

    at: float
    """Unix seconds, of the last time."""
    kind: str
    """``Warning`` or ``Normal``, as Events have it."""
    reason: str
    about: str
    """The pod, claim or node."""
    text: str
    count: int = 1


class RecentEvents:
    """Oldest first; may be added to on any thread."""

    def __init__(self) -> None:
        self._kept: deque[RecentEvent] = deque(maxlen=MOST_KEPT)

    def add(self, kind: str, reason: str, about: str, text: str) -> None:
        """The same as the last one counts up."""
        text = text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"
        new = (kind, reason, about, text)
        try:
            last = self._kept.pop()
        except IndexError:
            self._kept.append(RecentEvent(time.time(), *new))
            return
        if (last.kind, last.reason, last.about, last.text) == new:
            self._kept.append(RecentEvent(time.time(), *new, count=last.count + 1))
        else:
            self._kept.append(last)
            self._kept.append(RecentEvent(time.time(), *new))

    def add_event(self, event: EventNote) -> None:
        """Add what is also reported as an Event."""
        self.add(event.type, event.reason, _name(event.regarding), event.note)

    def add_normal(self, word: str, about: ObjectRef, text: str) -> None:
        """Add what makes no Event because it is normal."""
        self.add(NORMAL, word, _name(about), text)

    def list(self) -> Sequence[RecentEvent]:
        return tuple(self._kept)


def _name(about: ObjectRef) -> str:
    """``pod train/worker-0``; ``claim train/nics``."""
    kind = {"ResourceClaim": "claim"}.get(about.kind, about.kind.lower())
    return f"{kind} {about.namespace}/{about.name}" if about.namespace else f"{kind} {about.name}"
