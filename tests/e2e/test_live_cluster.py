"""What the suite does to a cluster, seen from behind its back: everything that it makes goes again."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from dranet.cluster.client import ApiClient
from e2e import kubeconfig
from e2e.access import Access, E2eFailed, LaneUnavailable
from e2e.basics import Basics
from e2e.installation import build_installation
from e2e.live_cluster import LiveCluster, find_installed
from e2e.objects import collection
from e2e.ownership import check_ours
from testbed.scenario.run import Execution, StepReport
from testbed.scenario.scenario import known_scenarios
from tests.e2e.running import list_names, on_standin, start_command

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree, pytest.mark.timeout(120)]


class _Silent:
    def begin(self, title: str) -> None: ...

    def end(self, report: StepReport) -> None: ...


def test_a_walk_leaves_nothing_on_the_cluster() -> None:
    async def story(access: Access, api: ApiClient) -> None:
        before = await list_names(api)
        async with LiveCluster(access, with_classes=True) as cluster:
            assert await Basics(cluster).walk(Execution(_Silent())), cluster.driver.log_tail()
            assert len(await list_names(api)) > len(before) + 10
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


def test_nothing_is_installed_where_an_object_of_the_installation_is_somebody_elses() -> None:
    async def story(access: Access, api: ApiClient) -> None:
        for kind in ("Namespace", "DeviceClass", "ClusterRole"):
            ours = next(item for item in build_installation(access, {}) if item["kind"] == kind)
            name = ours["metadata"]["name"]
            path = collection(ours["apiVersion"], kind)
            theirs = {**ours, "metadata": {"name": name}}
            there = await api.create(path, theirs)
            before = await list_names(api)
            async with LiveCluster(access, with_classes=True) as cluster:
                with pytest.raises(E2eFailed, match=f"{kind} {name} is there, and not the suite's"):
                    await cluster.driver.start({})
            assert await list_names(api) == before
            assert (await api.get(f"{path}/{name}"))["metadata"] == there["metadata"]
            await api.delete(f"{path}/{name}")

    on_standin(story)


def test_an_installation_of_the_driver_is_replaced_where_somebody_has_said_so() -> None:
    async def story(_: Access, api: ApiClient) -> None:
        labels = {"app.kubernetes.io/name": "dranet"}
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
        path = collection(role["apiVersion"], role["kind"])
        theirs = {**role, "metadata": {"name": "dranet", "labels": labels}}
        await api.create(path, theirs)
        with pytest.raises(E2eFailed, match="ClusterRole dranet is there"):
            await check_ours(api, theirs)
        await check_ours(api, theirs, may_replace=True)
        somebody = {**role, "metadata": {"name": "nodes"}}
        await api.create(path, somebody)
        with pytest.raises(E2eFailed, match="ClusterRole nodes is there"):
            await check_ours(api, somebody, may_replace=True)

    on_standin(story)


def test_the_driver_runs_on_the_one_node_that_is_looked_at() -> None:
    """By the node's name, which is what the DaemonSet's controller compares."""
    access = Access("a lane", Path("kubeconfig"), "node-1", "registry/dranet:1", "busybox")
    (daemon_set,) = (item for item in build_installation(access, {}) if item["kind"] == "DaemonSet")
    affinity = daemon_set["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}


class TestTheCommandOnAClusterThatIsThere:
    """``KUBECONFIG=... make e2e`` as somebody types it; the cluster is the stand-in."""

    def test_it_says_what_it_will_do_does_it_and_leaves_nothing(self) -> None:
        async def story(access: Access, api: ApiClient) -> None:
            before = await list_names(api)
            process = await start_command(access)
            said, errors = await process.communicate()
            assert process.returncode == 0, said.decode() + errors.decode()
            first, _, rest = said.decode().partition("basics: ")
            assert f"e2e: kubeconfig: {api.url}, Kubernetes" in first
            assert f"runs the driver on node {access.node_name} alone" in first
            assert "takes everything away at the end" in first
            assert rest.count("skipped: this lane cannot reach the node") == 2, "it has no hands there"
            assert rest.endswith(f"1 passed, 0 failed, {len(known_scenarios())} skipped\n")
            assert await list_names(api) == before

        on_standin(story)

    def test_ctrl_c_ends_it_in_order(self) -> None:
        async def story(access: Access, api: ApiClient) -> None:
            before = await list_names(api)
            process = await start_command(access, "basics")
            assert process.stdout is not None
            async with asyncio.timeout(60):
                while b"A pod that claims one NIC" not in (line := await process.stdout.readline()):
                    assert line, "it ended before"
            process.send_signal(signal.SIGINT)
            said, errors = await process.communicate()
            assert process.returncode == 130, said.decode() + errors.decode()
            assert b"Traceback" not in errors
            assert await list_names(api) == before

        on_standin(story)

    def test_where_nothing_of_what_was_asked_for_can_be_run_that_is_no_success(self) -> None:
        async def story(access: Access, api: ApiClient) -> None:
            before = await list_names(api)
            process = await start_command(access, "eight-nics")
            said, _ = await process.communicate()
            assert process.returncode == 3
            assert b"eight-nics  skipped" in said
            assert said.endswith(b"0 passed, 0 failed, 1 skipped\n")
            assert await list_names(api) == before

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
        assert await kubeconfig.ask_before_installing(api)
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
