"""A cluster of the oldest version, with the features that are on by default, to be upgraded."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from e2e.cluster import local
from e2e.cluster.controlplane import ControlPlaneKit
from e2e.cluster.local import LocalCluster
from e2e.cluster.testing import KIT, NEWER
from e2e.tests.conftest import HARDWARE, LOGS
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware


@pytest_asyncio.fixture(scope="session")
async def cluster(pytestconfig: pytest.Config) -> AsyncIterator[LocalCluster]:
    """The cluster, without the driver."""
    kit, logs = pytestconfig.stash[KIT], LOGS.with_name("upgrade")
    async with local.open_cluster(kit, load_hardware(HARDWARE), WORK_DIR, logs) as opened:
        yield opened


@pytest.fixture
def newer(pytestconfig: pytest.Config) -> tuple[ControlPlaneKit, ...]:
    """The programs of the newer versions, in order."""
    return pytestconfig.stash[NEWER]
