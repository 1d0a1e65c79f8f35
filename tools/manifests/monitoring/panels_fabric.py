"""Panels about faults, RDMA and congestion."""

from __future__ import annotations

from tools.manifests.monitoring.asking import DEVICE, N, lines, rate_of
from tools.manifests.monitoring.panel import Kind, Panel, Query


def _port(title: str, about: str, *metrics: tuple[str, str], unit: str = "cps") -> Panel:
    """Counters of RDMA ports, those that count."""
    queries = (
        Query(
            f"sum by (node, device) ({rate_of(f'dranet_rdma_{metric}_total')}) > 0",
            f"{DEVICE} {word}".strip(),
        )
        for metric, word in metrics
    )
    return lines(title, about, unit, *queries, empty="None")


FABRIC = (
    Panel(
        "Faults",
        "Devices that have each fault now: docs/user/health.md#what-to-do",
        (Query(f"sum by (fault) (dranet_health_faults{{{N}}})", "{{fault}}"),),
        Kind.BARS,
        limits=(1, 5),
    ),
    Panel(
        "Devices with a fault",
        "On the node or in a pod.",
        (Query(f"dranet_device_fault{{{N}}} == 1"),),
        Kind.TABLE,
        page=True,
        empty="No device",
    ),
    lines(
        "Carriers lost",
        "Within an hour, without those that were lost by switching off or moving.",
        "short",
        Query(f"increase(dranet_health_carrier_losses_total{{{N}}}[1h])", "{{node}}"),
    ),
    lines(
        "RDMA packets sent again",
        "Retransmissions by packets sent. More than 0.1 % is a fabric that loses packets.",
        "percentunit",
        Query(
            f"sum by (node, device) ({rate_of('dranet_rdma_retransmits_total')}) "
            f"/ (sum by (node, device) ({rate_of('dranet_rdma_transmit_packets_total')}) > 0)",
            DEVICE,
        ),
        empty="No RDMA traffic that is counted",
    ),
    _port(
        "RDMA errors",
        "Bad packets, discards at the port, connections whose retries were used up.",
        ("receive_errors", "bad"),
        ("receive_discards", "discarded"),
        ("retries_exceeded", "given up"),
        ("ack_timeouts", "unanswered"),
    ),
    _port(
        "RDMA receivers that were not ready",
        "Nobody had posted a request for what came: the program is too slow.",
        ("out_of_buffer", "dropped"),
        ("receiver_not_ready_naks", "RNR"),
    ),
    _port(
        "Congestion",
        "Notifications taken and sent, and packets that a switch has marked.",
        ("receive_cnp", "told to slow down"),
        ("transmit_cnp", "told others"),
        ("ecn_marked_packets", "marked"),
        unit="pps",
    ),
    lines(
        "Pause frames",
        "Flow control by priority: received is that we were asked to wait.",
        "pps",
        Query(
            f"sum by (node, device, priority) ({rate_of('dranet_device_receive_pause_frames_total')}) > 0",
            f"{DEVICE} {{{{priority}}}} received",
        ),
        Query(
            f"sum by (node, device, priority) ({rate_of('dranet_device_transmit_pause_frames_total')}) > 0",
            f"{DEVICE} {{{{priority}}}} sent",
        ),
        empty="None, or no flow control that the driver tells of",
    ),
    Panel(
        "PCIe below what card and slot can",
        "Lanes that are missing, by device.",
        (Query(f"(dranet_device_pcie_max_lanes{{{N}}} - dranet_device_pcie_lanes{{{N}}}) > 0"),),
        Kind.TABLE,
        page=True,
        empty="No device",
    ),
)
