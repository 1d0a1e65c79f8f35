"""The way out of the real process while something hangs in it: inside its time, and with the reason told."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from dranet.driver.app import EXIT_FORCED
from testbed.cluster import Testbed
from tests.support.waiting import until
from tests.whole_driver.shutdowns import (
    HANGS,
    READY_SECONDS,
    SHORT_END_SECONDS,
    end,
    hanging,
    log_of,
    play,
    pod,
    start,
    start_hanging,
    wait_hung,
)

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree]


def test_what_hangs_ends_by_force_in_time_and_is_named_with_its_claim_or_pod_and_since_when() -> None:
    async def story(testbed: Testbed) -> None:
        driver = await start_hanging(testbed)
        await driver.wait_ready(READY_SECONDS)
        with hanging("scan"):
            await wait_hung("scan")
            ended = await end(driver)
        ended.assert_forced(r"thread worker\S*: \S*scan\S* for \d+\.\d s in dranet/driver/publish")

        driver = await start_hanging(testbed)
        await driver.wait_ready(READY_SECONDS)
        with hanging("call"):
            await testbed.apply(pod("waits"))
            await wait_hung("call")
            ended = await end(driver)
        ended.assert_forced(r"prepare of default/waits \(\S+\) for \d+\.\d s")

        driver = await start_hanging(testbed)
        await driver.wait_ready(READY_SECONDS)
        with hanging("attach"):
            await testbed.apply(pod("runs"))
            await wait_hung("attach")
            ended = await end(driver)
        ended.assert_forced(r"thread hook: attaching\D*default/\w+ for \d+\.\d s in dranet/driver")

        await start(testbed)
        for name in ("waits", "runs"):
            await testbed.kubelet.wait_running(testbed.pod_uid(name))

    play(story, rescan_seconds="1")


def test_a_disk_that_hangs_under_the_event_loop_is_no_reason_to_outlive_the_time() -> None:
    async def story(testbed: Testbed) -> None:
        for point, place in (("store", "instances/leader.py"), ("store-close", "app.py")):
            driver = await start_hanging(testbed)
            await driver.wait_ready(READY_SECONDS)
            with hanging(point):
                ended = await end(driver)
            ended.assert_forced(rf"event loop in dranet/driver/{place}")
        await start(testbed)

    play(story)


def test_a_start_that_hangs_ends_in_time_too() -> None:
    async def story(testbed: Testbed) -> None:
        with hanging("scan"):
            driver = await start_hanging(testbed)
            await wait_hung("scan")
            ended = await end(driver)
        ended.assert_forced(r"thread worker\S*: \S*scan")
        assert "started" not in log_of(driver)
        await start(testbed)

    play(story)


def test_an_output_that_nobody_reads_is_no_reason_to_outlive_the_time() -> None:
    async def story(testbed: Testbed) -> None:
        options = [
            part
            for name, value in testbed._settings().items()
            for part in (f"--{name.replace('_', '-')}", value)
        ]
        build = (
            "-m",
            "tests.whole_driver.hanging_driver",
            str(HANGS),
            str(SHORT_END_SECONDS),
            "run",
            *options,
        )
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        full = False
        while not full:
            try:
                os.write(writer, b"\n")
            except BlockingIOError:
                full = True
        os.set_blocking(writer, True)
        process = await asyncio.create_subprocess_exec(sys.executable, *build, stdout=writer, stderr=writer)
        await until((testbed.places.work_dir / "state" / "instances").exists)
        process.terminate()
        async with asyncio.timeout(READY_SECONDS):
            assert await process.wait() in (0, EXIT_FORCED)
        os.close(reader)
        os.close(writer)

    play(story)
