"""What the API server keeps: asked with dry runs, of stand-ins for the versions there are, and followed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from dranet.cluster import paths
from dranet.cluster.capabilities import (
    ApiCapabilities,
    CapabilityFollower,
    MissingCapabilities,
    Support,
    ask_capabilities,
    build_probe,
)
from dranet.cluster.client import ApiClient, Backoff, JsonObject
from dranet.cluster.slice_plan import DeleteSlice, DesiredPool, Feature, plan_sync
from dranet.cluster.transport import access_from_url
from dranet.errors import ClusterError, ProtocolError
from testbed.apiserver.server import ApiServer

DRIVER, NODE = "dra.net", "node-a"
KEPT, DROPPED, REFUSED, UNKNOWN = Support.KEPT, Support.DROPPED, Support.REFUSED, Support.UNKNOWN
ALL_KEPT = ApiCapabilities(dict.fromkeys(Feature, KEPT))
DEADLINE_SECONDS = 30.0

WaitUntil = Callable[[Callable[[], bool]], Awaitable[None]]


@contextlib.asynccontextmanager
async def connected(server: ApiServer) -> AsyncIterator[ApiClient]:
    async with server, ApiClient(access_from_url(server.url)) as client:
        yield client


def supports(features: ApiCapabilities) -> tuple[Support, ...]:
    """Taints, those with effect None, shared devices, their bandwidth, lists, counters."""
    return tuple(finding.support for finding in features)


@pytest.mark.socket
@pytest.mark.parametrize(
    ("version", "gates", "expected"),
    [
        ("1.34", {}, (DROPPED, DROPPED, DROPPED, DROPPED, REFUSED, DROPPED)),
        ("1.34", {"DRADeviceTaints": True}, (KEPT, REFUSED, DROPPED, DROPPED, REFUSED, DROPPED)),
        (
            "1.35",
            {"DRADeviceTaints": True, "DRAConsumableCapacity": True},
            (KEPT, KEPT, KEPT, KEPT, REFUSED, DROPPED),
        ),
        ("1.35", {"DRAPartitionableDevices": True}, (DROPPED, DROPPED, DROPPED, DROPPED, REFUSED, KEPT)),
        ("1.36", {}, (KEPT, KEPT, KEPT, KEPT, REFUSED, KEPT)),
        ("1.36", {"DRADeviceTaints": False}, (DROPPED, DROPPED, KEPT, KEPT, REFUSED, KEPT)),
        ("1.37", {"DRAListTypeAttributes": True}, (KEPT, KEPT, KEPT, KEPT, KEPT, KEPT)),
    ],
)
async def test_each_field_is_found_kept_dropped_or_refused_and_nothing_is_stored(
    version: str, gates: dict[str, bool], expected: tuple[Support, ...]
) -> None:
    server = ApiServer(profile=version, gates=gates)
    async with connected(server) as client:
        features = await ask_capabilities(client, DRIVER, NODE)
        assert supports(features) == expected
        assert server.objects("resourceslices") == []
        assert len(server.requests) == 3


def test_the_findings_name_the_gates_and_say_what_may_be_sent() -> None:
    features = ApiCapabilities({Feature.TAINTS: KEPT, Feature.SHARED_DEVICES: DROPPED})
    assert [(finding.feature.gate, finding.is_usable) for finding in features] == [
        ("DRADeviceTaints", True),
        ("DRADeviceTaints", True),  # unknown: a write will tell
        ("DRAConsumableCapacity", False),
        ("DRAConsumableCapacity", True),
        ("DRAListTypeAttributes", True),
        ("DRAPartitionableDevices", True),
    ]
    assert features.unusable == {Feature.SHARED_DEVICES}


@pytest.mark.socket
async def test_fields_that_are_refused_together_are_asked_alone(server: ApiServer, client: ApiClient) -> None:
    server.fail_next("POST", paths.RESOURCE_SLICES, 422)
    assert supports(await ask_capabilities(client, DRIVER, NODE)) == (KEPT, KEPT, KEPT, KEPT, REFUSED, KEPT)
    assert len(server.requests) == 7


@pytest.mark.socket
async def test_a_cluster_that_refuses_every_dry_run_says_nothing_of_the_fields(
    server: ApiServer, client: ApiClient
) -> None:
    """An admission policy answers 422 as well."""
    server.fail_next("POST", paths.RESOURCE_SLICES, 422, count=100)
    assert supports(await ask_capabilities(client, DRIVER, NODE)) == (UNKNOWN,) * 6


@pytest.mark.socket
@pytest.mark.parametrize("status", [400, 403])
async def test_a_webhook_that_knows_or_permits_no_dry_run_leaves_it_unknown(
    server: ApiServer, client: ApiClient, status: int
) -> None:
    server.fail_next("POST", paths.RESOURCE_SLICES, status, count=100)
    assert supports(await ask_capabilities(client, DRIVER, NODE)) == (UNKNOWN,) * 6


@pytest.mark.socket
@pytest.mark.parametrize("odd", [{}, {"kind": "Status", "status": "Success"}, {"metadata": {}, "spec": None}])
async def test_an_answer_that_is_no_slice_says_nothing_of_the_fields(
    client: ApiClient, monkeypatch: pytest.MonkeyPatch, odd: JsonObject
) -> None:
    """As of a proxy: taken for a server that drops fields, it would cost the slices their taints."""

    async def create(*_: object, **__: object) -> JsonObject:
        return odd

    monkeypatch.setattr(client, "create", create)
    with pytest.raises(ProtocolError):
        await ask_capabilities(client, DRIVER, NODE)


@pytest.mark.socket
@pytest.mark.parametrize("status", [401, 500, 503, 429])
async def test_a_server_that_does_not_answer_is_an_error_and_no_finding(
    server: ApiServer, client: ApiClient, status: int
) -> None:
    server.fail_next("POST", paths.RESOURCE_SLICES, status, count=100)
    with pytest.raises(ClusterError):
        await ask_capabilities(client, DRIVER, NODE)


def test_a_probe_that_was_stored_after_all_would_be_deleted() -> None:
    stored = build_probe(DRIVER, NODE, list(Feature))
    stored["metadata"] |= {"name": "probe-dra.net-node-a-abcde", "uid": "u", "resourceVersion": "1"}
    plan = plan_sync([stored], DesiredPool(DRIVER, NODE, NODE, ((),)))
    assert isinstance(plan.writes[0], DeleteSlice)
    assert plan.generation == 1


# Following.


class Server:
    """Answers with what a test says; ``None`` is no answer."""

    def __init__(self, *answers: ApiCapabilities | None) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def ask(self) -> ApiCapabilities:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise ClusterError("no answer", status=503)
        return answer


News = list[ApiCapabilities | None]


@contextlib.asynccontextmanager
async def following(server: Server, *, again: float = 0.01) -> AsyncIterator[tuple[CapabilityFollower, News]]:
    news: News = []
    follower = CapabilityFollower(
        server.ask,
        lambda: news.append(follower.features),
        again=Backoff(again, again),
        retry=Backoff(0.01, 0.01),
    )
    task = asyncio.create_task(follower.run())
    yield follower, news
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_server_is_asked_at_start_and_not_again_while_nothing_happens(
    wait_until: WaitUntil,
) -> None:
    server = Server(ALL_KEPT)
    async with following(server) as (follower, news):
        await follower.wait_known(DEADLINE_SECONDS)
        assert follower.features == ALL_KEPT
        follower.doubt()
        await wait_until(lambda: server.asked == 2)
        assert news == [ALL_KEPT]


async def test_doubts_that_come_in_a_row_are_one_question_later() -> None:
    server = Server(ALL_KEPT)
    async with following(server, again=3600) as (follower, _):
        await follower.wait_known(DEADLINE_SECONDS)
        for _ in range(100):
            follower.doubt()
            await asyncio.sleep(0)
        assert server.asked == 1


async def test_a_server_that_is_away_is_asked_until_it_answers(wait_until: WaitUntil) -> None:
    server = Server(None, None, ALL_KEPT)
    async with following(server, again=3600) as (follower, news):
        await wait_until(lambda: follower.features is not None)
        assert (server.asked, news) == (3, [ALL_KEPT])


async def test_nobody_waits_longer_for_an_answer_than_he_said() -> None:
    async with following(Server(None)) as (follower, _):
        await follower.wait_known(0.01)
        assert follower.features is None


async def test_what_a_write_showed_counts_and_leads_to_another_question(wait_until: WaitUntil) -> None:
    server = Server(ALL_KEPT)
    async with following(server) as (follower, news):
        await follower.wait_known(DEADLINE_SECONDS)
        follower.note_lost({Feature.TAINTS}, DROPPED)
        assert follower.features == ALL_KEPT.but(DROPPED, {Feature.TAINTS}) == news[-1]
        await wait_until(lambda: follower.features == ALL_KEPT)
        assert server.asked == 2


async def test_what_a_write_showed_stays_where_no_dry_run_is_answered(wait_until: WaitUntil) -> None:
    server = Server(ApiCapabilities())
    async with following(server) as (follower, _):
        await follower.wait_known(DEADLINE_SECONDS)
        follower.note_lost({Feature.TAINTS}, DROPPED)
        await wait_until(lambda: server.asked == 2)
        await wait_until(lambda: not follower._contradicted)
        assert follower.features == ApiCapabilities({Feature.TAINTS: DROPPED})


async def test_after_a_contradiction_the_next_question_waits_even_if_the_last_one_was_long_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, told = asyncio.sleep, asyncio.Event()
    done: list[str] = []

    async def sleep(_: float) -> None:
        done.append("wait")
        await real(0)

    async def ask() -> ApiCapabilities:
        done.append("ask")
        return ALL_KEPT

    monkeypatch.setattr(asyncio, "sleep", sleep)
    follower = CapabilityFollower(ask, told.set)
    task = asyncio.create_task(follower.run())
    await told.wait()
    follower.note_lost({Feature.TAINTS}, DROPPED)
    while done.count("ask") < 2:
        await real(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert done[:4] == ["ask", "wait", "wait", "ask"]


async def test_a_second_run_asks_anew_and_whoever_waits_gets_the_new_answer() -> None:
    answers = [ALL_KEPT, ALL_KEPT.but(REFUSED, {Feature.LIST_ATTRIBUTES})]
    expected = [*answers]

    async def ask() -> ApiCapabilities:
        await asyncio.sleep(0.01)  # a request takes a while
        return answers.pop(0)

    follower = CapabilityFollower(ask, lambda: None)
    for features in expected:
        task = asyncio.create_task(follower.run())
        await asyncio.sleep(0)  # it begins
        await follower.wait_known(DEADLINE_SECONDS)
        assert follower.features == features
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_what_is_missing_is_told_once_with_its_gate_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    gates: list[frozenset[str]] = []
    missing = MissingCapabilities(gates.append)
    without = ALL_KEPT.but(DROPPED, {Feature.TAINTS}).but(REFUSED, {Feature.LIST_ATTRIBUTES})
    for _ in range(2):
        missing.update(frozenset({Feature.TAINTS, Feature.SHARED_DEVICES}), without)
    missing.update(frozenset({Feature.TAINTS}), ALL_KEPT)
    assert gates == [{"DRADeviceTaints"}, frozenset()]
    levels = [(record.levelname, "DRADeviceTaints" in record.getMessage()) for record in caplog.records]
    assert levels == [("WARNING", True), ("INFO", False)]


def test_what_nobody_wants_is_not_missed(caplog: pytest.LogCaptureFixture) -> None:
    gates: list[frozenset[str]] = []
    MissingCapabilities(gates.append).update(frozenset(), ALL_KEPT.but(REFUSED, list(Feature)))
    assert (gates, caplog.records) == ([], [])
