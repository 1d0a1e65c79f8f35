"""Shared by the tests against a real containerd: its programs, and the private tree that they run in.

Each test that needs a containerd has a *lane*: ``1.7``, on which all of them run, and ``2.x``, on which a few
do (marked ``both_lanes``) unless ``TEST_ALL_RUNTIMES`` is set, as ``make test-runtime`` does.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from testbed.containerd.fetch import (
    ContainerdUnavailable,
    Toolchain,
    fetch_newer_toolchain,
    fetch_toolchain,
)
from testbed.isolation import WORK_DIR
from tests.runtime.private_node import REPOSITORY, find_companions, run_inside

CACHE = REPOSITORY / ".cache" / "containerd"
FETCH = {"1.7": fetch_toolchain, "2.x": fetch_newer_toolchain}
REQUIRED_LANE = "1.7"
ALL_LANES = "TEST_ALL_RUNTIMES"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "both_lanes: runs on the newer containerd, too, with every `make test-all`"
    )


@pytest.hookimpl(trylast=True)  # else the order in a test's name depends on when this file was loaded
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "lane" in metafunc.fixturenames:
        metafunc.parametrize("lane", list(FETCH), indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get(ALL_LANES):
        return
    left_out = [item for item in items if _lane_of(item) != REQUIRED_LANE and not _is_for_both(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _lane_of(item: pytest.Item) -> str:
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        return str(item.callspec.params.get("lane", REQUIRED_LANE))
    return REQUIRED_LANE


def _is_for_both(item: pytest.Item) -> bool:
    return item.get_closest_marker("both_lanes") is not None


@pytest.fixture(scope="session")
def lane(request: pytest.FixtureRequest) -> str:
    """Which containerd."""
    return str(request.param)


@pytest.fixture(scope="session")
def toolchain(lane: str) -> Toolchain:
    if os.geteuid() != 0:
        pytest.skip("NotRoot: containerd and runc need root")
    try:
        return FETCH[lane](CACHE, report=print)
    except ContainerdUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def inside(
    lane: str,
    toolchain: Toolchain,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Mapping[str, ET.Element]:
    """The reports of this file's tests that share a private tree, for one lane."""
    assert toolchain.bin_dir.is_dir()
    return run_inside(request, find_companions(request, lane), tmp_path_factory.mktemp("inside"))


@pytest.fixture
def inside_alone(toolchain: Toolchain, request: pytest.FixtureRequest, tmp_path: Path) -> ET.Element:
    """The report of this one test, which had a private tree of its own."""
    assert toolchain.bin_dir.is_dir()
    return run_inside(request, [request.node.nodeid], tmp_path)[request.node.name]


@pytest.fixture
def folder() -> Path:
    """The test's own, with a short path: a UNIX socket's has 107 bytes. It goes with the private tree."""
    return Path(tempfile.mkdtemp(dir=WORK_DIR))
