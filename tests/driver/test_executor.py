"""A name server that does not answer holds up nothing but the name."""

from __future__ import annotations

import asyncio
import platform
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from dranet.driver.executor import DriverExecutor


class NameServer:
    """Answers no look-up until it is let go."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.is_asked = threading.Event()
        self.answers = threading.Event()

    def __call__(self, host: object, *_: object, **__: object) -> list[object]:
        self.asked.append(host)
        self.is_asked.set()
        self.answers.wait(20)
        if host == "wrong":
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [host, len(self.asked)]


@pytest.fixture
def name_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    server = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", server)
    yield server
    server.answers.set()


def test_look_ups_that_hang_keep_no_worker_and_no_end_waiting(name_server: NameServer) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(DriverExecutor(2))
        hanging = [asyncio.create_task(loop.getaddrinfo(f"host-{n}", 443)) for n in range(8)]
        await asyncio.sleep(0)
        async with asyncio.timeout(15):
            assert await asyncio.to_thread(threading.active_count)
        for task in hanging:
            task.cancel()

    begin = time.monotonic()
    asyncio.run(scenario())
    assert time.monotonic() - begin < 15
    assert not name_server.answers.is_set()


def test_who_asks_for_the_same_name_meanwhile_gets_the_same_answer(name_server: NameServer) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(DriverExecutor(1))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.getaddrinfo("api.example.com", 443), 0.05)
        assert await asyncio.to_thread(name_server.is_asked.wait, 15)  # its thread may take longer to begin
        second = asyncio.create_task(loop.getaddrinfo("api.example.com", 443))
        await asyncio.sleep(0)
        assert name_server.asked == ["api.example.com"]
        name_server.answers.set()
        assert await second == ["api.example.com", 1]
        assert await loop.getaddrinfo("api.example.com", 443) == ["api.example.com", 2], "no answer is kept"

    asyncio.run(scenario())


def test_a_name_that_there_is_not_is_an_error_for_who_asked(name_server: NameServer) -> None:
    name_server.answers.set()

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(DriverExecutor(1))
        with pytest.raises(socket.gaierror, match="no such name"):
            await loop.getaddrinfo("wrong", 443)

    asyncio.run(scenario())


_LEAVE_HOLES = """
import asyncio, re
from dranet.driver.executor import DriverExecutor

pins = []

def read_anonymous_mb():
    return int(re.search(r"Anonymous: +(\\d+)", open("/proc/self/smaps_rollup").read())[1]) / 1024

def work():
    blocks = [bytes(2000) for _ in range(20_000)]
    pins.extend(blocks[::500] + blocks[-1:])

async def main():
    asyncio.get_running_loop().set_default_executor(DriverExecutor(2))
    await asyncio.to_thread(print, "warm")
    before = read_anonymous_mb()
    await asyncio.to_thread(work)
    print(int(read_anonymous_mb() - before))

asyncio.run(main())
"""


@pytest.mark.process
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not glibc's allocator")
def test_what_a_job_needed_for_a_moment_goes_back_to_the_kernel() -> None:
    command = [sys.executable, "-c", _LEAVE_HOLES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert int(done.stdout.split()[1]) < 20
