"""GPUs beside a vendor's DRA driver and a vendor's CDI specs: never offered twice, and usable."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dranet.cluster import paths
from testbed.cluster import NODE_NAME, Testbed
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.runtimes import stand_in
from tests.support.objects import device_class
from tests.support.waiting import until

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree]

DEADLINE = 30.0
VENDOR = "gpu.nvidia.com"
FIRST = "gpu-0000-1b-00-0"

MANIFESTS: list[dict[str, Any]] = [
    device_class("gpu", 'device.attributes["dra.net"].type == "gpu"'),
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "gpu"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
    },
    {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "worker"},
        "spec": {
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}],
            "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "gpu"}]}}],
        },
    },
]


def vendor_slice(*addresses: str) -> dict[str, Any]:
    """As NVIDIA's driver publishes its GPUs."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "vendor"},
        "spec": {
            "driver": VENDOR,
            "nodeName": NODE_NAME,
            "pool": {"name": NODE_NAME, "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {
                    "name": f"gpu-{index}",
                    "attributes": {"resource.kubernetes.io/pciBusID": {"string": address}},
                }
                for index, address in enumerate(addresses)
            ],
        },
    }


@asynccontextmanager
async def a_node(**settings: str) -> AsyncIterator[Testbed]:
    async with Testbed(load_hardware("dgx-h100"), stand_in, WORK_DIR, settings) as testbed:
        yield testbed


async def start(testbed: Testbed) -> None:
    await testbed.driver.start()
    await testbed.driver.wait_ready(DEADLINE)


async def run_worker(testbed: Testbed) -> None:
    await testbed.apply(MANIFESTS)
    async with asyncio.timeout(DEADLINE):
        await testbed.kubelet.wait_running(testbed.pod_uid("worker"))


async def list_gpus(testbed: Testbed) -> set[str]:
    devices = [device["name"] for item in await testbed.fetch_slices() for device in item["spec"]["devices"]]
    return {name for name in devices if name.startswith("gpu-")}


async def wait_gpus(testbed: Testbed, wanted: set[str]) -> None:
    async def are_so() -> bool:
        return await list_gpus(testbed) == wanted

    await until(are_so, f"the GPUs in the slices are {wanted}")


def test_when_a_vendors_driver_comes_our_gpus_go_but_for_the_one_that_a_pod_has() -> None:
    async def scenario() -> None:
        async with a_node() as testbed:
            await start(testbed)
            assert len(await list_gpus(testbed)) == 8
            await run_worker(testbed)
            container = testbed.containers("worker")["main"]
            assert container.devices["/dev/nvidia0"] == "195:0"
            assert container.env["NVIDIA_VISIBLE_DEVICES"] == "void"

            await testbed.api.create(paths.RESOURCE_SLICES, vendor_slice("0000:1b:00.0"))
            await wait_gpus(testbed, {FIRST})
            assert len([s for s in await testbed.fetch_slices() if s["spec"]["devices"]]) > 0, "NICs stay"

            await testbed.delete_pod("worker")
            await wait_gpus(testbed, set())

    asyncio.run(scenario())


def test_when_the_vendors_driver_has_been_gone_for_a_while_our_gpus_come_back() -> None:
    async def scenario() -> None:
        async with a_node(gpu_return_seconds="1", rescan_seconds="1") as testbed:
            await testbed.api.create(paths.RESOURCE_SLICES, vendor_slice("0000:1b:00.0"))
            await start(testbed)
            assert await list_gpus(testbed) == set()
            await testbed.api.delete(paths.resource_slice("vendor"))

            async def are_back() -> bool:
                return len(await list_gpus(testbed)) == 8

            await until(are_back, "all GPUs are offered")

    asyncio.run(scenario())


def test_where_a_device_plugin_has_the_gpus_not_one_is_ever_offered() -> None:
    async def scenario() -> None:
        async with a_node() as testbed:
            await testbed.api.patch(
                paths.node_status(NODE_NAME), {"status": {"allocatable": {"nvidia.com/gpu": "8"}}}
            )
            await start(testbed)
            assert await list_gpus(testbed) == set()
            (generation,) = {item["spec"]["pool"]["generation"] for item in await testbed.fetch_slices()}
            assert generation == 1, "nothing was published that had to be taken back"

    asyncio.run(scenario())


def test_a_device_plugin_that_comes_later_is_noticed_before_a_claim_gets_its_gpu() -> None:
    async def scenario() -> None:
        async with a_node() as testbed:
            await start(testbed)
            await testbed.api.patch(
                paths.node_status(NODE_NAME), {"status": {"allocatable": {"nvidia.com/gpu": "8"}}}
            )
            await testbed.apply(MANIFESTS)

            async def is_refused() -> bool:
                events = await testbed.fetch_events("worker")
                return any("left to the device plugin of nvidia.com/gpu" in e["message"] for e in events)

            await until(is_refused, "an Event says why the pod does not get the GPU")
            await wait_gpus(testbed, set())

    asyncio.run(scenario())


def test_an_api_server_that_is_away_at_the_start_leads_to_no_slices_without_the_gpus() -> None:
    async def scenario() -> None:
        async with a_node() as testbed:
            testbed.server.fail_next("GET", paths.NODES, 503, count=4)
            await testbed.driver.start()
            await testbed.driver.wait_ready(DEADLINE)
            assert len(await list_gpus(testbed)) == 8
            (generation,) = {item["spec"]["pool"]["generation"] for item in await testbed.fetch_slices()}
            assert generation == 1

    asyncio.run(scenario())


def test_an_operator_who_wants_them_offered_always_gets_them_offered() -> None:
    async def scenario() -> None:
        async with a_node(publish_gpus="always") as testbed:
            await testbed.api.create(paths.RESOURCE_SLICES, vendor_slice("0000:1b:00.0"))
            await start(testbed)
            assert len(await list_gpus(testbed)) == 8

    asyncio.run(scenario())


def test_a_driver_that_starts_anew_keeps_its_gpus_in_the_slices_all_the_time() -> None:
    async def scenario() -> None:
        async with a_node() as testbed:
            await start(testbed)
            before = {item["metadata"]["resourceVersion"] for item in await testbed.fetch_slices()}
            await testbed.driver.stop()
            await start(testbed)
            assert {item["metadata"]["resourceVersion"] for item in await testbed.fetch_slices()} == before

    asyncio.run(scenario())


def test_a_container_gets_what_the_vendors_cdi_spec_adds() -> None:
    async def scenario() -> None:
        async with a_node() as testbed:
            edits = {
                "deviceNodes": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}],
                "env": ["FROM_THE_VENDOR=yes"],
            }
            spec = {
                "cdiVersion": "0.5.0",
                "kind": "nvidia.com/gpu",
                "devices": [{"name": "0", "containerEdits": edits}],
            }
            (testbed.places.cdi_dir / "nvidia.json").write_text(json.dumps(spec))
            await start(testbed)
            await run_worker(testbed)
            container = testbed.containers("worker")["main"]
            assert container.devices["/dev/nvidia0"] == "195:0"
            assert container.env["FROM_THE_VENDOR"] == "yes"
            (claim,) = await testbed.fetch_pod_claims("worker")
            (status,) = claim["status"]["devices"]
            (prepared,) = [c for c in status["conditions"] if c["type"] == "Prepared"]
            assert prepared["message"] == "given by the vendor's CDI device nvidia.com/gpu=0"

    asyncio.run(scenario())


def test_a_node_that_has_just_booted_offers_its_nics_at_once_and_its_gpus_when_nobody_has_come() -> None:
    async def scenario() -> None:
        async with a_node(gpu_return_seconds="4", rescan_seconds="1") as testbed:
            (testbed.node.procfs_root / "uptime").write_text("1.00 8.00\n")
            await start(testbed)
            assert await testbed.fetch_slices() != []
            assert await list_gpus(testbed) == set()

            async def are_there() -> bool:
                return len(await list_gpus(testbed)) == 8

            await until(are_there, "all GPUs are offered")

            await testbed.driver.stop()
            await start(testbed)
            assert len(await list_gpus(testbed)) == 8, "they were ours before"

    asyncio.run(scenario())


def test_a_gpu_that_is_cut_into_parts_is_not_offered() -> None:
    async def scenario() -> None:
        async with a_node() as testbed:
            capabilities = testbed.node.procfs_root / "driver/nvidia/capabilities"
            (capabilities / "gpu0/mig/gi1").mkdir(parents=True)
            await start(testbed)
            found = await list_gpus(testbed)
            assert len(found) == 7
            assert FIRST not in found

    asyncio.run(scenario())


def test_a_driver_that_starts_while_the_api_server_is_away_takes_no_gpu_back_when_it_returns() -> None:
    async def scenario() -> None:
        async with a_node(rescan_seconds="1") as testbed:
            await start(testbed)
            before = {item["metadata"]["resourceVersion"] for item in await testbed.fetch_slices()}
            await testbed.driver.stop()
            testbed.server.fail_next("GET", paths.RESOURCE_SLICES, 503, count=5)
            testbed.server.fail_next("GET", paths.NODES, 503, count=5)
            await start(testbed)
            assert {item["metadata"]["resourceVersion"] for item in await testbed.fetch_slices()} == before

    asyncio.run(scenario())


def count_watches_of_slices(testbed: Testbed) -> int:
    asked = [request for request in testbed.server.requests if "dranet" in request.agent]
    return sum(one.method == "WATCH" and "resourceslices" in one.path for one in asked)


def test_a_node_with_gpus_follows_the_slices_of_others_too() -> None:
    async def scenario() -> None:
        async with a_node() as testbed:
            await start(testbed)
            assert len(await list_gpus(testbed)) == 8
            assert count_watches_of_slices(testbed) == 2

    asyncio.run(scenario())


def test_a_node_without_gpus_follows_its_own_slices_alone() -> None:
    async def scenario() -> None:
        async with a_node() as testbed:
            kinds = (testbed.node.sysfs_root / "bus/pci/devices").glob("*/class")
            for kind in [kind for kind in kinds if kind.read_text().startswith("0x0302")]:
                kind.write_text("0x088000")
            await start(testbed)
            assert await list_gpus(testbed) == set()
            assert await testbed.fetch_slices() != []
            assert count_watches_of_slices(testbed) == 1

    asyncio.run(scenario())
