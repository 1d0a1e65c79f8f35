"""Fixtures: the API server stand-in on a real socket, and our client for it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.transport import access_from_url
from testbed.apiserver.server import ApiServer
from tests.support.waiting import until

DEADLINE_SECONDS = 30.0

WaitUntil = Callable[[Callable[[], bool]], Awaitable[None]]


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as running:
        yield running


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[ApiClient]:
    async with ApiClient(access_from_url(server.url)) as connected:
        yield connected


@pytest.fixture
def wait_until() -> WaitUntil:
    """Wait until a condition holds, or fail when the deadline is over."""

    async def wait(condition: Callable[[], bool]) -> None:
        await until(condition, seconds=DEADLINE_SECONDS)

    return wait


@pytest.fixture
async def node(client: ApiClient) -> JsonObject:
    """The Node object of ``node-a``."""
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}}
    return await client.create(paths.NODES, body)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two self-signed certificates for 127.0.0.1: ``a`` and ``b``."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl program to make certificates with")
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("a", "b"):
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
                *("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:api.test"),
                *("-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt"),
            ],
            check=True,
            capture_output=True,
        )
    return folder
