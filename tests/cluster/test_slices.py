"""SlicePublisher against the API server stand-in: what ends up on the server, and how many writes it took."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, Backoff, JsonObject
from dranet.cluster.slices import PublishListeners, PublishTiming
from dranet.errors import ProtocolError, Reason
from testbed.apiserver.faults import Trouble
from testbed.apiserver.server import ApiServer
from tests.cluster.publishing import (
    DRIVER,
    NODE,
    CountedPublisher,
    CountingClient,
    build_publisher,
    device_names,
    held,
    pages,
    publish,
    running,
)

pytestmark = pytest.mark.socket

LISTED = paths.RESOURCE_SLICES
WaitUntil = Callable[[Callable[[], bool]], Awaitable[None]]


@pytest.fixture
async def own(server: ApiServer) -> AsyncIterator[CountingClient]:
    """The publisher's own client."""
    async with CountingClient(server) as counting:
        yield counting


@pytest.fixture
async def publisher(
    own: CountingClient, node: JsonObject, wait_until: WaitUntil
) -> AsyncIterator[CountedPublisher]:
    """One that runs, and has asked what the server keeps."""
    assert node["metadata"]["name"] == NODE
    async with running(build_publisher(own)) as made:
        await wait_until(lambda: made.features is not None)
        yield made


async def test_a_first_publication_makes_slices_of_generation_one_owned_by_the_node(
    server: ApiServer, publisher: CountedPublisher, node: JsonObject
) -> None:
    await publish(publisher, pages(["eth0", "eth1"], ["eth2"]))
    first, second = held(server)
    assert first["metadata"]["name"].startswith(f"00000-{DRIVER}-{NODE}-")
    assert second["metadata"]["name"].startswith(f"00001-{DRIVER}-{NODE}-")
    assert first["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 2}
    assert first["spec"]["nodeName"] == NODE
    assert first["spec"]["devices"][0]["attributes"]["dra.net/rdma"] == {"bool": False}
    (owner,) = first["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Node", node["metadata"]["uid"], True)
    assert (publisher.generation, publisher.is_published, publisher.last_error) == (1, True, "")


async def test_nothing_is_written_before_the_first_desired_content(
    own: CountingClient, server: ApiServer, publisher: CountedPublisher, wait_until: WaitUntil
) -> None:
    await wait_until(lambda: server.open_watches() == 1)
    assert not publisher.is_published
    assert publisher.last_error == "not written yet"
    assert own.writes == {}
    assert held(server) == []


async def test_no_devices_are_one_empty_slice(server: ApiServer, publisher: CountedPublisher) -> None:
    await publish(publisher, [])
    assert device_names(server) == [[]]
    assert held(server)[0]["spec"]["pool"]["resourceSliceCount"] == 1


async def test_the_log_counts_devices_and_slices(
    publisher: CountedPublisher, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await publish(publisher, pages(["eth0"], ["eth1"]))
    await publish(publisher, pages(["eth0"]))
    assert "published 2 devices in 2 slices of pool node-a" in caplog.text
    assert "published 1 device in 1 slice of pool node-a" in caplog.text


async def test_three_hundred_devices_are_three_slices_of_one_generation(
    server: ApiServer, publisher: CountedPublisher
) -> None:
    names = [f"eth{number:03d}" for number in range(300)]
    await publish(publisher, pages(names[:128], names[128:256], names[256:]))
    assert [len(page) for page in device_names(server)] == [128, 128, 44]
    assert {found["spec"]["pool"]["generation"] for found in held(server)} == {1}


async def test_equal_content_again_writes_nothing(own: CountingClient, publisher: CountedPublisher) -> None:
    await publish(publisher, pages(["eth0"]))
    before = own.writes.copy()
    await publish(publisher, pages(["eth0"]))
    await publish(publisher, pages(["eth0", "eth1"]))
    await publish(publisher, pages(["eth0", "eth1"]))
    assert own.writes - before == {"update": 1}


async def test_a_restarted_driver_finds_its_slices_and_writes_nothing(
    server: ApiServer, publisher: CountedPublisher
) -> None:
    await publish(publisher, pages(["eth0"], ["eth1"]))
    async with CountingClient(server) as other, running(build_publisher(other)) as second:
        await publish(second, pages(["eth0"], ["eth1"]))
        assert (other.writes, second.generation) == ({}, 1)


async def test_one_changed_slice_is_updated_in_place_and_two_bump_the_generation(
    own: CountingClient, server: ApiServer, publisher: CountedPublisher
) -> None:
    await publish(publisher, pages(["a"], ["b"], ["c"]))
    uids = [found["metadata"]["uid"] for found in held(server)]
    await publish(publisher, pages(["a"], ["x"], ["c"]))
    assert publisher.generation == 1
    await publish(publisher, pages(["y"], ["z"], ["c"]))
    assert publisher.generation == 2
    assert [found["metadata"]["uid"] for found in held(server)] == uids
    assert {found["spec"]["pool"]["generation"] for found in held(server)} == {2}
    assert own.writes == {"create": 3, "update": 1 + 3}


async def test_fewer_pages_delete_the_redundant_slice(server: ApiServer, publisher: CountedPublisher) -> None:
    await publish(publisher, pages(["a"], ["b"]))
    await publish(publisher, pages(["a"]))
    assert device_names(server) == [["a"]]
    assert (publisher.generation, publisher.writes["delete"]) == (1, 1)


async def test_slices_of_other_nodes_and_drivers_are_not_touched(
    own: CountingClient, server: ApiServer, client: ApiClient, publisher: CountedPublisher
) -> None:
    for driver, node in ((DRIVER, "node-b"), ("other.driver", NODE)):
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": []}
        await client.create(paths.RESOURCE_SLICES, {"metadata": {"generateName": "x-"}, "spec": spec})
    await publish(publisher, pages(["eth0"]))
    assert len(held(server)) == 3
    assert own.writes == {"create": 1}


async def test_slices_that_others_wiped_come_back(
    server: ApiServer, client: ApiClient, publisher: CountedPublisher, wait_until: WaitUntil
) -> None:
    await publish(publisher, pages(["a"], ["b"]))
    old = {found["metadata"]["uid"] for found in held(server)}
    for found in held(server):
        await client.delete(paths.resource_slice(found["metadata"]["name"]))
    await wait_until(lambda: device_names(server) == [["a"], ["b"]])
    assert not old & {found["metadata"]["uid"] for found in held(server)}
    await wait_until(lambda: publisher.is_published)
    assert len({found["spec"]["pool"]["generation"] for found in held(server)}) == 1


async def test_a_slice_that_others_changed_is_put_right(
    server: ApiServer, client: ApiClient, publisher: CountedPublisher, wait_until: WaitUntil
) -> None:
    await publish(publisher, pages(["a"]))
    (found,) = held(server)
    await client.replace(
        paths.resource_slice(found["metadata"]["name"]), {**found, "spec": {**found["spec"], "devices": []}}
    )
    await wait_until(lambda: device_names(server) == [["a"]])


async def test_a_wipe_while_the_watch_was_broken_is_found(
    server: ApiServer, client: ApiClient, publisher: CountedPublisher, wait_until: WaitUntil
) -> None:
    await publish(publisher, pages(["a"]))
    server.fail_next("WATCH", paths.RESOURCE_SLICES, 503, count=2)
    server.drop_watches()
    (found,) = held(server)
    await client.delete(paths.resource_slice(found["metadata"]["name"]))
    server.compact()
    await wait_until(lambda: device_names(server) == [["a"]])


async def test_slices_of_a_replaced_node_object_get_the_new_owner(
    server: ApiServer, client: ApiClient, publisher: CountedPublisher, node: JsonObject, wait_until: WaitUntil
) -> None:
    await publish(publisher, pages(["a"]))
    await client.delete(paths.node(NODE))
    replaced = await client.create(paths.NODES, {"metadata": {"name": NODE}})
    (found,) = held(server)
    await client.delete(paths.resource_slice(found["metadata"]["name"]))
    await wait_until(lambda: len(held(server)) == 1)
    owner = held(server)[0]["metadata"]["ownerReferences"][0]["uid"]
    assert owner == replaced["metadata"]["uid"] != node["metadata"]["uid"]


async def test_a_node_object_that_comes_late_is_waited_for(client: ApiClient, wait_until: WaitUntil) -> None:
    async with running(build_publisher(client)) as publisher:
        publisher.set_desired(pages(["a"]))
        await wait_until(lambda: publisher.failures[Reason.API_NOT_FOUND] > 0)
        assert "nodes" in publisher.last_error
        await client.create(paths.NODES, {"metadata": {"name": NODE}})
        await wait_until(lambda: publisher.is_published and publisher.last_error == "")


async def test_a_node_object_that_never_comes_is_not_looked_for_at_that_pace_for_ever(
    server: ApiServer, own: CountingClient, monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> None:
    """As with a wrong node name on every node."""
    publisher = CountedPublisher(own, PublishTiming(retries=Backoff(3600, 3600)))
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(publisher, "_wait_for_desired", wait)
    async with running(publisher):
        publisher.set_desired(pages(["a"]))
        await wait_until(lambda: len(waits) > 70)
    assert waits[59] == 5.0
    assert waits[60] >= 1800
    lists = [record for record in server.requests if (record.method, record.path) == ("GET", LISTED)]
    assert len(lists) == 1  # nothing was written, so there is nothing to look for


async def test_a_node_object_that_is_late_is_looked_for_every_few_seconds(
    own: CountingClient, client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = CountedPublisher(own, PublishTiming(retries=Backoff(3600, 3600)))
    waits: list[float] = []
    real = publisher._wait_for_desired

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        await client.create(paths.NODES, {"metadata": {"name": NODE}})
        await real(0)

    monkeypatch.setattr(publisher, "_wait_for_desired", wait)
    async with running(publisher):
        await publish(publisher, pages(["a"]))
    assert waits == [5.0]


async def test_a_watch_that_lags_behind_never_leads_to_duplicates(
    own: CountingClient, server: ApiServer, publisher: CountedPublisher, wait_until: WaitUntil
) -> None:
    await wait_until(lambda: server.open_watches() == 1)
    server.hold_watches()
    await publish(publisher, pages(["a"]))
    await publish(publisher, pages(["a"], ["b"]))
    await publish(publisher, pages(["x"], ["y"]))
    await publish(publisher, pages(["x"]))
    before = own.writes.copy()
    server.release_watches()
    await publish(publisher, pages(["x", "z"]))
    assert device_names(server) == [["x", "z"]]
    assert own.writes - before == {"update": 1}


async def test_a_create_whose_answer_was_lost_is_not_repeated(
    own: CountingClient, server: ApiServer, publisher: CountedPublisher, wait_until: WaitUntil
) -> None:
    await wait_until(lambda: server.open_watches() == 1)
    server.hold_watches()
    server.fail_next("POST", paths.RESOURCE_SLICES, 0)
    await publish(publisher, pages(["a"]))
    assert device_names(server) == [["a"]]
    assert own.writes == {"create": 1}
    server.release_watches()


@pytest.mark.parametrize("status", [409, 500, 503, 403, 422])
async def test_a_refused_write_is_tried_again(
    server: ApiServer, publisher: CountedPublisher, status: int
) -> None:
    server.fail_next("POST", paths.RESOURCE_SLICES, status, count=3)
    await publish(publisher, pages(["a"], ["b"]))
    assert device_names(server) == [["a"], ["b"]]
    assert publisher.failures.total() == 3


async def test_failures_writes_and_the_last_success_are_there_for_the_metrics(
    server: ApiServer, client: ApiClient, node: JsonObject, wait_until: WaitUntil
) -> None:
    assert node
    failures: list[Reason] = []
    writes: list[str] = []
    listeners = PublishListeners(failed=failures.append, wrote=writes.append)
    async with running(build_publisher(client, listeners=listeners)) as publisher:
        await wait_until(lambda: publisher.features is not None)
        assert publisher.last_published == 0
        server.fail_next("POST", paths.RESOURCE_SLICES, 503)
        await publish(publisher, pages(["a"], ["b"]))
        await publish(publisher, pages(["c"]))
        assert failures == [Reason.API_UNAVAILABLE]
        assert writes == ["create", "create", "delete", "update"]
        assert time.time() - publisher.last_published < 60


async def test_a_conflicting_update_is_tried_again_on_the_newest_version(
    server: ApiServer, client: ApiClient, publisher: CountedPublisher, wait_until: WaitUntil
) -> None:
    await publish(publisher, pages(["a"]))
    await wait_until(lambda: server.open_watches() == 1)
    server.hold_watches()
    (found,) = held(server)
    await client.patch(paths.resource_slice(found["metadata"]["name"]), {"metadata": {"labels": {"x": "y"}}})
    await publish(publisher, pages(["b"]))
    assert device_names(server) == [["b"]]
    assert held(server)[0]["metadata"]["labels"] == {"x": "y"}
    assert publisher.failures == {Reason.API_CONFLICT: 1}
    server.release_watches()


async def test_invalid_content_is_logged_once_counted_and_mended_by_new_content(
    server: ApiServer, publisher: CountedPublisher, wait_until: WaitUntil, caplog: pytest.LogCaptureFixture
) -> None:
    publisher.set_desired(pages(["Not_A_Label"]))
    await wait_until(lambda: publisher.failures[Reason.API_INVALID] >= 3)
    assert not publisher.is_published
    assert "devices[0].name" in publisher.last_error
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    await publish(publisher, pages(["good"]))
    assert device_names(server) == [["good"]]


async def test_new_content_does_not_wait_for_the_retry_of_the_old(
    client: ApiClient, node: JsonObject, wait_until: WaitUntil
) -> None:
    assert node
    patient = CountedPublisher(client, PublishTiming(retries=Backoff(3600, 3600)))
    async with running(patient) as publisher:
        publisher.set_desired(pages(["Bad_Name"]))
        await wait_until(lambda: publisher.failures[Reason.API_INVALID] == 1)
        await publish(publisher, pages(["good"]))


class ForgetfulClient(CountingClient):
    """Talks to a server that is older than one of our fields and drops it."""

    async def create(self, path: str, body: JsonObject, *, dry_run: bool = False) -> JsonObject:
        return await super().create(path, body if dry_run else _without_mtu(body), dry_run=dry_run)

    async def replace(self, path: str, body: JsonObject) -> JsonObject:
        return await super().replace(path, _without_mtu(body))


def _without_mtu(body: JsonObject) -> JsonObject:
    kept = []
    for item in body["spec"]["devices"]:
        attributes = {key: value for key, value in item["attributes"].items() if not key.endswith("/mtu")}
        kept.append({**item, "attributes": attributes})
    return {**body, "spec": {**body["spec"], "devices": kept}}


async def test_a_field_that_the_server_drops_is_reported_once_and_does_not_loop(
    server: ApiServer, node: JsonObject, caplog: pytest.LogCaptureFixture
) -> None:
    assert node
    async with ForgetfulClient(server) as forgetful, running(build_publisher(forgetful)) as publisher:
        await publish(publisher, pages(["a"]))
        await publish(publisher, pages(["a"], ["b"]))
        await publish(publisher, pages(["a"]))
    messages = [record.message for record in caplog.records if "stored slice" in record.message]
    assert [text.split(" of pool")[0] for text in messages] == [
        "the API server stored slice 0",
        "the API server stored slice 1",
    ]
    assert forgetful.writes == {"create": 2, "update": 2, "delete": 1}


async def test_two_drivers_that_disagree_do_not_write_at_full_speed(
    server: ApiServer, node: JsonObject
) -> None:
    """Two of one name on one node, as when somebody ran a second one by hand: each undoes the other."""
    assert node
    async with CountingClient(server) as shared:
        publishers = [CountedPublisher(shared, PublishTiming(repairs=Backoff(0.2, 1.0))) for _ in range(2)]
        tasks = [asyncio.create_task(publisher.run()) for publisher in publishers]
        for publisher, mtu in zip(publishers, (1500, 9000), strict=True):
            await publish(publisher, pages(["a"], mtu=mtu))
        await asyncio.wait(tasks, timeout=1.0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert shared.writes.total() <= 20


async def test_an_answer_that_is_no_api_object_is_tried_again(
    server: ApiServer, own: CountingClient, publisher: CountedPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = own.create
    answers: list[Exception | JsonObject] = [{"kind": "Status"}, ProtocolError("not a JSON object")]

    async def create(path: str, body: JsonObject, **options: Any) -> JsonObject:
        if not answers:
            return await real(path, body, **options)
        if isinstance(answer := answers.pop(), Exception):
            raise answer
        return answer

    monkeypatch.setattr(own, "create", create)
    await publish(publisher, pages(["a"]))
    assert device_names(server) == [["a"]]
    assert publisher.failures == {Reason.PROTOCOL_ERROR: 2}


@pytest.mark.parametrize("odd", [{}, {"kind": "Status", "status": "Success"}, {"metadata": None}])
async def test_an_answer_that_is_no_node_is_tried_again(
    server: ApiServer,
    own: CountingClient,
    publisher: CountedPublisher,
    monkeypatch: pytest.MonkeyPatch,
    odd: JsonObject,
) -> None:
    real, answers = own.get, [odd]

    async def get(path: str) -> JsonObject:
        return answers.pop() if answers else await real(path)

    monkeypatch.setattr(own, "get", get)
    await publish(publisher, pages(["a"]))
    assert device_names(server) == [["a"]]
    assert publisher.failures == {Reason.PROTOCOL_ERROR: 1}


# One instance after the other, and after itself.


async def test_a_publisher_that_does_not_run_has_published_nothing(
    own: CountingClient, node: JsonObject
) -> None:
    assert node
    publisher = build_publisher(own)
    publisher.set_desired(pages(["a"]))
    assert (publisher.is_published, publisher.last_error) == (False, "not publishing")
    async with running(publisher):
        await publish(publisher, pages(["a"]))
    assert (publisher.is_published, publisher.last_error) == (False, "not publishing")


async def test_a_publisher_that_ends_leaves_its_slices_and_starts_again_without_a_write(
    server: ApiServer, own: CountingClient, node: JsonObject
) -> None:
    assert node
    publisher = build_publisher(own)
    for _ in range(3):
        async with running(publisher):
            await publish(publisher, pages(["a"], ["b"]))
    assert device_names(server) == [["a"], ["b"]]
    assert own.writes == {"create": 2}
    assert publisher.generation == 1


async def test_it_finds_what_another_instance_wrote_between_two_runs_and_makes_no_duplicate(
    server: ApiServer, client: ApiClient, own: CountingClient, node: JsonObject
) -> None:
    assert node
    publisher, other = build_publisher(own), build_publisher(client)
    async with running(publisher):
        await publish(publisher, pages(["a"], ["b"]))
    async with running(other):
        await publish(other, pages(["x"]))
        await publish(other, pages(["x"], ["y"], ["z"]))
    async with running(publisher):
        await publish(publisher, pages(["a"], ["b"]))
        assert device_names(server) == [["a"], ["b"]]
    assert len({found["spec"]["pool"]["generation"] for found in held(server)}) == 1


async def test_what_is_desired_while_it_does_not_run_is_published_when_it_does(
    server: ApiServer, own: CountingClient, node: JsonObject, wait_until: WaitUntil
) -> None:
    assert node
    publisher = build_publisher(own)
    async with running(publisher):
        await publish(publisher, pages(["a"]))
    publisher.set_desired(pages(["b"]))
    async with running(publisher):
        await wait_until(lambda: publisher.is_published)
        assert device_names(server) == [["b"]]


async def test_a_write_that_was_under_way_at_the_hand_over_is_repaired_by_the_successor(
    server: ApiServer, own: CountingClient, client: ApiClient, node: JsonObject, wait_until: WaitUntil
) -> None:
    """The request is out when the old one is stopped, and the server carries it out when the new one has
    published already."""
    assert node
    old, new = build_publisher(own), build_publisher(client)
    async with running(old):
        await wait_until(lambda: old.features is not None)
        server.trouble_next("POST", paths.RESOURCE_SLICES, Trouble(stalls=True))
        old.set_desired(pages(["a"]))
        await wait_until(lambda: own.writes["create"] == 1)
    async with running(new):
        await publish(new, pages(["a"]))
        (stored,) = held(server)
        await client.create(paths.RESOURCE_SLICES, _as_new(stored))
        await wait_until(lambda: new.writes["delete"] == 1)
        await wait_until(lambda: new.is_published)
        assert device_names(server) == [["a"]]


def _as_new(stored: JsonObject) -> JsonObject:
    metadata = {"generateName": stored["metadata"]["name"][:-5]}
    return {"metadata": metadata, "spec": stored["spec"]}


async def test_it_does_not_run_twice_at_once(publisher: CountedPublisher) -> None:
    with pytest.raises(RuntimeError, match="runs already"):
        await publisher.run()


# The Node.


async def test_slices_of_another_uid_are_given_to_the_node_at_start_in_one_write_each(
    server: ApiServer, own: CountingClient, client: ApiClient, node: JsonObject, wait_until: WaitUntil
) -> None:
    assert node
    async with running(build_publisher(own)) as publisher:
        await publish(publisher, pages(["a"], ["b"]))
    await client.delete(paths.node(NODE))
    replaced = await client.create(paths.NODES, {"metadata": {"name": NODE}})
    own.writes.clear()
    async with running(publisher):
        await publish(publisher, pages(["a"], ["b"]))
        uid = replaced["metadata"]["uid"]
        await wait_until(lambda: all(owner_uid(found) == uid for found in held(server)))
    assert own.writes == {"update": 2}
    assert publisher.generation == 1


async def test_what_the_garbage_collector_has_left_over_gets_the_new_owner_with_what_it_took(
    server: ApiServer,
    client: ApiClient,
    own: CountingClient,
    publisher: CountedPublisher,
    wait_until: WaitUntil,
) -> None:
    await publish(publisher, pages(["a"], ["b"], ["c"]))
    await client.delete(paths.node(NODE))
    replaced = await client.create(paths.NODES, {"metadata": {"name": NODE}})
    await client.delete(paths.resource_slice(held(server)[1]["metadata"]["name"]))
    uid = replaced["metadata"]["uid"]
    await wait_until(lambda: [owner_uid(found) for found in held(server)] == [uid] * 3)
    await wait_until(lambda: publisher.is_published)
    assert device_names(server) == [["a"], ["b"], ["c"]]
    assert {found["spec"]["pool"]["generation"] for found in held(server)} == {2}
    assert own.writes == {"create": 3 + 1, "update": 2}


async def test_a_node_that_was_replaced_while_the_watch_was_broken_gets_its_slices(
    server: ApiServer, client: ApiClient, publisher: CountedPublisher, wait_until: WaitUntil
) -> None:
    await publish(publisher, pages(["a"]))
    await wait_until(lambda: server.open_watches() == 1)
    await client.delete(paths.node(NODE))
    replaced = await client.create(paths.NODES, {"metadata": {"name": NODE}})
    server.compact()
    server.drop_watches()
    await wait_until(lambda: owner_uid(held(server)[0]) == replaced["metadata"]["uid"])


async def test_a_node_that_was_replaced_while_the_watch_was_cut_gets_its_slices_with_the_next_change(
    server: ApiServer, client: ApiClient, publisher: CountedPublisher, wait_until: WaitUntil
) -> None:
    """No list is needed then: the watch goes on where it was."""
    await publish(publisher, pages(["a"]))
    await wait_until(lambda: server.open_watches() == 1)
    await client.delete(paths.node(NODE))
    replaced = await client.create(paths.NODES, {"metadata": {"name": NODE}})
    server.drop_watches()
    await wait_until(lambda: sum(record.method == "WATCH" for record in server.requests) >= 2)
    await publish(publisher, pages(["b"]))
    await wait_until(lambda: owner_uid(held(server)[0]) == replaced["metadata"]["uid"])


async def test_a_node_that_cannot_be_read_keeps_no_change_from_being_published(
    server: ApiServer, own: CountingClient, node: JsonObject, wait_until: WaitUntil
) -> None:
    assert node
    async with running(build_publisher(own)) as publisher:
        await publish(publisher, pages(["a"]))
    server.fail_next("GET", paths.node(NODE), 403, count=3)
    async with running(publisher):
        publisher.set_desired(pages(["b"]))
        await wait_until(lambda: publisher.failures[Reason.API_FORBIDDEN] == 3)
        assert device_names(server) == [["b"]]
        await wait_until(lambda: publisher.is_published and publisher.last_error == "")


def owner_uid(found: JsonObject) -> str:
    (owner,) = found["metadata"]["ownerReferences"]
    return str(owner["uid"])


# What the traffic costs.


async def test_one_watch_of_only_this_nodes_slices_and_at_idle_not_one_request(
    server: ApiServer, publisher: CountedPublisher, wait_until: WaitUntil
) -> None:
    await publish(publisher, pages(["a"]))
    await wait_until(lambda: server.open_watches() == 1)
    before = len(server.requests)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await asyncio.Event().wait()
    assert len(server.requests) == before
    watched = [record.path for record in server.requests if record.method == "WATCH"]
    assert watched == [paths.RESOURCE_SLICES]


async def test_a_server_that_asks_for_patience_is_not_written_to_before_its_time(
    server: ApiServer, own: CountingClient, publisher: CountedPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    real = publisher._wait_for_desired

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        await real(0)

    monkeypatch.setattr(publisher, "_wait_for_desired", wait)
    monkeypatch.setattr(own, "_timeout_seconds", 5.0)  # less than the server asks for
    server.fail_next("POST", paths.RESOURCE_SLICES, 429, retry_after=7)
    await publish(publisher, pages(["a"]))
    assert waits == [7.0]
