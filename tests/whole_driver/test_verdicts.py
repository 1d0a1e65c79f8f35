"""Verdicts through the whole driver: said once, whoever knows the GPU and however often the driver starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest

from dranet.cluster import paths
from dranet.cluster.messages import USER_AGENT
from testbed.apiserver.faults import Trouble
from testbed.cluster import Testbed
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.runtimes import stand_in
from tests.support.objects import device_class
from tests.support.probe_port import scrape
from tests.support.waiting import until

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree]

DEADLINE = 30.0
LATE = Trouble(delay_seconds=1.5)
WORSE = "dranet_alignment_devices_worse_than_possible"
VENDOR = "gpu.nvidia.com"
JsonObject = dict[str, Any]


def class_of(name: str, driver: str) -> JsonObject:
    return device_class(name, f'device.driver == "{driver}"')


def request(name: str, device_class: str, expression: str = "true", count: int = 1) -> JsonObject:
    exactly = {
        "deviceClassName": device_class,
        "count": count,
        "selectors": [{"cel": {"expression": expression}}],
    }
    return {"name": name, "exactly": exactly}


def claim(name: str, *requests: JsonObject) -> JsonObject:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": list(requests)}},
    }


def pod(
    *claims: str,
    env: Mapping[str, str] = MappingProxyType({}),
    limits: Mapping[str, int] = MappingProxyType({}),
) -> JsonObject:
    main = {
        "name": "main",
        "image": "x",
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "resources": {
            "claims": [{"name": name} for name in claims],
            "limits": dict(limits),
        },
    }
    used = [{"name": name, "resourceClaimName": name} for name in claims]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "worker"},
        "spec": {"resourceClaims": used, "containers": [main]},
    }


CLASSES = [class_of("dranet", "dra.net"), class_of("gpu", VENDOR)]
RAIL_0 = request("nic", "dranet", 'device.attributes["dra.net"].rdmaDevice == "mlx5_0"')
RAILS = "device.attributes['dra.net'].?rdmaDevice.orValue('') in " + str(
    [f"mlx5_{number}" for number in (0, 3, 4, 5, 6, 9, 10, 11)]
)
GPU_1 = request("gpu", "gpu", 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:84:00.0"')


@asynccontextmanager
async def a_node(hardware: str = "two-nic", **settings: str) -> AsyncIterator[Testbed]:
    async with Testbed(load_hardware(hardware), stand_in, WORK_DIR, settings) as testbed:
        yield testbed


async def start(testbed: Testbed) -> None:
    await testbed.driver.start()
    await testbed.driver.wait_ready(DEADLINE)


async def run_worker(testbed: Testbed, *manifests: JsonObject) -> None:
    await testbed.apply([*CLASSES, *manifests])
    async with asyncio.timeout(DEADLINE):
        await testbed.kubelet.wait_running(testbed.pod_uid("worker"))


async def verdicts(testbed: Testbed, name: str) -> list[JsonObject]:
    found = await testbed.api.get(paths.resource_claim("default", name))
    return [
        condition
        for entry in found["status"].get("devices", ())
        for condition in entry["conditions"]
        if condition["type"] == "TopologyAligned"
    ]


async def wait_verdicts(
    testbed: Testbed, name: str, are_so: Callable[[list[JsonObject]], bool]
) -> list[JsonObject]:
    async def look() -> list[JsonObject]:
        found = await verdicts(testbed, name)
        return found if are_so(found) else []

    found: list[JsonObject] = await until(look, f"the verdicts of claim {name} are as they should be")
    return found


def is_worse(found: list[JsonObject]) -> bool:
    return [condition["status"] for condition in found] == ["False"]


async def count_worse() -> float:
    """As the driver's metrics have it."""
    text = await scrape("/metrics")
    return float(next(line for line in text.splitlines() if line.startswith(f"{WORSE} ")).split()[1])


def count_reads(testbed: Testbed, name: str) -> int:
    """How often the driver has read the claim; it does before it writes a status."""
    path = paths.resource_claim("default", name)
    return sum((r.path, r.agent) == (path, USER_AGENT) for r in testbed.server.requests)


async def say_all(testbed: Testbed, name: str, begin: Callable[[], Awaitable[object]]) -> None:
    """``begin`` a new process, until it has said all that it has to say: it has judged by all that is to be
    known, which comes late, and looked at what the claim says; and it ends by SIGTERM, which it does not with
    a word unwritten."""
    reads = count_reads(testbed, name)

    async def has_said_all() -> bool:
        return await count_worse() >= 1 and count_reads(testbed, name) > reads

    testbed.server.trouble_next("GET", paths.RESOURCE_SLICES, LATE, count=2)
    await begin()
    await until(has_said_all, "the new process has judged, and read the claim")
    await testbed.driver.stop()


def status_writes(testbed: Testbed, name: str) -> int:
    path = paths.resource_claim_status("default", name)
    return sum(r.method == "PATCH" and r.path == path for r in testbed.server.requests)


async def told(testbed: Testbed) -> list[JsonObject]:
    events = await testbed.fetch_events("worker")
    return [event for event in events if event["reason"] == "MisalignedTopology"]


def test_restarts_take_no_verdict_back_where_another_driver_gave_the_gpu() -> None:
    async def scenario() -> None:
        async with a_node(publish_gpus="never") as testbed:
            await start(testbed)
            await testbed.add_vendor(VENDOR)
            await testbed.kubelet.wait_driver(VENDOR)
            await run_worker(testbed, claim("nic", RAIL_0), claim("gpu", GPU_1), pod("nic", "gpu"))
            await check_restarts(testbed)

    asyncio.run(scenario())


def test_restarts_take_no_verdict_back_where_one_claim_has_both() -> None:
    async def scenario() -> None:
        async with a_node(publish_gpus="never") as testbed:
            await start(testbed)
            await testbed.add_vendor(VENDOR)
            await testbed.kubelet.wait_driver(VENDOR)
            await run_worker(testbed, claim("nic", RAIL_0, GPU_1), pod("nic"))
            await check_restarts(testbed)

    asyncio.run(scenario())


def test_restarts_take_no_verdict_back_where_the_kubelet_alone_knows_the_gpu() -> None:
    async def scenario() -> None:
        async with a_node(publish_gpus="never") as testbed:
            await start(testbed)
            testbed.kubelet.add_device_plugin("nvidia.com/gpu", ["GPU-2c9b7d53-a1e4-4c68-b0f3-6ad8e1f70084"])
            worker = pod("nic", env={"NVIDIA_VISIBLE_DEVICES": "all"}, limits={"nvidia.com/gpu": 1})
            await run_worker(testbed, claim("nic", RAIL_0), worker)
            await check_restarts(testbed)

    asyncio.run(scenario())


async def check_gpu_series() -> None:
    """The pod's GPU is in the series, under the names by which other exporters know it."""
    text = await scrape("/metrics")
    named = 'gpu_uuid="GPU-2c9b7d53-a1e4-4c68-b0f3-6ad8e1f70084",gpu_pci_address="0000:84:00.0"'
    for metric in ("dranet_pod_device_info", "dranet_pod_gpu_info"):
        (line,) = (line for line in text.splitlines() if line.startswith(f"{metric}{{"))
        assert 'namespace="default",pod="worker"' in line
        assert named in line


async def check_restarts(testbed: Testbed) -> None:
    (first,) = await wait_verdicts(testbed, "nic", is_worse)
    await check_gpu_series()
    writes = status_writes(testbed, "nic")
    await testbed.driver.kill()
    for _ in range(2):
        await say_all(testbed, "nic", partial(start, testbed))
        assert await verdicts(testbed, "nic") == [first]
    assert status_writes(testbed, "nic") == writes, "nothing new was to be said"
    (event,) = await told(testbed)
    assert event["count"] == 1
    assert event["involvedObject"]["uid"] == testbed.pod_uid("worker")


def test_an_update_in_which_two_instances_judge_says_nothing_twice() -> None:
    async def scenario() -> None:
        async with a_node(publish_gpus="never", pod_uid="first") as testbed:
            await start(testbed)
            await testbed.add_vendor(VENDOR)
            await testbed.kubelet.wait_driver(VENDOR)
            await run_worker(testbed, claim("nic", RAIL_0, GPU_1), pod("nic"))
            (first,) = await wait_verdicts(testbed, "nic", is_worse)
            writes = status_writes(testbed, "nic")
            await say_all(testbed, "nic", testbed.roll_driver)
            assert await verdicts(testbed, "nic") == [first]
            assert status_writes(testbed, "nic") == writes
            assert [event["count"] for event in await told(testbed)] == [1]

    asyncio.run(scenario())


def test_eight_gpus_and_eight_nics_of_one_machine_are_all_aligned() -> None:
    async def scenario() -> None:
        async with a_node("dgx-h100") as testbed:
            await start(testbed)
            kind = 'device.attributes["dra.net"].type == "{}"'
            all_of_it = claim(
                "all",
                request("gpus", "dranet", kind.format("gpu"), 8),
                request("nics", "dranet", RAILS, 8),
            )
            await run_worker(testbed, all_of_it, pod("all"))
            found = await wait_verdicts(testbed, "all", lambda now: len(now) == 8)
            assert {condition["status"] for condition in found} == {"True"}, found
            assert await told(testbed) == []

    asyncio.run(scenario())
