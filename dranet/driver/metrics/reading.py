"""What the kernel counts, read for one scrape by one thread that ends with it.

The thread reads the node first, then enters one pod's namespace after another: nothing is open, and nothing
waits, between two scrapes. It writes down each part as soon as it has it, so that who waits no longer for a
namespace that hangs has the rest. What cannot be read is absent, and never 0.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path

from dranet.dataclass import dataclass
from dranet.driver.metrics.snapshot import NodeDevice, Snapshot
from dranet.errors import KernelError
from dranet.kernel.discovery.ethtool import read_link_settings
from dranet.kernel.limit_drops import read_limit_drops
from dranet.kernel.link_counters import parse_link_counters
from dranet.kernel.netlink import NetlinkSocket
from dranet.kernel.netns import NetworkNamespace
from dranet.kernel.netns_sysfs import open_sysfs
from dranet.kernel.pause_counters import Pauses, get_pauses_request, parse_pauses
from dranet.kernel.port_counters import PortReading, read_port_counters
from dranet.kernel.rtnl import decode, get_link_request
from dranet.kernel.traffic import Traffic, read_traffic
from dranet.model.health import CARRIER_LOSSES

log = logging.getLogger(__name__)

HOST = ""
"""Instead of a pod's UID: the node itself."""

Place = str
"""UID of a pod, or :data:`HOST`."""


@dataclass(frozen=True, slots=True)
class Readings:
    """What was read so far. Written by the reading thread alone; others may look at any time."""

    traffic: dict[Place, Mapping[int, Traffic]] = field(default_factory=dict)
    """By where, and ifindex."""
    carrier_losses: dict[int, int] = field(default_factory=dict)
    """Of links of the node, by ifindex."""
    speeds: dict[str, int] = field(default_factory=dict)
    """Mbit/s of links in pods, by device."""
    ports: dict[str, Sequence[PortReading]] = field(default_factory=dict)
    """By device."""
    pauses: dict[str, Sequence[Pauses]] = field(default_factory=dict)
    """By device."""
    limit_drops: dict[Place, Mapping[int, int]] = field(default_factory=dict)
    """Packets dropped by rate limits, by where, and ifindex."""
    done_pods: set[str] = field(default_factory=set)
    seconds: list[float] = field(default_factory=list)
    """How long it took, when it is done."""


SpeedKey = tuple[str, int, int]
"""UID of the pod, ifindex, carriers lost: a link that is to run at another speed loses its carrier first."""


class CounterReader:
    """Keeps nothing but the speeds of links in pods, which change only with their carrier."""

    def __init__(self, sysfs_root: Path) -> None:
        self._sysfs_root = sysfs_root
        self._speeds: dict[SpeedKey, int | None] = {}

    def read(self, snapshot: Snapshot, into: Readings) -> None:
        """Blocking. The calling thread ends up in some pod's namespace: it must end, too."""
        start = time.perf_counter()
        try:
            self._read_place(HOST, snapshot, into)
            self._read_carriers(snapshot, into)
        except KernelError as error:
            log.debug("counters of the node: %s", error)
        for device in snapshot.devices:
            if device.device.rdma_device and not (device.pod_uid and snapshot.is_rdma_exclusive):
                self._read_ports(self._sysfs_root, device, into)
        fresh: dict[SpeedKey, int | None] = {}
        limited = {found.record.pod.uid for found in snapshot.in_pods if found.limited}
        for uid, netns in snapshot.namespaces.items():
            try:
                netns.enter_for_good()
                self._read_place(uid, snapshot, into)
                self._read_speeds(uid, snapshot, fresh, into)
                self._read_pod_ports(uid, netns, snapshot, into)
                if uid in limited:
                    into.limit_drops[uid] = read_limit_drops()
                into.done_pods.add(uid)
            except (KernelError, OSError) as error:
                log.debug("counters of pod %s: %s", uid, error)
        self._speeds = fresh
        into.seconds.append(time.perf_counter() - start)

    def _read_place(self, place: Place, snapshot: Snapshot, into: Readings) -> None:
        into.traffic[place] = read_traffic()
        asked = [device for device in snapshot.devices if device.pod_uid == place and _may_pause(device)]
        if asked:
            with NetlinkSocket.open() as rtnl:
                outcomes = rtnl.batch(
                    [get_pauses_request(d.link.ifname) for d in asked if d.link is not None]
                )
            for device, outcome in zip(asked, outcomes, strict=True):
                if outcome and not isinstance(outcome, KernelError):
                    into.pauses[device.device.name] = decode(parse_pauses, outcome[0].payload)

    def _read_carriers(self, snapshot: Snapshot, into: Readings) -> None:
        indexes = [d.link.ifindex for d in snapshot.devices if d.link is not None and not d.pod_uid]
        if not indexes:
            return
        with NetlinkSocket.open() as rtnl:
            outcomes = rtnl.batch([get_link_request(ifindex) for ifindex in indexes])
        for ifindex, outcome in zip(indexes, outcomes, strict=True):
            if outcome and not isinstance(outcome, KernelError):
                losses = decode(parse_link_counters, outcome[0].payload).get(CARRIER_LOSSES)
                if losses is not None:
                    into.carrier_losses[ifindex] = losses

    def _read_speeds(
        self, uid: str, snapshot: Snapshot, fresh: dict[SpeedKey, int | None], into: Readings
    ) -> None:
        here = {
            device.device.name: (uid, device.link.ifindex, device.carrier_losses or 0)
            for device in snapshot.devices
            if device.pod_uid == uid and device.link is not None and device.link.carrier
        }
        unknown = {key[1] for key in here.values() if key not in self._speeds}
        found = read_link_settings(unknown, []) if unknown else {}
        for name, key in here.items():
            read = found.get(key[1])
            mbps = self._speeds.get(key, read.speed_mbps if read else None)
            fresh[key] = mbps
            if mbps is not None:
                into.speeds[name] = mbps

    def _read_pod_ports(self, uid: str, netns: NetworkNamespace, snapshot: Snapshot, into: Readings) -> None:
        """RDMA devices that are visible in their namespace alone."""
        mine = [d for d in snapshot.devices if d.pod_uid == uid and d.device.rdma_device]
        if mine and snapshot.is_rdma_exclusive:
            with open_sysfs(netns) as root:
                for device in mine:
                    self._read_ports(root, device, into)

    def _read_ports(self, root: Path, device: NodeDevice, into: Readings) -> None:
        ports = read_port_counters(root, device.device.rdma_device)
        if ports:
            into.ports[device.device.name] = ports


def _may_pause(device: NodeDevice) -> bool:
    """Flow control is of physical ports."""
    is_function = bool(device.device.pci_address) and not device.device.physical_function
    return is_function and device.link is not None
