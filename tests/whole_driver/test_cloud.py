"""The real driver in a cloud: its metadata service is a stand-in at the address that all clouds use."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from dranet.cluster import paths
from testbed.cloud import serve_metadata
from testbed.cluster import NODE_NAME, Testbed
from testbed.node.iproute import run_ip
from tests.providers.cloud.machines import read_machine
from tests.support.waiting import until
from tests.whole_driver.test_verdicts import a_node, start

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree]

ADDRESS = "169.254.169.254"


async def list_attributes(testbed: Testbed) -> list[Mapping[str, Any]]:
    """Of each published device."""
    slices = await testbed.fetch_slices()
    return [device["attributes"] for item in slices for device in item["spec"]["devices"]]


def test_attributes_of_the_cloud_are_published_and_kept_while_it_is_away() -> None:
    machine = read_machine("oke-bm-gpu-h100-8")
    expected = {name: {"string": value} for name, value in machine.attributes.items()}

    async def has_all(testbed: Testbed) -> bool:
        devices = await list_attributes(testbed)
        return bool(devices) and all(expected.items() <= attributes.items() for attributes in devices)

    async def scenario() -> None:
        async with a_node() as testbed:
            spec = {"spec": {"providerID": machine.node["providerID"]}}
            await testbed.api.patch(paths.node(NODE_NAME), spec)
            run_ip("address", "add", f"{ADDRESS}/32", "dev", "lo")
            with serve_metadata(machine.provider, machine.answers, ADDRESS, 80):
                await start(testbed)
                await until(lambda: has_all(testbed), "the slices have the cloud's attributes")
            await testbed.driver.kill()
            before = await testbed.fetch_slices()
            await start(testbed)  # the service is away, and what it said is remembered
            assert await has_all(testbed)
            after = await testbed.fetch_slices()
            assert [item["spec"]["pool"] for item in after] == [item["spec"]["pool"] for item in before]

    asyncio.run(scenario())
