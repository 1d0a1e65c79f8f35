"""Trouble on request: what may go wrong between a client and an API server, by script or by chance."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from dranet.desk.kubeapi.errors import expired
from dranet.desk.kubeapi.objects import JsonObject
from testbed.apiserver.traffic import RequestRecord


class Chaos(StrEnum):
    """The kinds of trouble. The last three befall the events of a watch, the others requests."""

    THROTTLE = "429 with Retry-After"
    ERROR = "500"
    UNAVAILABLE = "503"
    CONFLICT = "409"
    EXPIRED = "410"
    """A watch begins at a version that is too old."""
    RESET_BEFORE = "connection reset, nothing done"
    RESET_AFTER = "connection reset, the work done"
    DELAY = "slow answer"
    STALL = "no answer ever, nothing done"
    WATCH_GAP = "event left out, then 410"
    WATCH_STALL = "watch silent"
    WATCH_RESET = "watch broken"


_OF_EVENTS = frozenset({Chaos.WATCH_GAP, Chaos.WATCH_STALL, Chaos.WATCH_RESET})
_STATUS = {
    Chaos.THROTTLE: 429,
    Chaos.ERROR: 500,
    Chaos.UNAVAILABLE: 503,
    Chaos.CONFLICT: 409,
    Chaos.EXPIRED: 410,
}


@dataclass(frozen=True, slots=True)
class Trouble:
    """What befalls one request; without any field set, nothing does."""

    status: int = 0
    """Answer with this and do nothing."""
    retry_after: int | None = None
    """Seconds, with ``status``."""
    delay_seconds: float = 0.0
    """Before anything else."""
    stalls: bool = False
    """Never answer, and do nothing."""
    resets_before: bool = False
    resets_after: bool = False


@dataclass(slots=True, eq=False, repr=False)
class ScriptedTrouble:
    """Trouble for the next ``remaining`` requests of one method whose path begins like this."""

    method: str
    path_prefix: str
    trouble: Trouble
    remaining: int

    def matches(self, record: RequestRecord) -> bool:
        return record.method == self.method and record.path.startswith(self.path_prefix)


class ChaosPlan:
    """Trouble by chance, the same for the same seed and the same order of requests.

    ``rates`` are probabilities (0 to 1) for each request, or for each event of a watch; their sum over each
    of the two must not pass 1. ``spares`` names the requests that are left alone: a test's own client, the
    other parts of a cluster. Nothing happens until :meth:`switch` turns it on. ``counts`` has what was
    done."""

    def __init__(
        self,
        seed: int,
        rates: Mapping[Chaos, float],
        *,
        spares: Callable[[RequestRecord], bool] = lambda _: False,
        delay_seconds: float = 0.2,
        stall_seconds: float = 1.0,
        retry_after: int = 1,
    ) -> None:
        self.counts: Counter[Chaos] = Counter()
        self.stall_seconds = stall_seconds
        """How long a stalled watch sends nothing."""
        self._on = False
        self._seed = seed
        self._drawn = 0
        self._rates = dict(rates)
        self._spares = spares
        self._delay_seconds = delay_seconds
        self._retry_after = retry_after

    def switch(self, *, on: bool) -> None:
        self._on = on

    def draw_for_request(self, record: RequestRecord) -> Trouble | None:
        """What befalls this request, if anything."""
        chosen = self._draw(record, of_events=False)
        if chosen is None or not _applies(chosen, record):
            return None
        self.counts[chosen] += 1
        return Trouble(
            status=_STATUS.get(chosen, 0),
            retry_after=self._retry_after if chosen is Chaos.THROTTLE else None,
            delay_seconds=self._delay_seconds if chosen is Chaos.DELAY else 0.0,
            stalls=chosen is Chaos.STALL,
            resets_before=chosen is Chaos.RESET_BEFORE,
            resets_after=chosen is Chaos.RESET_AFTER,
        )

    def draw_for_event(self, record: RequestRecord) -> Chaos | None:
        """What befalls the next event of this watch, if anything."""
        chosen = self._draw(record, of_events=True)
        if chosen is not None:
            self.counts[chosen] += 1
        return chosen

    def _draw(self, record: RequestRecord, *, of_events: bool) -> Chaos | None:
        if not self._on or self._spares(record):
            return None
        point = self._draw_point()
        for chaos, rate in self._rates.items():
            if (chaos in _OF_EVENTS) is of_events:
                point -= rate
                if point < 0:
                    return chaos
        return None

    def _draw_point(self) -> float:
        """The next number from 0 up to 1, even and repeatable: a hash of seed and count."""
        self._drawn += 1
        digest = hashlib.blake2b(f"{self._seed}:{self._drawn}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) / 2**64


def _applies(chaos: Chaos, record: RequestRecord) -> bool:
    """A conflict is an answer to a write of something that exists, 410 one to a watch."""
    if chaos is Chaos.CONFLICT:
        return record.method in ("PUT", "PATCH", "DELETE")
    if chaos is Chaos.EXPIRED:
        return record.method == "WATCH"
    return True


async def disturb_events(
    events: AsyncGenerator[JsonObject, None], find_plan: Callable[[], ChaosPlan | None], record: RequestRecord
) -> AsyncGenerator[JsonObject, None]:
    """The events of a watch with the trouble of the present plan. After a gap the next event of the
    watch is the error that its version is too old: no server loses an event and goes on."""
    gap = False
    async for event in events:
        if gap:
            yield {"type": "ERROR", "object": expired(0, 1).build_status()}
            return
        plan = find_plan()
        chaos = plan.draw_for_event(record) if plan else None
        gap = chaos is Chaos.WATCH_GAP
        if plan and chaos is Chaos.WATCH_STALL:
            await asyncio.sleep(plan.stall_seconds)
        if chaos is Chaos.WATCH_RESET:
            raise ConnectionResetError("the watch is broken by plan")
        if not gap:
            yield event
