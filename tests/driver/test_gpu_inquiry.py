"""Who is asked of GPUs beside the watches: the Node and the kubelet, and what their silence means."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Collection
from typing import Any

import pytest

from dranet.cluster.nodes import NodeView
from dranet.driver.gpus import GpuInquiry
from dranet.errors import ClusterError, ProtocolError


class Heard:
    """Stands for ``GpuServers``."""

    def __init__(self) -> None:
        self.resources: list[Collection[str]] = []
        self.used: list[Collection[str] | None] = []
        self.asked = 0

    def take_resources(self, resources: Collection[str]) -> None:
        self.resources.append(resources)

    def take_asked(self) -> None:
        self.asked += 1

    def take_used(self, names: Collection[str] | None) -> None:
        self.used.append(names)


class Peers:
    def __init__(self, *, node: Exception | None = None, kubelet: Exception | None = None) -> None:
        self.node, self.kubelet = node, kubelet
        self.is_hanging = False
        self.is_asked = asyncio.Event()
        self.heard: Any = Heard()

    async def fetch_node(self) -> NodeView:
        if self.is_hanging:
            await asyncio.Event().wait()
        if self.node:
            raise self.node
        return NodeView(("192.0.2.1",), ("nvidia.com/gpu",))

    async def read_used(self) -> Collection[str]:
        self.is_asked.set()
        if self.is_hanging:
            await asyncio.Event().wait()
        if self.kubelet:
            raise self.kubelet
        return frozenset({"gpu.nvidia.com"})

    def inquiry(self) -> GpuInquiry:
        return GpuInquiry(self.fetch_node, self.read_used, lambda: self.heard)


async def test_both_answers_reach_the_servers_and_the_addresses_whoever_wants_them() -> None:
    peers = Peers()
    await peers.inquiry().look()
    assert (peers.heard.resources, peers.heard.used) == ([("nvidia.com/gpu",)], [{"gpu.nvidia.com"}])
    assert peers.heard.asked == 1
    assert await peers.inquiry().fetch_addresses() == ("192.0.2.1",)
    assert (len(peers.heard.resources), peers.heard.asked) == (2, 1)


async def test_one_that_fails_does_not_silence_the_other() -> None:
    peers = Peers(node=ClusterError("away"))
    await peers.inquiry().look()
    assert (peers.heard.resources, peers.heard.used) == ([], [{"gpu.nvidia.com"}])
    assert peers.heard.asked == 0, "the last word of the Node is an old one"
    peers = Peers(kubelet=ProtocolError("no socket"))
    await peers.inquiry().look()
    assert (peers.heard.resources, peers.heard.used) == ([("nvidia.com/gpu",)], [None])


async def test_who_does_not_answer_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dranet.driver.gpus.ANSWER_SECONDS", 0.05)
    peers = Peers()
    peers.is_hanging = True
    await peers.inquiry().look()
    assert (peers.heard.resources, peers.heard.used) == ([], [None])


async def test_nothing_is_asked_before_somebody_wants_it_from_any_thread() -> None:
    peers = Peers()
    asking = peers.inquiry()
    task = asyncio.create_task(asking.run())
    await asyncio.sleep(0)
    assert not peers.is_asked.is_set()
    thread = threading.Thread(target=asking.ask)
    thread.start()
    await asyncio.to_thread(thread.join)
    async with asyncio.timeout(10):
        await peers.is_asked.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
