"""Quotas for NICs: the recipes of ``docs/guides/quotas-and-autoscaling.md``, on real programs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from dranet.cluster.client import ApiClient
from dranet.errors import ClusterError
from e2e.live_cluster import LiveCluster
from e2e.live_driver import is_ready
from e2e.objects import JsonObject, collection
from e2e.tests.kueue import open_kueue
from e2e.tests.pods import NIC_CLASS, PodMaker, build_pod, build_request, build_spec, wait_until
from e2e.tests.shell import Shell

_ROOT = Path(__file__).parents[2]
_GUIDE = (_ROOT / "docs/guides/quotas-and-autoscaling.md").read_text()
_BLOCKS = re.findall(r"^```yaml\n(.*?)^```", _GUIDE, re.MULTILINE | re.DOTALL)
_KEY = f"{NIC_CLASS}.deviceclass.resource.k8s.io/devices"
_KUEUE = "kueue.x-k8s.io/v1beta2"
_QUEUE = "training"
_MANAGED = {"kueue.x-k8s.io/queue-name": _QUEUE}


def _find_block(word: str) -> JsonObject:
    (found,) = [text for text in _BLOCKS if word in text]
    item: JsonObject = yaml.safe_load(found)
    return item


# --- ResourceQuota ---


class TestResourceQuota:
    @pytest_asyncio.fixture
    async def quota(self, pods: PodMaker, api: ApiClient) -> AsyncIterator[str]:
        """The guide's quota with room for two NICs; its path."""
        item = _find_block("kind: ResourceQuota")
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


# --- Kueue ---


@pytest_asyncio.fixture(scope="module")
async def kueue(live: LiveCluster, shell: Shell) -> AsyncIterator[None]:
    configuration = _find_block("deviceClassMappings")
    async with open_kueue(shell, live.access.pod_image, yaml.safe_dump(configuration)):
        yield


@pytest_asyncio.fixture
async def queue(pods: PodMaker, api: ApiClient) -> AsyncIterator[None]:
    """The queues of ``examples/kueue.yaml``, with quota for two NICs."""
    items = [item for item in yaml.safe_load_all((_ROOT / "examples/kueue.yaml").read_text()) if item]
    queues = [item for item in items if item["apiVersion"] == _KUEUE]
    assert [item["kind"] for item in queues] == ["ResourceFlavor", "ClusterQueue", "LocalQueue"]
    for resource in queues[1]["spec"]["resourceGroups"][0]["flavors"][0]["resources"]:
        resource["nominalQuota"] = 2
    paths = []
    for item in queues:
        namespace = pods.namespace if item["kind"] == "LocalQueue" else ""
        path = collection(_KUEUE, item["kind"], namespace)
        await api.create(path, item)
        paths.append(f"{path}/{item['metadata']['name']}")
    yield
    for job in (await api.list(_path_of_jobs(pods)))["items"]:
        await api.delete(f"{_path_of_jobs(pods)}/{job['metadata']['name']}", propagation_policy="Foreground")
    await wait_until(partial(_has_no_pods, api, pods), "the pods of the jobs are gone")
    for path in reversed(paths):
        await api.delete(path)


@pytest.mark.usefixtures("kueue", "queue")
class TestKueue:
    async def test_a_job_waits_for_quota_and_starts_with_its_aligned_nics(
        self, pods: PodMaker, api: ApiClient
    ) -> None:
        spec = build_spec(build_request(count=2))
        spec["devices"]["constraints"] = [{"requests": ["nic"], "matchAttribute": "dra.net/numaNode"}]
        await _create_template(pods, api, spec)
        for name in ("first", "second"):
            await api.create(_path_of_jobs(pods), _build_job(name, pods.image))
        (running,) = await wait_until(partial(_list_ready, api, pods), "one job runs")
        name = running["metadata"]["labels"]["batch.kubernetes.io/job-name"]
        assert len(await pods.list_links(running)) == 2
        waiting = {"first": "second", "second": "first"}[name]
        await wait_until(
            partial(_reports, api, pods, waiting, "insufficient unused quota for dra.net/nic"),
            "the other job waits for quota",
        )
        assert (await api.get(f"{_path_of_jobs(pods)}/{waiting}"))["spec"]["suspend"]
        await api.delete(f"{_path_of_jobs(pods)}/{name}", propagation_policy="Foreground")

        async def has_followed() -> bool:
            ready = await _list_ready(api, pods)
            return [pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] for pod in ready] == [waiting]

        await wait_until(has_followed, "the other job runs")

    async def test_a_claim_that_cannot_be_counted_is_not_admitted(
        self, pods: PodMaker, api: ApiClient
    ) -> None:
        await _create_template(pods, api, build_spec(build_request(allocationMode="All")))
        await api.create(_path_of_jobs(pods), _build_job("all", pods.image))
        text = "AllocationMode 'All' is not supported"
        await wait_until(partial(_reports, api, pods, "all", text), "Kueue names the reason")


def _path_of_jobs(pods: PodMaker) -> str:
    return collection("batch/v1", "Job", pods.namespace)


async def _create_template(pods: PodMaker, api: ApiClient, spec: JsonObject) -> None:
    path = collection("resource.k8s.io/v1", "ResourceClaimTemplate", pods.namespace)
    await api.create(path, {"metadata": {"name": "nics"}, "spec": {"spec": spec}})


def _build_job(name: str, image: str) -> JsonObject:
    pod = build_pod("", ["nics"], image)
    template = {"spec": {**pod["spec"], "restartPolicy": "Never"}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": _MANAGED},
        "spec": {"suspend": True, "template": template},
    }


async def _list_pods(api: ApiClient, pods: PodMaker) -> list[JsonObject]:
    found: list[JsonObject] = (await api.list(collection("v1", "Pod", pods.namespace)))["items"]
    return found


async def _list_ready(api: ApiClient, pods: PodMaker) -> list[JsonObject]:
    return [pod for pod in await _list_pods(api, pods) if is_ready(pod)]


async def _has_no_pods(api: ApiClient, pods: PodMaker) -> bool:
    return not await _list_pods(api, pods)


async def _reports(api: ApiClient, pods: PodMaker, job: str, text: str) -> bool:
    """Whether a condition of the job's Workload has the text."""
    found = (await api.list(collection(_KUEUE, "Workload", pods.namespace)))["items"]
    messages = [
        condition["message"]
        for workload in found
        if workload["metadata"]["ownerReferences"][0]["name"] == job
        for condition in workload.get("status", {}).get("conditions", ())
    ]
    return any(text in message for message in messages)
