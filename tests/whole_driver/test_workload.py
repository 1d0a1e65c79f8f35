"""What containers get for the programs in them, with the whole driver and the stand-in runtime.

The same story with a real containerd is in ``tests/runtime/test_containerd_workload.py``.
"""

from __future__ import annotations

import pytest

from testbed.isolation import WORK_DIR
from testbed.runtimes import stand_in
from tests.runtime import workload_story

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree, pytest.mark.timeout(120)]


def test_a_training_pod_finds_what_its_libraries_need_and_keeps_what_it_set_itself() -> None:
    workload_story.play(stand_in, WORK_DIR)
