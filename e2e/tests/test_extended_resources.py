"""Pods without a claim: the scheduler makes it from the extended resources that they ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from dranet.cluster.client import ApiClient
from e2e.objects import JsonObject
from e2e.tests.pods import RESOURCE, PodMaker, build_pod, wait_until

_EXAMPLE = Path(__file__).parents[2] / "examples/numa-node-classes.yaml"


@pytest_asyncio.fixture
async def numa_classes(api: ApiClient) -> AsyncIterator[None]:
    """The classes of the example, for the GPUs of this driver."""
    items = yaml.safe_load_all(_EXAMPLE.read_text().replace("gpu.nvidia.com", "dra.net"))
    classes = [item for item in items if item["kind"] == "DeviceClass"]
    paths = [f"/apis/{RESOURCE}/deviceclasses/{item['metadata']['name']}" for item in classes]
    for path, item in zip(paths, classes, strict=True):
        await api.apply(path, item, field_manager="dranet-e2e")
    yield
    for path in paths:
        await api.delete(path)


@pytest.mark.usefixtures("numa_classes")
async def test_classes_of_one_numa_node_bring_gpu_and_nic_together_without_a_claim(
    pods: PodMaker,
) -> None:
    for number in (0, 1):
        name = f"on-numa-{number}"
        pod = build_pod(name, [], pods.image)
        limits = {f"example.com/gpu-numa-{number}": "1", f"example.com/rdma-numa-{number}": "1"}
        pod["spec"]["containers"][0]["resources"] = {"limits": limits}
        await pods.create(pod)
        assert len(await pods.list_links(await pods.wait_ready(name))) == 1

        async def find_distances(name: str = name) -> list[str]:
            return _list_distances(await _fetch_claim(pods, name))

        (distance,) = await wait_until(find_distances, "the claim has its alignment")
        assert distance in ("PIX", "PXB", "PHB", "NODE")


async def _fetch_claim(pods: PodMaker, name: str) -> JsonObject:
    status = (await pods.get(name))["status"]["extendedResourceClaimStatus"]
    return await pods.get_claim(status["resourceClaimName"])


def _list_distances(claim: JsonObject) -> list[str]:
    entries = claim.get("status", {}).get("devices", ())
    return [
        entry["data"]["alignment"]["distance"] for entry in entries if "alignment" in entry.get("data", {})
    ]
