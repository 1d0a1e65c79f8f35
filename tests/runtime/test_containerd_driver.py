"""The whole driver under a real containerd and runc, killed, stopped and held up inside its hook."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.containerd.fetch import Toolchain
from testbed.runtimes import containerd
from tests.runtime import fail_closed
from tests.runtime.fail_closed import EVERYWHERE, STORIES, Story
from tests.runtime.private_node import in_own_private_node

pytestmark = [pytest.mark.runtime, pytest.mark.usefixtures("story")]

IN_CONTAINERS = (
    fail_closed.a_pod_has_its_nic_and_opens_its_verbs_node,
    fail_closed.a_pod_has_near_cpus_for_its_queues_in_a_sysfs_that_it_cannot_write,
)
"""Only a real one has the device nodes that it was given, and a sysfs of its own that is read-only."""


@pytest.fixture(
    params=[
        pytest.param(story, id=story.__name__, marks=[pytest.mark.both_lanes] if story in EVERYWHERE else [])
        for story in (*IN_CONTAINERS, *STORIES)
    ]
)
def story(request: pytest.FixtureRequest) -> Story:
    told: Story = request.param
    return told


@in_own_private_node
def test_story(toolchain: Toolchain, folder: Path, story: Story) -> None:
    fail_closed.play(containerd(toolchain), folder, story)
