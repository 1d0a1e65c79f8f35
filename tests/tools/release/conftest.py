"""Shared by the tests of a release: the folder of ``make release-dry-run`` that ``RELEASE_FOLDER`` names, as
in CI; else its parts, made for these tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from e2e.release import find_release
from tools.project import REPOSITORY

MAKE_SECONDS = 300
"""What a test may take that makes a part of a release."""


def make(folder: Path, *parts: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.release", "build", "--output", str(folder), "--only", *parts]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=MAKE_SECONDS)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything but the images, at least."""
    if whole := find_release():
        return whole
    folder = tmp_path_factory.mktemp("release")
    done = make(folder, "python", "chart", "notes", "plugin", "seal")
    assert done.returncode == 0, done.stderr
    return folder
