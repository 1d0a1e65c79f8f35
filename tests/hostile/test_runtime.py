"""The container runtime as an enemy, on the NRI socket; the driver is the real one."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from dranet.pb import nri_pb2, ttrpc_pb2
from dranet.wire import FrameType, encode_frame, encode_message
from testbed.runtime.contract import RestartableRuntime
from tests.contract.driver_node import DrivenNode
from tests.hostile.storms import mutate
from tests.hostile.vitals import unharmed
from tests.support.waiting import until

pytestmark = [pytest.mark.testbed, pytest.mark.shared_node, pytest.mark.timeout(300)]

PLUGIN, RUNTIME = 1, 2
"""Streams of the trunk."""
PODS = 3000
CONNECTIONS = 24
SECONDS = 12.0


def request(number: int, method: str, payload: bytes) -> bytes:
    """A call of the plugin, as it goes over the wire."""
    call = ttrpc_pb2.Request(service="nri.pkg.api.v1alpha1.Plugin", method=method, payload=payload)
    return encode_message(PLUGIN, encode_frame(number, FrameType.REQUEST, call.SerializeToString()))


def answer(number: int) -> bytes:
    return encode_message(RUNTIME, encode_frame(number, FrameType.RESPONSE, b""))


def synchronize(number: int, pods: int, *, more: bool) -> bytes:
    """A part of the runtime's state, of pods that nobody knows."""
    many = [
        nri_pb2.PodSandbox(id=f"{number}-{n}", uid=f"../../{n}", name="n" * 63, namespace="/" * 63)
        for n in range(pods)
    ]
    return request(
        number, "Synchronize", nri_pb2.SynchronizeRequest(pods=many, more=more).SerializeToString()
    )


CONFIGURE = request(1, "Configure", nri_pb2.ConfigureRequest(runtime_name="enemy").SerializeToString())
HUGE = (3 << 30).to_bytes(4)
WORDS = {
    "noise": random.Random(5).randbytes(1 << 16),
    "nothing": b"",
    "half a header": b"\0\0\0\1\0",
    "a frame of 3 GB": b"\0\0\0\1" + HUGE + b"x" * (1 << 20),
    "a message of 3 GB": encode_message(PLUGIN, HUGE + b"\0\0\0\1\1\0" + b"x" * (1 << 20)),
    "a stream of nobody": b"\0\0\0\x63\0\x10\0\0" + b"x" * (1 << 20),
    "an answer to no question": answer(99) * 1000,
    "unknown methods": b"".join(request(n, "Dance", b"x" * 100) for n in range(1, 2001, 2)),
    "no protobuf": b"".join(request(n, "Synchronize", b"\xff" * 100) for n in range(1, 201, 2)),
    "parts without end": answer(1)
    + CONFIGURE
    + b"".join(synchronize(n, 200, more=True) for n in range(3, 203, 2)),
    "thousands of pods": answer(1) + CONFIGURE + synchronize(3, PODS, more=False),
}


async def test_a_runtime_that_means_ill_harms_nobody_and_a_good_one_is_met_again(node: DrivenNode) -> None:
    door, driver = node.testbed.places.work_dir / "nri-door.sock", node.testbed.driver
    real, met = node.testbed.places.nri_socket, [0]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        source, seeds = random.Random(met[0]), list(WORDS.values())
        met[0] += 1
        words = seeds[met[0] - 1] if met[0] <= len(seeds) else mutate(source.choice(seeds), source)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(0.5):
                writer.write(words)
                await writer.drain()
                while await reader.read(1 << 16):
                    pass
        writer.transport.abort()

    await driver.stop()
    door.symlink_to(real)
    await driver.start({"kubeconfig": str(node._kubeconfig), "nri_socket": str(door)})
    await driver.wait_ready(20)
    async with unharmed(node):
        door.unlink()
        enemy = await asyncio.start_unix_server(serve, str(door))
        assert isinstance(node.testbed.runtime, RestartableRuntime)
        await node.testbed.runtime.restart()
        await _attacked(node, met)
        enemy.close()
        door.unlink(missing_ok=True)
        door.symlink_to(real)
        await until(lambda: _is_ready(node))
        await node.running_pod()


async def _attacked(node: DrivenNode, met: list[int]) -> None:
    """Everybody else is served meanwhile."""
    end = asyncio.get_running_loop().time() + SECONDS
    while met[0] < CONNECTIONS and asyncio.get_running_loop().time() < end:
        async with asyncio.timeout(1):
            assert await node.fetch("/healthz") == "ok\n"
        await node.calls.get_info()
        await asyncio.sleep(0.05)
    assert met[0] >= len(WORDS) // 2


async def _is_ready(node: DrivenNode) -> bool:
    return "[-]" not in await node.fetch("/readyz")
