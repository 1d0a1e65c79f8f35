"""The probes' door alone: who takes no answer, and who comes when all places are taken."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from dranet.driver.probes import server as probes
from dranet.driver.probes.server import MAX_CONNECTIONS, PartState, PortContent, ProbeServer
from dranet.telemetry import Metrics
from tests.support.waiting import until

pytestmark = pytest.mark.socket

LONG = {"kubelet": PartState(False, "x" * (16 << 20))}
"""More than the kernel buffers."""
LISTEN = "0A"
"""A state, as the kernel writes it (``proc_net_tcp``)."""


def new_server(parts: Mapping[str, PartState]) -> ProbeServer:
    return ProbeServer("127.0.0.1:0", Metrics(), PortContent(lambda: parts))


def count_held(server: ProbeServer) -> int:
    """Connections that it has taken and not closed: a socket that no descriptor leads to has no inode. (Of
    the descriptors of this process others open and close some, too.)"""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    here = [line for line in lines if line[1].endswith(f":{server.port:04X}") and line[3] != LISTEN]
    return sum(line[9] != "0" for line in here)


async def test_who_does_not_read_its_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "REQUEST_TIMEOUT_SECONDS", 0.3)
    server = new_server(LONG)
    await server.start()
    with contextlib.closing(socket.create_connection(("127.0.0.1", server.port))) as caller:
        caller.sendall(b"GET /readyz HTTP/1.1\r\n\r\n")
        await until(lambda: count_held(server) == 1)
        await until(lambda: count_held(server) == 0)
    await server.stop()


async def test_answers_that_nobody_takes_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "REQUEST_TIMEOUT_SECONDS", 600)
    server = new_server(LONG)
    await server.start()
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            address = ("127.0.0.1", server.port)
            caller = stack.enter_context(contextlib.closing(socket.create_connection(address)))
            caller.sendall(b"GET /readyz HTTP/1.1\r\n\r\n")
            await until(lambda: server._callers and list(server._callers.values())[-1].size > 0)
        await until(lambda: count_held(server) == probes.MAX_WAITING_BYTES // (17 << 20))
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /readyz HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(30):
            assert len(await reader.read()) > 16 << 20, "who takes his answer gets it"
        writer.close()
    await server.stop()


def test_a_driver_that_ends_while_somebody_asks_tells_of_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    async def live() -> None:
        server = new_server({})
        await server.start()
        caller = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        caller.sendall(b"GET /readyz HTTP/1.1\r\n")
        await until(lambda: len(server._callers) == 1)
        server.release_port()  # which leaves those alone who are in

    with contextlib.ExitStack() as stack:
        asyncio.run(live())
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


@contextlib.contextmanager
def from_elsewhere(server: ProbeServer, words: bytes) -> Iterator[socket.socket]:
    """A caller of another address than the rest, in the middle of his request."""
    with socket.create_connection(("127.0.0.1", server.port), source_address=("127.0.0.2", 0)) as caller:
        caller.sendall(words)
        yield caller


async def hear(caller: socket.socket) -> bytes:
    caller.setblocking(False)
    loop, heard = asyncio.get_running_loop(), b""
    async with asyncio.timeout(30):
        while piece := await loop.sock_recv(caller, 1 << 20):
            heard += piece
    return heard


async def test_a_flood_from_one_address_drives_out_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "REQUEST_TIMEOUT_SECONDS", 600)
    server = new_server({})
    await server.start()
    with from_elsewhere(server, b"GET /healthz HTTP/1.1\r\n") as kubelet:
        await until(lambda: len(server._callers) == 1)
        flood = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3 * MAX_CONNECTIONS)]
        await until(lambda: len(server._callers) == MAX_CONNECTIONS)
        kubelet.sendall(b"\r\n")
        assert (await hear(kubelet)).endswith(b"ok\n")
    for _, writer in flood:
        writer.transport.abort()
    await until(lambda: not server._callers)
    await server.stop()


async def test_who_asks_for_much_and_takes_nothing_drives_out_himself_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes, "REQUEST_TIMEOUT_SECONDS", 600)
    monkeypatch.setattr(probes, "MAX_WAITING_BYTES", 60 << 20)
    server = new_server(LONG)
    await server.start()
    request = b"GET /readyz HTTP/1.1\r\n\r\n"
    with from_elsewhere(server, request) as prometheus, contextlib.ExitStack() as stack:
        await until(lambda: any(waiting.size for waiting in server._callers.values()))
        for _ in range(6):
            greedy = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            greedy.sendall(request)
            await until(lambda: all(waiting.size for waiting in server._callers.values()))
        assert len(await hear(prometheus)) > 16 << 20
    await until(lambda: not server._callers)
    await server.stop()


async def test_the_newest_caller_is_heard_when_all_places_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "REQUEST_TIMEOUT_SECONDS", 600)  # no place is free because its time is over
    server = new_server({})
    await server.start()
    held = []
    for _ in range(3 * MAX_CONNECTIONS):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /healthz HTTP/1.1\r\n")
        held.append(writer)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(10):
        assert (await reader.read()).endswith(b"ok\n")
    for each in (*held, writer):
        each.transport.abort()
        with contextlib.suppress(OSError):
            await each.wait_closed()
    await until(lambda: count_held(server) == 0)
    await server.stop()
