"""What a real kubelet does with the driver: restarts, forced deletion, eviction, static pods, batches."""

from __future__ import annotations

import asyncio
import json

import pytest

from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.errors import ClusterError, Reason
from e2e.cluster.local import LocalCluster
from e2e.live_cluster import LiveCluster
from e2e.live_driver import is_ready
from e2e.tests.pods import PodMaker, build_pod, restart_kubelet, wait_until

METADATA = (
    "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/nic0/nic/dra.net-metadata.json"
)


@pytest.mark.parametrize("keeps_checkpoint", [True, False], ids=["with its checkpoint", "without"])
async def test_a_kubelet_that_is_killed_and_started_again_leaves_pods_their_nics(
    cluster: LocalCluster, pods: PodMaker, keeps_checkpoint: bool
) -> None:
    pod = await pods.run("keeper")
    links = await pods.list_links(pod)
    assert len(links) == 1
    await cluster.kill_kubelet()
    if not keeps_checkpoint:
        checkpoint = cluster.kubelet.root / "dra_manager_state"
        assert checkpoint.exists()
        checkpoint.unlink()
    await cluster.start_kubelet()
    again = await pods.wait_ready("keeper")
    assert again["metadata"]["uid"] == pod["metadata"]["uid"]
    assert await pods.list_links(again) == links
    assert again["status"]["containerStatuses"][0]["restartCount"] == 0
    await pods.delete("keeper")


async def test_a_kubelet_that_is_killed_between_prepare_and_sandbox_ends_with_the_nic_in_the_pod(
    cluster: LocalCluster, pods: PodMaker
) -> None:
    cluster.control.hold_sandboxes(True)
    try:
        await pods.make("torn")

        async def is_prepared() -> bool:
            claims = (await pods.get("torn"))["status"].get("resourceClaimStatuses")
            found = await pods.fetch_claims(await pods.get("torn")) if claims else []
            return bool(found) and all(cluster.control.is_prepared(c["metadata"]["uid"]) for c in found)

        await wait_until(is_prepared, "the claim is prepared")
        await restart_kubelet(cluster)
    finally:
        cluster.control.hold_sandboxes(False)
    pod = await pods.wait_ready("torn")
    assert len(await pods.list_links(pod)) == 1


async def test_a_kubelet_that_is_killed_at_any_moment_of_a_start_ends_with_the_nic_in_the_pod(
    cluster: LocalCluster, pods: PodMaker
) -> None:
    for round_, seconds in enumerate((0.05, 0.2)):
        name = f"hit-{round_}"
        await pods.make(name)
        await asyncio.sleep(seconds)  # the moment is what varies
        await restart_kubelet(cluster)
        pod = await pods.wait_ready(name)
        assert len(await pods.list_links(pod)) == 1
        await pods.delete(name)


async def test_a_pod_that_is_deleted_by_force_returns_its_nic(pods: PodMaker) -> None:
    await pods.run("forced")
    await pods.delete("forced", force=True)  # the fixture waits until the node is as it was


async def test_an_evicted_pod_returns_its_nic(api: ApiClient, pods: PodMaker) -> None:
    await pods.run("drained")
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "drained", "namespace": pods.namespace},
    }
    await api.create(f"/api/v1/namespaces/{pods.namespace}/pods/drained/eviction", eviction)
    await pods.wait_gone("drained")


async def test_eight_claims_of_one_pod_are_all_ready(pods: PodMaker) -> None:
    pod = await pods.run("batch", claims=8)
    assert len(await pods.list_links(pod)) == 8
    for claim in await pods.fetch_claims(pod):
        (device,) = claim["status"]["devices"]
        assert {c["type"]: c["status"] for c in device["conditions"]}["Ready"] == "True"


async def test_eight_nics_of_one_claim_are_all_in_the_pod(pods: PodMaker) -> None:
    pod = await pods.run("wide", nics=8)
    assert len(await pods.list_links(pod)) == 8


async def test_the_container_finds_metadata_of_its_nic(live: LiveCluster, pods: PodMaker) -> None:
    pod = await pods.run("reader")
    assert live.access.hands is not None
    container = await live.access.hands.inspect_container(pod["metadata"]["uid"])
    assert container is not None
    text = await live.access.hands.run("cat", f"/proc/{container.id}/root{METADATA}")
    newest, _ = json.JSONDecoder().raw_decode(text)  # one document for each version of the format
    assert (await pods.list_links(pod))[0] in json.dumps(newest)


async def test_a_static_pod_cannot_claim_and_disturbs_no_other_pod(
    cluster: LocalCluster, api: ApiClient, live: LiveCluster, pods: PodMaker
) -> None:
    """Source: Kubernetes refuses static pods that refer to API objects, ResourceClaims among them."""
    folder = cluster.kubelet.static_pods
    assert folder is not None
    files = {}
    for name, templates in (("plain", []), ("claiming", ["none"])):
        pod = build_pod(name, templates, live.access.pod_image)
        pod["metadata"]["namespace"] = pods.namespace
        files[name] = folder / f"{name}.json"
        files[name].write_text(json.dumps(pod))
    node = cluster.kubelet.node
    try:
        mirror = f"/api/v1/namespaces/{pods.namespace}/pods/plain-{node}"
        await wait_until(lambda: _is_ready(api, mirror), "the static pod without a claim runs")
        pod = await pods.run("beside")
        assert len(await pods.list_links(pod)) == 1
        assert not await _is_ready(api, f"/api/v1/namespaces/{pods.namespace}/pods/claiming-{node}")
    finally:
        for file in files.values():
            file.unlink()
    await wait_until(lambda: _is_gone(api, mirror), "the static pod is gone")


async def test_a_node_that_is_removed_and_added_again_has_its_slices_again(
    cluster: LocalCluster, api: ApiClient, live: LiveCluster, pods: PodMaker
) -> None:
    node = paths.node(cluster.kubelet.node)
    old = (await api.get(node))["metadata"]["uid"]
    await cluster.stop_kubelet()
    await api.delete(node)
    await cluster.start_kubelet()
    new = (await api.get(node))["metadata"]["uid"]
    assert new != old

    async def is_owned_anew() -> bool:
        slices = await live.fetch_slices()
        owners = [owner["uid"] for item in slices for owner in item["metadata"].get("ownerReferences", ())]
        return owners == [new]

    await wait_until(is_owned_anew, "the slice belongs to the new Node", 120)
    await live.driver.wait_ready(120)
    pod = await pods.run("after")
    assert len(await pods.list_links(pod)) == 1


async def test_a_nic_can_be_asked_for_as_an_extended_resource(api: ApiClient, pods: PodMaker) -> None:
    class_ = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": f"{pods.namespace}-counted"},
        "spec": {
            "extendedResourceName": "example.com/nic",
            "selectors": [
                {"cel": {"expression": 'device.driver == "dra.net" && device.attributes["dra.net"].rdma'}}
            ],
        },
    }
    path = f"/apis/resource.k8s.io/v1/deviceclasses/{class_['metadata']['name']}"  # type: ignore[index]
    await api.apply(path, class_, field_manager="dranet-e2e")
    try:
        pod = build_pod("counted", [], pods.live.access.pod_image)
        pod["spec"]["containers"][0]["resources"] = {"limits": {"example.com/nic": "1"}}
        await pods.create(pod)
        assert len(await pods.list_links(await pods.wait_ready("counted"))) == 1
        await pods.delete("counted")
    finally:
        await api.delete(path)


async def test_a_nic_that_loses_its_cable_is_unhealthy_in_the_pods_status(
    cluster: LocalCluster, pods: PodMaker
) -> None:
    if cluster.plane.kit.kubernetes.version.startswith("1.34."):
        pytest.skip("1.34 compares the claim's own name with the pod's for it: none from a template is shown")
    pod = await pods.run("watched")

    await pods.wait_health("watched", "Healthy")
    async with pods.pulled_cable(pod):
        await pods.wait_health("watched", "Unhealthy")
    await pods.wait_health("watched", "Healthy")


async def _is_ready(api: ApiClient, path: str) -> bool:
    try:
        return is_ready(await api.get(path))
    except ClusterError as error:
        if error.reason is Reason.API_NOT_FOUND:
            return False
        raise


async def _is_gone(api: ApiClient, path: str) -> bool:
    try:
        await api.get(path)
    except ClusterError as error:
        return error.reason is Reason.API_NOT_FOUND
    return False
