"""The stories of a runtime and our plugin on a real containerd and runc; on the stand-in they are told in
``test_stories_standin.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.containerd.fetch import ContainerdUnavailable, Toolchain
from testbed.containerd.runtime import ContainerdRuntime
from tests.runtime.private_node import in_private_node
from tests.runtime.stories import EVERYWHERE, STORIES, Story, a_stage

pytestmark = [pytest.mark.runtime, pytest.mark.usefixtures("story")]


@pytest.fixture(
    params=[
        pytest.param(story, id=story.__name__, marks=[pytest.mark.both_lanes] if story in EVERYWHERE else [])
        for story in STORIES
    ]
)
def story(request: pytest.FixtureRequest) -> Story:
    told: Story = request.param
    return told


@in_private_node
async def test_story(toolchain: Toolchain, folder: Path, story: Story) -> None:
    runtime = ContainerdRuntime(toolchain, folder / "ctd", folder / "nri.sock", folder / "cdi")
    try:
        async with a_stage(runtime, folder, is_old=toolchain.major < 2) as stage:
            await story(stage)
    except ContainerdUnavailable as error:
        pytest.skip(str(error))
