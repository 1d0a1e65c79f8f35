"""The way out of the real process, over signals: inside its time at any moment, and whatever its peers do."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import dranet
from dranet.cluster import paths
from dranet.driver.app import END_SECONDS, EXIT_FORCED, LAST_LOG_SECONDS
from dranet.driver.instances.leader import FLUSH_SECONDS
from dranet.settings import Settings
from testbed.apiserver.faults import Trouble
from testbed.cluster import Testbed
from testbed.driver.process import DriverProcess
from testbed.isolation import WORK_DIR
from tests.support.waiting import until
from tests.whole_driver.shutdowns import (
    DEFAULT_GRACE_SECONDS,
    DRAIN_SECONDS,
    READY_SECONDS,
    SLACK_SECONDS,
    end,
    log_of,
    play,
    pod,
    start,
)

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree]

UPDATES_PAGE = Path(dranet.__file__).parents[1] / "docs/operations/upgrades.md"


def test_the_longest_end_is_inside_the_grace_period_of_every_pod_of_the_driver() -> None:
    longest = Settings().drain_seconds + END_SECONDS + LAST_LOG_SECONDS
    documented = re.search(r"terminationGracePeriodSeconds: (\d+)", UPDATES_PAGE.read_text())
    assert documented is not None
    assert longest < DEFAULT_GRACE_SECONDS < int(documented[1])


def test_a_second_sigterm_changes_nothing_and_tells_what_is_waited_for_and_a_second_sigint_ends_at_once() -> (
    None
):
    """The kubelet and the runtime repeat SIGTERM when they restart; a person at the keyboard means it."""

    async def story(testbed: Testbed) -> None:
        driver = await start(testbed)
        testbed.kubelet.hold_sandboxes(True)
        await testbed.apply(pod())
        await testbed.kubelet.wait_prepared(testbed.pod_uid("worker"))
        ended = await end(driver, signal.SIGTERM, signal.SIGTERM, heard="default/worker")
        ended.assert_clean(5)
        assert re.search(
            r"asked to stop again.*sandboxes of prepared pods have not run: default/worker", ended.log
        )
        driver = await start(testbed)
        ended = await end(driver, signal.SIGINT, signal.SIGINT, heard="default/worker")
        assert ended.exit_code == EXIT_FORCED
        assert ended.seconds < 2 + SLACK_SECONDS
        assert re.search(r"by force, stopped again \(SIGINT\).*default/worker", ended.log)
        testbed.kubelet.hold_sandboxes(False)
        await start(testbed)
        await testbed.kubelet.wait_running(testbed.pod_uid("worker"))

    play(story, drain_seconds="3")


def test_told_to_stop_at_any_moment_of_the_start_it_ends_well_and_leaves_nothing() -> None:
    async def story(testbed: Testbed) -> None:
        state = testbed.places.work_dir / "state"
        moments: list[Callable[[], bool]] = [
            lambda: any(state.glob("instances/*.lock")),
            (state / "claims").exists,
            lambda: bool(sockets(testbed)),
            lambda: "connected to the runtime" in log_of(testbed.driver),
            lambda: "driver.app: started" in log_of(testbed.driver),
        ]
        for number, moment in enumerate(moments):
            shutil.rmtree(state / "claims", ignore_errors=True)
            testbed.driver.log_file.unlink(missing_ok=True)
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
    """The driver's; the kubelet has one of its own."""
    folders = (testbed.places.kubelet_root / name for name in ("plugins", "plugins_registry"))
    return sorted(path for folder in folders for path in folder.rglob("*") if path.is_socket())


def test_told_to_stop_while_it_takes_the_duties_over_it_ends_well() -> None:
    async def story(testbed: Testbed) -> None:
        for signal_of_old in (signal.SIGKILL, signal.SIGTERM):
            old, new = testbed.add_instance(), testbed.add_instance()
            await old.start()
            await old.wait_ready(READY_SECONDS)
            await new.start()
            await until(partial(_has_said, new, "another instance leads"))
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
