"""The kernel's counters, read for one scrape by one thread that ends with it.

The thread reads the node, then enters one pod's network namespace after another. Between scrapes nothing is
open and nothing waits. Each part is recorded as soon as it is read, with the current place: a scraper that
stops waiting for a place that hangs has the rest, and can avoid that place next time. What cannot be read is
absent, never 0.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from dranet.driver.metrics.snapshot import NodeDevice, Snapshot
from dranet.errors import KernelError
from dranet.kernel.counters import (
    PortReading,
    Traffic,
    parse_link_counters,
    read_limit_drops,
    read_port_counters,
    read_traffic,
)
from dranet.kernel.ethtool.messages import read_link_settings
from dranet.kernel.namespaces.netns import NetworkNamespace, open_sysfs
from dranet.kernel.netlink.dcb import Pauses, get_pauses_request, parse_pauses
from dranet.kernel.netlink.rtnl import decode, get_link_request
from dranet.kernel.netlink.socket import NetlinkSocket
from dranet.model.facts import Link
from dranet.model.health import CARRIER_LOSSES

log = logging.getLogger(__name__)

HOST = ""
"""The place of the node itself, instead of a pod's UID."""

Place = str
"""Where a read may hang: the UID of a pod, :data:`HOST`, or an RDMA device (:func:`ports_of`)."""


def ports_of(rdma_device: str) -> Place:
    return f"rdma/{rdma_device}"


def describe(place: Place) -> str:
    """Name the place for the log."""
    if place == HOST:
        return "the node"
    kind, _, name = place.rpartition("/")
    return f"RDMA device {name}" if kind else f"pod {name}"


class Readings(Struct, frozen=True):
    """What was read so far. Written by the reading thread only; others may read it at any time."""

    traffic: dict[Place, Mapping[int, Traffic]] = field(default_factory=dict)
    """By place and ifindex."""
    carrier_losses: dict[int, int] = field(default_factory=dict)
    """By ifindex on the node."""
    speeds: dict[str, int] = field(default_factory=dict)
    """Mbit/s of links in pods, by device."""
    ports: dict[str, Sequence[PortReading]] = field(default_factory=dict)
    """By device."""
    pauses: dict[str, Sequence[Pauses]] = field(default_factory=dict)
    """By device."""
    limit_drops: dict[Place, Mapping[int, int]] = field(default_factory=dict)
    """Packets dropped by rate limits, by place and ifindex."""
    begun: list[Place] = field(default_factory=list)
    """In order; the last one is being read."""
    done_pods: set[str] = field(default_factory=set)
    seconds: list[float] = field(default_factory=list)
    """Duration, once it is done."""
    is_left: threading.Event = field(default_factory=threading.Event)
    """Set when the scraper stopped waiting: the current place is the last."""


SpeedKey = tuple[str, int, int]
"""UID of the pod, ifindex, carrier losses: a link loses its carrier before its speed changes."""


class _Visit(Struct, frozen=True):
    """A visit to one pod."""

    uid: str
    netns: NetworkNamespace
    devices: Sequence[NodeDevice]
    """Those that were moved into it."""
    is_limited: bool
    is_rdma_exclusive: bool

    @property
    def has_rdma(self) -> bool:
        """Whether it has RDMA devices that are only visible inside."""
        return self.is_rdma_exclusive and any(device.device.rdma_device for device in self.devices)


class CounterReader:
    """Reads counters. It only keeps the speeds of links in pods, which change with their carrier."""

    def __init__(self, sysfs_root: Path) -> None:
        self._sysfs_root = sysfs_root
        self._speeds: dict[SpeedKey, int | None] = {}

    def read(self, snapshot: Snapshot, into: Readings, avoid: Collection[Place] = ()) -> None:
        """Read everything into ``into``. Blocking. The thread ends up in some pod's namespace, so it must
        end."""
        start = time.perf_counter()
        devices: defaultdict[Place, list[NodeDevice]] = defaultdict(list)
        for device in snapshot.devices:
            devices[device.pod_uid or HOST].append(device)
        if HOST not in avoid:
            self._read_node(devices[HOST], into)
        self._read_ports_of_node(snapshot, into, avoid)
        limited = {found.record.pod.uid for found in snapshot.in_pods if found.limited}
        fresh: dict[SpeedKey, int | None] = {}
        for uid, netns in snapshot.hand_out():
            if uid not in avoid:
                is_limited, is_exclusive = uid in limited, snapshot.is_rdma_exclusive
                self._read_pod(_Visit(uid, netns, devices[uid], is_limited, is_exclusive), fresh, into)
        if not into.is_left.is_set():
            self._speeds = fresh
            into.seconds.append(time.perf_counter() - start)

    def _read_node(self, devices: Sequence[NodeDevice], into: Readings) -> None:
        into.begun.append(HOST)
        try:
            self._read_place(HOST, devices, into)
            self._read_carriers(devices, into)
        except KernelError as error:
            log.debug("counters of the node: %s", error)

    def _read_ports_of_node(self, snapshot: Snapshot, into: Readings, avoid: Collection[Place]) -> None:
        """Some counters are fetched from firmware, which may be slow."""
        for device in snapshot.devices:
            if into.is_left.is_set():
                return
            is_here = device.device.rdma_device and not (device.pod_uid and snapshot.is_rdma_exclusive)
            place = ports_of(device.device.rdma_device)
            if is_here and place not in avoid:
                into.begun.append(place)
                self._read_ports(self._sysfs_root, device, into)

    def _read_pod(self, visit: _Visit, fresh: dict[SpeedKey, int | None], into: Readings) -> None:
        into.begun.append(visit.uid)
        try:
            visit.netns.enter_for_good()
            self._read_place(visit.uid, visit.devices, into)
            self._read_speeds(visit, fresh, into)
            if visit.has_rdma:
                self._read_pod_ports(visit, into)
            if visit.is_limited:
                into.limit_drops[visit.uid] = read_limit_drops()
            into.done_pods.add(visit.uid)
        except (KernelError, OSError) as error:
            log.debug("counters of pod %s: %s", visit.uid, error)

    def _read_place(self, place: Place, devices: Sequence[NodeDevice], into: Readings) -> None:
        into.traffic[place] = read_traffic()
        asked = [(device.device.name, link.ifname) for device in devices if (link := _may_pause(device))]
        if asked:
            with NetlinkSocket.open() as rtnl:
                outcomes = rtnl.batch([get_pauses_request(ifname) for _, ifname in asked])
            for (name, _), outcome in zip(asked, outcomes, strict=True):
                if outcome and not isinstance(outcome, KernelError):
                    into.pauses[name] = decode(parse_pauses, outcome[0].payload)

    def _read_carriers(self, devices: Sequence[NodeDevice], into: Readings) -> None:
        indexes = [device.link.ifindex for device in devices if device.link is not None]
        if not indexes:
            return
        with NetlinkSocket.open() as rtnl:
            outcomes = rtnl.batch([get_link_request(ifindex) for ifindex in indexes])
        for ifindex, outcome in zip(indexes, outcomes, strict=True):
            if outcome and not isinstance(outcome, KernelError):
                losses = decode(parse_link_counters, outcome[0].payload).get(CARRIER_LOSSES)
                if losses is not None:
                    into.carrier_losses[ifindex] = losses

    def _read_speeds(self, visit: _Visit, fresh: dict[SpeedKey, int | None], into: Readings) -> None:
        here = {
            device.device.name: (visit.uid, device.link.ifindex, device.carrier_losses or 0)
            for device in visit.devices
            if device.link is not None and device.link.carrier
        }
        unknown = {key[1] for key in here.values() if key not in self._speeds}
        found = read_link_settings(unknown, []) if unknown else {}
        for name, key in here.items():
            read = found.get(key[1])
            mbps = self._speeds.get(key, read.speed_mbps if read else None)
            fresh[key] = mbps
            if mbps is not None:
                into.speeds[name] = mbps

    def _read_pod_ports(self, visit: _Visit, into: Readings) -> None:
        """Read RDMA devices that are only visible in their namespace."""
        with open_sysfs(visit.netns) as root:
            for device in visit.devices:
                if device.device.rdma_device:
                    self._read_ports(root, device, into)

    def _read_ports(self, root: Path, device: NodeDevice, into: Readings) -> None:
        ports = read_port_counters(root, device.device.rdma_device)
        if ports:
            into.ports[device.device.name] = ports


def _may_pause(device: NodeDevice) -> Link | None:
    """Return the link of a physical port: flow control has no meaning on others."""
    is_function = bool(device.device.pci_address) and not device.device.physical_function
    return device.link if is_function else None
