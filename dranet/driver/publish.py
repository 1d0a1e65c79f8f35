"""Publish: wait for a change -> scan -> decide -> slices -> rate limiter -> API server.

:class:`PublishLoop` scans what the kernel reports as changed, and the whole node now and then.
:class:`Inventory` holds the last scan and its decisions for the whole driver. Nothing is written while
nothing changes, and :class:`SliceRateLimiter` bounds the writes of a link that flaps: each slice is some ten
kilobytes, and goes to every scheduler. The writes themselves are ``cluster.slices``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from dranet.errors import DeviceError, KernelError, Reason
from dranet.inventory.held import find_held, find_set_down
from dranet.inventory.offer import NO_OTHER_SERVER, ServedGpus, take_inventory, uplink_names
from dranet.inventory.policy import DEFAULT_POLICY, Decision, Policy
from dranet.inventory.slices import plan_slices
from dranet.kernel.discovery.scan import ProtectedAddress
from dranet.kernel.discovery.watch import EVERYTHING, Changes, ChangeWatch
from dranet.model.attributes import MAX_ATTRIBUTES_PER_DEVICE
from dranet.model.device import Device, DeviceKind, Taint
from dranet.model.facts import Gpu, Link, NodeFacts, ProvidedFacts, RdmaDevice
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics, ScanKind, ScanPhase

log = logging.getLogger(__name__)

BURST = 20
"""Changes that are published at once, after some minutes without any."""
REFILL_SECONDS = 20.0
"""One more change per this interval."""

Pages = Sequence[Sequence[Device]]
TaintsByDevice = Mapping[str, Sequence[Taint]]
_NO_TAINTS: TaintsByDevice = {}


class Publisher(Protocol):
    """Where the pages of devices go (``cluster.slices.SlicePublisher``)."""

    def set_desired(self, pages: Pages, taints: TaintsByDevice = ..., /) -> None: ...


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def _content_of_slices(pages: Pages, taints: TaintsByDevice) -> object:
    """Equal for what makes equal slices: a device that is in a pod differs from itself in more than that."""
    devices = [
        [(one.name, one.attributes, one.shared, one.bandwidth, one.counters) for one in page]
        for page in pages
    ]
    return devices, dict(taints)


class SliceRateLimiter:
    """Rate limiter in front of the publisher; forwards only the latest desired state. Event loop only."""

    def __init__(
        self,
        publisher: Publisher,
        *,
        burst: int = BURST,
        refill_seconds: float = REFILL_SECONDS,
        clock: Callable[[], float] = _loop_time,
    ) -> None:
        self._publisher = publisher
        self._burst = burst
        self._refill_seconds = refill_seconds
        self._clock = clock
        self._left = float(burst)
        self._looked_at: float | None = None
        self._wanted: tuple[Pages, TaintsByDevice] | None = None
        self._published: object = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_slow = False

    def set_desired(self, pages: Pages, taints: TaintsByDevice = _NO_TAINTS, /) -> None:
        """Forward this state now or when the limit permits, unless it is superseded or unchanged by then."""
        self._wanted = (pages, taints)
        if self._timer is None:
            self.look()

    def look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._refill()
        if self._wanted is None or (content := _content_of_slices(*self._wanted)) == self._published:
            return
        if self._left < 1:
            if not self._is_slow:  # logged once, until it has been calm for long
                self._is_slow = True
                log.info(
                    "what is published changes again and again, as when a link flaps: "
                    "it is written every %g s at most, until it is calm",
                    self._refill_seconds,
                )
            wait = (1 - self._left) * self._refill_seconds
            self._timer = asyncio.get_running_loop().call_later(wait, self.look)
            return
        self._left -= 1
        self._published = content
        self._publisher.set_desired(*self._wanted)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _refill(self) -> None:
        now = self._clock()
        if self._looked_at is not None:
            self._left = min(self._burst, self._left + (now - self._looked_at) / self._refill_seconds)
        self._looked_at = now
        self._is_slow = self._is_slow and self._left < self._burst


NO_FACTS = NodeFacts()

RETRY_SECONDS = 5.0
"""After a scan that failed: the change that asked for it may have been the last for long."""


class View(Struct, frozen=True):
    """One scan, decided: what is offered by name, and of the rest why not."""

    offered: Mapping[str, Device] = field(default_factory=dict)
    """By name, in order of preference."""
    not_offered: Mapping[str, Decision] = field(default_factory=dict)
    """By name."""
    links: Mapping[str, Link] = field(default_factory=dict)
    """The links of offered devices, by interface name."""
    rdma_devices: Mapping[str, RdmaDevice] = field(default_factory=dict)
    facts: NodeFacts = NO_FACTS
    policy: Policy = DEFAULT_POLICY
    """What the operator wanted at that scan."""
    served: ServedGpus = NO_OTHER_SERVER
    """Which other drivers served GPUs at that scan."""

    @classmethod
    def of(
        cls,
        facts: NodeFacts,
        decisions: Iterable[Decision],
        policy: Policy = DEFAULT_POLICY,
        served: ServedGpus = NO_OTHER_SERVER,
    ) -> View:
        offered: dict[str, Device] = {}
        not_offered: dict[str, Decision] = {}
        for decision in decisions:
            if decision.published:
                offered[decision.device.name] = decision.device
            else:
                not_offered[decision.device.name] = decision
        ifnames = {device.ifname for device in offered.values()}
        return cls(
            offered=offered,
            not_offered=not_offered,
            links={link.ifname: link for link in facts.links if link.ifname in ifnames},
            rdma_devices={device.name: device for device in facts.rdma_devices},
            facts=facts,
            policy=policy,
            served=served,
        )

    def find_ipv6_router(self, ifname: str) -> str:
        """The router that announced itself on an offered link (RFC 4861: by its link-local address), or
        empty."""
        link = self.links.get(ifname)
        routes = [r for r in self.facts.default_routes if link is not None and r.ifindex == link.ifindex]
        return next((r.gateway for r in routes if r.gateway.startswith("fe80:")), "")

    def refusal(self, name: str) -> DeviceError:
        """The error for a claim of a device that is not offered, with the whole reason."""
        decision = self.not_offered[name]
        is_uplink = decision.device.ifname in uplink_names(self.facts)
        return DeviceError(
            f"device {name} is not offered: {decision.reason}",
            reason=Reason.DEVICE_IS_UPLINK if is_uplink else Reason.DEVICE_EXCLUDED,
            retryable=False,
        )


class FactsReader(Protocol):
    """Where facts come from: ``kernel.discovery.scan.NodeScanner``, or ``view.options.CapturedFacts``."""

    @property
    def is_live(self) -> bool:
        """Whether they are of this node as it is now; pods cannot have what is elsewhere."""
        ...

    def set_protected_addresses(self, targets: Sequence[ProtectedAddress]) -> None: ...

    def read(self, changes: Changes = EVERYTHING, /) -> NodeFacts: ...


class Inventory:
    """What the node offers, as of the last scan. Safe to read from any thread."""

    def __init__(
        self,
        reader: FactsReader,
        policy: Callable[[], Policy],
        store: ClaimStore,
        metrics: Metrics,
        judge_gpus: Callable[[Sequence[Gpu]], ServedGpus] = lambda _: NO_OTHER_SERVER,
        get_provided: Callable[[], tuple[ProvidedFacts, ...]] = tuple,
    ) -> None:
        """``judge_gpus`` returns which other drivers serve the GPUs of a scan, ``get_provided`` what
        providers have answered until now."""
        self._get_provided = get_provided
        self._reader = reader
        self._judge_gpus = judge_gpus
        self._policy = policy
        self._store = store
        self._metrics = metrics
        self._scan_lock = threading.Lock()
        self._warned: frozenset[str] = frozenset()
        self._out_of_sight: Mapping[str, Device] = {}
        """What pods had at the last scan."""
        self.view = View()
        """Replaced as a whole by each scan."""

    @property
    def is_live(self) -> bool:
        return self._reader.is_live

    def set_protected_addresses(self, targets: Sequence[ProtectedAddress]) -> None:
        self._reader.set_protected_addresses(targets)

    def scan(self, changes: Changes = EVERYTHING) -> None:
        """Read what changed on the node, and decide again. Blocking.

        Raises:
            KernelError: the kernel did not answer; the last scan stays valid, and the next one makes up.
            SettingsError: the facts file is unusable.
        """
        with self._scan_lock:
            start = time.perf_counter()
            # one that is released during the scan is in no facts and not held
            held_before = find_held(self._store.get_all())
            facts = self._reader.read(changes | self._find_returned(held_before))
            if provided := self._get_provided():
                facts = replace(facts, provided=provided)
            read = time.perf_counter()
            policy = self._policy()
            records = self._store.get_all()
            held = {**held_before, **find_held(records), **find_set_down(records, facts)}
            served = self._judge_gpus(facts.gpus)
            decisions = take_inventory(facts, held, policy, served)
            self._out_of_sight = held
            self.view = View.of(facts, decisions, policy, served)
            self._note_duration(start, read, time.perf_counter())
            kind = ScanKind.FULL if changes.everything else ScanKind.PARTIAL
            self._metrics.inventory.scans.labels(kind).inc()
            self._report(facts, decisions)

    def _note_duration(self, start: float, read: float, end: float) -> None:
        shown = self._metrics.inventory
        shown.scan_seconds.observe(end - start)
        shown.phase_seconds.labels(ScanPhase.READ).observe(read - start)
        shown.phase_seconds.labels(ScanPhase.JUDGE).observe(end - read)

    def get_offered(self, name: str) -> Device:
        """Return the offered device of that name.

        A device that is unknown, or has no link on the node, makes a scan first: it was offered when it was
        allocated, and may have returned from a pod since the last scan. For a GPU the other drivers are
        checked again: it may be offered only while another pod has it.

        Raises:
            DeviceError: ``DEVICE_NOT_FOUND``, or the reason why it is not offered.
        """
        known = self.view.offered.get(name)
        was_in_pod = known is not None and known.kind is DeviceKind.NIC and not known.ifname
        if known is None or was_in_pod:
            self.scan()
        elif known.kind is DeviceKind.GPU and self._is_in_doubt(name):
            self.scan(Changes())
        view = self.view
        if name in view.not_offered:
            raise view.refusal(name)
        if name in view.offered and not self._reader.is_live:
            raise DeviceError(
                f"device {name} is of a captured machine, not of this node",
                hint="no pod can have it; unset facts_file",
                reason=Reason.DEVICE_NOT_FOUND,
                retryable=False,
            )
        if name not in view.offered:
            raise DeviceError(
                f"device {name} does not exist on this node", hint="was it unplugged or its driver unbound?"
            )
        return view.offered[name]

    def _is_in_doubt(self, gpu: str) -> bool:
        with self._scan_lock:
            served = self._judge_gpus(self.view.facts.gpus)
            return gpu in self._out_of_sight or served != self.view.served

    def _find_returned(self, held: Mapping[str, Device]) -> Changes:
        """What is to be read of devices that pods have not any more. The kernel's own word of it may come
        after this scan, which would find them neither on the host nor with a pod."""
        returned = [device for name, device in self._out_of_sight.items() if name not in held]
        parts = (part for device in returned for part in (device.pci_address, device.rdma_device) if part)
        return Changes(all_links=bool(returned), hardware=frozenset(parts))

    def _report(self, facts: NodeFacts, decisions: Sequence[Decision]) -> None:
        """Count the warnings, and log each of them once while it lasts."""
        warnings = (*facts.warnings, *(line for decision in decisions for line in decision.warnings))
        self._metrics.inventory.filter_failures.set(sum(decision.filter_failed for decision in decisions))
        self._metrics.inventory.warnings.set(len(warnings))
        self._warned = warn_once("scan", warnings, self._warned)


def warn_once(topic: str, warnings: Sequence[str], before: Collection[str]) -> frozenset[str]:
    """Log the warnings that are not in ``before``; returns the ``before`` of the next call."""
    for warning in dict.fromkeys(warnings):
        if warning not in before:
            log.warning("%s: %s", topic, warning)
    return frozenset(warnings)


class HealthWatch(Protocol):
    """Evaluates the health of devices after each scan (``driver.health.HealthMonitor``)."""

    @property
    def taints(self) -> Mapping[str, Sequence[Taint]]:
        """By device; devices without any are left out."""
        ...

    async def scanned(self, *, is_full: bool) -> None: ...


class PublishLoop:
    """Scans what changed, and the whole node every ``rescan_seconds`` as a net."""

    def __init__(
        self,
        inventory: Inventory,
        publisher: Publisher,
        metrics: Metrics,
        rescan_seconds: float,
        on_scan: Callable[[], None],
        health: HealthWatch | None = None,
        may_publish: Callable[[ServedGpus], bool] = lambda _: True,
    ) -> None:
        """``may_publish``: whether what was found with this judgement of GPUs may go out yet."""
        self._may_publish = may_publish
        self._inventory = inventory
        self._publisher = SliceRateLimiter(publisher)
        self._metrics = metrics
        self._rescan_seconds = rescan_seconds
        self._on_scan = on_scan
        self._health = health
        self._pages: Sequence[Sequence[Device]] | None = None
        """As of the last scan of this loop; ``None`` before the first."""
        self._served = NO_OTHER_SERVER
        """What they were judged by. Others scan, too, and may have learned more since."""
        self._watch = ChangeWatch()
        self._running = False
        self._lost: frozenset[str] = frozenset()
        self._logged_crowded: set[str] = set()
        """Attributes already logged as not fitting into a slice."""
        self._overruns = 0
        """Those of the watch that have been counted."""

    def set_protected_addresses(self, targets: Sequence[ProtectedAddress]) -> None:
        """Look for these from now on; leads to a scan if the loop runs already."""
        self._inventory.set_protected_addresses(targets)
        self._watch.set_protected_addresses([target.packed for target in targets if target.packed])
        self.look_again()

    def look_again(self) -> None:
        """The node is as it was, but something that it is judged by is not."""
        if self._running:
            self._watch.note(Changes(routes=True))

    async def run(self) -> None:
        """Scan and publish until cancelled.

        Raises:
            KernelError: notifications cannot be had (any more).
        """
        async with contextlib.AsyncExitStack() as stack:
            watch = await stack.enter_async_context(self._watch)
            stack.callback(self._publisher.close)
            if watch.without_hardware_events:
                log.info(
                    "PCI, RDMA and DRM changes are seen every %g s only: %s",
                    self._rescan_seconds,
                    watch.without_hardware_events,
                )
            loop = asyncio.get_running_loop()
            self._running = True
            changes = EVERYTHING
            while True:
                if changes.everything:
                    next_full_scan = loop.time() + self._rescan_seconds
                done = await self.scan_and_publish(changes)
                retry = next_full_scan if done else loop.time() + RETRY_SECONDS
                changes = await self._wait_changed(min(next_full_scan, retry))

    async def _wait_changed(self, deadline: float) -> Changes:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._watch.wait_changed()
        except TimeoutError:
            log.debug("periodic rescan")
            return EVERYTHING
        finally:
            self._metrics.inventory.overruns.inc(self._watch.overruns - self._overruns)
            self._overruns = self._watch.overruns

    async def scan_and_publish(self, changes: Changes = EVERYTHING) -> bool:
        """One scan, and whether it succeeded; a failure keeps what is published, and the next change or
        retry makes up for it."""
        try:
            await asyncio.to_thread(self._inventory.scan, changes)
        except KernelError as error:
            log.warning("scan failed, the last inventory stays published: %s", error)
            return False
        view = self._inventory.view
        self._watch.set_tables({rule.table for rule in view.facts.rules})
        devices = tuple(view.offered.values())
        plan = plan_slices(devices, view.policy)
        self._lost = warn_once("publish", plan.losses, self._lost)
        self._log_crowded(plan.crowded)
        if self._health is not None:
            await self._health.scanned(is_full=changes.everything)
        self._pages, self._served = plan.pages, view.served
        self.publish()
        self._metrics.slices.published.labels("total").set(len(devices))
        self._metrics.slices.published.labels("rdma").set(sum(1 for d in devices if d.rdma_device))
        self._on_scan()
        return True

    def _log_crowded(self, crowded: Mapping[str, Sequence[str]]) -> None:
        """That more is known than a slice takes is by design: one line for all devices, and once."""
        news = {name for names in crowded.values() for name in names} - self._logged_crowded
        if not news:
            return
        self._logged_crowded |= news
        log.info(
            "more is known of %d devices than the %d attributes that a slice takes of each; left out where "
            "there is no room: %s (prefer_attributes chooses, dranet devices -o json has all)",
            len(crowded),
            MAX_ATTRIBUTES_PER_DEVICE,
            ", ".join(sorted(news)),
        )

    def publish(self) -> None:
        """Publish the last scan with the current taints; nothing before the first scan."""
        if self._pages is not None and self._may_publish(self._served):
            self._publisher.set_desired(self._pages, self._health.taints if self._health is not None else {})
