"""``kubectl`` from the distribution's packages, without installing anything: it judges what pages say."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from testbed.debian.packages import Unavailable
from testbed.debian.program import KUBECTL
from tests.documents.commands import Command

PLUGIN = "dranet"
"""Our own command line, which kubectl runs as ``kubectl dranet``."""


def find_kubectl() -> Path:
    """The program, from the cache or fetched; without it the test is skipped with the cause."""
    try:
        return KUBECTL.fetch()
    except Unavailable as shortage:
        pytest.skip(f"kubectl: {shortage}")


def complain(kubectl: Path, command: Command) -> list[str]:
    """What ``kubectl`` says of a command's flags: it reads them all before it gives the help that is asked
    for behind them. Nothing of what is behind ``--`` is its business."""
    words = list(command[1:])
    if words[0] == PLUGIN:
        return []  # tests/cli/test_completion.py has kubectl itself run it
    end = words.index("--") if "--" in words else len(words)
    asked = [str(kubectl), *words[:end], "--help"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    return [f"{' '.join(command)}: {done.stderr}"] if done.returncode else []
