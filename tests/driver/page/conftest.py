"""Shared by the page's tests: a real port that serves what is to be seen."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Self

import pytest

from dranet.driver.probes.http import Response
from dranet.driver.probes.server import PortContent, ProbeServer
from dranet.driver.status_page.content import Content
from dranet.driver.status_page.document import POLICY, render
from dranet.telemetry import Metrics


class PagePort:
    """The driver's port on a loop of its own; shows :attr:`content`."""

    def __init__(self) -> None:
        self.content: Content | None = None
        self.port = 0
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)
        self._loop.close()

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        server = ProbeServer("127.0.0.1:0", Metrics(), PortContent(dict, read_page=self._read))
        await server.start()
        self.port = server.port
        self._ready.set()
        await self._end.wait()
        await server.stop()

    async def _read(self) -> Response:
        assert self.content is not None
        headers = (("Content-Security-Policy", POLICY),)
        return Response("200 OK", render(self.content), "text/html; charset=utf-8", headers)


@pytest.fixture(scope="module")
def port() -> Iterator[PagePort]:
    with PagePort() as serving:
        yield serving
