"""The kernel's counters, read for one scrape by one thread that ends with it.

The thread reads the node, then enters one pod's network namespace after another. Each part is recorded as
soon as it is read, with the current place: a scraper that stops waiting for a place that hangs has the rest,
and can avoid that place next time. What cannot be read is absent, never 0.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from dranet.claims.alignment import Verdict
from dranet.driver.alignment.watch import NicKey
from dranet.driver.health import DeviceStates, find_moved_link
from dranet.driver.publish import View
from dranet.errors import KernelError
from dranet.inventory.cabling import judge_cabling
from dranet.kernel.attachment.traffic import ifb_name
from dranet.kernel.counters import (
    CountedLink,
    PortReading,
    Traffic,
    parse_link_counters,
    read_limit_drops,
    read_port_counters,
    read_traffic,
)
from dranet.kernel.ethtool.messages import read_link_settings
from dranet.kernel.namespaces.netns import NetworkNamespace, open_sysfs
from dranet.kernel.namespaces.pod_links import PodLinks
from dranet.kernel.netlink.rtnl import decode, get_link_request
from dranet.kernel.netlink.socket import NetlinkSocket
from dranet.kernel.netlink.tc import Pauses, get_pauses_request, parse_pauses
from dranet.model.claim import PodRef
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Distance, Link
from dranet.model.health import CARRIER_LOSSES, PcieLink
from dranet.model.plan import AttachPlan, LimitRate, PreparedClaim, PreparedDevice, sum_bandwidth

log = logging.getLogger(__name__)


class HeldGpu(Struct, frozen=True):
    """A GPU of a pod, under the names by which other exporters know it."""

    name: str
    uuid: str
    pci_address: str


class PodDevice(Struct, frozen=True):
    record: PreparedClaim
    prepared: PreparedDevice
    is_shared: bool
    """Whether the pod has a link on top of it."""
    seen: CountedLink | None
    """The pod's link, as far as it is known."""
    distance: Distance | None = None
    """To the pod's GPU; ``None`` without a GPU or if unknown."""
    is_worse: bool = False
    """Whether the node had a closer one."""
    gpu: HeldGpu | None = None
    """The GPU of the pod that it is matched with; ``None`` without a GPU or if unclear."""
    limited: Mapping[str, int] = field(default_factory=dict)
    """Index of the link whose queue has the rate limit, by direction."""

    @property
    def pod_ifname(self) -> str:
        return self.prepared.plan.pod_ifname if self.prepared.plan is not None else ""


class NodeDevice(Struct, frozen=True):
    device: Device
    link: Link | None
    """On the node or in a pod; ``None``: it has none, or it is out of sight."""
    ifname: str
    """Name of its link on the node, even while a pod has it."""
    carrier_losses: int | None
    """As reported from its pod; on the node it must be read."""
    pod_uid: str = ""
    """UID of the pod that it was moved into."""
    healthy: bool | None = None
    faults: Sequence[str] = ()
    pcie: PcieLink | None = None
    driver: str = ""
    on_wrong_rail: bool | None = None
    """``None``: not known."""
    bandwidth_allocated: int = 0
    """Bits per second that claims have."""


class Snapshot(Struct, frozen=True):
    """The devices and pods of one scrape. The owner closes it."""

    devices: Sequence[NodeDevice]
    in_pods: Sequence[PodDevice]
    gpus: Sequence[tuple[PodRef, HeldGpu]]
    """Those of the pods in ``in_pods``, whichever driver allocated them."""
    wanted_pods: frozenset[str]
    """UIDs of those with links or RDMA devices in ``devices`` or ``in_pods``."""
    namespaces: dict[str, NetworkNamespace]
    """Those of ``wanted_pods`` that could be opened, until they are handed out."""
    is_rdma_exclusive: bool = False
    """Whether RDMA devices in pods are only visible in their namespace."""

    def hand_out(self) -> Iterator[tuple[str, NetworkNamespace]]:
        """Yield one namespace after another, each to one caller only, on any thread; closed afterwards."""
        while True:
            try:
                uid, netns = self.namespaces.popitem()
            except KeyError:
                return
            with netns:
                yield uid, netns

    def close(self) -> None:
        """Close what was not handed out; on any thread."""
        for _ in self.hand_out():
            pass


GetVerdicts = Callable[[str], Mapping[NicKey, Verdict]]
"""By the pod's UID."""


def take_snapshot(
    view: View,
    records: Sequence[PreparedClaim],
    links: PodLinks,
    states: DeviceStates,
    get_verdicts: GetVerdicts,
) -> Snapshot:
    """Take it on the event loop; nothing waits."""
    uuids = {gpu.pci_address: gpu.uuid for gpu in view.facts.gpus}
    in_pods = list(_find_in_pods(records, links, get_verdicts, uuids))
    moved = {found.prepared.device.name: found for found in in_pods if not found.is_shared}
    devices = list(_find_devices(view, moved, states, sum_bandwidth(records)))
    wanted = {
        found.record.pod.uid
        for found in in_pods
        if found.seen is not None or found.prepared.device.rdma_device
    }
    namespaces = links.open_namespaces() if wanted else {}
    for uid in namespaces.keys() - wanted:
        namespaces.pop(uid).close()
    gpus = list(_find_gpus(records, get_verdicts, uuids))
    is_exclusive = view.facts.rdma_netns_exclusive
    return Snapshot(devices, in_pods, gpus, frozenset(wanted), namespaces, is_exclusive)


def _find_gpus(
    records: Sequence[PreparedClaim], get_verdicts: GetVerdicts, uuids: Mapping[str, str]
) -> Iterator[tuple[PodRef, HeldGpu]]:
    """Each verdict of a pod has all GPUs of the pod."""
    for pod in dict.fromkeys(record.pod for record in records if record.netns_path):
        verdict = next(iter(get_verdicts(pod.uid).values()), None)
        for measured in verdict.row if verdict is not None else ():
            yield pod, _identify_gpu(measured.gpu.device, uuids)


def _identify_gpu(device: Device, uuids: Mapping[str, str]) -> HeldGpu:
    return HeldGpu(device.name, uuids.get(device.pci_address, ""), device.pci_address)


def _find_in_pods(
    records: Sequence[PreparedClaim], links: PodLinks, get_verdicts: GetVerdicts, uuids: Mapping[str, str]
) -> Iterator[PodDevice]:
    seen_in: dict[str, Sequence[CountedLink]] = {}
    for record in records:
        if not record.netns_path:
            continue
        uid = record.pod.uid
        known = get_verdicts(uid)
        if uid not in seen_in:
            seen_in[uid] = links.get_links(uid)
        for position, prepared in enumerate(record.devices):
            if prepared.plan is None or prepared.device.kind is DeviceKind.GPU:
                continue
            shared = prepared.plan.is_on_top
            seen = _find_link(prepared.device, prepared.plan.pod_ifname, seen_in[uid], is_shared=shared)
            verdict = known.get((record.claim.uid, position))
            clear = verdict if verdict is not None and not verdict.is_unclear else None
            gpu = clear.gpu.device if clear is not None and clear.gpu is not None else None
            yield PodDevice(
                record,
                prepared,
                shared,
                seen,
                clear.distance if clear is not None else None,
                is_worse=verdict is not None and verdict.is_surely_worse,
                gpu=_identify_gpu(gpu, uuids) if gpu is not None else None,
                limited=dict(_find_limited(prepared.plan, seen, seen_in[uid])),
            )


def _find_limited(
    plan: AttachPlan, seen: CountedLink | None, links: Sequence[CountedLink]
) -> Iterator[tuple[str, int]]:
    """What the pod receives is queued on a link of its own."""
    limit = next((step for step in plan.steps if isinstance(step, LimitRate)), None)
    if limit is None:
        return
    if limit.egress_bits_per_second is not None and seen is not None:
        yield "transmit", seen.link.ifindex
    name = ifb_name(plan.pod_ifname)
    ifb = next((other for other in links if other.link.ifname == name), None)
    if limit.ingress_bits_per_second is not None and ifb is not None:
        yield "receive", ifb.link.ifindex


def _find_link(
    device: Device, ifname: str, links: Sequence[CountedLink], *, is_shared: bool
) -> CountedLink | None:
    if not ifname:
        return None
    if is_shared:
        return next((seen for seen in links if seen.link.ifname == ifname), None)
    return find_moved_link(device, ifname, links)


def _find_devices(
    view: View, moved: Mapping[str, PodDevice], states: DeviceStates, bandwidth: Mapping[str, int]
) -> Iterator[NodeDevice]:
    drivers = {function.address: function.driver for function in view.facts.pci_functions}
    cabling = judge_cabling(view.offered.values(), view.policy.expected_rails)
    wrong = {one.device for one in cabling.wrong}
    for device in view.offered.values():
        if device.kind is DeviceKind.GPU:
            continue
        holder = moved.get(device.name)
        plan = holder.prepared.plan if holder is not None else None
        seen = holder.seen if holder is not None else None
        link = view.links.get(device.ifname) if holder is None else seen.link if seen is not None else None
        yield NodeDevice(
            device,
            link,
            plan.host.ifname if plan is not None and plan.host is not None else device.ifname,
            seen.counters.get(CARRIER_LOSSES) if seen is not None else None,
            pod_uid=holder.record.pod.uid if holder is not None else "",
            healthy=states.healthy.get(device.name),
            faults=states.faults.get(device.name, ()),
            pcie=states.pcie.get(device.name),
            driver=drivers.get(device.pci_address, ""),
            on_wrong_rail=device.name in wrong if device.name in cabling.judged else None,
            bandwidth_allocated=bandwidth.get(device.name, 0),
        )


HOST = ""
"""The place of the node itself, instead of a pod's UID."""

Place = str
"""Where a read may hang: the UID of a pod, :data:`HOST`, or ``rdma/`` and the name of an RDMA device."""


def describe(place: Place) -> str:
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
    uid: str
    netns: NetworkNamespace
    devices: Sequence[NodeDevice]
    """Those that were moved into it."""
    is_limited: bool
    is_rdma_exclusive: bool
    """Whether its RDMA devices are only visible inside."""


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
            place = f"rdma/{device.device.rdma_device}"
            if is_here and place not in avoid:
                into.begun.append(place)
                self._read_ports(self._sysfs_root, device, into)

    def _read_pod(self, visit: _Visit, fresh: dict[SpeedKey, int | None], into: Readings) -> None:
        into.begun.append(visit.uid)
        try:
            visit.netns.enter_for_good()
            self._read_place(visit.uid, visit.devices, into)
            self._read_speeds(visit, fresh, into)
            if visit.is_rdma_exclusive and any(device.device.rdma_device for device in visit.devices):
                with open_sysfs(visit.netns) as root:
                    for device in visit.devices:
                        if device.device.rdma_device:
                            self._read_ports(root, device, into)
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

    def _read_ports(self, root: Path, device: NodeDevice, into: Readings) -> None:
        ports = read_port_counters(root, device.device.rdma_device)
        if ports:
            into.ports[device.device.name] = ports


def _may_pause(device: NodeDevice) -> Link | None:
    """Return the link of a physical port: flow control has no meaning on others."""
    is_function = bool(device.device.pci_address) and not device.device.physical_function
    return device.link if is_function else None
