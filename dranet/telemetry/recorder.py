"""What a metric is, declared once: the exposition, ``docs/user/metrics.md`` and the lint read the same words.

Pure. Names follow the Prometheus conventions (base units in the name, ``_total``); the ``dranet_driver_*``
names are those of DraNet, so that existing dashboards keep working.

The text form of samples that are read and not recorded: thousands at a time, in tens of milliseconds.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/. The client library makes objects of
every sample first, which takes ten times as long.

Makes metrics from what is declared of them, and remembers what was declared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct, field
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")

_UNITS = ("bytes_per_second", "transfers_per_second", "seconds", "bytes", "ratio")


class Kind(StrEnum):
    """The types of the text format that are used here."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Group(StrEnum):
    """Headings of the page, in its order."""

    DEVICES = "Devices of the node"
    RDMA = "RDMA ports"
    PODS = "Links of pods"
    CLAIMS = "Claims and pods"
    INVENTORY = "Inventory, health and slices"
    PEERS = "API server, kubelet and runtime"
    DRIVER = "The driver itself"


class Declared(Struct, frozen=True):
    """One metric: a family of series that differ in their labels."""

    name: str
    """As it is exposed and asked for, with ``_total``."""
    kind: Kind
    text: str
    """What it means, for the page: it may have links and code in Markdown."""
    group: Group
    labels: Mapping[str, str] = field(default_factory=dict)
    """What each means, by name."""

    @property
    def help(self) -> str:
        """The same without Markdown."""
        return _LINK.sub(r"\1", self.text).replace("`", "")

    @property
    def unit(self) -> str:
        """By its name; empty for what is counted one by one."""
        stem = self.name.removesuffix("_total")
        return next((unit for unit in _UNITS if stem.endswith(f"_{unit}")), "")


Sample = tuple[str, float]
"""Labels as :func:`format_labels` writes them, and the value."""


def format_labels(labels: Mapping[str, str]) -> str:
    """``{device="net-1",port="2"}``; an empty value is the same as no label, and is left out."""
    pairs = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items() if value)
    return f"{{{pairs}}}" if pairs else ""


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class Exposition:
    """Collects families; each has its head once, and none without samples."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self.size = 0
        """Samples so far."""

    def add(self, declared: Declared, samples: Iterable[Sample]) -> None:
        """All samples of one family. Of two with the same labels the later one counts."""
        lines = [f"{declared.name}{labels} {value!r}\n" for labels, value in dict(samples).items()]
        if lines:
            text = declared.help.replace("\\", r"\\").replace("\n", r"\n")
            head = f"# HELP {declared.name} {text}\n# TYPE {declared.name} {declared.kind}\n"
            self._chunks.append((head + "".join(lines)).encode())
            self.size += len(lines)

    @property
    def body(self) -> bytes:
        return b"".join(self._chunks)


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
