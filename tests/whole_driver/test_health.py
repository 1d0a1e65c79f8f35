"""A pod's NIC loses its carrier: the pod, the slice and the Events say so, and all of it goes again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from testbed.cluster import NODE_NAME, Testbed
from testbed.isolation import WORK_DIR
from testbed.node.fabric import FABRIC_NETNS
from testbed.node.hardware import load_hardware
from testbed.node.iproute import run_batch
from testbed.runtimes import stand_in
from tests.support.objects import device_class
from tests.support.waiting import until

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree]

DEADLINE = 20.0
LINK_DOWN = {"key": "dra.net/link-down", "value": "link-down", "effect": "NoSchedule"}

MANIFESTS: list[dict[str, Any]] = [
    device_class("nic", 'device.attributes["dra.net"].rdma'),
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "nic"},
        "spec": {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "nic"}}]}},
    },
    {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "worker"},
        "spec": {
            "resourceClaims": [{"name": "nic", "resourceClaimName": "nic"}],
            "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "nic"}]}}],
        },
    },
]


@asynccontextmanager
async def pod_with_a_nic(**settings: str) -> AsyncIterator[Testbed]:
    """A running pod with one NIC, and a driver with little patience."""
    quick = {
        "health_raise_seconds": "0.3",
        "health_clear_seconds": "1",
        "health_training_seconds": "0",
        **settings,
    }
    async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR, quick) as testbed:
        await testbed.driver.start()
        await testbed.driver.wait_ready(30)
        await testbed.apply(MANIFESTS)
        async with asyncio.timeout(DEADLINE):
            await testbed.kubelet.wait_running(testbed.pod_uid("worker"))
        yield testbed


async def set_cable(testbed: Testbed, state: str) -> None:
    """Pull the cable of the pod's NIC at the switch, or plug it in."""
    sandbox = testbed.sandbox("worker")
    assert sandbox is not None
    ((link, _),) = await asyncio.to_thread(testbed.node.nics_in, str(sandbox.netns_path))
    port = f"sw-{link['link_index']}"
    await asyncio.to_thread(run_batch, [f"link set {port} {state}"], netns=FABRIC_NETNS)


async def read_health(testbed: Testbed) -> tuple[str, str]:
    """What ``kubectl get pod -o yaml`` shows of the container's device."""
    pod = await testbed.fetch_pod("worker")
    containers = pod["status"].get("containerStatuses", ())  # none until the kubelet has written of it
    entries = [entry for one in containers for entry in one.get("allocatedResourcesStatus", ())]
    resources = [resource for entry in entries for resource in entry["resources"]]
    return (resources[0]["health"], resources[0].get("message", "")) if resources else ("", "")


async def read_device(testbed: Testbed) -> dict[str, Any]:
    """The pod's device as the slices have it."""
    (claim,) = await testbed.fetch_pod_claims("worker")
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    devices = [device for item in await testbed.fetch_slices() for device in item["spec"]["devices"]]
    (mine,) = [device for device in devices if device["name"] == result["device"]]
    return dict(mine)


async def read_taints(testbed: Testbed) -> list[dict[str, str]]:
    taints = (await read_device(testbed)).get("taints", [])
    return [{key: taint[key] for key in taint if key != "timeAdded"} for taint in taints]


async def wait_health(testbed: Testbed, wanted: str) -> str:
    async def is_so() -> bool:
        return (await read_health(testbed))[0] == wanted

    await until(is_so, f"the pod's device is {wanted}")
    return (await read_health(testbed))[1]


async def wait_taints(testbed: Testbed, wanted: list[dict[str, str]]) -> None:
    async def are_so() -> bool:
        return await read_taints(testbed) == wanted

    await until(are_so, f"taints are {wanted}")


async def wait_event(testbed: Testbed, name: str, reason: str) -> None:
    async def is_told() -> bool:
        return reason in {event["reason"] for event in await testbed.fetch_events(name)}

    await until(is_told, f"an Event {reason} of {name}")


def test_a_lost_carrier_in_a_pod_shows_in_its_status_and_taints_the_device_and_both_clear_again() -> None:
    async def scenario() -> None:
        async with pod_with_a_nic() as testbed:
            assert await wait_health(testbed, "Healthy") == ""
            assert await read_taints(testbed) == []
            await set_cable(testbed, "down")
            message = await wait_health(testbed, "Unhealthy")
            assert message.startswith("link-down: ")
            assert "has no carrier, since " in message
            await wait_taints(testbed, [LINK_DOWN])
            for name in ("worker", NODE_NAME):
                await wait_event(testbed, name, "NetworkDeviceUnhealthy")
            await restart_under_watch(testbed)
            assert await wait_health(testbed, "Unhealthy") == message
            await set_cable(testbed, "up")
            assert await wait_health(testbed, "Healthy") == ""
            await wait_taints(testbed, [])

    asyncio.run(scenario())


async def restart_under_watch(testbed: Testbed) -> None:
    """The driver is killed and started again; nobody may see the device without its taint meanwhile."""
    await testbed.driver.kill()
    await testbed.driver.start()
    ready = asyncio.create_task(testbed.driver.wait_ready(30))
    while not ready.done():
        assert await read_taints(testbed) == [LINK_DOWN]
        await asyncio.sleep(0.02)
    await ready
    await wait_taints(testbed, [LINK_DOWN])
