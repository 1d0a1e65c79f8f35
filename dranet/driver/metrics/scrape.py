"""Answers a scrape: the driver's own metrics, and what the kernel counts now for devices and pods.

Nothing is read between two scrapes. Blocking reads have a thread of their own, so neither the event loop nor
a hook waits for them. If the kernel hangs, the answer comes in time without what could not be read. The
thread is abandoned, and its place (a pod, an RDMA device) is left out until it returns, so only its series
are missing. Concurrent scrapes, as from a pair of Prometheus servers, get the same answer.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import threading
import time
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from functools import partial

from dranet import __version__
from dranet.cluster.slices import SlicePublisher
from dranet.driver import executor
from dranet.driver.metrics.reading import CounterReader, Place, Readings, describe
from dranet.driver.metrics.snapshot import Snapshot
from dranet.driver.metrics.writing import write_devices, write_pods
from dranet.kubelet.kubelet_plugin import KubeletPlugin
from dranet.runtime.nri import NriPlugin
from dranet.settings import DeviceMetrics
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics
from dranet.telemetry.metrics import LeaseOutcome, Outcome
from dranet.telemetry.recorder import Exposition
from dranet.view.policy import PolicySource

log = logging.getLogger(__name__)

KEEP_SECONDS = 1.0
"""How long a result answers other scrapes."""
READ_SECONDS = 2.0
"""How long a scrape waits for the kernel. Prometheus waits 10 s by default."""

MOST_STUCK = 4
"""Abandoned threads at a time. With more, the whole kernel hangs and not one place."""

NOTHING = Snapshot((), (), frozenset(), {})


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
        """Return the whole answer, in the text format."""
        if self._work is None:
            self._work = asyncio.create_task(self._read_anew(), name="scrape")
        devices = await asyncio.shield(self._work)  # other scrapes keep waiting for it
        return self._metrics.render() + devices

    async def _read_anew(self) -> bytes:
        """Read, and keep the result for other scrapes for a while."""
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
        self._stuck = [(job, where) for job, where in self._stuck if job.is_alive]
        avoid = {where.begun[-1] for _, where in self._stuck if where.begun}
        with closing(snapshot):  # closes what the thread has not taken when it is abandoned
            if len(self._stuck) >= MOST_STUCK:
                raise TimeoutError
            job = _Job(partial(self._read_and_write, snapshot, readings, avoid))
            job.start()
            try:
                text = await job.wait(self._read_seconds)
            except TimeoutError:
                self._leave(job, readings)
                raise
        self._metrics.scrape.loop_lag.set(job.lag_seconds)
        return text

    def _leave(self, job: _Job, readings: Readings) -> None:
        """Abandon the thread; it ends at its present place."""
        readings.is_left.set()
        self._stuck.append((job, readings))
        place = describe(readings.begun[-1]) if readings.begun else "devices"
        message = "counters of %s were not read in %g s: left out until the kernel answers"
        log.warning(message, place, self._read_seconds)

    def _read_and_write(self, snapshot: Snapshot, readings: Readings, avoid: Collection[Place]) -> bytes:
        """Blocking, in a thread that ends."""
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
        self._thread = threading.Thread(target=self._run, name="scrape", daemon=True)
        self.lag_seconds = 0.0
        """How long the loop took to notice the end."""

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        """Raises RuntimeError: the thread cannot be started."""
        self._thread.start()

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
    """Register gauges that are read when they are scraped."""
    metrics.build_info.labels(__version__, platform.python_version(), platform.release()).set(1)
    metrics.prepared_claims.set_function(lambda: len(store.get_all()))
    metrics.inventory.attributes_file_ok.set_function(lambda: not policy.problem)
    metrics.slices.last_published.set_function(lambda: publisher.last_published)
    metrics.store.writable.set_function(lambda: store.is_writable)
    metrics.store.unwritten.set_function(lambda: len(store.unwritten))
    metrics.store.quarantined.set_function(lambda: store.quarantine_size)
    metrics.store.size.set_function(lambda: store.size_bytes)
    metrics.kubelet.registered.set_function(lambda: bool(kubelet.registered))
    metrics.kubelet.health_streams.set_function(lambda: kubelet.capabilities.health_streams)
    metrics.runtime.connected.set_function(lambda: nri.is_ready)
    _begin_at_zero(metrics)


def _begin_at_zero(metrics: Metrics) -> None:
    """Create series whose increase alerts use: to Prometheus a series that begins at 1 has not risen."""
    for ended in (Outcome.SUCCESS, Outcome.FAILED):
        metrics.prepare.prepare_seconds.labels(ended)
    for lease in LeaseOutcome:
        metrics.dhcp.renewals.labels(lease)
    for kind in ("status", "event"):
        metrics.reports.dropped.labels(kind)
