"""ApiClient over real sockets: against the API server stand-in, and against a server that misbehaves to the
byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from dranet.cluster import paths
from dranet.cluster.client import MAX_BODY_BYTES, ApiClient, EventType, JsonObject
from dranet.cluster.messages import Request, describe_rule
from dranet.cluster.transport import MAX_OPENING, Connection, ConnectionPool, TokenFile, access_from_url
from dranet.errors import ClusterError, Reason, SettingsError
from testbed.apiserver.faults import Trouble
from testbed.apiserver.server import ApiServer

pytestmark = pytest.mark.process

CLAIM_STATUS = "/apis/resource.k8s.io/v1/namespaces/n/resourceclaims/c/status"


class ScriptedServer:
    """Answers each connection with the next script: raw answers, one for each request of that connection.
    ``HANG`` reads the request and says nothing, ``CLOSE`` reads it and hangs up. After its script a
    connection is closed."""

    HANG = b"<hang>"
    CLOSE = b"<close>"

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self._scripts: list[list[bytes]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.url = ""

    def expect(self, *answers: bytes) -> None:
        """One more connection."""
        self._scripts.append(list(answers))

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        script = self._scripts.pop(0)
        try:
            for reply in script:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                if reply == self.CLOSE:
                    break
                if reply == self.HANG:
                    await reader.read()
                writer.write(reply)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client gave up first
        finally:
            writer.close()


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedServer]:
    running = ScriptedServer()
    await running.start()
    yield running
    await running.stop()


@pytest.fixture
async def scripted_client(scripted: ScriptedServer) -> AsyncIterator[ApiClient]:
    async with ApiClient(access_from_url(scripted.url), timeout_seconds=5.0) as connected:
        yield connected


def answer(status: int, body: object, *headers: str) -> bytes:
    encoded = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(encoded)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + encoded


def config_map(name: str, **data: str) -> JsonObject:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


MAPS = paths.config_maps("default")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_no_word_of_the_api_server_and_may_be_over_soon(
    scripted: ScriptedServer, scripted_client: ApiClient, status: int
) -> None:
    """A gateway sends to its page of maintenance: a status must not be dropped for that."""
    scripted.expect(answer(status, {}, "Location: https://elsewhere.example/"))
    with pytest.raises(ClusterError) as caught:
        await scripted_client.apply(CLAIM_STATUS, {}, "m")
    assert (caught.value.reason, caught.value.retryable) == (Reason.API_UNAVAILABLE, True)


# Verbs, against the stand-in.


@pytest.mark.smoke
async def test_an_object_is_created_read_replaced_patched_and_deleted(client: ApiClient) -> None:
    created = await client.create(MAPS, config_map("a", x="1"))
    path = paths.config_map("default", "a")
    assert await client.get(path) == created
    replaced = await client.replace(path, {**created, "data": {"y": "2"}})
    assert replaced["data"] == {"y": "2"}
    patched = await client.patch(path, {"data": {"y": None, "z": "3"}})
    assert patched["data"] == {"z": "3"}
    await client.delete(path, uid=created["metadata"]["uid"])
    with pytest.raises(ClusterError) as caught:
        await client.get(path)
    assert (caught.value.reason, caught.value.status, caught.value.retryable) == (
        Reason.API_NOT_FOUND,
        404,
        False,
    )


async def test_a_list_is_selected_and_paged(client: ApiClient) -> None:
    for name in ("a", "b", "c"):
        await client.create(MAPS, config_map(name))
    one = await client.list(MAPS, field_selector="metadata.name=b")
    assert [item["metadata"]["name"] for item in one["items"]] == ["b"]
    first = await client.list(MAPS, limit=2)
    rest = await client.list(MAPS, limit=2, continue_token=first["metadata"]["continue"])
    names = [item["metadata"]["name"] for page in (first, rest) for item in page["items"]]
    assert names == ["a", "b", "c"]
    assert "continue" not in rest["metadata"]


async def test_a_stale_replace_is_a_conflict_that_may_be_tried_again(client: ApiClient) -> None:
    created = await client.create(MAPS, config_map("a"))
    path = paths.config_map("default", "a")
    await client.patch(path, {"data": {"x": "1"}})
    with pytest.raises(ClusterError) as caught:
        await client.replace(path, created)
    assert (caught.value.reason, caught.value.retryable) == (Reason.API_CONFLICT, True)


async def test_a_delete_spares_an_object_that_is_not_the_given_one(client: ApiClient) -> None:
    created = await client.create(MAPS, config_map("a"))
    path = paths.config_map("default", "a")
    with pytest.raises(ClusterError) as caught:
        await client.delete(path, uid="another")
    assert caught.value.reason is Reason.API_CONFLICT
    await client.patch(path, {"data": {"x": "1"}})
    with pytest.raises(ClusterError):
        await client.delete(path, resource_version=created["metadata"]["resourceVersion"])
    await client.delete(path)


async def test_an_invalid_object_is_named_with_its_field(client: ApiClient) -> None:
    with pytest.raises(ClusterError, match=r"metadata\.name") as caught:
        await client.create(MAPS, config_map("Not A Name"))
    assert (caught.value.reason, caught.value.retryable) == (Reason.API_INVALID, False)


# Refusals and their reasons.


@pytest.mark.parametrize(
    ("status", "reason", "retryable"),
    [
        (400, Reason.API_INVALID, False),
        (403, Reason.API_FORBIDDEN, False),
        (404, Reason.API_NOT_FOUND, False),
        (408, Reason.API_UNAVAILABLE, True),
        (409, Reason.API_CONFLICT, True),
        (410, Reason.API_GONE, True),
        (413, Reason.API_INVALID, False),
        (422, Reason.API_INVALID, False),
        (429, Reason.API_UNAVAILABLE, True),
        (500, Reason.API_UNAVAILABLE, True),
        (503, Reason.API_UNAVAILABLE, True),
    ],
)
async def test_each_refusal_has_its_reason(
    server: ApiServer, client: ApiClient, status: int, reason: Reason, retryable: bool
) -> None:
    server.fail_next("GET", MAPS, status)
    with pytest.raises(ClusterError) as caught:
        await client.list(MAPS)
    assert (caught.value.reason, caught.value.retryable, caught.value.status) == (reason, retryable, status)


async def test_a_forbidden_request_says_which_rbac_rule_it_takes(
    scripted: ScriptedServer, scripted_client: ApiClient
) -> None:
    scripted.expect(answer(403, {"kind": "Status", "message": "user x cannot patch"}))
    with pytest.raises(ClusterError, match="user x cannot patch") as caught:
        await scripted_client.apply(CLAIM_STATUS, {}, "m")
    assert "patch resourceclaims/status in resource.k8s.io" in caught.value.hint


@pytest.mark.parametrize(
    ("method", "path", "watch", "expected"),
    [
        ("GET", "/api/v1/nodes/a", False, "get nodes in the core group"),
        ("GET", "/api/v1/namespaces/x", False, "get namespaces in the core group"),
        ("GET", "/api/v1/namespaces/x/pods", False, "list pods in the core group"),
        ("GET", "/apis/resource.k8s.io/v1/resourceslices", True, "watch resourceslices in resource.k8s.io"),
        ("POST", "/api/v1/namespaces/x/pods/p/binding", False, "create pods/binding in the core group"),
        (
            "PUT",
            "/apis/resource.k8s.io/v1/resourceslices/s",
            False,
            "update resourceslices in resource.k8s.io",
        ),
        ("PATCH", CLAIM_STATUS, False, "patch resourceclaims/status in resource.k8s.io"),
        ("DELETE", "/api/v1/namespaces/x/pods", False, "deletecollection pods in the core group"),
    ],
)
def test_the_rbac_rule_of_a_request_is_known(method: str, path: str, watch: bool, expected: str) -> None:
    assert describe_rule(Request(method, path, watch=watch)) == expected


@pytest.mark.parametrize("status", [429, 503])
async def test_a_throttled_request_waits_as_told_and_goes_again(
    server: ApiServer, client: ApiClient, status: int
) -> None:
    server.fail_next("GET", MAPS, status, 2, retry_after=0)
    assert (await client.list(MAPS))["items"] == []
    assert sum(record.path == MAPS for record in server.requests) == 3


async def test_a_throttled_create_goes_again_because_nothing_was_done(
    server: ApiServer, client: ApiClient
) -> None:
    server.fail_next("POST", MAPS, 429, retry_after=1)
    started = asyncio.get_running_loop().time()
    await client.create(MAPS, config_map("a"))
    assert asyncio.get_running_loop().time() - started >= 1


async def test_throttled_requests_do_not_come_again_together(server: ApiServer, client: ApiClient) -> None:
    """The server tells all of them the same."""
    together = 8
    server.fail_next("GET", MAPS, 429, together, retry_after=1)
    ends: list[float] = []

    async def fetch() -> None:
        await client.list(MAPS)
        ends.append(asyncio.get_running_loop().time())

    started = asyncio.get_running_loop().time()
    await asyncio.gather(*(fetch() for _ in range(together)))
    waits = [end - started for end in ends]
    assert min(waits) >= 1
    assert max(waits) - min(waits) > 0.1


async def test_a_server_that_throttles_for_ever_is_unavailable(server: ApiServer, client: ApiClient) -> None:
    server.fail_next("GET", MAPS, 429, 100, retry_after=0)
    with pytest.raises(ClusterError) as caught:
        await client.list(MAPS)
    assert caught.value.reason is Reason.API_UNAVAILABLE
    assert len(server.requests) == 6


async def test_a_long_retry_after_is_handed_to_the_caller_and_not_waited_for(server: ApiServer) -> None:
    server.fail_next("GET", MAPS, 503, 100, retry_after=3600)
    async with ApiClient(access_from_url(server.url), timeout_seconds=15.0) as client:
        with pytest.raises(ClusterError, match="503") as caught:
            await client.list(MAPS)
    assert caught.value.retryable
    assert caught.value.retry_after_seconds == 30.0


async def test_a_dry_run_answers_as_a_create_does_and_stores_nothing(
    server: ApiServer, client: ApiClient
) -> None:
    answer = await client.create(MAPS, config_map("a"), dry_run=True)
    assert answer["metadata"]["name"] == "a"
    assert server.objects("configmaps") == []


# Connections.


async def test_one_connection_serves_many_requests(
    scripted: ScriptedServer, scripted_client: ApiClient
) -> None:
    scripted.expect(*[answer(200, {"n": number}) for number in range(3)])
    assert [await scripted_client.get("/x") for _ in range(3)] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert scripted.connections == 1


async def test_a_connection_that_the_server_closed_is_replaced(
    scripted: ScriptedServer, scripted_client: ApiClient
) -> None:
    for number in range(3):
        scripted.expect(answer(200, {"n": number}))
    assert [await scripted_client.get("/x") for _ in range(3)] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert scripted.connections == 3


async def test_a_connection_that_the_server_wants_closed_is_not_used_again(
    scripted: ScriptedServer, scripted_client: ApiClient
) -> None:
    scripted.expect(answer(200, {"n": 0}, "Connection: close"), scripted.HANG)
    scripted.expect(answer(200, {"n": 1}))
    assert [await scripted_client.create("/x", {}) for _ in range(2)] == [{"n": 0}, {"n": 1}]


async def test_a_create_does_not_fall_for_a_connection_that_was_closed_while_idle(
    server: ApiServer, client: ApiClient
) -> None:
    await client.list(MAPS)
    assert server.drop_idle() == 1
    # One exchange on a connection of its own: by its end the news of the other's end has arrived, too.
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")
    await reader.read()
    writer.close()
    await client.create(MAPS, config_map("a"))


async def test_a_kept_connection_that_breaks_under_a_get_is_replaced_once(
    scripted: ScriptedServer, scripted_client: ApiClient
) -> None:
    scripted.expect(answer(200, {}), scripted.CLOSE)
    scripted.expect(answer(200, {"done": 1}))
    await scripted_client.get("/x")
    assert await scripted_client.get("/y") == {"done": 1}
    assert [line.split(b" ")[1] for line in scripted.requests] == [b"/x", b"/y", b"/y"]


async def test_a_create_whose_connection_breaks_is_not_sent_again(
    scripted: ScriptedServer, scripted_client: ApiClient
) -> None:
    scripted.expect(answer(200, {}), scripted.CLOSE)
    await scripted_client.get("/x")
    with pytest.raises(ClusterError) as caught:
        await scripted_client.create("/y", {})
    assert caught.value.reason is Reason.API_UNAVAILABLE
    assert len(scripted.requests) == 2


async def test_a_fresh_connection_that_breaks_is_not_tried_again(
    scripted: ScriptedServer, scripted_client: ApiClient
) -> None:
    scripted.expect(scripted.CLOSE)
    with pytest.raises(ClusterError) as caught:
        await scripted_client.get("/x")
    assert caught.value.retryable
    assert len(scripted.requests) == 1


async def test_a_server_that_does_not_answer_is_unavailable_in_time(scripted: ScriptedServer) -> None:
    scripted.expect(scripted.HANG)
    async with ApiClient(access_from_url(scripted.url), timeout_seconds=0.1) as client:
        with pytest.raises(ClusterError, match="timed out") as caught:
            await client.get("/x")
    assert (caught.value.reason, caught.value.retryable) == (Reason.API_UNAVAILABLE, True)


async def test_nobody_listening_is_unavailable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # so that nobody else listens there
        async with ApiClient(access_from_url(f"http://127.0.0.1:{taken.getsockname()[1]}")) as client:
            with pytest.raises(ClusterError) as caught:
                await client.get("/x")
    assert (caught.value.reason, caught.value.status) == (Reason.API_UNAVAILABLE, 0)


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n<ht>",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1),
    ],
)
async def test_nonsense_is_an_unavailable_server_and_no_crash(
    scripted: ScriptedServer, scripted_client: ApiClient, raw: bytes
) -> None:
    scripted.expect(raw)
    with pytest.raises(ClusterError) as caught:
        await scripted_client.get("/x")
    assert (caught.value.reason, caught.value.retryable) == (Reason.API_UNAVAILABLE, True)


async def test_a_proxys_html_page_is_an_error_of_its_status(
    scripted: ScriptedServer, scripted_client: ApiClient
) -> None:
    scripted.expect(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 6\r\n\r\n<html>")
    with pytest.raises(ClusterError, match="502 <html>") as caught:
        await scripted_client.get("/x")
    assert caught.value.retryable


async def test_a_path_prefix_of_a_gateway_comes_first(scripted: ScriptedServer) -> None:
    scripted.expect(answer(200, {}))
    async with ApiClient(access_from_url(f"{scripted.url}/k8s/c1/")) as client:
        await client.get(paths.NODES)
    assert scripted.requests[0].startswith(b"GET /k8s/c1/api/v1/nodes HTTP/1.1\r\n")


async def test_a_cancelled_call_does_not_leave_its_answer_to_the_next_one(
    scripted: ScriptedServer, scripted_client: ApiClient
) -> None:
    scripted.expect(answer(200, {"n": 0}), scripted.HANG)
    scripted.expect(answer(200, {"n": 1}))
    await scripted_client.get("/x")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await scripted_client.get("/slow")
    assert await scripted_client.get("/next") == {"n": 1}


# Watches.


async def test_a_watch_tells_of_changes_after_a_version(client: ApiClient) -> None:
    created = await client.create(MAPS, config_map("a"))
    await client.patch(paths.config_map("default", "a"), {"data": {"x": "1"}})
    await client.delete(paths.config_map("default", "a"))
    await client.create(MAPS, config_map("b"))
    version = created["metadata"]["resourceVersion"]
    seen = []
    async with contextlib.aclosing(client.watch(MAPS, resource_version=version)) as events:
        async for event in events:
            seen.append((event.type, event.object["metadata"]["name"]))
            if len(seen) == 3:
                break
    assert seen == [(EventType.MODIFIED, "a"), (EventType.DELETED, "a"), (EventType.ADDED, "b")]


async def test_a_watch_tells_only_of_what_its_selector_takes(client: ApiClient) -> None:
    listed = await client.list(MAPS)
    for name in ("a", "b"):
        await client.create(MAPS, config_map(name))
    watch = client.watch(
        MAPS, resource_version=listed["metadata"]["resourceVersion"], field_selector="metadata.name=b"
    )
    async with contextlib.aclosing(watch) as events:
        assert (await anext(events)).object["metadata"]["name"] == "b"


async def test_a_watch_ends_when_the_server_ends_it(client: ApiClient) -> None:
    listed = await client.list(MAPS)
    version = listed["metadata"]["resourceVersion"]
    events = [event async for event in client.watch(MAPS, resource_version=version, timeout_seconds=1)]
    assert {event.type for event in events} <= {EventType.BOOKMARK}


async def test_an_idle_watch_gets_bookmarks_to_resume_from() -> None:
    async with ApiServer(bookmark_seconds=0.01) as server, ApiClient(access_from_url(server.url)) as client:
        listed = await client.list(MAPS)
        version = listed["metadata"]["resourceVersion"]
        async with contextlib.aclosing(client.watch(MAPS, resource_version=version)) as events:
            bookmark = await anext(events)
    assert (bookmark.type, bookmark.resource_version) == (EventType.BOOKMARK, version)


async def test_a_version_that_is_forgotten_is_gone(server: ApiServer, client: ApiClient) -> None:
    listed = await client.list(MAPS)
    server.compact()
    with pytest.raises(ClusterError) as caught:
        await anext(client.watch(MAPS, resource_version=listed["metadata"]["resourceVersion"]))
    assert (caught.value.reason, caught.value.retryable) == (Reason.API_GONE, True)


async def test_a_silent_half_open_watch_is_given_up(server: ApiServer, client: ApiClient) -> None:
    server.hold_watches()
    with pytest.raises(ClusterError, match="timed out") as caught:
        await anext(client.watch(MAPS, silence_seconds=0.1))
    assert caught.value.reason is Reason.API_UNAVAILABLE


async def test_a_broken_watch_is_unavailable(server: ApiServer, client: ApiClient) -> None:
    await client.create(MAPS, config_map("a"))
    async with contextlib.aclosing(client.watch(MAPS)) as events:
        await anext(events)
        server.drop_watches()
        with pytest.raises(ClusterError) as caught:
            await anext(events)
    assert caught.value.reason is Reason.API_UNAVAILABLE


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"[]",
        b'{"type": "ADDED"}',
        b'{"type": "NEWS", "object": {"metadata": {}}}',
        b'{"type": "ADDED", "object": {"metadata": null}}',
        b'{"type": "ERROR", "object": {"code": "x"}}',
    ],
)
async def test_an_event_that_is_none_is_an_unavailable_server(
    scripted: ScriptedServer, scripted_client: ApiClient, line: bytes
) -> None:
    scripted.expect(b"HTTP/1.1 200 OK\r\n\r\n" + line + b"\n")
    with pytest.raises(ClusterError) as caught:
        await anext(scripted_client.watch("/x"))
    assert caught.value.reason is Reason.API_UNAVAILABLE


async def test_an_event_may_arrive_in_many_pieces(
    scripted: ScriptedServer, scripted_client: ApiClient
) -> None:
    claim = {"metadata": {"name": "x" * 200_000, "uid": "u1"}}
    line = json.dumps({"type": "ADDED", "object": claim}).encode() + b"\n"
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(part), part) for part in (line[:7], line[7:150_000], line[150_000:])
    )
    scripted.expect(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
    events = [event async for event in scripted_client.watch("/x")]
    assert [len(event.object["metadata"]["name"]) for event in events] == [200_000]


# Credentials on the wire.


def reader_of(token: Path, server: ApiServer) -> ApiClient:
    return ApiClient(access_from_url(server.url, token=TokenFile(token)))


async def test_a_rotated_token_is_used_without_a_restart(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    async with ApiServer(tokens=["old"]) as server, reader_of(token, server) as client:
        await client.get(paths.namespace("default"))
        server.accepted_tokens = {"new"}
        token.write_text("new")
        await client.get(paths.namespace("default"))


async def test_a_401_rereads_the_token_and_tries_once_more(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    async with ApiServer(tokens=["other"]) as server, reader_of(token, server) as client:
        with pytest.raises(ClusterError) as caught:
            await client.get(paths.namespace("default"))
        assert len(server.requests) == 2
    assert (caught.value.reason, caught.value.status) == (Reason.API_FORBIDDEN, 401)


async def test_a_token_file_that_vanished_is_an_outage_and_not_the_end(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    async with ApiServer(tokens=["new"]) as server, reader_of(token, server) as client:
        with pytest.raises(ClusterError):
            await client.get(paths.namespace("default"))
        token.unlink()
        with pytest.raises(ClusterError) as caught:
            await client.get(paths.namespace("default"))
    assert (caught.value.reason, caught.value.retryable) == (Reason.API_UNAVAILABLE, True)


@pytest.fixture
async def tls_server(certificates: Path) -> AsyncIterator[ApiServer]:
    async with ApiServer(certificate=certificates / "a.crt", key=certificates / "a.key") as running:
        yield running


def kubeconfig(path: Path, server: str, cluster: dict[str, object], user: dict[str, object]) -> Path:
    document = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "clusters": [{"name": "x", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "x", "user": user}],
    }
    path.write_text(json.dumps(document))
    return path


async def test_tls_with_the_right_authority_works_and_is_kept_alive(
    tls_server: ApiServer, tmp_path: Path
) -> None:
    tls_server.write_kubeconfig(tmp_path / "config")
    async with ApiClient.from_kubeconfig(tmp_path / "config") as client:
        for _ in range(2):
            assert (await client.get(paths.namespace("default")))["kind"] == "Namespace"
        async with contextlib.aclosing(client.watch(paths.NAMESPACES)) as events:
            assert (await anext(events)).object["metadata"]["name"] == "default"


async def test_tls_with_a_wrong_authority_is_refused_with_a_hint(
    tls_server: ApiServer, certificates: Path, tmp_path: Path
) -> None:
    path = kubeconfig(
        tmp_path / "config", tls_server.url, {"certificate-authority": str(certificates / "b.crt")}, {}
    )
    async with ApiClient.from_kubeconfig(path) as client:
        with pytest.raises(ClusterError) as caught:
            await client.get(paths.NODES)
    assert caught.value.reason is Reason.API_UNAVAILABLE
    assert "authority" in caught.value.hint


def make_expired(folder: Path, key: Path) -> Path:
    """A certificate for 127.0.0.1 that has never been valid."""
    request, old = folder / "old.csr", folder / "old.crt"
    names = ("-subj", "/CN=old", "-addext", "subjectAltName=IP:127.0.0.1")
    sign = ("-days", "-1", "-copy_extensions", "copy", "-out", old)
    for command in (
        ("openssl", "req", "-new", "-key", key, *names, "-out", request),
        ("openssl", "x509", "-req", "-in", request, "-key", key, *sign),
    ):
        subprocess.run(command, check=True, capture_output=True)
    return old


async def test_a_certificate_outside_of_its_time_makes_one_look_at_the_clock(
    certificates: Path, tmp_path: Path
) -> None:
    key = certificates / "a.key"
    old = make_expired(tmp_path, key)
    async with ApiServer(certificate=old, key=key) as server:
        path = kubeconfig(tmp_path / "config", server.url, {"certificate-authority": str(old)}, {})
        async with ApiClient.from_kubeconfig(path) as client:
            with pytest.raises(ClusterError) as caught:
                await client.get(paths.NODES)
    assert caught.value.hint.startswith("is the clock of this node right?")


async def test_tls_checks_the_name_that_it_is_told(
    tls_server: ApiServer, certificates: Path, tmp_path: Path
) -> None:
    cluster: dict[str, object] = {"certificate-authority": str(certificates / "a.crt")}
    for name, works in (("api.test", True), ("other.test", False)):
        path = kubeconfig(tmp_path / "config", tls_server.url, {**cluster, "tls-server-name": name}, {})
        async with ApiClient.from_kubeconfig(path) as client:
            if works:
                await client.get(paths.NODES)
            else:
                with pytest.raises(ClusterError):
                    await client.get(paths.NODES)


async def test_tls_without_verification_works_only_when_asked_for(
    tls_server: ApiServer, tmp_path: Path
) -> None:
    path = kubeconfig(tmp_path / "config", tls_server.url, {"insecure-skip-tls-verify": True}, {})
    async with ApiClient.from_kubeconfig(path) as client:
        await client.get(paths.NODES)
    path = kubeconfig(tmp_path / "config", tls_server.url, {}, {})
    async with ApiClient.from_kubeconfig(path) as client:
        with pytest.raises(ClusterError):
            await client.get(paths.NODES)


async def test_an_authority_file_that_was_rotated_is_used_without_a_restart(
    tls_server: ApiServer, certificates: Path, tmp_path: Path
) -> None:
    authority = tmp_path / "ca.crt"
    shutil.copy(certificates / "b.crt", authority)
    os.utime(authority, (0, 0))  # long ago: two writes within a tick of the kernel's clock have one time
    path = kubeconfig(tmp_path / "config", tls_server.url, {"certificate-authority": "ca.crt"}, {})
    async with ApiClient.from_kubeconfig(path) as client:
        with pytest.raises(ClusterError):
            await client.get(paths.NODES)
        shutil.copy(certificates / "a.crt", authority)
        await client.get(paths.NODES)


async def test_a_client_certificate_is_shown(certificates: Path, tmp_path: Path) -> None:
    """The stand-in asks for none; that the pair loads from memory, and that a wrong one is refused at the
    start, is what can be shown here."""
    pair: dict[str, object] = {"client-certificate": str(certificates / "a.crt")}
    path = kubeconfig(
        tmp_path / "config", "https://h", {}, {**pair, "client-key": str(certificates / "a.key")}
    )
    await ApiClient.from_kubeconfig(path).aclose()
    path = kubeconfig(
        tmp_path / "config", "https://h", {}, {**pair, "client-key": str(certificates / "b.key")}
    )
    with pytest.raises(SettingsError, match="TLS files"):
        ApiClient.from_kubeconfig(path)


async def test_a_pod_reaches_its_api_server_with_its_service_account(
    certificates: Path, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("pod-token\n")
    shutil.copy(certificates / "a.crt", tmp_path / "ca.crt")
    server = ApiServer(certificate=certificates / "a.crt", key=certificates / "a.key", tokens=["pod-token"])
    async with server:
        environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
        async with ApiClient.from_in_cluster(environment, tmp_path) as client:
            assert (await client.get(paths.namespace("default")))["metadata"]["name"] == "default"


async def test_a_crowd_of_requests_opens_few_connections_and_few_at_a_time(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handshake costs milliseconds of the event loop, and all pods of a node may start together."""
    opening, most, opened = 0, 0, 0
    real_open = ConnectionPool.open

    async def counting_open(pool: ConnectionPool) -> Connection:
        nonlocal opening, most, opened
        opening, opened = opening + 1, opened + 1
        most = max(most, opening)
        try:
            return await real_open(pool)
        finally:
            opening -= 1

    monkeypatch.setattr(ConnectionPool, "open", counting_open)
    async with ApiClient(access_from_url(server.url)) as client:
        answers = await asyncio.gather(*(client.get(paths.NAMESPACES) for _ in range(200)))
    assert len(answers) == 200
    assert most <= MAX_OPENING
    assert opened < 100


async def test_a_request_does_not_wait_for_the_answers_to_others(
    server: ApiServer, client: ApiClient, wait_until: Callable[[Callable[[], bool]], Awaitable[None]]
) -> None:
    server.trouble_next("GET", paths.NODES, Trouble(stalls=True), count=20)
    slow = [asyncio.create_task(client.get(paths.NODES)) for _ in range(20)]
    await wait_until(lambda: sum(record.path == paths.NODES for record in server.requests) == 20)
    await client.get(paths.NAMESPACES)
    assert not any(task.done() for task in slow)
    for task in slow:
        task.cancel()
