"""The whole driver with the stand-in runtime, killed, stopped and held up inside its hook.

The same stories as with a real containerd (``tests/runtime/test_containerd_driver.py``), which keeps the
stand-in honest.
"""

from __future__ import annotations

import pytest

from dranet.testbed.isolation import WORK_DIR
from dranet.testbed.runtimes import stand_in
from tests.runtime import fail_closed

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree, pytest.mark.timeout(120)]


def test_a_driver_that_is_killed_inside_its_hook_lets_no_container_start_bare() -> None:
    fail_closed.play(
        stand_in, WORK_DIR, fail_closed.a_driver_that_is_killed_inside_its_hook_lets_no_container_start_bare
    )


def test_a_pod_that_goes_while_its_driver_is_dead_gives_its_nic_back() -> None:
    fail_closed.play(
        stand_in, WORK_DIR, fail_closed.a_pod_that_goes_while_its_driver_is_dead_gives_its_nic_back
    )


def test_a_driver_that_hangs_for_longer_than_the_runtime_waits_lets_no_container_start_bare() -> None:
    fail_closed.play(
        stand_in,
        WORK_DIR,
        fail_closed.a_driver_that_hangs_for_longer_than_the_runtime_waits_lets_no_container_start_bare,
    )


def test_a_hook_that_is_held_up_answers_with_an_error_while_the_runtime_still_waits() -> None:
    fail_closed.play(
        stand_in,
        WORK_DIR,
        fail_closed.a_hook_that_is_held_up_answers_with_an_error_while_the_runtime_still_waits,
    )
