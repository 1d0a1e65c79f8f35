"""``pytest.mark.shared_node``: the marked tests of a module share one testbed node with one driver.

Booting a node for each would take longer than the tests. They are told one after the other in a child
interpreter, inside a private tree, by :func:`tests.contract.driver_node.run_stories`; then each gets its
outcome.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from testbed.isolation import IsolationRefused, run_isolated

_REPOSITORY = Path(__file__).resolve().parents[2]
_CHILD_SECONDS = 280
"""For all of a module: a busy machine takes twice as long or more. Less than what a single test has."""
_REFUSED = 3

_OUTCOMES = pytest.StashKey[dict[str, str]]()
"""What went wrong, by test; empty if nothing did."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "shared_node: shares one testbed node with the others of its module")
    config.stash[_OUTCOMES] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """The first marked test of a module has the child run them all."""
    if not _is_marked(pyfuncitem):
        return None
    known = pyfuncitem.config.stash[_OUTCOMES]
    if pyfuncitem.nodeid not in known:
        items = pyfuncitem.session.items
        known |= _run_together([item for item in items if item.path == pyfuncitem.path and _is_marked(item)])
    complaint = known[pyfuncitem.nodeid]
    if complaint:
        pytest.fail(complaint, pytrace=False)
    return True


def _is_marked(item: pytest.Item) -> bool:
    return item.get_closest_marker("shared_node") is not None


def _run_together(tests: Sequence[pytest.Item]) -> dict[str, str]:
    """Outcome by node id. Skips where there can be no private tree."""
    module = ".".join(tests[0].path.relative_to(_REPOSITORY).with_suffix("").parts)
    ids = [test.nodeid for test in tests]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "outcomes.json"
        done = subprocess.run(
            [sys.executable, "-m", __name__, str(report), module, *(test.name for test in tests)],
            env=dict(os.environ, PYTHONPATH=str(_REPOSITORY)),
            capture_output=True,
            text=True,
            timeout=_CHILD_SECONDS,
            check=False,
        )
        if done.returncode == _REFUSED:
            pytest.skip(done.stdout.strip())
        if not report.exists():
            complaint = f"no outcomes, exit code {done.returncode}:\n{done.stdout}\n{done.stderr}"
            return dict.fromkeys(ids, complaint)
        return dict(zip(ids, json.loads(report.read_text()), strict=True))


def _tell(module: str, names: Sequence[str], report: Path) -> int:
    """In the private tree."""
    from tests.contract.driver_node import run_stories

    told = importlib.import_module(module)
    stories = [getattr(told, name) for name in names]
    report.write_text(json.dumps(asyncio.run(run_stories(stories))))
    return 0


def main() -> int:
    """In the child."""
    report, module, *names = sys.argv[1:]
    try:
        return run_isolated(lambda: _tell(module, names, Path(report)))
    except IsolationRefused as refused:
        sys.stdout.write(f"{refused}\n")
        return _REFUSED


if __name__ == "__main__":
    sys.exit(main())
