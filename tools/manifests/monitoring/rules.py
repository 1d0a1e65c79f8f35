"""The rule file, as Prometheus and the operator's PrometheusRule read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tools.manifests.monitoring.alerts_claims import CLAIM_ALERTS
from tools.manifests.monitoring.alerts_devices import DEVICE_ALERTS
from tools.manifests.monitoring.alerts_driver import DRIVER_ALERTS
from tools.manifests.monitoring.recordings import RECORDINGS
from tools.manifests.monitoring.rule import Alert, Recording

JsonObject = dict[str, Any]

RUNBOOK = "docs/user/alerts.md"
"""The chart puts an address in its place."""

ALERT_GROUPS: dict[str, tuple[Alert, ...]] = {
    "dranet-claims": CLAIM_ALERTS,
    "dranet-devices": DEVICE_ALERTS,
    "dranet-driver": DRIVER_ALERTS,
}

ALERTS: tuple[Alert, ...] = tuple(alert for group in ALERT_GROUPS.values() for alert in group)


def build_rules() -> JsonObject:
    """Of ``charts/dranet/files/monitoring/rules.yaml``."""
    return {
        "groups": [
            _build_group("dranet-recordings", [_record(one) for one in RECORDINGS]),
            *(_build_group(name, [_alert(one) for one in alerts]) for name, alerts in ALERT_GROUPS.items()),
        ]
    }


def _build_group(name: str, rules: Sequence[JsonObject]) -> JsonObject:
    return {"name": name, "rules": list(rules)}


def _record(one: Recording) -> JsonObject:
    return {"record": one.name, "expr": one.expr}


def _alert(one: Alert) -> JsonObject:
    return {
        "alert": one.name,
        "expr": one.expr,
        **({"for": one.wait} if one.wait else {}),
        "labels": {"severity": str(one.severity)},
        "annotations": {
            "summary": one.summary,
            "description": f"{one.meaning.replace('`', '')} First: {one.command}",
            "runbook_url": f"{RUNBOOK}#{one.anchor}",
        },
    }
