"""Tests that run in a private tree of namespaces (the testbed's isolation), in a child pytest.

What is seen outside are their results: each test of a file reports there what became of it inside.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
INSIDE = "TEST_INSIDE_PRIVATE_NODE"
REFUSED = 77

ISOLATE = f"""
import sys, pytest
from testbed.isolation import IsolationRefused, run_isolated
try:
    sys.exit(run_isolated(lambda: int(pytest.main(sys.argv[1:]))))
except IsolationRefused as refused:
    print(refused)
    sys.exit({REFUSED})
"""

_TIMEOUT_SECONDS = 280

Test = Callable[..., object]


def in_private_node(test: Test) -> Test:
    """Inside the private tree this is the test itself; outside, it reports what became of it there. All such
    tests of a file share one tree."""
    if os.environ.get(INSIDE):
        return test

    @pytest.mark.timeout(_TIMEOUT_SECONDS + 20)
    def outside(request: pytest.FixtureRequest, inside: Mapping[str, ET.Element]) -> None:
        _tell(inside[request.node.name])

    outside.__doc__ = test.__doc__
    return outside


def in_own_private_node(test: Test) -> Test:
    """As :func:`in_private_node`, in a tree of its own: for a whole testbed, whose links go with the tree."""
    if os.environ.get(INSIDE):
        return test

    @pytest.mark.timeout(_TIMEOUT_SECONDS + 20)
    def outside(inside_alone: ET.Element) -> None:
        _tell(inside_alone)

    outside.__doc__ = test.__doc__
    return outside


def _tell(report: ET.Element) -> None:
    for kind in report:
        if kind.tag == "skipped":
            pytest.skip(kind.get("message", ""))
        if kind.tag in {"failure", "error"}:
            pytest.fail(kind.text or "failed without a word", pytrace=False)


def find_companions(request: pytest.FixtureRequest, lane: str) -> Sequence[str]:
    """The chosen tests of the requesting file that share a tree."""
    items = [item for item in request.session.items if item.path == request.path]
    sharing = [item for item in items if isinstance(item, pytest.Function) and "inside" in item.fixturenames]
    return [item.nodeid for item in sharing if item.callspec.params["lane"] == lane]


def run_inside(
    request: pytest.FixtureRequest, chosen: Sequence[str], folder: Path
) -> Mapping[str, ET.Element]:
    """Run tests in one private tree: name -> JUnit report."""
    report = folder / "report.xml"
    done = subprocess.run(
        [sys.executable, "-c", ISOLATE, "-p", "no:cacheprovider", f"--junitxml={report}", *chosen],
        cwd=request.config.rootpath,
        env={**os.environ, INSIDE: "1", "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
    )
    if done.returncode == REFUSED:
        pytest.skip(done.stdout.strip())
    assert report.exists(), done.stdout + done.stderr
    return {case.get("name", ""): case for case in ET.parse(report).iter("testcase")}
