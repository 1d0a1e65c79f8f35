"""Asks those of whom no watch tells: the Node, for what device plugins announce, and the kubelet, for what
pods have of devices that nobody may serve any more.

One look at the Node serves the node's lifelines, too (``driver.lifelines``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Sequence

from dranet.cluster.nodes import NodeView
from dranet.driver.gpus.servers import GpuServers
from dranet.errors import ClusterError, DranetError

ANSWER_SECONDS = 2.0
"""So long a Prepare waits for both answers; without them the last ones count."""

FetchNode = Callable[[], Awaitable[NodeView]]
"""Raises ClusterError."""
ReadUsed = Callable[[], Awaitable[Collection[str]]]
"""Names of resources and DRA drivers of which pods have devices. Raises DranetError."""


class GpuInquiry:
    """Hands the answers to the servers. Everything but :meth:`ask` is for the event loop."""

    def __init__(self, fetch_node: FetchNode, read_used: ReadUsed, servers: Callable[[], GpuServers]) -> None:
        self._fetch_node = fetch_node
        self._read_used = read_used
        self._servers = servers
        self._loop = asyncio.get_running_loop()
        self._wanted = asyncio.Event()

    def ask(self) -> None:
        """Have both asked soon; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._wanted.set)

    async def run(self) -> None:
        """For ever; nothing is asked before somebody wants it."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self.look()

    async def look(self) -> None:
        """Ask both, and wait for the answers for a while; never fails."""
        _, is_read = await asyncio.gather(self._look_at_pods(), self._look_at_node())
        if is_read:
            self._servers().take_asked()

    async def fetch_addresses(self) -> Sequence[str]:
        """The node's addresses; what else the Node tells is taken on the way.

        Raises:
            ClusterError: no answer, or a refusal.
        """
        node = await self._fetch_node()
        self._servers().take_resources(node.resources)
        return node.addresses

    async def _look_at_node(self) -> bool:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self.fetch_addresses()
        except (ClusterError, TimeoutError):
            return False
        return True

    async def _look_at_pods(self) -> None:
        used = None
        with contextlib.suppress(DranetError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                used = await self._read_used()
        self._servers().take_used(used)
