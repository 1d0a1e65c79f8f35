"""What a metric is: declared once, then recorded by the client library or written as text by ourselves.

Names follow the Prometheus conventions; the ``dranet_driver_*`` names are those of DraNet, so that existing
dashboards keep working. :class:`Exposition` writes samples that are read and not recorded, thousands at a
time, ten times faster than the client library, which creates an object for each sample first.
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
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Group(StrEnum):
    """Headings of ``docs/reference/metrics.md``, in its order."""

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
    """As exposed, with ``_total``."""
    kind: Kind
    text: str
    """What it means; may contain links and code in Markdown."""
    group: Group
    labels: Mapping[str, str] = field(default_factory=dict)
    """Meaning by name."""

    @property
    def help(self) -> str:
        return _LINK.sub(r"\1", self.text).replace("`", "")

    @property
    def unit(self) -> str:
        """The unit in the name; empty for counts."""
        stem = self.name.removesuffix("_total")
        return next((unit for unit in _UNITS if stem.endswith(f"_{unit}")), "")


Sample = tuple[str, float]
"""Labels as :func:`format_labels` writes them, and the value."""


def format_labels(labels: Mapping[str, str]) -> str:
    """``{device="net-1",port="2"}``; empty values are left out, which means the same."""
    pairs = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items() if value)
    return f"{{{pairs}}}" if pairs else ""


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class Exposition:
    """Collects families. Each has its head once; families without samples are left out."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self.size = 0
        """Samples so far."""

    def add(self, declared: Declared, samples: Iterable[Sample]) -> None:
        """Add all samples of one family. If two have the same labels, the later one counts."""
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
"""Seconds; steps inside a hook, or in the kernel."""

API_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0)
"""Seconds; requests to the API server."""

NO_LABELS: Mapping[str, str] = {}

disable_created_metrics()  # type: ignore[no-untyped-call]
"""Otherwise half of all lines give creation times, which Prometheus does not read from this format."""


class Recorder:
    def __init__(self, group: Group = Group.DRIVER, parent: Recorder | None = None) -> None:
        self.registry: CollectorRegistry = CollectorRegistry() if parent is None else parent.registry
        self.declared: list[Declared] = [] if parent is None else parent.declared
        self._group = group

    def of(self, group: Group) -> Recorder:
        """Return the same recorder for metrics of ``group``."""
        return Recorder(group, self)

    def counter(self, name: str, text: str, labels: Mapping[str, str] = NO_LABELS) -> Counter:
        declared = self._declare(name, Kind.COUNTER, text, labels)
        return Counter(name, declared.help, tuple(labels), registry=self.registry)

    def gauge(self, name: str, text: str, labels: Mapping[str, str] = NO_LABELS) -> Gauge:
        declared = self._declare(name, Kind.GAUGE, text, labels)
        return Gauge(name, declared.help, tuple(labels), registry=self.registry)

    def histogram(
        self,
        name: str,
        text: str,
        labels: Mapping[str, str] = NO_LABELS,
        buckets: Sequence[float] = LATENCY_BUCKETS,
    ) -> Histogram:
        declared = self._declare(name, Kind.HISTOGRAM, text, labels)
        return Histogram(name, declared.help, tuple(labels), registry=self.registry, buckets=buckets)

    def read(self, name: str, text: str, labels: Mapping[str, str] = NO_LABELS) -> Declared:
        """Declare a metric that is read when it is scraped, not recorded: :class:`Exposition` writes it."""
        kind = Kind.COUNTER if name.endswith("_total") else Kind.GAUGE
        return self._declare(name, kind, text, labels)

    def _declare(self, name: str, kind: Kind, text: str, labels: Mapping[str, str]) -> Declared:
        declared = Declared(name, kind, text, self._group, labels)
        self.declared.append(declared)
        return declared


def one_of(values: Iterable[str], **notes: str) -> str:
    """Describe a label whose values are a closed list: each value in code, with its note in parentheses."""
    return ", ".join(f"`{value}`" + (f" ({notes[value]})" if value in notes else "") for value in values)
