"""Commands of the repository that start a real control plane."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster import build

_REPOSITORY = Path(__file__).resolve().parents[2]
_CANNOT_RUN_HERE = 3


def run_module(module: str, version: str, *words: str) -> str:
    """Run ``python -m module`` and return what it prints. Skip where ``version`` cannot run."""
    if build.find_built(build.kubernetes(version)) is None:
        pytest.skip(f"Kubernetes {version} is not built: make cluster")
    done = subprocess.run(
        [sys.executable, "-m", module, *words], cwd=_REPOSITORY, capture_output=True, text=True, check=False
    )
    if done.returncode == _CANNOT_RUN_HERE:
        pytest.skip((done.stderr or done.stdout).strip())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
