"""After each test: is everything that the driver wrote in it valid?

The permissions that it used are noted for the end of the run (:mod:`tests.support.whole_run`). What the
stand-ins of a test saw, in this process or in others, is in a folder named in the environment.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from testbed.apiserver.journal import FOLDER_VARIABLE
from tests.support.written_objects.journal import JournalReader

READER = pytest.StashKey[JournalReader]()
PERMISSION = "permission"
"""The user property with a group, a resource and a verb that a driver was allowed in a test."""


def pytest_configure(config: pytest.Config) -> None:
    folder = Path(tempfile.mkdtemp(prefix="dranet-journal-"))
    folder.chmod(0o1777)  # tests also run the testbed as another user
    os.environ[FOLDER_VARIABLE] = str(folder)
    config.stash[READER] = JournalReader(folder)
    config.add_cleanup(lambda: shutil.rmtree(folder))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Once the fixtures of a test are down, its servers have written everything."""
    yield
    reader = item.config.stash[READER]
    known = set(reader.get_permissions())
    faults = reader.read_faults()
    item.user_properties += [(PERMISSION, list(used)) for used in sorted(reader.get_permissions() - known)]
    if faults:
        shown = "\n".join(dict.fromkeys(faults[:20]))
        pytest.fail(f"the driver wrote {len(faults)} things that are not valid:\n{shown}", pytrace=False)
