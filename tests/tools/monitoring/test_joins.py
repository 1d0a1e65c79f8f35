"""Prometheus evaluates each query of the page about other exporters, on series as those exporters write them.

Labels of targets are those of the Prometheus operator: every exporter of a node has the node's address.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from testbed.prometheus import Promtool
from tests.tools.monitoring import evaluation
from tests.tools.monitoring.evaluation import JsonObject, Series, parse_labels
from tests.tools.monitoring.names import list_series

PAGE = Path(__file__).parents[3] / "docs/operations/metrics-joins.md"
QUERIES: list[str] = re.findall(r"```promql\n(.*?)```", PAGE.read_text(), re.DOTALL)

ONE, TWO = "GPU-15704b32-f531-14ce-0530-1ac21e4b68e6", "GPU-edc718f8-e593-6468-b9f9-563d508366ed"


def target(exporter: str, port: int, node: int = 1) -> str:
    pod = f'namespace="monitoring",pod="{exporter}-{node}x"'
    return f'job="{exporter}",instance="10.0.0.{node}:{port}",{pod}'


def of_driver(name: str, labels: str, values: str, node: int = 1) -> tuple[str, str]:
    """Scraped with ``honorLabels`` and without the name of the driver's pod."""
    scraped = f'job="dranet",instance="10.0.0.{node}:9177",node="gpu-{node}"'
    return f"{name}{{{labels},{scraped}}}", values


def dcgm(gpu: int, uuid: str, bus: str, value: str, more: str = "", node: int = 1) -> tuple[str, str]:
    labels = (
        f'gpu="{gpu}",UUID="{uuid}",pci_bus_id="00000000:{bus}",device="nvidia{gpu}",'
        f'modelName="NVIDIA H100 80GB HBM3",Hostname="gpu-{node}",DCGM_FI_DRIVER_VERSION="580.105.08"'
    )
    return f"DCGM_FI_DEV_GPU_UTIL{{{labels}{more},{target('dcgm-exporter', 9400, node)}}}", value


def device(name: str, interface: str, rdma: str, address: str, node: int = 1) -> tuple[str, str]:
    labels = (
        f'device="{name}",kind="nic",interface="{interface}",rdma_device="{rdma}",'
        f'pci_address="{address}",numa_node="0",driver="mlx5_core"'
    )
    return of_driver("dranet_device_info", labels, "1x20", node)


def held(pod: str, name: str, uuid: str, bus: str, shared: str = "false", node: int = 1) -> tuple[str, str]:
    gpu = f'gpu="gpu-0000-{bus[:2]}-00-0",gpu_uuid="{uuid}",gpu_pci_address="0000:{bus}"'
    labels = (
        f'namespace="ml",pod="{pod}",claim="{pod}-nics",device="{name}",interface="net1",request="nic",'
        f'shared="{shared}",{gpu}'
    )
    return of_driver("dranet_pod_device_info", labels, "1x20", node)


def gpu_of(pod: str, uuid: str, bus: str, node: int = 1) -> tuple[str, str]:
    gpu = f'gpu="gpu-0000-{bus[:2]}-00-0",gpu_uuid="{uuid}",gpu_pci_address="0000:{bus}"'
    return of_driver("dranet_pod_gpu_info", f'namespace="ml",pod="{pod}",{gpu}', "1x20", node)


DRIVER: Series = dict(
    [
        device("net-1", "eth2", "mlx5_0", "0000:18:00.0"),
        device("net-2", "eth3", "mlx5_1", "0000:3b:00.0"),
        device("net-1", "eth2", "mlx5_0", "0000:18:00.0", node=2),
        held("train-0", "net-1", ONE, "1b:00.0"),
        held("train-1", "net-1", TWO, "1b:00.0", node=2),
        gpu_of("train-0", ONE, "1b:00.0"),
        gpu_of("train-1", TWO, "1b:00.0", node=2),
    ]
)
"""Two nodes of one kind: links, RDMA devices and addresses have the same names on both."""

GPUS: Series = dict([dcgm(0, ONE, "1B:00.0", "15x20"), dcgm(0, TWO, "1B:00.0", "90x20", node=2)])
POD_OF_NODE = {1: "train-0", 2: "train-1"}


@dataclass(frozen=True)
class Case:
    query: str
    """A part of it that no other query has."""
    series: Series
    """Beside those of the driver."""
    wanted: dict[tuple[str, ...], float]
    """The values by these labels, after ten minutes."""
    by: tuple[str, ...] = ("namespace", "pod")


def of_pods(name: str, labels: str, *rates: int) -> Series:
    """A counter of the device that each node's pod has."""
    return dict(
        of_driver(
            name,
            f'namespace="ml",pod="{POD_OF_NODE[node]}",claim="{POD_OF_NODE[node]}-nics",device="net-1",{labels}',
            f"0+{60 * rate}x20",
            node,
        )
        for node, rate in enumerate(rates, 1)
    )


def counted(exporter: str, port: int, name: str, labels: str, *rates: int, extra: str = "") -> dict[str, str]:
    return {
        f"{name}{{{labels}{extra},{target(exporter, port, node)}}}": f"0+{60 * rate}x20"
        for node, rate in enumerate(rates, 1)
    }


def shared_gpu() -> Series:
    """Time slicing: a second pod has the first GPU. DCGM exporter has a series for each container."""
    return {
        **dict([dcgm(0, ONE, "1B:00.0", "15x20", f',container="c{n}",vgpu="{n}"') for n in (0, 1)]),
        **dict([dcgm(0, TWO, "1B:00.0", "90x20", node=2), gpu_of("other", ONE, "1b:00.0")]),
    }


def relabelled() -> Series:
    """As scraped with the relabelling of the page."""
    return {one.replace("}", ',gpu_pci_address="0000:1b:00.0"}'): values for one, values in GPUS.items()}


ADDRESSES = 'numa_node="0",pciAddr="0000:18:00.0",pf="eth9",vf="0"'
ML = "ml"

CASES = [
    Case(
        "dranet_pod_gpu_info\n  * on (gpu_uuid)",
        shared_gpu(),
        {(ML, "train-0"): 15, (ML, "other"): 15, (ML, "train-1"): 90},
    ),
    Case(
        "< 20",
        {
            **GPUS,
            **dict(
                of_driver(
                    "dranet_rdma_transmit_wait_ticks_total", 'device="net-1",port="1"', "0+600x20", node
                )
                for node in (1, 2)
            ),
        },
        {(ML, "train-0", ONE): 15},
        ("namespace", "pod", "gpu_uuid"),
    ),
    Case(
        "sum by (gpu_uuid)",
        of_pods("dranet_pod_rdma_transmit_bytes_total", 'port="1"', 100, 200),
        {(ONE,): 100, (TWO,): 200},
        ("gpu_uuid",),
    ),
    Case("on (host, gpu_pci_address)", relabelled(), {(ML, "train-0"): 15, (ML, "train-1"): 90}),
    Case(
        "unless on (host, interface)",
        {
            f'node_network_info{{address="88:d8:2e:6c:a5:52",broadcast="ff:ff:ff:ff:ff:ff",device="{link}",'
            f'duplex="full",ifalias="",operstate="up",{target("node-exporter", 9100)}}}': "1x20"
            for link in ("eth0", "eth3")
        },
        {("10.0.0.1", "net-1"): 1, ("10.0.0.2", "net-1"): 1},
        ("host", "device"),
    ),
    Case(
        "or on (host, device)",
        {
            **counted("node-exporter", 9100, "node_network_receive_bytes_total", 'device="eth0"', 7),
            **counted("node-exporter", 9100, "node_network_receive_bytes_total", 'device="eth3"', 9),
            **dict(
                of_driver("dranet_device_receive_bytes_total", f'device="net-{n}"', f"0+{60 * n}x20")
                for n in (1, 2)
            ),
        },
        {("10.0.0.1", "eth0"): 7, ("10.0.0.1", "eth2"): 1, ("10.0.0.1", "eth3"): 2},
        ("host", "device"),
    ),
    Case(
        "node_infiniband_vl15_dropped_total",
        counted(
            "node-exporter", 9100, "node_infiniband_vl15_dropped_total", 'device="mlx5_0",port="1"', 3, 4
        ),
        {(ML, "train-0"): 3, (ML, "train-1"): 4},
    ),
    Case(
        "rdma_roce_pfc_pause_duration_total",
        {
            series: f"0+{share}x20"
            for priority, share in ((3, 15_000_000), (4, 30_000_000))
            for series in counted(
                "rdma-exporter",
                9879,
                "rdma_roce_pfc_pause_duration_total",
                f'device="mlx5_0",port="1",netdev="eth2",direction="rx",priority="{priority}"',
                1,
            )
        },
        {(ML, "train-0"): 0.75},
    ),
    Case(
        "sriov_vf_tx_packets",
        counted("sriov-metrics", 9808, "sriov_vf_tx_packets", ADDRESSES, 5, 6),
        {(ML, "train-0"): 5, (ML, "train-1"): 6},
    ),
    Case(
        "kube_pod_owner",
        {
            **of_pods("dranet_pod_rdma_transmit_bytes_total", 'port="1"', 100, 200),
            **{
                f'kube_pod_owner{{namespace="ml",pod="{pod}",owner_kind="Job",owner_name="train",'
                f'owner_is_controller="true",job="kube-state-metrics",instance="10.9.0.1:8080"}}': "1x20"
                for pod in POD_OF_NODE.values()
            },
        },
        {(ML, "Job", "train"): 300},
        ("namespace", "owner_kind", "owner_name"),
    ),
    Case(
        "kube_resourceclaim_allocation_device_info",
        {
            f'kube_resourceclaim_allocation_device_info{{namespace="ml",resourceclaim="{claim}",request="nic",'
            f'driver="dra.net",pool="gpu-1",device="net-1",job="kube-state-metrics"}}': "1x20"
            for claim in ("train-0-nics", "waiting-nics")
        },
        {(ML, "waiting-nics"): 1},
        ("namespace", "claim"),
    ),
    Case(
        "container_network_receive_bytes_total",
        {
            f'container_network_receive_bytes_total{{namespace="ml",pod="train-0",interface="{link}",'
            f'id="/kubepods/x",image="i",name="n",job="kubelet",instance="10.0.0.1:10250"}}': f"0+{rate}x20"
            for link, rate in (("eth0", 60), ("net1", 6000))
        },
        {(ML, "train-0"): 1},
    ),
]


def find_query(part: str) -> str:
    (query,) = (query for query in QUERIES if part in query)
    return query


def test_every_query_of_the_page_has_a_case() -> None:
    assert sorted(find_query(case.query) for case in CASES) == sorted(QUERIES)


def test_what_a_query_asks_of_the_driver_is_declared() -> None:
    asked = {name for query in QUERIES for name in re.findall(r"\bdranet_\w+", query)}
    assert len(asked) > 5
    assert asked <= list_series().keys()


@pytest.mark.process
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.query.strip())
def test_a_query_gives_what_the_page_says(case: Case, promtool: Promtool, tmp_path: Path) -> None:
    names = ", ".join(case.by)
    expr = f"round(sum by ({names}) ({find_query(case.query)}), 0.001)"
    samples: list[JsonObject] = [
        {
            "labels": "{" + ",".join(f'{k}="{v}"' for k, v in zip(case.by, one, strict=True)) + "}",
            "value": value,
        }
        for one, value in case.wanted.items()
    ]
    check = {"expr": expr, "eval_time": "10m", "exp_samples": samples}
    group = evaluation.group(case.query, {**DRIVER, **case.series}, promql_expr_test=[check])
    evaluation.run(promtool, tmp_path, [group])


def test_the_series_of_the_cases_have_the_labels_that_the_table_names() -> None:
    rows = re.findall(r"^\| [^|]+\| ((?:`\w+`(?:, )?)+) \|", PAGE.read_text(), re.MULTILINE)
    named = {label for row in rows for label in re.findall(r"`(\w+)`", row)}
    known = {label for case in CASES for one in case.series for label in parse_labels(one)}
    assert len(named) > 5
    assert named <= known
