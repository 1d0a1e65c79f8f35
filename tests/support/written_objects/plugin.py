"""After each test: is everything that the driver wrote in it valid? At the end: was every permission needed?

What the stand-ins of a test saw, in this process or in others, is in a folder named in the environment.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from testbed.apiserver.journal import FOLDER_VARIABLE
from tests.beside import AT_THE_END, find_told
from tests.support.written_objects.journal import JournalReader

READER = pytest.StashKey[JournalReader]()
_PERMISSION = "permission"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{AT_THE_END}: runs after all other tests, and looks at what they did"
    )
    folder = Path(tempfile.mkdtemp(prefix="dranet-journal-"))
    folder.chmod(0o1777)  # tests also run the testbed as another user
    os.environ[FOLDER_VARIABLE] = str(folder)
    config.stash[READER] = JournalReader(folder)
    config.add_cleanup(lambda: shutil.rmtree(folder))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker(AT_THE_END) is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Once the fixtures of a test are down, its servers have written everything."""
    yield
    reader = item.config.stash[READER]
    known = set(reader.get_permissions())
    faults = reader.read_faults()
    item.user_properties += [(_PERMISSION, list(used)) for used in sorted(reader.get_permissions() - known)]
    if faults:
        shown = "\n".join(dict.fromkeys(faults[:20]))
        pytest.fail(f"the driver wrote {len(faults)} things that are not valid:\n{shown}", pytrace=False)


@pytest.fixture
def used_permissions(request: pytest.FixtureRequest) -> set[tuple[str, str, str]]:
    """Group, resource and verb of everything that this run's drivers were allowed so far, in the tests that
    have ended."""
    return {(group, resource, verb) for group, resource, verb in find_told(request.config, _PERMISSION)}
