"""What rules and dashboard ask for is there, and what they point at, too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dranet.cli.main import parse_arguments
from dranet.cluster.permissions import NAMESPACE
from dranet.errors import Reason
from dranet.model.status import EventReason
from dranet.telemetry.recorder import LATENCY_BUCKETS
from tests.tools.monitoring.names import find_strangers, list_series
from tools.monitoring import (
    RUNBOOK,
    SEVERITIES,
    Alert,
    Recording,
    list_alerts,
    list_panels,
    list_recordings,
    read_rules,
)
from tools.pages.alerts import alerts_page

DOCS = Path(__file__).parents[3] / "docs"
ALERTS = list_alerts()
RECORDINGS = list_recordings()

NOT_OURS = {
    reason
    for one in RECORDINGS
    if one.name == "node:dranet_prepare_failures:ratio_rate5m"
    for reason in re.findall(r"\w+", re.findall(r'reason!~"([^"]*)"', one.expr)[0])
}
"""Reasons of failures that the operator of the driver does not have to act on."""
BY_USER = {
    reason
    for alert in ALERTS
    if alert.name == "DranetClaimsRefused"
    for reason in re.findall(r"\w+", re.findall(r'reason=~"([^"]*)"', alert.expr)[0])
}
"""Reasons that the owner of the claim has to act on."""


@pytest.mark.parametrize("one", [*RECORDINGS, *ALERTS], ids=lambda one: str(one.name))
def test_every_name_and_label_of_a_rule_is_declared(one: Recording | Alert) -> None:
    assert list(find_strangers(one.expr)) == []


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
    sections = re.findall(r"^## (\w+)$", (DOCS / "reference/alerts.md").read_text(), re.MULTILINE)
    written = [rule for group in read_rules()["groups"] for rule in group["rules"] if "alert" in rule]
    assert sections == [rule["alert"] for rule in written]
    for rule in written:
        assert rule["annotations"]["runbook_url"] == f"{RUNBOOK}#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in SEVERITIES
    assert RUNBOOK.endswith("reference/alerts.md")


def test_the_page_is_not_stale() -> None:
    assert (DOCS / "reference/alerts.md").read_text() == alerts_page(), "run `make docs`"


def test_the_page_of_alerts_has_words_for_templates_and_a_name_for_each_link() -> None:
    page = alerts_page()
    assert "{{" not in page
    for line in page.splitlines():
        names = re.findall(r"\[([^]]+)\]\(", line.partition(" More: ")[2])
        assert len(names) == len(set(names)), line


def test_commands_are_ones_that_there_are() -> None:
    for alert in ALERTS:
        assert alert.command.startswith("kubectl ")
        inside = re.search(r" -- dranet ([^>]*)", alert.command)
        if inside:
            parse_arguments(inside[1].split())
        for reason in re.findall(r"reason=(\w+)", alert.command):
            assert reason in set(EventReason), alert.name
        assert "$(" not in alert.command or NAMESPACE in alert.command


def test_every_alert_has_a_first_command_a_remedy_and_pages_that_exist() -> None:
    for alert in ALERTS:
        assert alert.meaning, alert.name
        assert alert.remedy, alert.name
        assert alert.pages, alert.name
        for page in alert.pages:
            assert (DOCS / page.partition("#")[0]).exists(), f"{alert.name}: {page}"


def test_every_list_of_reasons_is_one_of_the_two() -> None:
    """The expressions repeat the lists, because PromQL has no constants."""
    panels = [target["expr"] for panel in list_panels() for target in panel["targets"]]
    rules = [*(one.expr for one in RECORDINGS), *(one.expr for one in ALERTS)]
    for expr in [*rules, *panels]:
        for operator, names in re.findall(r'reason(!~|=~)"(\w+(?:\|\w+)*)"', expr):
            reasons = set(names.split("|"))
            if reasons & set(Reason):
                assert reasons == (NOT_OURS if operator == "!~" else BY_USER)
                assert reasons <= set(Reason)


def test_the_budget_burns_when_two_days_use_up_a_month() -> None:
    """At 14.4 times the share of failures that the objective allows."""
    (alert,) = (one for one in ALERTS if one.name == "DranetPrepareBudgetBurns")
    objective = float(re.findall(r"([\d.]+)% succeed", alert.meaning)[0]) / 100
    assert {float(limit) for limit in re.findall(r"> ([\d.]+)", alert.expr)} == {
        round(14.4 * (1 - objective), 3)
    }


def test_reasons_are_for_the_operator_for_others_or_for_nobody() -> None:
    """A new reason is for the operator until the rules say otherwise."""
    assert BY_USER <= NOT_OURS
    by_itself = NOT_OURS - BY_USER
    page = (DOCS / "reference/reasons.md").read_text()
    for names, who in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (\w+)", page, re.MULTILINE):
        for name in set(re.findall(r"\w+", names)) & set(Reason):
            expected = {"user": Reason(name) in BY_USER, "automatic": Reason(name) in by_itself}.get(who)
            assert expected is not False or name == Reason.STORE_NEWER, f"{name} is for {who}"


def test_bounds_of_buckets_that_rules_name_are_bounds_of_the_driver() -> None:
    bounds = {str(bound) for bound in LATENCY_BUCKETS}
    named = {bound for alert in ALERTS for bound in re.findall(r'le="([^"]+)"', alert.expr)}
    assert named
    assert named <= bounds
