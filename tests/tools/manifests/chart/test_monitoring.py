"""What the chart makes for Prometheus and Grafana of the files that are generated."""

from __future__ import annotations

import json

from tests.tools.manifests.chart.rendering import JsonObject, find, render
from tests.tools.manifests.chart.value_sets import MONITORED, POOLS, SERVICE_MONITORED
from tools.monitoring import RUNBOOK, list_alerts, read_dashboards, read_rules
from tools.project import read_project

RULES_ON: JsonObject = {"prometheusRule": {"enabled": True}}


def list_annotations(item: JsonObject) -> list[JsonObject]:
    rules = [rule for group in item["spec"]["groups"] for rule in group["rules"]]
    return [rule["annotations"] for rule in rules if "alert" in rule]


def test_the_rules_of_the_object_are_those_of_the_file() -> None:
    rule = find(render({"prometheusRule": {"enabled": True, "runbookUrl": RUNBOOK}}), "PrometheusRule")
    assert rule["spec"] == read_rules()


def test_runbooks_lead_to_the_page_of_this_version() -> None:
    links = [one["runbook_url"] for one in list_annotations(find(render(RULES_ON), "PrometheusRule"))]
    assert links == [f"{read_project().page(RUNBOOK)}#{alert.anchor}" for alert in list_alerts()]


def test_runbooks_lead_where_the_values_say() -> None:
    values: JsonObject = {
        "prometheusRule": {"enabled": True, "runbookUrl": "https://wiki.example.com/a.html"}
    }
    links = [one["runbook_url"] for one in list_annotations(find(render(values), "PrometheusRule"))]
    assert links == [f"https://wiki.example.com/a.html#{alert.anchor}" for alert in list_alerts()]


def test_commands_name_the_namespace_of_the_release() -> None:
    told = list_annotations(find(render(RULES_ON, namespace="elsewhere"), "PrometheusRule"))
    texts = " ".join(one["description"] for one in told)
    assert "kubectl -n elsewhere " in texts
    assert "dranet-system" not in texts


def test_templates_of_prometheus_are_left_to_prometheus() -> None:
    told = list_annotations(find(render(RULES_ON), "PrometheusRule"))
    assert any("{{ $labels.node }}" in one["summary"] for one in told)


def test_the_dashboards_are_whole() -> None:
    config_map = next(
        item for item in render(MONITORED) if item["metadata"]["name"].endswith("dashboard-json")
    )
    rendered = {name: json.loads(text) for name, text in config_map["data"].items()}
    assert rendered.keys() == {"dranet.json", "dranet-nodes.json", "dranet-workloads.json"}
    assert [one["uid"] for one in rendered.values()] == [name.removesuffix(".json") for name in rendered]
    assert sorted(map(str, rendered.values())) == sorted(map(str, read_dashboards()))
    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_targets_have_the_labels_that_the_rules_ask_for() -> None:
    for values in (MONITORED, {**POOLS, **MONITORED}, SERVICE_MONITORED, {**POOLS, **SERVICE_MONITORED}):
        kind = "ServiceMonitor" if "serviceMonitor" in values else "PodMonitor"
        spec = find(render(values), kind)["spec"]
        for endpoint in spec.get("endpoints") or spec["podMetricsEndpoints"]:
            assert endpoint["honorLabels"] is True
            made = {one.get("targetLabel"): one.get("replacement") for one in endpoint["relabelings"]}
            assert made["job"] == "dranet"
            assert "node" in made
            (dropped,) = (one["regex"] for one in endpoint["relabelings"] if one["action"] == "labeldrop")
            assert "pod" in dropped.split("|")
