"""What rules and dashboard ask for is there, and what they point at, too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from dranet.cli.main import parse_arguments
from dranet.errors import Reason
from dranet.model.event_reason import EventReason
from dranet.telemetry.recorder import LATENCY_BUCKETS
from tests.tools.manifests.monitoring.evaluation import RULES
from tests.tools.manifests.monitoring.names import find_strangers, list_series
from tools.manifests.monitoring import commands
from tools.manifests.monitoring.recordings import BY_ITSELF, BY_USER, RECORDINGS
from tools.manifests.monitoring.rules import ALERTS, RUNBOOK
from tools.pages.alerts import alerts_page

DOCS = Path(__file__).parents[4] / "docs" / "user"


@pytest.mark.parametrize("one", [*RECORDINGS, *ALERTS], ids=lambda one: str(one.name))
def test_every_name_and_label_of_a_rule_is_declared(one: object) -> None:
    assert list(find_strangers(getattr(one, "expr"))) == []  # noqa: B009


@pytest.mark.parametrize(
    ("expr", "stranger"),
    [
        ("rate(dranet_device_bytes_total[5m])", "dranet_device_bytes_total"),
        ('dranet_device_up{pod="x"}', "dranet_device_up{pod}"),
        ("sum by (rack) (dranet_device_up)", "rack"),
        ("node:nothing:rate5m", "node:nothing:rate5m"),
    ],
)
def test_the_check_sees_strangers(expr: str, stranger: str) -> None:
    assert list(find_strangers(expr)) == [stranger]


def test_recordings_are_named_by_level_metric_and_operation() -> None:
    for one in RECORDINGS:
        level, metric, operation = one.name.split(":")
        assert level in {
            "node",
            "node_device",
            "node_method",
            "namespace",
            "namespace_pod",
            "cluster",
            "cluster_step",
        }
        assert metric.startswith("dranet_")
        assert re.fullmatch(r"(ratio|p\d+)(_rate\d+[mhd])?|rate5m", operation)
    assert len({one.name for one in RECORDINGS}) == len(RECORDINGS)


def test_labels_that_an_alert_speaks_of_are_labels_that_there_are() -> None:
    known = frozenset().union(*list_series().values()) | {"node", "instance"}
    for alert in ALERTS:
        text = f"{alert.summary} {alert.command}"
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= known, alert.name


def test_every_alert_has_its_section_and_its_runbook_leads_there() -> None:
    sections = re.findall(r"^## (\w+)$", (DOCS / "alerts.md").read_text(), re.MULTILINE)
    rules = yaml.safe_load(RULES.read_text())
    written = [rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule]
    assert sections == [rule["alert"] for rule in written]
    for rule in written:
        assert rule["annotations"]["runbook_url"] == f"{RUNBOOK}#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert RUNBOOK.endswith("user/alerts.md")


def test_the_page_is_not_stale() -> None:
    assert (DOCS / "alerts.md").read_text() == alerts_page(), "run `make docs`"


def test_commands_are_ones_that_there_are() -> None:
    for alert in ALERTS:
        assert alert.command.startswith("kubectl ")
        inside = re.search(r" -- dranet ([^>]*)", alert.command)
        if inside:
            parse_arguments(inside[1].split())
        for reason in re.findall(r"reason=(\w+)", alert.command):
            assert reason in set(EventReason), alert.name
        assert "$(" not in alert.command or commands.NAMESPACE in alert.command


def test_reasons_are_for_the_operator_for_others_or_for_nobody() -> None:
    """A new reason is for the operator until somebody says otherwise here."""
    assert not set(BY_USER) & set(BY_ITSELF)
    page = (DOCS / "troubleshooting.md").read_text()
    for names, who in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (\w+)", page, re.MULTILINE):
        for name in set(re.findall(r"\w+", names)) & set(Reason):
            expected = {"user": Reason(name) in BY_USER, "nobody": Reason(name) in BY_ITSELF}.get(who)
            assert expected is not False or name == Reason.STORE_NEWER, f"{name} is for {who}"


def test_bounds_of_buckets_that_rules_name_are_bounds_of_the_driver() -> None:
    bounds = {str(bound) for bound in LATENCY_BUCKETS}
    named = {bound for alert in ALERTS for bound in re.findall(r'le="([^"]+)"', alert.expr)}
    assert named
    assert named <= bounds
