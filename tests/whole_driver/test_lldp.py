"""The switch of each NIC in the slices: heard, and kept while a pod has the NIC and at a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from dranet.kernel.namespaces.netns import NetworkNamespace
from testbed.cluster import Testbed
from testbed.isolation import WORK_DIR
from testbed.node.fabric import FABRIC_NETNS, PORT_INDEXES
from testbed.node.hardware import load_hardware
from testbed.node.iproute import NETNS_FOLDER
from testbed.runtimes import stand_in
from tests.support.lldp_switch import build_frame, build_message, send
from tests.support.objects import device_class
from tests.support.waiting import until

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree]

CLAIM_AND_POD: list[dict[str, Any]] = [
    device_class("nic", 'device.attributes["dra.net"].?rail.orValue(-1) == 1'),
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
PORTS = {"management": "mgmt1", "leaf-0": "swp1", "leaf-1": "swp2"}
"""By switch, in the order of the node's NICs."""


@asynccontextmanager
async def running(**settings: str) -> AsyncIterator[Testbed]:
    async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR, settings) as testbed:
        await testbed.driver.start()
        await testbed.driver.wait_ready(30)
        yield testbed


def announce() -> None:
    """The switches at the other ends of the node's cables speak."""
    frames = {
        f"sw-{index}": build_frame(build_message(name, port))
        for index, (name, port) in zip(PORT_INDEXES, PORTS.items(), strict=False)
    }
    with NetworkNamespace.open(NETNS_FOLDER / FABRIC_NETNS) as fabric:
        for ifname, frame in frames.items():
            fabric.run(partial(send, ifname, frame))


Switches = set[tuple[str | None, str | None, int | None]]
"""Name, port and rail of each NIC."""


async def read_switches(testbed: Testbed) -> Switches:
    devices = [device for item in await testbed.fetch_slices() for device in item["spec"].get("devices", ())]
    nics = [device["attributes"] for device in devices if "dra.net/mac" in device["attributes"]]
    return {
        (
            nic.get("dra.net/switchName", {}).get("string"),
            nic.get("dra.net/switchPortId", {}).get("string"),
            nic.get("dra.net/rail", {}).get("int"),
        )
        for nic in nics
    }


def test_a_heard_switch_is_in_the_slice_while_a_pod_has_the_nic_and_after_a_restart() -> None:
    async def scenario() -> None:
        async with running(lldp="listen", rail_pattern=r"^leaf-(\d+)") as testbed:
            announced: Switches = {("leaf-0", "swp1", 0), ("leaf-1", "swp2", 1)}

            async def are_known() -> bool:
                await asyncio.to_thread(announce)  # again and again, as a switch does
                return await read_switches(testbed) == announced

            await until(are_known, "both switches are in the slices")
            await testbed.apply(CLAIM_AND_POD)
            await testbed.kubelet.wait_running(testbed.pod_uid("worker"))
            assert await read_switches(testbed) == announced
            await testbed.driver.kill()
            await testbed.driver.start()
            await testbed.driver.wait_ready(30)
            assert await read_switches(testbed) == announced
            await testbed.delete_pod("worker")
            assert await read_switches(testbed) == announced

    asyncio.run(scenario())
