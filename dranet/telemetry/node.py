"""Metrics of the node and its devices: inventory, health, slices, alignment."""

from __future__ import annotations

from enum import StrEnum

from dranet.telemetry.recorder import Group, Recorder, one_of


class ScanKind(StrEnum):
    """How much of the node a scan read; the ``kind`` label."""

    FULL = "full"
    PARTIAL = "partial"
    """What notifications named."""


class ScanPhase(StrEnum):
    """Phase of a scan; the ``phase`` label."""

    READ = "read"
    JUDGE = "judge"


class InventoryMetrics:
    """Scans of the node and their decisions."""

    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.INVENTORY)
        self.scan_seconds = r.histogram("dranet_inventory_scan_seconds", "how long a scan of the node took")
        self.phase_seconds = r.histogram(
            "dranet_inventory_scan_phase_seconds",
            "the same by phase",
            {"phase": one_of(ScanPhase, read="the kernel", judge="what to offer")},
        )
        self.scans = r.counter(
            "dranet_inventory_scans_total",
            "scans of the node; a partial one reads what notifications named",
            {"kind": one_of(ScanKind)},
        )
        self.overruns = r.counter(
            "dranet_inventory_notification_overruns_total",
            "times that the kernel's notifications were lost; each ends in a full scan",
        )
        self.filter_failures = r.gauge(
            "dranet_inventory_filter_failed_devices",
            "devices not offered because the [filter](inventory.md#the-filter) fails on them",
        )
        self.attributes_file_ok = r.gauge(
            "dranet_inventory_attributes_file_ok",
            "0 while the file of [your attributes](inventory.md#attributes-of-your-own) is bad; the last "
            "good one counts",
        )
        self.gpus = r.gauge(
            "dranet_inventory_gpus",
            "GPUs of the node: to be offered by this driver, [left to others](gpus.md), or not yet known "
            "whose",
            {"state": "`ours`, `left`, `unknown`"},
        )
        self.warnings = r.gauge(
            "dranet_inventory_warnings", "odd things that the last scan met; the log has them"
        )


class HealthMetrics:
    """Health of the devices."""

    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.INVENTORY)
        self.devices = r.gauge(
            "dranet_health_devices",
            "devices of the node and in pods, by their [health](health.md)",
            {"health": "`healthy`, `unhealthy`, `unknown`"},
        )
        self.faults = r.gauge(
            "dranet_health_faults", "devices that have the fault", {"fault": "[one of these](health.md)"}
        )
        self.carrier_losses = r.counter(
            "dranet_health_carrier_losses_total", "carriers lost without being switched off or moved"
        )


class SliceMetrics:
    """Publication of the node's ResourceSlices."""

    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.INVENTORY)
        self.published = r.gauge(
            "dranet_driver_published_devices_total",
            "devices in this node's slices",
            {"feature": "`total`, `rdma`"},
        )
        self.last_published = r.gauge(
            "dranet_driver_last_published_time_seconds",
            "when the API server last took a slice (unix seconds); old on a quiet node",
        )
        self.writes = r.counter(
            "dranet_slice_writes_total",
            "slices written; constant at idle",
            {"verb": "`create`, `update`, `delete`"},
        )
        self.missing = r.gauge(
            "dranet_slice_fields_missing",
            "1 where the settings ask for a field that the API server does not keep",
            {"gate": "a [feature gate](doctor.md)"},
        )
        self._gates: frozenset[str] = frozenset()

    def show_missing(self, gates: frozenset[str]) -> None:
        """Show these feature gates as missing, and no others."""
        for gate in self._gates | gates:
            self.missing.labels(gate).set(gate in gates)
        self._gates |= gates


class AlignmentMetrics:
    """Distance of pods' network devices to their GPUs."""

    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.CLAIMS)
        level = "`PIX`, `PXB`, `PHB`, `NODE`, `SYS`, `unknown`"
        self.devices = r.gauge(
            "dranet_alignment_devices",
            "network devices in pods now, by their distance to [their GPU](alignment.md)",
            {"level": f"{level}, `none` (the pod has no GPU)"},
        )
        self.verdicts = r.counter(
            "dranet_alignment_verdicts_total", "verdicts; a new one when it changes", {"level": level}
        )
        self.worse_now = r.gauge(
            "dranet_alignment_devices_worse_than_possible",
            "devices in pods now although the node had closer ones: `TopologyAligned` False",
        )
        self.worse = r.counter(
            "dranet_alignment_worse_than_possible_total",
            "devices that pods got although the node had closer ones; those of running pods are counted "
            "again when the driver starts",
        )
