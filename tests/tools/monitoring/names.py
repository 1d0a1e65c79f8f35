"""Which series there are to be asked for: what the driver declares, the rules record and Prometheus adds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from dranet.telemetry.recorder import Kind
from tools.monitoring import list_recordings
from tools.pages.metrics import list_declared

TARGET = frozenset({"job", "instance", "node", "cluster"})
"""Labels of the target that each series gets: the PodMonitor sees to ``node``, and who brings several
clusters together to ``cluster``."""

_OTHERS: Mapping[str, frozenset[str]] = {
    "up": frozenset(),
    "ALERTS": frozenset({"alertname", "alertstate", "severity"}),
    **{
        f"process_{name}": frozenset()
        for name in (
            "start_time_seconds",
            "resident_memory_bytes",
            "open_fds",
            "max_fds",
            "cpu_seconds_total",
        )
    },
}
_SELECTOR = re.compile(
    r"(?<![\w:\"])((?:dranet|process|node|cluster|namespace|up\b|ALERTS\b)[\w:]*)(\{[^}]*\})?"
)
_GROUPED = re.compile(r"\b(?:by|on|group_left)\s*\(([^)]*)\)")


def list_series() -> dict[str, frozenset[str]]:
    """Name -> labels, without those of the target."""
    series = dict(_OTHERS)
    for one in list_declared():
        labels = frozenset(one.labels)
        if one.kind is Kind.HISTOGRAM:
            series |= {f"{one.name}_{part}": labels for part in ("sum", "count")}
            series[f"{one.name}_bucket"] = labels | {"le"}
        else:
            series[one.name] = labels
    return series | {one.name: frozenset({"device"}) for one in list_recordings()}


def find_strangers(expr: str) -> Iterator[str]:
    """Names and labels in an expression that no series has."""
    series = list_series()
    bare = _GROUPED.sub(" ", expr)
    for name, selector in _SELECTOR.findall(bare):
        if name not in series:
            yield name
            continue
        used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector or ""))
        yield from (f"{name}{{{label}}}" for label in used - series[name] - TARGET)
    known = frozenset().union(*series.values()) | TARGET
    for group in _GROUPED.findall(expr):
        yield from (label for label in re.findall(r"\w+", group) if label not in known)
