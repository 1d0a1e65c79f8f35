"""Recording rules: what the dashboard and the alerts ask again and again.

Every sum keeps ``node`` and ``instance``; those over all nodes begin with ``cluster:``. All keep the label
``cluster``, which series have where one Prometheus (or what stands behind several) has those of several
clusters: nodes of two may have the same name and address. Traffic of RDMA stands beside that of links,
because most cards do not count it there, and some do.
"""

from __future__ import annotations

from dranet.errors import Reason
from tools.manifests.monitoring.rule import Recording

JOB = 'job="dranet"'
"""As the PodMonitor names what it scrapes, whatever the release's name is."""

CLUSTER = "cluster"
"""Absent with one cluster; then this groups by nothing, and joins on nothing."""

NODE = f"{CLUSTER}, node, instance"

DEVICE = f"{CLUSTER}, instance, device"
"""By which series of one device are joined."""

WINDOWS = ("5m", "1h", "1d")
"""Of the share of claims that could not be prepared."""

OBJECTIVE = 0.99
"""Share of Prepares that must succeed; those that fail by a mistake in the claim count for neither side."""

BY_USER = (
    Reason.INVALID_CONFIG,
    Reason.UNSUPPORTED_CLAIM,
    Reason.CLAIM_NOT_ALLOCATED,
    Reason.CLAIM_NOT_RESERVED,
    Reason.DEVICE_IS_UPLINK,
)
"""Reasons that the owner of the claim mends."""

BY_ITSELF = (
    Reason.CLAIM_NOT_FOUND,
    Reason.CLAIM_REPLACED,
    Reason.DEVICE_BUSY,
    Reason.NETNS_GONE,
    Reason.API_UNAVAILABLE,
    Reason.API_CONFLICT,
    Reason.API_GONE,
    Reason.DRAINING,
)
"""Reasons of which nobody has to do anything; the API server has an alert of its own."""

NOT_OURS = "|".join((*BY_USER, *BY_ITSELF))

_DIRECTIONS = {"receive": "received", "transmit": "sent"}


def _rates() -> list[Recording]:
    rules = []
    for direction, word in _DIRECTIONS.items():
        links, rdma = f"dranet_pod_network_{direction}_bytes", f"dranet_pod_rdma_{direction}_bytes"
        device, port = f"dranet_device_{direction}_bytes", f"dranet_rdma_{direction}_bytes"
        for source, of in ((links, "by its claimed links"), (rdma, "by RDMA")):
            pods = f"namespace_pod:{source}:rate5m"
            rules += [
                Recording(
                    pods,
                    f"sum by ({NODE}, namespace, pod) (rate({source}_total[5m]))",
                    f"bytes a second that each pod has {word} {of}",
                ),
                Recording(
                    f"namespace:{source}:rate5m",
                    f"sum by ({CLUSTER}, namespace) ({pods})",
                    f"the same of each namespace, {of}",
                ),
            ]
        for source, of in ((device, "links"), (port, "RDMA ports")):
            rules.append(
                Recording(
                    f"node:{source}:rate5m",
                    f"sum by ({NODE}) (rate({source}_total[5m]))",
                    f"bytes a second that the {of} of each node have {word}, with and without pods",
                )
            )
    return rules


def rate_of_ports(metric: str) -> str:
    """What RDMA ports count in a second, by device."""
    return f"sum by ({NODE}, device) (rate({metric}_total[5m]))"


def _either(one: str, other: str) -> str:
    """The sum of two, of which a card may count one alone."""
    return f"({one} or 0 * {other}) + ({other} or 0 * {one})"


def _ratio(name: str, wrong: str, all_: str, about: str) -> Recording:
    """Of counters of RDMA ports; without traffic there is no ratio."""
    return Recording(f"node_device:{name}:ratio_rate5m", f"({wrong}) / ({rate_of_ports(all_)} > 0)", about)


def _quantiles(level: str, metric: str, about: str, selector: str = "", extra: str = "") -> list[Recording]:
    by = f"{NODE if level.startswith('node') else CLUSTER}, le{extra}"
    return [
        Recording(
            f"{level}:{metric}:p{quantile}_rate5m",
            f"histogram_quantile(0.{quantile}, sum by ({by}) (rate({metric}_bucket{selector}[5m])))",
            f"{about}, {'median' if quantile == 50 else f'{quantile}th percentile'}",
        )
        for quantile in (50, 99)
    ]


def failure_share(by: str, window: str, labels: str = "") -> str:
    """Of the Prepares that are no mistake of others: 0 where none failed, nothing where none was tried."""
    grouped = f"sum by ({by})" if by else "sum"
    ours = f'phase="prepare",reason!~"{NOT_OURS}"{labels}'
    worked = f'{grouped} (rate(dranet_claim_prepare_seconds_count{{status="success"{labels}}}[{window}]))'
    failed = f"({grouped} (rate(dranet_claim_errors_total{{{ours}}}[{window}])) or 0 * {worked})"
    return f"{failed} / (({worked} + {failed}) > 0)"


def _failures(level: str, by: str, window: str) -> Recording:
    return Recording(
        f"{level}:dranet_prepare_failures:ratio_rate{window}",
        failure_share(by, window),
        f"share of Prepares that failed by the driver, its node or its surroundings, within {window}; "
        "mistakes in claims, and what nobody has to mend, count for neither side",
    )


RDMA_BAD = _either(rate_of_ports("dranet_rdma_receive_errors"), rate_of_ports("dranet_rdma_receive_discards"))
"""Packets a second that came with an error, or were discarded."""

RECORDINGS: tuple[Recording, ...] = (
    *_rates(),
    _ratio(
        "dranet_rdma_retransmits",
        rate_of_ports("dranet_rdma_retransmits"),
        "dranet_rdma_transmit_packets",
        "retransmissions by packets sent",
    ),
    _ratio(
        "dranet_rdma_errors",
        RDMA_BAD,
        "dranet_rdma_receive_packets",
        "packets with an error, or discarded, by packets received",
    ),
    Recording(
        "node:dranet_alignment_misaligned:ratio",
        f"sum by ({NODE}) (dranet_alignment_devices_worse_than_possible) "
        f'/ (sum by ({NODE}) (dranet_alignment_devices{{level!~"none|unknown"}}) > 0)',
        "share of the devices beside a GPU for which the node had a nearer one",
    ),
    Recording(
        "cluster:dranet_alignment_misaligned:ratio",
        f"sum by ({CLUSTER}) (dranet_alignment_devices_worse_than_possible) "
        f'/ (sum by ({CLUSTER}) (dranet_alignment_devices{{level!~"none|unknown"}}) > 0)',
        "the same of all nodes",
    ),
    *_quantiles("node", "dranet_claim_prepare_seconds", "how long Prepare of a claim took"),
    *_quantiles("cluster", "dranet_claim_prepare_seconds", "the same of all nodes"),
    *_quantiles(
        "node_method",
        "dranet_driver_nri_plugin_requests_latency_seconds",
        "how long hooks took that had something to do",
        '{status!="noop"}',
        ", method",
    ),
    *_quantiles(
        "cluster_step",
        "dranet_attach_step_seconds",
        "how long each step of an attach took, on all nodes",
        "",
        ", step",
    ),
    _failures("node", NODE, "5m"),
    *(_failures("cluster", CLUSTER, window) for window in WINDOWS),
    Recording(
        "node:dranet_api_failures:ratio_rate5m",
        f"(sum by ({NODE}) (rate(dranet_api_requests_total{{code=~'5..|429|none'}}[5m])) "
        f"or 0 * sum by ({NODE}) (rate(dranet_api_requests_total[5m]))) "
        f"/ (sum by ({NODE}) (rate(dranet_api_requests_total[5m])) > 0)",
        "share of the requests to the API server that it did not answer, or could not",
    ),
)
