"""The metrics of devices, RDMA ports and links of pods: each declared once.

Series of devices have no label but the device's own name, so that pods that come and go leave them as they
are; who has a device is said by series of its own, to be joined. What the links of pods carry is also told
with the pod's name, because a join gives a pod for some minutes what its predecessor has sent
(docs/decisions/046-metrics-of-devices-and-pods.md).
"""

from __future__ import annotations

from collections.abc import Mapping

from dranet.kernel.port_counters import PORT_COUNTERS
from dranet.telemetry.recorder import Declared, Group, Kind

_DEVICE = {"device": "name of the device in the node's slices"}
_PORT = {**_DEVICE, "port": "number of the RDMA port, from 1"}
_POD = {
    "namespace": "of pod and claim",
    "pod": "name of the pod",
    "claim": "name of the ResourceClaim",
    "device": "name of the device in the node's slices",
    "interface": "name of the link in the pod, empty for a device without one",
}


def _device(name: str, kind: Kind, text: str, labels: Mapping[str, str] = _DEVICE) -> Declared:
    return Declared(f"dranet_device_{name}", kind, text, Group.DEVICES, labels)


def _rdma(name: str, kind: Kind, text: str) -> Declared:
    return Declared(f"dranet_rdma_{name}", kind, text, Group.RDMA, _PORT)


def _pod(name: str, kind: Kind, text: str, labels: Mapping[str, str] = _POD) -> Declared:
    return Declared(f"dranet_pod_{name}", kind, text, Group.PODS, labels)


# --- devices --------------------------------------------------------------------------------------------

DEVICE_INFO = _device(
    "info",
    Kind.GAUGE,
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
_TRAFFIC_TEXTS = {  # by the fields of kernel.traffic.Traffic
    "receive_bytes": "bytes received",
    "transmit_bytes": "bytes sent",
    "receive_packets": "packets received",
    "transmit_packets": "packets sent",
    "receive_errors": "bad packets received",
    "transmit_errors": "packets that could not be sent",
    "receive_dropped": "packets received and dropped, for want of room or of anybody who wanted them",
    "transmit_dropped": "packets to be sent and dropped",
}
DEVICE_TRAFFIC: Mapping[str, Declared] = {
    field: _device(f"{field}_total", Kind.COUNTER, text) for field, text in _TRAFFIC_TEXTS.items()
}
DEVICE_UP = _device("up", Kind.GAUGE, "1 while the link is operational (`operstate` is `up`)")
DEVICE_CARRIER = _device("carrier", Kind.GAUGE, "1 while the link has a carrier")
DEVICE_CARRIER_LOSSES = _device(
    "carrier_losses_total",
    Kind.COUNTER,
    "times that the carrier was lost, also by switching off or moving",
)
DEVICE_SPEED = _device("speed_bytes_per_second", Kind.GAUGE, "what the link runs at; absent while it is down")
DEVICE_MTU = _device("mtu_bytes", Kind.GAUGE, "MTU of the link")
DEVICE_HEALTHY = _device(
    "healthy", Kind.GAUGE, "1 for a device that works, 0 for one that does not; absent where nobody knows"
)
DEVICE_FAULT = _device(
    "fault",
    Kind.GAUGE,
    "1 for each fault that a device has now",
    {**_DEVICE, "fault": "[one of these](health.md)"},
)
PCIE_SPEED = _device(
    "pcie_speed_transfers_per_second",
    Kind.GAUGE,
    "PCIe transfers a second on each lane, now; as of the last full scan, as is all of PCIe",
)
PCIE_MAX_SPEED = _device(
    "pcie_max_speed_transfers_per_second", Kind.GAUGE, "the most that both ends of the PCIe link can"
)
PCIE_LANES = _device("pcie_lanes", Kind.GAUGE, "PCIe lanes in use")
PCIE_MAX_LANES = _device("pcie_max_lanes", Kind.GAUGE, "the most that both ends of the PCIe link have")

_PRIORITY = {**_DEVICE, "priority": "`0` to `7`, those with flow control"}
PAUSES_TRANSMITTED = _device(
    "transmit_pause_frames_total",
    Kind.COUNTER,
    "PFC frames sent: we asked the other side to wait. Where the driver tells (IEEE DCB)",
    _PRIORITY,
)
PAUSES_RECEIVED = _device(
    "receive_pause_frames_total",
    Kind.COUNTER,
    "PFC frames received: we were asked to wait",
    _PRIORITY,
)

# --- RDMA ports -----------------------------------------------------------------------------------------

RDMA_UP = _rdma("up", Kind.GAUGE, "1 while the port is `ACTIVE`")
RDMA_SPEED = _rdma("speed_bytes_per_second", Kind.GAUGE, "rate of the port, as the kernel tells it")
_PORT_TEXTS = {
    "receive_bytes": ("receive_bytes", "bytes received by RDMA, which links do not count on most cards"),
    "transmit_bytes": ("transmit_bytes", "bytes sent"),
    "receive_packets": ("receive_packets", "packets received"),
    "transmit_packets": ("transmit_packets", "packets sent"),
    "receive_errors": ("receive_errors", "packets received that have an error"),
    "receive_discards": ("receive_discards", "packets received and discarded"),
    "transmit_discards": ("transmit_discards", "packets not sent because the port is down or congested"),
    "transmit_wait_ticks": (
        "transmit_wait_ticks",
        "ticks of the port's clock in which it had something to send and could not: congestion",
    ),
    "symbol_errors": ("symbol_errors", "minor errors on lanes"),
    "link_error_recoveries": ("link_error_recoveries", "times that the link recovered from errors by itself"),
    "link_downed": ("link_downed", "times that it did not, and went down"),
    "out_of_buffer": ("out_of_buffer", "packets dropped because no receive request was posted"),
    "out_of_sequence": (
        "out_of_sequence_packets",
        "packets that came out of sequence: something was lost before",
    ),
    "retransmits": ("retransmits", "retransmissions, as far as the driver counts them"),
    "ack_timeouts": ("ack_timeouts", "times that an acknowledgement did not come in time"),
    "sequence_naks": ("sequence_naks", "complaints of the other side about a gap in the sequence"),
    "rnr_naks": (
        "receiver_not_ready_naks",
        "complaints of the other side that it had no receive request (RNR)",
    ),
    "duplicate_requests": ("duplicate_requests", "requests that came twice"),
    "retries_exceeded": ("retries_exceeded", "connections that broke because retries were used up"),
    "cnp_transmitted": ("transmit_cnp", "congestion notifications sent (CNP): we told a sender to slow down"),
    "cnp_received": ("receive_cnp", "congestion notifications taken: we were told to slow down"),
    "ecn_marked": ("ecn_marked_packets", "packets received that a switch has marked (ECN)"),
}
RDMA_COUNTERS: Mapping[str, Declared] = {
    word: _rdma(f"{_PORT_TEXTS[word][0]}_total", Kind.COUNTER, _PORT_TEXTS[word][1]) for word in PORT_COUNTERS
}

# --- pods -----------------------------------------------------------------------------------------------

POD_DEVICE_INFO = _pod(
    "device_info",
    Kind.GAUGE,
    "1 for each device that a pod has now; joins all that is told of devices with the pod",
    {
        **_POD,
        "request": "of the claim",
        "shared": "`true` for a link on top of a device that others may have, too",
    },
)
POD_TRAFFIC: Mapping[str, Declared] = {
    field: _pod(f"network_{field}_total", Kind.COUNTER, text) for field, text in _TRAFFIC_TEXTS.items()
}
POD_LIMIT_DROPS = _pod(
    "rate_limit_dropped_packets_total",
    Kind.COUNTER,
    "packets that the rate limit of the claim has dropped, which no other counter has",
    {**_POD, "direction": "`receive`, `transmit`"},
)
_POD_PORT = {**{name: _POD[name] for name in ("namespace", "pod", "claim", "device")}, "port": _PORT["port"]}
POD_RDMA: Mapping[str, Declared] = {
    field: _pod(f"rdma_{field}_total", Kind.COUNTER, f"the same by RDMA: {text}", _POD_PORT)
    for field, text in list(_TRAFFIC_TEXTS.items())[:4]
}
POD_ALIGNMENT = _pod(
    "device_alignment_level",
    Kind.GAUGE,
    "how far the device is from [the pod's GPU](alignment.md): 1 `PIX`, 2 `PXB`, 3 `PHB`, 4 `NODE`, 5 `SYS`; "
    "the "
    "most of a claim is its worst. Absent where there is no GPU, or nobody knows",
    {**_POD, "level": "the same in words"},
)
POD_WORSE = _pod(
    "device_worse_than_possible",
    Kind.GAUGE,
    "1 where the node had a nearer device, 0 where it had none; absent where there is no GPU, or nobody "
    "knows",
)

FAMILIES: tuple[Declared, ...] = (
    DEVICE_INFO,
    *DEVICE_TRAFFIC.values(),
    DEVICE_UP,
    DEVICE_CARRIER,
    DEVICE_CARRIER_LOSSES,
    DEVICE_SPEED,
    DEVICE_MTU,
    PAUSES_RECEIVED,
    PAUSES_TRANSMITTED,
    PCIE_SPEED,
    PCIE_MAX_SPEED,
    PCIE_LANES,
    PCIE_MAX_LANES,
    DEVICE_HEALTHY,
    DEVICE_FAULT,
    RDMA_UP,
    RDMA_SPEED,
    *RDMA_COUNTERS.values(),
    POD_DEVICE_INFO,
    *POD_TRAFFIC.values(),
    POD_LIMIT_DROPS,
    *POD_RDMA.values(),
    POD_ALIGNMENT,
    POD_WORSE,
)
"""In the order of the page."""

COMMON_LABELS: Mapping[Group, Mapping[str, str]] = {
    Group.DEVICES: _DEVICE,
    Group.RDMA: _PORT,
    Group.PODS: {**_POD, "port": _PORT["port"]},
}
"""What most metrics of a group have, explained once."""
