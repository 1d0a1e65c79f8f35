"""Each recording rule, evaluated on series of which the answer is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.prometheus import Promtool
from tests.tools.monitoring import evaluation
from tests.tools.monitoring.evaluation import Series
from tools.monitoring import list_recordings

JsonObject = dict[str, Any]

A = 'job="dranet",instance="a:9177",node="a"'
B = 'job="dranet",instance="b:9177",node="b"'
ON_A, ON_B = ("a", "a:9177"), ("b", "b:9177")
MINUTE = 20

POD = 'namespace="ml",claim="c",interface="net1"'


def counters(metric: str, labels: str, *rates: float) -> Series:
    """Of two NICs on ``a`` and one on ``b``, by what they count in a minute."""
    nodes = ((A, "net-1"), (A, "net-2"), (B, "net-1"))
    return {
        f'{metric}{{{target},device="{device}"{labels}}}': f"0+{60 * rate:g}x40"
        for (target, device), rate in zip(nodes, rates, strict=True)
    }


def pods(metric: str, extra: str = "") -> Series:
    """Pod one has two NICs on ``a``; pod two, of another namespace, one on ``b``."""
    return {
        f'{metric}{{{A},namespace="ml",pod="one",claim="c",device="net-1"{extra}}}': "0+600x40",
        f'{metric}{{{A},namespace="ml",pod="one",claim="c",device="net-2"{extra}}}': "0+60x40",
        f'{metric}{{{B},namespace="db",pod="two",claim="c",device="net-1"{extra}}}': "0+6000x40",
    }


def histogram(metric: str, labels: str, bounds: tuple[str, str]) -> Series:
    """On each node: a hundred a minute below the first bound, as many on ``b`` between the two."""
    low, high = bounds
    return {
        f'{metric}_bucket{{{target}{labels},le="{le}"}}': values
        for target, one, two in ((A, "0+100x40", "0+100x40"), (B, "0+100x40", "0+200x40"))
        for le, values in ((low, one), (high, two), ("+Inf", two))
    }


WAYS = ("receive", "transmit")
HOOKS = "dranet_driver_nri_plugin_requests_latency_seconds"

SERIES: dict[str, str] = {
    **{k: v for way in WAYS for k, v in pods(f"dranet_pod_network_{way}_bytes_total").items()},
    **{k: v for way in WAYS for k, v in pods(f"dranet_pod_rdma_{way}_bytes_total", ',port="1"').items()},
    **{k: v for way in WAYS for k, v in counters(f"dranet_device_{way}_bytes_total", "", 7, 5, 3).items()},
    **{
        k: v
        for way in WAYS
        for k, v in counters(f"dranet_rdma_{way}_bytes_total", ',port="1"', 7, 5, 3).items()
    },
    **counters("dranet_rdma_retransmits_total", ',port="1"', 1, 0, 2),
    **counters("dranet_rdma_transmit_packets_total", ',port="1"', 1000, 1000, 100),
    **counters("dranet_rdma_receive_errors_total", ',port="1"', 1, 0, 2),
    **counters("dranet_rdma_receive_discards_total", ',port="1"', 1, 0, 2),
    **counters("dranet_rdma_receive_packets_total", ',port="1"', 1000, 0, 100),
    f"dranet_alignment_devices_worse_than_possible{{{A}}}": "1x40",
    f"dranet_alignment_devices_worse_than_possible{{{B}}}": "0x40",
    f'dranet_alignment_devices{{{A},level="PIX"}}': "3x40",
    f'dranet_alignment_devices{{{A},level="SYS"}}': "1x40",
    f'dranet_alignment_devices{{{A},level="none"}}': "9x40",
    f'dranet_alignment_devices{{{B},level="PIX"}}': "4x40",
    **histogram("dranet_claim_prepare_seconds", ',status="success"', ("0.1", "0.5")),
    **histogram(HOOKS, ',method="RunPodSandbox",status="success"', ("0.1", "0.5")),
    **histogram(HOOKS, ',method="RunPodSandbox",status="noop"', ("0.001", "0.01")),
    **histogram("dranet_attach_step_seconds", ',step="move-link"', ("0.001", "0.005")),
    f'dranet_claim_prepare_seconds_count{{{A},status="success"}}': "0+90x40",
    f'dranet_claim_prepare_seconds_count{{{A},status="failed"}}': "0+10x40",
    f'dranet_claim_prepare_seconds_count{{{B},status="success"}}': "0+100x40",
    f'dranet_claim_errors_total{{{A},phase="prepare",reason="DHCPFailed"}}': "0+10x40",
    f'dranet_claim_errors_total{{{A},phase="attach",reason="AttachFailed"}}': "0+10x40",
    f'dranet_claim_errors_total{{{B},phase="prepare",reason="InvalidConfig"}}': "0+10x40",
    f'dranet_api_requests_total{{{A},verb="get",resource="pods",code="200"}}': "0+30x40",
    f'dranet_api_requests_total{{{A},verb="get",resource="pods",code="503"}}': "0+6x40",
    f'dranet_api_requests_total{{{A},verb="get",resource="pods",code="none"}}': "0+4x40",
    f'dranet_api_requests_total{{{B},verb="get",resource="pods",code="404"}}': "0+4x40",
}

Answer = tuple[str, float]
"""Labels and value."""


def node(of: tuple[str, str], more: str = "") -> str:
    return f'instance="{of[1]}",{f"{more}," if more else ""}node="{of[0]}"'


def _traffic() -> dict[str, list[Answer]]:
    answers: dict[str, list[Answer]] = {}
    for way in WAYS:
        for kind in ("network", "rdma"):
            name = f"dranet_pod_{kind}_{way}_bytes:rate5m"
            answers[f"namespace_pod:{name}"] = [
                (node(ON_A, 'namespace="ml",pod="one"'), 11),
                (node(ON_B, 'namespace="db",pod="two"'), 100),
            ]
            answers[f"namespace:{name}"] = [('namespace="ml"', 11), ('namespace="db"', 100)]
        for kind in ("device", "rdma"):
            answers[f"node:dranet_{kind}_{way}_bytes:rate5m"] = [(node(ON_A), 12), (node(ON_B), 3)]
    return answers


def _quantiles(level: str, metric: str, low: float, high: float, extra: str = "") -> dict[str, list[Answer]]:
    """Linear within a bucket, as Prometheus reads them: of ``a`` all are in the first, of ``b`` half."""
    name = f"{level}:{metric}"
    if level.startswith("node"):
        return {
            f"{name}:p50_rate5m": [(node(ON_A, extra), low / 2), (node(ON_B, extra), low)],
            f"{name}:p99_rate5m": [
                (node(ON_A, extra), low * 0.99),
                (node(ON_B, extra), low + (high - low) * 0.98),
            ],
        }
    return {
        f"{name}:p50_rate5m": [(extra, low * 0.75)],
        f"{name}:p99_rate5m": [(extra, low + (high - low) * 0.97)],
    }


ANSWERS: dict[str, list[Answer]] = {
    **_traffic(),
    "node_device:dranet_rdma_retransmits:ratio_rate5m": [
        (node(ON_A, 'device="net-1"'), 0.001),
        (node(ON_A, 'device="net-2"'), 0),
        (node(ON_B, 'device="net-1"'), 0.02),
    ],
    "node_device:dranet_rdma_errors:ratio_rate5m": [  # nothing for a device that receives nothing
        (node(ON_A, 'device="net-1"'), 0.002),
        (node(ON_B, 'device="net-1"'), 0.04),
    ],
    "node:dranet_alignment_misaligned:ratio": [(node(ON_A), 0.25), (node(ON_B), 0)],
    "cluster:dranet_alignment_misaligned:ratio": [("", 0.125)],
    **_quantiles("node", "dranet_claim_prepare_seconds", 0.1, 0.5),
    **_quantiles("cluster", "dranet_claim_prepare_seconds", 0.1, 0.5),
    **_quantiles("node_method", HOOKS, 0.1, 0.5, 'method="RunPodSandbox"'),
    **_quantiles("cluster_step", "dranet_attach_step_seconds", 0.001, 0.005, 'step="move-link"'),
    "node:dranet_prepare_failures:ratio_rate5m": [(node(ON_A), 0.1), (node(ON_B), 0)],
    **{f"cluster:dranet_prepare_failures:ratio_rate{window}": [("", 0.05)] for window in ("5m", "1h", "1d")},
    "node:dranet_api_failures:ratio_rate5m": [(node(ON_A), 0.25), (node(ON_B), 0)],
}


def test_every_recording_has_an_answer_here() -> None:
    assert ANSWERS.keys() == {one.name for one in list_recordings()}


@pytest.mark.process
def test_prometheus_computes_the_known_answers(promtool: Promtool, tmp_path: Path) -> None:
    """Rounded: rates extrapolate."""
    checks = [
        {
            "expr": f"round({name} * 1e6) / 1e6" if value_is_small(answers) else f"round({name} * 10) / 10",
            "eval_time": f"{MINUTE}m",
            "exp_samples": [
                {"labels": f"{{{labels}}}", "value": round(value, 6)} for labels, value in answers
            ],
        }
        for name, answers in ANSWERS.items()
    ]
    evaluation.run(promtool, tmp_path, [evaluation.group("recordings", SERIES, promql_expr_test=checks)])


def value_is_small(answers: list[Answer]) -> bool:
    return all(value < 1 for _, value in answers)
