"""The quickstart: its files are those on the page, and run on a node of the testbed. With a real containerd:
``tests/runtime/test_containerd_quickstart.py``."""

from __future__ import annotations

import re

import pytest

from dranet import __version__
from dranet.testbed.isolation import WORK_DIR
from dranet.testbed.runtimes import stand_in
from tests.documents import quickstart_story
from tests.documents.quickstart_story import FILES, PAGE


@pytest.mark.parametrize("name", ["values.yaml", "pod.yaml"])
def test_the_page_shows_the_file_that_it_names(name: str) -> None:
    assert f"```yaml\n{(FILES / name).read_text()}```" in PAGE.read_text()


def test_the_page_names_the_image_as_it_is_built() -> None:
    named = re.findall(r"dranet[-:](\d+\.\d+\.\d+)", PAGE.read_text())
    assert len(named) >= 4
    assert set(named) == {__version__}


@pytest.mark.testbed
@pytest.mark.timeout(120)
@pytest.mark.private_tree
def test_copied_from_the_page_a_pod_gets_its_nic_and_gives_it_back() -> None:
    quickstart_story.play(stand_in, WORK_DIR)
