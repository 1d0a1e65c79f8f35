"""How panels ask: of the clusters, nodes, namespaces and pods that are chosen, over the window that fits the
screen."""

from __future__ import annotations

from tools.manifests.monitoring.panel import Kind, Panel, Query

C = 'cluster=~"$cluster"'
"""Matches all where no series has that label."""
N = f'{C},node=~"$node"'
P = f'{N},namespace=~"$namespace",pod=~"$pod"'
SCRAPED = f'job=~"$job",{N}'
"""Of what Prometheus itself and its client library add: under whatever name the driver is scraped."""
RATE = "[$__rate_interval]"
DEVICE = "{{node}} {{device}}"
POD = "{{namespace}}/{{pod}}"


def rate_of(metric: str, labels: str = N) -> str:
    """What a counter grows by in a second."""
    return f"rate({metric}{{{labels}}}{RATE})"


def quantile(share: float, metric: str, by: str, labels: str = N) -> str:
    """Of a histogram, by a label or over all."""
    grouped = f"sum by ({', '.join(filter(None, ('le', by)))})"
    return f"histogram_quantile({share}, {grouped} ({rate_of(f'{metric}_bucket', labels)}))"


def number(
    title: str, about: str, expr: str, unit: str = "short", limits: tuple[float, float] | None = None
) -> Panel:
    """One figure, of which there are six in a line."""
    return Panel(title, about, (Query(expr),), Kind.NUMBER, unit, 4, limits)


def lines(title: str, about: str, unit: str, *queries: Query, width: int = 8, empty: str = "") -> Panel:
    """What goes up and down."""
    return Panel(title, about, queries, Kind.LINES, unit, width, empty=empty)
