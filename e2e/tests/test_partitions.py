"""A physical function or its virtual functions: the scheduler allocates one side, by our counters."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from dranet.cluster import paths
from dranet.cluster.capabilities import ask_capabilities
from dranet.cluster.client import ApiClient
from dranet.cluster.slice_plan import CreateSlice, DesiredPool, Feature, build_pages, plan_sync
from dranet.model.device import CounterUse, Device, DeviceKind
from e2e.live_cluster import LiveCluster
from e2e.objects import JsonObject
from e2e.tests.pods import RESOURCE, PodMaker, build_pod, build_request, build_spec, wait_until

DRIVER = "parts.example.com"
"""No program has this name: what is allocated is never prepared."""
PARTS = 2


@pytest_asyncio.fixture
async def part_classes(api: ApiClient, live: LiveCluster) -> AsyncIterator[None]:
    """Slices with one physical function and its virtual functions, as we write them, and a class for each."""
    node = live.access.node_name
    devices = [
        Device(
            name,
            DeviceKind.NIC,
            attributes={f"{DRIVER}/isSriovVf": name != "pf"},
            counters=CounterUse("pf", PARTS if name == "pf" else 1, PARTS),
        )
        for name in ("pf", *(f"vf-{i}" for i in range(PARTS)))
    ]
    desired = DesiredPool(DRIVER, node, f"{node}-parts", build_pages([devices]))
    creates = [write for write in plan_sync((), desired).writes if isinstance(write, CreateSlice)]
    made = [await api.create(paths.RESOURCE_SLICES, write.body) for write in creates]
    classes = [_device_class("part-pf", "false"), _device_class("part-vf", "true")]
    for one in classes:
        await api.apply(_path(one), one, field_manager="dranet-e2e")
    yield
    for one in classes:
        await api.delete(_path(one))
    for found in made:
        await api.delete(paths.resource_slice(found["metadata"]["name"]))


def _device_class(name: str, is_vf: str) -> JsonObject:
    condition = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].isSriovVf == {is_vf}'
    return {
        "apiVersion": RESOURCE,
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": condition}}]},
    }


def _path(device_class: JsonObject) -> str:
    return f"/apis/{RESOURCE}/deviceclasses/{device_class['metadata']['name']}"


async def _ask(pods: PodMaker, name: str, device_class: str) -> None:
    await pods.create_claim(name, build_spec(build_request(device_class=device_class)))
    await pods.create(build_pod(name, [], pods.image, [name]))


async def _wait_allocated(pods: PodMaker, name: str) -> None:
    async def look() -> bool:
        return bool((await pods.get_claim(name)).get("status", {}).get("allocation"))

    await wait_until(look, f"the claim of {name} is allocated")


@pytest.mark.usefixtures("part_classes")
async def test_the_scheduler_gives_out_the_physical_function_or_its_virtual_functions(
    api: ApiClient, live: LiveCluster, pods: PodMaker
) -> None:
    features = await ask_capabilities(api, DRIVER, live.access.node_name)
    assert not features.unusable & {Feature.COUNTERS}
    await _ask(pods, "vf-a", "part-vf")
    await _wait_allocated(pods, "vf-a")
    await _ask(pods, "pf", "part-pf")
    await pods.wait_unscheduled("pf")
    await _ask(pods, "vf-b", "part-vf")
    await _wait_allocated(pods, "vf-b")
    for name in ("vf-a", "vf-b"):
        await pods.delete(name, force=True)
    await _wait_allocated(pods, "pf")
    await _ask(pods, "vf-c", "part-vf")
    await pods.wait_unscheduled("vf-c")
