"""Shared by the contract suite: short folders for sockets."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def node() -> None:
    """Stands for the node that a ``shared_node`` test is given in the child."""


@pytest.fixture
def root() -> Iterator[Path]:
    """A kubelet's root folder with an empty registry, short enough for the paths of UNIX sockets."""
    with tempfile.TemporaryDirectory(prefix="kr-") as name:
        (Path(name) / "plugins_registry").mkdir()
        yield Path(name)
