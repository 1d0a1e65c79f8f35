"""The panels of the dashboard, row by row: first what is wrong, then what people ask about, then ourselves.

They ask the driver's own metrics, so the dashboard works without the recording rules.
"""

from __future__ import annotations

from tools.manifests.monitoring.panel import Panel
from tools.manifests.monitoring.panels_driver import DRIVER, LATENCY
from tools.manifests.monitoring.panels_fabric import FABRIC
from tools.manifests.monitoring.panels_pods import ALIGNMENT, HEALTH, TRAFFIC

ROWS: dict[str, tuple[Panel, ...]] = {
    "Health at a glance": HEALTH,
    "Alignment": ALIGNMENT,
    "Traffic": TRAFFIC,
    "RDMA and links": FABRIC,
    "Claims and latency": LATENCY,
    "The driver itself": DRIVER,
}
