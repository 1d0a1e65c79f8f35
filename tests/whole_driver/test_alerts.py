"""A real Prometheus scrapes a real driver as the PodMonitor says: faults become alerts, panels get data."""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

from testbed.cluster import Testbed
from testbed.debian.packages import cache_folder
from testbed.isolation import WORK_DIR
from testbed.node.fabric import FABRIC_NETNS
from testbed.node.hardware import load_hardware
from testbed.node.iproute import run_batch
from testbed.prometheus import Prometheus, find_prometheus, run_prometheus
from testbed.runtimes import stand_in
from tests.support.objects import device_class
from tests.support.waiting import until
from tests.tools.manifests.chart.rendering import find, render
from tests.tools.monitoring.queries import fill_in
from tools.monitoring import list_panels, list_recordings, read_rules

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree]

JsonObject = dict[str, Any]
READY_SECONDS = 30.0
QUICK = {"health_raise_seconds": "0.3", "health_clear_seconds": "1", "health_training_seconds": "0"}

NEAR_TO_ANOTHER = (
    'device.attributes["dra.net"].rdmaDevice == "mlx5_0"',
    'device.attributes["resource.kubernetes.io"].pciBusID == "0000:84:00.0"',
)
"""A NIC, and the GPU that is not beside it."""

NO_DATA = {
    "Pod packet drops and errors",  # and the like: only what is greater than 0 is shown
    "RDMA retransmissions",
    "RDMA errors",
    "RDMA receiver not ready",
    "Congestion notifications",
    "PFC pause frames",
    "Missing PCIe lanes",
    "Claim errors",
    "Reconcile actions",
    "Driver parts not ready",
}
"""Panels that are empty on a node that works, and without RDMA traffic. They say why."""


def manifests() -> list[JsonObject]:
    nic, gpu = (
        {"deviceClassName": "any", "selectors": [{"cel": {"expression": expression}}]}
        for expression in NEAR_TO_ANOTHER
    )
    requests = [{"name": "nic", "exactly": nic}, {"name": "gpu", "exactly": gpu}]
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "both"}}
    container = {"name": "main", "image": "x", "resources": {"claims": [{"name": "both"}]}}
    spec = {"resourceClaims": [{"name": "both", "resourceClaimName": "both"}], "containers": [container]}
    return [
        device_class("any", "true"),
        {**claim, "spec": {"devices": {"requests": requests}}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "worker"}, "spec": spec},
    ]


def hasty_rules() -> JsonObject:
    """The chart's, without the patience."""
    rules = read_rules()
    for group in rules["groups"]:
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = "1s"
    return rules


def scrape_configs() -> list[JsonObject]:
    """What the operator makes of the PodMonitor, with the pods of one node as service discovery tells of
    them: two instances, as in an update, and the init container of one."""
    monitor = find(render({"podMonitor": {"enabled": True}}), "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    of_operator = [
        {"source_labels": [f"__meta_kubernetes_{source}"], "target_label": target}
        for source, target in (
            ("namespace", "namespace"),
            ("pod_container_name", "container"),
            ("pod_name", "pod"),
        )
    ]
    pods = [("dranet-old", "dranet"), ("dranet-new", "dranet"), ("dranet-new", "seccomp")]
    return [
        {
            "job_name": f"podMonitor/dranet-system/{monitor['metadata']['name']}/0",
            "metrics_path": endpoint["path"],
            "honor_labels": endpoint.get("honorLabels", False),
            "static_configs": [{"targets": ["127.0.0.1"], "labels": _discovered(*pod)} for pod in pods],
            "relabel_configs": [*of_operator, *map(_in_prometheus_words, endpoint["relabelings"])],
        }
    ]


def _discovered(pod: str, container: str) -> dict[str, str]:
    facts = {
        "namespace": "dranet-system",
        "pod_name": pod,
        "pod_container_name": container,
        "pod_ip": "127.0.0.1",
        "pod_node_name": "node-1",
        "pod_label_dra_net_pool": "default",
    }
    return {f"__meta_kubernetes_{name}": value for name, value in facts.items()}


def _in_prometheus_words(relabeling: JsonObject) -> JsonObject:
    return {
        re.sub("[A-Z]", lambda big: f"_{big[0].lower()}", key): value for key, value in relabeling.items()
    }


async def wait_alert(server: Prometheus, name: str, **labels: str) -> None:
    wanted = {"alertname": name, **labels}.items()

    async def look() -> bool:
        return any(wanted <= alert.items() for alert in await server.list_alerts())

    await until(look, f"{name} fires with {labels}")


async def names_firing(server: Prometheus) -> set[str]:
    return {alert["alertname"] for alert in await server.list_alerts()}


async def wait_only(server: Prometheus, *names: str) -> None:
    async def look() -> bool:
        return await names_firing(server) == set(names)

    await until(look, f"these alerts fire, and no other: {names}")


async def check_target(server: Prometheus) -> None:
    """Two pods of one node are one target, and its labels are those that the rules speak of."""
    target: JsonObject = {}

    async def is_up() -> bool:
        nonlocal target
        found = (await server.get("targets", state="active"))["activeTargets"]
        assert len(found) <= 1, [one["labels"] for one in found]
        target = found[0] if found else {}  # it takes Prometheus some seconds to see it
        return target.get("health") == "up"

    await until(is_up, "the driver is scraped")
    wanted = {"job": "dranet", "node": "node-1", "instance": "127.0.0.1:9177", "namespace": "dranet-system"}
    assert target["labels"] == wanted


async def wait_rates(server: Prometheus) -> None:
    """A rate needs two samples; without its cable the pod's NIC has no speed to compare it with."""

    async def look() -> bool:
        return bool(await server.query("rate(dranet_device_transmit_bytes_total[20s])"))

    await until(look, "the pod's NIC was scraped twice")


async def find_empty_panels(server: Prometheus) -> set[str]:
    """By title; each query is answered."""
    empty = set()
    for panel in list_panels():
        answers = [await server.query(fill_in(target["expr"], "20s")) for target in panel["targets"]]
        if not any(answers):
            empty.add(panel["title"])
    return empty


async def check_recordings(server: Prometheus) -> None:
    """Those without data are of RDMA traffic, which the testbed's cards do not have."""
    empty = {one.name for one in list_recordings() if not await server.query(one.name)}
    assert all(":dranet_rdma_" in name and ":ratio" in name for name in empty), empty


async def set_cable(testbed: Testbed, state: str) -> None:
    """Pull the cable of the pod's NIC at the switch, or plug it in."""
    sandbox = testbed.sandbox("worker")
    assert sandbox is not None
    ((link, _),) = await asyncio.to_thread(testbed.node.nics_in, str(sandbox.netns_path))
    await asyncio.to_thread(run_batch, [f"link set sw-{link['link_index']} {state}"], netns=FABRIC_NETNS)


@pytest.mark.usefixtures("prometheus")
def test_faults_of_a_live_driver_become_alerts_and_go_again() -> None:
    program = find_prometheus(cache_folder("prometheus"))
    assert program is not None, "the fixture has fetched it"

    async def story(folder: Path) -> None:
        async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR, QUICK) as testbed:
            await testbed.driver.start()
            await testbed.driver.wait_ready(READY_SECONDS)
            async with run_prometheus(program, folder, scrape_configs(), hasty_rules()) as server:
                await check_target(server)
                await wait_only(server)  # until it was scraped, no driver was found
                await testbed.apply(manifests())
                async with asyncio.timeout(READY_SECONDS):
                    await testbed.kubelet.wait_running(testbed.pod_uid("worker"))
                await wait_alert(
                    server, "DranetPodMisaligned", pod="worker", namespace="default", severity="info"
                )
                await wait_only(server, "DranetPodMisaligned")
                await wait_rates(server)
                calm = await find_empty_panels(server)

                await set_cable(testbed, "down")
                await wait_alert(server, "DranetPodNicDown", pod="worker", claim="both", severity="warning")
                empty = calm & await find_empty_panels(server)
                assert empty <= NO_DATA, f"panels without data: {empty - NO_DATA}"
                assert {
                    panel["title"] for panel in list_panels() if "noValue" in panel["fieldConfig"]["defaults"]
                } >= empty
                await check_recordings(server)
                await set_cable(testbed, "up")

                async def is_over() -> bool:
                    return "DranetPodNicDown" not in await names_firing(server)

                await until(is_over, "the alert ends with the fault")
                await testbed.driver.stop()
                await wait_alert(server, "DranetDown", node="node-1", severity="warning")
                assert "DranetPodNicDown" not in await names_firing(server)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(story(Path(folder)))
