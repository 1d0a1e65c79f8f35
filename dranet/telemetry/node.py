"""Metrics of the node and its devices: what is recorded of inventory, health, slices and alignment, and what
is read from devices, RDMA ports and links of pods when it is scraped.

Series of devices are labelled with the device's name only, so they do not change when pods come and go.
Separate series, to be joined, show which pod has a device. The traffic of pods' links is also reported with
the pod's name, because for some minutes a join attributes the predecessor's traffic to a pod
(docs/decisions/046-metrics-of-devices-and-pods.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
_GPU = {
    "gpu": "name of the GPU, as in slices",
    "gpu_uuid": "as its kernel driver reports it; NVIDIA's as in `nvidia-smi` and DCGM (`GPU-...`)",
    "gpu_pci_address": "PCI address as the kernel writes it",
}
_TRAFFIC_TEXTS = {  # by the fields of kernel.counters.Traffic
    "receive_bytes": "Bytes received",
    "transmit_bytes": "Bytes sent",
    "receive_packets": "Packets received",
    "transmit_packets": "Packets sent",
    "receive_errors": "Bad packets received",
    "transmit_errors": "Packets that could not be sent",
    "receive_dropped": "Received packets dropped (no buffer space, or no protocol handler)",
    "transmit_dropped": "Outgoing packets dropped",
}
_PRIORITY = {**_DEVICE, "priority": "`0` to `7`, those with flow control"}
_PORT_TEXTS = {  # by the words of kernel port counters
    "receive_bytes": "Bytes received on the RDMA port; on most cards the link does not count them",
    "transmit_bytes": "Bytes sent on the RDMA port; on most cards the link does not count them",
    "receive_packets": "Packets received on the RDMA port",
    "transmit_packets": "Packets sent on the RDMA port",
    "receive_errors": "Packets received on the RDMA port that contain an error",
    "receive_discards": "Packets received on the RDMA port and discarded",
    "transmit_discards": "Packets not sent on the RDMA port because it is down or congested",
    "transmit_wait_ticks": "Ticks of the RDMA port's clock during which data waited and none could be sent "
    "(congestion)",
    "symbol_errors": "Minor errors on the lanes of the RDMA port",
    "link_error_recoveries": "Times that the RDMA port's link recovered from errors by itself",
    "link_downed": "Times that the RDMA port's link could not recover from errors and went down",
    "out_of_buffer": "Packets dropped on the RDMA port because no receive request was posted",
    "out_of_sequence": "Packets received out of sequence on the RDMA port: earlier ones were lost",
    "retransmits": "RDMA packets sent again, as far as the network driver counts them",
    "ack_timeouts": "RDMA requests whose acknowledgement did not arrive in time",
    "sequence_naks": "Negative acknowledgements received because of a gap in the sequence of packets",
    "rnr_naks": "Negative acknowledgements received because the other side had no receive request posted "
    "(RNR)",
    "duplicate_requests": "RDMA requests received twice",
    "retries_exceeded": "RDMA connections that broke because all retries were used",
    "cnp_transmitted": "Congestion notification packets (CNP) sent: a sender was asked to slow down",
    "cnp_received": "Congestion notification packets (CNP) received: this port was asked to slow down",
    "ecn_marked": "Packets received on the RDMA port that a switch had marked as congested (ECN)",
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
            "Constant 1 with labels that identify each network device that the driver offers",
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
            field: device(f"{field}_total", f"{text} on the network device's link")
            for field, text in _TRAFFIC_TEXTS.items()
        }
        self.device_up = device("up", "1 if the device's link is operational (`operstate` is `up`), else 0")
        self.device_carrier = device("carrier", "1 if the device's link has a carrier, else 0")
        self.device_carrier_losses = device(
            "carrier_losses_total",
            "Times that the device's link lost its carrier, including when it was switched off or moved",
        )
        self.device_speed = device(
            "speed_bytes_per_second",
            "Speed of the device's link in bytes per second; absent while it is down",
        )
        self.device_bandwidth = device(
            "bandwidth_capacity_bytes_per_second",
            "[Bandwidth](../networking/bandwidth.md) that claims can have of the device, in bytes per "
            "second; absent where it is not counted",
        )
        self.device_bandwidth_allocated = device(
            "bandwidth_allocated_bytes_per_second",
            "Bandwidth that prepared claims have of the device, in bytes per second; absent where it is not "
            "counted",
        )
        self.device_mtu = device("mtu_bytes", "MTU of the device's link in bytes")
        self.pauses_received = device(
            "receive_pause_frames_total",
            "Priority flow control (PFC) frames received: this side was asked to wait",
            _PRIORITY,
        )
        self.pauses_transmitted = device(
            "transmit_pause_frames_total",
            "Priority flow control (PFC) frames sent: the other side was asked to wait; only if the network "
            "driver reports them (IEEE DCB)",
            _PRIORITY,
        )
        self.pcie_speed = device(
            "pcie_speed_transfers_per_second",
            "Current PCIe transfers per second on each lane of the device, as of the last full scan",
        )
        self.pcie_max_speed = device(
            "pcie_max_speed_transfers_per_second",
            "PCIe transfers per second on each lane that both card and slot support",
        )
        self.pcie_lanes = device(
            "pcie_lanes", "PCIe lanes that the device uses now, as of the last full scan"
        )
        self.pcie_max_lanes = device("pcie_max_lanes", "PCIe lanes that both card and slot have")
        self.device_healthy = device(
            "healthy", "1 if the device works, 0 if it has a fault; absent if unknown"
        )
        self.device_fault = device(
            "fault",
            "Constant 1 for each fault that a device has now",
            {**_DEVICE, "fault": "[one of these](../operations/health.md)"},
        )
        self.device_wrong_rail = device(
            "wrong_rail",
            "1 if the device is cabled to [another rail](../networking/rails.md) than it should be, else 0; "
            "absent if unknown",
        )
        self.rdma_up = rdma("up", "1 if the RDMA port is `ACTIVE`, else 0")
        self.rdma_speed = rdma(
            "speed_bytes_per_second", "Rate of the RDMA port in bytes per second, as the kernel reports it"
        )
        self.rdma_counters = {
            word: rdma(f"{_PORT_NAMES.get(word, word)}_total", text) for word, text in _PORT_TEXTS.items()
        }
        self.pod_device_info = pod(
            "device_info",
            "Constant 1 for each network device that a pod has now, with the pod's GPU that it is matched "
            "with; joins series of devices and GPUs to the pod",
            {
                **_POD,
                "request": "of the claim",
                "shared": "`true` for a link on top of a device that others may also have",
                **_GPU,
            },
        )
        self.pod_gpu_info = pod(
            "gpu_info",
            "Constant 1 for each GPU of a pod that also has a network device of this driver; the GPU may be "
            "allocated by another driver. Joins series of GPUs to the pod",
            {"namespace": _POD["namespace"], "pod": _POD["pod"], **_GPU},
        )
        self.pod_traffic = {
            field: pod(f"network_{field}_total", f"{text} on the pod's link to a claimed device")
            for field, text in _TRAFFIC_TEXTS.items()
        }
        self.pod_limit_drops = pod(
            "rate_limit_dropped_packets_total",
            "Packets dropped by the claim's rate limit on the pod's link; no other counter contains them",
            {**_POD, "direction": "`receive`, `transmit`"},
        )
        self.pod_rdma = {
            field: pod(f"rdma_{field}_total", f"{text} by RDMA on the pod's claimed device", _POD_PORT)
            for field, text in list(_TRAFFIC_TEXTS.items())[:4]
        }
        self.pod_alignment = pod(
            "device_alignment_level",
            "PCIe distance of the pod's device to [its GPU](../guides/alignment.md): 1 `PIX`, 2 `PXB`, "
            "3 `PHB`, 4 `NODE`, 5 `SYS`; absent without a GPU, or if unknown",
            {**_POD, "level": "the distance as a word"},
        )
        self.pod_worse = pod(
            "device_worse_than_possible",
            "1 if the node had a device closer to the pod's GPU, else 0; absent without a GPU, or if unknown",
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
        self.scan_seconds = r.histogram(
            "dranet_inventory_scan_seconds", "Duration in seconds of a scan of the node's hardware"
        )
        self.phase_seconds = r.histogram(
            "dranet_inventory_scan_phase_seconds",
            "Duration in seconds of each phase of a scan of the node's hardware",
            {"phase": one_of(ScanPhase, read="the kernel", judge="what to offer")},
        )
        self.scans = r.counter(
            "dranet_inventory_scans_total",
            "Scans of the node's hardware; a partial scan reads only what kernel notifications named",
            {"kind": one_of(ScanKind)},
        )
        self.overruns = r.counter(
            "dranet_inventory_notification_overruns_total",
            "Times that kernel notifications were lost; each causes a full scan",
        )
        self.filter_failures = r.gauge(
            "dranet_inventory_filter_failed_devices",
            "Devices not offered because the [filter](../guides/devices.md#the-filter) fails on them",
        )
        self.attributes_file_ok = r.gauge(
            "dranet_inventory_attributes_file_ok",
            "1 if the file of [your attributes](../guides/devices.md#attributes-of-your-own) is valid; "
            "0 if not, and the last valid one stays in use",
        )
        self.gpus = r.gauge(
            "dranet_inventory_gpus",
            "GPUs of the node: offered by this driver, [left to another one](../guides/gpus.md), or not yet "
            "known",
            {"state": "`ours`, `left`, `unknown`"},
        )
        self.warnings = r.gauge(
            "dranet_inventory_warnings", "Unexpected findings of the last scan, which the log lists"
        )


class VirtualFunctionMetrics:
    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.INVENTORY)
        function = {"physical_function": "name of its device"}
        self._desired = r.gauge(
            "dranet_virtual_functions_desired",
            "Virtual functions that a rule of [the file](../networking/virtual-functions.md) wants",
            function,
        )
        self._observed = r.gauge(
            "dranet_virtual_functions", "Virtual functions of a physical function with a rule", function
        )
        self._blocked = r.gauge(
            "dranet_virtual_functions_blocked",
            "1 if a physical function or its virtual functions cannot be as the rule wants them now, because "
            "they are in use or their driver refuses; else 0",
            function,
        )

    def show(self, states: Iterable[tuple[str, int, int, bool]]) -> None:
        """Replace all: device, desired, observed, and whether something is in the way."""
        for gauge in (self._desired, self._observed, self._blocked):
            gauge.clear()
        for device, desired, observed, is_blocked in states:
            self._desired.labels(device).set(desired)
            self._observed.labels(device).set(observed)
            self._blocked.labels(device).set(is_blocked)


class HealthMetrics:
    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.INVENTORY)
        self.devices = r.gauge(
            "dranet_health_devices",
            "Devices on the node and in pods by their [health](../operations/health.md)",
            {"health": "`healthy`, `unhealthy`, `unknown`"},
        )
        self.faults = r.gauge(
            "dranet_health_faults",
            "Devices that have the fault now",
            {"fault": "[one of these](../operations/health.md)"},
        )
        self.carrier_losses = r.counter(
            "dranet_health_carrier_losses_total",
            "Times that links lost their carrier without being switched off or moved",
        )


class SliceMetrics:
    def __init__(self, r: Recorder) -> None:
        r = r.of(Group.INVENTORY)
        self.published = r.gauge(
            "dranet_driver_published_devices_total",
            "Devices published in this node's ResourceSlices",
            {"feature": "`total`, `rdma`"},
        )
        self.last_published = r.gauge(
            "dranet_driver_last_published_time_seconds",
            "Unix time in seconds when the API server last accepted a ResourceSlice; old on a quiet node",
        )
        self.writes = r.counter(
            "dranet_slice_writes_total",
            "ResourceSlices written to the API server; constant at idle",
            {"verb": "`create`, `update`, `delete`"},
        )
        self.missing = r.gauge(
            "dranet_slice_fields_missing",
            "1 if the settings need a field of ResourceSlices that the API server drops, else 0",
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
            "Network devices in pods now by their PCIe distance to [their GPU](../guides/alignment.md)",
            {"level": f"{level}, `none` (the pod has no GPU)"},
        )
        self.verdicts = r.counter(
            "dranet_alignment_verdicts_total",
            "Alignment verdicts of devices in pods, counted when one is new or has changed",
            {"level": level},
        )
        self.worse_now = r.gauge(
            "dranet_alignment_devices_worse_than_possible",
            "Devices in pods now although the node had closer ones (condition `TopologyAligned` is False)",
        )
        self.worse = r.counter(
            "dranet_alignment_worse_than_possible_total",
            "Devices allocated to pods although the node had closer ones; those of running pods are counted "
            "again when the driver starts",
        )
