"""The doctor beside the whole driver under a real containerd: short, calm, and right about what it sees."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from testbed.cluster import Testbed
from testbed.containerd.fetch import Toolchain
from testbed.driver.pod import DriverPod, driver_in_a_pod
from testbed.node.hardware import load_hardware
from testbed.runtimes import containerd
from tests.runtime.private_node import in_own_private_node
from tests.support.doctor_run import POD, a_pod_with_a_nic, run_doctor

pytestmark = [pytest.mark.runtime]

RIGHTS = "rights"
"""Judged by tests of their own (`test_containerd_security_minimal.py`)."""


@in_own_private_node
def test_of_a_pod_that_runs_the_doctor_sees_a_node_that_is_fit(toolchain: Toolchain, folder: Path) -> None:
    async def scenario() -> None:
        async with Testbed(load_hardware("two-nic"), containerd(toolchain), folder) as testbed:
            await testbed.driver.start()
            await testbed.driver.wait_ready(30)
            await testbed.apply(a_pod_with_a_nic())
            async with asyncio.timeout(60):
                await testbed.kubelet.wait_running(testbed.pod_uid(POD))
            code, output, _ = await run_doctor(testbed, "-o", "json")
            document = json.loads(output)
            bad = [f for f in document["findings"] if f["severity"] in ("problem", "warning")]
            assert (code, bad) == (0, [])
            fine = {finding["seen"] for finding in document["findings"] if finding["severity"] == "ok"}
            assert any(seen.startswith("containerd ") for seen in fine)
            assert {"containers get what our CDI devices add", "calls v1.DRAPlugin"} <= fine

            code, text, _ = await run_doctor(testbed)
            lines = text.splitlines()
            assert len(lines) < 25, "whose node is fit reads it in one look"
            assert "ok" in lines[-1]

    asyncio.run(scenario())


@in_own_private_node
def test_in_the_drivers_own_pod_it_sees_what_its_mounts_show_and_says_once_what_they_do_not(
    toolchain: Toolchain, folder: Path
) -> None:
    async def scenario() -> None:
        async with Testbed(load_hardware("two-nic"), driver_in_a_pod(toolchain), folder) as testbed:
            assert isinstance(testbed.driver, DriverPod)
            await testbed.driver.start()
            await testbed.driver.wait_ready(30)
            done = await testbed.driver.run_dranet("doctor", "-o", "json")
            findings = json.loads(done.stdout)["findings"]
            bad = [f for f in findings if f["severity"] in ("problem", "warning") and f["part"] != RIGHTS]
            assert (bad, done.stderr) == ([], "")
            assert len([f for f in findings if f["id"] == "not-visible"]) == 1
            shown = await testbed.driver.run_dranet("doctor")
            assert len(shown.stdout.splitlines()) < 25

    asyncio.run(scenario())
