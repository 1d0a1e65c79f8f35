"""What the suite does to a cluster, seen from behind its back: everything that it makes goes again."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Awaitable, Callable

import pytest

from dranet.cluster.client import ApiClient
from dranet.testbed.isolation import WORK_DIR
from dranet.testbed.node.hardware import load_hardware
from dranet.testbed.scenario.run import StepReport, Telling
from e2e import kubeconfig
from e2e.access import Access, E2eFailed, LaneUnavailable
from e2e.basics import Basics
from e2e.live_cluster import LiveCluster, find_installed
from e2e.objects import collection
from e2e.standin import open_standin
from tests.waiting import until

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree, pytest.mark.timeout(120)]

_KINDS = [
    ("v1", "ConfigMap"),
    ("v1", "Pod"),
    ("v1", "ServiceAccount"),
    ("apps/v1", "DaemonSet"),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"),
    ("resource.k8s.io/v1", "DeviceClass"),
    ("resource.k8s.io/v1", "ResourceClaim"),
    ("resource.k8s.io/v1", "ResourceClaimTemplate"),
]


class _Silent:
    def begin(self, title: str) -> None: ...

    def end(self, report: StepReport) -> None: ...


def on_standin(story: Callable[[Access, ApiClient], Awaitable[None]]) -> None:
    async def run() -> None:
        async with (
            open_standin(load_hardware("two-nic"), WORK_DIR) as access,
            ApiClient.from_kubeconfig(access.kubeconfig, user_agent="test") as api,
        ):
            await story(access, api)

    asyncio.run(run())


async def list_names(api: ApiClient) -> list[str]:
    """Everything of the kinds that the suite makes, and the namespaces."""
    found = []
    for api_version, kind in [*_KINDS, ("v1", "Namespace")]:
        answer = await api.list(collection(api_version, kind))
        found += [f"{kind} {item['metadata']['name']}" for item in answer.get("items", ())]
    return sorted(found)


def test_a_walk_leaves_nothing_on_the_cluster() -> None:
    async def story(access: Access, api: ApiClient) -> None:
        before = await list_names(api)
        async with LiveCluster(access, with_classes=True) as cluster:
            assert await Basics(cluster).walk(Telling(_Silent())), cluster.driver.log_tail()
            assert len(await list_names(api)) > len(before) + 10
        assert await list_names(api) == before

    on_standin(story)


def test_without_hands_on_the_node_the_same_walk_goes_by_the_api_server_alone() -> None:
    async def story(access: Access, _: ApiClient) -> None:
        plain = dataclasses.replace(access, hands=None, layout=None)
        async with LiveCluster(plain) as cluster:
            basics = Basics(cluster)
            assert await basics.walk(Telling(_Silent())), cluster.driver.log_tail()
            assert basics.device.startswith("pci-")
            assert basics.skipped == ["a look into the pod: this lane cannot reach the node"] * 2

    on_standin(story)


def test_an_interrupted_walk_leaves_nothing_on_the_cluster() -> None:
    async def story(access: Access, api: ApiClient) -> None:
        before = await list_names(api)

        async def walk() -> None:
            async with LiveCluster(access) as cluster:
                await Basics(cluster).walk(Telling(_Silent()))

        task = asyncio.create_task(walk())

        async def pod_is_there() -> bool:
            return "Pod first" in await list_names(api)

        await until(pod_is_there, "the first pod")
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert await list_names(api) == before

    on_standin(story)


def test_what_is_somebody_elses_is_not_overwritten() -> None:
    async def story(access: Access, api: ApiClient) -> None:
        theirs = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "rail"}}
        await api.create(collection("resource.k8s.io/v1", "DeviceClass"), {**theirs, "spec": {}})
        async with LiveCluster(access) as cluster:
            with pytest.raises(E2eFailed, match="DeviceClass rail is there, and not the suite's"):
                await cluster.apply([{**theirs, "spec": {"selectors": []}}])
        assert "DeviceClass rail" in await list_names(api)

    on_standin(story)


def test_a_cluster_that_has_the_driver_is_not_touched_unless_somebody_says_so() -> None:
    async def story(_: Access, api: ApiClient) -> None:
        assert await find_installed(api) == ""
        metadata = {"name": "mine", "namespace": "default", "labels": {"app.kubernetes.io/name": "dranet"}}
        await api.create(
            collection("apps/v1", "DaemonSet", "default"),
            {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata},
        )
        with pytest.raises(LaneUnavailable, match="DaemonSet default/mine is there already"):
            await kubeconfig.ask_before_installing(api)
        os.environ["E2E_YES"] = "1"
        await kubeconfig.ask_before_installing(api)
        await api.delete(collection("apps/v1", "DaemonSet", "default") + "/mine")

    on_standin(story)


def test_the_node_and_the_version_are_read_from_the_cluster() -> None:
    async def story(access: Access, api: ApiClient) -> None:
        assert (await kubeconfig.check_version(api)).lstrip("v").startswith("1.")
        assert await kubeconfig.find_node(api, "") == access.node_name
        with pytest.raises(
            LaneUnavailable, match="node elsewhere takes no pods; those that do: testbed-node"
        ):
            await kubeconfig.find_node(api, "elsewhere")

    on_standin(story)
