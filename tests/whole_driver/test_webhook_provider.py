"""The real driver with a webhook provider: from the slice to the pod and back, and while it is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from testbed.cluster import Testbed
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.provider import PROFILE, Provider, ProviderServer
from testbed.runtimes import stand_in
from tests.support.objects import device_class
from tests.support.probe_port import scrape
from tests.support.waiting import until

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree]

DEADLINE = 30.0
UP = "dranet_webhook_up"


def make_provider() -> Provider:
    attributes = {"example.com/network": {"string": "blue"}, "dra.net/webhook_attr": {"string": "x"}}
    return Provider(
        attributes={"*": attributes},
        configs={"*": {"interface": {"mtu": 1450, "forwarding": True}}},
        profiles={"rail": {"pool": "10.200.0.0/24", "interface": {"mtu": 1400}}},
    )


@asynccontextmanager
async def running(server: ProviderServer) -> AsyncIterator[Testbed]:
    settings = {
        "webhook_url": server.url,
        "cloud_provider": "webhook",
        "profile_provider": "webhook",
        "webhook_timeout_seconds": "2",
        "reconcile_seconds": "1",
    }
    async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR, settings) as testbed:
        await testbed.driver.start()
        await testbed.driver.wait_ready(DEADLINE)
        yield testbed


def a_pod() -> list[dict[str, Any]]:
    expression = 'device.attributes["example.com"].network == "blue"'
    request = {"name": "nic", "exactly": {"deviceClassName": "blue"}}
    parameters = {"profile": "rail", "interface": {"name": "net1", "forwarding": False}}
    config = {"opaque": {"driver": "dra.net", "parameters": parameters}}
    return [
        device_class("blue", expression),
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "nic"},
            "spec": {"devices": {"requests": [request], "config": [config]}},
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


async def has_attributes(testbed: Testbed) -> bool:
    """Each NIC, and no GPU."""
    slices = await testbed.fetch_slices()
    devices = [device["attributes"] for item in slices for device in item["spec"]["devices"]]
    expected = make_provider().attributes["*"]
    return bool(devices) and all(
        (expected.items() <= attributes.items()) == (attributes["dra.net/type"] != {"string": "gpu"})
        for attributes in devices
    )


async def read_metric(name: str) -> float:
    lines = (await scrape("/metrics")).splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)), -1.0)


def test_a_pod_gets_what_the_provider_gives_and_the_provider_gets_it_back() -> None:
    async def scenario() -> None:
        provider = make_provider()
        WORK_DIR.mkdir(parents=True, exist_ok=True)
        with ProviderServer(provider, socket_path=WORK_DIR / "provider.sock") as server:
            async with running(server) as testbed:
                await until(lambda: has_attributes(testbed), "the slices have the provider's attributes")
                await testbed.apply(a_pod())
                async with asyncio.timeout(DEADLINE):
                    await testbed.kubelet.wait_running(testbed.pod_uid("worker"))
                (claim,) = await testbed.fetch_pod_claims("worker")
                ((device, uid),) = provider.grants
                assert uid == claim["metadata"]["uid"]
                (entry,) = claim["status"]["devices"]
                assert entry["device"] == device
                assert entry["networkData"]["ips"] == ["10.200.0.1/24"]
                (asked,) = provider.asked(PROFILE)
                assert asked["config"] == {
                    "profile": "rail",
                    "interface": {"mtu": 1450, "forwarding": False, "name": "net1"},
                }
                assert await read_metric(UP) == 1
                assert await has_attributes(testbed)
                await testbed.delete_pod("worker")
                await until(lambda: provider.releases == [(device, uid)], "the profile is released")

    asyncio.run(scenario())


def test_while_the_provider_is_away_slices_stay_and_a_profile_is_a_clear_error() -> None:
    async def scenario() -> None:
        provider = make_provider()
        WORK_DIR.mkdir(parents=True, exist_ok=True)
        with ProviderServer(provider, socket_path=WORK_DIR / "provider.sock") as server:
            async with running(server) as testbed:
                await until(lambda: has_attributes(testbed), "the slices have the provider's attributes")
                server.stop()
                await testbed.driver.kill()
                before = await testbed.fetch_slices()
                await testbed.driver.start()
                await testbed.driver.wait_ready(DEADLINE)
                assert await has_attributes(testbed)
                assert [one["spec"]["pool"] for one in await testbed.fetch_slices()] == [
                    one["spec"]["pool"] for one in before
                ]
                await until(is_down, "the metric shows that it is away")
                await testbed.apply(a_pod())
                await until(lambda: is_told(testbed, server.url), "an Event names provider and profile")
                server.start()
                async with asyncio.timeout(DEADLINE):
                    await testbed.kubelet.wait_running(testbed.pod_uid("worker"))
                assert len(provider.grants) == 1

    asyncio.run(scenario())


async def is_down() -> bool:
    return await read_metric(UP) == 0


async def is_told(testbed: Testbed, url: str) -> bool:
    notes = [event.get("note") or event.get("message", "") for event in await testbed.fetch_events()]
    return any("profile rail" in note and url in note for note in notes)
