"""Recording rules: what the dashboard and the alerts ask again and again.

Every sum keeps ``node`` and ``instance``; those over all nodes begin with ``cluster:``. Traffic of RDMA
stands beside that of links, because most cards do not count it there, and some do.
"""

from __future__ import annotations

from dranet.errors import Reason
from dranet.manifests.monitoring.rule import Recording

JOB = 'job="dranet"'
"""As the PodMonitor names what it scrapes, whatever the release's name is."""

NODE = "node, instance"

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
                    f"sum by (namespace, pod, {NODE}) (rate({source}_total[5m]))",
                    f"bytes a second that each pod has {word} {of}",
                ),
                Recording(
                    f"namespace:{source}:rate5m",
                    f"sum by (namespace) ({pods})",
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


def _ratio(name: str, wrong: str, all_: str, about: str) -> Recording:
    """Of two counters of RDMA ports; without traffic there is no ratio."""
    by = f"sum by ({NODE}, device)"
    top = " + ".join(f"{by} (rate({one}_total[5m]))" for one in wrong.split())
    return Recording(
        f"node_device:{name}:ratio_rate5m", f"({top}) / ({by} (rate({all_}_total[5m])) > 0)", about
    )


def _quantiles(level: str, metric: str, about: str, selector: str = "", extra: str = "") -> list[Recording]:
    by = f"{NODE}, le{extra}" if level.startswith("node") else f"le{extra}"
    return [
        Recording(
            f"{level}:{metric}:p{quantile}_rate5m",
            f"histogram_quantile(0.{quantile}, sum by ({by}) (rate({metric}_bucket{selector}[5m])))",
            f"{about}, {'median' if quantile == 50 else f'{quantile}th percentile'}",
        )
        for quantile in (50, 99)
    ]


def _failures(level: str, by: str, window: str) -> Recording:
    """0 where nothing failed; nothing where nothing was tried."""
    grouped = f"sum by ({by})" if by else "sum"
    tried = f"{grouped} (rate(dranet_claim_prepare_seconds_count[{window}]))"
    failed = f'rate(dranet_claim_errors_total{{phase="prepare",reason!~"{NOT_OURS}"}}[{window}])'
    return Recording(
        f"{level}:dranet_prepare_failures:ratio_rate{window}",
        f"({grouped} ({failed}) or 0 * {tried}) / ({tried} > 0)",
        f"share of Prepares that failed by the driver, its node or its surroundings, within {window}",
    )


RECORDINGS: tuple[Recording, ...] = (
    *_rates(),
    _ratio(
        "dranet_rdma_retransmits",
        "dranet_rdma_retransmits",
        "dranet_rdma_transmit_packets",
        "retransmissions by packets sent",
    ),
    _ratio(
        "dranet_rdma_errors",
        "dranet_rdma_receive_errors dranet_rdma_receive_discards",
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
        "sum (dranet_alignment_devices_worse_than_possible) "
        '/ (sum (dranet_alignment_devices{level!~"none|unknown"}) > 0)',
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
    *(_failures("cluster", "", window) for window in WINDOWS),
    Recording(
        "node:dranet_api_failures:ratio_rate5m",
        f"(sum by ({NODE}) (rate(dranet_api_requests_total{{code=~'5..|429|none'}}[5m])) "
        f"or 0 * sum by ({NODE}) (rate(dranet_api_requests_total[5m]))) "
        f"/ (sum by ({NODE}) (rate(dranet_api_requests_total[5m])) > 0)",
        "share of the requests to the API server that it did not answer, or could not",
    ),
)
