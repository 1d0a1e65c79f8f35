"""Stories of a driver under attack, told one after the other on one testbed node in a private tree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
_CHILD_SECONDS = 280
"""For all stories of a child together: a machine that does much else takes twice as long or more."""
_REFUSED = 3
_TELL = """
import asyncio, importlib, json, sys
from dranet.testbed.isolation import IsolationRefused, run_isolated
module, names, report = json.loads(sys.argv[1])
def main():
    from tests.contract.driven import run_stories
    told = importlib.import_module(module)
    outcomes = asyncio.run(run_stories([getattr(told, name) for name in names]))
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


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "under_attack: shares one testbed node with the others of its module")
    config.stash[_OUTCOMES] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """The first marked test of a module runs all of that module; each then gets its own outcome."""
    if pyfuncitem.get_closest_marker("under_attack") is None:
        return None
    known = pyfuncitem.config.stash[_OUTCOMES]
    if pyfuncitem.nodeid not in known:
        known |= _tell([item for item in pyfuncitem.session.items if _is_beside(item, pyfuncitem)])
    if known[pyfuncitem.nodeid]:
        pytest.fail(known[pyfuncitem.nodeid], pytrace=False)
    return True


def _is_beside(item: pytest.Item, other: pytest.Item) -> bool:
    return item.path == other.path and item.get_closest_marker("under_attack") is not None


def _tell(tests: list[pytest.Item]) -> dict[str, str]:
    """What went wrong, by node id; empty if nothing did."""
    module = ".".join(tests[0].path.relative_to(REPOSITORY).with_suffix("").parts)
    ids = [test.nodeid for test in tests]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "outcomes.json"
        done = subprocess.run(
            [sys.executable, "-c", _TELL, json.dumps([module, [test.name for test in tests], str(report)])],
            env=dict(os.environ, PYTHONPATH=str(REPOSITORY)),
            capture_output=True,
            text=True,
            timeout=_CHILD_SECONDS,
        )
        if done.returncode == _REFUSED:
            pytest.skip(done.stdout.strip())
        if not report.exists():
            return dict.fromkeys(ids, f"no outcomes, exit {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return dict(zip(ids, json.loads(report.read_text()), strict=True))


@pytest.fixture
def node() -> None:
    """Stands for the node that a story is given in the child."""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Short enough for the paths of UNIX sockets."""
    with tempfile.TemporaryDirectory(prefix="ho-") as name:
        yield Path(name)
