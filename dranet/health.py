"""The health of a device: the faults that one observation shows, their course over time, and taints.

Pure: the clocks are passed in. ``now`` (``time.monotonic``, the same for all processes of one boot) orders
and measures. ``wall`` (Unix seconds) only appears in messages, so a step of the node's clock changes no
result.

The taints are those of KEP-5055: only a device that carries nothing may keep pods away or evict them, every
other fault is shown with the effect ``None``. There is one key for each class of faults, four at most.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from dranet.model.device import Taint, TaintEffect
from dranet.model.facts import RdmaPort
from dranet.model.health import (
    CARRIER_LOSSES,
    FIRMWARE_SOURCES,
    FaultKind,
    FaultSeverity,
    HealthObservation,
    PcieLink,
)


def find_present(seen: HealthObservation) -> dict[FaultKind, str]:
    """Return each fault that a single observation shows, with what was seen."""
    link = seen.link
    if link is not None and link.is_up and not link.carrier and not is_on_infiniband(seen):
        # a RoCE port goes down with its link: one cause, one fault
        return {FaultKind.LINK_DOWN: f"{link.ifname} has no carrier"}
    ports = _own_ports(seen)
    down = [text for port in ports if (text := _why_down(port, seen))]
    works = any(port.state == "ACTIVE" for port in ports)
    return {FaultKind.RDMA_PORT_DOWN: "; ".join(down)} if down and not works else {}


def is_on_infiniband(seen: HealthObservation) -> bool:
    """Whether an enabled InfiniBand port shows the state of the device, whatever its IPoIB interface does.

    The interface has no carrier when its partition or multicast group is refused, and is switched off on most
    nodes. RDMA works all the same.
    """
    return any(port.link_layer == "InfiniBand" and port.phys_state != "Disabled" for port in _own_ports(seen))


def _own_ports(seen: HealthObservation) -> tuple[RdmaPort, ...]:
    """Return the ports that name the device's link, if any does: a card may have another port without a
    cable."""
    ifname = seen.link.ifname if seen.link is not None else ""
    return tuple(port for port in seen.ports if ifname in port.netdevs) or seen.ports


def _why_down(port: RdmaPort, seen: HealthObservation) -> str:
    """Return why the port is down; empty if it works or is off on purpose. A RoCE port follows its link:
    nothing is known while that is down or out of sight."""
    is_unknown = port.link_layer == "Ethernet" and seen.has_link and not (seen.link and seen.link.is_up)
    if port.state == "ACTIVE" or port.phys_state == "Disabled" or is_unknown:
        return ""
    physical = f" ({port.phys_state})" if port.phys_state else ""
    return f"{seen.rdma_device} port {port.number} is {port.state or 'in an unknown state'}{physical}"


def find_unknown(seen: HealthObservation) -> str:
    """Return why the health of the device is unknown; empty if something works or shows a fault."""
    link = seen.link
    if any(port.state == "ACTIVE" for port in _own_ports(seen)) or (link is not None and link.is_up):
        return ""
    if is_on_infiniband(seen):
        return ""
    if link is not None:
        return f"{link.ifname} is administratively down" + (" in the pod" if seen.holder else "")
    if seen.has_link:
        return "its link is in a pod's network namespace, and not in sight" if seen.holder else "no link"
    if seen.ports and all(port.phys_state == "Disabled" for port in seen.ports):
        return f"{seen.rdma_device} is switched off"
    return "" if seen.ports else "nothing of it is watched"


TAINT_DOMAIN = "dra.net"

_KEYS: Mapping[FaultKind, str] = {
    FaultKind.LINK_DOWN: "link-down",
    FaultKind.RDMA_PORT_DOWN: "rdma-port-down",
    FaultKind.LINK_FLAPPING: "degraded",
    FaultKind.LINK_ERRORS: "degraded",
    FaultKind.PCIE_DEGRADED: "degraded",
    FaultKind.FIRMWARE_CHANGED: "changed",
    FaultKind.DRIVER_CHANGED: "changed",
}

TAINT_KEYS = tuple(dict.fromkeys(f"{TAINT_DOMAIN}/{key}" for key in _KEYS.values()))


def build_taints(faults: Iterable[FaultKind], hardest: TaintEffect | None) -> tuple[Taint, ...]:
    """Return the taints of a device with these faults, sorted by key; none if ``hardest`` is ``None``.

    ``hardest`` is the effect of a fault that leaves nothing working. The value names the fault. If several
    faults share a key it names the first, so that the value does not change while others come and go.
    """
    if hardest is None:
        return ()
    taints: dict[str, Taint] = {}
    for kind in sorted(set(faults), key=list(FaultKind).index):
        key = f"{TAINT_DOMAIN}/{_KEYS[kind]}"
        effect = hardest if kind.severity is FaultSeverity.HARD else TaintEffect.NONE
        taints.setdefault(key, Taint(key, effect, str(kind)))
    return tuple(taints[key] for key in sorted(taints))


_RISES_OF_A_SAVER = 2
"""A link whose speed rose twice saves power; a single rise may be a repair."""


class PcieJudge:
    """Decides whether the PCIe link of one device is slower or narrower than it should be.

    A slot may have fewer lanes than the card, so the slot's port counts as much as the card. A device may
    lower the speed of its link while it is idle and raise it under load: one that was seen doing so is no
    longer judged by speed. A suspended function is not judged.
    """

    def __init__(self) -> None:
        self._best_width = 0
        self._best_speed = 0.0
        self._last_speed = 0.0
        self._rises = 0

    def judge(self, link: PcieLink) -> str:
        """Return what is wrong with the link; empty if nothing is, or nothing is known."""
        if link.asleep or not link.width:
            return ""
        self._rises += 0 < self._last_speed < link.speed
        self._last_speed = link.speed or self._last_speed
        self._best_width = max(self._best_width, link.width)
        self._best_speed = max(self._best_speed, link.speed)
        width = _possible(link.most_width, link.port_width, self._best_width)
        speed = _possible(link.most_speed, link.port_speed, self._best_speed)
        problems = []
        if link.width < width:
            problems.append(f"x{link.width} instead of x{width:g}")
        if 0 < link.speed < speed and self._rises < _RISES_OF_A_SAVER:
            problems.append(f"{link.speed:g} GT/s instead of {speed:g} GT/s")
        return f"PCIe link at {' and '.join(problems)}" if problems else ""


def _possible(card: float, port: float, best_seen: float) -> float:
    """Return what both ends support; if the port does not report it (virtual machines hide it), the best seen
    so far."""
    return min(card, port) if card and port else best_seen


Seconds = Annotated[float, Meta(ge=0, le=1e11)]
"""A time of any clock, within the years of Python's calendar."""

MOST_DOUBLINGS = 4
"""The delay before a fault is cleared grows up to sixteenfold."""


class Damping(Struct, frozen=True):
    raise_seconds: float = 10.0
    """For how long a fault must persist before it is raised."""
    clear_seconds: float = 60.0
    """For how long it must be gone before it is cleared; doubled for each relapse."""

    def hold_seconds(self, relapses: int) -> float:
        return float(self.clear_seconds * 2 ** min(relapses, MOST_DOUBLINGS))

    @property
    def memory_seconds(self) -> float:
        """A fault that returns within this time after it was cleared counts as the same one."""
        return 4 * self.hold_seconds(MOST_DOUBLINGS)


class FaultState(Struct, frozen=True):
    present: bool = False
    """Whether it shows, as far as is known."""
    changed_at: Seconds = 0.0
    """When ``present`` became what it is."""
    raised: bool = False
    """Whether it counts."""
    relapses: Annotated[int, Meta(ge=0)] = 0
    """How often it returned before it was forgotten."""
    cleared_at: Seconds | None = None


NO_FAULT = FaultState()


def step(state: FaultState, present: bool, now: float, damping: Damping) -> FaultState:
    """Return the state after an observation at ``now`` that showed the fault or did not.

    A raised fault that returns after a while, not after a blink, is held for longer.
    """
    if present != state.present:
        is_relapse = present and state.raised and now - state.changed_at >= damping.raise_seconds
        state = replace(state, present=present, changed_at=now, relapses=state.relapses + is_relapse)
    lasted = now - state.changed_at
    if present and not state.raised and lasted >= damping.raise_seconds:
        is_new = state.cleared_at is None or state.changed_at - state.cleared_at > damping.memory_seconds
        relapses = 0 if is_new else state.relapses + 1
        return replace(state, raised=True, relapses=relapses, cleared_at=None)
    if not present and state.raised and lasted >= damping.hold_seconds(state.relapses):
        return replace(state, raised=False, cleared_at=now)
    return state


def next_due(state: FaultState, damping: Damping) -> float | None:
    """Return when the state changes if nothing else is observed; ``None``: never."""
    if state.present == state.raised:
        return None
    if state.present:
        return state.changed_at + damping.raise_seconds
    return state.changed_at + damping.hold_seconds(state.relapses)


def is_of_interest(state: FaultState, now: float, damping: Damping) -> bool:
    """Whether the fault shows, is raised, or would be held for longer if it returned now."""
    if state.present or state.raised:
        return True
    return state.cleared_at is not None and now - state.cleared_at <= damping.memory_seconds


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


class KnownFault(Struct, frozen=True):
    """One fault of one device: its state, and what was seen when it began."""

    state: FaultState = NO_FAULT
    text: str = ""
    since: Seconds = 0.0
    """Unix seconds, for messages."""


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
        latest = {
            kind: max(known.state.changed_at, known.state.cleared_at or 0.0)
            for kind, known in self.faults.items()
        }
        return replace(self, faults={kind: self.faults[kind] for kind, at in latest.items() if at <= now})


NOTHING = DeviceMemory()


class DeviceTracker:
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
        is_bad = any(kind.severity is not FaultSeverity.NOTICE for kind in self._raised())
        self.health = DeviceHealth(False if is_bad else None, "not looked at yet")
        """As of the last observation; at first a remembered fault, which must not be reported as new."""

    @property
    def memory(self) -> DeviceMemory:
        states = {kind: known.state for kind, known in self._faults.items()}
        kept = [kind for kind, state in states.items() if state.raised or state.cleared_at is not None]
        return DeviceMemory({kind: self._faults[kind] for kind in kept}, dict(self._versions))

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
        due = self.due
        return seen != self._last_seen or (due is not None and due <= now)

    def observe(self, seen: HealthObservation, now: float, wall: float) -> int:
        """Take in an observation, and return how often the carrier was lost since the last one."""
        self._last_seen, self._looked_at = seen, now
        was_off = seen.times_off != self._times_off and not is_on_infiniband(seen)
        if self._on_since is None or _is_off(seen) or seen.holder != self._holder or was_off:
            self._start_again(seen, now)
        losses = self._note_counters(seen, now)
        shown = find_present(seen)
        present = {
            **self._find_unseen(seen, now),
            **self._without_training(shown, seen, now),
            **self._find_over_time(seen, now),
        }
        damping = self._patience.damping
        stepped: dict[FaultKind, KnownFault] = {}
        for kind in sorted(self._faults.keys() | present.keys()):
            text = "" if kind in self._patience.ignored else present.get(kind, "")
            if text or kind in self._faults:
                stepped[kind] = self._step(kind, text, now, wall)
        self._faults = {k: known for k, known in stepped.items() if is_of_interest(known.state, now, damping)}
        self.health = self._judge(seen, shown)
        return losses

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
        unseen: dict[FaultKind, str] = {
            kind: self._faults[kind].text
            for kind in (FaultKind.LINK_DOWN, FaultKind.RDMA_PORT_DOWN)
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
        if self._on_since is not None and now - self._on_since >= self._patience.training_seconds:
            self._has_worked = True  # time is over: from now on it is judged as any other
        if self._has_worked:
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

    def _step(self, kind: FaultKind, text: str, now: float, wall: float) -> KnownFault:
        """The text stays that of the beginning of the fault: a message that changes with each observation is
        noise."""
        known = self._faults.get(kind, KnownFault())
        if text and not known.state.present and not known.state.raised:
            known = replace(known, text=text, since=wall)
        return replace(known, state=step(known.state, bool(text), now, self._patience.damping))

    def _shows(self, kind: FaultKind) -> bool:
        return kind in self._faults and self._faults[kind].state.present

    def _raised(self) -> set[FaultKind]:
        return {kind for kind, known in self._faults.items() if known.state.raised}

    def _judge(self, seen: HealthObservation, shown: Mapping[FaultKind, str]) -> DeviceHealth:
        counting = self._raised()
        raised = tuple(kind for kind in FaultKind if kind in counting)
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
        gone = "; it has gone, and is watched for a while" if is_gone else ""
        return f"{kind}: {known.text}, since {since}{gone}"

    def _gone_at(self, known: KnownFault) -> float | None:
        """Return when a raised fault that no longer shows is reported as gone: halfway to where it is
        cleared, so that a fault that returns is reported less often."""
        if not known.state.raised or known.state.present:
            return None
        return known.state.changed_at + self._patience.damping.hold_seconds(known.state.relapses) / 2


def _is_off(seen: HealthObservation) -> bool:
    return seen.has_link and (seen.link is None or not seen.link.is_up) and not is_on_infiniband(seen)
