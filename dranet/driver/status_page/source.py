"""What the page asks of the driver's parts.

Finds out what the page shows: from memory on the event loop, from the disk and into HTML in a thread.

The daemon loads this and none of its neighbours but ``content`` and ``knowledge``; those, and the pictures,
come with the first page.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from dranet import __version__
from dranet.claims.alignment import Verdict
from dranet.driver.alignment.verdicts import Verdicts
from dranet.driver.health.monitor import HealthMonitor
from dranet.driver.instances.leader import Leadership
from dranet.driver.probes.http import Response
from dranet.driver.probes.readiness import Readiness
from dranet.driver.probes.server import PartState
from dranet.driver.publish import Inventory, View
from dranet.driver.recent_events import RecentEvent, RecentEvents
from dranet.driver.start_gate import StartGate
from dranet.driver.status_page.content import Content, Driver, Health, SeenClaim
from dranet.errors import StoreError
from dranet.inventory.policy import Decision
from dranet.kubelet.health import DeviceHealthFact
from dranet.model.findings import Finding, Severity
from dranet.model.plan import PreparedClaim
from dranet.settings import Settings
from dranet.store.claim_store import ClaimStore

MOST_WARNINGS = 20


class StatusSources(Struct, frozen=True):
    """The services that the page describes."""

    settings: Settings
    leadership: Leadership
    readiness: Readiness
    inventory: Inventory
    store: ClaimStore
    health: HealthMonitor
    verdicts: Verdicts
    recent_events: RecentEvents


class PartsKnowledge:
    """Implements ``driver.page.source.Knowledge``."""

    def __init__(self, sources: StatusSources, read_findings: Callable[[], Sequence[Finding]]) -> None:
        self._sources = sources
        self._read_findings = read_findings
        self._started_at = time.time()

    def read_driver(self) -> Driver:
        settings, state = self._sources.settings, self._sources.leadership.state
        return Driver(settings.node_name, settings.driver_name, __version__, str(state), self._started_at)

    def read_parts(self) -> Mapping[str, PartState]:
        return self._sources.readiness.read()

    def read_view(self) -> View:
        return self._sources.inventory.view

    def read_findings(self) -> Sequence[Finding]:
        """Of the driver's peers, of its disk, and what the last scan could not read."""
        trouble = self._sources.store.trouble
        warnings = self._sources.inventory.view.facts.warnings[:MOST_WARNINGS]
        return [
            *([] if trouble is None else [_judge_store(trouble)]),
            *self._read_findings(),
            *(Finding("scan", Severity.NOTE, warning) for warning in warnings),
        ]

    def read_health(self) -> Sequence[DeviceHealthFact]:
        return self._sources.health.facts

    def read_claims(self) -> Sequence[PreparedClaim]:
        return self._sources.store.get_all()

    def count_unreadable_claims(self) -> int:
        return self._sources.store.quarantine_size

    def read_verdicts(self, pod_uid: str) -> Mapping[tuple[str, int], Verdict]:
        return self._sources.verdicts.get_latest(pod_uid)

    def read_happenings(self) -> Sequence[RecentEvent]:
        return self._sources.recent_events.list()


def _judge_store(trouble: StoreError) -> Finding:
    return Finding("store", Severity.PROBLEM, trouble.message, "no claim is prepared", trouble.hint)


class Knowledge(Protocol):
    """What is asked of the driver's parts; answers from memory."""

    def read_driver(self) -> Driver: ...

    def read_parts(self) -> Mapping[str, PartState]: ...

    def read_view(self) -> View: ...

    def read_findings(self) -> Sequence[Finding]: ...

    def read_health(self) -> Sequence[DeviceHealthFact]: ...

    def read_claims(self) -> Sequence[PreparedClaim]: ...

    def count_unreadable_claims(self) -> int: ...

    def read_verdicts(self, pod_uid: str) -> Mapping[tuple[str, int], Verdict]: ...

    def read_happenings(self) -> Sequence[RecentEvent]: ...


KEPT_SECONDS, RESTS = 1.0, 10
"""A page is everybody's for a second, or for ten times as long as it took to write: whoever asks in a loop
would take the hooks' time otherwise, which runtimes wait for. Then it is forgotten."""


class PageSource:
    """One page at a time."""

    def __init__(self, knowledge: Knowledge, gate: StartGate, wall: Callable[[], float] = time.time) -> None:
        self._knowledge = knowledge
        self._gate = gate
        self._wall = wall
        self._turn = asyncio.Lock()
        self._shown: Response | None = None

    async def read(self) -> Response:
        """The page as it is now, or was a moment ago."""
        async with self._turn:
            if self._shown is None:
                begun = time.monotonic()
                self._shown = await asyncio.to_thread(self._render, self._gather())
                kept = max(KEPT_SECONDS, RESTS * (time.monotonic() - begun))
                asyncio.get_running_loop().call_later(kept, self._forget)
            return self._shown

    def _forget(self) -> None:
        self._shown = None

    def _gather(self) -> Content:
        """Values that nobody changes any more."""
        knowledge, view = self._knowledge, self._knowledge.read_view()
        records = knowledge.read_claims()
        offered = (Decision(device, True, "") for device in view.offered.values())
        return Content(
            knowledge.read_driver(),
            self._wall(),
            dict(knowledge.read_parts()),
            view.facts,
            (*offered, *view.held_back.values()),
            tuple(knowledge.read_findings()),
            {fact.device: Health(fact.healthy, fact.message) for fact in knowledge.read_health()},
            tuple(SeenClaim(record, is_attached=False) for record in records),
            knowledge.count_unreadable_claims(),
            {
                key: verdict
                for pod_uid in {record.pod.uid for record in records}
                for key, verdict in knowledge.read_verdicts(pod_uid).items()
            },
            tuple(knowledge.read_happenings()),
        )

    def _render(self, content: Content) -> Response:
        from msgspec.structs import replace

        from dranet.driver.status_page.document import POLICY, render

        claims = tuple(self._look_at(seen.record) for seen in content.claims)
        headers = (("Content-Security-Policy", POLICY), ("Referrer-Policy", "no-referrer"))
        body = render(replace(content, claims=claims))
        return Response("200 OK", body, "text/html; charset=utf-8", headers)

    def _look_at(self, record: PreparedClaim) -> SeenClaim:
        uid = record.claim.uid
        return SeenClaim(record, self._gate.is_attached(uid), self._gate.read_attached_at(uid))
