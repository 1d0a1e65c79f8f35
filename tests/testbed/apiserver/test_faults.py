"""Trouble on request: each kind does to a client what it says, and only while it is switched on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable

import pytest

from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.cluster.transport import access_from_url
from dranet.errors import ClusterError, Reason
from testbed.apiserver.faults import Chaos, ChaosPlan, Trouble
from testbed.apiserver.server import ApiServer
from testbed.apiserver.traffic import RequestRecord

pytestmark = pytest.mark.socket

MAPS = paths.config_maps("default")


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer(bookmark_seconds=0.05) as running:
        yield running


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[ApiClient]:
    async with ApiClient(access_from_url(server.url)) as connected:
        yield connected


@pytest.fixture
async def impatient(server: ApiServer) -> AsyncIterator[ApiClient]:
    """Waits for a second alone, and so for nothing that has to succeed."""
    async with ApiClient(access_from_url(server.url), timeout_seconds=1.0) as connected:
        yield connected


def plan_of(server: ApiServer, chaos: Chaos, rate: float = 1.0) -> ChaosPlan:
    plan = ChaosPlan(1, {chaos: rate}, stall_seconds=0.1, delay_seconds=0.1, retry_after=2)
    plan.switch(on=True)
    server.chaos = plan
    return plan


async def failure(call: Awaitable[object]) -> ClusterError:
    with pytest.raises(ClusterError) as caught:
        await call
    return caught.value


@pytest.mark.parametrize(
    ("chaos", "status"), [(Chaos.ERROR, 500), (Chaos.CONFLICT, 409), (Chaos.UNAVAILABLE, 503)]
)
async def test_an_answer_of_failure_does_nothing(
    server: ApiServer, client: ApiClient, chaos: Chaos, status: int
) -> None:
    await client.create(MAPS, {"metadata": {"name": "m"}})
    plan = plan_of(server, chaos)
    await failure(client.patch(paths.config_map("default", "m"), {"data": {"a": "b"}}))
    assert server.requests[-1].status == status
    assert plan.counts[chaos] >= 1
    assert "data" not in server.objects("configmaps")[0]


async def test_a_throttled_client_is_told_how_long_to_wait(server: ApiServer, impatient: ApiClient) -> None:
    plan_of(server, Chaos.THROTTLE)
    error = await failure(impatient.list(MAPS))
    assert server.requests[-1].status == 429
    assert error.retryable


async def test_a_reset_before_the_work_leaves_it_undone_and_one_after_it_done(
    server: ApiServer, client: ApiClient
) -> None:
    plan_of(server, Chaos.RESET_BEFORE)
    await failure(client.create(MAPS, {"metadata": {"name": "a"}}))
    assert server.objects("configmaps") == []
    plan_of(server, Chaos.RESET_AFTER)
    await failure(client.create(MAPS, {"metadata": {"name": "b"}}))
    assert [body["metadata"]["name"] for body in server.objects("configmaps")] == ["b"]


async def test_a_stalled_request_is_never_answered_and_never_done(
    server: ApiServer, impatient: ApiClient
) -> None:
    plan_of(server, Chaos.STALL)
    error = await failure(impatient.create(MAPS, {"metadata": {"name": "a"}}))
    assert error.reason is Reason.API_UNAVAILABLE
    assert server.objects("configmaps") == []
    assert server.requests[-1].status == 0


async def test_a_slow_answer_comes_late(server: ApiServer, client: ApiClient) -> None:
    plan_of(server, Chaos.DELAY)
    clock = asyncio.get_running_loop().time
    begin = clock()
    await client.list(MAPS)
    assert clock() - begin >= 0.1


async def test_an_event_that_is_left_out_is_followed_by_410(server: ApiServer, client: ApiClient) -> None:
    version = (await client.list(MAPS))["metadata"]["resourceVersion"]
    plan = plan_of(server, Chaos.WATCH_GAP)
    await client.create(MAPS, {"metadata": {"name": "lost"}})
    error = await failure(anext(client.watch(MAPS, resource_version=version)))
    assert error.reason is Reason.API_GONE
    assert plan.counts[Chaos.WATCH_GAP] == 1


async def test_a_watch_is_broken_or_silent_for_a_time(server: ApiServer, client: ApiClient) -> None:
    version = (await client.list(MAPS))["metadata"]["resourceVersion"]
    await client.create(MAPS, {"metadata": {"name": "late"}})
    plan_of(server, Chaos.WATCH_RESET)
    with pytest.raises(ClusterError):
        await anext(client.watch(MAPS, resource_version=version))
    plan_of(server, Chaos.WATCH_STALL)
    clock = asyncio.get_running_loop().time
    begin = clock()
    event = await anext(client.watch(MAPS, resource_version=version))
    assert event.object["metadata"]["name"] == "late"
    assert clock() - begin >= 0.1


async def test_nothing_happens_to_who_is_spared_or_while_it_is_off(
    server: ApiServer, client: ApiClient
) -> None:
    plan = ChaosPlan(1, {Chaos.ERROR: 1.0}, spares=lambda record: record.path.endswith("configmaps"))
    server.chaos = plan
    await client.get("/version")
    plan.switch(on=True)
    await client.list(MAPS)
    await failure(client.get("/version"))
    plan.switch(on=False)
    await client.get("/version")
    assert plan.counts == {Chaos.ERROR: 1}


def test_the_same_seed_makes_the_same_trouble_at_about_the_given_rates() -> None:
    def draw(seed: int) -> list[Trouble | None]:
        plan = ChaosPlan(seed, {Chaos.ERROR: 0.2, Chaos.STALL: 0.1, Chaos.WATCH_GAP: 0.9})
        plan.switch(on=True)
        return [plan.draw_for_request(RequestRecord("GET", "/x")) for _ in range(2000)]

    first = draw(1)
    assert first == draw(1)
    assert first != draw(2)
    assert 300 < sum(trouble is not None and trouble.status == 500 for trouble in first) < 500
    assert 120 < sum(trouble is not None and trouble.stalls for trouble in first) < 280
    assert 1300 < sum(trouble is None for trouble in first) < 1500


async def test_a_scripted_trouble_meets_its_request_alone(server: ApiServer, client: ApiClient) -> None:
    server.trouble_next("GET", MAPS, Trouble(resets_before=True), count=2)
    await client.get("/version")
    await failure(client.list(MAPS))
    await client.list(MAPS)


async def test_a_connection_over_the_limit_is_reset(server: ApiServer, client: ApiClient) -> None:
    await client.list(MAPS)
    server.max_connections = 1
    async with ApiClient(access_from_url(server.url)) as second:
        error = await failure(second.list(MAPS))
        assert error.reason is Reason.API_UNAVAILABLE
        await client.list(MAPS)
        server.max_connections = 0
        await second.list(MAPS)


async def test_requests_bytes_and_watch_events_are_counted_for_each_client(
    server: ApiServer, client: ApiClient
) -> None:
    version = (await client.list(MAPS))["metadata"]["resourceVersion"]
    await client.create(MAPS, {"metadata": {"name": "m"}, "data": {"a": "b" * 1000}})
    await anext(client.watch(MAPS, resource_version=version))
    ((agent, sums),) = server.traffic().items()
    assert agent.startswith("dranet/")
    assert (sums.requests, sums.watches) == (3, 1)
    assert sums.events >= 1
    assert sums.bytes_in > 1000
    assert sums.bytes_out > 2 * 1000
    listed, created, watched = server.requests
    assert (listed.method, created.status, watched.method) == ("GET", 201, "WATCH")
    assert sums.bytes_out == listed.bytes_out + created.bytes_out + watched.bytes_out
