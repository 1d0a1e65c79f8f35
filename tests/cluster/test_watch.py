"""Following a collection through every way a watch is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from dranet.cluster import paths
from dranet.cluster.client import (
    ApiClient,
    Backoff,
    EventType,
    JsonObject,
    Snapshot,
    WatchEvent,
    fetch_snapshot,
    list_and_watch,
)
from dranet.cluster.transport import access_from_url
from dranet.errors import ProtocolError
from testbed.apiserver.server import ApiServer
from tests.support.waiting import until

pytestmark = pytest.mark.socket

MAPS = paths.config_maps("default")
DEADLINE_SECONDS = 30.0

News = AsyncGenerator[Snapshot | WatchEvent, None]


def config_map(name: str) -> JsonObject:
    return {"metadata": {"name": name}}


@pytest.fixture
async def news(client: ApiClient) -> AsyncIterator[News]:
    following = list_and_watch(client, MAPS, backoff=Backoff(0.01, 0.05))
    async with contextlib.aclosing(following):
        yield following


@contextlib.asynccontextmanager
async def impatient(client: ApiClient, silence_seconds: float) -> AsyncIterator[News]:
    """News of a watch that is given up after so long a silence, be it that of a machine that stands still."""
    following = list_and_watch(client, MAPS, backoff=Backoff(0.01, 0.05), silence_seconds=silence_seconds)
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
    server: ApiServer, client: ApiClient
) -> None:
    async with impatient(client, 2.0) as news:
        assert await next_snapshot(news) == set()
        await client.create(MAPS, config_map("heard"))
        assert await next_event(news) == (EventType.ADDED, "heard")
        server.hold_watches()
        waiting = asyncio.create_task(next_event(news))
        await client.create(MAPS, config_map("a"))
        async with asyncio.timeout(DEADLINE_SECONDS):
            while sum(record.method == "WATCH" for record in server.requests) < 2:
                await asyncio.wait([waiting], timeout=0.01)
        server.release_watches()
        assert await waiting == (EventType.ADDED, "a")


async def test_a_watch_that_never_says_a_word_is_replaced_by_a_new_snapshot(
    server: ApiServer, client: ApiClient
) -> None:
    """After a restore from a backup the version is of the future: a server takes it, and tells nothing until
    it gets there, which may be days."""
    server.hold_watches()
    async with impatient(client, 0.3) as news:
        assert await next_snapshot(news) == set()
        await client.create(MAPS, config_map("a"))
        assert await next_snapshot(news) == {"a"}


async def test_trouble_is_logged_once_and_so_is_its_end(
    server: ApiServer, client: ApiClient, news: News, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server.fail_next("GET", MAPS, 500, count=5)
    assert await next_snapshot(news) == set()
    await asyncio.gather(next_event(news), client.create(MAPS, config_map("a")))
    texts = [record.message for record in caplog.records if record.name == "dranet.cluster.client"]
    assert [text.split(",")[0] for text in texts] == [
        f"following {MAPS} stopped",
        f"following {MAPS} works again",
    ]


async def test_a_server_that_lets_us_wait_before_it_fails_does_not_work_again(
    server: ApiServer, news: News, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dranet.cluster.client._STEADY_SECONDS", 0.0)  # every failure comes later than that
    caplog.set_level(logging.INFO)
    server.fail_next("GET", MAPS, 504, count=3)
    assert await next_snapshot(news) == set()
    texts = [record.message for record in caplog.records if record.name == "dranet.cluster.client"]
    assert [text.split(",")[0] for text in texts] == [f"following {MAPS} stopped"]


async def test_a_restarted_server_is_found_again() -> None:
    server = ApiServer()
    await server.start()
    async with ApiClient(access_from_url(server.url)) as client:
        following = list_and_watch(client, MAPS, backoff=Backoff(0.01, 0.05))
        async with contextlib.aclosing(following) as news:
            assert await next_snapshot(news) == set()
            waiting = asyncio.create_task(next_event(news))
            await server.stop()
            await server.start(port=server.port)
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

    async def list_items(path: str, **query: Any) -> JsonObject:
        if pages:
            raise pages.pop()
        return await real(path, **query)

    monkeypatch.setattr(client, "list", list_items)
    assert await next_snapshot(news) == set()


async def test_a_long_collection_comes_in_pages_and_is_one_snapshot(
    server: ApiServer, client: ApiClient
) -> None:
    for number in range(5):
        await client.create(MAPS, config_map(f"m{number}"))
    before = len(server.requests)
    snapshot = await fetch_snapshot(client, MAPS, page_size=2)
    assert [item["metadata"]["name"] for item in snapshot.items] == [f"m{number}" for number in range(5)]
    assert {item["kind"] for item in snapshot.items} == {"ConfigMap"}
    assert len(server.requests) - before == 3


async def test_a_page_token_that_expires_starts_the_list_over_and_nothing_is_there_twice(
    server: ApiServer, client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        await client.create(MAPS, config_map(f"m{number}"))
    real, asked = client.list, []

    async def list_items(path: str, **query: Any) -> JsonObject:
        asked.append(query.get("continue_token", ""))
        if len(asked) == 2:
            server.compact()
        return await real(path, **query)

    monkeypatch.setattr(client, "list", list_items)
    snapshot = await fetch_snapshot(client, MAPS, page_size=2)
    assert [item["metadata"]["name"] for item in snapshot.items] == [f"m{number}" for number in range(5)]
    assert [bool(token) for token in asked] == [False, True, False]


async def test_a_list_that_leads_back_to_where_it_was_is_no_list(
    client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a cache that takes no notice of the query: it would be read for ever."""
    page = {"metadata": {"resourceVersion": "1", "continue": "next"}, "items": []}

    async def list_items(*_: object, **__: object) -> JsonObject:
        await asyncio.sleep(0)
        return page

    monkeypatch.setattr(client, "list", list_items)
    with pytest.raises(ProtocolError):
        async with asyncio.timeout(1):
            await fetch_snapshot(client, MAPS)


async def test_a_version_that_the_server_keeps_refusing_is_given_up_for_a_new_snapshot(
    server: ApiServer, client: ApiClient, news: News
) -> None:
    """As after a restore from a backup: the version is of the future, and the answer to it is a 504."""
    assert await next_snapshot(news) == set()
    await client.create(MAPS, config_map("a"))
    server.fail_next("WATCH", MAPS, 504, count=3)
    assert await next_snapshot(news) == {"a"}


async def test_a_server_that_is_away_for_long_is_not_asked_for_everything_again(
    server: ApiServer, client: ApiClient, news: News
) -> None:
    assert await next_snapshot(news) == set()
    server.fail_next("WATCH", MAPS, 503, count=6)
    await client.create(MAPS, config_map("a"))
    assert await next_event(news) == (EventType.ADDED, "a")


async def test_a_server_that_asks_for_patience_gets_it(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, waits = asyncio.sleep, list[float]()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await real(0)

    async with ApiClient(access_from_url(server.url), timeout_seconds=15.0) as hasty:
        server.fail_next("GET", MAPS, 429, retry_after=20)
        following = list_and_watch(hasty, MAPS, backoff=Backoff(0.01, 0.05))
        async with contextlib.aclosing(following) as patient:
            with monkeypatch.context() as patch:
                patch.setattr(asyncio, "sleep", sleep)
                await next_snapshot(patient)
    assert waits == [20.0]


async def test_watches_that_are_cut_off_together_resume_one_after_the_other(server: ApiServer) -> None:
    """As those of all nodes are when an API server ends."""
    nodes, spread_seconds = 8, 1.0
    clock = asyncio.get_running_loop().time
    cuts: list[float] = []
    heard: list[str] = []

    async def follow(client: ApiClient) -> None:
        news = list_and_watch(
            client,
            MAPS,
            backoff=Backoff(0.01, 0.05),
            spread_seconds=spread_seconds,
            on_cut=lambda: cuts.append(clock()),
        )
        async with contextlib.aclosing(news):
            async for item in news:
                if isinstance(item, Snapshot):
                    continue
                heard.append(item.object["metadata"]["name"])
                if heard[-1] == "after":
                    return

    async with contextlib.AsyncExitStack() as stack:
        url = access_from_url(server.url)
        clients = [await stack.enter_async_context(ApiClient(url)) for _ in range(nodes)]
        following = [asyncio.create_task(follow(client)) for client in clients]
        await until(lambda: server.open_watches() == nodes)
        await clients[0].create(MAPS, config_map("before"))  # a watch that never told anything is not spread
        await until(lambda: len(heard) == nodes)
        cut_at = clock()
        server.drop_watches()
        await clients[0].create(MAPS, config_map("after"))
        async with asyncio.timeout(DEADLINE_SECONDS):
            await asyncio.gather(*following)
    waits = [cut - cut_at for cut in cuts]
    assert len(waits) == nodes
    assert max(waits) - min(waits) > spread_seconds / 10


async def test_a_watch_that_is_cut_off_is_told_and_one_that_ends_in_time_is_not(
    server: ApiServer, client: ApiClient
) -> None:
    cuts: list[None] = []
    following = list_and_watch(client, MAPS, backoff=Backoff(0.01, 0.05), on_cut=lambda: cuts.append(None))
    async with contextlib.aclosing(following) as news:
        assert await next_snapshot(news) == set()
        waiting = asyncio.create_task(next_event(news))
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not server.open_watches():
                await asyncio.wait([waiting], timeout=0.01)
        server.drop_watches()
        await client.create(MAPS, config_map("a"))
        assert await waiting == (EventType.ADDED, "a")
    assert len(cuts) == 1

    cuts.clear()
    brief = list_and_watch(
        client, MAPS, backoff=Backoff(0.01, 0.05), watch_seconds=1, on_cut=lambda: cuts.append(None)
    )
    async with contextlib.aclosing(brief) as news:
        assert await next_snapshot(news) == {"a"}
        waiting = asyncio.create_task(next_event(news))
        watches = sum(record.method == "WATCH" for record in server.requests)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while sum(record.method == "WATCH" for record in server.requests) < watches + 2:
                await asyncio.wait([waiting], timeout=0.01)
        await client.create(MAPS, config_map("b"))
        assert await waiting == (EventType.ADDED, "b")
    assert cuts == []


async def test_without_the_right_to_watch_the_collection_is_listed_again_and_again(
    server: ApiServer, client: ApiClient, news: News
) -> None:
    server.fail_next("WATCH", MAPS, 403, count=1000)
    assert await next_snapshot(news) == set()
    await client.create(MAPS, config_map("a"))
    assert await next_snapshot(news) == {"a"}


class RecordedBackoff(Backoff):
    """Says how long it would have waited, and waits next to nothing."""

    def __init__(self) -> None:
        super().__init__(1.0, 64.0)
        self.waits: list[float] = []

    def next_seconds(self) -> float:
        self.waits.append(super().next_seconds())
        return 0.001


async def test_a_server_that_answers_410_after_its_absence_is_listed_without_further_delay(
    server: ApiServer, client: ApiClient
) -> None:
    """What is gone meanwhile shows in the list alone, and is missing until then."""
    backoff = RecordedBackoff()
    async with contextlib.aclosing(list_and_watch(client, MAPS, backoff=backoff)) as news:
        assert await next_snapshot(news) == set()
        server.fail_next("WATCH", MAPS, 503, count=4)
        server.fail_next("WATCH", MAPS, 410, count=2)
        server.drop_watches()
        assert await next_snapshot(news) == set()
        assert await next_snapshot(news) == set()
    *_, away, first, second = backoff.waits
    assert away > 2.0
    assert first <= 1.0
    assert 1.0 <= second <= 2.0  # one who forgets at once again is not listed at full speed


async def test_a_watch_that_is_cut_after_each_word_is_not_renewed_at_full_speed(
    client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def watch(*_: object, **__: object) -> AsyncGenerator[WatchEvent, None]:
        yield WatchEvent(EventType.BOOKMARK, {"metadata": {"resourceVersion": "1"}})

    monkeypatch.setattr(client, "watch", watch)
    backoff = RecordedBackoff()
    async with contextlib.aclosing(list_and_watch(client, MAPS, backoff=backoff)) as news:
        assert await next_snapshot(news) == set()
        following = asyncio.create_task(next_event(news))
        async with asyncio.timeout(DEADLINE_SECONDS):
            while len(backoff.waits) < 8:
                await asyncio.wait([following], timeout=0.01)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert backoff.waits[7] >= 32.0


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"status": "ok"},
        {"items": []},
        {"metadata": {"resourceVersion": "1"}, "items": {}},
        {"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": "without a uid"}}]},
        {"metadata": {"resourceVersion": "1"}, "items": ["text"]},
    ],
)
async def test_an_object_that_is_no_list_is_not_an_empty_one(
    client: ApiClient, monkeypatch: pytest.MonkeyPatch, answer: JsonObject
) -> None:
    """As of a proxy: whoever took it for one would make everything a second time."""

    async def odd(_: str, **__: object) -> JsonObject:
        return answer

    monkeypatch.setattr(client, "list", odd)
    with pytest.raises(ProtocolError):
        await fetch_snapshot(client, MAPS)
