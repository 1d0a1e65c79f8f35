"""The registration socket, driven by a plain gRPC client in place of the kubelet."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from dranet.errors import SettingsError
from dranet.kubelet.kubelet_plugin import RegistrationServer
from dranet.pb import registration_pb2 as pb

pytestmark = pytest.mark.socket

VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
DEADLINE = 30.0

_Answer = TypeVar("_Answer", bound=Message)


async def ask(socket_path: Path, method: str, request: Message, answer: type[_Answer]) -> _Answer:
    async with grpc.aio.insecure_channel(f"unix:{socket_path}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[Message, _Answer] = channel.unary_unary(
            f"/pluginregistration.Registration/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return await call(request, timeout=DEADLINE)


async def get_info(socket_path: Path) -> pb.PluginInfo:
    return await ask(socket_path, "GetInfo", pb.InfoRequest(), pb.PluginInfo)


async def notify(socket_path: Path, *, registered: bool, error: str = "") -> None:
    status = pb.RegistrationStatus(plugin_registered=registered, error=error)
    await ask(socket_path, "NotifyRegistrationStatus", status, pb.RegistrationStatusResponse)


async def eventually(condition: Callable[[], bool]) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE
    while not condition():
        assert loop.time() < deadline, "waited too long"
        await asyncio.sleep(0.005)


def status_of(server: RegistrationServer) -> tuple[bool | None, str]:
    seen = server.observer.capabilities
    return seen.registered, seen.registration_error


def registration_socket(root: Path) -> Path:
    return root / "plugins_registry" / "dra.net-reg.sock"


@asynccontextmanager
async def serving(
    root: Path, on_status: Callable[[bool, str], None] | None = None
) -> AsyncIterator[RegistrationServer]:
    server = RegistrationServer(
        registration_socket(root), "dra.net", root / "plugins" / "dra.net" / "dra.sock", VERSIONS, on_status
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def test_get_info_names_the_driver_its_endpoint_and_its_services_newest_first(
    kubelet_root: Path,
) -> None:
    async with serving(kubelet_root):
        info = await get_info(registration_socket(kubelet_root))
    assert info.type == "DRAPlugin"
    assert info.name == "dra.net"
    assert info.endpoint == str(kubelet_root / "plugins" / "dra.net" / "dra.sock")
    assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]


async def test_asking_changes_nothing(kubelet_root: Path) -> None:
    async with serving(kubelet_root) as server:
        answers = [await get_info(registration_socket(kubelet_root)) for _ in range(3)]
        assert answers[0] == answers[1] == answers[2]
        assert status_of(server) == (None, "")


async def test_the_answer_of_the_kubelet_is_remembered_and_passed_on(kubelet_root: Path) -> None:
    heard: list[tuple[bool, str]] = []
    async with serving(kubelet_root, lambda registered, error: heard.append((registered, error))) as server:
        assert status_of(server) == (None, "")
        await notify(registration_socket(kubelet_root), registered=True)
        assert status_of(server) == (True, "")
    assert heard == [(True, "")]


async def test_a_refused_registration_is_told_and_a_later_one_heals_it(kubelet_root: Path) -> None:
    async with serving(kubelet_root) as server:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await notify(registration_socket(kubelet_root), registered=False, error="no known version")
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert status_of(server) == (False, "no known version")
        await notify(registration_socket(kubelet_root), registered=True)
        assert status_of(server) == (True, "")


async def test_an_unknown_method_is_unimplemented(kubelet_root: Path) -> None:
    async with serving(kubelet_root):
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await ask(registration_socket(kubelet_root), "GetLunch", pb.InfoRequest(), pb.PluginInfo)
    assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_the_socket_is_gone_after_stop_and_stop_may_be_repeated(kubelet_root: Path) -> None:
    async with serving(kubelet_root) as server:
        assert registration_socket(kubelet_root).is_socket()
        await server.stop()
        assert list((kubelet_root / "plugins_registry").iterdir()) == []


@pytest.mark.parametrize("wiped", ["socket", "folder"])
async def test_a_wiped_registry_is_served_again_and_the_status_forgotten(
    kubelet_root: Path, wiped: str
) -> None:
    path = registration_socket(kubelet_root)
    async with serving(kubelet_root) as server:
        await notify(path, registered=True)
        if wiped == "socket":
            path.unlink()
        else:
            shutil.rmtree(path.parent)
        await eventually(path.is_socket)
        assert (await get_info(path)).name == "dra.net"
        await eventually(lambda: server.observer.capabilities.registered is None)
        await notify(path, registered=True)
        assert status_of(server) == (True, "")
    assert not path.exists()


async def test_a_socket_that_is_wiped_again_and_again_comes_back_each_time(kubelet_root: Path) -> None:
    path = registration_socket(kubelet_root)
    async with serving(kubelet_root):
        for _ in range(5):
            path.unlink()
            await eventually(path.is_socket)
            assert (await get_info(path)).name == "dra.net"


@pytest.mark.socket
async def test_a_foreign_socket_at_our_path_is_reported_and_survives_our_stop(
    kubelet_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = registration_socket(kubelet_root)
    with socket.socket(socket.AF_UNIX) as foreign:
        other = path.with_name("other.sock")
        foreign.bind(str(other))
        async with serving(kubelet_root):
            other.rename(path)
            await eventually(lambda: "replaced by another program" in caplog.text)
        assert path.is_socket()


async def test_a_missing_registry_is_the_operators_error(kubelet_root: Path) -> None:
    (kubelet_root / "plugins_registry").rmdir()
    with pytest.raises(SettingsError, match=r"does not exist .*--kubelet-root"):
        async with serving(kubelet_root):
            pytest.fail("served in a folder that does not exist")


@pytest.mark.socket
async def test_a_stale_socket_of_a_killed_driver_is_replaced(kubelet_root: Path) -> None:
    path = registration_socket(kubelet_root)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    async with serving(kubelet_root):
        assert (await get_info(path)).name == "dra.net"


async def test_a_too_long_path_is_refused_before_anything_is_made(kubelet_root: Path) -> None:
    path = kubelet_root / "plugins_registry" / f"{'d' * 100}-reg.sock"
    server = RegistrationServer(path, "d" * 100, kubelet_root / "dra.sock", VERSIONS)
    with pytest.raises(SettingsError, match="a UNIX socket takes 107"):
        await server.start()
    assert list(path.parent.iterdir()) == []
