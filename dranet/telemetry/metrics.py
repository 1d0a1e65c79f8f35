"""All metrics of the driver, with those of its own process: store, instances, scrapes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from prometheus_client.exposition import generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from dranet.telemetry.claims import AttachMetrics, DhcpMetrics, Outcome, PrepareMetrics, ReconcileMetrics
from dranet.telemetry.devices import DeviceFamilies
from dranet.telemetry.node import AlignmentMetrics, HealthMetrics, InventoryMetrics, SliceMetrics
from dranet.telemetry.peers import ApiMetrics, KubeletMetrics, ReportMetrics, RuntimeMetrics
from dranet.telemetry.recorder import LATENCY_BUCKETS, Declared, Group, Recorder


class StoreMetrics:
    """The store of prepared claims; gauges are read when scraped."""

    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.CLAIMS)
        self.writable = r.gauge(
            "dranet_store_writable",
            "0 while the disk refuses records: no claim is prepared, all else goes on",
        )
        self.unwritten = r.gauge(
            "dranet_store_unwritten_records",
            "claims of which memory knows more than the disk, until it takes them",
        )
        self.quarantined = r.gauge(
            "dranet_store_quarantined_records",
            "records that [cannot be read](claims-on-the-node.md#records-that-cannot-be-read)",
        )
        self.write_seconds = r.histogram(
            "dranet_store_write_seconds",
            "transactions that the disk took, from the first word to the commit",
            buckets=LATENCY_BUCKETS,
        )
        self.size = r.gauge("dranet_store_size_bytes", "the files of all claims")


class HandoverMetrics:
    """The role of this instance among those on the node, as in a rolling update."""

    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.DRIVER)
        self.state = r.gauge(
            "dranet_instance_state",
            "1 for the [state](updates.md#what-to-watch) of this instance",
            {"state": "`waiting`, `on-duty`, `retired`, `aside`"},
        )
        self.instances = r.gauge("dranet_instances", "living instances on the node")
        self.handovers = r.counter(
            "dranet_handovers_total", "leaderships taken over, and handed over", {"side": "`taken`, `given`"}
        )


class ScrapeMetrics:
    """The cost of answering a scrape, and the port's certificate."""

    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.DRIVER)
        self.read_seconds = r.gauge(
            "dranet_scrape_read_seconds",
            "how long the counters of devices took to read, for this answer or the one that it repeats",
        )
        self.unread_pods = r.gauge(
            "dranet_scrape_unread_pods",
            "pods whose links could not be read in time, or at all; their series are absent meanwhile",
        )
        self.stuck_reads = r.gauge(
            "dranet_scrape_stuck_reads",
            "places (a pod, an RDMA device, the node itself) that are left out because the kernel has not "
            "answered for them; the log names each",
        )
        self.loop_lag = r.gauge(
            "dranet_event_loop_lag_seconds",
            "how long the driver's event loop took to hear of an event, measured when it is scraped",
        )
        self.certificate_ok = r.gauge(
            "dranet_certificate_ok",
            "0 while the files of [the port's certificate](node-page.md#tls) are bad, and the one before "
            "stays in use; 1 also without TLS",
        )
        setting = {"setting": "`metrics_tls_cert`"}
        self._not_before, self._not_after = (
            r.gauge(
                f"dranet_certificate_{bound}_timestamp_seconds",
                f"{words} the certificate in use is good (unix seconds); absent without TLS",
                setting,
            )
            for bound, words in (("not_before", "from when on"), ("not_after", "until when"))
        )

    def show_validity(self, not_before: float, not_after: float) -> None:
        """Show the period of the port's certificate."""
        self._not_before.labels("metrics_tls_cert").set(not_before)
        self._not_after.labels("metrics_tls_cert").set(not_after)


class Metrics:
    """All metrics, in a registry of their own, so that tests can have several. Labels come from
    closed lists."""

    def __init__(self) -> None:
        r = Recorder()
        claims, driver = r.of(Group.CLAIMS), r.of(Group.DRIVER)
        self.registry = r.registry
        self._recorder = r
        self.devices = DeviceFamilies(r)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.kubelet = KubeletMetrics(r)
        self.prepare = PrepareMetrics(r)
        self.runtime = RuntimeMetrics(r)
        self.attach = AttachMetrics(r)
        self.claim_errors = claims.counter(
            "dranet_claim_errors_total",
            "what went wrong, each time that it was tried",
            {
                "phase": "`prepare`, `attach`, `container`, `metadata`, `release`, `unprepare`",
                "reason": "[one of these](troubleshooting.md#reasons)",
            },
        )
        self.prepared_claims = claims.gauge("dranet_prepared_claims", "claims that are prepared now")
        self.store = StoreMetrics(r)
        self.not_restored = claims.counter(
            "dranet_host_state_not_restored_total",
            "parts of a link's host state that a release could not restore; Events `HostStateNotRestored` "
            "name them",
        )
        self.reconcile = ReconcileMetrics(r)
        self.alignment = AlignmentMetrics(r)
        self.dhcp = DhcpMetrics(r)
        self.slices = SliceMetrics(r)
        self.health = HealthMetrics(r)
        self.inventory = InventoryMetrics(r)
        self.api = ApiMetrics(r)
        self.reports = ReportMetrics(r)
        self.ready = driver.gauge("dranet_ready", "1 while the part is ready", {"part": "as in `/readyz`"})
        self.handover = HandoverMetrics(r)
        self.scrape = ScrapeMetrics(r)
        self.build_info = driver.gauge(
            "dranet_build_info",
            "1",
            {"version": "of the driver", "python": "that runs it", "kernel": "`uname -r` of the node"},
        )

    @property
    def declared(self) -> Sequence[Declared]:
        """All of them, except those of the Python process."""
        return self._recorder.declared

    def render(self) -> bytes:
        """Return the text exposition format."""
        return generate_latest(self.registry)

    @contextmanager
    def time_dra(self, method: str) -> Iterator[None]:
        """Count and time one kubelet call; an exception counts as failed."""
        start = time.perf_counter()
        outcome = Outcome.FAILED
        try:
            yield
            outcome = Outcome.SUCCESS
        finally:
            self.kubelet.requests.labels(method, outcome).inc()
            self.kubelet.latency.labels(method).observe(time.perf_counter() - start)
