"""Quotas for NICs: the first recipe of ``docs/guides/quotas-and-autoscaling.md``, on real programs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio

from dranet.cluster.client import ApiClient
from dranet.errors import ClusterError
from e2e.objects import JsonObject, collection
from e2e.tests.guides import read_block
from e2e.tests.pods import NIC_CLASS, PodMaker, build_request, wait_until

_KEY = f"{NIC_CLASS}.deviceclass.resource.k8s.io/devices"


class TestResourceQuota:
    @pytest_asyncio.fixture
    async def quota(self, pods: PodMaker, api: ApiClient) -> AsyncIterator[str]:
        """The guide's quota with room for two NICs; its path."""
        (item,) = read_block("quotas-and-autoscaling.md", "kind: ResourceQuota")
        assert _KEY in item["spec"]["hard"]
        item["spec"]["hard"][_KEY] = "2"
        quotas = collection("v1", "ResourceQuota", pods.namespace)
        await api.create(quotas, item)
        path = f"{quotas}/{item['metadata']['name']}"

        async def is_counted() -> bool:
            return _KEY in (await api.get(path)).get("status", {}).get("used", {})

        await wait_until(is_counted, "the quota is counted")
        yield path

    async def test_claims_up_to_the_quota_are_made_and_no_more(
        self, pods: PodMaker, api: ApiClient, quota: str
    ) -> None:
        await pods.create_claim("two", {"devices": {"requests": [build_request(count=2)]}})
        await wait_until(partial(_uses, api, quota, "2"), "both NICs count")
        with pytest.raises(ClusterError, match=r"exceeded quota: fabric, requested: .*=1, used: .*=2"):
            await pods.create_claim("third", {"devices": {"requests": [build_request()]}})

    @pytest.mark.parametrize(
        ("request_", "count"),
        [
            (build_request(allocationMode="All"), "32"),
            (
                {
                    "name": "nic",
                    "firstAvailable": [
                        {"name": name, "deviceClassName": NIC_CLASS, "count": count}
                        for name, count in (("few", 1), ("many", 3))
                    ],
                },
                "3",
            ),
        ],
        ids=["all", "first-available"],
    )
    async def test_what_a_request_counts(
        self, pods: PodMaker, quota: str, request_: JsonObject, count: str
    ) -> None:
        assert quota
        with pytest.raises(ClusterError, match=f"exceeded quota: fabric, requested: .*={count}"):
            await pods.create_claim("much", {"devices": {"requests": [request_]}})

    async def test_a_pod_above_the_quota_waits_with_the_reason_and_starts_when_there_is_room(
        self, pods: PodMaker, api: ApiClient, quota: str
    ) -> None:
        await pods.run("first", nics=2)
        await pods.make("second")
        await pods.wait_event("second", "FailedResourceClaimCreation")
        assert "exceeded quota: fabric" in await pods.explain("second")
        await pods.delete("first")
        await wait_until(partial(_uses, api, quota, "0", "1"), "the claim of the first pod no longer counts")
        await pods.wait_ready("second")


async def _uses(api: ApiClient, quota: str, *counts: str) -> bool:
    return (await api.get(quota))["status"]["used"][_KEY] in counts
