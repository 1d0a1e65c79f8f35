"""The drivers of many nodes in one process: what each of them asks of the API server.

Run as ``python -m benchmarks.scale_cluster.drivers``. The first line of its standard input gives the nodes
and their tokens. Each further line is a command, and each command gets one line of JSON as its answer.

For each node the driver's own code runs with its own client: the publisher of slices, the watch of other
drivers' slices on the node, and the reader of the Node. The parts that need a real node (kubelet, runtime,
links) do not run. The devices come from a captured machine.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from benchmarks.scale_cluster.counting import CountingClient, Traffic
from benchmarks.scale_cluster.layout import Layout, make_own, read_layout
from dranet.cluster.kubeconfig import read_kubeconfig
from dranet.cluster.nodes import NodeDevices, fetch_node
from dranet.cluster.slices import SlicePublisher
from dranet.cluster.transport import ClusterAccess, FixedToken
from dranet.driver.protected_addresses import ProtectedAddresses
from dranet.driver.publish import SliceRateLimiter
from dranet.inventory.slices import Pages

DRIVER = "dra.net"
RETRY_SECONDS = 60.0
"""As the setting ``rescan_seconds`` has it."""


class NodeDriver:
    """One node's driver, from its start to its end."""

    def __init__(self, access: ClusterAccess, node: str, traffic: Traffic) -> None:
        self._node = node
        self._client = CountingClient(access, traffic)
        self._others = NodeDevices(self._client, DRIVER, node)
        self._protected_addresses = ProtectedAddresses(
            (), self._client.url, self._fetch_addresses, on_change=lambda _: None, retry_seconds=RETRY_SECONDS
        )
        self._slices = SliceRateLimiter(publisher := SlicePublisher(self._client, DRIVER, node))
        self.publisher = publisher

    def offer(self, pages: Pages) -> None:
        self._slices.set_desired(make_own(pages, self._node))

    async def run(self) -> None:
        self._others.want()  # the node has GPUs
        async with self._client, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._protected_addresses.run())
            tasks.create_task(self._others.run())
            tasks.create_task(self.publisher.run())

    async def _fetch_addresses(self) -> Sequence[str]:
        return (await fetch_node(self._client, self._node)).addresses


class Drivers:
    """Those of this process. Its methods without an underscore are the commands."""

    def __init__(self, access: ClusterAccess, tokens: dict[str, str], layout: Layout) -> None:
        self._accesses = {node: replace(access, token=FixedToken(token)) for node, token in tokens.items()}
        self._layout = layout
        self._pages = layout.up
        self._traffic = Traffic()
        self._running: dict[NodeDriver, asyncio.Task[None]] = {}

    async def begin_phase(self) -> None:
        self._traffic.slowest = 0.0

    async def start(self) -> None:
        for node, access in self._accesses.items():
            driver = NodeDriver(access, node, self._traffic)
            driver.offer(self._pages)
            self._running[driver] = asyncio.create_task(driver.run())

    async def change(self) -> None:
        """Take the carrier from a NIC of each node, or return it."""
        self._pages = self._layout.down if self._pages is self._layout.up else self._layout.up
        for driver in self._running:
            driver.offer(self._pages)

    async def stop(self) -> None:
        tasks = list(self._running.values())
        self._running.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def read(self) -> dict[str, Any]:
        self._traffic.published = sum(driver.publisher.is_published for driver in self._running)
        return vars(self._traffic)


async def serve() -> None:
    lines = asyncio.StreamReader(limit=1 << 26)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    first = json.loads(await lines.readline())
    access = read_kubeconfig(Path(first["kubeconfig"]), "")
    drivers = Drivers(access, first["tokens"], read_layout())
    while command := (await lines.readline()).decode().strip():
        answer = await getattr(drivers, command)()
        print(json.dumps(answer), flush=True)
    await drivers.stop()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(serve())
