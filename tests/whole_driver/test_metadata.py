"""What containers find about their devices, with the whole driver and the stand-in runtime.

The same story with a real containerd is in ``tests/runtime/test_containerd_metadata.py``.
"""

from __future__ import annotations

import pytest

from testbed.isolation import WORK_DIR
from testbed.runtimes import stand_in
from tests.runtime import metadata_story

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree, pytest.mark.timeout(120)]


def test_a_training_pod_and_a_monitoring_pod_find_what_concerns_them() -> None:
    metadata_story.play(stand_in, WORK_DIR)
