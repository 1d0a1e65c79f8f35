"""Makes metrics from what is declared of them, and remembers what was declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from dranet.telemetry.declared import Declared, Group, Kind

LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Seconds; from a no-op hook to a Prepare that waits for a slow API server."""

SHORT_BUCKETS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""Of what happens inside a hook, or in the kernel."""

API_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0)
"""Of a request to the API server."""

NO_LABELS: Mapping[str, str] = {}

disable_created_metrics()  # type: ignore[no-untyped-call]
"""Half of all lines would say when a series began, which Prometheus does not read from this format."""


class Recorder:
    """The metrics of one driver, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.declared: list[Declared] = []

    def counter(self, name: str, text: str, group: Group, labels: Mapping[str, str] = NO_LABELS) -> Counter:
        declared = self._declare(name, Kind.COUNTER, text, group, labels)
        return Counter(name, declared.help, tuple(labels), registry=self.registry)

    def gauge(self, name: str, text: str, group: Group, labels: Mapping[str, str] = NO_LABELS) -> Gauge:
        declared = self._declare(name, Kind.GAUGE, text, group, labels)
        return Gauge(name, declared.help, tuple(labels), registry=self.registry)

    def histogram(
        self,
        name: str,
        text: str,
        group: Group,
        labels: Mapping[str, str] = NO_LABELS,
        buckets: Sequence[float] = LATENCY_BUCKETS,
    ) -> Histogram:
        declared = self._declare(name, Kind.HISTOGRAM, text, group, labels)
        return Histogram(name, declared.help, tuple(labels), registry=self.registry, buckets=buckets)

    def _declare(self, name: str, kind: Kind, text: str, group: Group, labels: Mapping[str, str]) -> Declared:
        declared = Declared(name, kind, text, group, labels)
        self.declared.append(declared)
        return declared
