"""Generated claims on the testbed: as near as the captured machine can give.

The real driver publishes the capture, the API server takes the manifests, the scheduler allocates. Pods of
captured devices never start, because nothing of them is on this machine; no allocation depends on that.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any

import pytest

from dranet.cli.main import main
from dranet.cluster import paths
from dranet.desk.hardware.nodes import read_hardware
from dranet.desk.templates.candidates import NotAvailable
from dranet.desk.templates.choose import Choice, choose_claim
from dranet.desk.templates.request import ClaimRequest
from dranet.model.device import DeviceKind
from testbed.cluster import NAMESPACE, Testbed
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.runtimes import stand_in
from tests.data.layouts import LAYOUTS, capture_file, take_layout
from tests.desk.templates.distances import best_rank, good_nics, has_rdma, rank_of
from tests.desk.templates.layout_clusters import world

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree]

COUNTS = range(1, 9)


def test_claims_on_the_first_layouts_get_the_best_there_is() -> None:
    asyncio.run(try_layouts(LAYOUTS[: len(LAYOUTS) // 2]))


def test_claims_on_the_other_layouts_get_the_best_there_is() -> None:
    asyncio.run(try_layouts(LAYOUTS[len(LAYOUTS) // 2 :]))


async def try_layouts(layouts: Sequence[str]) -> None:
    """One cluster; the driver starts anew on each capture."""
    async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR, {"publish_gpus": "always"}) as testbed:
        for layout in layouts:
            await testbed.driver.start({"facts_file": str(capture_file(layout))})
            await testbed.driver.wait_ready(30)
            await try_layout(testbed, layout)
            await testbed.driver.stop()
            for entry in await testbed.fetch_slices():
                await testbed.api.delete(paths.resource_slice(entry["metadata"]["name"]))


async def try_layout(testbed: Testbed, layout: str) -> None:
    slices = (await testbed.api.list(paths.RESOURCE_SLICES))["items"]
    machine, hardware = world(layout).only(slices), read_hardware(slices)
    assert machine.gpus.keys() == offered_gpus(layout)
    for count in COUNTS:
        nics = good_nics(machine, count, has_rdma(machine))
        gpus = count if machine.gpus else 0
        try:
            choice = choose_claim(ClaimRequest(gpus, count, name=f"{layout}-{count}"), hardware)
        except NotAvailable:
            assert gpus > len(machine.gpus) or count > len(nics), (layout, count)
            continue
        if count == 1 and gpus:
            assert await ask_the_program(testbed, f"{layout}-1") == await left_to_write(testbed, choice)
        given = machine.devices(await allocated(testbed, choice.manifests))
        assert len(given) == gpus + count
        if gpus:
            assert rank_of(given, machine) == best_rank(machine, nics, gpus, count), (layout, count)


def offered_gpus(layout: str) -> set[str]:
    """None on a server without any, and not the display adapters of a virtual machine."""
    devices = [decision.device for decision in take_layout(layout) if decision.published]
    return {device.name for device in devices if device.kind is DeviceKind.GPU}


async def left_to_write(testbed: Testbed, choice: Choice) -> list[dict[str, Any]]:
    """The manifests without the classes that an earlier claim has left in the cluster."""
    there = {entry["metadata"]["name"] for entry in (await testbed.api.list(paths.DEVICE_CLASSES))["items"]}
    written = (
        o for o in choice.manifests if o["kind"] != "DeviceClass" or o["metadata"]["name"] not in there
    )
    return list(json.loads(json.dumps(list(written))))


async def ask_the_program(testbed: Testbed, name: str) -> list[dict[str, Any]]:
    """``dranet claim new`` of the live cluster."""
    command = ["claim", "new", "--name", name, "--kubeconfig", str(testbed.places.kubeconfig), "-o", "json"]
    with redirect_stdout(io.StringIO()) as printed:
        code = await asyncio.to_thread(main, command)
    assert code == 0
    return list(json.loads(printed.getvalue())["items"])


async def allocated(testbed: Testbed, manifests: Sequence[dict[str, Any]]) -> list[str]:
    """The devices that the scheduler gives to the pod; all is gone afterwards."""
    await testbed.apply(manifests)
    pod = next(entry["metadata"]["name"] for entry in manifests if entry["kind"] == "Pod")
    async with asyncio.timeout(30):
        devices = await wait_allocation(testbed, pod)
        await testbed.delete_pod(pod)
        await wait_no_claims(testbed)
    return devices


async def wait_allocation(testbed: Testbed, pod: str) -> list[str]:
    while True:
        claims = await testbed.fetch_pod_claims(pod)
        found = [claim.get("status", {}).get("allocation") for claim in claims]
        if found and all(found):
            return [one["device"] for entry in found for one in entry["devices"]["results"]]
        await asyncio.sleep(0.02)


async def wait_no_claims(testbed: Testbed) -> None:
    while True:
        if not (await testbed.api.list(paths.resource_claims(NAMESPACE)))["items"]:
            return
        await asyncio.sleep(0.02)
