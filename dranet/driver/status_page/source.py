"""Collects what the status page shows, from memory on the event loop, and renders it in a thread.

The daemon loads this and ``content``; ``document`` and the pictures are loaded with the first page.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from dranet import __version__
from dranet.driver.alignment.watch import Verdicts
from dranet.driver.health import HealthMonitor
from dranet.driver.instances.leader import Leadership
from dranet.driver.probes.http import Response
from dranet.driver.probes.server import Readiness
from dranet.driver.publish import Inventory
from dranet.driver.reports.reporter import RecentEvents
from dranet.driver.start_gate import StartGate
from dranet.driver.status_page.content import Content, Driver, SeenClaim
from dranet.health import DeviceHealth
from dranet.inventory.policy import Decision
from dranet.model.findings import Finding, Severity
from dranet.settings import Settings
from dranet.store.claim_store import ClaimStore

MOST_WARNINGS = 20


class StatusSources(Struct, frozen=True):
    settings: Settings
    leadership: Leadership
    readiness: Readiness
    inventory: Inventory
    store: ClaimStore
    gate: StartGate
    health: HealthMonitor
    verdicts: Verdicts
    recent_events: RecentEvents
    read_findings: Callable[[], Sequence[Finding]]


KEPT_SECONDS, RESTS = 1.0, 10
"""A page is kept for a second, or for ten times the time it took to render. Otherwise a client that asks in
a loop would take processor time from the hooks."""


class PageSource:
    """Renders one page at a time."""

    def __init__(self, sources: StatusSources, wall: Callable[[], float] = time.time) -> None:
        self._sources = sources
        self._wall = wall
        self._started_at = time.time()
        self._turn = asyncio.Lock()
        self._shown: Response | None = None

    async def read(self) -> Response:
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
        sources, view = self._sources, self._sources.inventory.view
        settings, records = sources.settings, sources.store.get_all()
        offered = (Decision(device, True, "") for device in view.offered.values())
        return Content(
            Driver(
                settings.node_name,
                settings.driver_name,
                __version__,
                str(sources.leadership.state),
                self._started_at,
            ),
            self._wall(),
            dict(sources.readiness.read()),
            view.facts,
            (*offered, *view.not_offered.values()),
            tuple(self._read_findings()),
            {fact.device: DeviceHealth(fact.healthy, fact.message) for fact in sources.health.facts},
            tuple(SeenClaim(record, is_attached=False) for record in records),
            sources.store.quarantine_size,
            {
                key: verdict
                for pod_uid in {record.pod.uid for record in records}
                for key, verdict in sources.verdicts.get_latest(pod_uid).items()
            },
            tuple(sources.recent_events.list()),
        )

    def _read_findings(self) -> Iterator[Finding]:
        """Yield findings about the disk, the peers, and what the last scan could not read."""
        trouble = self._sources.store.trouble
        if trouble is not None:
            yield Finding("store", Severity.PROBLEM, trouble.message, "no claim is prepared", trouble.hint)
        yield from self._sources.read_findings()
        for warning in self._sources.inventory.view.facts.warnings[:MOST_WARNINGS]:
            yield Finding("scan", Severity.NOTE, warning)

    def _render(self, content: Content) -> Response:
        from msgspec.structs import replace

        from dranet.driver.status_page.document import POLICY, render

        gate, records = self._sources.gate, [seen.record for seen in content.claims]
        claims = tuple(
            SeenClaim(record, gate.is_attached(record.claim.uid), gate.read_attached_at(record.claim.uid))
            for record in records
        )
        headers = (("Content-Security-Policy", POLICY), ("Referrer-Policy", "no-referrer"))
        body = render(replace(content, claims=claims))
        return Response("200 OK", body, "text/html; charset=utf-8", headers)
