"""The dashboard's expressions as Grafana sends them, with all of everything chosen."""

from __future__ import annotations

import re

from tools.manifests.monitoring.panels import ROWS


def fill_in(expr: str, window: str = "5m") -> str:
    return re.sub(r"\$(cluster|job|node|namespace|pod)\b", ".*", expr.replace("$__rate_interval", window))


def list_queries(window: str = "5m") -> list[str]:
    return [
        fill_in(query.expr, window) for panels in ROWS.values() for panel in panels for query in panel.queries
    ]
