"""The content of the status page, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from dranet.claims.alignment import Verdict
from dranet.driver.probes.server import PartState
from dranet.driver.reports.reporter import RecentEvent
from dranet.health import DeviceHealth
from dranet.inventory.policy import Decision
from dranet.model.facts import NodeFacts
from dranet.model.findings import Finding
from dranet.model.plan import PreparedClaim

DeviceKey = tuple[str, int]
"""Claim UID and position of the device in its record."""


class Driver(Struct, frozen=True):
    node: str
    name: str
    version: str
    state: str
    """Among the instances on the node: ``on-duty``, ``waiting`` ..."""
    started_at: float
    """Unix seconds."""


class SeenClaim(Struct, frozen=True):
    record: PreparedClaim
    is_attached: bool
    """Whether its devices were verified in the sandbox of its pod."""
    since: float | None = None
    """Unix seconds."""


class Content(Struct, frozen=True):
    driver: Driver
    now: float
    parts: Mapping[str, PartState]
    facts: NodeFacts
    decisions: tuple[Decision, ...] = ()
    findings: Sequence[Finding] = ()
    health: Mapping[str, DeviceHealth] = field(default_factory=dict)
    """By device."""
    claims: Sequence[SeenClaim] = ()
    unreadable_claims: int = 0
    verdicts: Mapping[DeviceKey, Verdict] = field(default_factory=dict)
    recent_events: Sequence[RecentEvent] = ()
    """Oldest first."""
