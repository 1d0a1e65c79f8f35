"""Tests that only real programs can answer: one cluster for the whole run, in the private tree of the run.

``python -m e2e.cluster test`` runs them; what a test makes on the cluster, it takes away again. Each gets
objects in a namespace of its own from :func:`namespace`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from dranet.cluster.client import ApiClient
from dranet.testbed.isolation import WORK_DIR
from dranet.testbed.node.hardware import load_hardware
from e2e.cluster import local
from e2e.cluster.local import LocalCluster
from e2e.cluster.testing import KIT
from e2e.live_cluster import LiveCluster

HARDWARE = "dgx-h100"
LOGS = Path(os.environ.get("E2E_LOGS", ".cache/e2e")).resolve() / "tests"
_NUMBERS = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.cluster)


@pytest_asyncio.fixture(scope="session")
async def cluster(pytestconfig: pytest.Config) -> AsyncIterator[LocalCluster]:
    """The cluster, without the driver."""
    kit = pytestconfig.stash[KIT]
    async with local.open_cluster(kit, load_hardware(HARDWARE), WORK_DIR, LOGS) as opened:
        yield opened


@pytest_asyncio.fixture(scope="session")
async def api(cluster: LocalCluster) -> AsyncIterator[ApiClient]:
    """An administrator's client."""
    async with cluster.plane.connect() as client:
        yield client


@pytest_asyncio.fixture(scope="session")
async def live(cluster: LocalCluster) -> AsyncIterator[LiveCluster]:
    """The cluster with the driver of ``deploy/`` installed and ready, and its device classes."""
    async with LiveCluster(cluster.build_access(), with_classes=True) as opened:
        await opened.driver.start({})
        await opened.driver.wait_ready(120)
        yield opened


@pytest_asyncio.fixture
async def namespace(api: ApiClient) -> AsyncIterator[str]:
    """A namespace of the test's own."""
    name = f"test-{next(_NUMBERS)}"
    item = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await api.apply(f"/api/v1/namespaces/{name}", item, field_manager="dranet-e2e")
    yield name
    await api.delete(f"/api/v1/namespaces/{name}")
