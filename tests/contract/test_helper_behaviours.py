"""Section 4: the order of start and stop, and what a helper library does for a driver without being asked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import pytest

from dranet.errors import SettingsError
from dranet.pb import dra_v1_pb2
from dranet.settings import load_settings
from tests.contract.calls import CALL_SECONDS, SERVICES, ask, eventually, refs
from tests.contract.kubelet_room import DRIVER, Node, Room

pytestmark = pytest.mark.socket


async def test_a_socket_appears_when_it_listens_and_is_gone_after_stop(root: Path) -> None:
    """4.1, TestEndpointLifecycle: both sockets, and no other trace but the lock of the folder."""
    room = Room(root)
    assert [path.exists() for path in (room.calls.dra_socket, room.calls.registration_socket)] == [False] * 2
    async with room.serving():
        assert room.calls.dra_socket.is_socket()
        assert room.calls.registration_socket.is_socket()
    assert list(room.registry.iterdir()) == []
    assert [path.name for path in room.folder.iterdir()] == [f"{DRIVER}.lock"]


async def test_registration_goes_before_the_calls_in_flight_and_these_before_the_dra_socket(
    root: Path,
) -> None:
    """4.1: who is not registered gets no new call, and what was begun is finished."""
    room = Room(root)
    async with Node(root).running() as node, room.serving():
        await node.wait_registered()
        room.script.hold("u1")
        call = asyncio.create_task(room.calls.prepare(refs("u1")))
        await eventually(lambda: len(room.plugin.list_calls()))
        stopping = asyncio.create_task(room.plugin.stop(drain_seconds=CALL_SECONDS))
        await eventually(lambda: node.manager.plugins == ())
        assert room.calls.dra_socket.exists()
        assert not call.done()
        room.script.release()
        assert (await call).claims["u1"].devices
        await stopping
        assert not room.calls.dra_socket.exists()


@pytest.mark.parametrize("watched", [True, False])
async def test_a_driver_starts_with_and_without_health(root: Path, watched: bool) -> None:
    """10, TestStartWithoutHealth: Prepare works either way."""
    async with Room(root, watched=watched).serving() as room:
        assert (await room.calls.prepare(refs("u1"))).claims["u1"].devices


def test_a_driver_without_a_name_does_not_start() -> None:
    """4.1: options are judged first, before anything outside is touched."""
    for name in ("", "Upper.example.com", "d" * 64):
        with pytest.raises(SettingsError, match="driver-name"):
            load_settings({"driver_name": name}, {})


async def test_a_registry_that_is_not_there_is_the_operators_error(root: Path) -> None:
    """4.1: a folder of the kubelet that does not exist is another root, not a reason to make one."""
    room = Room(root / "elsewhere")
    with pytest.raises(SettingsError, match="does not exist"):
        await room.plugin.start()
    assert not room.folder.exists()


async def test_an_exception_in_the_driver_is_told_and_logged_with_its_traceback(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """4.4: it fails its call alone, names itself to the kubelet, and the next call is served."""
    room = Room(root)

    class OddClaims(dict[str, str]):
        def __contains__(self, uid: object) -> bool:
            raise ZeroDivisionError("odd claim")

    async with room.serving():
        room.script.errors = OddClaims()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await room.calls.prepare(refs("u1"))
        assert failed.value.code() is grpc.StatusCode.INTERNAL
        assert "ZeroDivisionError: odd claim" in str(failed.value.details())
        assert "Traceback" in caplog.text
        room.script.errors = {}
        assert (await room.calls.prepare(refs("u1"))).claims["u1"].devices


async def test_an_unknown_method_is_unimplemented(root: Path) -> None:
    """4.1: one socket for all services; what is not there says so."""
    async with Room(root).serving() as room:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(
                room.calls.dra_socket,
                f"{SERVICES['v1.DRAPlugin']}/NodeGetLunch",
                dra_v1_pb2.NodePrepareResourcesRequest(),
                dra_v1_pb2.NodePrepareResourcesResponse,
                5,
            )
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_serving_goes_on_when_the_folder_of_the_plugin_is_made_anew_again_and_again(root: Path) -> None:
    """4.4: where the Go helper ends the process when serving fails, we serve again."""
    async with Room(root).serving() as room:
        for number in range(3):
            room.calls.dra_socket.unlink()
            await eventually(room.calls.dra_socket.exists)
            assert (await room.calls.prepare(refs(f"u{number}"))).claims[f"u{number}"].devices
