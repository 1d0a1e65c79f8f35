"""Observations of each offered device: scan, links in pods and readings, brought together.

The scan does not see a device in a pod. Its link is reported from inside the pod
(``kernel.namespaces.pod_links``), its RDMA ports by sysfs in shared mode and from the pod's namespace in
exclusive mode.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from dranet.driver.publish import Inventory, View
from dranet.errors import KernelError
from dranet.kernel.counters import CountedLink, CounterTarget, read_health_counters, read_rdma_ports
from dranet.kernel.namespaces.pod_links import PodLinks
from dranet.kernel.netlink.rdma import read_ports_here
from dranet.model.claim import PodRef
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Link, PciFunction, RdmaPort
from dranet.model.health import HealthCounters, HealthObservation, PcieLink
from dranet.model.plan import PreparedClaim
from dranet.store.claim_store import ClaimStore

log = logging.getLogger(__name__)


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
        ports = polled.ports if polled.ports is not None else rdma.ports if rdma is not None else ()
        link = seen.link if seen is not None else None
        return HealthObservation(
            link=link,
            has_link=device.kind is DeviceKind.NIC,
            holder=holder.mover,
            rdma_device=device.rdma_device,
            ports=ports,
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
        if not holder.mover:
            link = view.links.get(device.ifname)
            return CountedLink(link) if link is not None else None
        return find_moved_link(device, holder.pod_ifname, self._pod_links.get_links(holder.mover))

    def _counters(self, name: str, holder: Holder) -> HealthCounters:
        """Return the counters read from the present holder. Those of another holder are dropped: what they
        count meanwhile would look new when the device returns."""
        reading = self._readings.get(name)
        if reading is not None and reading.mover != holder.mover:
            del self._readings[name]
            return HealthCounters()
        return reading.polled if reading is not None else HealthCounters()

    async def read_all(self) -> None:
        """Read the health counters of every offered device, and have the links of pods reported again."""
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
        """Read the RDMA ports of these devices again, because no notification reports them."""
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
