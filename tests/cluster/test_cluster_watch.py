"""Following a collection through every way a watch is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator

import pytest

from dranet.cluster import paths, watch
from dranet.cluster.backoff import Backoff
from dranet.cluster.client import ApiClient, EventType, JsonObject, WatchEvent
from dranet.cluster.credentials import access_from_url
from dranet.cluster.watch import Snapshot, list_and_watch
from dranet.errors import ProtocolError
from dranet.testbed.apiserver.server import ApiServer

MAPS = paths.config_maps("default")
DEADLINE_SECONDS = 10.0

News = AsyncGenerator[Snapshot | WatchEvent, None]


def config_map(name: str) -> JsonObject:
    return {"metadata": {"name": name}}


@pytest.fixture
async def news(client: ApiClient) -> AsyncIterator[News]:
    following = list_and_watch(client, MAPS, backoff=Backoff(0.01, 0.05), silence_seconds=0.3)
    async with contextlib.aclosing(following):
        yield following


async def next_snapshot(news: News) -> set[str]:
    async with asyncio.timeout(DEADLINE_SECONDS):
        item = await anext(news)
    assert isinstance(item, Snapshot)
    return {found["metadata"]["name"] for found in item.items}


async def next_event(news: News) -> tuple[EventType, str]:
    async with asyncio.timeout(DEADLINE_SECONDS):
        item = await anext(news)
    assert isinstance(item, WatchEvent)
    return item.type, item.object["metadata"]["name"]


async def test_a_snapshot_comes_first_and_then_the_changes(client: ApiClient, news: News) -> None:
    await client.create(MAPS, config_map("a"))
    assert await next_snapshot(news) == {"a"}
    await client.create(MAPS, config_map("b"))
    assert await next_event(news) == (EventType.ADDED, "b")


async def test_the_items_of_a_snapshot_know_their_type(client: ApiClient, news: News) -> None:
    await client.create(MAPS, config_map("a"))
    snapshot = await anext(news)
    assert isinstance(snapshot, Snapshot)
    assert [(item["apiVersion"], item["kind"]) for item in snapshot.items] == [("v1", "ConfigMap")]


async def test_a_broken_watch_resumes_without_a_new_snapshot_and_misses_nothing(
    server: ApiServer, client: ApiClient, news: News
) -> None:
    assert await next_snapshot(news) == set()
    await client.create(MAPS, config_map("a"))
    assert await next_event(news) == (EventType.ADDED, "a")
    server.drop_watches()
    await client.create(MAPS, config_map("b"))
    assert await next_event(news) == (EventType.ADDED, "b")
    assert sum(record.method == "GET" for record in server.requests) == 1


async def test_forgotten_history_brings_a_new_snapshot(
    server: ApiServer, client: ApiClient, news: News
) -> None:
    await client.create(MAPS, config_map("a"))
    assert await next_snapshot(news) == {"a"}
    await client.delete(paths.config_map("default", "a"))
    await client.create(MAPS, config_map("b"))
    server.compact()
    assert await next_snapshot(news) == {"b"}


async def test_a_410_answer_to_a_watch_brings_a_new_snapshot(server: ApiServer, news: News) -> None:
    assert await next_snapshot(news) == set()
    server.fail_next("WATCH", MAPS, 410)
    assert await next_snapshot(news) == set()


async def test_a_half_open_watch_is_replaced_and_what_it_missed_is_told(
    server: ApiServer, client: ApiClient, news: News
) -> None:
    assert await next_snapshot(news) == set()
    server.hold_watches()
    waiting = asyncio.create_task(next_event(news))
    await client.create(MAPS, config_map("a"))
    async with asyncio.timeout(DEADLINE_SECONDS):
        while sum(record.method == "WATCH" for record in server.requests) < 2:
            await asyncio.wait([waiting], timeout=0.01)
    server.release_watches()
    assert await waiting == (EventType.ADDED, "a")


async def test_trouble_is_logged_once_and_so_is_its_end(
    server: ApiServer, client: ApiClient, news: News, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server.fail_next("GET", MAPS, 500, count=5)
    assert await next_snapshot(news) == set()
    await asyncio.gather(next_event(news), client.create(MAPS, config_map("a")))
    texts = [record.message for record in caplog.records if record.name == "dranet.cluster.watch"]
    assert [text.split(",")[0] for text in texts] == [
        f"following {MAPS} stopped",
        f"following {MAPS} works again",
    ]


async def test_a_server_that_lets_us_wait_before_it_fails_does_not_work_again(
    server: ApiServer, news: News, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_STEADY_SECONDS", 0.0)  # every failure comes later than that
    caplog.set_level(logging.INFO)
    server.fail_next("GET", MAPS, 504, count=3)
    assert await next_snapshot(news) == set()
    texts = [record.message for record in caplog.records if record.name == "dranet.cluster.watch"]
    assert [text.split(",")[0] for text in texts] == [f"following {MAPS} stopped"]


async def test_a_restarted_server_is_found_again(unused_tcp_port: int) -> None:
    server = ApiServer()
    await server.start(port=unused_tcp_port)
    async with ApiClient(access_from_url(server.url)) as client:
        following = list_and_watch(client, MAPS, backoff=Backoff(0.01, 0.05))
        async with contextlib.aclosing(following) as news:
            assert await next_snapshot(news) == set()
            waiting = asyncio.create_task(next_event(news))
            await server.stop()
            await server.start(port=unused_tcp_port)
            await client.create(MAPS, config_map("a"))
            assert await waiting == (EventType.ADDED, "a")
    await server.stop()


def test_delays_grow_to_the_cap_with_jitter_and_start_again() -> None:
    backoff = Backoff(1.0, 8.0)
    for expected in (1.0, 2.0, 4.0, 8.0, 8.0):
        assert expected / 2 <= backoff.next_seconds() <= expected
    backoff.reset()
    assert backoff.next_seconds() <= 1.0


async def test_an_answer_that_is_no_api_object_is_trouble_like_any_other(
    client: ApiClient, news: News, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, pages = client.list, [ProtocolError("the answer is not a JSON object")]  # a proxy's error page

    async def list_items(path: str, *, field_selector: str, label_selector: str) -> JsonObject:
        if pages:
            raise pages.pop()
        return await real(path, field_selector=field_selector, label_selector=label_selector)

    monkeypatch.setattr(client, "list", list_items)
    assert await next_snapshot(news) == set()
