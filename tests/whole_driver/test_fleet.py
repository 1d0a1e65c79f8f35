"""``dranet nodes`` of a cluster in which the real driver has published, attached and judged."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import redirect_stdout
from typing import Any

import pytest

from dranet.cli.main import main
from testbed.isolation import WORK_DIR
from tests.whole_driver.test_verdicts import (
    GPU_1,
    RAIL_0,
    VENDOR,
    a_node,
    claim,
    is_worse,
    pod,
    run_worker,
    start,
    wait_verdicts,
)

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree]


def test_the_fleet_view_shows_devices_claims_and_the_misaligned_pod() -> None:
    kubeconfig = WORK_DIR / "kubeconfig"

    async def nodes() -> tuple[int, dict[str, Any]]:
        arguments = ["nodes", "--kubeconfig", str(kubeconfig), "-o", "json"]
        with redirect_stdout(io.StringIO()) as printed:
            code = await asyncio.to_thread(main, arguments)
        return code, json.loads(printed.getvalue())

    async def scenario() -> None:
        async with a_node(publish_gpus="never") as testbed:
            testbed.server.write_kubeconfig(kubeconfig)
            await start(testbed)
            await testbed.add_vendor(VENDOR)
            await testbed.kubelet.wait_driver(VENDOR)
            before = (await nodes())[1]["nodes"][0]
            await run_worker(testbed, claim("nic", RAIL_0), claim("gpu", GPU_1), pod("nic", "gpu"))
            await wait_verdicts(testbed, "nic", is_worse)
            code, document = await nodes()

            (node,) = document["nodes"]
            assert (before["nics"]["allocated"], node["nics"]["allocated"]) == (0, 1)
            assert before["nics"]["offered"] == node["nics"]["offered"] > 1
            assert node["gpus"] == {"allocated": 1, "offered": 2}
            assert node["claims"]["attached"] == ["default/nic"]
            (misaligned,) = node["misalignedPods"]
            assert misaligned["pod"] == "default/worker"
            assert "SYS to" in misaligned["devices"][0]["message"]
            found = {problem["reason"]: problem["severity"] for problem in node["problems"]}
            assert found == {"DriverAbsent": "problem", "Misaligned": "warning"}, (
                "the driver of the testbed is a process and not a pod"
            )
            assert code == 1

    asyncio.run(scenario())
