"""Logs and metrics: one log line format, one recorder for every number the driver exports.

Metric names follow the Prometheus conventions (base units, ``_total``); the ``dranet_driver_*`` names
are those of DraNet, so that existing dashboards keep working. Labels come from closed lists: a claim,
pod or device name is never a label.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Seconds; from a no-op hook to a Prepare that waits for a slow API server."""


class Outcome(StrEnum):
    """How a call ended; the ``status`` label."""

    SUCCESS = "success"
    FAILED = "failed"
    NOOP = "noop"
    """An NRI hook for a pod without claims of ours."""


class ScanKind(StrEnum):
    """How much of the node a scan read; the ``kind`` label."""

    FULL = "full"
    PARTIAL = "partial"
    """What notifications named."""


class InventoryMetrics:
    """What scanning the node and judging its devices tell."""

    def __init__(self, r: CollectorRegistry) -> None:
        self.scan_seconds = Histogram(
            "dranet_inventory_scan_seconds",
            "Duration of one scan of the node.",
            buckets=LATENCY_BUCKETS,
            registry=r,
        )
        self.scans = Counter(
            "dranet_inventory_scans_total", "Scans of the node, full or partial.", ["kind"], registry=r
        )
        self.overruns = Counter(
            "dranet_inventory_notification_overruns_total",
            "Times that the kernel's notifications were lost; each ends in a full scan.",
            registry=r,
        )
        self.filter_failures = Gauge(
            "dranet_inventory_filter_failed_devices",
            "Devices held back because the operator's filter fails on them.",
            registry=r,
        )
        self.warnings = Gauge(
            "dranet_inventory_warnings", "Odd things that the last scan met; the log has them.", registry=r
        )
        self.gpus = Gauge(
            "dranet_inventory_gpus",
            "GPUs of the node: ours to offer, left to others, or unknown before the cluster has been asked.",
            ["state"],
            registry=r,
        )
        self.attributes_file_ok = Gauge(
            "dranet_inventory_attributes_file_ok",
            "0 while the operator's attributes file cannot be used as it is now.",
            registry=r,
        )


class LeaseOutcome(StrEnum):
    """How asking a DHCP server ended; the ``outcome`` label."""

    RENEWED = "renewed"
    REBOUND = "rebound"
    """Any server was asked, because the lease's own did not answer."""
    FAILED = "failed"
    """No answer, or a refusal; asked again until the lease ends."""
    EXPIRED = "expired"


class DhcpMetrics:
    """What the leases of pods tell."""

    def __init__(self, r: CollectorRegistry) -> None:
        self.leases = Gauge("dranet_dhcp_leases", "DHCP leases of prepared claims.", registry=r)
        self.requests = Counter(
            "dranet_dhcp_requests_total",
            "Leases asked for at Prepare, by status.",
            ["status"],
            registry=r,
        )
        self.renewals = Counter(
            "dranet_dhcp_renewals_total", "Attempts to renew a lease, by outcome.", ["outcome"], registry=r
        )


class ReportMetrics:
    """What becomes of claim statuses and Events."""

    def __init__(self, r: CollectorRegistry) -> None:
        self.dropped = Counter(
            "dranet_reports_dropped_total",
            "Claim statuses and Events that were given up, by kind: refused, or too many waiting.",
            ["kind"],
            registry=r,
        )


class StoreMetrics:
    """What the store of prepared claims tells; read when scraped."""

    def __init__(self, r: CollectorRegistry) -> None:
        self.writable = Gauge(
            "dranet_store_writable",
            "0 while the disk refuses records: no claim is prepared, all else goes on.",
            registry=r,
        )
        self.unwritten = Gauge(
            "dranet_store_unwritten_records",
            "Claims of which memory knows more than the disk, which refuses it.",
            registry=r,
        )
        self.quarantined = Gauge(
            "dranet_store_quarantined_records",
            "Records in the store that cannot be read; `dranet claims` lists them.",
            registry=r,
        )


class HandoverMetrics:
    """What this instance is to others on the node, as in a rolling update."""

    def __init__(self, r: CollectorRegistry) -> None:
        self.state = Gauge(
            "dranet_instance_state",
            "1 for the state of this instance: waiting, on-duty, retired (handed its duties over) or aside.",
            ["state"],
            registry=r,
        )
        self.instances = Gauge(
            "dranet_instances", "Living instances of the driver on this node, this one included.", registry=r
        )
        self.handovers = Counter(
            "dranet_handovers_total", "Times that duties were taken over or given away.", ["side"], registry=r
        )


class HealthMetrics:
    """What the watch over the devices' health tells."""

    def __init__(self, r: CollectorRegistry) -> None:
        self.devices = Gauge(
            "dranet_health_devices",
            "Devices by what is said of their health: healthy, unhealthy or unknown.",
            ["health"],
            registry=r,
        )
        self.faults = Gauge(
            "dranet_health_faults", "Devices that have a fault, by its kind.", ["fault"], registry=r
        )
        self.carrier_losses = Counter(
            "dranet_health_carrier_losses_total",
            "Times that links lost their carrier without being switched off or moved.",
            registry=r,
        )


class AlignmentMetrics:
    """How near the network devices of pods are to their GPUs."""

    def __init__(self, r: CollectorRegistry) -> None:
        self.devices = Gauge(
            "dranet_alignment_devices",
            "Network devices in pods now, by their distance to the GPU that they are for: PIX, PXB, PHB, "
            "NODE, SYS, unknown, or none for a pod without GPUs.",
            ["level"],
            registry=r,
        )
        self.verdicts = Counter(
            "dranet_alignment_verdicts_total",
            "Verdicts on network devices of pods with GPUs, by that distance; a new one when it changes.",
            ["level"],
            registry=r,
        )
        self.worse = Counter(
            "dranet_alignment_worse_than_possible_total",
            "Network devices that pods got although the node had a nearer one, counted anew by each start of "
            "the driver.",
            registry=r,
        )
        self.worse_now = Gauge(
            "dranet_alignment_devices_worse_than_possible",
            "Network devices in pods now although the node had a nearer one: TopologyAligned is False.",
            registry=r,
        )


class SliceMetrics:
    """What publishing the node's ResourceSlices tells."""

    def __init__(self, r: CollectorRegistry) -> None:
        self.writes = Counter(
            "dranet_slice_writes_total",
            "Writes of slices that the API server accepted, by verb: create, update or delete.",
            ["verb"],
            registry=r,
        )
        self.missing = Gauge(
            "dranet_slice_fields_missing",
            "1 for a feature gate whose fields we would publish and the API server does not keep.",
            ["gate"],
            registry=r,
        )
        self._gates: frozenset[str] = frozenset()

    def show_missing(self, gates: frozenset[str]) -> None:
        """These feature gates are missing now, and no others."""
        for gate in self._gates | gates:
            self.missing.labels(gate).set(gate in gates)
        self._gates |= gates


class Metrics:
    """Every metric of the driver, in a registry of its own (so that tests can have several)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        r = self.registry
        self.dra_requests = Counter(
            "dranet_driver_dra_plugin_requests_total", "Kubelet calls.", ["method", "status"], registry=r
        )
        self.dra_latency = Histogram(
            "dranet_driver_dra_plugin_requests_latency_seconds",
            "Duration of kubelet calls.",
            ["method"],
            buckets=LATENCY_BUCKETS,
            registry=r,
        )
        self.nri_requests = Counter(
            "dranet_driver_nri_plugin_requests_total", "Runtime hooks.", ["method", "status"], registry=r
        )
        self.nri_latency = Histogram(
            "dranet_driver_nri_plugin_requests_latency_seconds",
            "Duration of runtime hooks.",
            ["method", "status"],
            buckets=LATENCY_BUCKETS,
            registry=r,
        )
        self.published_devices = Gauge(
            "dranet_driver_published_devices_total", "Devices in this node's slices.", ["feature"], registry=r
        )
        self.last_published = Gauge(
            "dranet_driver_last_published_time_seconds",
            "When the API server last accepted this node's slices (unix seconds).",
            registry=r,
        )
        self.claim_errors = Counter(
            "dranet_claim_errors_total",
            "Claims refused or failed, by phase and reason.",
            ["phase", "reason"],
            registry=r,
        )
        self.prepared_claims = Gauge("dranet_prepared_claims", "Claims in the store.", registry=r)
        self.inventory = InventoryMetrics(r)
        self.dhcp = DhcpMetrics(r)
        self.health = HealthMetrics(r)
        self.handover = HandoverMetrics(r)
        self.reports = ReportMetrics(r)
        self.store = StoreMetrics(r)
        self.slices = SliceMetrics(r)
        self.alignment = AlignmentMetrics(r)
        self.not_restored = Counter(
            "dranet_host_state_not_restored_total",
            "Parts of a link's host state that a release could not give back; the log and the node's Events "
            "name them.",
            registry=r,
        )
        self.reconcile_actions = Counter(
            "dranet_reconcile_actions_total",
            "What reconcile found to do, and why.",
            ["action", "reason"],
            registry=r,
        )
        self.api_errors = Counter(
            "dranet_api_errors_total", "Failed calls to the API server.", ["reason"], registry=r
        )
        self.ready = Gauge(
            "dranet_ready",
            "1 while the part is ready: driver, runtime, kubelet, slices.",
            ["part"],
            registry=r,
        )
        self.build_info = Gauge("dranet_build_info", "Version of the driver.", ["version"], registry=r)

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
            self.dra_requests.labels(method, outcome).inc()
            self.dra_latency.labels(method).observe(time.perf_counter() - start)

    def observe_nri(self, method: str, outcome: str, seconds: float) -> None:
        """Count and time one runtime hook."""
        self.nri_requests.labels(method, outcome).inc()
        self.nri_latency.labels(method, outcome).observe(seconds)


class ContextFilter(logging.Filter):
    """Gives every record a ``context`` mapping: ``log.info(..., extra={"context": {...}})``."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "context"):
            record.context = {}
        return True


class TextFormatter(logging.Formatter):
    """``2026-11-21T12:00:00.123 INFO driver.prepare: message claim=ns/name``."""

    def format(self, record: logging.LogRecord) -> str:
        context: dict[str, Any] = getattr(record, "context", {})
        suffix = "".join(f" {key}={value}" for key, value in context.items())
        name = record.name.removeprefix("dranet.")
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.created))
        line = f"{stamp}.{int(record.msecs):03d} {record.levelname} {name}: {record.getMessage()}{suffix}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line, the context's keys beside ``msg``."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "ts": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
            **getattr(record, "context", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def set_up_logging(level: str, *, as_json: bool) -> None:
    """Send all logs to standard error in one format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    handler.addFilter(ContextFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
