"""What a panel of the dashboard is, and how Grafana wants it said."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from dranet.dataclass import dataclass

JsonObject = dict[str, Any]

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24
"""Width of a dashboard."""


class Kind(StrEnum):
    """The types of panels that are used here; all come with Grafana."""

    LINES = "timeseries"
    NUMBER = "stat"
    BARS = "bargauge"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Query:
    """One expression of PromQL, with the dashboard's variables."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. ``limits`` are the values from which it is yellow and red."""

    title: str
    about: str
    queries: tuple[Query, ...]
    kind: Kind = Kind.LINES
    unit: str = "short"
    width: int = 8
    limits: tuple[float, float] | None = None
    page: bool = False
    """Its rows lead to the page of their node."""
    empty: str = ""
    """What it says where there is nothing to show, and that is as it should be."""

    @property
    def height(self) -> int:
        return 4 if self.kind is Kind.NUMBER else 8


def build_panel(panel: Panel, number: int, x: int, y: int) -> JsonObject:
    """With its place on the grid."""
    return {
        "id": number,
        "type": str(panel.kind),
        "title": panel.title,
        "description": panel.about,
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "targets": [_build_target(panel, query, place) for place, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _build_field(panel), "overrides": []},
        "options": _OPTIONS[panel.kind],
        **({"transformations": _TABLE} if panel.kind is Kind.TABLE else {}),
    }


_TABLE = [
    {"id": "labelsToFields", "options": {"mode": "columns"}},
    {"id": "merge", "options": {}},
    {"id": "organize", "options": {"excludeByName": {"Time": True, "__name__": True, "job": True}}},
]


def _build_target(panel: Panel, query: Query, place: int) -> JsonObject:
    is_now = panel.kind is not Kind.LINES
    return {
        "refId": chr(ord("A") + place),
        "datasource": DATASOURCE,
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "instant": is_now,
        "range": not is_now,
        **({"format": "table"} if panel.kind is Kind.TABLE else {}),
    }


def _build_field(panel: Panel) -> JsonObject:
    steps: list[JsonObject] = [{"color": "green", "value": None}]
    if panel.limits:
        steps += [
            {"color": color, "value": at} for color, at in zip(("orange", "red"), panel.limits, strict=True)
        ]
    lines = {"custom": {"lineWidth": 1, "fillOpacity": 8, "showPoints": "never", "spanNulls": False}}
    links = [{"title": "Page of the node", "url": "http://${__data.fields.instance}/", "targetBlank": True}]
    return {
        "unit": panel.unit,
        "min": 0,
        **({"noValue": panel.empty} if panel.empty else {}),
        "color": {"mode": "palette-classic" if panel.kind is Kind.LINES else "thresholds"},
        "thresholds": {"mode": "absolute", "steps": steps},
        **(lines if panel.kind is Kind.LINES else {}),
        **({"links": links} if panel.page else {}),
    }


_LAST = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: dict[Kind, JsonObject] = {
    Kind.LINES: {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    Kind.NUMBER: {"reduceOptions": _LAST, "colorMode": "value", "graphMode": "none", "textMode": "auto"},
    Kind.BARS: {"reduceOptions": _LAST, "orientation": "horizontal", "displayMode": "basic"},
    Kind.TABLE: {"showHeader": True, "cellHeight": "sm"},
}
