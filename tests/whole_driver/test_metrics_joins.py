"""A real Prometheus scrapes a real driver next to fakes of other exporters, and answers the page's queries.

The fakes serve text in the exporters' formats. The page's relabelling and its slim profile are in use.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.cluster import Testbed
from testbed.debian.packages import cache_folder
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.prometheus import Prometheus, find_prometheus, run_prometheus
from testbed.runtimes import stand_in
from tests.support.objects import device_class
from tests.support.waiting import until
from tests.tools.manifests.chart.rendering import find, render
from tools.monitoring import list_alerts, list_recordings

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree]

JsonObject = dict[str, Any]
READY_SECONDS = 40.0
PAGE = (Path(__file__).parents[2] / "docs/operations/metrics-joins.md").read_text()
QUERIES = [query.replace("[5m]", "[20s]") for query in re.findall(r"```promql\n(.*?)```", PAGE, re.DOTALL)]
OF_SCRAPE, OF_CHART = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))

WITHOUT_DATA = ("transmit_wait_ticks", "sriov_vf")
"""Queries of what this node does not have: RDMA congestion, virtual functions."""

GPUS = 8


def manifests() -> list[JsonObject]:
    """One pod with all GPUs and their NICs."""
    kinds = {
        "gpus": 'device.attributes["dra.net"].type == "gpu"',
        "nics": "device.attributes['dra.net'].?rdmaDevice.orValue('') in "
        + str([f"mlx5_{number}" for number in (0, 3, 4, 5, 6, 9, 10, 11)]),
    }
    requests = [
        {
            "name": name,
            "exactly": {
                "deviceClassName": "any",
                "count": 8,
                "selectors": [{"cel": {"expression": expression}}],
            },
        }
        for name, expression in kinds.items()
    ]
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "all"}}
    container = {"name": "main", "image": "x", "resources": {"claims": [{"name": "all"}]}}
    spec = {"resourceClaims": [{"name": "all", "resourceClaimName": "all"}], "containers": [container]}
    return [
        device_class("any", "true"),
        {**claim, "spec": {"devices": {"requests": requests}}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "worker"}, "spec": spec},
    ]


class Exporters:
    """What other exporters of this node say, by port."""

    def __init__(self, facts: Mapping[str, str]) -> None:
        """``facts`` has the UUID of each GPU by its PCI address."""
        dcgm = [
            f'DCGM_FI_DEV_GPU_UTIL{{gpu="{n}",UUID="{uuid}",pci_bus_id="0000{address.upper()}",'
            f'device="nvidia{n}",modelName="NVIDIA H100",Hostname="node-1"}} {n}'
            for n, (address, uuid) in enumerate(facts.items())
        ]
        ports = 'device="mlx5_0",port="1"'
        pod = 'namespace="default",pod="worker"'
        claim = 'namespace="default",resourceclaim="waiting"'
        self.texts = {
            9400: dcgm,
            9100: [
                'node_network_info{device="eno3",operstate="up"} 1',
                'node_network_receive_bytes_total{device="eno3"} 1000',
                f"node_infiniband_vl15_dropped_total{{{ports}}} 0",
            ],
            9879: [f'rdma_roce_pfc_pause_duration_total{{{ports},netdev="x",direction="rx",priority="3"}} 0'],
            8080: [
                f'kube_pod_owner{{{pod},owner_kind="Job",owner_name="train",owner_is_controller="true"}} 1',
                f'kube_resourceclaim_allocation_device_info{{{claim},driver="dra.net",device="d"}} 1',
            ],
            10250: [f'container_network_receive_bytes_total{{{pod},interface="eth0",id="/x"}} 1'],
        }

    @contextmanager
    def serve(self) -> Iterator[None]:
        servers = [ThreadingHTTPServer(("127.0.0.1", port), self._handler(port)) for port in self.texts]
        threads = [threading.Thread(target=server.serve_forever, daemon=True) for server in servers]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            for server in servers:
                server.shutdown()
                server.server_close()

    def _handler(self, port: int) -> type[BaseHTTPRequestHandler]:
        body = "".join(f"{line}\n" for line in self.texts[port]).encode()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def read_slim_profile() -> list[JsonObject]:
    """The relabelings that the chart makes of the page's values."""
    (endpoint,) = find(render(OF_CHART), "PodMonitor")["spec"]["podMetricsEndpoints"]
    relabelings: list[JsonObject] = endpoint["metricRelabelings"]
    return relabelings


def scrape_configs() -> list[JsonObject]:
    def job(name: str, port: int, **more: object) -> JsonObject:
        targets = [{"targets": [f"127.0.0.1:{port}"]}]
        return {"job_name": name, "honor_labels": True, "static_configs": targets, **more}

    slim = [
        {re.sub("[A-Z]", lambda big: f"_{big[0].lower()}", key): value for key, value in one.items()}
        for one in read_slim_profile()
    ]
    others = [job(str(port), port, **(OF_SCRAPE if port == 9400 else {})) for port in (9400, 9100, 9879)]
    cluster = [job(str(port), port) for port in (8080, 10250)]
    of_slim = {"static_configs": [{"targets": ["localhost:9177"]}]}  # another instance, which joins with none
    return [
        job("dranet", 9177),
        job("slim", 9177, metric_relabel_configs=slim) | of_slim,
        *others,
        *cluster,
    ]


async def read_one(server: Prometheus, expr: str) -> float:
    (sample,) = await server.query(expr)
    return float(sample["value"][1])


async def find_empty(server: Prometheus) -> set[str]:
    answers = [await server.query(query) for query in QUERIES]
    return {query for query, answer in zip(QUERIES, answers, strict=True) if not answer}


def read_numbers() -> tuple[int, int]:
    """Samples before and after, as the page has them."""
    section = PAGE.partition("## A slim profile")[2]
    before, after = re.findall(r"exports ([\d,]+) samples.*?keeps ([\d,]+),", section, re.DOTALL)[0]
    return int(before.replace(",", "")), int(after.replace(",", ""))


def test_the_slim_profile_drops_nothing_that_an_alert_needs() -> None:
    recorded = {one.name: one.expr for one in list_recordings()}
    exprs = [alert.expr for alert in list_alerts()]
    exprs += [recorded[name] for expr in exprs for name in recorded if name in expr]
    names = {name for expr in exprs for name in re.findall(r"\b(?:dranet|process)_\w+", expr)}
    assert len(names) > 30
    dropped = [one["regex"] for one in read_slim_profile()]
    assert {name for name in names if any(re.fullmatch(regex, name) for regex in dropped)} == set()


@pytest.mark.usefixtures("prometheus")
def test_every_query_of_the_page_answers_with_a_live_driver_and_the_slim_profile_saves_what_it_says() -> None:
    program = find_prometheus(cache_folder("prometheus"))
    assert program is not None, "the fixture has fetched it"

    async def story(folder: Path) -> None:
        async with Testbed(load_hardware("dgx-h100"), stand_in, WORK_DIR) as testbed:
            await testbed.driver.start()
            await testbed.driver.wait_ready(READY_SECONDS)
            await testbed.apply(manifests())
            async with asyncio.timeout(READY_SECONDS):
                await testbed.kubelet.wait_running(testbed.pod_uid("worker"))
            gpus = read_gpus(testbed)
            assert len(gpus) == GPUS
            async with run_prometheus(program, folder, scrape_configs(), {"groups": []}) as server:
                with Exporters(gpus).serve():
                    await check_joins(server, gpus)
                    await check_slim(server)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(story(Path(folder)))


def read_gpus(testbed: Testbed) -> Mapping[str, str]:
    """UUID by PCI address, as the hardware has it."""
    functions = [placed.function for placed in testbed.node.hardware.placed()]
    return {one.address: one.gpu.uuid for one in functions if one.gpu is not None}


async def check_joins(server: Prometheus, gpus: Mapping[str, str]) -> None:
    async def has_all() -> bool:
        empty = await find_empty(server)
        return all(any(part in query for part in WITHOUT_DATA) for query in empty)

    await until(has_all, "every query has an answer")
    utilization = await server.query(QUERIES[0])
    assert {one["metric"]["gpu_uuid"]: float(one["value"][1]) for one in utilization} == {
        uuid: number for number, uuid in enumerate(gpus.values())
    }
    assert {one["metric"]["pod"] for one in utilization} == {"worker"}
    pairs = await server.query("dranet_pod_device_info")
    assert {one["metric"]["gpu_uuid"] for one in pairs} == set(gpus.values()), (
        "each NIC serves one of its own"
    )


async def check_slim(server: Prometheus) -> None:
    before = await read_one(server, 'scrape_samples_scraped{job="slim"}')
    after = await read_one(server, 'scrape_samples_post_metric_relabeling{job="slim"}')
    said_before, said_after = read_numbers()
    assert before == pytest.approx(said_before, rel=0.1), f"{before:.0f} samples, the page says {said_before}"
    assert after == pytest.approx(said_after, rel=0.1), f"{after:.0f} samples, the page says {said_after}"
