"""The walk that every cluster has to pass, where other people's claims come and go beside it."""

from __future__ import annotations

import asyncio

import pytest

from dranet.cluster.client import ApiClient
from dranet.errors import ClusterError
from e2e.access import Access
from e2e.basics import Basics
from e2e.live_cluster import LiveCluster
from e2e.objects import JsonObject, collection
from testbed.cluster import DRIVER_NAME
from testbed.scenario.run import Execution, StepReport
from tests.e2e.running import on_standin
from tests.support.waiting import until

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree, pytest.mark.timeout(120)]

CLAIMS = collection("resource.k8s.io/v1", "ResourceClaim", "default")
THEIRS = f"{CLAIMS}/theirs"
FIRST = "pci-0000-23-00-0"
"""The first NIC of the hardware that the slices name."""


class Reports:
    def __init__(self) -> None:
        self.said: list[StepReport] = []

    def begin(self, title: str) -> None: ...

    def end(self, report: StepReport) -> None:
        self.said.append(report)


def test_the_next_pod_waits_for_the_nic_that_was_given_back_though_another_is_free() -> None:
    """A scheduler takes the first that is free, in the order of the slices."""

    async def story(access: Access, api: ApiClient) -> None:
        reports = Reports()
        async with LiveCluster(access) as cluster:
            await api.create(CLAIMS, {**_KIND, "metadata": {"name": "theirs"}, "spec": _SPEC})
            await api.patch(f"{THEIRS}/status", {"status": {"allocation": allocate(FIRST, access.node_name)}})
            release = asyncio.create_task(release_when_other_runs(cluster, api))
            walk = Basics(cluster)
            assert await walk.walk(Execution(reports)), reports.said[-1]
            assert release.done()
            await release
        assert walk.device != FIRST
        assert (f"pod second runs with {walk.device}",) in [report.lines for report in reports.said]

    on_standin(story)


async def release_when_other_runs(cluster: LiveCluster, api: ApiClient) -> None:
    async def runs() -> bool:
        try:
            return bool((await cluster.fetch_pod("first"))["status"].get("phase") == "Running")
        except ClusterError:  # not made yet
            return False

    await until(runs, "the first pod runs")
    await api.delete(THEIRS)


def allocate(device: str, node: str) -> JsonObject:
    return {
        "devices": {"results": [{"request": "nic", "driver": DRIVER_NAME, "pool": node, "device": device}]}
    }


_KIND = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
_SPEC = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "dranet-e2e"}}]}}
