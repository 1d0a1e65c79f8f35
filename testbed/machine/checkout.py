"""A frozen copy of the checkout for the guest: what the guest reads by 9p must not change while it runs.

Everything is compiled on the host first, test modules with pytest's rewriting too: that alone would take the
guest, in which Python is some 25 times slower, half a minute.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import dranet
from testbed.machine.fetch import Cause, MachineUnavailable

REPOSITORY = Path(dranet.__file__).parent.parent

_PARTS = ("dranet", "testbed", "tools", "tests", "deploy", "examples", "pyproject.toml")

_COLLECT_TIMEOUT_SECONDS = 120.0


def freeze_checkout(target: Path, tests: Sequence[str]) -> Path:
    """Copy what the tests need to ``target`` and compile it; returns ``target``.

    Raises:
        MachineUnavailable: dranet was installed without its tests.
    """
    if not (REPOSITORY / "tests" / "machine").is_dir():
        raise MachineUnavailable(
            Cause.NO_CHECKOUT, f"{REPOSITORY} has no tests/machine; run it from a checkout"
        )
    target.mkdir()
    for name in _PARTS:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)
    _compile(target, "-m", "compileall", "-q", "-j", "0", "dranet", "testbed", "tests")
    # What does not collect here is told by the guest's pytest, with its reason.
    _compile(target, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *tests)
    return target


def _compile(folder: Path, *arguments: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(
        [sys.executable, *arguments],
        check=False,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_COLLECT_TIMEOUT_SECONDS,
    )
