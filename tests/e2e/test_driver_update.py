"""What the suite judges of the driver's pods while they change, on the stand-in's DaemonSet controller."""

from __future__ import annotations

import contextlib

import pytest

from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.cluster.messages import EventType
from e2e.access import Access
from e2e.installation import NAME, POD_LABELS, SYSTEM_NAMESPACE
from e2e.live_cluster import LiveCluster
from e2e.live_driver import LiveDriver, is_ready
from e2e.objects import JsonObject, collection
from tests.e2e.running import on_standin
from tests.support.waiting import until

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree, pytest.mark.timeout(120)]

PODS = paths.pods(SYSTEM_NAMESPACE)


def test_an_update_with_surge_never_leaves_a_moment_without_a_ready_pod() -> None:
    """Judged by every state that the API server has gone through, not by looks now and then."""

    async def story(access: Access, api: ApiClient) -> None:
        async with LiveCluster(access) as cluster:
            await cluster.driver.start({})
            await wait_ready(cluster.driver)
            listed = await api.list(PODS, label_selector=POD_LABELS)
            await cluster.driver.roll(60)
            states = await read_states(api, listed)
        assert max(len(pods) for pods in states) == 2, "old and new were there at once"
        assert [any(map(is_ready, pods)) for pods in states] == [True] * len(states)

    on_standin(story)


def test_a_pod_that_is_not_ready_is_told_though_the_counts_do_not_know_it_yet() -> None:
    async def story(access: Access, api: ApiClient) -> None:
        async with LiveCluster(access) as cluster:
            await cluster.driver.start({})
            await wait_ready(cluster.driver)
            (pod,) = await cluster.driver.fetch_pods()
            counted = await api.get(f"{collection('apps/v1', 'DaemonSet', SYSTEM_NAMESPACE)}/{NAME}")
            metadata = {"name": "killed", "labels": pod["metadata"]["labels"]}
            unready = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]}
            await api.create(PODS, unready)
            try:
                assert counted["status"]["numberReady"] == 1
                assert (await cluster.driver.check_ready()).startswith("not ready: killed; ")
            finally:  # no kubelet plays its end
                await api.delete(f"{PODS}/killed", grace_period_seconds=0)
            assert not await cluster.driver.check_ready()

    on_standin(story)


async def wait_ready(driver: LiveDriver) -> None:
    async def look() -> bool:
        return not await driver.check_ready()

    await until(look, "the driver is ready")


async def read_states(api: ApiClient, listed: JsonObject) -> list[list[JsonObject]]:
    """The driver's pods after each change since they were listed, up to the one pod that is left now."""
    pods = {pod["metadata"]["uid"]: pod for pod in listed["items"]}
    last = await api.list(PODS, label_selector=POD_LABELS)
    (left,) = last["items"]
    states = [list(pods.values())]
    version = listed["metadata"]["resourceVersion"]
    watch = api.watch(PODS, resource_version=version, label_selector=POD_LABELS)
    async with contextlib.aclosing(watch) as events:
        async for event in events:
            uid = event.object["metadata"].get("uid", "")
            if event.type is EventType.DELETED:
                del pods[uid]
            elif event.type is not EventType.BOOKMARK:
                pods[uid] = event.object
            states.append(list(pods.values()))
            if set(pods) == {left["metadata"]["uid"]}:
                return states
    raise AssertionError("the watch ended before the last change")
