"""Shared by the contract suite: short folders for sockets, and tests that share one node with the driver.

Tests that are marked ``one_tree`` run in one child interpreter, inside a private tree: one testbed, one
driver, one test after the other. Booting a node for each would take longer than the tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import dranet

_REPOSITORY = Path(dranet.__file__).parent.parent
_CHILD_SECONDS = 280
"""For all stories of a child together: a machine that does much else takes twice as long or more."""
_REFUSED = 3

_RUN_IN_ONE_TREE = """
import asyncio, importlib, json, sys
from dranet.testbed.isolation import IsolationRefused, run_isolated
named, report = json.loads(sys.argv[1])
def main():
    from tests.contract.driven import run_stories
    stories = [getattr(importlib.import_module(module), name) for module, name in named]
    outcomes = asyncio.run(run_stories(stories))
    with open(report, "w") as file:
        json.dump(outcomes, file)
    return 0
try:
    sys.exit(run_isolated(main))
except IsolationRefused as refused:
    print(refused)
    sys.exit(3)
"""

_OUTCOMES = pytest.StashKey[dict[str, str]]()
"""What went wrong, by test; empty if nothing did."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "one_tree: shares one testbed node with all others of its kind")
    config.stash[_OUTCOMES] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """The first marked test of the session runs them all; each then gets its own outcome."""
    if not _shares_tree(pyfuncitem):
        return None
    known = pyfuncitem.config.stash[_OUTCOMES]
    if pyfuncitem.nodeid not in known:
        known |= _run_together([item for item in pyfuncitem.session.items if _shares_tree(item)])
    complaint = known[pyfuncitem.nodeid]
    if complaint:
        pytest.fail(complaint, pytrace=False)
    return True


def _shares_tree(item: pytest.Item) -> bool:
    return item.get_closest_marker("one_tree") is not None


def _run_together(tests: list[pytest.Item]) -> dict[str, str]:
    """Outcome by node id."""
    named = [
        (".".join(test.path.relative_to(_REPOSITORY).with_suffix("").parts), test.name) for test in tests
    ]
    ids = [test.nodeid for test in tests]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "outcomes.json"
        done = subprocess.run(
            [sys.executable, "-c", _RUN_IN_ONE_TREE, json.dumps([named, str(report)])],
            env=dict(os.environ, PYTHONPATH=str(_REPOSITORY)),
            capture_output=True,
            text=True,
            timeout=_CHILD_SECONDS,
        )
        if done.returncode == _REFUSED:
            pytest.skip(done.stdout.strip())
        if not report.exists():
            complaint = f"no outcomes, exit code {done.returncode}:\n{done.stdout}\n{done.stderr}"
            return dict.fromkeys(ids, complaint)
        return dict(zip(ids, json.loads(report.read_text()), strict=True))


@pytest.fixture
def node() -> None:
    """Stands for the node that a ``one_tree`` test is given in the child."""


@pytest.fixture
def root() -> Iterator[Path]:
    """A kubelet's root folder with an empty registry, short enough for the paths of UNIX sockets."""
    with tempfile.TemporaryDirectory(prefix="kr-") as name:
        (Path(name) / "plugins_registry").mkdir()
        yield Path(name)
