"""What the page asks of the driver's parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from dranet import __version__
from dranet.claims.verdict import Verdict
from dranet.driver.doctor.findings import Finding, Severity
from dranet.driver.happenings import Happening
from dranet.driver.page.content import Driver
from dranet.driver.probes.routes import PartState
from dranet.driver.publish import View
from dranet.errors import StoreError
from dranet.kubelet.health import DeviceHealthFact
from dranet.model.plan import PreparedClaim

if TYPE_CHECKING:
    from dranet.driver.parts import Parts


MOST_WARNINGS = 20


class PartsKnowledge:
    """Implements ``driver.page.source.Knowledge``."""

    def __init__(self, parts: Parts, read_findings: Callable[[], Sequence[Finding]]) -> None:
        self._parts = parts
        self._read_findings = read_findings
        self._started_at = time.time()

    def read_driver(self) -> Driver:
        settings, state = self._parts.settings, self._parts.handover.state
        return Driver(settings.node_name, settings.driver_name, __version__, str(state), self._started_at)

    def read_parts(self) -> Mapping[str, PartState]:
        return self._parts.readiness.read()

    def read_view(self) -> View:
        return self._parts.inventory.view

    def read_findings(self) -> Sequence[Finding]:
        """Of the driver's peers, of its disk, and what the last scan could not read."""
        trouble = self._parts.store.trouble
        warnings = self._parts.inventory.view.facts.warnings[:MOST_WARNINGS]
        return [
            *([] if trouble is None else [_judge_store(trouble)]),
            *self._read_findings(),
            *(Finding("scan", Severity.NOTE, warning) for warning in warnings),
        ]

    def read_health(self) -> Sequence[DeviceHealthFact]:
        return self._parts.health.facts

    def read_claims(self) -> Sequence[PreparedClaim]:
        return self._parts.store.get_all()

    def count_unreadable_claims(self) -> int:
        return self._parts.store.quarantine_size

    def read_verdicts(self, pod_uid: str) -> Mapping[tuple[str, int], Verdict]:
        return self._parts.verdicts.get_latest(pod_uid)

    def read_happenings(self) -> Sequence[Happening]:
        return self._parts.happenings.list()


def _judge_store(trouble: StoreError) -> Finding:
    return Finding("store", Severity.PROBLEM, trouble.message, "no claim is prepared", trouble.hint)
