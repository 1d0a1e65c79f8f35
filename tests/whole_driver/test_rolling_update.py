"""Two instances of the driver on one node: rolled, hurried and killed under a storm of pods with NICs.

Real processes on the stand-in runtime. Of an orderly update the kubelet, the runtime and whoever watches the
slices notice nothing; whatever is killed, no pod runs without its NIC and the slices stay.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from testbed.cluster import DRIVER_NAME, Testbed
from testbed.driver.process import DriverProcess
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.runtimes import stand_in
from testbed.storm import Damage, Storm

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree, pytest.mark.timeout(90)]

READY_SECONDS = 20.0
DEVICES = 4
"""What the driver publishes of the hardware."""


@asynccontextmanager
async def storming() -> AsyncIterator[tuple[Testbed, Storm, Damage]]:
    """A driver with a pod UID, and as many pods at a time as the node has NICs."""
    async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR) as testbed:
        testbed.driver = testbed.add_instance()
        await testbed.driver.start()
        await testbed.driver.wait_ready(READY_SECONDS)
        storm = Storm(testbed, workers=2)
        before = await asyncio.to_thread(testbed.node.snapshot)
        async with storm.raging() as damage:
            await storm.wait_started(4)
            yield testbed, storm, damage
        assert not damage.lost, damage.lost
        assert not damage.bare, damage.bare
        assert damage.fewest_devices == DEVICES
        assert damage.started == damage.gone
        assert testbed.driver.is_running
        async with asyncio.timeout(READY_SECONDS):  # the kernel takes a moment to bring a link up again
            await _until(lambda: not before.differences(testbed.node.snapshot()))


def log_of(driver: DriverProcess) -> str:
    return driver.log_tail(1000)


def play(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(_played(story), 80))


async def _played(story: Callable[[], Awaitable[None]]) -> None:
    await story()


def test_an_update_under_a_storm_of_pods_fails_no_prepare_and_takes_no_device_away() -> None:
    async def story() -> None:
        async with storming() as (testbed, storm, damage):
            for _ in range(2):
                roll = await testbed.roll_driver()
                assert roll.old.exit_code == 0, roll.old.log
                assert "Traceback" not in roll.old.log
                await storm.wait_started(2)
        assert damage.failures == [], damage.failures
        assert damage.started >= 8

    play(story)


def test_an_instance_that_is_stopped_before_its_successor_is_ready_waits_for_it() -> None:
    """A DaemonSet deletes the old pod when the new one's probe answers; on the host's network that may be the
    old one's own answer."""

    async def story() -> None:
        async with storming() as (testbed, storm, damage):
            old, new = testbed.driver, testbed.add_instance()
            await new.start()
            await _wait_log(new, "another instance leads")
            ended = await old.stop(READY_SECONDS)
            assert ended.exit_code == 0, ended.log
            assert "handed the lead over" in ended.log
            testbed.driver = new
            await new.wait_ready(READY_SECONDS)
            await storm.wait_started(2)
        assert damage.failures == [], damage.failures

    play(story)


def test_whatever_is_killed_no_pod_runs_bare_and_the_slices_stay() -> None:
    async def story() -> None:
        source = random.Random(20261122)  # the same kills each time; `make fuzz` is not for this
        async with storming() as (testbed, storm, _):
            for kill in (_kill_old_while_new_starts, _kill_new_while_it_starts, _kill_new_after_take_over):
                await kill(testbed, source.uniform(0.0, 0.8))
                await testbed.driver.wait_ready(READY_SECONDS)
                await storm.wait_started(2)

    play(story)


async def _kill_old_while_new_starts(testbed: Testbed, seconds: float) -> None:
    old, testbed.driver = testbed.driver, testbed.add_instance()
    await testbed.driver.start()
    await _wait_log(testbed.driver, "another instance leads")
    await asyncio.sleep(seconds / 10)
    await old.kill()


async def _kill_new_while_it_starts(testbed: Testbed, seconds: float) -> None:
    new = testbed.add_instance()
    await new.start()
    await asyncio.sleep(0.4 + seconds)
    await new.kill()


async def _kill_new_after_take_over(testbed: Testbed, seconds: float) -> None:
    new = testbed.add_instance()
    await new.start()
    await new.wait_ready(READY_SECONDS)
    await asyncio.sleep(seconds)
    await new.kill()


def test_when_all_leave_at_once_no_pod_runs_bare_and_the_next_instance_goes_on() -> None:
    """As when a node is shut down, or its DaemonSet deleted, in the middle of an update."""

    async def story() -> None:
        async with storming() as (testbed, storm, _):
            old, new = testbed.driver, testbed.add_instance()
            await new.start()
            await new.wait_ready(READY_SECONDS)
            for ended in await asyncio.gather(old.stop(READY_SECONDS), new.stop(READY_SECONDS)):
                assert ended.exit_code == 0, ended.log
                assert "Traceback" not in ended.log
            assert _sockets(testbed) == []
            testbed.driver = testbed.add_instance()
            await testbed.driver.start()
            await testbed.driver.wait_ready(READY_SECONDS)
            await storm.wait_started(2)

    play(story)


def test_an_instance_that_is_told_to_stop_while_it_starts_ends_well_and_leaves_nothing() -> None:
    """Told twice, as by an operator who is in a hurry."""

    async def story() -> None:
        async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR) as testbed:
            instances = testbed.places.work_dir / "state" / "instances"
            testbed.driver = testbed.add_instance()
            await testbed.driver.start()
            await testbed.driver.wait_ready(READY_SECONDS)
            before = _sockets(testbed), sorted(instances.iterdir())
            for moment in ("another instance leads", "driver.app: started"):
                new = testbed.add_instance()
                await new.start()
                await _wait_log(new, moment)
                os.kill(new.pid, signal.SIGTERM)
                ended = await new.stop(READY_SECONDS)
                assert ended.exit_code == 0, ended.log
                assert "Traceback" not in ended.log
                assert (_sockets(testbed), sorted(instances.iterdir())) == before
            await testbed.driver.wait_ready(READY_SECONDS)

    play(story)


def test_dead_sockets_go_at_the_next_start_and_health_is_known_again_when_an_instance_has_gone() -> None:
    """The kubelet forgets all health at the end of a stream; who stays says it again at once."""

    async def story() -> None:
        async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR) as testbed:
            board = testbed.kubelet._health._known
            killed, testbed.driver = testbed.add_instance(), testbed.add_instance()
            await killed.start()
            await killed.wait_ready(READY_SECONDS)
            dead = set(_sockets(testbed))
            await killed.kill()
            await testbed.driver.start()
            await testbed.driver.wait_ready(READY_SECONDS)
            assert len(dead) == len(set(_sockets(testbed)) - dead) == 2
            assert not dead & set(_sockets(testbed))
            await _until(lambda: len(board) == DEVICES)
            await testbed.roll_driver()
            async with asyncio.timeout(3):  # far from the ten seconds of its beat
                await _until(lambda: len(board) == DEVICES)
            assert (await testbed.driver.stop()).exit_code == 0
            assert _sockets(testbed) == []

    play(story)


def test_from_a_version_that_is_alone_to_one_that_overlaps_and_back_one_must_end_first() -> None:
    async def story() -> None:
        async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR) as testbed:
            lone, overlapping = testbed.driver, testbed.add_instance()
            for first, second in ((lone, overlapping), (overlapping, lone)):
                await first.start()
                await first.wait_ready(READY_SECONDS)
                await _assert_refused(second)
                await testbed.kubelet.wait_driver(DRIVER_NAME)
                assert testbed.kubelet.registered_drivers == (DRIVER_NAME,)
                assert (await first.stop()).exit_code == 0
                await second.start()
                await second.wait_ready(READY_SECONDS)
                await second.kill()
                await testbed.kubelet.wait_driver(DRIVER_NAME, registered=False)

    play(story)


async def _assert_refused(driver: DriverProcess) -> None:
    await driver.start()
    async with asyncio.timeout(READY_SECONDS):
        await _until(lambda: not driver.is_running)
    assert "another driver" in log_of(driver).splitlines()[-1]
    assert "pod_uid" in log_of(driver).splitlines()[-1]


def test_a_newcomer_with_another_state_folder_is_refused_and_the_old_one_goes_on() -> None:
    async def story() -> None:
        async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR) as testbed:
            old, new = testbed.add_instance(), testbed.add_instance()
            elsewhere = testbed.places.work_dir / "elsewhere"
            await old.start()
            await old.wait_ready(READY_SECONDS)
            await new.start({"state_dir": str(elsewhere)})
            async with asyncio.timeout(READY_SECONDS):
                await _until(lambda: not new.is_running)
            assert new.exit_code == 2
            assert f"this one has the state folder {elsewhere}" in log_of(new)
            assert old.is_running
            assert testbed.kubelet.registered_drivers == (DRIVER_NAME,)

    play(story)


def test_a_driver_of_another_name_is_refused_the_state_folder_of_the_first() -> None:
    async def story() -> None:
        async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR) as testbed:
            first, second = testbed.add_instance(), testbed.add_instance()
            await first.start()
            await first.wait_ready(READY_SECONDS)
            await second.start({"driver_name": "nic.example.com", "bind_address": "127.0.0.1:9178"})
            async with asyncio.timeout(READY_SECONDS):
                await _until(lambda: not second.is_running)
            assert second.exit_code == 2
            assert "nic.example.com" in log_of(second).splitlines()[-1]
            assert first.is_running

    play(story)


def test_a_newcomer_refuses_a_port_that_is_no_other_instances() -> None:
    async def story() -> None:
        async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR) as testbed:
            with socket.create_server(("127.0.0.1", 9177)):
                driver = testbed.add_instance()
                await driver.start()
                async with asyncio.timeout(READY_SECONDS):
                    await _until(lambda: not driver.is_running)
            assert "cannot listen on 127.0.0.1:9177" in log_of(driver)

    play(story)


def _sockets(testbed: Testbed) -> list[Path]:
    """The driver's; the kubelet has one of its own there."""
    found = (path for path in testbed.places.kubelet_root.rglob("*") if path.is_socket())
    return sorted(path for path in found if path.parent.name != "pod-resources")


async def _wait_log(driver: DriverProcess, text: str) -> None:
    async with asyncio.timeout(READY_SECONDS):
        await _until(lambda: text in log_of(driver))


async def _until(look: Callable[[], bool]) -> None:
    while True:
        if look():
            return
        await asyncio.sleep(0.02)
