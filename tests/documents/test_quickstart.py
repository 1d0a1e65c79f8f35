"""The quickstart: its files are those on the page, and run on a node of the testbed. With a real containerd:
``tests/runtime/test_containerd_quickstart.py``."""

from __future__ import annotations

import pytest

from testbed.isolation import WORK_DIR
from testbed.runtimes import stand_in
from tests.documents import quickstart_story
from tests.documents.quickstart_story import FILES, PAGE


@pytest.mark.parametrize("name", ["values.yaml", "pod.yaml"])
def test_the_page_shows_the_file_that_it_names(name: str) -> None:
    assert f"```yaml\n{(FILES / name).read_text()}```" in PAGE.read_text()


@pytest.mark.testbed
@pytest.mark.timeout(120)
@pytest.mark.private_tree
def test_copied_from_the_page_a_pod_gets_its_nic_and_gives_it_back() -> None:
    quickstart_story.play(stand_in, WORK_DIR)
