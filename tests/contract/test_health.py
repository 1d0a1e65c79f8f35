"""Section 3: the health stream as the kubelet opens, believes, loses and opens it again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest
from msgspec import structs

from dranet.kubelet.plugin import (
    HEALTH_RESEND_SECONDS,
    HEALTH_TIMEOUT_SECONDS,
    DeviceHealthFact,
    HealthService,
    KubeletObserver,
)
from dranet.kubelet.sockets import UnixServer
from dranet.pb import health_v1_pb2
from testbed.kubelet.health import HealthBoard
from testbed.kubelet.nouns import KubeletDevice, KubeletOptions
from testbed.pb import health_v1alpha1_pb2
from tests.contract.calls import HEALTH_SERVICES, Calls, HealthStream, eventually
from tests.contract.kubelet_room import DRIVER, POOL, QUICK, Node, Room, Script, registered

pytestmark = pytest.mark.socket

UP = DeviceHealthFact(POOL, "nic-1", healthy=True)
DOWN = DeviceHealthFact(POOL, "nic-1", healthy=False, message="no carrier")
NIC = KubeletDevice(DRIVER, POOL, "nic-1")


class Beats:
    """The waiting between two beats, which pass when the test says so."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self._beat = asyncio.Event()

    async def __call__(self, changed: asyncio.Event, seconds: float) -> None:
        self.waits.append(seconds)
        waits = [asyncio.create_task(event.wait()) for event in (changed, self._beat)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        self._beat.clear()

    def passes(self) -> None:
        self._beat.set()


@asynccontextmanager
async def serving(root: Path, service: HealthService) -> AsyncIterator[Calls]:
    """The health service alone on a socket."""
    server = UnixServer(root / "dra.sock", service.handlers(), grace_seconds=0)
    await server.start()
    try:
        yield Calls(root / "none", server.path)
    finally:
        service.close()
        await server.stop()


async def read(stream: HealthStream) -> list[tuple[str, int]]:
    """The next response: device and health."""
    return [(entry.device.device_name, entry.health) for entry in (await anext(stream)).devices]


def shown(board: HealthBoard) -> str:
    return str(board.build_status(NIC)["health"])


@asynccontextmanager
async def watching(
    root: Path, options: KubeletOptions = QUICK
) -> AsyncIterator[tuple[Room, Node, HealthBoard]]:
    """A registered driver whose health the kubelet follows."""
    async with registered(root, options) as (room, node):
        board = HealthBoard(options, lambda: None)
        board.follow(node.manager.plugins)
        try:
            yield room, node, board
        finally:
            await board.stop()


@pytest.mark.parametrize("service", HEALTH_SERVICES)
async def test_a_subscriber_gets_a_full_snapshot_at_once(root: Path, service: str) -> None:
    """3.2: under both versions of the service, without waiting for a beat or a change."""
    async with Room(root).serving() as room, room.calls.watch_health(service) as stream:
        assert await read(stream) == [("nic-1", health_v1_pb2.HEALTHY)]
        assert room.plugin.capabilities.health_service == service


async def test_both_versions_are_the_same_on_the_wire(root: Path) -> None:
    """3.1: v1 and v1alpha1 are byte for byte the same, all five fields of a device."""
    async with Room(root).serving() as room, room.calls.watch_health() as stream:
        response = await anext(stream)
    old = health_v1alpha1_pb2.NodeWatchResourcesResponse.FromString(response.SerializeToString())
    assert str(old) == str(response)
    (device,) = old.devices
    assert (device.device.pool_name, device.device.device_name) == (POOL, "nic-1")
    assert device.last_updated_time > 0
    assert device.health_check_timeout_seconds == HEALTH_TIMEOUT_SECONDS


async def test_what_the_kubelet_believes_follows_the_stream(root: Path) -> None:
    """3.2: the stream is opened after registration, and a change is sent when it happens."""
    async with watching(root) as (room, _, board):
        await eventually(lambda: shown(board) == "Healthy")
        room.script.facts = (DOWN,)
        room.plugin.health_changed()
        await eventually(lambda: shown(board) == "Unhealthy")
        assert board.build_status(NIC)["message"] == "no carrier"
        assert board.build_status(NIC)["resourceID"] == f"{DRIVER}/{POOL}/nic-1"


async def test_everything_is_sent_again_well_within_its_lease(root: Path) -> None:
    """3.2: what is not repeated becomes Unknown, so an unchanged snapshot goes out at each beat; two beats
    may be lost before the lease ends."""
    script, beats = Script(), Beats()
    service = HealthService(script, wait=beats)
    async with serving(root, service) as calls, calls.watch_health() as stream:
        first = await read(stream)
        for _ in range(3):
            beats.passes()
            assert await read(stream) == first
    assert set(beats.waits) == {HEALTH_RESEND_SECONDS}
    assert 2 * HEALTH_RESEND_SECONDS < HEALTH_TIMEOUT_SECONDS


async def test_a_lease_that_is_not_renewed_ends_on_the_kubelets_side() -> None:
    """3.2: the kubelet stamps its own time of arrival; a device that is absent for its lease is Unknown."""
    board = HealthBoard(replace(QUICK, health_lease_seconds=0.02), lambda: None)
    identifier = health_v1_pb2.DeviceIdentifier(pool_name=POOL, device_name="nic-1")
    board._merge(DRIVER, [health_v1_pb2.DeviceHealth(device=identifier, health=health_v1_pb2.HEALTHY)])
    assert shown(board) == "Healthy"
    await eventually(lambda: shown(board) == "Unknown")
    await board.stop()
    assert KubeletOptions().health_lease_seconds == 30.0


async def test_a_device_that_is_absent_from_a_response_keeps_its_state_until_its_lease() -> None:
    """3.2: responses are merged; what is left out is not cleared."""
    board = HealthBoard(QUICK, lambda: None)
    identifier = health_v1_pb2.DeviceIdentifier(pool_name=POOL, device_name="nic-1")
    board._merge(DRIVER, [health_v1_pb2.DeviceHealth(device=identifier, health=health_v1_pb2.HEALTHY)])
    board._merge(DRIVER, [])
    assert shown(board) == "Healthy"
    await board.stop()


async def test_an_ended_stream_clears_the_kubelets_view_and_is_opened_again(root: Path) -> None:
    """3.2: end of the stream means Unknown at once; the kubelet tries again after 5 s and gets a snapshot."""
    async with Node(root).running() as node:
        board = HealthBoard(QUICK, lambda: None)
        async with Room(root).serving():
            await node.wait_registered()
            board.follow(node.manager.plugins)
            await eventually(lambda: shown(board) == "Healthy")
        await eventually(lambda: shown(board) == "Unknown")
        await eventually(lambda: node.manager.plugins == ())  # else this one could be taken for the next
        async with Room(root).serving() as room:
            await node.wait_registered()
            board.follow(node.manager.plugins)
            await eventually(lambda: shown(board) == "Healthy")
            assert room.plugin.capabilities.health_streams == 1
        await board.stop()
    assert KubeletOptions().health_retry_seconds == 5.0


async def test_a_dra_socket_that_is_made_anew_does_not_silence_an_open_stream(root: Path) -> None:
    """3.2: registration never notices it, so nobody would open the stream again for its sake."""
    async with watching(root) as (room, _, board):
        await eventually(lambda: shown(board) == "Healthy")
        room.calls.dra_socket.unlink()
        await eventually(room.calls.dra_socket.exists)
        room.script.facts = (DOWN,)
        room.plugin.health_changed()
        await eventually(lambda: shown(board) == "Unhealthy")


async def test_without_a_source_of_health_the_stream_is_unimplemented_and_not_asked_for(root: Path) -> None:
    """3.2: 1.37 asks only for what is advertised and gives up at UNIMPLEMENTED; older ones ask on."""
    silent = Room(root, watched=False)
    for options in (QUICK, replace(QUICK, asks_unadvertised_health=True)):
        async with Node(root, options).running() as node, silent.serving():
            await node.wait_registered()
            offers = node.manager.find(DRIVER).info.health_service
            assert bool(offers) is options.asks_unadvertised_health
            board = HealthBoard(options, lambda: None)
            board.follow(node.manager.plugins)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                async with silent.calls.watch_health() as stream:
                    await anext(stream)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert shown(board) == "Unknown"
            await board.stop()


async def test_each_registered_instance_is_watched(root: Path) -> None:
    """3.2: in a rolling update both report; each subscriber has a stream of its own."""
    async with Room(root).serving() as room, AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(room.calls.watch_health()) for _ in range(3)]
        first = [await read(stream) for stream in streams]
        assert room.plugin.capabilities.health_streams == 3
        room.script.facts = (DOWN,)
        room.plugin.health_changed()
        later = [await read(stream) for stream in streams]
    assert first == [[("nic-1", health_v1_pb2.HEALTHY)]] * 3
    assert later == [[("nic-1", health_v1_pb2.UNHEALTHY)]] * 3


async def test_a_subscriber_that_does_not_read_holds_up_nobody_and_gathers_nothing(root: Path) -> None:
    """3.2: a slow reader gets the newest state when it reads again, not a queue of old ones."""
    script = Script()
    script.facts = tuple(
        DeviceHealthFact(POOL, f"nic-{number}", healthy=True, message="x" * 1000) for number in range(200)
    )
    seen = KubeletObserver()
    service = HealthService(script, observer=seen)
    async with serving(root, service) as calls, calls.watch_health(), calls.watch_health() as awake:
        await eventually(lambda: seen.capabilities.health_streams == 2)
        for _ in range(50):
            await read(awake)
            service.notify()
        # 200 kB a response: flow control stops the silent one after very few, whatever happens.
        assert script.snapshots < 2 * 50
        prepared = await asyncio.wait_for(read(awake), 5)
    assert len(prepared) == 200


async def test_streams_take_no_worker_from_prepare(root: Path) -> None:
    """11.10: each open stream lives as long as its kubelet; a pool of threads would run dry."""
    async with Room(root).serving() as room, AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(room.calls.watch_health()) for _ in range(64)]
        await asyncio.gather(*(read(stream) for stream in streams))
        assert not (await room.calls.prepare([], seconds=1)).claims
        assert (await room.calls.get_info()).name == DRIVER


async def test_a_long_message_is_cut_as_the_kubelet_would_cut_it(root: Path) -> None:
    """3.1: at most 1024 characters, the last three of a longer one are dots."""
    script = Script()
    script.facts = (structs.replace(DOWN, message="y" * 3000),)
    async with Room(root, script).serving() as room, room.calls.watch_health() as stream:
        (device,) = (await anext(stream)).devices
    assert device.message == "y" * 1021 + "..."


async def test_stop_ends_the_streams_so_that_the_kubelet_knows_at_once(root: Path) -> None:
    """3.2, 4.2: a leaving instance stops reporting by ending its streams."""
    room = Room(root)
    async with room.serving(), room.calls.watch_health() as stream:
        await read(stream)
        await room.plugin.stop()
        with pytest.raises((StopAsyncIteration, grpc.aio.AioRpcError)):
            await anext(stream)
    assert room.plugin.capabilities.health_streams == 0
