"""Folders short enough for UNIX sockets (pytest's own can pass 107 bytes)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def kubelet_root() -> Iterator[Path]:
    """A kubelet's root folder with an empty registry."""
    with tempfile.TemporaryDirectory(prefix="kr-") as name:
        root = Path(name)
        (root / "plugins_registry").mkdir()
        yield root
