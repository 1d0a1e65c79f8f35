"""What the page has people write: values of the chart, and configurations that Prometheus reads."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.prometheus import Promtool
from tests.tools.manifests.chart.rendering import find, render

PAGE = (Path(__file__).parents[3] / "docs" / "operations" / "monitoring.md").read_text()
VALUES, SCRAPE, _TLS, GUARDED, _ROUTE = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def test_the_values_make_all_three_objects() -> None:
    objects = render(yaml.safe_load(VALUES))
    assert {"PodMonitor", "PrometheusRule"} <= {item["kind"] for item in objects}
    assert any(item["metadata"].get("namespace") == "monitoring" for item in objects)


@pytest.mark.process
@pytest.mark.parametrize("text", [SCRAPE, SCRAPE + GUARDED], ids=["plain", "guarded"])
def test_prometheus_reads_the_scrape_config(text: str, promtool: Promtool, tmp_path: Path) -> None:
    file = tmp_path / "prometheus.yaml"
    file.write_text(text)
    done = promtool.run("check", "config", "--syntax-only", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_scrape_config_sees_to_what_the_pod_monitor_sees_to() -> None:
    (job,) = yaml.safe_load(SCRAPE)["scrape_configs"]
    (endpoint,) = find(render(yaml.safe_load(VALUES)), "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert job["job_name"] == "dranet"
    assert job["honor_labels"] is endpoint["honorLabels"] is True
    made: dict[Any, Any] = {
        one.get("targetLabel"): one.get("sourceLabels") for one in endpoint["relabelings"]
    }
    by_hand = {one.get("target_label"): one.get("source_labels") for one in job["relabel_configs"]}
    assert {name: made[name] for name in ("__address__", "node")} == {
        name: by_hand[name] for name in ("__address__", "node")
    }
    assert "pod" not in by_hand


@pytest.mark.process
def test_the_command_gives_every_alert_a_link_that_works_anywhere(tmp_path: Path) -> None:
    (command,) = re.findall(r"```sh\n(sed .*?)\n```", PAGE, re.DOTALL)
    charts = tmp_path / "charts"
    charts.symlink_to(Path(__file__).parents[3] / "charts")
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    groups = yaml.safe_load((tmp_path / "rules.yaml").read_text())["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert alerts
    for rule in alerts:
        anchor = rule["alert"].lower()
        assert rule["annotations"]["runbook_url"] == f"https://wiki.example.com/dranet-alerts#{anchor}"


def test_commands_of_alerts_are_for_the_release_that_is_installed() -> None:
    values = {"prometheusRule": {"enabled": True}, "settings": {"driver_name": "nics.example.com"}}
    rules = yaml.safe_dump(find(render(values, namespace="kube-system"), "PrometheusRule"), width=10_000)
    assert "dranet-system" not in rules
    assert "kubectl -n kube-system get pods -o wide -l dra.net/pool" in rules
    assert set(re.findall(r"reportingComponent=([\w.]+)", rules)) == {"nics.example.com"}
    for where in (set_ := find(render(values), "DaemonSet"), set_["spec"]["template"]):
        assert "dra.net/pool" in where["metadata"]["labels"]
