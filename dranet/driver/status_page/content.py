"""What the page shows, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from dranet.claims.verdict import Verdict
from dranet.dataclass import dataclass
from dranet.driver.probes.server import PartState
from dranet.driver.recent_events import RecentEvent
from dranet.inventory.decision import Decision
from dranet.model.facts import NodeFacts
from dranet.model.findings import Finding
from dranet.model.plan import PreparedClaim

DeviceKey = tuple[str, int]
"""Claim UID and position of the device in its record."""


@dataclass(frozen=True, slots=True)
class Driver:
    """The process that answers."""

    node: str
    name: str
    version: str
    state: str
    """To other instances on the node: ``on-duty``, ``waiting`` ..."""
    started_at: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class Health:
    """Of one device; ``healthy`` is ``None`` where it is not known."""

    healthy: bool | None
    message: str = ""


@dataclass(frozen=True, slots=True)
class SeenClaim:
    """A prepared claim and where it stands."""

    record: PreparedClaim
    is_attached: bool
    """Its devices were verified in the sandbox of its pod."""
    since: float | None = None
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class Content:
    """All of it, as of one moment."""

    driver: Driver
    now: float
    parts: Mapping[str, PartState]
    facts: NodeFacts
    decisions: tuple[Decision, ...] = ()
    findings: Sequence[Finding] = ()
    health: Mapping[str, Health] = field(default_factory=dict)
    """By device."""
    claims: Sequence[SeenClaim] = ()
    unreadable_claims: int = 0
    verdicts: Mapping[DeviceKey, Verdict] = field(default_factory=dict)
    happenings: Sequence[RecentEvent] = ()
    """Oldest first."""
