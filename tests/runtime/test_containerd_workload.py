"""What containers get for the programs in them, under a real containerd and runc."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.containerd.fetch import Toolchain
from testbed.runtimes import containerd
from tests.runtime import workload_story
from tests.runtime.private_node import in_own_private_node

pytestmark = pytest.mark.runtime


@in_own_private_node
def test_a_training_pod_finds_what_its_libraries_need_and_keeps_what_it_set_itself(
    toolchain: Toolchain, folder: Path
) -> None:
    workload_story.play(containerd(toolchain), folder)
