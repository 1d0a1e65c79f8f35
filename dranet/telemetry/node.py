"""Metrics of the node and its devices: what is recorded of inventory, health, slices and alignment, and what
is read from devices, RDMA ports and links of pods when it is scraped.

Series of devices are labelled with the device's name only, so they do not change when pods come and go.
Separate series, to be joined, show which pod has a device. The traffic of pods' links is also reported with
the pod's name, because for some minutes a join attributes the predecessor's traffic to a pod
(docs/decisions/046-metrics-of-devices-and-pods.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from dranet.telemetry.recorder import Declared, Group, Recorder, one_of

_DEVICE = {"device": "name of the device in the node's slices"}
_PORT = {**_DEVICE, "port": "number of the RDMA port, from 1"}
_POD = {
    "namespace": "of pod and claim",
    "pod": "name of the pod",
    "claim": "name of the ResourceClaim",
    "device": "name of the device in the node's slices",
    "interface": "name of the link in the pod, empty for a device without one",
}
_TRAFFIC_TEXTS = {  # by the fields of kernel.counters.Traffic
    "receive_bytes": "bytes received",
    "transmit_bytes": "bytes sent",
    "receive_packets": "packets received",
    "transmit_packets": "packets sent",
    "receive_errors": "bad packets received",
    "transmit_errors": "packets that could not be sent",
    "receive_dropped": "packets received and dropped, without room or receiver",
    "transmit_dropped": "packets to be sent and dropped",
}
_PRIORITY = {**_DEVICE, "priority": "`0` to `7`, those with flow control"}
_PORT_TEXTS = {  # by the words of kernel port counters
    "receive_bytes": "bytes received by RDMA, which links do not count on most cards",
    "transmit_bytes": "bytes sent",
    "receive_packets": "packets received",
    "transmit_packets": "packets sent",
    "receive_errors": "packets received that have an error",
    "receive_discards": "packets received and discarded",
    "transmit_discards": "packets not sent because the port is down or congested",
    "transmit_wait_ticks": "ticks of the port's clock in which it could not send what it had: congestion",
    "symbol_errors": "minor errors on lanes",
    "link_error_recoveries": "times that the link recovered from errors by itself",
    "link_downed": "times that it did not, and went down",
    "out_of_buffer": "packets dropped because no receive request was posted",
    "out_of_sequence": "packets that came out of sequence: something was lost before",
    "retransmits": "retransmissions, as far as the driver counts them",
    "ack_timeouts": "times that an acknowledgement did not come in time",
    "sequence_naks": "complaints of the other side about a gap in the sequence",
    "rnr_naks": "complaints of the other side that it had no receive request (RNR)",
    "duplicate_requests": "requests that came twice",
    "retries_exceeded": "connections that broke because retries were used up",
    "cnp_transmitted": "congestion notifications sent (CNP): a sender was asked to slow down",
    "cnp_received": "congestion notifications received: this port was asked to slow down",
    "ecn_marked": "packets received that a switch has marked (ECN)",
}
_PORT_NAMES = {
    "out_of_sequence": "out_of_sequence_packets",
    "rnr_naks": "receiver_not_ready_naks",
    "cnp_transmitted": "transmit_cnp",
    "cnp_received": "receive_cnp",
    "ecn_marked": "ecn_marked_packets",
}
"""Names of those that differ from the word."""
_POD_PORT = {**{name: _POD[name] for name in ("namespace", "pod", "claim", "device")}, "port": _PORT["port"]}

COMMON_LABELS: Mapping[Group, Mapping[str, str]] = {
    Group.DEVICES: _DEVICE,
    Group.RDMA: _PORT,
    Group.PODS: {**_POD, "port": _PORT["port"]},
}
"""Labels of most metrics of a group."""


class DeviceFamilies:
    """Families of samples that the driver reads when it is scraped, in the order of the page."""

    def __init__(self, r: Recorder) -> None:
        def device(name: str, text: str, labels: Mapping[str, str] = _DEVICE) -> Declared:
            return r.of(Group.DEVICES).read(f"dranet_device_{name}", text, labels)

        def rdma(name: str, text: str) -> Declared:
            return r.of(Group.RDMA).read(f"dranet_rdma_{name}", text, _PORT)

        def pod(name: str, text: str, labels: Mapping[str, str] = _POD) -> Declared:
            return r.of(Group.PODS).read(f"dranet_pod_{name}", text, labels)

        self.device_info = device(
            "info",
            "1 for each network device on offer, with what it is",
            {
                **_DEVICE,
                "kind": "`nic`, `rdma`",
                "interface": "name of its link on the node, also while a pod has it",
                "rdma_device": "name of its RDMA device",
                "pci_address": "of its function",
                "numa_node": "number",
                "driver": "kernel module of the PCI function",
            },
        )
        self.device_traffic = {
            field: device(f"{field}_total", text) for field, text in _TRAFFIC_TEXTS.items()
        }
        self.device_up = device("up", "1 while the link is operational (`operstate` is `up`)")
        self.device_carrier = device("carrier", "1 while the link has a carrier")
        self.device_carrier_losses = device(
            "carrier_losses_total", "times that the carrier was lost, also by switching off or moving"
        )
        self.device_speed = device("speed_bytes_per_second", "what the link runs at; absent while it is down")
        self.device_mtu = device("mtu_bytes", "MTU of the link")
        self.pauses_received = device(
            "receive_pause_frames_total", "PFC frames received: this side was asked to wait", _PRIORITY
        )
        self.pauses_transmitted = device(
            "transmit_pause_frames_total",
            "PFC frames sent: the other side was asked to wait; if the driver reports them (IEEE DCB)",
            _PRIORITY,
        )
        self.pcie_speed = device(
            "pcie_speed_transfers_per_second",
            "PCIe transfers a second on each lane, now; as of the last full scan, as is all of PCIe",
        )
        self.pcie_max_speed = device(
            "pcie_max_speed_transfers_per_second", "the most that both ends of the PCIe link can"
        )
        self.pcie_lanes = device("pcie_lanes", "PCIe lanes in use")
        self.pcie_max_lanes = device("pcie_max_lanes", "the most that both ends of the PCIe link have")
        self.device_healthy = device(
            "healthy", "1 for a device that works, 0 for one that does not; absent if unknown"
        )
        self.device_fault = device(
            "fault",
            "1 for each fault that a device has now",
            {**_DEVICE, "fault": "[one of these](../operations/health.md)"},
        )
        self.rdma_up = rdma("up", "1 while the port is `ACTIVE`")
        self.rdma_speed = rdma("speed_bytes_per_second", "rate of the port, as the kernel reports it")
        self.rdma_counters = {
            word: rdma(f"{_PORT_NAMES.get(word, word)}_total", text) for word, text in _PORT_TEXTS.items()
        }
        self.pod_device_info = pod(
            "device_info",
            "1 for each device that a pod has now; joins the series of devices with the pod",
            {
                **_POD,
                "request": "of the claim",
                "shared": "`true` for a link on top of a device that others may also have",
            },
        )
        self.pod_traffic = {
            field: pod(f"network_{field}_total", text) for field, text in _TRAFFIC_TEXTS.items()
        }
        self.pod_limit_drops = pod(
            "rate_limit_dropped_packets_total",
            "packets that the rate limit of the claim has dropped, which no other counter has",
            {**_POD, "direction": "`receive`, `transmit`"},
        )
        self.pod_rdma = {
            field: pod(f"rdma_{field}_total", f"the same by RDMA: {text}", _POD_PORT)
            for field, text in list(_TRAFFIC_TEXTS.items())[:4]
        }
        self.pod_alignment = pod(
            "device_alignment_level",
            "how far the device is from [the pod's GPU](../guides/alignment.md): 1 `PIX`, 2 `PXB`, 3 `PHB`, "
            "4 `NODE`, 5 `SYS`; the most of a claim is its worst. Absent without a GPU, or if unknown",
            {**_POD, "level": "the same in words"},
        )
        self.pod_worse = pod(
            "device_worse_than_possible",
            "1 if the node had a closer device, 0 if it had none; absent without a GPU, or if unknown",
        )


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
            "devices not offered because the [filter](../guides/devices.md#the-filter) fails on them",
        )
        self.attributes_file_ok = r.gauge(
            "dranet_inventory_attributes_file_ok",
            "0 while the file of [your attributes](../guides/devices.md#attributes-of-your-own) is bad; the "
            "last good one counts",
        )
        self.gpus = r.gauge(
            "dranet_inventory_gpus",
            "GPUs of the node: to be offered by this driver, [left to others](../guides/gpus.md), or not yet "
            "known whose",
            {"state": "`ours`, `left`, `unknown`"},
        )
        self.warnings = r.gauge(
            "dranet_inventory_warnings", "odd things that the last scan met; the log has them"
        )


class HealthMetrics:
    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.INVENTORY)
        self.devices = r.gauge(
            "dranet_health_devices",
            "devices of the node and in pods, by their [health](../operations/health.md)",
            {"health": "`healthy`, `unhealthy`, `unknown`"},
        )
        self.faults = r.gauge(
            "dranet_health_faults",
            "devices that have the fault",
            {"fault": "[one of these](../operations/health.md)"},
        )
        self.carrier_losses = r.counter(
            "dranet_health_carrier_losses_total", "carriers lost without being switched off or moved"
        )


class SliceMetrics:
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
            {"gate": "a [feature gate](../commands/doctor.md)"},
        )
        self._gates: frozenset[str] = frozenset()

    def show_missing(self, gates: frozenset[str]) -> None:
        for gate in self._gates | gates:
            self.missing.labels(gate).set(gate in gates)
        self._gates |= gates


class AlignmentMetrics:
    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.CLAIMS)
        level = "`PIX`, `PXB`, `PHB`, `NODE`, `SYS`, `unknown`"
        self.devices = r.gauge(
            "dranet_alignment_devices",
            "network devices in pods now, by their distance to [their GPU](../guides/alignment.md)",
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
