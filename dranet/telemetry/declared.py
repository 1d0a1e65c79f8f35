"""What a metric is, declared once: the exposition, ``docs/user/metrics.md`` and the lint read the same words.

Pure. Names follow the Prometheus conventions (base units in the name, ``_total``); the ``dranet_driver_*``
names are those of DraNet, so that existing dashboards keep working.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from dranet.dataclass import dataclass

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


@dataclass(frozen=True, slots=True)
class Declared:
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
