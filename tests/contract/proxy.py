"""Between the driver and the API server: passes everything on, or holds it back with connections open."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit


class ApiProxy:
    """A TCP proxy in front of the API server of a kubeconfig.

    Stalled, it takes requests and answers none: the worst that a driver can meet, because nothing tells it.
    """

    def __init__(self, kubeconfig: Path) -> None:
        self._document = json.loads(kubeconfig.read_text())
        self._upstream = urlsplit(self._document["clusters"][0]["cluster"]["server"])
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ApiProxy]:
        """Serve."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        url = f"{self._upstream.scheme}://127.0.0.1:{port}"
        self._document["clusters"][0]["cluster"]["server"] = url
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def write_kubeconfig(self, kubeconfig: Path) -> None:
        """One that leads here; only while it serves."""
        kubeconfig.write_text(json.dumps(self._document))

    def stall(self) -> None:
        self._flowing.clear()

    def flow(self) -> None:
        self._flowing.set()

    def break_off(self) -> None:
        """Break every connection that is open now."""
        for task in self._tasks:
            task.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._keep(self._connect(reader, writer))

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._upstream.port is not None
        up = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        self._keep(self._pass_on(reader, up[1]))
        self._keep(self._pass_on(up[0], writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()

    def _keep(self, work: object) -> None:
        assert asyncio.iscoroutine(work)
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
