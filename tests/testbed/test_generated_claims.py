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
from dranet.model.pairing import rank
from dranet.templates.ask import Ask
from dranet.templates.choose import choose_claim
from dranet.templates.fitting import CannotBeHad
from dranet.templates.hardware import read_hardware
from dranet.testbed.cluster import NAMESPACE, Testbed
from dranet.testbed.isolation import WORK_DIR
from dranet.testbed.node.hardware import load_hardware
from dranet.testbed.runtimes import stand_in
from tests.data.layouts import LAYOUTS, capture_file
from tests.templates.judging import best_of, distances_of, good_nics, has_rdma
from tests.templates.worlds import world

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
    for count in COUNTS:
        nics = good_nics(machine, count, has_rdma(machine))
        try:
            choice = choose_claim(Ask(count, count, name=f"{layout}-{count}"), hardware)
        except CannotBeHad:
            assert count > len(machine.gpus) or count > len(nics), (layout, count)
            continue
        if count == 1:
            assert await ask_the_program(testbed, f"{layout}-1") == json.loads(json.dumps(choice.manifests))
        given = machine.devices(await allocated(testbed, choice.manifests))
        best = best_of(machine, nics, count, count)
        assert rank(distances_of(given, machine)) == rank(best), (layout, count)


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
