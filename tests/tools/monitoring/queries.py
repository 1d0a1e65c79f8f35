"""The dashboard's expressions as Grafana sends them, with all of everything chosen."""

from __future__ import annotations

import re

from tools.monitoring import list_panels


def fill_in(expr: str, window: str = "5m") -> str:
    return re.sub(r"\$(cluster|job|node|namespace|pod)\b", ".*", expr.replace("$__rate_interval", window))


def list_queries(window: str = "5m") -> list[str]:
    return [fill_in(target["expr"], window) for panel in list_panels() for target in panel["targets"]]
