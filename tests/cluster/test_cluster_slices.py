"""SlicePublisher against the API server stand-in: what ends up on the server, and how many writes it took."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from dranet.cluster import paths
from dranet.cluster.backoff import Backoff
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.credentials import access_from_url
from dranet.cluster.slices import SlicePublisher
from dranet.errors import ProtocolError, Reason
from dranet.model.device import Device, DeviceKind
from dranet.testbed.apiserver.server import ApiServer

DRIVER, NODE = "dra.net", "node-a"
WRITES = ("POST", "PUT", "PATCH", "DELETE")
DEADLINE_SECONDS = 10.0

WaitUntil = Callable[[Callable[[], bool]], Awaitable[None]]


def device(name: str, mtu: int = 1500) -> Device:
    return Device(name, DeviceKind.NIC, {"dra.net/mtu": mtu, "dra.net/rdma": False, "dra.net/ifName": name})


def pages(*names: Sequence[str], mtu: int = 1500) -> list[list[Device]]:
    return [[device(name, mtu) for name in page] for page in names]


def build_publisher(client: ApiClient) -> SlicePublisher:
    quick = Backoff(0.01, 0.05)
    return SlicePublisher(client, DRIVER, NODE, repair_backoff=Backoff(0.01, 0.05), retry_backoff=quick)


@pytest.fixture
async def publisher(client: ApiClient, node: JsonObject) -> AsyncIterator[SlicePublisher]:
    assert node["metadata"]["name"] == NODE
    made = build_publisher(client)
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def publish(publisher: SlicePublisher, wanted: Sequence[Sequence[Device]]) -> None:
    publisher.set_desired(wanted)
    async with asyncio.timeout(DEADLINE_SECONDS):
        await publisher.wait_published()


def held(server: ApiServer) -> list[JsonObject]:
    return server.objects("resourceslices")


def device_names(server: ApiServer) -> list[list[str]]:
    return [[item["name"] for item in found["spec"].get("devices", ())] for found in held(server)]


def count_writes(server: ApiServer) -> Counter[str]:
    path = paths.RESOURCE_SLICES
    return Counter(r.method for r in server.requests if r.method in WRITES and r.path.startswith(path))


async def test_a_first_publication_makes_slices_of_generation_one_owned_by_the_node(
    server: ApiServer, publisher: SlicePublisher, node: JsonObject
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
    server: ApiServer, publisher: SlicePublisher, wait_until: WaitUntil
) -> None:
    await wait_until(lambda: server.open_watches() == 1)
    assert not publisher.is_published
    assert publisher.last_error == "not written yet"
    assert count_writes(server) == {}
    assert held(server) == []


async def test_no_devices_are_one_empty_slice(server: ApiServer, publisher: SlicePublisher) -> None:
    await publish(publisher, [])
    assert device_names(server) == [[]]
    assert held(server)[0]["spec"]["pool"]["resourceSliceCount"] == 1


async def test_three_hundred_devices_are_three_slices_of_one_generation(
    server: ApiServer, publisher: SlicePublisher
) -> None:
    names = [f"eth{number:03d}" for number in range(300)]
    await publish(publisher, pages(names[:128], names[128:256], names[256:]))
    assert [len(page) for page in device_names(server)] == [128, 128, 44]
    assert {found["spec"]["pool"]["generation"] for found in held(server)} == {1}


async def test_equal_content_again_writes_nothing(server: ApiServer, publisher: SlicePublisher) -> None:
    await publish(publisher, pages(["eth0"]))
    before = count_writes(server)
    await publish(publisher, pages(["eth0"]))
    await publish(publisher, pages(["eth0", "eth1"]))
    await publish(publisher, pages(["eth0", "eth1"]))
    assert count_writes(server) - before == {"PUT": 1}


async def test_a_restarted_driver_finds_its_slices_and_writes_nothing(
    server: ApiServer, client: ApiClient, publisher: SlicePublisher
) -> None:
    await publish(publisher, pages(["eth0"], ["eth1"]))
    before = count_writes(server)
    second = build_publisher(client)
    task = asyncio.create_task(second.run())
    await publish(second, pages(["eth0"], ["eth1"]))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert count_writes(server) == before
    assert second.generation == 1


async def test_one_changed_slice_is_updated_in_place_and_two_bump_the_generation(
    server: ApiServer, publisher: SlicePublisher
) -> None:
    await publish(publisher, pages(["a"], ["b"], ["c"]))
    uids = [found["metadata"]["uid"] for found in held(server)]
    await publish(publisher, pages(["a"], ["x"], ["c"]))
    assert publisher.generation == 1
    await publish(publisher, pages(["y"], ["z"], ["c"]))
    assert publisher.generation == 2
    assert [found["metadata"]["uid"] for found in held(server)] == uids
    assert {found["spec"]["pool"]["generation"] for found in held(server)} == {2}
    assert count_writes(server) == {"POST": 3, "PUT": 1 + 3}


async def test_fewer_pages_delete_the_redundant_slice(server: ApiServer, publisher: SlicePublisher) -> None:
    await publish(publisher, pages(["a"], ["b"]))
    await publish(publisher, pages(["a"]))
    assert device_names(server) == [["a"]]
    assert (publisher.generation, publisher.counters.deletes) == (1, 1)


async def test_slices_of_other_nodes_and_drivers_are_not_touched(
    server: ApiServer, client: ApiClient, publisher: SlicePublisher
) -> None:
    for driver, node in ((DRIVER, "node-b"), ("other.driver", NODE)):
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": []}
        await client.create(paths.RESOURCE_SLICES, {"metadata": {"generateName": "x-"}, "spec": spec})
    await publish(publisher, pages(["eth0"]))
    assert len(held(server)) == 3
    assert count_writes(server) == {"POST": 3}


async def test_slices_that_others_wiped_come_back(
    server: ApiServer, client: ApiClient, publisher: SlicePublisher, wait_until: WaitUntil
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
    server: ApiServer, client: ApiClient, publisher: SlicePublisher, wait_until: WaitUntil
) -> None:
    await publish(publisher, pages(["a"]))
    (found,) = held(server)
    await client.replace(
        paths.resource_slice(found["metadata"]["name"]), {**found, "spec": {**found["spec"], "devices": []}}
    )
    await wait_until(lambda: device_names(server) == [["a"]])


async def test_a_wipe_while_the_watch_was_broken_is_found(
    server: ApiServer, client: ApiClient, publisher: SlicePublisher, wait_until: WaitUntil
) -> None:
    await publish(publisher, pages(["a"]))
    server.fail_next("WATCH", paths.RESOURCE_SLICES, 503, count=2)
    server.drop_watches()
    (found,) = held(server)
    await client.delete(paths.resource_slice(found["metadata"]["name"]))
    server.compact()
    await wait_until(lambda: device_names(server) == [["a"]])


async def test_slices_of_a_replaced_node_object_get_the_new_owner(
    server: ApiServer, client: ApiClient, publisher: SlicePublisher, node: JsonObject, wait_until: WaitUntil
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
    publisher = build_publisher(client)
    task = asyncio.create_task(publisher.run())
    publisher.set_desired(pages(["a"]))
    await wait_until(lambda: publisher.counters.failures[Reason.API_NOT_FOUND] > 0)
    assert "nodes" in publisher.last_error
    await client.create(paths.NODES, {"metadata": {"name": NODE}})
    await wait_until(lambda: publisher.is_published)
    assert publisher.last_error == ""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_watch_that_lags_behind_never_leads_to_duplicates(
    server: ApiServer, publisher: SlicePublisher, wait_until: WaitUntil
) -> None:
    await wait_until(lambda: server.open_watches() == 1)
    server.hold_watches()
    await publish(publisher, pages(["a"]))
    await publish(publisher, pages(["a"], ["b"]))
    await publish(publisher, pages(["x"], ["y"]))
    await publish(publisher, pages(["x"]))
    before = count_writes(server)
    server.release_watches()
    await publish(publisher, pages(["x", "z"]))
    assert device_names(server) == [["x", "z"]]
    assert count_writes(server) - before == {"PUT": 1}


async def test_a_create_whose_answer_was_lost_is_not_repeated(
    server: ApiServer, publisher: SlicePublisher, wait_until: WaitUntil
) -> None:
    await wait_until(lambda: server.open_watches() == 1)
    server.hold_watches()
    server.fail_next("POST", paths.RESOURCE_SLICES, 0)
    await publish(publisher, pages(["a"]))
    assert device_names(server) == [["a"]]
    assert count_writes(server) == {"POST": 1}
    server.release_watches()


@pytest.mark.parametrize("status", [409, 500, 503, 403, 422])
async def test_a_refused_write_is_tried_again(
    server: ApiServer, publisher: SlicePublisher, status: int
) -> None:
    server.fail_next("POST", paths.RESOURCE_SLICES, status, count=3)
    await publish(publisher, pages(["a"], ["b"]))
    assert device_names(server) == [["a"], ["b"]]
    assert publisher.counters.failures.total() == 3


async def test_failures_and_the_last_success_are_there_for_the_metrics(
    server: ApiServer, client: ApiClient, node: JsonObject
) -> None:
    assert node
    failures: list[Reason] = []
    publisher = SlicePublisher(
        client, DRIVER, NODE, retry_backoff=Backoff(0.01, 0.01), on_failure=failures.append
    )
    assert publisher.last_published == 0
    server.fail_next("POST", paths.RESOURCE_SLICES, 503)
    task = asyncio.create_task(publisher.run())
    await publish(publisher, pages(["a"]))
    assert failures == [Reason.API_UNAVAILABLE]
    assert time.time() - publisher.last_published < 60
    task.cancel()


async def test_a_conflicting_update_is_tried_again_on_the_newest_version(
    server: ApiServer, client: ApiClient, publisher: SlicePublisher, wait_until: WaitUntil
) -> None:
    await publish(publisher, pages(["a"]))
    await wait_until(lambda: server.open_watches() == 1)
    server.hold_watches()
    (found,) = held(server)
    await client.patch(paths.resource_slice(found["metadata"]["name"]), {"metadata": {"labels": {"x": "y"}}})
    await publish(publisher, pages(["b"]))
    assert device_names(server) == [["b"]]
    assert held(server)[0]["metadata"]["labels"] == {"x": "y"}
    assert publisher.counters.failures == {Reason.API_CONFLICT: 1}
    server.release_watches()


async def test_invalid_content_is_logged_once_counted_and_mended_by_new_content(
    server: ApiServer, publisher: SlicePublisher, wait_until: WaitUntil, caplog: pytest.LogCaptureFixture
) -> None:
    publisher.set_desired(pages(["Not_A_Label"]))
    await wait_until(lambda: publisher.counters.failures[Reason.API_INVALID] >= 3)
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
    publisher = SlicePublisher(client, DRIVER, NODE, retry_backoff=Backoff(3600, 3600))
    task = asyncio.create_task(publisher.run())
    publisher.set_desired(pages(["Bad_Name"]))
    await wait_until(lambda: publisher.counters.failures[Reason.API_INVALID] == 1)
    await publish(publisher, pages(["good"]))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class ForgetfulClient(ApiClient):
    """Talks to a server that is older than one of our fields and drops it."""

    async def create(self, path: str, body: JsonObject) -> JsonObject:
        return await super().create(path, _without_mtu(body))

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
    async with ForgetfulClient(access_from_url(server.url)) as client:
        publisher = build_publisher(client)
        task = asyncio.create_task(publisher.run())
        await publish(publisher, pages(["a"]))
        await publish(publisher, pages(["a"], ["b"]))
        await publish(publisher, pages(["a"]))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    messages = [record.message for record in caplog.records if "stored slice" in record.message]
    assert [text.split(" of pool")[0] for text in messages] == [
        "the API server stored slice 0",
        "the API server stored slice 1",
    ]
    assert count_writes(server) == {"POST": 2, "PUT": 2, "DELETE": 1}


async def test_two_drivers_that_disagree_do_not_write_at_full_speed(
    server: ApiServer, client: ApiClient, node: JsonObject
) -> None:
    """While two versions of a driver run on one node (a rolling update), each undoes the other."""
    assert node
    publishers = [SlicePublisher(client, DRIVER, NODE, repair_backoff=Backoff(0.2, 1.0)) for _ in range(2)]
    tasks = [asyncio.create_task(publisher.run()) for publisher in publishers]
    for publisher, mtu in zip(publishers, (1500, 9000), strict=True):
        await publish(publisher, pages(["a"], mtu=mtu))
    await asyncio.wait(tasks, timeout=1.0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert count_writes(server).total() <= 20


async def test_an_answer_that_is_no_api_object_is_tried_again(
    server: ApiServer, client: ApiClient, publisher: SlicePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, pages_of_a_proxy = client.create, [ProtocolError("the answer is not a JSON object")]

    async def create(path: str, body: JsonObject) -> JsonObject:
        if pages_of_a_proxy:
            raise pages_of_a_proxy.pop()
        return await real(path, body)

    monkeypatch.setattr(client, "create", create)
    await publish(publisher, pages(["a"]))
    assert device_names(server) == [["a"]]
    assert publisher.counters.failures == {Reason.PROTOCOL_ERROR: 1}
