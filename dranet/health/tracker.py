"""The health of one device over time, from observations.

Pure: the clocks are passed in. ``now`` (``time.monotonic``) orders and measures. ``wall`` (Unix seconds) only
appears in messages, so a step of the node's clock changes no result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from itertools import pairwise

from msgspec import Struct, field
from msgspec.structs import replace

from dranet.health.damping import NO_FAULT, Damping, FaultState, Seconds, is_of_interest, next_due, step
from dranet.health.faults import PcieJudge, find_present, find_unknown, is_on_infiniband
from dranet.model.health import (
    CARRIER_LOSSES,
    FIRMWARE_SOURCES,
    FaultKind,
    FaultSeverity,
    HealthObservation,
)

MOST_READINGS = 32
"""Per device. If a link flaps all the time, the window gets shorter."""


class Counters:
    """Readings of one device's counters over a window of time, oldest first. Equal readings are kept once."""

    def __init__(self, window_seconds: float) -> None:
        self._window = window_seconds
        self._kept: list[tuple[float, Mapping[str, int]]] = []

    def add(self, counters: Mapping[str, int], now: float) -> None:
        """Add a reading; counters that it lacks are unchanged. A counter that fell shows that the driver was
        reloaded, so the history is dropped."""
        last = self._kept[-1][1] if self._kept else {}
        if any(value < last.get(name, 0) for name, value in counters.items()):
            self._kept, last = [], {}
        if any(last.get(name) != value for name, value in counters.items()):
            self._kept.append((now, {**last, **counters}))
        self._forget_before(now - self._window)

    def restart(self) -> None:
        """Forget all readings: the device changed hands."""
        self._kept = []

    def growth(self, name: str, now: float) -> tuple[int, int]:
        """Return by how much the counter grew within the window, and in how many readings. A new counter has
        not grown."""
        self._forget_before(now - self._window)
        values = [counters[name] for _, counters in self._kept if name in counters]
        steps = sum(later > earlier for earlier, later in pairwise(values))
        return (values[-1] - values[0], steps) if values else (0, 0)

    def names(self) -> Collection[str]:
        return self._kept[-1][1].keys() if self._kept else ()

    def next_due(self) -> float | None:
        """Return when the growth shrinks if nothing is read; ``None``: there is no growth."""
        return self._kept[1][0] + self._window if len(self._kept) > 1 else None

    def _forget_before(self, begin: float) -> None:
        """Drop readings before ``begin``, except the last of them: growth is counted from there."""
        while len(self._kept) > 1 and (self._kept[1][0] <= begin or len(self._kept) > MOST_READINGS):
            del self._kept[0]


FLAPS = 3
"""Carrier losses within the window that make a flapping link."""

LINK_DOWNED = "link_downed"
"""The counter of an RDMA port that corresponds to carrier losses (``sysfs-class-infiniband``)."""

ERRORS = 10
"""Errors within the window that count if they occurred in at least two readings: one burst while a link
trains is normal."""


class Patience(Struct, frozen=True):
    """For how long the tracker waits and compares."""

    damping: Damping = field(default=Damping())
    training_seconds: float = 60.0
    """How long a link that was switched on or moved may take until it works."""
    blind_seconds: float = 60.0
    """How long a fault persists while the link is out of sight: the driver was restarted, or a pod gets the
    link."""
    window_seconds: float = 300.0
    """The window over which counters are compared."""
    ignored: frozenset[FaultKind] = frozenset()
    """Faults that the operator excluded."""


PATIENCE = Patience()

_FAULTS_OF_A_LINK = (FaultKind.LINK_DOWN, FaultKind.RDMA_PORT_DOWN)


class KnownFault(Struct, frozen=True):
    """One fault of one device: its state, and what was seen when it began."""

    state: FaultState = NO_FAULT
    text: str = ""
    since: Seconds = 0.0
    """Unix seconds, for messages."""

    def is_past(self, now: float) -> bool:
        """Whether all of its times are before ``now``."""
        return max(self.state.changed_at, self.state.cleared_at or 0.0) <= now


class DeviceHealth(Struct, frozen=True):
    """The health of a device; ``healthy`` is ``None`` if it is unknown."""

    healthy: bool | None = None
    message: str = ""
    faults: tuple[FaultKind, ...] = ()
    """Those that count, in the order of their declaration."""


class DeviceMemory(Struct, frozen=True):
    """What survives a restart of the driver until the node reboots."""

    faults: Mapping[FaultKind, KnownFault] = field(default_factory=dict)
    """Those that are raised, or would be held for longer if they returned."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """As first seen."""

    def without_future(self, now: float) -> DeviceMemory:
        """Return the memory without faults that begin after ``now``: they are from another clock and would
        never end."""
        return replace(
            self, faults={kind: known for kind, known in self.faults.items() if known.is_past(now)}
        )


NOTHING = DeviceMemory()


class DeviceTracker:
    """Follows the health of one device."""

    def __init__(self, patience: Patience = PATIENCE, memory: DeviceMemory = NOTHING) -> None:
        self._patience = patience
        self._faults: dict[FaultKind, KnownFault] = dict(memory.faults)
        self._versions: dict[str, str] = dict(memory.versions)
        self._counters = Counters(patience.window_seconds)
        self._pcie = PcieJudge()
        self._holder = ""
        self._times_off = 0
        self._losses: int | None = None
        self._on_since: float | None = None
        """When the link was switched on, or came to its holder."""
        self._has_worked = False
        """Whether it has worked since then."""
        self._was_good = False
        """Whether it was reported healthy since then."""
        self._blind_since: float | None = None
        """When the link went out of sight."""
        self._lasts_unseen = False
        """Whether a fault persists only because the link is out of sight."""
        self._looked_at = 0.0
        self._pcie_problem = ""
        self._last_seen: HealthObservation | None = None
        self.health = self._build_first_health()
        """As of the last observation."""

    def _build_first_health(self) -> DeviceHealth:
        """A remembered fault must not be reported as new."""
        remembered = [kind for kind, known in self._faults.items() if known.state.raised]
        is_bad = any(kind.severity is not FaultSeverity.NOTICE for kind in remembered)
        return DeviceHealth(False if is_bad else None, "not looked at yet")

    @property
    def memory(self) -> DeviceMemory:
        """What to keep for the next start of the driver."""
        return DeviceMemory(
            {kind: known for kind, known in self._faults.items() if _is_worth_keeping(known.state)},
            dict(self._versions),
        )

    @property
    def due(self) -> float | None:
        """When to observe again if nothing changes; ``None``: everything is steady."""
        damping = self._patience.damping
        dues = [next_due(known.state, damping) for known in self._faults.values()]
        if any(self._shows(kind) for kind in (FaultKind.LINK_FLAPPING, FaultKind.LINK_ERRORS)):
            dues.append(self._counters.next_due())
        if self._on_since is not None and not self._has_worked:
            dues.append(self._on_since + self._patience.training_seconds)
        if self._blind_since is not None and self._lasts_unseen:
            dues.append(self._blind_since + self._patience.blind_seconds)
        goings = [self._gone_at(known) for known in self._faults.values()]
        dues += [going for going in goings if going is not None and going > self._looked_at]
        return min((due for due in dues if due is not None), default=None)

    def is_pending(self, kind: FaultKind) -> bool:
        """Whether the fault shows, and is not raised yet."""
        return self._shows(kind) and not self._faults[kind].state.raised

    def is_news(self, seen: HealthObservation, now: float) -> bool:
        """Whether this observation can change the result."""
        due = self.due
        return seen != self._last_seen or (due is not None and due <= now)

    def observe(self, seen: HealthObservation, now: float, wall: float) -> int:
        """Take in an observation, and return how often the carrier was lost since the last one."""
        self._last_seen, self._looked_at = seen, now
        if self._has_new_start(seen):
            self._start_again(seen, now)
        losses = self._note_counters(seen, now)
        shown = find_present(seen)
        present = {
            **self._find_unseen(seen, now),
            **self._without_training(shown, seen, now),
            **self._find_over_time(seen, now),
        }
        damping = self._patience.damping
        for kind in sorted(self._faults.keys() | present.keys()):
            text = "" if kind in self._patience.ignored else present.get(kind, "")
            if text or kind in self._faults:
                self._faults[kind] = self._step(kind, text, now, wall, damping)
        self._faults = {
            k: known for k, known in self._faults.items() if is_of_interest(known.state, now, damping)
        }
        self.health = self._judge(seen, shown)
        return losses

    def _has_new_start(self, seen: HealthObservation) -> bool:
        is_moved = seen.holder != self._holder
        was_off = seen.times_off != self._times_off and not is_on_infiniband(seen)
        return self._on_since is None or _is_off(seen) or is_moved or was_off

    def _start_again(self, seen: HealthObservation, now: float) -> None:
        """Begin training. Moving a link, or switching it off and on, loses its carrier; such losses do not
        count."""
        self._holder, self._losses, self._times_off = seen.holder, None, seen.times_off
        self._has_worked = self._was_good = False
        self._on_since = None if _is_off(seen) else now
        self._counters.restart()

    def _note_counters(self, seen: HealthObservation, now: float) -> int:
        """Return how often the carrier was lost since the last observation. Losses and errors while a link
        trains do not count."""
        if self._on_since is None:
            return 0
        if now - self._on_since < self._patience.training_seconds:
            self._counters.restart()
        if seen.counters:
            self._counters.add(seen.counters, now)
        before, self._losses = self._losses, seen.counters.get(CARRIER_LOSSES, self._losses)
        return max(0, self._losses - before) if self._losses is not None and before is not None else 0

    def _find_unseen(self, seen: HealthObservation, now: float) -> dict[FaultKind, str]:
        """Return the faults that persist because the link went out of sight a moment ago."""
        self._lasts_unseen = False
        if not seen.has_link or seen.link is not None:
            self._blind_since = None
            return {}
        if self._blind_since is None:
            self._blind_since = now
        if now - self._blind_since >= self._patience.blind_seconds:
            return {}
        counting = self._raised()
        unseen = {
            kind: self._faults[kind].text
            for kind in _FAULTS_OF_A_LINK
            if kind in counting and self._shows(kind)
        }
        self._lasts_unseen = bool(unseen)
        return unseen

    def _without_training(
        self, shown: dict[FaultKind, str], seen: HealthObservation, now: float
    ) -> dict[FaultKind, str]:
        """Return the faults that show, without those of a link that is still training. A raised fault
        persists."""
        self._has_worked = self._has_worked or not (shown or find_unknown(seen))
        if self._has_worked or (
            self._on_since is not None and now - self._on_since >= self._patience.training_seconds
        ):
            self._has_worked = True  # time is over: from now on it is judged as any other
            return shown
        return {kind: text for kind, text in shown.items() if kind in self._raised()}

    def _find_over_time(self, seen: HealthObservation, now: float) -> dict[FaultKind, str]:
        if seen.pcie is not None:
            self._pcie_problem = self._pcie.judge(seen.pcie)
        is_steady = self._counters.next_due() is None
        found = {
            FaultKind.LINK_FLAPPING: "" if is_steady else self._find_flaps(now),
            FaultKind.LINK_ERRORS: "" if is_steady else self._find_errors(now),
            FaultKind.PCIE_DEGRADED: self._pcie_problem,
            **self._find_changes(seen.versions),
        }
        return {kind: text for kind, text in found.items() if text}

    def _find_flaps(self, now: float) -> str:
        flaps = max(self._counters.growth(name, now)[0] for name in (CARRIER_LOSSES, LINK_DOWNED))
        return f"the carrier was lost {flaps} times within {self._minutes}" if flaps >= FLAPS else ""

    def _find_errors(self, now: float) -> str:
        grown = {name: self._counters.growth(name, now) for name in sorted(self._counters.names())}
        rising = [
            f"{name} by {amount}"
            for name, (amount, readings) in grown.items()
            if amount >= ERRORS and readings >= 2 and name not in (CARRIER_LOSSES, LINK_DOWNED)
        ]
        return f"rose within {self._minutes}: {', '.join(rising)}" if rising else ""

    @property
    def _minutes(self) -> str:
        return f"{self._patience.window_seconds / 60:g} min"

    def _find_changes(self, versions: Mapping[str, str]) -> dict[FaultKind, str]:
        changes: dict[FaultKind, list[str]] = {}
        for what, version in versions.items():
            first = self._versions.setdefault(what, version)
            if version != first:
                is_firmware = what in FIRMWARE_SOURCES
                kind = FaultKind.FIRMWARE_CHANGED if is_firmware else FaultKind.DRIVER_CHANGED
                changes.setdefault(kind, []).append(f"{what} was {first} and is {version}")
        return {kind: "; ".join(texts) for kind, texts in changes.items()}

    def _step(self, kind: FaultKind, text: str, now: float, wall: float, damping: Damping) -> KnownFault:
        """The text stays that of the beginning of the fault: a message that changes with each observation is
        noise."""
        known = self._faults.get(kind, KnownFault())
        begins = bool(text) and not known.state.present and not known.state.raised
        if begins:
            known = replace(known, text=text, since=wall)
        return replace(known, state=step(known.state, bool(text), now, damping))

    def _shows(self, kind: FaultKind) -> bool:
        return kind in self._faults and self._faults[kind].state.present

    def _raised(self) -> set[FaultKind]:
        return {kind for kind, known in self._faults.items() if known.state.raised}

    def _judge(self, seen: HealthObservation, shown: Mapping[FaultKind, str]) -> DeviceHealth:
        counting = self._raised()
        raised = tuple(kind for kind in FaultKind if kind in counting) if counting else ()
        message = "; ".join(self._describe(kind) for kind in raised)
        if any(kind.severity is not FaultSeverity.NOTICE for kind in raised):
            return DeviceHealth(False, message, raised)
        unknown = find_unknown(seen)
        early = [text for kind, text in shown.items() if kind not in self._patience.ignored]
        if early and not self._was_good:
            unknown = f"{early[0]} yet"
        if unknown:
            return DeviceHealth(None, "; ".join(filter(None, (unknown, message))), raised)
        self._was_good = True
        return DeviceHealth(True, message, raised)

    def _describe(self, kind: FaultKind) -> str:
        """The text of a flapping link stays the same: the kubelet writes each new text to the API server."""
        known = self._faults[kind]
        since = datetime.fromtimestamp(known.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        going = self._gone_at(known)
        is_gone = going is not None and going <= self._looked_at
        return f"{kind}: {known.text}, since {since}" + (
            "; it has gone, and is watched for a while" if is_gone else ""
        )

    def _gone_at(self, known: KnownFault) -> float | None:
        """Return when a raised fault that no longer shows is reported as gone: halfway to where it is
        cleared, so that a fault that returns is reported less often."""
        if not known.state.raised or known.state.present:
            return None
        return known.state.changed_at + self._patience.damping.hold_seconds(known.state.relapses) / 2


def _is_off(seen: HealthObservation) -> bool:
    """Whether the link is switched off or out of sight, so that its health is unknown."""
    return seen.has_link and (seen.link is None or not seen.link.is_up) and not is_on_infiniband(seen)


def _is_worth_keeping(state: FaultState) -> bool:
    return state.raised or state.cleared_at is not None
