"""The way out of the real process, over signals: inside its time whatever hangs, and with the reason told.

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
from pathlib import Path

import pytest

import dranet
from dranet.cluster import paths
from dranet.driver.ending import END_SECONDS, EXIT_FORCED, TELL_SECONDS
from dranet.driver.instances.leaving import FLUSH_SECONDS
from dranet.settings import Settings
from dranet.testbed.apiserver.faults import Trouble
from dranet.testbed.cluster import DRIVER_NAME, JsonObject, Testbed
from dranet.testbed.driver_process import DriverProcess
from dranet.testbed.isolation import WORK_DIR
from dranet.testbed.node.hardware import load_hardware
from dranet.testbed.runtimes import stand_in

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree]

READY_SECONDS = 20.0
DRAIN_SECONDS = 0.5
SHORT_END_SECONDS = 1.0
SLACK_SECONDS = 3.0
"""For the interpreter, and for a machine that is busy."""
DEFAULT_GRACE_SECONDS = 30
"""``terminationGracePeriodSeconds`` of a pod that does not say it."""
UPDATES_PAGE = Path(dranet.__file__).parents[1] / "docs/user/updates.md"
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
        assert self.seconds < DRAIN_SECONDS + SHORT_END_SECONDS + TELL_SECONDS + SLACK_SECONDS, self.log
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
    build = (sys.executable, "-m", "tests.testbed.hanging_driver", str(HANGS), str(SHORT_END_SECONDS), "run")
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


async def end(driver: DriverProcess, *numbers: signal.Signals) -> Ended:
    """Send the signals (SIGTERM), each one when the one before it was heard, and wait for the end."""
    process, begin = driver._process, time.monotonic()
    assert process is not None
    before = len(log_of(driver))
    for number in numbers or (signal.SIGTERM,):
        said = log_of(driver)
        os.kill(process.pid, number)
        await until(partial(_has_heard, driver, said))
    async with asyncio.timeout(DEFAULT_GRACE_SECONDS):
        code = await process.wait()
    return Ended(code, time.monotonic() - begin, log_of(driver)[before:])


def _has_heard(driver: DriverProcess, said: str) -> bool:
    return log_of(driver) != said or not driver.is_running


def log_of(driver: DriverProcess) -> str:
    return driver.log_tail(10_000)


async def until(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(READY_SECONDS):
        while True:
            if look():
                return
            await asyncio.sleep(0.01)


def pod(name: str = "worker", **parameters: object) -> list[JsonObject]:
    """A pod with one NIC, and what it needs."""
    opaque = {"driver": DRIVER_NAME, "parameters": {"interface": {"name": "net1", **parameters}}}
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "nic"},
            "spec": {"selectors": [{"cel": {"expression": 'device.attributes["dra.net"].rdma'}}]},
        },
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


def test_the_longest_end_is_inside_the_grace_period_of_every_pod_of_the_driver() -> None:
    longest = Settings().drain_seconds + END_SECONDS + TELL_SECONDS
    documented = re.search(r"terminationGracePeriodSeconds: (\d+)", UPDATES_PAGE.read_text())
    assert documented is not None
    assert longest < DEFAULT_GRACE_SECONDS < int(documented[1])


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
        for point, place in (("store", "instances/leaving.py"), ("store-close", "app.py")):
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
        build = ("-m", "tests.testbed.hanging_driver", str(HANGS), str(SHORT_END_SECONDS), "run", *options)
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


def test_a_second_sigterm_changes_nothing_and_tells_what_is_waited_for_and_a_second_sigint_ends_at_once() -> (
    None
):
    """The kubelet and the runtime repeat SIGTERM when they restart; a person at the keyboard means it."""

    async def story(testbed: Testbed) -> None:
        driver = await start(testbed)
        testbed.kubelet.hold_sandboxes(True)
        await testbed.apply(pod())
        await testbed.kubelet.wait_prepared(testbed.pod_uid("worker"))
        ended = await end(driver, signal.SIGTERM, signal.SIGTERM)
        ended.assert_clean(5)
        assert re.search(
            r"told to stop again.*sandboxes of prepared pods have not run: default/worker", ended.log
        )
        driver = await start(testbed)
        ended = await end(driver, signal.SIGINT, signal.SIGINT)
        assert ended.exit_code == EXIT_FORCED
        assert ended.seconds < 2 + SLACK_SECONDS
        assert re.search(r"by force, told to stop once more \(SIGINT\).*default/worker", ended.log)
        testbed.kubelet.hold_sandboxes(False)
        await start(testbed)
        await testbed.kubelet.wait_running(testbed.pod_uid("worker"))

    play(story, drain_seconds="3")


def test_told_to_stop_at_any_moment_of_the_start_it_ends_well_and_leaves_nothing() -> None:
    async def story(testbed: Testbed) -> None:
        state = testbed.places.work_dir / "state"
        moments: list[Callable[[], bool]] = [
            lambda: any(state.glob("instances/*.lock")),
            (state / "claims.db").exists,
            lambda: bool(sockets(testbed)),
            lambda: "connected to the runtime" in log_of(testbed.driver),
            lambda: "driver.app: started" in log_of(testbed.driver),
        ]
        for number, moment in enumerate(moments):
            for path in (*state.glob("claims.db*"), testbed.driver.log_file):
                path.unlink(missing_ok=True)
            await testbed.driver.start()
            await until(moment)
            ended = await end(testbed.driver)
            ended.assert_clean(4)
            assert sockets(testbed) == [], number
            assert not any(state.glob("instances/*")), number
        await start(testbed)

    play(story)


def _has_said(driver: DriverProcess, text: str) -> bool:
    return text in log_of(driver)


def sockets(testbed: Testbed) -> list[Path]:
    return sorted(path for path in testbed.places.kubelet_root.rglob("*") if path.is_socket())


def test_told_to_stop_while_it_takes_the_duties_over_it_ends_well() -> None:
    async def story(testbed: Testbed) -> None:
        for signal_of_old in (signal.SIGKILL, signal.SIGTERM):
            old, new = testbed.add_instance(), testbed.add_instance()
            await old.start()
            await old.wait_ready(READY_SECONDS)
            await new.start()
            await until(partial(_has_said, new, "another instance has the duties"))
            if signal_of_old is signal.SIGKILL:
                await old.kill()
                (await end(new)).assert_clean(4)
            else:
                for ended in await asyncio.gather(end(old), end(new)):
                    ended.assert_clean(4)

    play(story)


def test_a_successor_that_never_gets_ready_holds_the_end_up_for_the_drain_only() -> None:
    async def story(testbed: Testbed) -> None:
        old, new = testbed.add_instance(), testbed.add_instance()
        await old.start()
        await old.wait_ready(READY_SECONDS)
        await new.start({"nri_socket": str(WORK_DIR / "nowhere.sock")})
        await until(lambda: "another instance of the driver is on this node" in log_of(old))
        ended = await end(old)
        ended.assert_clean(DRAIN_SECONDS + 3)
        assert ended.seconds >= DRAIN_SECONDS

    play(story)


def test_an_api_server_that_hangs_holds_the_end_up_for_the_last_words_only() -> None:
    async def story(testbed: Testbed) -> None:
        driver = await start(testbed)
        testbed.kubelet.hold_sandboxes(True)
        await testbed.apply(pod())
        await testbed.kubelet.wait_prepared(testbed.pod_uid("worker"))
        status = paths.resource_claim_status("default", "worker")
        testbed.server.trouble_next("PATCH", status, Trouble(stalls=True), 99)
        testbed.kubelet.hold_sandboxes(False)
        await testbed.kubelet.wait_running(testbed.pod_uid("worker"))
        await until(lambda: any((r.method, r.path) == ("PATCH", status) for r in testbed.server.requests))
        ended = await end(driver)
        ended.assert_clean(DRAIN_SECONDS + FLUSH_SECONDS + 2)
        assert "not written in time" in ended.log

    play(story)


@pytest.mark.timeout(60)
def test_a_dhcp_server_that_is_silent_holds_the_end_up_for_one_conversation() -> None:
    async def story(testbed: Testbed) -> None:
        driver = await start(testbed)
        await testbed.apply(pod(dhcp=True))
        await until(lambda: bool(_find_packet_sockets(driver)))
        (await end(driver)).assert_clean(DRAIN_SECONDS + 10)

    play(story)


def _find_packet_sockets(driver: DriverProcess) -> list[str]:
    """Of the driver: it listens for offers on one."""
    return Path(f"/proc/{driver.pid}/net/packet").read_text().splitlines()[1:]
