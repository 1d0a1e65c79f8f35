"""What the client tells of its requests: each try, whatever becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.cluster.transport import access_from_url
from dranet.errors import ClusterError

pytestmark = pytest.mark.socket

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
BUSY = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n"
WHO = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"


class Told:
    """Implements ``ApiObserver``."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, str, int]] = []
        self.retries: list[str] = []

    def answered(self, verb: str, resource: str, code: int, seconds: float) -> None:
        assert seconds >= 0
        self.answers.append((verb, resource, code))

    def retried(self, cause: str) -> None:
        self.retries.append(cause)


async def talk(answers: list[bytes], call: Callable[[ApiClient], Awaitable[object]]) -> Told:
    """With a server that gives these answers, one each; ``b""`` hangs up."""
    told, left = Told(), iter(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            while (await reader.readline()).strip():
                pass
            answer = next(left, b"")
            if not answer:
                break
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with ApiClient(access_from_url(url), observer=told) as client:
            await call(client)
    return told


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda api: api.get(paths.node("n")), ("get", "nodes", 200)),
        (lambda api: api.list(paths.RESOURCE_SLICES), ("list", "resourceslices", 200)),
        (lambda api: api.delete(paths.resource_slice("s")), ("delete", "resourceslices", 200)),
    ],
)
async def test_a_request_is_counted_with_its_code(
    call: Callable[[ApiClient], Awaitable[object]], named: tuple[str, str, int]
) -> None:
    assert (await talk([OK], call)).answers == [named]


async def test_each_try_is_counted_and_why_there_was_another() -> None:
    told = await talk([BUSY, WHO, OK], lambda api: api.get(paths.node("n")))
    assert told.answers == [("get", "nodes", code) for code in (429, 401, 200)]
    assert told.retries == ["throttled", "unauthorized"]


async def test_a_request_without_an_answer_has_no_code() -> None:
    async def call(api: ApiClient) -> None:
        with pytest.raises(ClusterError):
            await api.get(paths.node("n"))

    assert (await talk([b""], call)).answers == [("get", "nodes", 0)]


async def test_a_connection_that_the_server_had_closed_is_a_retry() -> None:
    async def call(api: ApiClient) -> None:
        await api.get(paths.node("n"))
        await api.get(paths.node("n"))

    told = await talk([OK, b"", OK], call)
    assert told.retries == ["connection"]
    assert [code for _, _, code in told.answers] == [200, 200]
