"""Observations -> health over time -> the kubelet, the slices, Events and metrics.

:class:`HealthMonitor` observes after each scan and whenever a link in a pod has changed. In between it only
does so while something is pending: a fault that must persist, or be gone, for some time. Nothing wakes up
while all is steady. Every instance of the driver follows the health of devices. Only the leader reports it to
the kubelet, writes Events and the file, and publishes taints: two instances that disagree by a second about
the begin of a fault would make the kubelet rewrite the pod's status with each report.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec import Struct

from dranet.driver.health.file import HealthFile
from dranet.driver.health.observations import NO_HOLDER, HealthObserver, Holder
from dranet.driver.reports.announcer import Announcer
from dranet.errors import SettingsError
from dranet.health.damping import Damping
from dranet.health.faults import build_taints
from dranet.health.tracker import PATIENCE, DeviceHealth, DeviceMemory, DeviceTracker, Patience
from dranet.kubelet.health import DeviceHealthFact
from dranet.model.device import DeviceKind, Taint, TaintEffect
from dranet.model.health import FaultKind, PcieLink
from dranet.settings import HealthTaints, Settings
from dranet.telemetry import HealthMetrics

UNKNOWN_SECONDS = 10.0
"""How long a link in a pod must be off or out of sight before it is reported as unknown. Faults wait
as long."""


class SteadyHealth:
    """Keeps short interruptions of a moving link from the kubelet.

    The kubelet syncs a pod again with each change of one of its devices, and nothing else happens to the pod,
    its end included, until it has asked the runtime again, up to a second later. A link that moves is off or
    out of sight for milliseconds, and one that no pod has is often off. Neither is news for a pod: a device
    that was healthy stays so until more is known.
    """

    def __init__(self) -> None:
        self._well: dict[str, DeviceHealthFact] = {}
        self._unknown_since: dict[str, float] = {}

    def settle(
        self, facts: Sequence[DeviceHealthFact], in_pods: Collection[str], now: float
    ) -> tuple[DeviceHealthFact, ...]:
        """Return the facts to report. ``in_pods`` are the devices that were moved into one."""
        unknown = {fact.device for fact in facts if fact.healthy is None}
        self._unknown_since = {name: self._unknown_since.get(name, now) for name in unknown & {*in_pods}}
        late = {name for name, since in self._unknown_since.items() if now - since >= UNKNOWN_SECONDS}
        kept = {name: fact for name, fact in self._well.items() if name in unknown - late}
        self._well = kept | {fact.device: fact for fact in facts if fact.healthy}
        return tuple(kept.get(fact.device, fact) for fact in facts)


log = logging.getLogger(__name__)

LEAST_WAIT_SECONDS = 0.05
"""Timers may be early; this avoids a busy loop until it is time."""

RESCANS_OF_A_WINDOW = 5

MOST_GONE = 512
"""Devices that are gone and may return: a card is gone for a moment while its firmware is updated. Names of
software links must not fill the memory."""

_STATES = {True: "healthy", False: "unhealthy", None: "unknown"}


class HealthRules(Struct, frozen=True):
    """The operator's settings."""

    pool: str
    """Name of the pool of the node's devices."""
    patience: Patience
    hardest: TaintEffect | None
    """Effect of the taint of a device that carries nothing; ``None``: no taints at all."""


def build_rules(settings: Settings) -> HealthRules:
    """Return the rules of the settings; counters are compared over several rescans.

    Raises:
        SettingsError: ``health_ignore`` names an unknown fault.
    """
    known = {str(kind) for kind in FaultKind}
    if unknown := sorted(set(settings.health_ignore) - known):
        raise SettingsError(
            f"--health-ignore: {', '.join(unknown)}: no such fault; known are {', '.join(FaultKind)}"
        )
    patience = Patience(
        Damping(settings.health_raise_seconds, settings.health_clear_seconds),
        settings.health_training_seconds,
        window_seconds=max(PATIENCE.window_seconds, RESCANS_OF_A_WINDOW * settings.rescan_seconds),
        ignored=frozenset(FaultKind(name) for name in settings.health_ignore),
    )
    is_off = settings.health_taints is HealthTaints.OFF
    return HealthRules(settings.node_name, patience, None if is_off else TaintEffect(settings.health_taints))


class HealthCallbacks(Struct, frozen=True):
    """What connects the monitor with the rest of the driver."""

    on_change: Callable[[], None]
    """Called when the health of a device has changed."""
    on_taints: Callable[[], None]
    """Called when taints have changed between two scans."""
    is_leader: Callable[[], bool]
    """Whether this instance reports."""


class Clocks(Struct, frozen=True):
    """Where the time comes from, in seconds."""

    steady: Callable[[], float] = time.monotonic
    """For durations."""
    wall: Callable[[], float] = time.time
    """Unix time, for what outlives the process."""


class DeviceStates(Struct, frozen=True):
    """What is known now, by device."""

    healthy: Mapping[str, bool | None]
    faults: Mapping[str, Sequence[str]]
    pcie: Mapping[str, PcieLink]
    """As of the last full scan."""


class HealthMonitor:
    """Follows the health of all devices. Implements ``kubelet.health.HealthSource`` and
    ``driver.publish.HealthWatch``. For the event loop."""

    def __init__(
        self,
        observer: HealthObserver,
        rules: HealthRules,
        file: HealthFile,
        announcer: Announcer,
        metrics: HealthMetrics,
        callbacks: HealthCallbacks,
        clocks: Clocks | None = None,
    ) -> None:
        clocks = clocks or Clocks()
        self._observer = observer
        self._inventory = observer.inventory
        self._rules = rules
        self._file = file
        self._announcer = announcer
        self._metrics = metrics
        self._is_leader = callbacks.is_leader
        self._clock, self._wall = clocks.steady, clocks.wall
        self._trackers: dict[str, DeviceTracker] = {}
        self._memories: dict[str, DeviceMemory] = {}
        """By device that is gone, the latest last."""
        self._written: Mapping[str, DeviceMemory] = {}
        self._facts: Sequence[DeviceHealthFact] = ()
        self._steady = SteadyHealth()
        self._in_pods: frozenset[str] = frozenset()
        """Devices that were moved into one."""
        self._wake = asyncio.Event()
        self._changed_pods: set[str] = set()
        self._on_change, self._on_taints = callbacks.on_change, callbacks.on_taints
        self.taints: Mapping[str, Sequence[Taint]] = {}
        """By device; devices without any are left out."""

    def snapshot(self) -> Sequence[DeviceHealthFact]:
        """Return one fact for each published device, and for each that is gone while a pod has it; nothing
        while another instance is the leader. The kubelet keeps facts for longer than a hand-over takes."""
        return self._steady.settle(self._facts, self._in_pods, self._clock()) if self._is_leader() else ()

    @property
    def facts(self) -> Sequence[DeviceHealthFact]:
        """What is known now, even if this instance is not the leader."""
        return self._facts

    @property
    def unhealthy(self) -> frozenset[str]:
        return frozenset(fact.device for fact in self._facts if fact.healthy is False)

    def get_states(self) -> DeviceStates:
        return DeviceStates(
            {fact.device: fact.healthy for fact in self._facts},
            {name: tuple(tracker.health.faults) for name, tracker in self._trackers.items()},
            self._observer.pcie_links,
        )

    def recall(self) -> None:
        """Take over what an earlier process of this boot knew, before the first observation. Blocking."""
        now = self._clock()
        self._memories = {name: memory.without_future(now) for name, memory in self._file.read().items()}
        self._written = dict(self._memories)

    async def scanned(self, *, is_full: bool) -> None:
        """Observe after a scan; counters are read with each full scan."""
        self._observer.scanned(is_full=is_full)
        if is_full:
            await self._observer.read_all()
        self.look()
        await self._save()
        self._wake.set()

    def pod_changed(self, pod_uid: str) -> None:
        """Observe again soon: a link in that pod has changed."""
        self._changed_pods.add(pod_uid)
        self._wake.set()

    async def run(self) -> None:
        """Observe when something is due or has changed, until cancelled."""
        while True:
            await self._wait_due()
            self._wake.clear()
            await self._observer.read_ports(self._find_devices_to_read())
            taints = self.taints
            self.look()
            if self.taints != taints:
                self._on_taints()
            await self._save()

    async def _wait_due(self) -> None:
        dues = [due for tracker in self._trackers.values() if (due := tracker.due) is not None]
        if not dues:
            await self._wake.wait()
            return
        try:
            async with asyncio.timeout(max(min(dues) - self._clock(), LEAST_WAIT_SECONDS)):
                await self._wake.wait()
        except TimeoutError:
            log.debug("a fault is due")

    def _find_devices_to_read(self) -> set[str]:
        """Return devices in pods that changed, and those whose port may have recovered, which no notification
        reports."""
        pods, self._changed_pods = self._changed_pods, set()
        held = {name for name, holder in self._observer.find_holders().items() if holder.mover in pods}
        down = {
            name for name, tracker in self._trackers.items() if tracker.is_pending(FaultKind.RDMA_PORT_DOWN)
        }
        return held | down

    def look(self) -> None:
        """Update the health of every device from what is known now, and report changes."""
        holders = self._observer.find_holders()
        now, wall = self._clock(), self._wall()
        seen: dict[str, DeviceTracker] = {}
        for device, observation in self._observer.collect(holders):
            tracker = seen[device.name] = self._trackers.get(device.name) or self._new_tracker(device.name)
            if tracker.is_news(observation, now):
                before = tracker.health
                self._metrics.carrier_losses.inc(tracker.observe(observation, now, wall))
                self._report(device.name, before, tracker.health, holders.get(device.name, NO_HOLDER))
        for name in self._trackers.keys() - seen.keys():
            self._memories[name] = self._trackers[name].memory
        for name in list(self._memories)[: max(0, len(self._memories) - MOST_GONE)]:
            del self._memories[name]
        self._trackers = seen
        self._conclude(holders)

    def _new_tracker(self, name: str) -> DeviceTracker:
        memory = self._memories.pop(name, None) or DeviceMemory()
        return DeviceTracker(self._rules.patience, memory)

    def _report(self, name: str, before: DeviceHealth, health: DeviceHealth, holder: Holder) -> None:
        """Report a device that became unhealthy or recovered."""
        is_bad = health.healthy is False
        if is_bad == (before.healthy is False):
            return
        message = health.message if is_bad else health.message or "all faults are gone"
        log.log(
            logging.WARNING if is_bad else logging.INFO,
            "device %s is %s: %s",
            name,
            "unhealthy" if is_bad else "no longer unhealthy",
            message,
        )
        if self._is_leader():
            self._announcer.health_changed(name, holder.pods, healthy=not is_bad, message=message)

    def _conclude(self, holders: Mapping[str, Holder]) -> None:
        facts = [*self._build_facts(), *self._build_facts_of_gone(holders)]
        hardest = self._rules.hardest
        tainted = {name: build_taints(t.health.faults, hardest) for name, t in self._trackers.items()}
        self.taints = {name: taints for name, taints in tainted.items() if taints}
        self._in_pods = frozenset(name for name, holder in holders.items() if holder.mover)
        if facts != self._facts:
            self._facts = facts
            self._count(facts)
            self._on_change()

    def _build_facts(self) -> list[DeviceHealthFact]:
        facts = []
        for device in self._inventory.view.offered.values():
            tracker = self._trackers.get(device.name)
            health = tracker.health if tracker is not None else _UNWATCHED[device.kind is DeviceKind.GPU]
            facts.append(DeviceHealthFact(self._rules.pool, device.name, health.healthy, health.message))
        return facts

    def _build_facts_of_gone(self, holders: Mapping[str, Holder]) -> list[DeviceHealthFact]:
        """Return facts about devices that were unplugged, or fell off the bus, while a pod has them."""
        not_offered = self._inventory.view.not_offered
        return [
            DeviceHealthFact(self._rules.pool, name, False, f"{name} {not_offered[name].reason}")
            for name, holder in holders.items()
            if holder.mover and name in not_offered
        ]

    def _count(self, facts: Sequence[DeviceHealthFact]) -> None:
        states = Counter(_STATES[fact.healthy] for fact in facts)
        for state in _STATES.values():
            self._metrics.devices.labels(state).set(states[state])
        faults = Counter(kind for tracker in self._trackers.values() for kind in tracker.health.faults)
        for kind in FaultKind:
            self._metrics.faults.labels(kind).set(faults[kind])

    async def _save(self) -> None:
        """Write the file if it matters. Small changes (a raised fault that shows again) can wait."""
        if not self._is_leader():
            return
        memories = {**self._memories, **{name: tracker.memory for name, tracker in self._trackers.items()}}
        if _outline(memories) != _outline(self._written):
            self._written = memories
            await asyncio.to_thread(self._file.write, memories)


_UNWATCHED = {
    True: DeviceHealth(None, "GPU health is not monitored by this driver"),
    False: DeviceHealth(None, "not looked at yet"),
}


def _outline(memories: Mapping[str, DeviceMemory]) -> Mapping[str, object]:
    """Return what makes the file worth writing."""
    return {
        name: ({kind: known.state.raised for kind, known in memory.faults.items()}, memory.versions)
        for name, memory in memories.items()
        if memory.faults or memory.versions
    }
