"""Rules as ``promtool test rules`` evaluates them: series in, alerts and samples out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from testbed.prometheus import Promtool
from tools.monitoring import RULES, RUNBOOK, Alert

JsonObject = dict[str, Any]
Series = Mapping[str, str]
"""``name{labels}`` -> values by the minute, in promtool's words (``0+5x30``; ``_`` is a gap)."""

TARGET = 'job="dranet",instance="10.0.0.1:9177",node="gpu-1"'
"""The labels of whatever Prometheus has scraped from one node."""


def with_target(series: Series, target: str = TARGET) -> dict[str, str]:
    """The same as scraped: ``up`` and ``up{}`` get the target's labels."""
    return {_add(name, target): values for name, values in series.items()}


def _add(name: str, target: str) -> str:
    metric, _, labels = name.partition("{")
    return f"{metric}{{{','.join(filter(None, (labels.rstrip('}'), target)))}}}"


def parse_labels(text: str) -> dict[str, str]:
    return dict(re.findall(r'(\w+)="([^"]*)"', text))


def group(name: str, series: Series, **checks: Sequence[JsonObject]) -> JsonObject:
    """One scenario: all begins with nothing."""
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        **checks,
    }


def expect(alert: Alert, minute: int, *labels: JsonObject, value: str = "") -> JsonObject:
    """That these fire, with every word of theirs."""
    return {
        "alertname": alert.name,
        "eval_time": f"{minute}m",
        "exp_alerts": [
            {
                "exp_labels": {"severity": alert.severity, **one},
                "exp_annotations": {
                    "summary": _fill(alert.summary, one, value),
                    "description": _fill(f"{alert.meaning} First: {alert.command}", one, value),
                    "runbook_url": f"{RUNBOOK}#{alert.name.lower()}",
                },
            }
            for one in labels
        ],
    }


def _fill(text: str, labels: JsonObject, value: str) -> str:
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels.get(found[1], ""), text)
    return re.sub(r"\{\{ \$value[^}]*\}\}", value, text)


def run(promtool: Promtool, folder: Path, groups: Sequence[JsonObject], rules: Path = RULES) -> None:
    """Raises AssertionError with promtool's words."""
    _judge(promtool, [_write_test(folder, "all", groups, rules)])


def run_alerts(promtool: Promtool, folder: Path, groups: Mapping[str, Sequence[JsonObject]]) -> None:
    """By alert, each with the rules that it takes alone: promtool evaluates every rule of a file for every
    minute of every scenario. Raises AssertionError with promtool's words."""
    files = []
    for name, some in groups.items():
        rules = folder / f"{name}-rules.json"
        rules.write_text(json.dumps(_choose_rules(name)))
        files.append(_write_test(folder, name, some, rules))
    _judge(promtool, files)


def _choose_rules(alert: str) -> JsonObject:
    """One alert, and the recordings that it looks at, in their groups and their order."""
    groups = _read_groups()
    exprs = [rule["expr"] for group in groups for rule in group["rules"] if rule.get("alert") == alert]
    chosen = [
        {**group, "rules": [rule for rule in group["rules"] if _is_needed(rule, alert, exprs)]}
        for group in groups
    ]
    return {"groups": [group for group in chosen if group["rules"]]}


@cache
def _read_groups() -> list[JsonObject]:
    found: list[JsonObject] = yaml.safe_load(RULES.read_text())["groups"]
    return found


def _is_needed(rule: JsonObject, alert: str, exprs: Sequence[str]) -> bool:
    return rule.get("alert") == alert or any(rule.get("record", alert) in expr for expr in exprs)


def _write_test(folder: Path, name: str, groups: Sequence[JsonObject], rules: Path) -> Path:
    file = folder / f"{name}-test.json"
    file.write_text(
        json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": list(groups)})
    )
    return file


def _judge(promtool: Promtool, tests: Sequence[Path]) -> None:
    done = promtool.run("test", "rules", *map(str, tests))
    assert done.returncode == 0, done.stdout + done.stderr
