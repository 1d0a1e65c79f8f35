"""The stories of a runtime and our plugin on the stand-in, as it plays each containerd.

What keeps it honest is ``test_stories_containerd.py``, where they are told of the real ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.runtime.nri_link import NriCapabilities
from testbed.runtime.standin import StandInRuntime
from tests.runtime.stories import STORIES, Story, a_stage

pytestmark = pytest.mark.testbed

PLAYED = {
    "1.7": NriCapabilities(nri_version="0.6.1", stop_without_netns_path=True),
    "2.x": NriCapabilities(),
}


@pytest.mark.parametrize("played", PLAYED)
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_story(story: Story, played: str, tmp_path: Path) -> None:
    runtime = StandInRuntime(
        tmp_path / "nri.sock", tmp_path / "cdi", tmp_path / "netns", capabilities=PLAYED[played]
    )
    async with a_stage(runtime, tmp_path, is_old=played == "1.7") as stage:
        await story(stage)
