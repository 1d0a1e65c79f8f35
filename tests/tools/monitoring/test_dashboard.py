"""The dashboards: what they ask for exists, Prometheus can read it, and Grafana can draw it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from testbed.prometheus import Promtool
from tests.tools.monitoring.names import find_strangers
from tests.tools.monitoring.queries import fill_in, list_queries
from tools.monitoring import list_panels, read_dashboards

JsonObject = dict[str, Any]

DASHBOARDS = read_dashboards()
PANELS = list_panels()
each_dashboard = pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one["uid"])

UNITS = {"short", "percentunit", "Bps", "pps", "cps", "s", "bytes", "reqps"}
"""Ids of Grafana that are used here."""


@pytest.mark.parametrize("title", [panel["title"] for panel in PANELS])
def test_what_a_panel_asks_for_is_declared(title: str) -> None:
    (panel,) = (panel for panel in PANELS if panel["title"] == title)
    for target in panel["targets"]:
        assert list(find_strangers(fill_in(target["expr"]))) == []
        grouped = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", target["expr"]))))
        legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        if grouped:
            assert legend <= grouped, "a legend of a label that is summed away"


@pytest.mark.process
def test_prometheus_reads_every_query(promtool: Promtool, tmp_path: Path) -> None:
    rules = [{"record": f"query:{number}", "expr": one} for number, one in enumerate(list_queries())]
    assert len(rules) > 50
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = promtool.run("check", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


@each_dashboard
def test_it_has_the_shape_that_grafana_reads(dashboard: JsonObject) -> None:
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time", "refresh"} <= dashboard.keys()
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", dashboard["uid"])
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    (link,) = dashboard["links"]
    assert set(link["tags"]) <= set(dashboard["tags"]), "it links to the others"
    for panel in list_panels(dashboard):
        assert panel["type"] in ("timeseries", "stat", "bargauge", "table")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        refs = [target["refId"] for target in panel["targets"]]
        assert refs == sorted(set(refs))
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["unit"] in UNITS
        first, *more = defaults["thresholds"]["steps"]
        assert first["value"] is None
        assert [step["value"] for step in more] == sorted(step["value"] for step in more)


def test_every_panel_says_what_it_shows() -> None:
    titles = [panel["title"] for panel in PANELS]
    assert len(titles) == len(set(titles))
    assert all(len(panel["description"]) > 3 for panel in PANELS)


def test_descriptions_name_no_path_of_the_repository() -> None:
    assert [panel["description"] for panel in PANELS if "docs/" in panel["description"]] == []


def test_panels_that_the_page_names_exist() -> None:
    page = (Path(__file__).parents[3] / "docs/operations/monitoring.md").read_text()
    rows = re.findall(r"^\| [^|]*\? \| ([^|:]+?)(?::[^|]*)? \|$", page, re.MULTILINE)
    named = {name.strip() for row in rows for name in re.split("[,;]", row)}
    titles = {panel["title"] for panel in PANELS}
    assert len(named) > 8
    assert {name for name in named if not any(title.startswith(name) for title in titles)} == set()


@each_dashboard
def test_panels_fill_the_grid_and_cover_nothing(dashboard: JsonObject) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard["panels"]:
        grid = panel["gridPos"]
        assert 0 <= grid["x"] <= 24 - grid["w"]
        for x in range(grid["x"], grid["x"] + grid["w"]):
            for y in range(grid["y"], grid["y"] + grid["h"]):
                assert (x, y) not in taken, f"{panel['title']} covers {taken.get((x, y))}"
                taken[x, y] = panel["title"]
    bottom = max(y for _, y in taken)
    assert {y for _, y in taken} == set(range(bottom + 1)), "an empty line"


@each_dashboard
def test_variables_are_defined_in_the_order_in_which_they_are_used(dashboard: JsonObject) -> None:
    variables = [one for one in dashboard["templating"]["list"] if one["type"] == "query"]
    defined = [one["name"] for one in dashboard["templating"]["list"]]
    assert defined == ["datasource", *(one["name"] for one in variables)]
    for number, query in enumerate((one["query"]["query"] for one in variables), start=1):
        assert set(re.findall(r"\$(\w+)", query)) <= set(defined[:number])
        assert list(find_strangers(fill_in(query.removeprefix("label_values(").rpartition(",")[0]))) == []
    exprs = (target["expr"] for panel in list_panels(dashboard) for target in panel["targets"])
    used = set(re.findall(r"\$(\w+)", " ".join(exprs)))
    assert used - {"__rate_interval"} <= set(defined)
