"""What a real API server does to objects, shown by the stand-in over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, EventType, JsonObject
from dranet.cluster.transport import access_from_url
from dranet.errors import ClusterError, Reason
from testbed.apiserver.server import ApiServer

pytestmark = pytest.mark.socket

MAPS = paths.config_maps("default")
PODS = paths.pods("default")
CLAIMS = paths.resource_claims("default")


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as running:
        yield running


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[ApiClient]:
    async with ApiClient(access_from_url(server.url)) as connected:
        yield connected


def pod(name: str, node: str = "", **metadata: Any) -> JsonObject:
    spec: JsonObject = {"containers": [{"name": "c", "image": "i"}]}
    if node:
        spec["nodeName"] = node
    return {"metadata": {"name": name, **metadata}, "spec": spec}


def claim(name: str = "c") -> JsonObject:
    requests = [{"name": "nic", "exactly": {"deviceClassName": "x"}}]
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}}


async def refused(status: int, call: Any) -> ClusterError:
    with pytest.raises(ClusterError) as caught:
        await call
    assert caught.value.status == status, caught.value
    return caught.value


async def gone(client: ApiClient, path: str) -> bool:
    try:
        await client.get(path)
    except ClusterError as error:
        return error.reason is Reason.API_NOT_FOUND
    return False


# Metadata and versions.


async def test_a_created_object_gets_uid_time_and_a_version_of_one_counter(client: ApiClient) -> None:
    first = await client.create(MAPS, {"metadata": {"name": "a"}})
    second = await client.create(MAPS, {"metadata": {"name": "b", "uid": "mine"}})
    assert first["metadata"]["uid"] != second["metadata"]["uid"] != "mine"
    assert first["metadata"]["creationTimestamp"].endswith("Z")
    assert int(second["metadata"]["resourceVersion"]) == int(first["metadata"]["resourceVersion"]) + 1
    assert (first["kind"], first["apiVersion"]) == ("ConfigMap", "v1")


async def test_a_generated_name_has_five_characters_after_at_most_58(client: ApiClient) -> None:
    made = await client.create(MAPS, {"metadata": {"generateName": "x" * 70}})
    assert len(made["metadata"]["name"]) == 63
    other = await client.create(MAPS, {"metadata": {"generateName": "x" * 70}})
    assert other["metadata"]["name"] != made["metadata"]["name"]


async def test_a_namespace_must_exist_and_a_name_be_free(client: ApiClient) -> None:
    await refused(404, client.create(paths.config_maps("nowhere"), {"metadata": {"name": "a"}}))
    await client.create(MAPS, {"metadata": {"name": "a"}})
    await refused(409, client.create(MAPS, {"metadata": {"name": "a"}}))
    await refused(422, client.create(MAPS, {"metadata": {}}))
    await refused(400, client.create(MAPS, {"metadata": {"name": "b", "namespace": "other"}}))
    await refused(400, client.create(paths.config_maps(), {"metadata": {"name": "b"}}))


async def test_a_write_that_changes_nothing_makes_no_version(client: ApiClient) -> None:
    made = await client.create(MAPS, {"metadata": {"name": "a"}, "data": {"x": "1"}})
    path = paths.config_map("default", "a")
    assert await client.replace(path, made) == made
    assert await client.patch(path, {"data": {"x": "1"}}) == made


async def test_a_replace_without_version_wins_and_of_another_object_is_refused(client: ApiClient) -> None:
    made = await client.create(MAPS, {"metadata": {"name": "a"}})
    path = paths.config_map("default", "a")
    await client.replace(path, {"metadata": {"name": "a"}, "data": {"x": "1"}})
    stale = {"metadata": {"name": "a", "resourceVersion": made["metadata"]["resourceVersion"]}}
    await refused(409, client.replace(path, stale))
    await refused(409, client.replace(path, {"metadata": {"name": "a", "uid": "other"}}))
    await refused(400, client.replace(path, {"metadata": {"name": "b"}}))
    await refused(400, client.replace(path, {"kind": "Pod", "metadata": {"name": "a"}}))
    await refused(404, client.replace(paths.config_map("default", "none"), {"metadata": {"name": "none"}}))


async def test_generation_counts_changes_of_the_spec_alone(client: ApiClient) -> None:
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "d", "nodeName": "n", "pool": pool, "devices": [{"name": "a"}]}
    made = await client.create(paths.RESOURCE_SLICES, {"metadata": {"name": "s"}, "spec": spec})
    path = paths.resource_slice("s")
    labelled = await client.patch(path, {"metadata": {"labels": {"x": "y"}}})
    changed = await client.patch(path, {"spec": {"devices": []}})
    assert [o["metadata"]["generation"] for o in (made, labelled, changed)] == [1, 1, 2]


# Status and spec are two halves.


async def test_status_and_spec_are_written_through_their_own_doors(client: ApiClient) -> None:
    made = await client.create(CLAIMS, {**claim(), "status": {"reservedFor": [{"uid": "sneaked in"}]}})
    assert "status" not in made
    allocation: JsonObject = {"devices": {"results": []}}
    path, status_path = paths.resource_claim("default", "c"), paths.resource_claim_status("default", "c")
    stored = await client.patch(
        status_path, {"status": {"allocation": allocation}, "metadata": {"labels": {"lost": "yes"}}}
    )
    assert stored["status"] == {"allocation": allocation}
    labelled = await client.replace(
        path, {**stored, "metadata": {"name": "c", "labels": {"a": "b"}}, "status": {}}
    )
    assert labelled["status"] == {"allocation": allocation}
    assert labelled["metadata"]["labels"] == {"a": "b"}
    assert (await client.get(status_path)) == labelled


async def test_a_claims_spec_and_allocation_do_not_change_and_deallocation_clears_devices(
    client: ApiClient,
) -> None:
    await client.create(CLAIMS, claim())
    path, status_path = paths.resource_claim("default", "c"), paths.resource_claim_status("default", "c")
    result = {"request": "nic", "driver": "d", "pool": "p", "device": "e"}
    await client.patch(status_path, {"status": {"allocation": {"devices": {"results": [result]}}}})
    await refused(422, client.patch(path, {"spec": {"devices": {"requests": []}}}))
    await refused(422, client.patch(status_path, {"status": {"allocation": {"devices": {"results": []}}}}))
    device = {"driver": "d", "pool": "p", "device": "e"}
    await client.patch(status_path, {"status": {"devices": [device]}})
    cleared = await client.patch(status_path, {"status": {"allocation": None}})
    assert cleared["status"] == {}


async def test_a_request_gets_the_defaults_of_the_api(client: ApiClient) -> None:
    made = await client.create(CLAIMS, claim())
    (request,) = made["spec"]["devices"]["requests"]
    assert request["exactly"] == {"deviceClassName": "x", "allocationMode": "ExactCount", "count": 1}


# Deletion.


async def test_a_finalizer_keeps_an_object_until_it_is_taken_off(client: ApiClient) -> None:
    await client.create(MAPS, {"metadata": {"name": "a", "finalizers": ["x/y"]}})
    path = paths.config_map("default", "a")
    marked = await client.delete(path)
    assert marked["metadata"]["deletionTimestamp"]
    assert await client.delete(path) == marked
    await client.patch(path, {"metadata": {"finalizers": None}})
    assert await gone(client, path)


async def test_a_pod_on_a_node_lives_until_its_kubelet_lets_it_go(client: ApiClient) -> None:
    await client.create(PODS, pod("p", "node-a"))
    path = paths.pod("default", "p")
    marked = await client.delete(path)
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 30
    assert marked["metadata"]["deletionTimestamp"]
    shorter = await client.delete(path, grace_period_seconds=5)
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 5
    await client.delete(path, grace_period_seconds=0)
    assert await gone(client, path)


@pytest.mark.parametrize(("node", "phase"), [("", "Pending"), ("node-a", "Succeeded"), ("node-a", "Failed")])
async def test_a_pod_that_no_kubelet_runs_goes_at_once(client: ApiClient, node: str, phase: str) -> None:
    await client.create(PODS, pod("p", node))
    await client.patch(paths.pod_status("default", "p"), {"status": {"phase": phase}})
    await client.delete(paths.pod("default", "p"))
    assert await gone(client, paths.pod("default", "p"))


async def test_a_pod_with_a_finalizer_outlives_its_kubelet(client: ApiClient) -> None:
    await client.create(PODS, pod("p", "node-a", finalizers=["x/y"]))
    path = paths.pod("default", "p")
    await client.delete(path)
    await client.delete(path, grace_period_seconds=0)
    assert not await gone(client, path)
    await client.patch(path, {"metadata": {"finalizers": None}})
    assert await gone(client, path)


async def test_a_collection_is_deleted_by_selector(client: ApiClient) -> None:
    for name in ("a", "b"):
        await client.create(MAPS, {"metadata": {"name": name, "labels": {"app": name}}})
    await client.delete(f"{MAPS}?labelSelector=app%3Da")
    assert [item["metadata"]["name"] for item in (await client.list(MAPS))["items"]] == ["b"]


async def test_a_deleted_namespace_takes_its_objects_along(client: ApiClient) -> None:
    await client.create(paths.NAMESPACES, {"metadata": {"name": "tenant"}})
    await client.create(paths.pods("tenant"), pod("p", "node-a"))
    await client.delete(paths.namespace("tenant"))
    assert (await client.list(paths.pods()))["items"] == []


# Binding.


async def test_a_pod_is_bound_once(client: ApiClient) -> None:
    made = await client.create(PODS, pod("p"))
    path = paths.pod_binding("default", "p")
    await refused(409, client.create(path, {"metadata": {"uid": "other"}, "target": {"name": "node-a"}}))
    await refused(422, client.create(path, {"target": {}}))
    await client.create(path, {"metadata": {"uid": made["metadata"]["uid"]}, "target": {"name": "node-a"}})
    bound = await client.get(paths.pod("default", "p"))
    assert bound["spec"]["nodeName"] == "node-a"
    assert [(c["type"], c["status"]) for c in bound["status"]["conditions"]] == [("PodScheduled", "True")]
    await refused(409, client.create(path, {"target": {"name": "node-b"}}))


# Lists and watches.


async def test_every_page_shows_the_state_of_the_first_one(client: ApiClient) -> None:
    for name in ("a", "b", "c", "d"):
        await client.create(MAPS, {"metadata": {"name": name}})
    first = await client.list(MAPS, limit=2)
    await client.delete(paths.config_map("default", "d"))
    await client.create(MAPS, {"metadata": {"name": "e"}})
    await client.patch(paths.config_map("default", "c"), {"data": {"new": "1"}})
    second = await client.list(MAPS, limit=5, continue_token=first["metadata"]["continue"])
    assert [item["metadata"]["name"] for item in second["items"]] == ["c", "d"]
    assert "data" not in second["items"][0]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_a_page_token_expires_with_its_history(server: ApiServer, client: ApiClient) -> None:
    for name in ("a", "b"):
        await client.create(MAPS, {"metadata": {"name": name}})
    first = await client.list(MAPS, limit=1)
    server.compact()
    await refused(410, client.list(MAPS, limit=1, continue_token=first["metadata"]["continue"]))
    await refused(400, client.list(MAPS, continue_token="garbage"))


async def test_an_object_that_begins_or_ceases_to_match_is_added_or_deleted_for_its_watcher(
    client: ApiClient,
) -> None:
    listed = await client.list(PODS)
    await client.create(PODS, pod("p"))
    await client.create(paths.pod_binding("default", "p"), {"target": {"name": "node-a"}})
    await client.patch(paths.pod("default", "p"), {"metadata": {"labels": {"x": "y"}}})
    await client.delete(paths.pod("default", "p"), grace_period_seconds=0)
    version = listed["metadata"]["resourceVersion"]

    async def types(selector: str, count: int) -> list[str]:
        watch = client.watch(PODS, resource_version=version, field_selector=selector)
        async with contextlib.aclosing(watch) as events:
            return [str((await anext(events)).type) for _ in range(count)]

    assert await types("spec.nodeName=node-a", 3) == ["ADDED", "MODIFIED", "DELETED"]
    assert await types("spec.nodeName=", 2) == ["ADDED", "DELETED"]


async def test_an_object_that_ceases_to_match_is_shown_as_it_was_under_its_new_version(
    client: ApiClient,
) -> None:
    listed = await client.list(PODS)
    await client.create(PODS, pod("p", labels={"x": "y"}))
    left = await client.patch(paths.pod("default", "p"), {"metadata": {"labels": {"x": "z"}}})
    watch = client.watch(PODS, resource_version=listed["metadata"]["resourceVersion"], label_selector="x=y")
    async with contextlib.aclosing(watch) as events:
        last = [await anext(events), await anext(events)][-1]
    assert (last.type, last.object["metadata"]["labels"]) == (EventType.DELETED, {"x": "y"})
    assert last.resource_version == left["metadata"]["resourceVersion"]


async def test_a_watch_without_a_version_tells_the_present_first(client: ApiClient) -> None:
    await client.create(MAPS, {"metadata": {"name": "a"}})
    async with contextlib.aclosing(client.watch(MAPS)) as events:
        event = await anext(events)
    assert (event.type, event.object["metadata"]["name"]) == (EventType.ADDED, "a")


async def test_the_initial_events_of_a_streaming_list_end_with_a_bookmark(
    server: ApiServer, client: ApiClient
) -> None:
    await client.create(MAPS, {"metadata": {"name": "a"}})
    query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1"
    raw = await _get_raw(server, f"{MAPS}?{query}&allowWatchBookmarks=true")
    assert raw.index(b'"type":"ADDED"') < raw.index(b'"k8s.io/initial-events-end":"true"')
    unmarked = await _get_raw(server, f"{MAPS}?{query}")
    assert b'"type":"ADDED"' in unmarked
    assert b"BOOKMARK" not in unmarked


async def _get_raw(server: ApiServer, target: str) -> bytes:
    """Everything that the server says before it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(f"GET {target} HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
    raw = await reader.read()
    writer.close()
    await writer.wait_closed()
    return raw


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("watch=1&sendInitialEvents=true", "resourceVersionMatch"),
        ("watch=1&sendInitialEvents=true&resourceVersionMatch=Exact", "resourceVersionMatch"),
        ("watch=1&resourceVersionMatch=NotOlderThan", "resourceVersionMatch"),
        ("sendInitialEvents=true", "sendInitialEvents"),
        ("resourceVersionMatch=NotOlderThan", "resourceVersionMatch"),
        ("resourceVersionMatch=Exact&resourceVersion=0", "resourceVersionMatch"),
        ("resourceVersionMatch=Odd&resourceVersion=1", "resourceVersionMatch"),
    ],
)
async def test_what_does_not_go_together_in_a_list_or_watch_is_invalid(
    server: ApiServer, query: str, field: str
) -> None:
    raw = await _get_raw(server, f"{MAPS}?{query}")
    assert raw.startswith(b"HTTP/1.1 422 ")
    assert f'"field":"{field}"'.encode() in raw


async def test_what_is_left_is_not_counted_for_a_selected_list(client: ApiClient) -> None:
    for name in ("a", "b", "c"):
        await client.create(MAPS, {"metadata": {"name": name, "labels": {"x": "y"}}})
    whole = await client.list(MAPS, limit=1)
    chosen = await client.list(MAPS, limit=1, label_selector="x=y")
    assert whole["metadata"]["remainingItemCount"] == 2
    assert chosen["metadata"]["continue"]
    assert "remainingItemCount" not in chosen["metadata"]


# Faults on request.


async def test_a_failure_hits_only_the_requests_that_it_was_made_for(
    server: ApiServer, client: ApiClient
) -> None:
    server.fail_next("POST", MAPS, 500)
    await client.list(MAPS)
    await refused(500, client.create(MAPS, {"metadata": {"name": "a"}}))
    await client.create(MAPS, {"metadata": {"name": "a"}})


async def test_a_lost_answer_means_work_done(server: ApiServer, client: ApiClient) -> None:
    server.fail_next("POST", MAPS, 0)
    await refused(0, client.create(MAPS, {"metadata": {"name": "a"}}))
    assert [item["metadata"]["name"] for item in server.objects("configmaps")] == ["a"]


async def test_a_stopped_server_keeps_its_objects_for_the_next_start(server: ApiServer) -> None:
    async with ApiClient(access_from_url(server.url)) as client:
        await client.create(MAPS, {"metadata": {"name": "a"}})
    await server.stop()
    await server.start()
    async with ApiClient(access_from_url(server.url)) as client:
        assert len((await client.list(MAPS))["items"]) == 1


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"GET /x HTTP/3\r\n\r\n",
        b"GET /api HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST /api HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST /api HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"POST /api HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_a_request_that_is_none_gets_a_400_and_an_end(server: ApiServer, raw: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(raw)
    assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    ("method", "target", "body", "status"),
    [
        ("GET", "/healthz", b"", 200),
        ("GET", "/nothing", b"", 404),
        ("GET", "/api/v1/widgets", b"", 404),
        ("GET", "/apis/resource.k8s.io/v1beta1/resourceslices", b"", 404),
        ("GET", "/api/v1/namespaces/default/nodes", b"", 404),
        ("PUT", "/api/v1/nodes", b"{}", 405),
        ("POST", "/api/v1/nodes/x", b"{}", 405),
        ("DELETE", "/api/v1/nodes/x/status", b"", 405),
        ("GET", "/api/v1/nodes/x/scale", b"", 404),
        ("POST", "/api/v1/nodes", b"not json", 400),
        ("POST", "/api/v1/nodes", b"[]", 400),
        ("GET", "/api/v1/nodes?limit=x", b"", 400),
        ("GET", "/api/v1/nodes?watch=1&resourceVersion=x", b"", 400),
        ("PATCH", "/api/v1/namespaces/default", b"{}", 415),
    ],
)
async def test_paths_and_methods_are_answered_as_by_a_real_server(
    server: ApiServer, method: str, target: str, body: bytes, status: int
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"{method} {target} HTTP/1.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    assert (await reader.readline()).split(b" ")[1] == str(status).encode()
    writer.close()
    await writer.wait_closed()


async def test_a_chunked_request_is_read(server: ApiServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(
        b"POST /api/v1/nodes HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        b'8\r\n{"metada\r\nD\r\nta":{"name":"\r\n5\r\na"}}\n\r\n0\r\n\r\n'
    )
    assert b" 201 " in await reader.readline()
    writer.close()
    await writer.wait_closed()
