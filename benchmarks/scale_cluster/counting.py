"""An API client of the driver that counts its requests and bytes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Self, SupportsIndex

from dranet.cluster.client import ApiClient, WatchEvent
from dranet.cluster.transport import ClusterAccess, Connection, ConnectionPool
from dranet.http1 import ResponseHead


@dataclass
class Traffic:
    """What drivers asked since they were first started. Implements ``dranet.cluster.client.ApiObserver``.

    Bytes are those of HTTP, heads included, without TLS.
    """

    published: int = 0
    """Nodes whose slices are as wanted, now."""
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

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.published + other.published,
            self.requests + other.requests,
            self.retries + other.retries,
            self.watching + other.watching,
            self.connections + other.connections,
            self.bytes_out + other.bytes_out,
            self.bytes_in + other.bytes_in,
            max(self.slowest, other.slowest),
            max(self.last, other.last),
        )

    def since(self, before: Traffic) -> Traffic:
        return Traffic(
            self.published,
            self.requests - before.requests,
            self.retries - before.retries,
            self.watching,
            self.connections - before.connections,
            self.bytes_out - before.bytes_out,
            self.bytes_in - before.bytes_in,
            self.slowest,
            self.last,
        )

    def count(self, verb: str, *codes: int) -> int:
        """Return how many requests of a verb were answered with one of these statuses."""
        ends = tuple(f" {code}" for code in codes)
        return sum(
            count for key, count in self.requests.items() if key.startswith(f"{verb} ") and key.endswith(ends)
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{**data, "requests": Counter(data["requests"]), "retries": Counter(data["retries"])})


class CountingClient(ApiClient):
    """The driver's client; what it sends and receives is added to ``traffic``."""

    def __init__(self, access: ClusterAccess, traffic: Traffic) -> None:
        super().__init__(access, observer=traffic)
        self._pool = _CountingPool(access, traffic)
        self._traffic = traffic

    async def watch(self, path: str, **options: Any) -> AsyncGenerator[WatchEvent, None]:
        self._traffic.watching += 1
        try:
            async with aclosing(super().watch(path, **options)) as events:
                async for event in events:
                    yield event
        finally:
            self._traffic.watching -= 1


class _CountingPool(ConnectionPool):
    def __init__(self, access: ClusterAccess, traffic: Traffic) -> None:
        super().__init__(access)
        self._traffic = traffic

    async def open(self) -> Connection:
        connection = await super().open()
        self._traffic.connections += 1
        _count_bytes(connection, self._traffic)
        return connection


def _count_bytes(connection: Connection, traffic: Traffic) -> None:
    feed_data, exchange = connection.reader.feed_data, connection.exchange

    def feed_counted(data: Iterable[SupportsIndex]) -> None:
        piece = bytes(data)
        traffic.bytes_in += len(piece)
        feed_data(piece)

    async def exchange_counted(request: bytes) -> ResponseHead:
        traffic.bytes_out += len(request)
        return await exchange(request)

    connection.reader.feed_data = feed_counted  # type: ignore[method-assign]
    connection.exchange = exchange_counted  # type: ignore[method-assign]
