"""The whole driver under a real containerd and runc, killed, stopped and held up inside its hook."""

from __future__ import annotations

from pathlib import Path

import pytest

from dranet.testbed.containerd.fetch import Toolchain
from dranet.testbed.runtimes import containerd
from tests.runtime import fail_closed
from tests.runtime.private_node import in_own_private_node

pytestmark = pytest.mark.runtime


@in_own_private_node
def test_a_pod_has_its_nic_and_opens_its_verbs_node(toolchain: Toolchain, folder: Path) -> None:
    fail_closed.play(containerd(toolchain), folder, fail_closed.a_pod_has_its_nic_and_opens_its_verbs_node)


@in_own_private_node
def test_a_driver_that_is_killed_inside_its_hook_lets_no_container_start_bare(
    toolchain: Toolchain, folder: Path
) -> None:
    fail_closed.play(
        containerd(toolchain),
        folder,
        fail_closed.a_driver_that_is_killed_inside_its_hook_lets_no_container_start_bare,
    )


@in_own_private_node
def test_a_pod_that_goes_while_its_driver_is_dead_gives_its_nic_back(
    toolchain: Toolchain, folder: Path
) -> None:
    fail_closed.play(
        containerd(toolchain), folder, fail_closed.a_pod_that_goes_while_its_driver_is_dead_gives_its_nic_back
    )


@in_own_private_node
def test_a_driver_that_hangs_for_longer_than_the_runtime_waits_lets_no_container_start_bare(
    toolchain: Toolchain, folder: Path
) -> None:
    fail_closed.play(
        containerd(toolchain),
        folder,
        fail_closed.a_driver_that_hangs_for_longer_than_the_runtime_waits_lets_no_container_start_bare,
    )


@in_own_private_node
def test_a_hook_that_is_held_up_answers_with_an_error_while_the_runtime_still_waits(
    toolchain: Toolchain, folder: Path
) -> None:
    fail_closed.play(
        containerd(toolchain),
        folder,
        fail_closed.a_hook_that_is_held_up_answers_with_an_error_while_the_runtime_still_waits,
    )
