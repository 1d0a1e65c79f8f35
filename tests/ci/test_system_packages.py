"""``.ci/system-packages`` on machines that this one is not: offline, or with nothing missing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).parents[2] / ".ci" / "system-packages"
OLD = 'case "$*" in *version_info*) exit 1;; *--version*) echo Python 3.9.2;; esac'
WITHOUT_VENV = 'case "$*" in *ensurepip*) exit 1;; esac'


def run(folder: Path, python: str, apt_get: str) -> subprocess.CompletedProcess[str]:
    """With an interpreter and an ``apt-get`` that do what these scripts say."""
    for name, script in (("python", python), ("apt-get", apt_get)):
        program = folder / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    command = ["sh", str(SCRIPT), str(folder / "python")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_without_a_network_it_names_what_is_missing_and_how_to_install_it(tmp_path: Path) -> None:
    done = run(tmp_path, WITHOUT_VENV, "echo 'E: no route to the mirror' >&2; exit 100")
    assert done.returncode == 1
    assert "missing packages: python3-venv" in done.stderr
    assert "sudo apt-get install python3-venv" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may install packages")
def test_root_gets_them_installed(tmp_path: Path) -> None:
    done = run(tmp_path, WITHOUT_VENV, f"echo $* >>{tmp_path}/calls")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "calls").read_text().splitlines()[-1].endswith(" python3-venv")


def test_a_python_that_is_too_old_is_named_with_its_version(tmp_path: Path) -> None:
    done = run(tmp_path, OLD, "exit 0")
    assert done.returncode == 1
    assert "dranet needs Python 3.11 or newer" in done.stderr
    assert "Python 3.9.2" in done.stderr
