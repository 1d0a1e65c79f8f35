"""The Grafana dashboard as JSON, laid out row by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tools.manifests.monitoring.asking import C, N
from tools.manifests.monitoring.panel import COLUMNS, DATASOURCE, Panel, build_panel
from tools.manifests.monitoring.panels import ROWS

JsonObject = dict[str, Any]

_SCHEMA_VERSION = 39
"""Of Grafana 10.4; later ones migrate it by themselves."""

VARIABLES: dict[str, str] = {
    "cluster": "label_values(dranet_build_info, cluster)",
    "job": f"label_values(dranet_build_info{{{C}}}, job)",
    "node": f"label_values(dranet_build_info{{{C}}}, node)",
    "namespace": f"label_values(dranet_pod_device_info{{{N}}}, namespace)",
    "pod": f'label_values(dranet_pod_device_info{{{N},namespace=~"$namespace"}}, pod)',
}
"""Name -> where Grafana gets its values from."""

LISTED = frozenset({"job"})
"""Of these All is what is listed, and not whatever there is: other programs are scraped, too."""


def build_dashboard() -> JsonObject:
    """Of ``charts/dranet/files/monitoring/dashboard.json``."""
    return {
        "title": "dranet",
        "uid": "dranet",
        "description": "Network devices of pods: health, alignment with GPUs, traffic, RDMA, the driver.",
        "tags": ["dranet", "kubernetes", "network"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "1m",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [_choose_datasource(), *map(_choose, VARIABLES, VARIABLES.values())]},
        "panels": list(_lay_out()),
    }


def _choose_datasource() -> JsonObject:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _choose(name: str, query: str) -> JsonObject:
    return {
        "name": name,
        "label": name,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        **({} if name in LISTED else {"allValue": ".*"}),
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _lay_out() -> Iterator[JsonObject]:
    """From left to right, and below where a panel does not fit."""
    number, y = 1, 0
    for title, panels in ROWS.items():
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
            "panels": [],
        }
        number, y = number + 1, y + 1
        for panel, x, top in _place(panels, y):
            yield build_panel(panel, number, x, top)
            number, y = number + 1, top
        y += panels[-1].height


def _place(panels: tuple[Panel, ...], y: int) -> Iterator[tuple[Panel, int, int]]:
    x = height = 0
    for panel in panels:
        if x + panel.width > COLUMNS:
            x, y = 0, y + height
        yield panel, x, y
        x, height = x + panel.width, panel.height
