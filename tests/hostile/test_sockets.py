"""Every socket on which the driver listens, stormed; the driver is the real one."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from tests.contract.driver_node import DrivenNode
from tests.hostile import storms
from tests.hostile.vitals import Vitals, unharmed

pytestmark = [pytest.mark.testbed, pytest.mark.shared_node, pytest.mark.timeout(300)]


def unix(path: Path) -> storms.Open:
    return partial(asyncio.open_unix_connection, str(path))


def probes() -> storms.Open:
    return partial(asyncio.open_connection, "127.0.0.1", 9177)


async def storm(open_: storms.Open, words: dict[str, bytes]) -> None:
    await asyncio.gather(*(storms.send(open_, data) for data in words.values()))
    assert await storms.fuzz(open_, list(words.values())) > 50


async def test_garbage_on_the_dra_socket_harms_nobody(node: DrivenNode) -> None:
    async with unharmed(node):
        await storm(unix(node.calls.dra_socket), storms.HTTP2)


async def test_garbage_on_the_registration_socket_harms_nobody(node: DrivenNode) -> None:
    async with unharmed(node):
        await storm(unix(node.calls.registration_socket), storms.HTTP2)


async def test_garbage_on_the_probe_port_harms_nobody(node: DrivenNode) -> None:
    async with unharmed(node):
        await storm(probes(), storms.HTTP1)


async def test_the_kubelet_is_answered_beside_two_hundred_mute_connections(node: DrivenNode) -> None:
    held = storms.held_open(unix(node.calls.dra_socket), 200, storms.PREFACE[:5])
    async with unharmed(node), held as opened:
        assert opened == 200
        await node.calls.get_info()


async def test_more_connections_than_any_kubelet_has_are_refused(node: DrivenNode) -> None:
    pid = node.testbed.driver.pid
    async with unharmed(node):
        before = Vitals.read(pid).open_files
        async with storms.held_open(
            unix(node.calls.registration_socket), 400, storms.PREFACE + storms.SETTINGS
        ):
            await asyncio.sleep(0)
            assert Vitals.read(pid).open_files < before + 300


async def test_probes_are_answered_beside_a_thousand_that_never_end_their_request(node: DrivenNode) -> None:
    pid = node.testbed.driver.pid
    async with unharmed(node):
        before = Vitals.read(pid).open_files
        async with storms.held_open(probes(), 1000, b"GET /healthz HTTP/1.1\r\nX: "):
            async with asyncio.timeout(1):
                assert await node.fetch("/healthz") == "ok\n"
            assert Vitals.read(pid).open_files < before + 100
