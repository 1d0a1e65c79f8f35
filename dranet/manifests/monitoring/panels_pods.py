"""Panels about what people ask: is all well, do pods have near NICs, what do they send."""

from __future__ import annotations

from dranet.manifests.monitoring.asking import DEVICE, POD, N, P, lines, number, rate_of
from dranet.manifests.monitoring.panel import Kind, Panel, Query
from dranet.manifests.monitoring.recordings import JOB, NOT_OURS

_FAILED = f'{{phase="prepare",{N},reason!~"{NOT_OURS}"}}'
_TRIED = f"dranet_claim_prepare_seconds_count{{{N}}}"

HEALTH = (
    number("Drivers that answer", "Nodes whose driver Prometheus reaches.", f"count(up{{{JOB},{N}}} == 1)"),
    number(
        "Drivers that do not",
        "Pods that run keep their NICs; new ones wait. docs/user/alerts.md#dranetdown",
        f"count(up{{{JOB},{N}}} == 0) or vector(0)",
        limits=(1, 3),
    ),
    number(
        "Nodes not ready",
        "A part of the driver cannot work there; /readyz says which and why.",
        f"count(min by (node, instance) (dranet_ready{{{N}}}) == 0) or vector(0)",
        limits=(1, 3),
    ),
    number(
        "Devices that do not work",
        "On the node or in a pod; docs/user/health.md has what each fault means.",
        f'sum(dranet_health_devices{{{N},health="unhealthy"}})',
        limits=(1, 5),
    ),
    number("Claims prepared", "Now, on all nodes that are chosen.", f"sum(dranet_prepared_claims{{{N}}})"),
    number(
        "Prepares that failed",
        "Within an hour, mistakes in claims not counted. The objective is less than 1 %.",
        f"(sum(rate(dranet_claim_errors_total{_FAILED}[1h])) or 0 * sum(rate({_TRIED}[1h]))) "
        f"/ (sum(rate({_TRIED}[1h])) > 0) or vector(0)",
        "percentunit",
        (0.01, 0.144),
    ),
    Panel(
        "Alerts",
        "What fires now; docs/user/alerts.md says what to do. Empty without the chart's rules.",
        (Query('ALERTS{alertname=~"Dranet.*",alertstate="firing"}'),),
        Kind.TABLE,
        width=12,
        page=True,
    ),
    Panel(
        "Parts that are not ready",
        "As in /readyz, which says why.",
        (Query(f"dranet_ready{{{N}}} == 0"),),
        Kind.TABLE,
        width=12,
        page=True,
    ),
)

ALIGNMENT = (
    Panel(
        "Devices in pods by distance to their GPU",
        "PIX is the nearest, SYS the farthest; none: the pod has no GPU. docs/user/alignment.md",
        (Query(f"sum by (level) (dranet_alignment_devices{{{N}}})", "{{level}}"),),
        Kind.BARS,
    ),
    lines(
        "Farther than it had to be",
        "Share of the devices beside a GPU for which the node had a nearer one.",
        "percentunit",
        Query(
            f"sum(dranet_alignment_devices_worse_than_possible{{{N}}}) "
            f'/ (sum(dranet_alignment_devices{{{N},level!~"none|unknown"}}) > 0)',
            "share",
        ),
    ),
    Panel(
        "Pods whose NIC is farther than it had to be",
        "An Event MisalignedTopology on the pod names the nearer one, and who holds it.",
        (Query(f"dranet_pod_device_worse_than_possible{{{P}}} == 1"),),
        Kind.TABLE,
        page=True,
    ),
)

TRAFFIC = (
    *(
        lines(
            f"{word} by pods, {of}",
            f"Bytes a second of each pod {of}. Most cards do not count RDMA at the link.",
            "Bps",
            Query(f"sum by (namespace, pod) ({rate_of(f'dranet_pod_{source}_{way}_bytes_total', P)})", POD),
            width=6,
        )
        for word, way in (("Sent", "transmit"), ("Received", "receive"))
        for source, of in (("network", "by links"), ("rdma", "by RDMA"))
    ),
    *(
        lines(
            f"Sent by name of the {what}, on all nodes",
            "Where nodes are alike one name is one rail: a line below the others is a rail that lags.",
            "Bps",
            Query(
                f"sum by ({label}) ({rate_of(metric)} * on (instance, device) group_left ({label}) "
                f'max by (instance, device, {label}) (dranet_device_info{{{N},{label}!=""}}))',
                f"{{{{{label}}}}}",
            ),
        )
        for what, label, metric in (
            ("link", "interface", "dranet_device_transmit_bytes_total"),
            ("RDMA device", "rdma_device", "dranet_rdma_transmit_bytes_total"),
        )
    ),
    lines(
        "How busy NICs are",
        "Sent by what the link runs at, the ten busiest.",
        "percentunit",
        Query(
            f"topk(10, {rate_of('dranet_device_transmit_bytes_total')} "
            f"/ (dranet_device_speed_bytes_per_second{{{N}}} > 0))",
            DEVICE,
        ),
    ),
    lines(
        "Dropped and bad packets of pods",
        "Links of pods, both ways, and what rate limits of claims have dropped.",
        "pps",
        *(
            Query(
                f"sum by (namespace, pod) ({rate_of(f'dranet_pod_network_{what}_total', P)}) > 0",
                f"{POD} {word}",
            )
            for what, word in (
                ("receive_dropped", "dropped"),
                ("receive_errors", "bad"),
                ("transmit_dropped", "not sent"),
            )
        ),
        Query(
            f"sum by (namespace, pod) ({rate_of('dranet_pod_rate_limit_dropped_packets_total', P)}) > 0",
            f"{POD} limited",
        ),
        width=12,
    ),
    Panel(
        "Who has what",
        "Devices in pods now.",
        (Query(f"dranet_pod_device_info{{{P}}}"),),
        Kind.TABLE,
        width=12,
        page=True,
    ),
)
