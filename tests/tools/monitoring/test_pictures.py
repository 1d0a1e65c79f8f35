"""The drawing of a dashboard: every panel is there, with its answers or the reason why there are none."""

from __future__ import annotations

import pytest

from tests.tools.monitoring.pictures.drawing import Series, draw, read_answer, show
from tools.monitoring import list_panels, read_dashboards

NOW = 1_790_000_000.0


@pytest.mark.parametrize("dashboard", read_dashboards(), ids=lambda one: one["uid"])
def test_every_panel_is_drawn_with_its_series_or_says_why_it_is_empty(dashboard: dict[str, object]) -> None:
    panels = list_panels(dashboard)
    empty = draw(dashboard, {})
    assert [panel["title"] for panel in panels if f"<h2>{panel['title']}</h2>" not in empty] == []
    assert empty.count('class="none"') == len(panels)
    labels = {"node": "gpu-1", "device": "net-1", "pod": "worker"}
    found = [Series(labels, [(NOW, 1.0), (NOW + 1, 2.0)], "the legend")]
    full = draw(dashboard, {panel["title"]: found for panel in panels})
    assert 'class="none"' not in full
    lines = sum(panel["type"] == "timeseries" for panel in panels)
    assert full.count("<polyline") == lines
    assert full.count("gpu-1") == sum(panel["type"] == "table" for panel in panels)


def test_a_line_is_not_drawn_across_a_gap() -> None:
    (dashboard,) = (one for one in read_dashboards() if one["uid"] == "dranet-nodes")
    points = [(NOW, 1.0), (NOW + 1, float("nan")), (NOW + 2, 1.0), (NOW + 9, 1.0)]
    assert draw(dashboard, {"Memory": [Series({}, points)]}).count("<polyline") == 3


def test_names_in_an_answer_are_text() -> None:
    answer = [{"metric": {"pod": "<b>"}, "values": [[NOW, "1"]]}]
    (dashboard,) = (one for one in read_dashboards() if one["uid"] == "dranet-workloads")
    (series,) = read_answer(answer, "{{namespace}}/{{pod}}")
    assert series.legend == "/<b>"
    assert "<b>" not in draw(dashboard, {"Pod TX (by link)": [series]})


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (2_500_000, "Bps", "2.5 MB/s"),
        (0.0004, "s", "0.4 ms"),
        (0.125, "percentunit", "12.5 %"),
        (3, "short", "3"),
        (0, "pps", "0 p/s"),
    ],
)
def test_a_value_has_its_unit(value: float, unit: str, text: str) -> None:
    assert show(value, unit) == text
