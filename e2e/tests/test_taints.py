"""Tainted devices: kept from new pods, and with NoExecute taken from the pods that have them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from dranet.cluster.client import ApiClient
from e2e.cluster.local import LocalCluster
from e2e.live_cluster import LiveCluster
from e2e.objects import JsonObject
from e2e.tests.conftest import HEALTH
from e2e.tests.pods import PodMaker, build_pod, build_request, build_spec, find_difference, wait_until

BROKEN, LINK_DOWN = "example.com/broken", "dra.net/link-down"


async def test_a_device_that_an_administrator_taints_is_not_allocated_to_new_pods(
    api: ApiClient, pods: PodMaker
) -> None:
    async with _tainted_by_rule(api, pods.live.access.node_name, "NoSchedule"):
        await pods.make("waits")
        await pods.wait_unscheduled("waits")
    await pods.wait_ready("waits")


async def test_no_execute_evicts_the_pod_that_has_the_device_and_its_nic_returns(
    api: ApiClient, live: LiveCluster, pods: PodMaker
) -> None:
    before = await live.read_host_state()
    await pods.run("holder")
    async with _tainted_by_rule(api, live.access.node_name, "NoExecute"):
        await pods.wait_gone("holder")
        await wait_until(lambda: find_difference(live, before), "the NIC is back on the node")
        await pods.make("next")
        await pods.wait_unscheduled("next")
    await pods.wait_ready("next")


async def test_a_claim_that_tolerates_the_taint_keeps_its_device(
    cluster: LocalCluster, api: ApiClient, live: LiveCluster, pods: PodMaker
) -> None:
    if cluster.plane.kit.kubernetes.version.startswith("1.34."):
        pytest.skip("the scheduler of 1.34 does not copy tolerations to the allocation, where eviction looks")
    toleration = {"key": BROKEN, "operator": "Exists", "effect": "NoExecute"}
    await pods.create_claim("tolerant", build_spec(build_request(tolerations=[toleration])))
    await pods.create(build_pod("tolerant", [], pods.image, ["tolerant"]))
    tolerant = await pods.wait_ready("tolerant")
    await pods.run("holder")
    async with _tainted_by_rule(api, live.access.node_name, "NoExecute"):
        await pods.wait_gone("holder")
        again = await pods.wait_ready("tolerant")
    assert again["metadata"]["uid"] == tolerant["metadata"]["uid"]
    assert "deletionTimestamp" not in again["metadata"]
    assert len(await pods.list_links(again)) == 1


async def test_a_nic_that_loses_its_cable_is_taken_from_its_pod_where_the_driver_is_set_to_no_execute(
    live_with_no_execute: LiveCluster, pods: PodMaker
) -> None:
    live = live_with_no_execute
    before = await live.read_host_state()
    holder = await pods.run("holder")
    device, address = await _find_device(live, pods, holder)
    async with pods.pulled_cable(holder):
        await pods.wait_gone("holder")
        assert {"key": LINK_DOWN, "effect": "NoExecute"} in await _list_taints(live, device)
        await pods.create_claim("same", build_spec(build_request(selectors=[_select(address)])))
        await pods.create(build_pod("next", [], pods.image, ["same"]))
        await pods.wait_unscheduled("next")
    await pods.wait_ready("next")
    await pods.delete("next")
    await wait_until(lambda: find_difference(live, before), "the NIC is back on the node")


@pytest_asyncio.fixture
async def live_with_no_execute(live: LiveCluster) -> AsyncIterator[LiveCluster]:
    """The driver ends pods whose NIC carries nothing."""
    await live.driver.start({**HEALTH, "health_taints": "NoExecute"})
    await live.driver.wait_ready(120)
    yield live
    await live.driver.start(HEALTH)
    await live.driver.wait_ready(120)


@asynccontextmanager
async def _tainted_by_rule(api: ApiClient, pool: str, effect: str) -> AsyncIterator[None]:
    """All devices of the node have a taint of this effect inside."""
    version = await _find_rule_version(api)
    rules = f"/apis/resource.k8s.io/{version}/devicetaintrules"
    rule = {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "broken"},
        "spec": {
            "deviceSelector": {"driver": "dra.net", "pool": pool},
            "taint": {"key": BROKEN, "value": "yes", "effect": effect},
        },
    }
    await api.create(rules, rule)
    try:
        yield
    finally:
        await api.delete(f"{rules}/broken")


async def _find_rule_version(api: ApiClient) -> str:
    """The version of the group that has DeviceTaintRules: each Kubernetes has one."""
    group = await api.get("/apis/resource.k8s.io")
    for entry in group["versions"]:
        found = await api.get(f"/apis/{entry['groupVersion']}")
        if any(resource["name"] == "devicetaintrules" for resource in found["resources"]):
            return str(entry["version"])
    pytest.skip("this API server serves no DeviceTaintRules")


async def _find_device(live: LiveCluster, pods: PodMaker, pod: JsonObject) -> tuple[str, str]:
    """The name and the PCI address of the only device of the pod."""
    ((result,),) = [
        claim["status"]["allocation"]["devices"]["results"] for claim in await pods.fetch_claims(pod)
    ]
    devices = [one for item in await live.fetch_slices() for one in item["spec"]["devices"]]
    (device,) = (one for one in devices if one["name"] == result["device"])
    return device["name"], device["attributes"]["resource.kubernetes.io/pciBusID"]["string"]


async def _list_taints(live: LiveCluster, device: str) -> list[JsonObject]:
    devices = [one for item in await live.fetch_slices() for one in item["spec"]["devices"]]
    taints = [taint for one in devices if one["name"] == device for taint in one.get("taints", ())]
    return [{key: taint[key] for key in ("key", "effect")} for taint in taints]


def _select(address: str) -> JsonObject:
    attribute = 'device.attributes["resource.kubernetes.io"].pciBusID'
    return {"cel": {"expression": f'{attribute} == "{address}"'}}
