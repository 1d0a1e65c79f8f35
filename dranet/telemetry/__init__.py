"""Logs and metrics: one format of log lines, one recorder for all metrics."""

from __future__ import annotations

from dranet.telemetry.logs import JsonFormatter, TextFormatter, set_up_logging
from dranet.telemetry.metrics import HandoverMetrics, LeaseOutcome, Metrics, Outcome, PreparePhase
from dranet.telemetry.node import AlignmentMetrics, HealthMetrics, InventoryMetrics, ScanKind, ScanPhase
from dranet.telemetry.recorder import Recorder

__all__ = [
    "AlignmentMetrics",
    "HandoverMetrics",
    "HealthMetrics",
    "InventoryMetrics",
    "JsonFormatter",
    "LeaseOutcome",
    "Metrics",
    "Outcome",
    "PreparePhase",
    "Recorder",
    "ScanKind",
    "ScanPhase",
    "TextFormatter",
    "set_up_logging",
]
