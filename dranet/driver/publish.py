"""Scan -> build -> filter -> slices -> publish, whenever the node has changed.

:class:`Inventory` holds the last scan for everybody else in the driver; :class:`PublishLoop` keeps it
fresh and hands it to the slice publisher. Nothing is written while nothing changes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dranet.errors import DeviceError, KernelError, Reason
from dranet.inventory.build import build_devices
from dranet.inventory.filter import Decision, decide, uplink_names
from dranet.inventory.slices import build_slices
from dranet.kernel.scan import read_node_facts
from dranet.kernel.watch import ChangeWatch
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Link, NodeFacts, RdmaDevice
from dranet.store import ClaimStore
from dranet.telemetry import Metrics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class View:
    """One scan, boiled down to what the driver keeps of it.

    A node full of pods has a thousand links that are never offered; of those only name and reason stay.
    """

    offered: Mapping[str, Device] = field(default_factory=dict)
    """By name, in order of preference."""
    held_back: Mapping[str, DeviceError] = field(default_factory=dict)
    """By name: why it is not offered."""
    links: Mapping[str, Link] = field(default_factory=dict)
    """The links of offered devices, by interface name."""
    rdma_devices: Mapping[str, RdmaDevice] = field(default_factory=dict)
    rdma_netns_exclusive: bool = False

    @classmethod
    def of(cls, facts: NodeFacts, decisions: Iterable[Decision]) -> View:
        """Keep what is offered whole, and of the rest the reason."""
        uplinks = uplink_names(facts)
        offered: dict[str, Device] = {}
        held_back: dict[str, DeviceError] = {}
        for decision in decisions:
            if decision.published:
                offered[decision.device.name] = decision.device
            else:
                held_back[decision.device.name] = _held_back(decision, uplinks)
        ifnames = {device.ifname for device in offered.values()}
        return cls(
            offered=offered,
            held_back=held_back,
            links={link.ifname: link for link in facts.links if link.ifname in ifnames},
            rdma_devices={device.name: device for device in facts.rdma_devices},
            rdma_netns_exclusive=facts.rdma_netns_exclusive,
        )


def _held_back(decision: Decision, uplinks: Collection[str]) -> DeviceError:
    is_uplink = decision.device.ifname in uplinks
    return DeviceError(
        f"device {decision.device.name} is held back: {decision.reason}",
        reason=Reason.DEVICE_IS_UPLINK if is_uplink else Reason.DEVICE_HELD_BACK,
        retryable=False,
    )


class Inventory:
    """What the node offers, as of the last scan. Safe to read from any thread."""

    def __init__(
        self, *, sysfs_root: Path, procfs_root: Path, publish_gpus: bool, store: ClaimStore, metrics: Metrics
    ) -> None:
        self._sysfs_root = sysfs_root
        self._procfs_root = procfs_root
        self._publish_gpus = publish_gpus
        self._store = store
        self._metrics = metrics
        self._scan_lock = threading.Lock()
        self._warned: frozenset[str] = frozenset()
        self.view = View()
        """Replaced as a whole by each scan."""

    @property
    def rdma_netns_exclusive(self) -> bool:
        """Whether RDMA devices have to be moved with their links."""
        return self.view.rdma_netns_exclusive

    def scan(self) -> None:
        """Read the node anew. Blocking.

        Raises:
            KernelError: the kernel did not answer; the last scan stays valid.
        """
        with self._scan_lock:
            start = time.perf_counter()
            held_before = self._held()  # one that is released during the scan is in no facts and not held
            facts = read_node_facts(self._sysfs_root, self._procfs_root)
            devices = build_devices(facts, {**held_before, **self._held()})
            if not self._publish_gpus:
                devices = tuple(device for device in devices if device.kind is not DeviceKind.GPU)
            self.view = View.of(facts, decide(devices, facts))
            self._metrics.scan_seconds.observe(time.perf_counter() - start)
            self._warn_once(facts.warnings)

    def get_offered(self, name: str) -> Device:
        """The device of that name, if it is on offer; one rescan if it is not known, or was in a pod.

        Raises:
            DeviceError: ``DEVICE_NOT_FOUND``, or the reason it is held back.
        """
        known = self.view.offered.get(name)
        was_in_pod = known is not None and known.kind is DeviceKind.NIC and not known.ifname
        if was_in_pod or (known is None and name not in self.view.held_back):
            self.scan()
        view = self.view
        if name in view.held_back:
            raise view.held_back[name]
        if name not in view.offered:
            raise DeviceError(
                f"device {name} does not exist on this node", hint="was it unplugged or its driver unbound?"
            )
        return view.offered[name]

    def _held(self) -> Mapping[str, Device]:
        """Devices whose facts are out of sight, because they are in a pod's namespace."""
        return {
            prepared.device.name: prepared.device
            for record in self._store.get_all()
            if record.netns_path
            for prepared in record.devices
            if prepared.plan is not None
        }

    def _warn_once(self, warnings: Sequence[str]) -> None:
        for warning in warnings:
            if warning not in self._warned:
                log.warning("scan: %s", warning)
        self._warned = frozenset(warnings)


class Publisher(Protocol):
    """Where the pages of devices go (``cluster.slices.SlicePublisher``)."""

    def set_desired(self, pages: Sequence[Sequence[Device]]) -> None: ...


class PublishLoop:
    """Rescans on change and at least every ``rescan_seconds``."""

    def __init__(
        self,
        inventory: Inventory,
        publisher: Publisher,
        metrics: Metrics,
        rescan_seconds: float,
        on_scan: Callable[[], None],
    ) -> None:
        self._inventory = inventory
        self._publisher = publisher
        self._metrics = metrics
        self._rescan_seconds = rescan_seconds
        self._on_scan = on_scan

    async def run(self) -> None:
        async with ChangeWatch() as watch:
            if watch.without_hardware_events:
                log.info(
                    "PCI, RDMA and DRM changes are seen every %g s only: %s",
                    self._rescan_seconds,
                    watch.without_hardware_events,
                )
            while True:
                await self.scan_and_publish()
                try:
                    async with asyncio.timeout(self._rescan_seconds):
                        await watch.wait_changed()
                except TimeoutError:
                    log.debug("periodic rescan")

    async def scan_and_publish(self) -> None:
        """One scan; a failure keeps what is published and is retried at the next change or period."""
        try:
            await asyncio.to_thread(self._inventory.scan)
        except KernelError as error:
            log.warning("scan failed, the last inventory stays published: %s", error)
            return
        devices = tuple(self._inventory.view.offered.values())
        self._publisher.set_desired(build_slices(devices))
        self._metrics.published_devices.labels("total").set(len(devices))
        self._metrics.published_devices.labels("rdma").set(sum(1 for d in devices if d.rdma_device))
        self._on_scan()
