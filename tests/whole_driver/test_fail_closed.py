"""The whole driver with the stand-in runtime, killed, stopped and held up inside its hook.

The same stories as with a real containerd (``tests/runtime/test_containerd_driver.py``), which keeps the
stand-in honest.
"""

from __future__ import annotations

import pytest

from testbed.cluster import Places
from testbed.isolation import WORK_DIR
from testbed.node.node import Node
from testbed.runtime.contract import PodRuntime
from testbed.runtime.nri_link import NriCapabilities
from testbed.runtime.standin import StandInRuntime
from testbed.runtimes import stand_in
from tests.runtime import fail_closed

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree, pytest.mark.timeout(120)]


def test_a_pod_that_outlives_its_runtime_keeps_its_nic_and_gives_it_back() -> None:
    fail_closed.play(
        stand_in, WORK_DIR, fail_closed.a_pod_that_outlives_its_runtime_keeps_its_nic_and_gives_it_back
    )


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


def test_a_hook_that_is_held_up_is_answered_in_time_and_its_work_goes_on() -> None:
    fail_closed.play(
        stand_in,
        WORK_DIR,
        fail_closed.a_hook_that_is_held_up_is_answered_in_time_and_its_work_goes_on,
    )


def test_a_driver_whose_threads_never_rest_attaches_in_time() -> None:
    fail_closed.play(stand_in, WORK_DIR, fail_closed.a_driver_whose_threads_never_rest_attaches_in_time)


def test_a_second_pod_of_the_claim_gets_no_container_while_no_driver_is_there() -> None:
    fail_closed.play(
        stand_in,
        WORK_DIR,
        fail_closed.a_second_pod_of_the_claim_gets_no_container_while_no_driver_is_there,
    )


def stand_in_as_1_7(places: Places, _: Node) -> PodRuntime:
    """It names no namespace when a pod stops, and nobody rescues what is in it then."""
    capabilities = NriCapabilities(nri_version="0.6.1", stop_without_netns_path=True)
    return StandInRuntime(places.nri_socket, places.cdi_dir, places.netns_dir, capabilities=capabilities)


def test_a_pod_gives_its_nic_back_though_the_runtime_does_not_say_from_where() -> None:
    fail_closed.play(stand_in_as_1_7, WORK_DIR, fail_closed.a_pod_has_its_nic_and_gives_it_back)
