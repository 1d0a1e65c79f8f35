"""Tests that only real programs can answer: one cluster for the whole run, in the private tree of the run.

``python -m e2e.cluster test`` runs them; what a test makes on the cluster, it takes away again. Each gets
objects in a namespace of its own from :func:`namespace`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from dranet.cluster.client import ApiClient
from e2e.cluster import described_node, local
from e2e.cluster.local import LocalCluster, Options
from e2e.cluster.testing import KIT
from e2e.live_cluster import LiveCluster
from e2e.tests.pods import PodMaker, find_difference, wait_until
from e2e.tests.shell import Shell
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware

HARDWARE = "dgx-h100"
HEALTH = {f"health_{name}_seconds": "1" for name in ("raise", "clear", "training")}
"""A fault counts at once, and is cleared at once."""
GATES = ("DRADeviceTaints", "DRAExtendedResource", "ResourceHealthStatus")
LOGS = Path(os.environ.get("E2E_LOGS", ".cache/e2e")).resolve() / "tests"
_NUMBERS = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that want a cluster without the driver, which ``live`` keeps to the end."""
    for item in items:
        item.add_marker(pytest.mark.cluster)
    items.sort(key=lambda item: "live" in getattr(item, "fixturenames", ()))


@pytest_asyncio.fixture(scope="session")
async def cluster(pytestconfig: pytest.Config) -> AsyncIterator[LocalCluster]:
    """The cluster, without the driver."""
    kit = pytestconfig.stash[KIT]
    options = choose_options(kit.control_plane.kubernetes.version)
    async with local.open_cluster(kit, load_hardware(HARDWARE), WORK_DIR, LOGS, options) as opened:
        yield opened


def choose_options(version: str) -> Options:
    """What is on by default from 1.36 is also switched on before it."""
    is_old = tuple(map(int, version.split(".")[:2])) < (1, 36)
    own = described_node.choose_options(version)
    gates = dict.fromkeys(GATES, True) if is_old else {}
    apis = ("resource.k8s.io/v1alpha3=true",) if is_old else ()
    return Options(
        feature_gates={**gates, **own.feature_gates},
        runtime_config=(*apis, *own.runtime_config),
        has_static_pods=True,
        has_audit=True,
    )


@pytest_asyncio.fixture(scope="session")
async def api(cluster: LocalCluster) -> AsyncIterator[ApiClient]:
    """An administrator's client."""
    async with cluster.plane.connect() as client:
        yield client


@pytest_asyncio.fixture(scope="session")
async def live(cluster: LocalCluster) -> AsyncIterator[LiveCluster]:
    """The cluster with the driver of ``deploy/`` installed and ready, and its device classes."""
    async with LiveCluster(cluster.build_access(), with_classes=True) as opened:
        await opened.driver.start(HEALTH)
        await opened.driver.wait_ready(120)
        yield opened


@pytest_asyncio.fixture
async def pods(live: LiveCluster, namespace: str) -> AsyncIterator[PodMaker]:
    async with open_pods(live, namespace) as maker:
        yield maker


@asynccontextmanager
async def open_pods(live: LiveCluster, namespace: str) -> AsyncIterator[PodMaker]:
    """Makes pods with NICs, and sees to it that the node is afterwards as it was before."""
    before = await live.read_host_state()
    maker = PodMaker(live, namespace)
    yield maker
    await maker.delete_all()
    await wait_until(lambda: find_difference(live, before), "the node as it was", 60)


@pytest_asyncio.fixture
async def namespace(api: ApiClient) -> AsyncIterator[str]:
    """A namespace of the test's own."""
    async with open_namespace(api) as name:
        yield name


@asynccontextmanager
async def open_namespace(api: ApiClient) -> AsyncIterator[str]:
    name = f"test-{next(_NUMBERS)}"
    item = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await api.apply(f"/api/v1/namespaces/{name}", item, field_manager="dranet-e2e")
    yield name
    await api.delete(f"/api/v1/namespaces/{name}")


@pytest_asyncio.fixture(scope="session")
async def shell(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """Commands of an administrator."""
    return Shell(cluster, tmp_path_factory.mktemp("home"))
