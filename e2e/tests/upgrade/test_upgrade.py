"""Kubernetes is upgraded under a running driver: the control plane over the same etcd, then the kubelet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from e2e.cluster.controlplane import ControlPlaneKit
from e2e.cluster.local import LocalCluster
from e2e.live_cluster import LiveCluster
from e2e.live_driver import is_ready, read_restarts
from e2e.objects import JsonObject
from e2e.tests.pods import PodMaker, wait_until


@dataclass(frozen=True, slots=True)
class Kept:
    """What an upgrade must leave as it is."""

    pod: tuple[str, int]
    """The uid and the restarts of the pod that has a NIC."""
    links: tuple[str, ...]
    driver: tuple[str, int]


async def test_an_upgrade_leaves_the_driver_running_and_the_pods_their_nics(
    cluster: LocalCluster,
    newer: tuple[ControlPlaneKit, ...],
    api: ApiClient,
    live: LiveCluster,
    pods: PodMaker,
) -> None:
    """From the oldest version over each version that is built to the newest.

    Kubernetes supports upgrades of one minor version at a time. The programs of 1.35 are not built here, so
    the first step is from 1.34 to 1.36, or to 1.37 where 1.36 is not built either.
    """
    await pods.run("keeper")
    before = await _observe(live, pods)
    for kit in newer:
        upgraded, version = cluster.with_kit(kit), kit.kubernetes.version
        slices = await live.fetch_slices()

        await upgraded.plane.restart()
        await _check_serving(live, pods, f"new-control-plane-{version}")
        assert await _observe(live, pods) == before
        assert _list_uids(await live.fetch_slices()) == _list_uids(slices)

        await upgraded.stop_kubelet()
        await upgraded.start_kubelet()
        await _wait_kubelet(api, upgraded)
        await _wait_published(live, slices)  # a kubelet that starts deletes the slices of its node
        await _check_serving(live, pods, f"new-kubelet-{version}")
        assert await _observe(live, pods) == before

    await _check_watch(api, live)
    await _check_health(pods)
    assert await _observe(live, pods) == before


async def _observe(live: LiveCluster, pods: PodMaker) -> Kept:
    pod = await pods.wait_ready("keeper")
    (driver,) = await live.driver.fetch_pods()
    await live.driver.wait_ready(120)
    return Kept(
        pod=_identify(pod),
        links=tuple(await pods.list_links(pod)),
        driver=_identify(driver),
    )


def _identify(pod: JsonObject) -> tuple[str, int]:
    return pod["metadata"]["uid"], read_restarts(pod)


async def _check_serving(live: LiveCluster, pods: PodMaker, name: str) -> None:
    """A new claim is prepared, its status is written, and its NIC returns to the node."""
    before = await live.read_host_state()
    pod = await pods.run(name)
    assert len(await pods.list_links(pod)) == 1

    async def is_reported() -> bool:
        (claim,) = await pods.fetch_claims(pod)
        conditions = [one for entry in claim["status"].get("devices", ()) for one in entry["conditions"]]
        return any((one["type"], one["status"]) == ("Ready", "True") for one in conditions)

    await wait_until(is_reported, "the claim is ready in its status")
    await pods.delete(name)

    async def find_difference() -> str:
        return "\n".join(before.differences(await live.read_host_state()))

    await wait_until(find_difference, "the NIC is back on the node")


def _list_uids(slices: Sequence[JsonObject]) -> list[str]:
    return [item["metadata"]["uid"] for item in slices]


async def _wait_kubelet(api: ApiClient, cluster: LocalCluster) -> None:
    """Until the Node is ready and has the version of the cluster's programs."""

    async def has_version() -> bool:
        node = await api.get(paths.node(cluster.kubelet.node))
        version = node["status"]["nodeInfo"]["kubeletVersion"]
        return is_ready(node) and bool(version == f"v{cluster.plane.kit.kubernetes.version}")

    await wait_until(has_version, "the node has the kubelet's version")


async def _wait_published(live: LiveCluster, slices: Sequence[JsonObject]) -> None:
    async def is_published() -> bool:
        found = await live.fetch_slices()
        return [one["spec"]["devices"] for one in found] == [one["spec"]["devices"] for one in slices]

    await wait_until(is_published, "the devices are published again")


async def _check_watch(api: ApiClient, live: LiveCluster) -> None:
    """The driver notices that its slice was deleted and publishes it again."""
    slices = await live.fetch_slices()
    for item in slices:
        await api.delete(paths.resource_slice(item["metadata"]["name"]))
    await _wait_published(live, slices)


async def _check_health(pods: PodMaker) -> None:
    """The newest kubelet shows the health of devices by default, the oldest does not."""
    pod = await pods.wait_health("keeper", "Healthy")
    async with pods.pulled_cable(pod):
        await pods.wait_health("keeper", "Unhealthy")
    await pods.wait_health("keeper", "Healthy")
