"""Rules as ``promtool test rules`` evaluates them: series in, alerts and samples out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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


def run(
    promtool: Promtool, folder: Path, groups: Sequence[JsonObject], rules: Path = RULES, every: str = "1m"
) -> None:
    """``every`` is how often the rules are evaluated: all of them, which takes a while over many hours.

    Raises AssertionError with promtool's words.
    """
    file = folder / "test.yaml"
    file.write_text(
        json.dumps({"rule_files": [str(rules)], "evaluation_interval": every, "tests": list(groups)})
    )
    done = promtool.run("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
