"""The quickstart, copied from its page: a real containerd, the driver in a container with its rights."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.containerd.fetch import Toolchain
from testbed.driver.pod import driver_in_a_pod
from tests.documents import quickstart_story
from tests.runtime.private_node import in_own_private_node

pytestmark = pytest.mark.runtime


@in_own_private_node
def test_copied_from_the_page_a_pod_gets_its_nic_and_gives_it_back(
    toolchain: Toolchain, folder: Path
) -> None:
    quickstart_story.play(driver_in_a_pod(toolchain), folder)
