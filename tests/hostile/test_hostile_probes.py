"""The probes' door alone: who takes no answer, and who comes when all places are taken."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dranet.driver.probes import server as probes
from dranet.driver.probes.server import MAX_CONNECTIONS, PartState, ProbeServer
from dranet.telemetry import Metrics

LONG = {"kubelet": PartState(False, "x" * (16 << 20))}
"""More than the kernel buffers."""


def new_server(parts: Mapping[str, PartState]) -> ProbeServer:
    return ProbeServer("127.0.0.1:0", Metrics(), lambda: parts)


def count_open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def wait_until(condition: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + 10
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "waited too long"
        await asyncio.sleep(0.01)


async def test_who_does_not_read_its_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "REQUEST_TIMEOUT_SECONDS", 0.3)
    server = new_server(LONG)
    await server.start()
    before = count_open_files()
    with contextlib.closing(socket.create_connection(("127.0.0.1", server.port))) as caller:
        caller.sendall(b"GET /readyz HTTP/1.1\r\n\r\n")
        await wait_until(lambda: count_open_files() == before + 2)  # ours and theirs
        await wait_until(lambda: count_open_files() == before + 1)
    await server.stop()


async def test_the_newest_caller_is_heard_when_all_places_are_taken() -> None:
    server = new_server({})
    await server.start()
    before, held = count_open_files(), []
    for _ in range(3 * MAX_CONNECTIONS):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /healthz HTTP/1.1\r\n")
        held.append(writer)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(1):
        assert (await reader.read()).endswith(b"ok\n")
    for each in (*held, writer):
        each.transport.abort()
        with contextlib.suppress(OSError):
            await each.wait_closed()
    await wait_until(lambda: count_open_files() == before)
    await server.stop()
