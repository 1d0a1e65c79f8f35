"""The Event about a device that is farther from its GPU than need be: once for each time that the claim's
status comes to say so.

The status is written first, and a driver may die before the Event is. So whoever finds the status saying it
since a short while says it, too, under a name made of that time: where the Event exists, the API server knows
it. Neither a restart nor a second instance repeats it, and none is lost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from dranet.cluster.claim_status import key_of
from dranet.cluster.client import JsonObject
from dranet.cluster.events import WARNING, EventNote, ObjectRef
from dranet.model.claim import ClaimRef, PodRef
from dranet.model.event_reason import EventReason
from dranet.model.status import ConditionReason, ConditionType

HINT = "`dranet claim new` writes a claim that gets the nearest"

MAX_AGE = timedelta(minutes=30)
"""Of what the status says, to be said again. Clusters keep Events for an hour."""
MAX_TOLD = 4096
"""Devices. A node has a few hundred at most."""

FindPod = Callable[[str], PodRef | None]
"""By claim UID: the pod that has its devices."""


class _Said(NamedTuple):
    """What the status of one device says, and since when."""

    key: tuple[str, ...]
    since: datetime
    message: str


class Misalignments:
    """For one driver; remembers what it has told."""

    def __init__(self, find_pod: FindPod, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._find_pod = find_pod
        self._now = now
        self._told: OrderedDict[tuple[str, ...], None] = OrderedDict()

    def find(
        self, claim: ClaimRef, before: Sequence[JsonObject], written: Sequence[JsonObject]
    ) -> Iterator[EventNote]:
        """One for each device that is news, about the pod that has it: other pods may have reserved the
        claim, and have nothing of it. Where the pod has just ended, about the claim."""
        known = {said.key for said in map(_read, before) if said is not None}
        for said in filter(None, map(_read, written)):
            is_old = said.key in known and self._now() - said.since > MAX_AGE
            if not is_old and self._note((claim.uid, *said.key)):
                yield EventNote(
                    self._find_object(claim),
                    WARNING,
                    EventReason.MISALIGNED_TOPOLOGY,
                    f"{said.key[2]}: {said.message}; {HINT}",
                    first=said.since,
                    identity="/".join((claim.uid, *said.key)),
                )
        for entry in written:
            if _read(entry) is None:  # should it be so again, that is news
                self._told.pop((claim.uid, *key_of(entry)), None)

    def _note(self, key: tuple[str, ...]) -> bool:
        """Whether it was not told yet."""
        is_news = key not in self._told
        self._told[key] = None
        self._told.move_to_end(key)
        if len(self._told) > MAX_TOLD:
            self._told.popitem(last=False)
        return is_news

    def _find_object(self, claim: ClaimRef) -> ObjectRef:
        pod = self._find_pod(claim.uid)
        if pod is None:
            return ObjectRef("resource.k8s.io/v1", "ResourceClaim", claim.name, claim.namespace, claim.uid)
        return ObjectRef("v1", "Pod", pod.name, pod.namespace, pod.uid)


def _read(entry: JsonObject) -> _Said | None:
    """Of an entry that says that its device could be nearer; of any other ``None``."""
    wanted = (ConditionType.ALIGNED, ConditionReason.WORSE_THAN_POSSIBLE)
    for condition in entry.get("conditions") or ():
        if (condition.get("type"), condition.get("reason")) == wanted:
            since = _read_time(condition.get("lastTransitionTime"))
            return _Said(key_of(entry), since, str(condition.get("message") or ""))
    return None


def _read_time(text: object) -> datetime:
    """Very long ago where it cannot be read."""
    try:
        return datetime.fromisoformat(str(text)).astimezone(UTC)
    except ValueError:
        return datetime.fromtimestamp(0, UTC)
