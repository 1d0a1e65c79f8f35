"""Linters that exist only in Go: built by ``go tool`` from the versions that ``tools/go`` locks."""

from __future__ import annotations

import os
import subprocess

import pytest

from e2e.access import LaneUnavailable
from e2e.cluster.build import find_go
from tools.project import REPOSITORY

FOLDER = REPOSITORY / "tools/go"


def run_go_tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one; skip the test where there is no Go, or its modules cannot be fetched."""
    try:
        go = find_go()
    except LaneUnavailable as error:
        pytest.skip(str(error))
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off"}
    fetched = subprocess.run(
        [go, "mod", "download"], cwd=FOLDER, env=environment, capture_output=True, text=True
    )
    if fetched.returncode != 0:
        pytest.skip(f"go mod download: {fetched.stderr.strip()[-200:]}")
    return subprocess.run(
        [go, "tool", name, *arguments], cwd=FOLDER, env=environment, capture_output=True, text=True
    )
