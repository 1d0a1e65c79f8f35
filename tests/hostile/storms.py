"""Bytes that no honest peer sends, and ways to send them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""Of HTTP/2 (RFC 9113 section 3.4)."""
FUZZ_SECONDS = float(os.environ.get("HOSTILE_SECONDS", "2"))
"""For one door; `make fuzz` gives more."""
FUZZ_LEAST = 64
_PATIENCE_SECONDS = 10.0

Open = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


def frame(kind: int, flags: int, stream: int, payload: bytes, length: int | None = None) -> bytes:
    """An HTTP/2 frame (RFC 9113 section 4.1); ``length`` may lie."""
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


SETTINGS = frame(4, 0, 0, b"")
HTTP2 = {
    "garbage": random.Random(1).randbytes(4096),
    "half a preface": PREFACE[:11],
    "HTTP/1": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a frame of 16 MB": PREFACE + SETTINGS + frame(0, 0, 1, b"x" * 100, 0xFFFFFF),
    "half a frame": PREFACE + SETTINGS + frame(1, 4, 1, b"", 50) + b"abc",
    "headers that never end": PREFACE + SETTINGS + frame(1, 0, 1, b"") + frame(9, 0, 1, b"\x00" * 9000) * 40,
    "headers that are no HPACK": PREFACE + SETTINGS + frame(1, 4, 1, b"\xff" * 200),
    "an even stream": PREFACE + SETTINGS + frame(1, 4, 2, b"\x82"),
    "data of no stream": PREFACE + SETTINGS + frame(0, 1, 77, b"x"),
    "a flood of pings": PREFACE + SETTINGS + frame(6, 0, 0, b"12345678") * 5000,
    "a flood of settings": PREFACE + SETTINGS * 5000,
    "a flood of resets": PREFACE
    + SETTINGS
    + b"".join(
        frame(1, 5, number, b"\x82\x86\x84\x41\x01x") + frame(3, 0, number, b"\0\0\0\x08")
        for number in range(1, 4001, 2)
    ),
    "a window of nothing": PREFACE + SETTINGS + frame(8, 0, 0, b"\0\0\0\0"),
    "frames of unknown kinds": PREFACE + SETTINGS + frame(0xFA, 255, 0, b"?" * 100) * 100,
}
HTTP1 = {
    "binary": random.Random(2).randbytes(4096),
    "binary request": random.Random(3).randbytes(2000).replace(b"\r\n\r\n", b"") + b"\r\n\r\n",
    "HTTP/0.9": b"GET /healthz\r\n",
    "a header of 1 MB": b"GET /metrics HTTP/1.1\r\nX: " + b"x" * (1 << 20) + b"\r\n\r\n",
    "a million headers": b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 200_000,
    "pipelined": b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 500,
    "a body of a lie": b"POST /healthz HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 70_000,
    "the preface of HTTP/2": PREFACE + SETTINGS,
    "TLS": bytes.fromhex("160301020001fc0303") + b"x" * 500,
    "a target of 10 KB": b"GET /" + b"%00../" * 1700 + b" HTTP/1.1\r\n\r\n",
    "nothing": b"",
}


async def send(open_: Open, data: bytes) -> None:
    """Say it, and hang up when the other side does, or has said something, or soon after."""
    with contextlib.suppress(OSError, TimeoutError):
        reader, writer = await open_()
        try:
            async with asyncio.timeout(0.3):
                writer.write(data)
                await writer.drain()
                await reader.read(1 << 16)
        finally:
            writer.transport.abort()


async def fuzz(open_: Open, seeds: list[bytes], seconds: float = FUZZ_SECONDS, seed: int = 0) -> int:
    """Mutations of the seeds, several at a time, for so long, and :data:`FUZZ_LEAST` at least however slow
    the machine is; how many there were."""
    source, loop, sent = random.Random(seed), asyncio.get_running_loop(), 0
    end = loop.time() + seconds
    while loop.time() < end or sent < FUZZ_LEAST:
        batch = [mutate(source.choice(seeds), source) for _ in range(16)]
        await asyncio.gather(*(send(open_, data) for data in batch))
        sent += len(batch)
    return sent


def mutate(data: bytes, source: random.Random) -> bytes:
    """Some bytes changed, left out, doubled or added, and perhaps cut off."""
    text = bytearray(data[: source.randrange(1, 1 << 16)])
    for _ in range(source.randrange(1, 8)):
        at, size = source.randrange(len(text) + 1), source.randrange(1, 32)
        action = source.randrange(4)
        if action == 0:
            text[at : at + size] = source.randbytes(size)
        elif action == 1:
            del text[at : at + size]
        elif action == 2:
            text[at:at] = text[at : at + size] * 3
        else:
            text[at:at] = source.randbytes(size)
    return bytes(text[: source.randrange(len(text) + 1)]) if source.random() < 0.3 else bytes(text)


@contextlib.asynccontextmanager
async def held_open(open_: Open, count: int, first_words: bytes) -> AsyncIterator[int]:
    """So many connections that say something and then nothing more; how many could be opened."""
    writers = []
    try:
        for _ in range(count):
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    _, writer = await open_()
                    writers.append(writer)
                    writer.write(first_words)
        yield len(writers)
    finally:
        for writer in writers:
            writer.transport.abort()
