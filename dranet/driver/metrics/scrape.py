"""Answers a scrape: the driver's own metrics, and what the kernel counts now for devices and pods.

Blocking reads have a thread of their own. If the kernel hangs, the answer comes in time without what could
not be read: the thread is abandoned, and its place (a pod, an RDMA device) is left out until it returns.
Concurrent scrapes, as from a pair of Prometheus servers, get the same answer.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from operator import itemgetter

from msgspec import Struct

from dranet import __version__
from dranet.cluster.slices import SlicePublisher
from dranet.driver import executor
from dranet.driver.metrics.reading import (
    HOST,
    CounterReader,
    HeldGpu,
    NodeDevice,
    Place,
    PodDevice,
    Readings,
    Snapshot,
    describe,
)
from dranet.kernel.counters import PortReading, Traffic, parse_rate
from dranet.kubelet.kubelet_plugin import KubeletPlugin
from dranet.model.claim import PodRef
from dranet.model.health import PcieLink
from dranet.runtime.nri import NriPlugin
from dranet.settings import DeviceMetrics
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics
from dranet.telemetry.metrics import LeaseOutcome, Outcome
from dranet.telemetry.node import DeviceFamilies
from dranet.telemetry.recorder import Declared, Exposition, Sample, format_labels
from dranet.view.policy import PolicySource

log = logging.getLogger(__name__)

KEEP_SECONDS = 1.0
"""How long a result answers other scrapes."""
READ_SECONDS = 2.0
"""How long a scrape waits for the kernel. Prometheus waits 10 s by default."""

MOST_STUCK = 4
"""Abandoned threads at a time. With more, the whole kernel hangs and not one place."""

NOTHING = Snapshot((), (), (), frozenset(), {})


class Scraper:
    """Created and used on the event loop."""

    def __init__(
        self,
        metrics: Metrics,
        take_snapshot: Callable[[], Snapshot],
        reader: CounterReader,
        shown: DeviceMetrics,
        *,
        keep_seconds: float = KEEP_SECONDS,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        self._metrics = metrics
        self._take_snapshot = take_snapshot
        self._reader = reader
        self._shown = shown
        self._keep_seconds = keep_seconds
        self._read_seconds = read_seconds
        self._work: asyncio.Task[bytes] | None = None
        self._stuck: list[tuple[_Job, Readings]] = []
        """Abandoned threads, and their places."""

    async def render(self) -> bytes:
        if self._work is None:
            self._work = asyncio.create_task(self._read_anew(), name="scrape")
        devices = await asyncio.shield(self._work)  # other scrapes keep waiting for it
        return self._metrics.render() + devices

    async def _read_anew(self) -> bytes:
        kept = 0.0
        try:
            text = await self._read()
            kept = self._keep_seconds
        finally:
            if kept:
                asyncio.get_running_loop().call_later(kept, self._forget)
            else:
                self._forget()
        return text

    def _forget(self) -> None:
        self._work = None

    async def _read(self) -> bytes:
        snapshot, readings = NOTHING, Readings()
        try:
            if self._shown is not DeviceMetrics.OFF:
                snapshot = self._take_snapshot()
            text = await self._read_in_thread(snapshot, readings)
        except TimeoutError:
            text = self._write(snapshot, readings)
        except Exception:
            log.exception("bug in the metrics of devices")
            text = b""
        shown = self._metrics.scrape
        shown.unread_pods.set(len(snapshot.wanted_pods - readings.done_pods))
        shown.stuck_reads.set(len(self._stuck))
        shown.read_seconds.set(readings.seconds[0] if readings.seconds else self._read_seconds)
        return text

    async def _read_in_thread(self, snapshot: Snapshot, readings: Readings) -> bytes:
        """Raises TimeoutError: the kernel has not answered, or too many threads are stuck."""
        self._stuck = [(job, where) for job, where in self._stuck if job.thread.is_alive()]
        avoid = {where.begun[-1] for _, where in self._stuck if where.begun}
        with closing(snapshot):  # closes what the thread has not taken when it is abandoned
            if len(self._stuck) >= MOST_STUCK:
                raise TimeoutError
            job = _Job(partial(self._read_and_write, snapshot, readings, avoid))
            job.thread.start()
            try:
                text = await job.wait(self._read_seconds)
            except TimeoutError:
                self._leave(job, readings)
                raise
        self._metrics.scrape.loop_lag.set(job.lag_seconds)
        return text

    def _leave(self, job: _Job, readings: Readings) -> None:
        readings.is_left.set()
        self._stuck.append((job, readings))
        place = describe(readings.begun[-1]) if readings.begun else "devices"
        message = "counters of %s were not read in %g s: left out until the kernel answers"
        log.warning(message, place, self._read_seconds)

    def _read_and_write(self, snapshot: Snapshot, readings: Readings, avoid: Collection[Place]) -> bytes:
        self._reader.read(snapshot, readings, avoid)
        return b"" if readings.is_left.is_set() else self._write(snapshot, readings)

    def _write(self, snapshot: Snapshot, readings: Readings) -> bytes:
        out = Exposition()
        write_devices(out, self._metrics.devices, snapshot, readings)
        if self._shown is DeviceMetrics.PODS:
            write_pods(out, self._metrics.devices, snapshot, readings)
        return out.body


class _Job:
    """Work in a thread of its own that notifies the event loop when it is done."""

    def __init__(self, work: Callable[[], bytes]) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[bytes] = self._loop.create_future()
        self.thread = threading.Thread(target=self._run, name="scrape", daemon=True)
        self.lag_seconds = 0.0
        """How long the loop took to notice the end."""

    async def wait(self, seconds: float) -> bytes:
        """Raises TimeoutError: the thread goes on."""
        async with asyncio.timeout(seconds):
            return await self._answer

    def _run(self) -> None:
        try:
            answer: bytes | Exception = self._work()
        except Exception as error:  # noqa: BLE001 - the waiting scrape raises it
            answer = error
        executor.trim()
        with suppress(RuntimeError):  # the loop has ended, and with it the driver
            self._loop.call_soon_threadsafe(self._settle, answer, time.perf_counter())

    def _settle(self, answer: bytes | Exception, ended: float) -> None:
        self.lag_seconds = time.perf_counter() - ended
        if self._answer.done():  # abandoned
            return
        if isinstance(answer, Exception):
            self._answer.set_exception(answer)
        else:
            self._answer.set_result(answer)


def set_up_gauges(
    metrics: Metrics,
    store: ClaimStore,
    policy: PolicySource,
    publisher: SlicePublisher,
    kubelet: KubeletPlugin,
    nri: NriPlugin,
) -> None:
    metrics.build_info.labels(__version__, platform.python_version(), platform.release()).set(1)
    metrics.prepared_claims.set_function(lambda: len(store.get_all()))
    metrics.inventory.attributes_file_ok.set_function(lambda: not policy.problem)
    metrics.slices.last_published.set_function(lambda: publisher.last_published)
    metrics.store.writable.set_function(lambda: store.is_writable)
    metrics.store.unwritten.set_function(lambda: len(store.unwritten))
    metrics.store.quarantined.set_function(lambda: store.quarantine_size)
    metrics.store.size.set_function(lambda: store.size_bytes)
    metrics.kubelet.registered.set_function(lambda: bool(kubelet.capabilities.registered))
    metrics.kubelet.health_streams.set_function(lambda: kubelet.capabilities.health_streams)
    metrics.runtime.connected.set_function(lambda: nri.is_ready)
    # Alerts use the increase of these series; to Prometheus one that begins at 1 has not risen.
    for ended in (Outcome.SUCCESS, Outcome.FAILED):
        metrics.prepare.prepare_seconds.labels(ended)
    for lease in LeaseOutcome:
        metrics.dhcp.renewals.labels(lease)
    for kind in ("status", "event"):
        metrics.reports.dropped.labels(kind)


BITS = 8
MEGA, GIGA = 1_000_000, 1_000_000_000

Counted = tuple[str, Traffic]
"""Labels, and the link's counters."""
Port = tuple[str, PortReading]


class _Shown(Struct, frozen=True):
    labels: str
    node: NodeDevice
    traffic: Traffic | None
    carrier_losses: int | None
    speed_mbps: int | None


def write_devices(out: Exposition, families: DeviceFamilies, snapshot: Snapshot, readings: Readings) -> None:
    shown = [_show(node, readings) for node in snapshot.devices]
    out.add(families.device_info, ((_describe(device.node), 1) for device in shown))
    counted = [(device.labels, device.traffic) for device in shown if device.traffic is not None]
    _write_traffic(out, families.device_traffic, counted)
    _write_links(out, families, shown)
    _write_pauses(out, families, shown, readings)
    _write_pcie(out, families, [(d.labels, d.node.pcie) for d in shown if d.node.pcie is not None])
    healthy = ((d.labels, int(d.node.healthy)) for d in shown if d.node.healthy is not None)
    out.add(families.device_healthy, healthy)
    faults = ((d, fault) for d in shown for fault in d.node.faults)
    names = ({"device": d.node.device.name, "fault": fault} for d, fault in faults)
    out.add(families.device_fault, ((format_labels(name), 1) for name in names))
    cabled = ((d.labels, int(d.node.on_wrong_rail)) for d in shown if d.node.on_wrong_rail is not None)
    out.add(families.device_wrong_rail, cabled)
    _write_ports(out, families, shown, readings)


def write_pods(out: Exposition, families: DeviceFamilies, snapshot: Snapshot, readings: Readings) -> None:
    pods = [(format_labels(_identify(found)), found) for found in snapshot.in_pods]
    out.add(families.pod_device_info, ((_describe_in_pod(found), 1) for _, found in pods))
    out.add(families.pod_gpu_info, ((_describe_gpu(pod, gpu), 1) for pod, gpu in snapshot.gpus))
    counted: list[Counted] = []
    for labels, found in pods:
        in_pod = readings.traffic.get(found.record.pod.uid, {})
        if found.seen is not None and found.seen.link.ifindex in in_pod:
            counted.append((labels, in_pod[found.seen.link.ifindex]))
    _write_traffic(out, families.pod_traffic, counted)
    out.add(families.pod_limit_drops, _find_limit_drops(snapshot, readings))
    ports = [
        (_port_labels(found, port.number), port)
        for _, found in pods
        if not found.is_shared
        for port in readings.ports.get(found.prepared.device.name, ())
    ]
    for word, declared in families.pod_rdma.items():
        out.add(declared, _pick(ports, word))
    judged = [found for _, found in pods if found.distance is not None]
    out.add(families.pod_alignment, (_show_level(found) for found in judged))
    out.add(families.pod_worse, ((format_labels(_identify(found)), int(found.is_worse)) for found in judged))


# --- devices --------------------------------------------------------------------------------------------


def _show(node: NodeDevice, readings: Readings) -> _Shown:
    link, name = node.link, node.device.name
    place = readings.traffic.get(node.pod_uid or HOST, {})
    on_host = readings.carrier_losses.get(link.ifindex) if link is not None else None
    return _Shown(
        format_labels({"device": name}),
        node,
        place.get(link.ifindex) if link is not None else None,
        node.carrier_losses if node.pod_uid else on_host,
        readings.speeds.get(name) if node.pod_uid else link.speed_mbps if link is not None else None,
    )


def _describe(node: NodeDevice) -> str:
    device = node.device
    return format_labels(
        {
            "device": device.name,
            "kind": device.kind,
            "interface": node.ifname,
            "rdma_device": device.rdma_device,
            "pci_address": device.pci_address,
            "numa_node": "" if device.numa_node is None else str(device.numa_node),
            "driver": node.driver,
        }
    )


def _write_traffic(out: Exposition, declared: Mapping[str, Declared], counted: Sequence[Counted]) -> None:
    for field, family in declared.items():
        get: Callable[[Traffic], int] = itemgetter(Traffic._fields.index(field))
        out.add(family, [(labels, get(traffic)) for labels, traffic in counted])


def _write_links(out: Exposition, families: DeviceFamilies, shown: Sequence[_Shown]) -> None:
    links = [(device.labels, device.node.link) for device in shown if device.node.link is not None]
    out.add(families.device_up, ((labels, int(link.operstate == "up")) for labels, link in links))
    out.add(families.device_carrier, ((labels, int(link.carrier)) for labels, link in links))
    losses = ((d.labels, d.carrier_losses) for d in shown if d.carrier_losses is not None)
    out.add(families.device_carrier_losses, losses)
    speeds = ((d.labels, d.speed_mbps * MEGA // BITS) for d in shown if d.speed_mbps is not None)
    out.add(families.device_speed, speeds)
    _write_bandwidth(out, families, shown)
    out.add(families.device_mtu, ((labels, link.mtu) for labels, link in links))


def _write_bandwidth(out: Exposition, families: DeviceFamilies, shown: Sequence[_Shown]) -> None:
    counted = [(d.labels, d.node) for d in shown if d.node.device.bandwidth is not None]
    totals = ((labels, node.device.bandwidth) for labels, node in counted)
    out.add(families.device_bandwidth, ((labels, one.total // BITS) for labels, one in totals if one))
    allocated = ((labels, node.bandwidth_allocated // BITS) for labels, node in counted)
    out.add(families.device_bandwidth_allocated, allocated)


def _write_pauses(
    out: Exposition, families: DeviceFamilies, shown: Sequence[_Shown], readings: Readings
) -> None:
    pauses = [
        (format_labels({"device": device.node.device.name, "priority": str(pause.priority)}), pause)
        for device in shown
        for pause in readings.pauses.get(device.node.device.name, ())
    ]
    out.add(families.pauses_received, ((labels, pause.received) for labels, pause in pauses))
    out.add(families.pauses_transmitted, ((labels, pause.transmitted) for labels, pause in pauses))


def _write_pcie(out: Exposition, families: DeviceFamilies, links: Sequence[tuple[str, PcieLink]]) -> None:
    """The slow link of a suspended function means nothing."""
    awake = [(labels, link) for labels, link in links if not link.asleep]
    out.add(families.pcie_speed, _known(awake, lambda link: int(link.speed * GIGA)))
    out.add(families.pcie_max_speed, _known(links, lambda x: int(_least(x.most_speed, x.port_speed) * GIGA)))
    out.add(families.pcie_lanes, _known(awake, lambda link: link.width))
    out.add(families.pcie_max_lanes, _known(links, lambda x: int(_least(x.most_width, x.port_width))))


def _known(links: Iterable[tuple[str, PcieLink]], get: Callable[[PcieLink], int]) -> Iterator[Sample]:
    """Leave out 0, which means that it is not reported."""
    return ((labels, value) for labels, link in links if (value := get(link)))


def _least(ours: float, port: float) -> float:
    return min(ours, port) if port else ours


def _write_ports(
    out: Exposition, families: DeviceFamilies, shown: Sequence[_Shown], readings: Readings
) -> None:
    ports = [
        (format_labels({"device": device.node.device.name, "port": str(port.number)}), port)
        for device in shown
        for port in readings.ports.get(device.node.device.name, ())
    ]
    out.add(families.rdma_up, ((labels, int(p.state == "ACTIVE")) for labels, p in ports if p.state))
    rates = ((labels, rate) for labels, port in ports if (rate := parse_rate(port.rate)) is not None)
    out.add(families.rdma_speed, rates)
    for word, declared in families.rdma_counters.items():
        out.add(declared, _pick(ports, word))


def _pick(ports: Sequence[Port], word: str) -> Iterator[Sample]:
    return ((labels, port.counters[word]) for labels, port in ports if word in port.counters)


# --- pods -----------------------------------------------------------------------------------------------


def _identify(found: PodDevice) -> dict[str, str]:
    return {
        "namespace": found.record.pod.namespace,
        "pod": found.record.pod.name,
        "claim": found.record.claim.name,
        "device": found.prepared.device.name,
        "interface": found.pod_ifname,
    }


def _describe_in_pod(found: PodDevice) -> str:
    more = {"request": found.prepared.request, "shared": str(found.is_shared).lower()}
    gpu = _gpu_labels(found.gpu) if found.gpu is not None else {}
    return format_labels({**_identify(found), **more, **gpu})


def _describe_gpu(pod: PodRef, gpu: HeldGpu) -> str:
    return format_labels({"namespace": pod.namespace, "pod": pod.name, **_gpu_labels(gpu)})


def _gpu_labels(gpu: HeldGpu) -> dict[str, str]:
    return {"gpu": gpu.name, "gpu_uuid": gpu.uuid, "gpu_pci_address": gpu.pci_address}


def _port_labels(found: PodDevice, number: int) -> str:
    identity = {name: value for name, value in _identify(found).items() if name != "interface"}
    return format_labels({**identity, "port": str(number)})


def _find_limit_drops(snapshot: Snapshot, readings: Readings) -> Iterator[Sample]:
    for found in snapshot.in_pods:
        drops = readings.limit_drops.get(found.record.pod.uid, {})
        for direction, ifindex in found.limited.items():
            if ifindex in drops:
                yield format_labels({**_identify(found), "direction": direction}), drops[ifindex]


def _show_level(found: PodDevice) -> Sample:
    assert found.distance is not None, "asked for judged ones"
    return format_labels({**_identify(found), "level": found.distance.name}), found.distance.value + 1
