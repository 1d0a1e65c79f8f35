"""A driver of the testbed that is told to end, and what hangs meanwhile.

What hangs does so in a build of the driver (``hanging_driver``), whose time after the drain is shorter, or at
a peer of the ordinary one.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from dranet.driver.app import EXIT_FORCED, LAST_LOG_SECONDS
from testbed.cluster import DRIVER_NAME, JsonObject, Testbed
from testbed.driver.process import DriverProcess
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.runtimes import stand_in
from tests.support.objects import device_class
from tests.support.waiting import until

READY_SECONDS = 20.0
DRAIN_SECONDS = 0.5
SHORT_END_SECONDS = 1.0
SLACK_SECONDS = 6.0
"""For the interpreter, and for a machine that is busy."""
DEFAULT_GRACE_SECONDS = 30
"""``terminationGracePeriodSeconds`` of a pod that does not say it."""
HANGS = WORK_DIR / "hangs"


@dataclass(frozen=True, slots=True)
class Ended:
    """``log`` and ``seconds`` from the first signal on."""

    exit_code: int
    seconds: float
    log: str

    def assert_clean(self, seconds: float) -> None:
        assert self.exit_code == 0, self.log
        assert self.seconds < seconds + SLACK_SECONDS, self.log
        for unwanted in ("Traceback", "Task was destroyed", "never retrieved", "by force"):
            assert unwanted not in self.log, self.log

    def assert_forced(self, *told: str) -> None:
        assert self.exit_code == EXIT_FORCED, self.log
        assert self.seconds < DRAIN_SECONDS + SHORT_END_SECONDS + LAST_LOG_SECONDS + SLACK_SECONDS, self.log
        assert "Traceback" not in self.log, self.log
        last = self.log.splitlines()[-1]
        assert "ending by force" in last, self.log
        for text in told:
            assert re.search(text, last), last


def play(story: Callable[[Testbed], Awaitable[None]], **settings: str) -> None:
    async def played() -> None:
        given = {"drain_seconds": str(DRAIN_SECONDS), **settings}
        async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR, given) as testbed:
            await asyncio.to_thread(HANGS.mkdir)
            try:
                await story(testbed)
            except BaseException as error:
                error.add_note(log_of(testbed.driver))
                raise

    asyncio.run(asyncio.wait_for(played(), 80))


async def start_hanging(testbed: Testbed) -> DriverProcess:
    build = (
        sys.executable,
        "-m",
        "tests.whole_driver.hanging_driver",
        str(HANGS),
        str(SHORT_END_SECONDS),
        "run",
    )
    await testbed.driver.start(command=build)
    return testbed.driver


async def start(testbed: Testbed) -> DriverProcess:
    await testbed.driver.start()
    await testbed.driver.wait_ready(READY_SECONDS)
    return testbed.driver


@contextmanager
def hanging(point: str) -> Iterator[None]:
    """Whoever comes to the point within the block hangs for ever."""
    (HANGS / point).touch()
    yield
    (HANGS / point).unlink()


async def wait_hung(point: str) -> None:
    await until((HANGS / f"{point}.hangs").exists)


async def end(driver: DriverProcess, *numbers: signal.Signals, heard: str = "") -> Ended:
    """Send the signals (SIGTERM), each one when the one before it was heard (the driver says ``heard``, or
    anything), and wait for the end."""
    process, begin = driver._process, time.monotonic()
    assert process is not None
    before = len(log_of(driver))
    for number in numbers or (signal.SIGTERM,):
        said = len(log_of(driver))
        os.kill(process.pid, number)
        await until(partial(_has_heard, driver, said, heard))
    async with asyncio.timeout(DEFAULT_GRACE_SECONDS):
        code = await process.wait()
    return Ended(code, time.monotonic() - begin, log_of(driver)[before:])


def _has_heard(driver: DriverProcess, said: int, heard: str) -> bool:
    news = log_of(driver)[said:]
    return (bool(news) and heard in news) or not driver.is_running


def log_of(driver: DriverProcess) -> str:
    return driver.log_tail(10_000)


def pod(name: str = "worker", **parameters: object) -> list[JsonObject]:
    """A pod with one NIC, and what it needs."""
    opaque = {"driver": DRIVER_NAME, "parameters": {"interface": {"name": "net1", **parameters}}}
    return [
        device_class("nic", 'device.attributes["dra.net"].rdma'),
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {
                "devices": {
                    "requests": [{"name": "nic", "exactly": {"deviceClassName": "nic"}}],
                    "config": [{"opaque": opaque}],
                }
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "resourceClaims": [{"name": "nic", "resourceClaimName": name}],
                "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "nic"}]}}],
            },
        },
    ]
