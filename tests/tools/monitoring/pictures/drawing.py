"""Draws a dashboard with the answers to its queries as one HTML page: panels where its grid has them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from msgspec import Struct

JsonObject = dict[str, Any]

COLORS = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#56a64b", "#8ab8ff")
LARGEST_STEP = 1.5
"""Seconds between two points of a line."""
LINES, ROWS = 8, 8
"""The most that a panel shows."""
WIDTH, UNIT, GAP = 1200, 27, 6
_STEPS = {"green": "#73bf69", "orange": "#ff9830", "red": "#f2495c", "yellow": "#f2cc0c"}
_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))

_STYLE = f"""
*{{box-sizing:border-box}}
body{{margin:0;padding:{GAP}px;width:{WIDTH + GAP}px;background:#111217;color:#ccccdc;
font:12px "DejaVu Sans",Arial,sans-serif}}
h1{{font-size:16px;margin:4px}}
main{{position:relative}}
section{{position:absolute;background:#181b1f;border:1px solid #2c3235;border-radius:3px;padding:6px 8px;
overflow:hidden}}
h2{{font-size:12px;margin:0 0 4px;font-weight:600}}
h3{{position:absolute;margin:0;font-size:13px;line-height:{UNIT}px}}
.big{{font-size:34px;text-align:center;line-height:60px}}
.none{{color:#8e8e9b;text-align:center;padding-top:20px}}
table{{border-collapse:collapse;width:100%;font-size:11px}}
td,th{{text-align:left;padding:3px 6px 3px 0;white-space:nowrap}}
th{{color:#6e9fff;font-weight:400}}
.legend{{white-space:nowrap;overflow:hidden;font-size:10px}}
.legend i{{display:inline-block;width:12px;height:3px;margin:0 4px 2px 8px}}
.bar{{display:grid;grid-template-columns:130px 1fr 40px;align-items:center;margin:3px 0}}
.bar b{{height:12px;background:#5794f2}}
text{{fill:#8e8e9b;font-size:10px}}
"""


class Series(Struct, frozen=True):
    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]
    """Time and value; of an instant query only one."""
    legend: str = ""


def draw(dashboard: JsonObject, answers: Mapping[str, Sequence[Series]]) -> str:
    """``answers`` by the title of the panel."""
    panels = "".join(_place(panel, answers.get(panel["title"], ())) for panel in dashboard["panels"])
    bottom = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    title = escape(dashboard["title"])
    return (
        f'<!doctype html><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f'<h1>{title}</h1><main style="height:{bottom * UNIT}px">{panels}</main>'
    )


def _place(panel: JsonObject, series: Sequence[Series]) -> str:
    grid = panel["gridPos"]
    left, top = grid["x"] * WIDTH // 24, grid["y"] * UNIT
    title = escape(panel["title"])
    if panel["type"] == "row":
        return f'<h3 style="top:{top}px">{title}</h3>'
    width, height = grid["w"] * WIDTH // 24 - GAP, grid["h"] * UNIT - GAP
    body = _DRAWERS[panel["type"]](panel, series, (width - 18, height - 34))
    if not series:
        body = f'<p class="none">{escape(panel["fieldConfig"]["defaults"].get("noValue", "No data"))}</p>'
    place = f"left:{left}px;top:{top}px;width:{width}px;height:{height}px"
    return f'<section style="{place}"><h2>{title}</h2>{body}</section>'


def show(value: float, unit: str) -> str:
    """``1.5 MB/s``, as Grafana would."""
    if math.isnan(value):
        return "-"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "s" and value < 1:
        return f"{value * 1000:.3g} ms"
    word = {"Bps": "B/s", "bytes": "B", "s": "s", "pps": "p/s", "cps": "c/s", "reqps": "req/s"}.get(unit, "")
    factor, prefix = next((pair for pair in _PREFIXES if abs(value) >= pair[0]), _PREFIXES[-1])
    return f"{value / factor:.3g} {prefix}{word}".strip()


def _stat(panel: JsonObject, series: Sequence[Series], _: tuple[int, int]) -> str:
    if not series:
        return ""
    defaults = panel["fieldConfig"]["defaults"]
    value = series[0].points[-1][1]
    steps = [step for step in defaults["thresholds"]["steps"] if (step["value"] or 0) <= value]
    return (
        f'<div class="big" style="color:{_STEPS[steps[-1]["color"]]}">{show(value, defaults["unit"])}</div>'
    )


def _bars(panel: JsonObject, series: Sequence[Series], _: tuple[int, int]) -> str:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    most = max((one.points[-1][1] for one in series), default=0) or 1
    rows = (
        f"<span>{escape(one.legend)}</span><b style='width:{100 * one.points[-1][1] / most:.0f}%'></b>"
        f"<span>{show(one.points[-1][1], unit)}</span>"
        for one in series[:ROWS]
    )
    return "".join(f'<div class="bar">{row}</div>' for row in rows)


def _table(panel: JsonObject, series: Sequence[Series], _: tuple[int, int]) -> str:
    (organize,) = (one["options"] for one in panel["transformations"] if one["id"] == "organize")
    order, hidden = organize.get("indexByName", {}), {*organize["excludeByName"], "instance"}
    rows = [{**one.labels, "Value": f"{one.points[-1][1]:g}"} for one in series[:ROWS]]
    names = dict.fromkeys(name for row in rows for name in row if name not in hidden)
    shown = sorted(names, key=lambda name: order.get(name, len(order)))
    head = "".join(f"<th>{escape(name)}</th>" for name in shown)
    body = ("".join(f"<td>{escape(row.get(name, ''))}</td>" for name in shown) for row in rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in body)}</table>"


def _lines(panel: JsonObject, series: Sequence[Series], size: tuple[int, int]) -> str:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    shown = sorted(series, key=lambda one: -max(value for _, value in one.points))[:LINES]
    if not shown:
        return ""
    width, height, margin = size[0], size[1] - 18, 62
    high = height * 0.92
    times = [time for one in shown for time, _ in one.points]
    begin, span = min(times), (max(times) - min(times)) or 1
    top = max((value for one in shown for _, value in one.points if not math.isnan(value)), default=0) or 1
    parts = [
        f'<text x="0" y="{height - high * n / 2:.0f}">{show(top * n / 2, unit)}</text>' for n in range(3)
    ]
    for color, one in zip(COLORS, shown, strict=False):
        for run in _find_runs(one.points):
            points = " ".join(
                f"{margin + (time - begin) / span * (width - margin):.1f},{height - value / top * high:.1f}"
                for time, value in run
            )
            parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.4"/>')
    legend = "".join(
        f'<i style="background:{color}"></i>{escape(one.legend)}'
        for color, one in zip(COLORS, shown, strict=False)
    )
    return f'<svg width="{width}" height="{height}">{"".join(parts)}</svg><div class="legend">{legend}</div>'


def _find_runs(points: Sequence[tuple[float, float]]) -> Iterator[list[tuple[float, float]]]:
    """Points without a gap; a line is not drawn across one."""
    run: list[tuple[float, float]] = []
    for time, value in points:
        if math.isnan(value) or (run and time - run[-1][0] > LARGEST_STEP):
            yield run
            run = []
        if not math.isnan(value):
            run.append((time, value))
    yield run


_DRAWERS = {"stat": _stat, "bargauge": _bars, "table": _table, "timeseries": _lines}


def read_answer(found: Sequence[JsonObject], legend: str) -> Iterator[Series]:
    """The series of an answer of Prometheus' API, with the legend that the target has for them."""
    for one in found:
        labels = one["metric"]
        points = one["values"] if "values" in one else [one["value"]]
        text = legend
        for name in re.findall(r"\{\{(\w+)\}\}", legend):
            text = text.replace(f"{{{{{name}}}}}", labels.get(name, ""))
        yield Series(labels, [(float(time), float(value)) for time, value in points], text)
