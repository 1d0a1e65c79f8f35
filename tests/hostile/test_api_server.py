"""The API server as an enemy: the real driver meets it through a proxy that changes sides."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from tests.contract.driver_node import DrivenNode
from tests.hostile.vitals import unharmed
from tests.support.waiting import until

pytestmark = [pytest.mark.testbed, pytest.mark.shared_node, pytest.mark.timeout(300)]

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
PIECE = b"x" * (1 << 20)
ENOUGH = 1 << 30
"""Bytes; of one answer."""
Answer = Callable[[], AsyncIterator[bytes]]


def _once(answer: bytes) -> Answer:
    async def say() -> AsyncIterator[bytes]:
        yield answer

    return say


def _body(body: bytes) -> bytes:
    return OK + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def _endless_chunks() -> AsyncIterator[bytes]:
    yield OK + b"Transfer-Encoding: chunked\r\n\r\n"
    for _ in range(ENOUGH // len(PIECE)):
        yield b"%x\r\n" % len(PIECE) + PIECE + b"\r\n"


async def _a_gigabyte_of_json() -> AsyncIterator[bytes]:
    yield OK + b'Content-Length: %d\r\n\r\n{"items": ["' % ENOUGH
    for _ in range(ENOUGH // len(PIECE)):
        yield PIECE


async def _until_the_end() -> AsyncIterator[bytes]:
    yield OK + b"\r\n"
    for _ in range(ENOUGH // len(PIECE)):
        yield PIECE


async def _slow_head() -> AsyncIterator[bytes]:
    for byte in OK * 10:
        yield bytes((byte,))
        await asyncio.sleep(0.2)


async def _endless_head() -> AsyncIterator[bytes]:
    yield OK
    while True:
        yield b"X: " + PIECE + b"\r\n"


async def _noise() -> AsyncIterator[bytes]:
    yield random.Random(4).randbytes(1 << 16)


ANSWERS: dict[str, Answer] = {
    "nothing": _once(b""),
    "noise": _noise,
    "endless chunks": _endless_chunks,
    "a gigabyte of JSON": _a_gigabyte_of_json,
    "a body until the end": _until_the_end,
    "an endless head": _endless_head,
    "a head byte by byte": _slow_head,
    "deep lists": _once(_body(b"[" * 100_000)),
    "deep objects": _once(_body(b'{"items":' * 100_000)),
    "a number of a megabyte": _once(_body(b'{"items": [' + b"9" * (1 << 20) + b"]}")),
    "bytes that are no text": _once(_body(b'{"kind": "\xff\xfe\xc0"}')),
    "half a pair of surrogates": _once(
        _body(b'{"kind": "\\ud800", "metadata": {"resourceVersion": "\\udfff"}}')
    ),
    "keys that come twice": _once(_body(b'{"metadata": {}, "metadata": 1, "items": {}, "items": 7}')),
    "a list of lies": _once(_body(b'{"metadata": {"resourceVersion": "1"}, "items": [1, null, {}, []]}')),
    "less than it says": _once(OK + b"Content-Length: 500\r\n\r\n{}"),
    "more than it says": _once(OK + b"Content-Length: 1\r\n\r\n{}{}{}"),
    "a length below nothing": _once(OK + b"Content-Length: -1\r\n\r\n{}"),
    "two lengths": _once(OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
    "chunks of no number": _once(OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n{}"),
    "elsewhere": _once(
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9177/\r\nContent-Length: 0\r\n\r\n"
    ),
    "switching": _once(b"HTTP/1.1 101 Switching Protocols\r\n\r\n"),
    "an endless 100": _once(b"HTTP/1.1 100 Continue\r\n\r\n" * 5000),
    "much patience": _once(
        b"HTTP/1.1 429 Wait\r\nRetry-After: 99999999999999999999\r\nContent-Length: 0\r\n\r\n"
    ),
    "an error of a page": _once(b"HTTP/1.1 500 Oops\r\nContent-Length: 6\r\n\r\n<html>"),
}


class Enemy:
    """Answers every request with one of the answers, in turn."""

    def __init__(self) -> None:
        self._turn = 0
        self.given: set[str] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = list(ANSWERS)[self._turn % len(ANSWERS)]
        self._turn += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await reader.readuntil(b"\r\n\r\n")
            self.given.add(name)
            async for piece in ANSWERS[name]():
                writer.write(piece)
                await writer.drain()
        writer.transport.abort()


async def test_an_api_server_that_means_ill_harms_nobody_and_is_asked_again_when_it_is_well(
    node: DrivenNode,
) -> None:
    enemy, friend = Enemy(), node.proxy._upstream
    refs = [await node.claim(f"meanwhile-{n}") for n in range(len(ANSWERS))]
    async with unharmed(node):
        async with enemy.listening() as port:
            node.proxy._upstream = urlsplit(f"http://127.0.0.1:{port}")
            node.proxy.break_off()
            try:
                answers = await asyncio.gather(*(node.calls.prepare([ref]) for ref in refs))
                assert all(answer.claims[ref.uid].error for answer, ref in zip(answers, refs, strict=True))
                assert await node.fetch("/healthz") == "ok\n"
                await node.calls.get_info()
            finally:
                node.proxy._upstream = friend
                node.proxy.break_off()
        assert enemy.given >= set(ANSWERS) - {"nothing"}
        await until(lambda: _is_ready(node))


async def _is_ready(node: DrivenNode) -> bool:
    return "[-]" not in await node.fetch("/readyz")
