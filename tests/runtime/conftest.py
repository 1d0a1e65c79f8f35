"""Shared by the tests against a real containerd: its programs, and the private tree that they run in."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from dranet.testbed.containerd.fetch import ContainerdUnavailable, Toolchain, fetch_toolchain
from dranet.testbed.isolation import WORK_DIR
from tests.runtime.private_node import REPOSITORY, find_companions, run_inside

CACHE = REPOSITORY / ".cache" / "containerd"


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    if os.geteuid() != 0:
        pytest.skip("NotRoot: containerd and runc need root")
    try:
        return fetch_toolchain(CACHE, report=print)
    except ContainerdUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def inside(
    toolchain: Toolchain, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, ET.Element]:
    """The reports of this file's tests that share a private tree."""
    assert toolchain.bin_dir.is_dir()
    return run_inside(request, find_companions(request), tmp_path_factory.mktemp("inside"))


@pytest.fixture
def inside_alone(toolchain: Toolchain, request: pytest.FixtureRequest, tmp_path: Path) -> ET.Element:
    """The report of this one test, which had a private tree of its own."""
    assert toolchain.bin_dir.is_dir()
    return run_inside(request, [request.node.nodeid], tmp_path)[request.node.name]


@pytest.fixture
def folder() -> Path:
    """The test's own, with a short path: a UNIX socket's has 107 bytes. It goes with the private tree."""
    return Path(tempfile.mkdtemp(dir=WORK_DIR))
