"""The health stream: a full snapshot at once, at a change and at every beat; no test sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.kubelet.plugin import (
    HEALTH_RESEND_SECONDS,
    HEALTH_TIMEOUT_SECONDS,
    MESSAGE_MAX_BYTES,
    DeviceHealthFact,
    HealthService,
    KubeletObserver,
    wait_or_pass,
)
from dranet.kubelet.sockets import UnixServer
from dranet.pb import health_v1_pb2
from dranet.terminal import cut_bytes
from testbed.pb import health_v1alpha1_pb2

DEADLINE = 10.0
"""No later than the next beat, so that what a change has to bring cannot come with that."""


class Devices:
    """A source whose facts a test changes."""

    def __init__(self, *facts: DeviceHealthFact) -> None:
        self.facts = facts

    def snapshot(self) -> tuple[DeviceHealthFact, ...]:
        return self.facts


class Beat:
    """Stands in for the waiting: a beat passes when the test says so."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._passed = asyncio.Event()

    async def wait(self, changed: asyncio.Event, seconds: float) -> None:
        self.seconds.append(seconds)
        waits = [asyncio.create_task(event.wait()) for event in (changed, self._passed)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        self._passed.clear()

    def passes(self) -> None:
        self._passed.set()


@asynccontextmanager
async def serving(path: Path, health: HealthService) -> AsyncIterator[grpc.aio.Channel]:
    server = UnixServer(path, health.handlers(), grace_seconds=0)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            yield channel
    finally:
        await server.stop()


@asynccontextmanager
async def watching(
    channel: grpc.aio.Channel, seconds: float = DEADLINE
) -> AsyncIterator[AsyncIterator[health_v1_pb2.NodeWatchResourcesResponse]]:
    call = channel.unary_stream(
        "/v1.DRAResourceHealth/NodeWatchResources",
        request_serializer=health_v1_pb2.NodeWatchResourcesRequest.SerializeToString,
        response_deserializer=health_v1_pb2.NodeWatchResourcesResponse.FromString,
    )(health_v1_pb2.NodeWatchResourcesRequest(), timeout=seconds)
    try:
        yield aiter(call)
    finally:
        call.cancel()


UP = DeviceHealthFact("node-1", "nic-1", healthy=True)
DOWN = DeviceHealthFact("node-1", "nic-1", healthy=False, message="carrier lost")


def test_the_lease_outlives_two_beats() -> None:
    assert HEALTH_RESEND_SECONDS == 10
    assert HEALTH_TIMEOUT_SECONDS == 30
    assert HEALTH_TIMEOUT_SECONDS > 2 * HEALTH_RESEND_SECONDS


@pytest.mark.socket
async def test_a_subscriber_gets_everything_at_once(kubelet_root: Path) -> None:
    facts = (
        UP,
        DeviceHealthFact("node-1", "nic-2", healthy=None),
        DeviceHealthFact("node-1", "nic-3", healthy=False),
    )
    health = HealthService(Devices(*facts), clock=lambda: 1234.9)
    async with serving(kubelet_root / "dra.sock", health) as channel, watching(channel) as stream:
        first = await anext(stream)
    assert [(d.device.pool_name, d.device.device_name) for d in first.devices] == [
        ("node-1", "nic-1"),
        ("node-1", "nic-2"),
        ("node-1", "nic-3"),
    ]
    assert [d.health for d in first.devices] == [
        health_v1_pb2.HEALTHY,
        health_v1_pb2.UNKNOWN,
        health_v1_pb2.UNHEALTHY,
    ]
    assert {(d.last_updated_time, d.health_check_timeout_seconds) for d in first.devices} == {(1234, 30)}


@pytest.mark.socket
async def test_v1alpha1_shows_the_same(kubelet_root: Path) -> None:
    async with serving(kubelet_root / "dra.sock", HealthService(Devices(DOWN))) as channel:
        call = channel.unary_stream(
            "/v1alpha1.DRAResourceHealth/NodeWatchResources",
            request_serializer=health_v1alpha1_pb2.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=health_v1alpha1_pb2.NodeWatchResourcesResponse.FromString,
        )(health_v1alpha1_pb2.NodeWatchResourcesRequest(), timeout=DEADLINE)
        first = await anext(aiter(call))
        call.cancel()
    (device,) = first.devices
    assert device.device.device_name == "nic-1"
    assert device.health == health_v1alpha1_pb2.UNHEALTHY
    assert device.message == "carrier lost"


@pytest.mark.socket
async def test_an_unchanged_snapshot_is_sent_again_at_each_beat(kubelet_root: Path) -> None:
    beat = Beat()
    health = HealthService(Devices(UP), wait=beat.wait)
    async with serving(kubelet_root / "dra.sock", health) as channel, watching(channel) as stream:
        await anext(stream)
        for _ in range(2):
            beat.passes()
            assert [d.health for d in (await anext(stream)).devices] == [health_v1_pb2.HEALTHY]
    assert set(beat.seconds) == {HEALTH_RESEND_SECONDS}


@pytest.mark.socket
async def test_a_change_is_sent_at_once_to_every_subscriber(kubelet_root: Path) -> None:
    source = Devices(UP)
    health = HealthService(source)
    async with (
        serving(kubelet_root / "dra.sock", health) as channel,
        watching(channel) as first,
        watching(channel) as second,
    ):
        await anext(first)
        await anext(second)
        source.facts = (DOWN,)
        health.notify()
        for stream in (first, second):
            (device,) = (await anext(stream)).devices
            assert (device.health, device.message) == (health_v1_pb2.UNHEALTHY, "carrier lost")


async def test_a_change_while_a_snapshot_is_being_sent_is_not_lost() -> None:
    source = Devices(UP)
    health = HealthService(source)
    stream = health._watch(health_v1_pb2.NodeWatchResourcesRequest(), None)
    await anext(stream)
    source.facts = (DOWN,)
    health.notify()
    second = await asyncio.wait_for(anext(stream), DEADLINE)
    assert second.devices[0].health == health_v1_pb2.UNHEALTHY
    health.close()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


@pytest.mark.socket
async def test_a_subscriber_that_does_not_read_holds_up_no_other(kubelet_root: Path) -> None:
    source = Devices(
        *(DeviceHealthFact("node-1", f"nic-{n}", healthy=True, message="x" * 1000) for n in range(300))
    )
    seen = KubeletObserver()
    health = HealthService(source, observer=seen)
    async with (
        serving(kubelet_root / "dra.sock", health) as channel,
        grpc.aio.insecure_channel(f"unix:{kubelet_root / 'dra.sock'}") as other,
        watching(other, 60.0) as slow,
        watching(channel, 60.0) as quick,
    ):
        await anext(slow)
        await anext(quick)
        for number in range(40):  # 12 MB in all: more than a stream's window and the socket hold
            source.facts = (DeviceHealthFact("node-1", f"round-{number}", healthy=True), *source.facts[-300:])
            health.notify()
            assert (await anext(quick)).devices[0].device.device_name == f"round-{number}"
        source.facts = (DOWN,)
        health.notify()
        async with asyncio.timeout(60.0):
            while len((await anext(slow)).devices) > 1:
                pass  # what was on its way; then the state of now, and nothing of what it missed in between
        assert seen.capabilities.health_streams == 2


@pytest.mark.socket
async def test_two_instances_say_the_same_of_the_same_devices(kubelet_root: Path) -> None:
    source = Devices(UP, replace(DOWN, device="nic-2"))
    seen = []
    for name in ("one", "two"):
        health = HealthService(source, clock=lambda: 1234.0)
        async with serving(kubelet_root / f"{name}.sock", health) as channel, watching(channel) as stream:
            seen.append(await anext(stream))
    assert seen[0] == seen[1]


@pytest.mark.socket
async def test_a_subscriber_that_left_is_forgotten(kubelet_root: Path) -> None:
    seen = KubeletObserver()
    health = HealthService(Devices(UP), observer=seen)
    async with serving(kubelet_root / "dra.sock", health) as channel:
        async with watching(channel) as stream:
            await anext(stream)
            assert seen.capabilities.health_streams == 1
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DEADLINE
        while seen.capabilities.health_streams:
            assert loop.time() < deadline, "still counted"
            await asyncio.sleep(0.005)


@pytest.mark.socket
async def test_close_ends_the_streams(kubelet_root: Path) -> None:
    health = HealthService(Devices(UP))
    async with serving(kubelet_root / "dra.sock", health) as channel, watching(channel) as stream:
        await anext(stream)
        health.close()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_the_wait_ends_at_a_change_or_with_time() -> None:
    changed = asyncio.Event()
    await wait_or_pass(changed, 0.001)
    changed.set()
    await asyncio.wait_for(wait_or_pass(changed, 3600), DEADLINE)


@given(st.text(max_size=3000) | st.text(st.characters(min_codepoint=0x700), min_size=200, max_size=2000))
def test_a_message_is_cut_to_1024_bytes_with_dots_at_the_end(text: str) -> None:
    cut = cut_bytes(text, MESSAGE_MAX_BYTES)
    assert len(cut.encode()) <= 1024
    if len(text.encode(errors="replace")) <= 1024:
        assert cut == text.encode(errors="replace").decode()
    else:
        assert len(cut.encode()) > 1024 - 4
        assert cut.endswith("...")
        assert text.encode(errors="replace").decode().startswith(cut[:-3])


def test_a_message_that_is_no_text_can_be_sent() -> None:
    assert cut_bytes("driver \udcff", MESSAGE_MAX_BYTES) == "driver ?"
