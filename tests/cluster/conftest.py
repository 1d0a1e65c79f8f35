"""Fixtures: the API server stand-in on a real socket, and our client for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.credentials import access_from_url
from dranet.testbed.apiserver.server import ApiServer
from tests.waiting import until

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
