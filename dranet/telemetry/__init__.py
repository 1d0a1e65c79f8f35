"""Logs and metrics: one format of log lines, one recorder for all metrics."""

from dranet.telemetry.logs import JsonFormatter as JsonFormatter
from dranet.telemetry.logs import TextFormatter as TextFormatter
from dranet.telemetry.logs import set_up_logging as set_up_logging
from dranet.telemetry.metrics import CloudMetrics as CloudMetrics
from dranet.telemetry.metrics import HandoverMetrics as HandoverMetrics
from dranet.telemetry.metrics import IpamCommand as IpamCommand
from dranet.telemetry.metrics import LeaseOutcome as LeaseOutcome
from dranet.telemetry.metrics import Metrics as Metrics
from dranet.telemetry.metrics import Outcome as Outcome
from dranet.telemetry.metrics import PreparePhase as PreparePhase
from dranet.telemetry.node import AlignmentMetrics as AlignmentMetrics
from dranet.telemetry.node import HealthMetrics as HealthMetrics
from dranet.telemetry.node import InventoryMetrics as InventoryMetrics
from dranet.telemetry.node import ScanKind as ScanKind
from dranet.telemetry.node import ScanPhase as ScanPhase
from dranet.telemetry.recorder import Recorder as Recorder
