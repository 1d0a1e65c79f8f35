"""Shared by the stories of a driver under attack."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def node() -> None:
    """Stands for the node that a ``shared_node`` test is given in the child."""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Short enough for the paths of UNIX sockets."""
    with tempfile.TemporaryDirectory(prefix="ho-") as name:
        yield Path(name)
