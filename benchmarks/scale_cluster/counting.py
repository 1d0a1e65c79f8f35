"""An API client of the driver that counts its requests and bytes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

from dranet.cluster.client import ApiClient, WatchEvent
from dranet.cluster.connections import Connection, ConnectionPool
from dranet.cluster.credentials import ClusterAccess
from dranet.cluster.http import ResponseHead


@dataclass
class Counts:
    """Sums over all clients of a process. Implements ``dranet.cluster.client.ApiObserver``.

    Bytes are those of HTTP, heads included, without TLS.
    """

    requests: Counter[str] = field(default_factory=Counter)
    """By verb, resource and status."""
    retries: Counter[str] = field(default_factory=Counter)
    watching: int = 0
    """Watches that are open, or are being opened, now."""
    connections: int = 0
    """Opened so far."""
    bytes_out: int = 0
    bytes_in: int = 0
    slowest: float = 0.0
    """Seconds of the slowest request since the phase began."""
    last: float = 0.0
    """When the last answer came that began no watch, in unix seconds."""

    def answered(self, verb: str, resource: str, code: int, seconds: float) -> None:
        self.requests[f"{verb} {resource} {code}"] += 1
        self.slowest = max(self.slowest, seconds)
        if verb != "watch":  # which are renewed at any time
            self.last = time.time()

    def retried(self, cause: str) -> None:
        self.retries[cause] += 1

    def as_json(self) -> dict[str, Any]:
        return {
            "requests": dict(self.requests),
            "retries": dict(self.retries),
            "watching": self.watching,
            "connections": self.connections,
            "bytes_out": self.bytes_out,
            "bytes_in": self.bytes_in,
            "slowest": self.slowest,
            "last": self.last,
        }


class CountingClient(ApiClient):
    """The driver's client; what it sends and receives is added to ``counts``."""

    def __init__(self, access: ClusterAccess, counts: Counts) -> None:
        super().__init__(access)
        self._pool = _CountingPool(access, counts)
        self._counts = counts
        self.observer = counts

    async def watch(self, path: str, **options: Any) -> AsyncGenerator[WatchEvent, None]:
        self._counts.watching += 1
        try:
            async with aclosing(super().watch(path, **options)) as events:
                async for event in events:
                    yield event
        finally:
            self._counts.watching -= 1


class _CountingPool(ConnectionPool):
    def __init__(self, access: ClusterAccess, counts: Counts) -> None:
        super().__init__(access)
        self._counts = counts

    async def open(self) -> Connection:
        connection = await super().open()
        self._counts.connections += 1
        _count_bytes(connection, self._counts)
        return connection


def _count_bytes(connection: Connection, counts: Counts) -> None:
    feed_data, exchange = connection.reader.feed_data, connection.exchange

    def feed_counted(data: Iterable[SupportsIndex]) -> None:
        piece = bytes(data)
        counts.bytes_in += len(piece)
        feed_data(piece)

    async def exchange_counted(request: bytes) -> ResponseHead:
        counts.bytes_out += len(request)
        return await exchange(request)

    connection.reader.feed_data = feed_counted  # type: ignore[method-assign]
    connection.exchange = exchange_counted  # type: ignore[method-assign]
