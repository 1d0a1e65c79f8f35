"""A scrape of 100 claims with 8 NICs each: real links in real namespaces, read and written as the driver
does.

Floors: the text of ``/proc/net/dev`` read in each of the namespaces, by one thread, and thrown away; and the
Prometheus client library writing as many samples. The bound in milliseconds is the promise of issue 8.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from benchmarks.measure import Result, Series, time_ms
from dranet.claims.alignment import Verdict
from dranet.driver.health import DeviceStates
from dranet.driver.metrics.reading import CounterReader, Snapshot, take_snapshot
from dranet.driver.metrics.scrape import Scraper
from dranet.driver.publish import View
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.namespaces.pod_links import PodLinks
from dranet.model.claim import ClaimRef, PodRef
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Distance
from dranet.model.health import PcieLink
from dranet.model.plan import AttachPlan, LinkState, MoveLink, PreparedClaim, PreparedDevice
from dranet.settings import DeviceMetrics
from dranet.telemetry import Metrics

PODS, NICS = 100, 8
RUNS = 15
BOUND_MS = 100.0
FLOOR_BOUND = 20.0
CLIENT_BOUND = 1.0
"""Reading and writing together take less than the client library needs to write."""
NETNS = Path("/run/netns")


def run() -> Iterator[Result]:
    with ExitStack() as stack:
        yield from measure(stack, RUNS)


def measure(stack: ExitStack, runs: int) -> list[Result]:
    """In a private tree; ``stack`` closes the namespaces."""
    namespaces = {f"pod-{pod}": stack.enter_context(_make_pod(pod, NICS)) for pod in range(PODS)}
    return asyncio.run(_measure(namespaces, runs))


def _make_pod(number: int, nics: int) -> NetworkNamespace:
    """A namespace ``p<number>`` with so many links, the other ends of which are here."""
    name = f"p{number}"
    subprocess.run(("ip", "netns", "add", name), check=True)
    lines = [f"link add h{number}x{nic} type veth peer name net{nic} netns {name}" for nic in range(nics)]
    subprocess.run(("ip", "-batch", "-"), input="\n".join(lines), text=True, check=True)
    up = [f"link set net{nic} up" for nic in range(nics)]
    subprocess.run(("ip", "-n", name, "-batch", "-"), input="\n".join(up), text=True, check=True)
    return NetworkNamespace.open(NETNS / name)


class _Claims:
    """What store, inventory, health watch and alignment checks hold for this many pods."""

    def __init__(self, pods: Iterable[int], nics: int) -> None:
        self.records = tuple(build_claim(pod, nics) for pod in pods)
        devices = [prepared.device for record in self.records for prepared in record.devices]
        self.view = View(offered={device.name: device for device in devices})

    def get_latest(self, pod_uid: str) -> Mapping[tuple[str, int], Verdict]:
        number = int(pod_uid.removeprefix("pod-"))
        return {(f"claim-{number}", nic): _NEAR for nic in range(NICS)}


_PCIE = PcieLink(32.0, 16, 32.0, 16, 32.0, 16)


_NEAR = Verdict((), None, Distance.PIX, Distance.PIX)


def build_claim(number: int, nics: int) -> PreparedClaim:
    """Return the record of an attached claim of a pod."""
    return PreparedClaim(
        ClaimRef("team-a", f"claim-{number}", f"claim-{number}"),
        PodRef("team-a", f"worker-{number}", f"pod-{number}"),
        tuple(_build_device(number, nic) for nic in range(nics)),
        "boot",
        sandbox_id=f"sandbox-{number}",
        netns_path=str(NETNS / f"p{number}"),
    )


def _build_device(number: int, nic: int) -> PreparedDevice:
    name, pod_ifname = f"net-{number}-{nic}", f"net{nic}"
    host = LinkState(1, f"h{number}x{nic}", "02:00:00:00:00:01", 1500, up=True)
    plan = AttachPlan(name, (MoveLink(pod_ifname),), pod_ifname, host)
    return PreparedDevice("nics", "node", Device(name, DeviceKind.NIC), plan=plan)


async def _measure(namespaces: Mapping[str, NetworkNamespace], runs: int) -> list[Result]:
    claims = _Claims(range(PODS), NICS)
    reported = asyncio.Event()
    links = PodLinks(lambda _: reported.set())
    with closing(links):
        for uid, netns in namespaces.items():
            links.follow(uid, netns)
        while sum(len(links.get_links(uid)) for uid in namespaces) < PODS * (NICS + 1):
            await reported.wait()
            reported.clear()
        return await _compare(claims, links, namespaces, runs)


async def _compare(
    claims: _Claims, links: PodLinks, namespaces: Mapping[str, NetworkNamespace], runs: int
) -> list[Result]:
    def take() -> Snapshot:
        states = DeviceStates(
            dict.fromkeys(claims.view.offered, True), {}, dict.fromkeys(claims.view.offered, _PCIE)
        )
        return take_snapshot(claims.view, claims.records, links, states, claims.get_latest)

    scraper = Scraper(Metrics(), take, CounterReader(Path("/sys")), DeviceMetrics.PODS, keep_seconds=0)
    text = await scraper.render()
    library = _Library(text.decode())
    gc.collect()
    gc.freeze()  # as the driver does at its start: what the library's comparison keeps is nothing of a scrape
    ours: list[float] = []
    floors: list[float] = []
    client: list[float] = []
    on_loop: list[float] = []
    processor: list[float] = []
    for _ in range(runs):
        begin, busy = time.perf_counter(), time.process_time()
        await scraper.render()
        processor.append((time.process_time() - busy) * 1000)
        ours.append((time.perf_counter() - begin) * 1000)
        floors.append(time_ms(lambda: _read_all_text(namespaces)))
        client.append(time_ms(library.write))
        on_loop.append(time_ms(lambda: take().close()))
    title = f"scrape of {PODS} claims with {NICS} NICs, {library.size} samples"
    series = Series(title, tuple(ours))
    return [
        Result(title, series, bound=BOUND_MS),
        Result(f"{title}: against /proc/net/dev", series, Series("read", tuple(floors)), FLOOR_BOUND),
        Result(f"{title}: against the client library", series, Series("write", tuple(client)), CLIENT_BOUND),
        Result("processor time of it", Series("CPU", tuple(processor)), bound=BOUND_MS),
        Result("of it on the event loop", Series("snapshot", tuple(on_loop))),
        Result("samples", Series("samples", (float(library.size),), unit="")),
        Result("size of the answer", Series("size", (len(text) / 1_000_000,), unit="MB")),
    ]


def _read_all_text(namespaces: Mapping[str, NetworkNamespace]) -> None:
    def read() -> None:
        for netns in namespaces.values():
            netns.enter_for_good()
            Path("/proc/thread-self/net/dev").read_bytes()

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()


class _Library(Collector):
    """The samples of an answer, written by the client library."""

    def __init__(self, text: str) -> None:
        self._families = list(text_string_to_metric_families(text))
        self.size = sum(len(family.samples) for family in self._families)
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            made = GaugeMetricFamily(family.name, family.documentation)
            made.samples = family.samples
            yield made

    def write(self) -> None:
        generate_latest(self._registry)
