"""Panels about what people ask: is all well, do pods have near NICs, what do they send."""

from __future__ import annotations

from tools.manifests.monitoring.asking import DEVICE, POD, SCRAPED, C, N, P, lines, number, rate_of
from tools.manifests.monitoring.panel import Kind, Panel, Query
from tools.manifests.monitoring.recordings import CLUSTER, failure_share
from tools.manifests.monitoring.recordings import DEVICE as SAME_DEVICE

HEALTH = (
    number(
        "Drivers that answer",
        "Nodes whose driver Prometheus reaches.",
        f"count(up{{{SCRAPED}}} == 1) or vector(0)",
    ),
    number(
        "Drivers that do not",
        "Pods that run keep their NICs; new ones wait. docs/user/alerts.md#dranetdown",
        f"count(up{{{SCRAPED}}} == 0) or vector(0)",
        limits=(1, 3),
    ),
    number(
        "Nodes not ready",
        "A part of the driver cannot work there; /readyz says which and why.",
        f"count(min by ({CLUSTER}, node, instance) (dranet_ready{{{N}}}) == 0) or vector(0)",
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
        f"{failure_share('', '1h', f',{N}')} or vector(0)",
        "percentunit",
        (0.01, 0.144),
    ),
    Panel(
        "Alerts",
        "What fires now; docs/user/alerts.md says what to do. Empty without the chart's rules.",
        (Query(f'ALERTS{{alertname=~"Dranet.*",alertstate="firing",{C}}}'),),
        Kind.TABLE,
        width=12,
        page=True,
        empty="None fires, or the rules are not loaded",
    ),
    Panel(
        "Parts that are not ready",
        "As in /readyz, which says why.",
        (Query(f"dranet_ready{{{N}}} == 0"),),
        Kind.TABLE,
        width=12,
        page=True,
        empty="All are ready",
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
        empty="No pod has a NIC beside a GPU",
    ),
    Panel(
        "Pods whose NIC is farther than it had to be",
        "An Event MisalignedTopology on the pod names the nearer one, and who holds it.",
        (Query(f"dranet_pod_device_worse_than_possible{{{P}}} == 1"),),
        Kind.TABLE,
        page=True,
        empty="No pod",
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
            empty="No pod has such a device, or device_metrics is not pods",
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
                f"sum by ({label}) ({rate_of(metric)} * on ({SAME_DEVICE}) group_left ({label}) "
                f'max by ({SAME_DEVICE}, {label}) (dranet_device_info{{{N},{label}!=""}}))',
                f"{{{{{label}}}}}",
            ),
            empty=f"No {what} counts here",
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
        empty="None",
    ),
    Panel(
        "Who has what",
        "Devices in pods now.",
        (Query(f"dranet_pod_device_info{{{P}}}"),),
        Kind.TABLE,
        width=12,
        page=True,
        empty="No pod has one, or device_metrics is not pods",
    ),
)
