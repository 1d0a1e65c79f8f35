"""Every metric of the driver itself. Those of devices are read, not recorded (``driver.metrics``)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from prometheus_client.exposition import generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from dranet.telemetry.claims import AttachMetrics, DhcpMetrics, Outcome, PrepareMetrics, ReconcileMetrics
from dranet.telemetry.declared import Declared, Group
from dranet.telemetry.instance import HandoverMetrics, ScrapeMetrics, StoreMetrics
from dranet.telemetry.node import AlignmentMetrics, HealthMetrics, InventoryMetrics, SliceMetrics
from dranet.telemetry.peers import ApiMetrics, KubeletMetrics, ReportMetrics, RuntimeMetrics
from dranet.telemetry.recorder import Recorder


class Metrics:
    """In a registry of its own, so that tests can have several. Labels come from closed lists."""

    def __init__(self) -> None:
        r = Recorder()
        self.registry = r.registry
        self._recorder = r
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.kubelet = KubeletMetrics(r)
        self.prepare = PrepareMetrics(r)
        self.runtime = RuntimeMetrics(r)
        self.attach = AttachMetrics(r)
        self.claim_errors = r.counter(
            "dranet_claim_errors_total",
            "what went wrong, each time that it was tried",
            Group.CLAIMS,
            {
                "phase": "`prepare`, `attach`, `container`, `metadata`, `release`, `unprepare`",
                "reason": "[one of these](troubleshooting.md#reasons)",
            },
        )
        self.prepared_claims = r.gauge("dranet_prepared_claims", "claims that are prepared now", Group.CLAIMS)
        self.store = StoreMetrics(r)
        self.not_restored = r.counter(
            "dranet_host_state_not_restored_total",
            "parts of a link's host state that a release could not give back; Events `HostStateNotRestored` "
            "name them",
            Group.CLAIMS,
        )
        self.reconcile = ReconcileMetrics(r)
        self.alignment = AlignmentMetrics(r)
        self.dhcp = DhcpMetrics(r)
        self.slices = SliceMetrics(r)
        self.health = HealthMetrics(r)
        self.inventory = InventoryMetrics(r)
        self.api = ApiMetrics(r)
        self.reports = ReportMetrics(r)
        self.ready = r.gauge(
            "dranet_ready", "1 while the part is ready", Group.DRIVER, {"part": "as in `/readyz`"}
        )
        self.handover = HandoverMetrics(r)
        self.scrape = ScrapeMetrics(r)
        self.build_info = r.gauge(
            "dranet_build_info",
            "1",
            Group.DRIVER,
            {"version": "of the driver", "python": "that runs it", "kernel": "`uname -r` of the node"},
        )

    @property
    def declared(self) -> Sequence[Declared]:
        """All of them, but those of the Python process."""
        return self._recorder.declared

    def render(self) -> bytes:
        """The text exposition format."""
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
