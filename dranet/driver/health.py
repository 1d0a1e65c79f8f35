"""Observations -> health over time -> the kubelet, the slices, Events and metrics.

The scan does not see a device in a pod: its link is reported from inside the pod
(``kernel.namespaces.pod_links``), its RDMA ports by sysfs in shared mode and from the pod's namespace in
exclusive mode. Every instance of the driver follows the health of devices, and only the leader reports it:
two that disagree by a second would make the kubelet rewrite the pod's status with each report.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from dranet import files
from dranet.decoding import convert
from dranet.driver.publish import Inventory, View
from dranet.driver.reports.announcer import Announcer
from dranet.errors import KernelError, SettingsError
from dranet.health import PATIENCE, Damping, DeviceHealth, DeviceMemory, DeviceTracker, Patience, build_taints
from dranet.kernel.counters import CountedLink, CounterTarget, read_health_counters, read_rdma_ports
from dranet.kernel.namespaces.pod_links import PodLinks
from dranet.kernel.netlink.rdma import read_ports_here
from dranet.kubelet.plugin import DeviceHealthFact
from dranet.model.claim import PodRef
from dranet.model.device import Device, DeviceKind, Taint, TaintEffect
from dranet.model.facts import Link, PciFunction, RdmaPort
from dranet.model.health import FaultKind, HealthCounters, HealthObservation, PcieLink
from dranet.model.plan import PreparedClaim
from dranet.settings import HealthTaints, Settings
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import HealthMetrics

log = logging.getLogger(__name__)

HEALTH_ECHO_SECONDS = 1.0
"""The kubelet forgets the health of devices when any instance's stream ends, possibly after we have noticed
that the instance is gone; it is reported again after this time."""

_FORMAT = 2
_MOST_BYTES = 8 << 20


class _Header(Struct):
    format: int
    boot: str


class _Document(_Header):
    devices: dict[str, DeviceMemory]


class HealthFile:
    """``<state_dir>/health.json``: known faults, so that a restart of the driver forgets no broken NIC.

    Without it, each rolling update would remove taints and add them again ten seconds later, and pods would
    be placed on broken devices in between. Times are those of the monotonic clock; a file of an earlier boot
    is ignored. Best effort: faults that cannot be read or written are found again after a while.
    """

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._complained = False

    def read(self) -> dict[str, DeviceMemory]:
        """Memories by device; empty without any of this boot. Blocking."""
        try:
            document = json.loads(files.read_file(self._path, _MOST_BYTES))
            header = convert(document, _Header)
            if (header.format, header.boot) != (_FORMAT, self._boot_id):
                return {}
            return convert(document, _Document).devices
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s cannot be read, faults are found again: %s", self._path, error)
            return {}

    def write(self, memories: Mapping[str, DeviceMemory]) -> None:
        document = msgspec.to_builtins(_Document(_FORMAT, self._boot_id, dict(memories)))
        fresh = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=files.FOLDER_MODE)
            files.replace_file(self._path, fresh, json.dumps(document).encode())
            self._complained = False
        except OSError as error:
            if not self._complained:
                self._complained = True
                log.warning("%s cannot be written (logged once): %s", self._path, error)


class Holder(Struct, frozen=True):
    """The pods that have a device, and the one that it was moved into."""

    pods: tuple[PodRef, ...] = ()
    mover: str = ""
    """UID of the pod that the device itself was moved into; empty while the node has it."""
    pod_ifname: str = ""


NO_HOLDER = Holder()


def find_holders(records: Iterable[PreparedClaim]) -> dict[str, Holder]:
    """Return the holders by device. A shared device stays on the node, even if pods have links on
    top of it."""
    holders: dict[str, Holder] = {}
    for record in records:
        for prepared in record.devices:
            known = holders.get(prepared.device.name, NO_HOLDER)
            known = replace(known, pods=(*known.pods, record.pod))
            if record.netns_path and prepared.plan is not None and not prepared.plan.is_on_top:
                known = replace(known, mover=record.pod.uid, pod_ifname=prepared.plan.pod_ifname)
            holders[prepared.device.name] = known
    return holders


def find_moved_link(device: Device, pod_ifname: str, links: Sequence[CountedLink]) -> CountedLink | None:
    """Return the link of the pod that was moved into it: by its PCI function, which a pod cannot change, or
    by its name if the kernel does not report that."""
    mine = [seen for seen in links if device.pci_address and seen.link.pci_address == device.pci_address]
    named = [seen for seen in mine or links if seen.link.ifname == pod_ifname]
    return next(iter((*named, *mine)), None)


class _Reading(Struct):
    """The last health counters of one device, valid while the same pod has it."""

    mover: str
    polled: HealthCounters = field(default=HealthCounters())
    scanned_ports: tuple[RdmaPort, ...] = ()
    """The ports in the scan when they were read in between."""


class HealthObserver:
    """Reads and combines. For the event loop; blocking reads run in worker threads."""

    def __init__(
        self, inventory: Inventory, store: ClaimStore, pod_links: PodLinks, sysfs_root: Path
    ) -> None:
        self.inventory = inventory
        self._store = store
        self._pod_links = pod_links
        self._sysfs_root = sysfs_root
        self._readings: dict[str, _Reading] = {}
        self.pcie_links: Mapping[str, PcieLink] = {}
        """By device, as of the last full scan, even if a pod has it."""
        self._functions: Mapping[str, PciFunction] = {}
        self._view: View | None = None

    def find_holders(self) -> Mapping[str, Holder]:
        return find_holders(self._store.get_all())

    def collect(self, holders: Mapping[str, Holder]) -> Iterator[tuple[Device, HealthObservation]]:
        """Yield each offered device that can be observed, with its observation."""
        view = self.inventory.view
        if view is not self._view:
            self._view = view
            self._functions = {function.address: function for function in view.facts.pci_functions}
        for device in view.offered.values():
            if device.kind is not DeviceKind.GPU:
                yield device, self._collect_of(device, holders.get(device.name, NO_HOLDER), view)

    def _collect_of(self, device: Device, holder: Holder, view: View) -> HealthObservation:
        seen = self._find_link(device, holder, view)
        polled = self._counters(device.name, holder)
        rdma = view.rdma_devices.get(device.rdma_device)
        link = seen.link if seen is not None else None
        return HealthObservation(
            link=link,
            has_link=device.kind is DeviceKind.NIC,
            holder=holder.mover,
            rdma_device=device.rdma_device,
            ports=polled.ports if polled.ports is not None else _scanned_ports(device, view),
            counters={**polled.counters, **(seen.counters if seen is not None else {})},
            pcie=polled.pcie,
            versions=_versions(
                self._functions.get(device.pci_address),
                None if holder.mover else link,
                rdma.firmware if rdma is not None else "",
            ),
            times_off=seen.times_off if seen is not None else 0,
        )

    def _find_link(self, device: Device, holder: Holder, view: View) -> CountedLink | None:
        if holder.mover:
            return find_moved_link(device, holder.pod_ifname, self._pod_links.get_links(holder.mover))
        link = view.links.get(device.ifname)
        return CountedLink(link) if link is not None else None

    def _counters(self, name: str, holder: Holder) -> HealthCounters:
        """Return the counters read from the present holder. Those of another holder are dropped: what they
        count meanwhile would look new when the device returns."""
        reading = self._readings.get(name)
        if reading is not None and reading.mover == holder.mover:
            return reading.polled
        self._readings.pop(name, None)
        return HealthCounters()

    async def read_all(self) -> None:
        """Read the counters of every device, and have the links of pods reported again."""
        if not self.inventory.is_live:
            return
        holders, view = self.find_holders(), self.inventory.view
        devices = [device for device in view.offered.values() if device.kind is not DeviceKind.GPU]
        targets = [_target(device, holders.get(device.name, NO_HOLDER), view) for device in devices]
        try:
            polled = await asyncio.to_thread(read_health_counters, self._sysfs_root, targets)
        except KernelError as error:
            log.debug("counters were not read: %s", error)
            return
        self._readings = {
            name: _Reading(holders.get(name, NO_HOLDER).mover, found) for name, found in polled.items()
        }
        self.pcie_links = {name: found.pcie for name, found in polled.items() if found.pcie is not None}
        self._pod_links.ask_again()
        if view.facts.rdma_netns_exclusive:
            await self.read_ports({d.name for d in devices if holders.get(d.name, NO_HOLDER).mover})

    async def read_ports(self, names: Collection[str]) -> None:
        if not names or not self.inventory.is_live:
            return
        holders, view = self.find_holders(), self.inventory.view
        for name in sorted(names):
            device, holder = view.offered.get(name), holders.get(name, NO_HOLDER)
            if device is None or not device.rdma_device:
                continue
            ports = await self._read_ports_of(device.rdma_device, holder, view.facts.rdma_netns_exclusive)
            if ports is not None:
                polled = replace(self._counters(name, holder), ports=ports)
                self._readings[name] = _Reading(holder.mover, polled, _scanned_ports(device, view))

    async def _read_ports_of(
        self, rdma_device: str, holder: Holder, is_exclusive: bool
    ) -> tuple[RdmaPort, ...] | None:
        if not (holder.mover and is_exclusive):
            return await asyncio.to_thread(read_rdma_ports, self._sysfs_root, rdma_device)
        try:
            return await self._pod_links.visit(holder.mover, partial(read_ports_here, rdma_device))
        except (KernelError, OSError) as error:
            log.debug("ports of %s were not read in its pod: %s", rdma_device, error)
            return None

    def scanned(self, *, is_full: bool) -> None:
        """Drop ports that were read before this scan, where it has read them: a partial scan repeats what an
        earlier one saw of most devices. In exclusive mode it does not see devices in pods."""
        view = self.inventory.view
        if view.facts.rdma_netns_exclusive:
            return
        for name, reading in self._readings.items():
            device = view.offered.get(name)
            if is_full or device is None or _scanned_ports(device, view) != reading.scanned_ports:
                reading.polled = replace(reading.polled, ports=None)


def _scanned_ports(device: Device, view: View) -> tuple[RdmaPort, ...]:
    rdma = view.rdma_devices.get(device.rdma_device)
    return rdma.ports if rdma is not None else ()


def _target(device: Device, holder: Holder, view: View) -> CounterTarget:
    link = None if holder.mover else view.links.get(device.ifname)
    is_function = bool(device.pci_address) and not device.physical_function  # a VF has no link of its own
    return CounterTarget(
        device=device.name,
        ifindex=link.ifindex if link is not None else 0,
        rdma_device=device.rdma_device if device.rdma_device in view.rdma_devices else "",
        pci_address=device.pci_address if is_function else "",
        port_address=device.pci_path[-2] if is_function and len(device.pci_path) > 1 else "",
    )


def _versions(function: PciFunction | None, link: Link | None, rdma_firmware: str) -> dict[str, str]:
    """Return the versions of firmware and drivers that are known. A link in a pod is not asked for its
    driver."""
    known = {
        "driver": function.driver if function is not None else "",
        "driver version": link.driver_version if link is not None else "",
        "firmware": link.firmware if link is not None else "",
        "RDMA firmware": rdma_firmware,
    }
    return {what: version for what, version in known.items() if version}


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


LEAST_WAIT_SECONDS = 0.05
"""Timers may be early; this avoids a busy loop until it is time."""

RESCANS_OF_A_WINDOW = 5

MOST_GONE = 512
"""Devices that are gone and may return: a card is gone for a moment while its firmware is updated. Names of
software links must not fill the memory."""

_STATES = {True: "healthy", False: "unhealthy", None: "unknown"}


class HealthRules(Struct, frozen=True):
    pool: str
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
    on_change: Callable[[], None]
    on_taints: Callable[[], None]
    """Called when taints have changed between two scans."""
    is_leader: Callable[[], bool]
    """Whether this instance reports."""


class Clocks(Struct, frozen=True):
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
    """Follows the health of all devices. Implements ``kubelet.plugin.HealthSource`` and
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
        self.facts: Sequence[DeviceHealthFact] = ()
        """What is known now, even if this instance is not the leader."""
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
        return self._steady.settle(self.facts, self._in_pods, self._clock()) if self._is_leader() else ()

    @property
    def unhealthy(self) -> frozenset[str]:
        return frozenset(fact.device for fact in self.facts if fact.healthy is False)

    def get_states(self) -> DeviceStates:
        return DeviceStates(
            {fact.device: fact.healthy for fact in self.facts},
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
        self._changed_pods.add(pod_uid)
        self._wake.set()

    async def run(self) -> None:
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
        holders = self._observer.find_holders()
        now, wall = self._clock(), self._wall()
        seen: dict[str, DeviceTracker] = {}
        for device, observation in self._observer.collect(holders):
            tracker = self._trackers.get(device.name)
            if tracker is None:
                memory = self._memories.pop(device.name, DeviceMemory())
                tracker = DeviceTracker(self._rules.patience, memory)
            seen[device.name] = tracker
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

    def _report(self, name: str, before: DeviceHealth, health: DeviceHealth, holder: Holder) -> None:
        is_bad = health.healthy is False
        if is_bad == (before.healthy is False):
            return
        message = health.message if is_bad else health.message or "all faults are gone"
        if is_bad:
            log.warning("device %s is unhealthy: %s", name, message)
        else:
            log.info("device %s is no longer unhealthy: %s", name, message)
        if self._is_leader():
            self._announcer.health_changed(name, holder.pods, healthy=not is_bad, message=message)

    def _conclude(self, holders: Mapping[str, Holder]) -> None:
        facts = list(self._build_facts(holders))
        hardest = self._rules.hardest
        tainted = {name: build_taints(t.health.faults, hardest) for name, t in self._trackers.items()}
        self.taints = {name: taints for name, taints in tainted.items() if taints}
        self._in_pods = frozenset(name for name, holder in holders.items() if holder.mover)
        if facts != self.facts:
            self.facts = facts
            self._count(facts)
            self._on_change()

    def _build_facts(self, holders: Mapping[str, Holder]) -> Iterator[DeviceHealthFact]:
        pool, view = self._rules.pool, self._inventory.view
        for device in view.offered.values():
            tracker = self._trackers.get(device.name)
            health = tracker.health if tracker is not None else _UNWATCHED[device.kind is DeviceKind.GPU]
            yield DeviceHealthFact(pool, device.name, health.healthy, health.message)
        for name, holder in holders.items():
            if holder.mover and name in view.not_offered:  # unplugged, or off the bus, while a pod has it
                yield DeviceHealthFact(pool, name, False, f"{name} {view.not_offered[name].reason}")

    def _count(self, facts: Sequence[DeviceHealthFact]) -> None:
        states = Counter(_STATES[fact.healthy] for fact in facts)
        for state in _STATES.values():
            self._metrics.devices.labels(state).set(states[state])
        faults = Counter(kind for tracker in self._trackers.values() for kind in tracker.health.faults)
        for kind in FaultKind:
            self._metrics.faults.labels(kind).set(faults[kind])

    async def _save(self) -> None:
        """Write the file if it matters. A raised fault that shows again can wait."""
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
    return {
        name: ({kind: known.state.raised for kind, known in memory.faults.items()}, memory.versions)
        for name, memory in memories.items()
        if memory.faults or memory.versions
    }
