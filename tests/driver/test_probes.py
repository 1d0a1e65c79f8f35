"""Probes over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from dranet.driver.probes.server import MAX_HEADER_BYTES, PartState, PortContent, ProbeServer
from dranet.errors import SettingsError
from dranet.telemetry import Metrics

pytestmark = pytest.mark.socket


@asynccontextmanager
async def serving(parts: Mapping[str, PartState], fault: str = "") -> AsyncIterator[ProbeServer]:
    server = ProbeServer("127.0.0.1:0", Metrics(), PortContent(lambda: parts, read_fault=lambda: fault))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def ask(server: ProbeServer, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


async def get(server: ProbeServer, path: str) -> tuple[int, str]:
    answer = await ask(server, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


async def test_health_answers_while_the_loop_runs() -> None:
    async with serving({"runtime": PartState(False)}) as server:
        assert await get(server, "/healthz") == (200, "ok\n")


async def test_health_is_500_and_says_why_where_only_a_new_process_helps() -> None:
    async with serving({}, fault="the thread is gone") as server:
        assert await get(server, "/healthz") == (500, "the thread is gone\n")


async def test_readiness_is_503_and_names_the_part_that_is_not_ready() -> None:
    async with serving({"kubelet": PartState(True), "runtime": PartState(False, "NRI is away")}) as server:
        assert await get(server, "/readyz") == (503, "[+] kubelet\n[-] runtime: NRI is away\n")


async def test_readiness_is_200_when_every_part_is_ready() -> None:
    async with serving({"kubelet": PartState(True)}) as server:
        assert await get(server, "/readyz") == (200, "[+] kubelet\n")


async def test_metrics_show_the_state_of_each_part() -> None:
    async with serving({"kubelet": PartState(True), "runtime": PartState(False)}) as server:
        status, body = await get(server, "/metrics")
    assert status == 200
    assert 'dranet_ready{part="kubelet"} 1.0' in body
    assert 'dranet_ready{part="runtime"} 0.0' in body


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /healthz HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /secret HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /healthz?x=1 HTTP/1.1\r\n\r\n", b"200"),
        (b"HEAD /healthz HTTP/1.1\r\n\r\n", b"200"),
        (b"\r\n\r\n", b"405"),
    ],
)
async def test_odd_requests_get_an_answer(request_bytes: bytes, status: bytes) -> None:
    async with serving({}) as server:
        assert (await ask(server, request_bytes)).split()[1] == status


async def test_an_endless_header_is_cut_off_and_the_server_lives_on() -> None:
    async with serving({}) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nX: " + b"x" * (MAX_HEADER_BYTES * 4))
        with contextlib.suppress(ConnectionError):  # cut off before we had sent it all: as good
            assert await reader.read() == b""
        writer.close()
        assert (await get(server, "/healthz"))[0] == 200


async def test_a_taken_port_is_a_named_error() -> None:
    async with serving({}) as server:
        other = ProbeServer(f"127.0.0.1:{server.port}", Metrics(), PortContent(dict))
        with pytest.raises(SettingsError, match="--bind-address"):
            await other.start()


async def eventually_get(server: ProbeServer, path: str) -> tuple[int, str]:
    async with asyncio.timeout(10):
        while True:
            try:
                return await get(server, path)
            except (ConnectionError, AssertionError):  # not bound yet
                await asyncio.sleep(0.02)


@asynccontextmanager
async def waiting_for(port: int, others: list[str]) -> AsyncIterator[tuple[ProbeServer, asyncio.Task[None]]]:
    """A newcomer that wants a port while ``others`` live."""
    server = ProbeServer(f"127.0.0.1:{port}", Metrics(), PortContent(dict), may_wait=lambda: bool(others))
    await server.start()
    task = asyncio.create_task(server.run())
    try:
        yield server, task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, SettingsError):
            await task
        await server.stop()


async def test_a_newcomer_gets_the_port_when_its_predecessor_lets_it_go(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "dranet.driver.probes.server")
    async with (
        serving({"old": PartState(True)}) as old,
        waiting_for(port := old.port, ["old"]) as (new, _),
    ):
        assert await get(old, "/readyz") == (200, "[+] old\n")
        old.release_port()
        assert await eventually_get(new, "/readyz") == (200, "")
        assert new.port == port
    assert [record.getMessage() for record in caplog.records] == [
        f"port {port} is another instance's still; serving probes when it is free"
    ]


async def test_a_port_that_is_held_when_the_last_other_instance_has_gone_ends_the_driver() -> None:
    others = ["old"]
    async with serving({}) as stranger, waiting_for(stranger.port, others) as (_, task):
        others.clear()
        with pytest.raises(SettingsError, match="--bind-address: cannot listen"):
            await asyncio.wait_for(task, 10)


async def test_a_port_that_was_let_go_can_be_had_again() -> None:
    async with waiting_for(0, []) as (server, _):
        server.want_port()  # it has it: nothing to do
        first = server.port
        server.release_port()
        server.release_port()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", first)
        server.want_port()
        assert (await eventually_get(server, "/healthz"))[0] == 200


async def test_who_was_just_let_in_when_the_port_is_let_go_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """asyncio makes a connection in several steps, and what it was about to make when its server is closed it
    would forget, open (python/cpython#109564)."""
    make_protocol = ProbeServer._new_protocol

    def release_first(server: ProbeServer) -> asyncio.StreamReaderProtocol:
        server.release_port()
        return make_protocol(server)

    monkeypatch.setattr(ProbeServer, "_new_protocol", release_first)
    async with serving({}) as server, asyncio.timeout(10):
        assert await get(server, "/healthz") == (200, "ok\n")


async def test_who_does_not_want_the_port_any_more_does_not_get_it() -> None:
    async with serving({}) as old, waiting_for(old.port, ["old"]) as (new, task):
        new.release_port()
        old.release_port()
        free = ProbeServer(f"127.0.0.1:{new._port}", Metrics(), PortContent(dict))
        await free.start()
        assert not task.done()
        await free.stop()
