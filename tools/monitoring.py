"""The alerts, recording rules and dashboards of the chart, as the pages and the tests read them.

The files in ``charts/dranet/files/monitoring`` are the source; nothing here writes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

JsonObject = dict[str, Any]

FOLDER = Path(__file__).parents[1] / "charts/dranet/files/monitoring"
RULES = FOLDER / "rules.yaml"
DASHBOARDS = sorted(FOLDER.glob("dashboard*.json"))

SEVERITIES = ("critical", "warning", "info")
RUNBOOK = "docs/reference/alerts.md"
"""Address of the runbook in the rules; the chart replaces it."""

_COMMENT = re.compile(r"((?:^ *# .*\n)+) *- (?:record|alert): (\S+)$", re.MULTILINE)


class Recording(Struct, frozen=True):
    """A recording rule and the comment above it."""

    name: str
    expr: str
    about: str


class Alert(Struct, frozen=True):
    """An alert, with its remedy and the pages of ``docs`` from the comment above it."""

    name: str
    severity: str
    wait: str
    """How long the expression must hold (``for``); empty if the alert fires at once."""
    expr: str
    summary: str
    meaning: str
    command: str
    remedy: str
    pages: tuple[str, ...]

    @property
    def anchor(self) -> str:
        """The anchor of its section in the runbook."""
        return self.name.lower()


def read_rules() -> JsonObject:
    """Return the rule file as Prometheus reads it."""
    rules: JsonObject = yaml.safe_load(RULES.read_text())
    return rules


def list_recordings() -> list[Recording]:
    comments = _read_comments()
    return [
        Recording(rule["record"], rule["expr"], comments[rule["record"]])
        for rule in _iter_rules()
        if "record" in rule
    ]


def list_alerts() -> list[Alert]:
    comments = _read_comments()
    return [_read_alert(rule, comments[rule["alert"]]) for rule in _iter_rules() if "alert" in rule]


def _read_alert(rule: JsonObject, comment: str) -> Alert:
    remedy, _, pages = comment.partition(" See: ")
    meaning, _, command = rule["annotations"]["description"].partition(" First: ")
    return Alert(
        rule["alert"],
        rule["labels"]["severity"],
        rule.get("for", ""),
        rule["expr"],
        rule["annotations"]["summary"],
        meaning,
        command,
        remedy,
        tuple(pages.split(", ")),
    )


def _iter_rules() -> Iterator[JsonObject]:
    for group in read_rules()["groups"]:
        yield from group["rules"]


def _read_comments() -> Mapping[str, str]:
    """Name of a rule -> the comment above it, as one line."""
    return {
        name: " ".join(line.strip().removeprefix("# ") for line in comment.splitlines())
        for comment, name in _COMMENT.findall(RULES.read_text())
    }


def read_dashboards() -> list[JsonObject]:
    """Return the dashboards as Grafana reads them."""
    return [json.loads(file.read_text()) for file in DASHBOARDS]


def list_panels(*dashboards: JsonObject) -> list[JsonObject]:
    """Return the panels of these dashboards, or of all, without the headings of rows."""
    chosen = dashboards or read_dashboards()
    return [panel for one in chosen for panel in one["panels"] if panel["type"] != "row"]
