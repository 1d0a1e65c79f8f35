"""Scheduler and controllers against the API server stand-in, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.errors import ClusterError, Reason
from testbed.apiserver.server import ApiServer
from testbed.scheduler.controllers import FINALIZER, POD_CLAIM_NAME, Controllers
from testbed.scheduler.scheduler import Scheduler
from tests.support.waiting import until

pytestmark = pytest.mark.socket

Json = dict[str, Any]


class Cluster:
    """What the tests do as users, and what they wait for."""

    def __init__(self, client: ApiClient, server: ApiServer) -> None:
        self.client = client
        self.server = server

    async def add_node(self, name: str, **spec: Any) -> None:
        await self.client.create(paths.NODES, {"metadata": {"name": name}, "spec": spec})

    async def publish(self, node: str, *devices: str, **attributes: Any) -> None:
        entries = [
            {"name": d, "attributes": {k: {"bool": v} for k, v in attributes.items()}} for d in devices
        ]
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "dra.net", "nodeName": node, "pool": pool, "devices": entries}
        await self.client.create(paths.RESOURCE_SLICES, {"metadata": {"name": f"slice-{node}"}, "spec": spec})

    async def add_class(self, name: str = "net", expression: str = 'device.driver == "dra.net"') -> None:
        spec = {"selectors": [{"cel": {"expression": expression}}]}
        await self.client.create(paths.DEVICE_CLASSES, {"metadata": {"name": name}, "spec": spec})

    async def add_claim(self, name: str, *expressions: str) -> None:
        body = {"metadata": {"name": name}, "spec": claim_spec(*expressions)}
        await self.client.create(paths.resource_claims("default"), body)

    async def add_template(self, name: str) -> None:
        body = {
            "metadata": {"name": name},
            "spec": {"metadata": {"labels": {"a": "b"}}, "spec": claim_spec()},
        }
        await self.client.create(paths.resource_claim_templates("default"), body)

    async def add_pod(self, name: str, **claims: str) -> None:
        """``nic="claim"`` uses a claim, ``nic="template:x"`` a template."""
        entries = [
            {"name": key, "resourceClaimTemplateName": value.removeprefix("template:")}
            if value.startswith("template:")
            else {"name": key, "resourceClaimName": value}
            for key, value in claims.items()
        ]
        spec = {"containers": [{"name": "c", "image": "none"}], "resourceClaims": entries}
        await self.client.create(paths.pods("default"), {"metadata": {"name": name}, "spec": spec})

    async def pod(self, name: str) -> Json:
        return await self.client.get(paths.pod("default", name))

    async def claim(self, name: str) -> Json:
        return await self.client.get(paths.resource_claim("default", name))

    async def claims(self) -> list[Json]:
        listed = await self.client.list(paths.resource_claims("default"))
        return list(listed["items"])

    async def wait_bound(self, name: str) -> str:
        async def node() -> str:
            return str((await self.pod(name))["spec"].get("nodeName", ""))

        return str(await until(node))

    async def wait_message(self, name: str, part: str) -> Json:
        async def condition() -> Json | None:
            conditions = (await self.pod(name))["status"].get("conditions", ())
            return next((c for c in conditions if part in c.get("message", "")), None)

        found: Json = await until(condition)
        return found

    async def finish(self, name: str) -> None:
        await self.client.patch(paths.pod_status("default", name), {"status": {"phase": "Succeeded"}})

    async def remove(self, name: str) -> None:
        """As the kubelet does once nothing of the pod is left."""
        await self.client.delete(paths.pod("default", name), grace_period_seconds=0)


def claim_spec(*expressions: str) -> Json:
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    exactly = {"deviceClassName": "net", "selectors": selectors}
    return {"devices": {"requests": [{"name": "nic", "exactly": exactly}]}}


def results(claim: Json) -> list[str]:
    allocation = claim.get("status", {}).get("allocation", {})
    return [result["device"] for result in allocation.get("devices", {}).get("results", ())]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(ApiServer())
        server.write_kubeconfig(tmp_path / "kubeconfig")
        clients = [
            await stack.enter_async_context(ApiClient.from_kubeconfig(tmp_path / "kubeconfig"))
            for _ in range(3)
        ]
        await stack.enter_async_context(Controllers(clients[0]))
        await stack.enter_async_context(Scheduler(clients[1]))
        yield Cluster(clients[2], server)


async def test_a_pod_without_claims_is_given_to_the_first_node(cluster: Cluster) -> None:
    await cluster.add_pod("p")
    await cluster.wait_message("p", "0/0 nodes are available")
    await cluster.add_node("b")

    assert await cluster.wait_bound("p") == "b"


async def test_a_claim_is_allocated_and_reserved_before_the_pod_is_bound(cluster: Cluster) -> None:
    await cluster.add_node("a")
    await cluster.add_class()
    await cluster.publish("a", "eth1")
    await cluster.add_claim("c")
    await cluster.add_pod("p", nic="c")
    await cluster.wait_bound("p")
    claim, pod = await cluster.claim("c"), await cluster.pod("p")

    assert results(claim) == ["eth1"]
    assert claim["status"]["reservedFor"] == [
        {"resource": "pods", "name": "p", "uid": pod["metadata"]["uid"]}
    ]
    assert claim["metadata"]["finalizers"] == [FINALIZER]
    terms = claim["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"]
    assert terms == [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}]


async def test_the_node_that_has_the_device_is_chosen(cluster: Cluster) -> None:
    await cluster.add_class()
    for node in ("a", "b"):
        await cluster.add_node(node)
    await cluster.publish("b", "eth1")
    await cluster.add_claim("c")
    await cluster.add_pod("p", nic="c")

    assert await cluster.wait_bound("p") == "b"


async def test_an_unschedulable_pod_says_why_and_is_retried_when_a_slice_comes(cluster: Cluster) -> None:
    await cluster.add_node("a")
    await cluster.add_class()
    await cluster.add_claim("c", 'device.attributes["dra.net"].?fast.orValue(false)')
    await cluster.add_pod("p", nic="c")
    await cluster.wait_message("p", "only 0 devices are published")
    await cluster.publish("a", "eth1", fast=False)
    told = await cluster.wait_message("p", "1 not matched by the selector of request nic")

    assert (told["status"], told["reason"]) == ("False", "Unschedulable")
    devices = [{"name": "eth1", "attributes": {"fast": {"bool": True}}}]
    await cluster.client.patch(paths.resource_slice("slice-a"), {"spec": {"devices": devices}})
    assert await cluster.wait_bound("p") == "a"


async def test_a_selector_that_fails_is_told_as_the_schedulers_error(cluster: Cluster) -> None:
    await cluster.add_node("a")
    await cluster.add_class()
    await cluster.publish("a", "eth1")
    await cluster.add_claim("c", 'device.attributes["dra.net"].nothing')
    await cluster.add_pod("p", nic="c")

    assert (await cluster.wait_message("p", "'nothing'"))["reason"] == "SchedulerError"


async def test_a_device_taint_rule_keeps_a_pod_waiting_until_it_is_gone(cluster: Cluster) -> None:
    await cluster.add_node("a")
    await cluster.add_class()
    await cluster.publish("a", "eth1")
    taint = {"key": "example.com/service", "effect": "NoSchedule"}
    rule = {"metadata": {"name": "drain"}, "spec": {"deviceSelector": {"pool": "a"}, "taint": taint}}
    await cluster.client.create(paths.DEVICE_TAINT_RULES, rule)
    await cluster.add_claim("c")
    await cluster.add_pod("p", nic="c")
    await cluster.wait_message("p", "example.com/service:NoSchedule of the DeviceTaintRule drain")
    await cluster.client.delete(f"{paths.DEVICE_TAINT_RULES}/drain")

    assert await cluster.wait_bound("p") == "a"


async def test_what_claims_have_of_a_shared_device_is_not_given_again(cluster: Cluster) -> None:
    """Through the server: amounts come back as it spells them."""
    await cluster.add_node("a")
    await cluster.add_class()
    shared = {"name": "eth1", "allowMultipleAllocations": True, "capacity": {"bw": {"value": "100G"}}}
    pool = {"name": "a", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "dra.net", "nodeName": "a", "pool": pool, "devices": [shared]}
    await cluster.client.create(paths.RESOURCE_SLICES, {"metadata": {"name": "slice-a"}, "spec": spec})
    for name in ("one", "two"):
        asked = claim_spec()
        asked["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": {"bw": "60000M"}}
        body = {"metadata": {"name": name}, "spec": asked}
        await cluster.client.create(paths.resource_claims("default"), body)
        await cluster.add_pod(f"pod-{name}", nic=name)
        if name == "one":
            await cluster.wait_bound("pod-one")
    await cluster.wait_message("pod-two", "dra.net/bw: 40G left, 60G asked for")
    (result,) = (await cluster.claim("one"))["status"]["allocation"]["devices"]["results"]

    assert (result["consumedCapacity"], bool(result["shareID"])) == ({"bw": "60G"}, True)
    await cluster.finish("pod-one")
    assert await cluster.wait_bound("pod-two") == "a"


async def test_what_a_pod_lacks_is_told_and_mended_by_making_it(cluster: Cluster) -> None:
    await cluster.add_node("a")
    await cluster.add_pod("p", nic="c")
    await cluster.wait_message("p", "resourceclaim c not found")
    await cluster.add_claim("c")
    await cluster.wait_message("p", "DeviceClass net does not exist")
    await cluster.add_class()
    await cluster.publish("a", "eth1")

    assert await cluster.wait_bound("p") == "a"


async def test_a_claim_made_from_a_template_belongs_to_its_pod(cluster: Cluster) -> None:
    await cluster.add_node("a")
    await cluster.add_class()
    await cluster.publish("a", "eth1", "eth2")
    await cluster.add_pod("p", nic="template:t", other="template:t")
    await cluster.add_template("t")
    await cluster.wait_bound("p")
    claims, pod = await cluster.claims(), await cluster.pod("p")

    assert sorted(c["metadata"]["annotations"][POD_CLAIM_NAME] for c in claims) == ["nic", "other"]
    assert {c["metadata"]["ownerReferences"][0]["uid"] for c in claims} == {pod["metadata"]["uid"]}
    assert all(c["metadata"]["labels"] == {"a": "b"} for c in claims)
    assert all(c["metadata"]["name"].startswith("p-") for c in claims)
    statuses = {s["name"]: s["resourceClaimName"] for s in pod["status"]["resourceClaimStatuses"]}
    assert statuses == {c["metadata"]["annotations"][POD_CLAIM_NAME]: c["metadata"]["name"] for c in claims}
    assert sorted(device for c in claims for device in results(c)) == ["eth1", "eth2"]


async def test_two_pods_never_get_the_same_device(cluster: Cluster) -> None:
    await cluster.add_node("a")
    await cluster.add_class()
    await cluster.publish("a", "eth1", "eth2")
    await cluster.add_template("t")
    names = [f"p{i}" for i in range(3)]
    await asyncio.gather(*(cluster.add_pod(name, nic="template:t") for name in names))

    async def settled() -> bool:
        pods = [await cluster.pod(name) for name in names]
        bound = [pod for pod in pods if pod["spec"].get("nodeName")]
        told = [
            p
            for p in pods
            if any("2 in use" in c.get("message", "") for c in p["status"].get("conditions", ()))
        ]
        return len(bound) == 2 and len(told) == 1

    await until(settled)
    assert sorted(device for claim in await cluster.claims() for device in results(claim)) == ["eth1", "eth2"]


async def test_a_finished_pod_hands_its_device_to_the_one_that_waits(cluster: Cluster) -> None:
    await cluster.add_node("a")
    await cluster.add_class()
    await cluster.publish("a", "eth1")
    await cluster.add_template("t")
    await cluster.add_pod("first", nic="template:t")
    await cluster.wait_bound("first")
    await cluster.add_pod("second", nic="template:t")
    await cluster.wait_message("second", "1 in use")
    await cluster.finish("first")

    assert await cluster.wait_bound("second") == "a"


async def test_a_claim_of_its_own_outlives_its_pod_and_lets_the_device_go(cluster: Cluster) -> None:
    await cluster.add_node("a")
    await cluster.add_class()
    await cluster.publish("a", "eth1")
    await cluster.add_claim("c")
    await cluster.add_pod("p", nic="c")
    await cluster.wait_bound("p")
    await cluster.remove("p")

    async def freed() -> bool:
        claim = await cluster.claim("c")
        return not claim.get("status", {}).get("allocation") and FINALIZER not in claim["metadata"].get(
            "finalizers", ()
        )

    await until(freed)
    await cluster.add_pod("q", nic="c")
    assert await cluster.wait_bound("q") == "a"


async def test_a_claim_stays_allocated_while_another_pod_shares_it(cluster: Cluster) -> None:
    await cluster.add_node("a")
    await cluster.add_class()
    await cluster.publish("a", "eth1")
    await cluster.add_claim("c")
    for name in ("p", "q"):
        await cluster.add_pod(name, nic="c")
        await cluster.wait_bound(name)
    await cluster.remove("p")

    async def only_q() -> bool:
        return [c["name"] for c in (await cluster.claim("c"))["status"]["reservedFor"]] == ["q"]

    await until(only_q)
    assert results(await cluster.claim("c")) == ["eth1"]


async def test_the_claims_of_a_pod_that_is_gone_are_collected(cluster: Cluster) -> None:
    await cluster.add_node("a")
    await cluster.add_class()
    await cluster.publish("a", "eth1")
    await cluster.add_template("t")
    await cluster.add_pod("p", nic="template:t")
    await cluster.wait_bound("p")
    await cluster.remove("p")

    async def collected() -> bool:
        return await cluster.claims() == []

    await until(collected)


async def test_a_claim_that_its_user_deletes_goes_once_nobody_uses_it(cluster: Cluster) -> None:
    await cluster.add_node("a")
    await cluster.add_class()
    await cluster.publish("a", "eth1")
    await cluster.add_claim("c")
    await cluster.add_pod("p", nic="c")
    await cluster.wait_bound("p")
    await cluster.client.delete(paths.resource_claim("default", "c"))
    assert results(await cluster.claim("c")) == ["eth1"]
    await cluster.remove("p")

    async def gone() -> bool:
        try:
            await cluster.claim("c")
        except ClusterError as error:
            return error.reason is Reason.API_NOT_FOUND
        return False

    await until(gone)


async def test_an_allocation_made_by_hand_is_reserved_and_respected(cluster: Cluster) -> None:
    for node in ("a", "b"):
        await cluster.add_node(node)
    await cluster.add_claim("c")
    result = {"request": "nic", "driver": "dra.net", "pool": "b", "device": "eth1"}
    fields = [{"key": "metadata.name", "operator": "In", "values": ["b"]}]
    selector = {"nodeSelectorTerms": [{"matchFields": fields}]}
    allocation = {"devices": {"results": [result]}, "nodeSelector": selector}
    await cluster.client.patch(
        paths.resource_claim_status("default", "c"), {"status": {"allocation": allocation}}
    )
    await cluster.add_pod("p", nic="c")

    assert await cluster.wait_bound("p") == "b"
    assert [c["name"] for c in (await cluster.claim("c"))["status"]["reservedFor"]] == ["p"]


async def test_the_api_servers_failures_are_survived(cluster: Cluster) -> None:
    await cluster.add_node("a")
    await cluster.add_class()
    await cluster.publish("a", "eth1")
    await cluster.add_template("t")
    cluster.server.fail_next("PATCH", "/apis/resource.k8s.io", 409, 2)
    cluster.server.fail_next("POST", "/api/v1/namespaces/default/pods/p/binding", 500)
    await cluster.add_pod("p", nic="template:t")

    assert await cluster.wait_bound("p") == "a"
    assert len(await cluster.claims()) == 1


async def test_a_settled_cluster_is_quiet(cluster: Cluster) -> None:
    await cluster.add_node("a")
    await cluster.add_class()
    await cluster.add_claim("c")
    await cluster.add_pod("waits", nic="c")
    await cluster.wait_message("waits", "cannot be satisfied")
    writes = [r for r in cluster.server.requests if r.method in ("PATCH", "PUT") and "/pods/waits" in r.path]
    await cluster.add_node("b", unschedulable=True)
    await cluster.wait_message("waits", "node b: is unschedulable")
    again = [r for r in cluster.server.requests if r.method in ("PATCH", "PUT") and "/pods/waits" in r.path]

    assert len(again) == len(writes) + 1


async def test_a_reservation_for_a_pod_that_the_mirror_does_not_know_yet_is_kept(cluster: Cluster) -> None:
    await cluster.add_claim("c")
    pod = {"metadata": {"name": "new"}, "spec": {"containers": [], "nodeName": "elsewhere"}}
    uid = (await cluster.client.create(paths.pods("default"), pod))["metadata"]["uid"]
    status = {
        "allocation": {"devices": {"results": []}},
        "reservedFor": [{"resource": "pods", "name": "new", "uid": uid}],
    }
    claim = await cluster.client.patch(paths.resource_claim_status("default", "c"), {"status": status})

    late = Controllers(cluster.client)  # its watches have not told it of anything
    late.mirror.put(paths.resource_claims(), claim)
    await late.reconcile()

    assert (await cluster.claim("c"))["status"]["reservedFor"] == status["reservedFor"]
