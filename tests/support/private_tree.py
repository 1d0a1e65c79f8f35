"""``pytest.mark.private_tree``: the marked test runs in an interpreter of its own, inside a private tree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dranet

REPOSITORY = Path(dranet.__file__).parent.parent

_RUN_ISOLATED = """
import importlib.util, json, sys
from dranet.errors import DranetError
from testbed.isolation import IsolationRefused, run_isolated
path, *names = json.loads(sys.argv[1])
def main():
    spec = importlib.util.spec_from_file_location("isolated_tests", path)
    target = module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    for name in names[:-1]:
        target = getattr(target, name)()
    getattr(target, names[-1])()
    return 0
try:
    sys.exit(run_isolated(main))
except IsolationRefused as refused:
    print(refused)
    sys.exit(3)
"""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "private_tree: the test function runs in an interpreter of its own, inside a private tree"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test in a child interpreter; its output is the failure's text."""
    if pyfuncitem.get_closest_marker("private_tree") is None:
        return None
    names = pyfuncitem.nodeid.split("::")[1:]
    done = subprocess.run(
        [sys.executable, "-c", _RUN_ISOLATED, json.dumps([str(pyfuncitem.path), *names])],
        env=dict(os.environ, PYTHONPATH=str(REPOSITORY)),
        capture_output=True,
        text=True,
        timeout=_find_limit(pyfuncitem.config) - 10,  # pytest's own would show nothing of the child
    )
    if done.returncode == 3:
        pytest.skip(done.stdout.strip())
    if done.returncode != 0:
        pytest.fail(f"{done.stdout}\n{done.stderr}", pytrace=False)
    return True


def _find_limit(config: pytest.Config) -> float:
    """Seconds that a test has without a mark of its own: the virtual machine gives more than the project."""
    return float(config.getoption("timeout") or config.getini("timeout"))
