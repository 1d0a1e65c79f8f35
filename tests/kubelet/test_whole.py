"""KubeletPlugin: order of start and stop, one instance per driver name, and a light fork."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from dranet.errors import SettingsError
from dranet.kubelet import kubelet_plugin
from dranet.kubelet.kubelet_plugin import KubeletPlugin
from dranet.kubelet.plugin import DeviceHealthFact, PrepareOutcome
from dranet.model.claim import ClaimRef
from dranet.pb import dra_v1_pb2, registration_pb2
from dranet.settings import Settings
from tests.support.waiting import until

pytestmark = pytest.mark.socket

DEADLINE = 30.0
PREPARE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"

SECOND_INSTANCE = """
import asyncio, sys
from pathlib import Path
from dranet.errors import SettingsError
from dranet.kubelet.kubelet_plugin import KubeletPlugin

class Nobody:
    async def prepare(self, refs): return {}
    async def unprepare(self, refs): return {}

async def main(root):
    plugin = KubeletPlugin(
        "dra.net", root / "plugins/dra.net/dra.sock", root / "plugins_registry/dra.net-reg.sock", Nobody()
    )
    try:
        await plugin.start()
    except SettingsError as error:
        print(error)
    else:
        print("serving")
        await plugin.stop()

asyncio.run(main(Path(sys.argv[1])))
"""

FORKS = """
import asyncio, os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12's own word on fork beside threads
from pathlib import Path
from dranet.kubelet.sockets import UnixServer

async def main(path):
    server = UnixServer(path, [], grace_seconds=0)
    await server.start()
    for _ in range(3):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    await server.stop()

asyncio.run(main(Path(sys.argv[1])))
"""

_Answer = TypeVar("_Answer", bound=Message)


class Handler:
    """Answers at once, or waits for ``release`` if it is set."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.release: asyncio.Event | None = None
        self.preparing = 0

    async def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, PrepareOutcome]:
        self.preparing += 1
        self.reached.set()
        if self.release is not None:
            await self.release.wait()
        return {ref.uid: PrepareOutcome() for ref in refs}

    async def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, str]:
        return {ref.uid: "" for ref in refs}

    def snapshot(self) -> Sequence[DeviceHealthFact]:
        return (DeviceHealthFact("node-1", "nic-1", healthy=True),)


def dra_socket(root: Path) -> Path:
    return root / "plugins" / "dra.net" / "dra.sock"


def registration_socket(root: Path) -> Path:
    return root / "plugins_registry" / "dra.net-reg.sock"


def new_plugin(root: Path, handler: Handler) -> KubeletPlugin:
    return KubeletPlugin("dra.net", dra_socket(root), registration_socket(root), handler, health=handler)


@asynccontextmanager
async def running(root: Path, handler: Handler | None = None) -> AsyncIterator[KubeletPlugin]:
    plugin = new_plugin(root, handler or Handler())
    await plugin.start()
    try:
        yield plugin
    finally:
        await plugin.stop()


async def ask(path: Path, method: str, request: Message, answer: type[_Answer]) -> _Answer:
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[Message, _Answer] = channel.unary_unary(
            method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return await call(request, timeout=DEADLINE)


async def get_info(root: Path) -> registration_pb2.PluginInfo:
    method = "/pluginregistration.Registration/GetInfo"
    request = registration_pb2.InfoRequest()
    return await ask(registration_socket(root), method, request, registration_pb2.PluginInfo)


async def prepare(root: Path, uid: str) -> dra_v1_pb2.NodePrepareResourcesResponse:
    request = dra_v1_pb2.NodePrepareResourcesRequest(
        claims=[dra_v1_pb2.Claim(namespace="team", name="a", uid=uid)]
    )
    return await ask(dra_socket(root), PREPARE, request, dra_v1_pb2.NodePrepareResourcesResponse)


async def notify(root: Path, *, registered: bool, error: str = "") -> None:
    method = "/pluginregistration.Registration/NotifyRegistrationStatus"
    status = registration_pb2.RegistrationStatus(plugin_registered=registered, error=error)
    with contextlib.suppress(grpc.aio.AioRpcError):  # how a refusal is acknowledged
        await ask(registration_socket(root), method, status, registration_pb2.RegistrationStatusResponse)


async def eventually(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while True:
            if look():
                return
            await asyncio.sleep(0.01)


def sockets(root: Path) -> list[Path]:
    return sorted(found for found in root.rglob("*") if found.is_socket())


async def run_script(script: str, root: Path) -> subprocess.CompletedProcess[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(root), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return subprocess.CompletedProcess([], process.returncode or 0, out.decode(), err.decode())


async def test_the_endpoint_that_is_registered_answers(kubelet_root: Path) -> None:
    async with running(kubelet_root):
        info = await get_info(kubelet_root)
        assert list(info.supported_versions) == [
            "v1.DRAPlugin",
            "v1beta1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth",
        ]
        request = dra_v1_pb2.NodePrepareResourcesRequest(
            claims=[dra_v1_pb2.Claim(namespace="team", name="a", uid="a")]
        )
        answer = await ask(Path(info.endpoint), PREPARE, request, dra_v1_pb2.NodePrepareResourcesResponse)
    assert list(answer.claims) == ["a"]


async def test_the_plugin_folder_is_made_for_its_owner_only(kubelet_root: Path) -> None:
    async with running(kubelet_root):
        assert dra_socket(kubelet_root).parent.stat().st_mode & 0o777 == 0o700


async def test_the_plugin_can_start_again_after_it_stopped(kubelet_root: Path) -> None:
    for _ in range(3):
        async with running(kubelet_root):
            assert list((await prepare(kubelet_root, "a")).claims) == ["a"]
        assert sockets(kubelet_root) == []


async def test_stop_removes_its_own_files_only(kubelet_root: Path) -> None:
    async with running(kubelet_root):
        stranger = registration_socket(kubelet_root).with_name("other-reg.sock")
        stranger.touch()
        (dra_socket(kubelet_root).parent / "state.db").touch()
    assert stranger.exists()
    assert sorted(entry.name for entry in dra_socket(kubelet_root).parent.iterdir()) == [
        "dra.net.lock",
        "state.db",
    ]


async def test_stop_takes_registration_away_first_and_lets_a_call_in_flight_finish(
    kubelet_root: Path,
) -> None:
    handler = Handler()
    handler.release = asyncio.Event()
    plugin = new_plugin(kubelet_root, handler)
    await plugin.start()
    call = asyncio.create_task(prepare(kubelet_root, "a"))
    await handler.reached.wait()
    stopping = asyncio.create_task(plugin.stop(drain_seconds=DEADLINE))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE
    while registration_socket(kubelet_root).exists():
        assert loop.time() < deadline, "still registered"
        await asyncio.sleep(0.005)
    assert dra_socket(kubelet_root).exists()
    await eventually(lambda: bool(plugin._dra._refusal))  # once the registration server has ended
    assert not stopping.done()
    late = await prepare(kubelet_root, "b")
    assert late.claims["b"].error == "the driver is stopping"
    handler.release.set()
    assert (await call).claims["a"].error == ""
    await stopping
    assert sockets(kubelet_root) == []


async def test_a_failed_start_leaves_nothing_behind(kubelet_root: Path) -> None:
    registration_socket(kubelet_root).parent.rmdir()
    with pytest.raises(SettingsError, match="does not exist"):
        await new_plugin(kubelet_root, Handler()).start()
    assert sockets(kubelet_root) == []
    registration_socket(kubelet_root).parent.mkdir()
    async with running(kubelet_root):
        assert len(sockets(kubelet_root)) == 2


@pytest.mark.process
async def test_a_second_process_is_refused_and_the_first_serves_on(kubelet_root: Path) -> None:
    async with running(kubelet_root):
        second = await run_script(SECOND_INSTANCE, kubelet_root)
        assert f"another driver (pid {os.getpid()}) holds" in second.stdout
        assert "dra.net.lock" in second.stdout
        assert list((await prepare(kubelet_root, "a")).claims) == ["a"]
        assert (await get_info(kubelet_root)).name == "dra.net"
    assert (await run_script(SECOND_INSTANCE, kubelet_root)).stdout == "serving\n"


async def test_get_info_does_not_wait_for_the_many_claims_that_are_prepared(kubelet_root: Path) -> None:
    handler = Handler()
    handler.release = asyncio.Event()
    async with running(kubelet_root, handler):
        load = [asyncio.create_task(prepare(kubelet_root, f"claim-{n}")) for n in range(200)]
        await until(lambda: handler.preparing == len(load), "every claim is being prepared")
        assert (await get_info(kubelet_root)).name == "dra.net"
        assert not any(task.done() for task in load)
        handler.release.set()
        assert [len(answer.claims) for answer in await asyncio.gather(*load)] == [1] * len(load)


async def test_a_health_change_needs_no_watcher(kubelet_root: Path) -> None:
    async with running(kubelet_root) as plugin:
        plugin.health_changed()
        assert (
            plugin.capabilities.registered,
            plugin.capabilities.registration_error,
            len(plugin.list_calls()),
        ) == (None, "", 0)


@pytest.mark.process
async def test_a_fork_beside_a_running_server_prints_nothing(kubelet_root: Path) -> None:
    finished = await run_script(FORKS, kubelet_root / "dra.sock")
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")


async def test_instances_that_share_have_sockets_of_their_own_and_each_removes_its_own(
    kubelet_root: Path,
) -> None:
    def shared(uid: str) -> KubeletPlugin:
        settings = Settings(kubelet_root=kubelet_root, pod_uid=uid)
        return KubeletPlugin(
            "dra.net", settings.dra_socket, settings.registration_socket, Handler(), shared_identity=""
        )

    old, new = shared("old"), shared("new")
    await old.start()
    await new.start()
    assert [path.name for path in sockets(kubelet_root)] == [
        "dra-new.sock",
        "dra-old.sock",
        "dra.net-new-reg.sock",
        "dra.net-old-reg.sock",
    ]
    await old.deregister()
    request = dra_v1_pb2.NodePrepareResourcesRequest(
        claims=[dra_v1_pb2.Claim(namespace="team", name="a", uid="a")]
    )
    for name in ("old", "new"):  # who has left the registry serves what still comes
        path = dra_socket(kubelet_root).with_name(f"dra-{name}.sock")
        answer = await ask(path, PREPARE, request, dra_v1_pb2.NodePrepareResourcesResponse)
        assert answer.claims["a"].error == ""
    with pytest.raises(SettingsError, match="another driver"):
        await new_plugin(kubelet_root, Handler()).start()
    await old.stop()
    assert [path.name for path in sockets(kubelet_root)] == ["dra-new.sock", "dra.net-new-reg.sock"]
    await new.stop()


@pytest.mark.parametrize("part", ["_dra", "_registration"])
async def test_a_server_that_ends_by_itself_ends_the_driver(kubelet_root: Path, part: str) -> None:
    async with running(kubelet_root) as plugin:
        watching = asyncio.create_task(plugin.watch())
        server = getattr(plugin, part)._server
        await server.stop(0)
        with pytest.raises(ExceptionGroup) as caught:
            await asyncio.wait_for(watching, DEADLINE)
        assert caught.group_contains(RuntimeError, match=r"\.sock has ended by itself")


async def test_a_stop_is_no_failure_for_who_watches(kubelet_root: Path) -> None:
    async with running(kubelet_root) as plugin:
        watching = asyncio.create_task(plugin.watch())
        await prepare(kubelet_root, "a")
    await asyncio.wait_for(watching, DEADLINE)


async def test_a_stop_that_comes_as_the_watch_begins_is_no_failure(kubelet_root: Path) -> None:
    """As after a SIGTERM while the driver starts."""
    plugin = new_plugin(kubelet_root, Handler())
    await plugin.start()
    stopping = asyncio.create_task(plugin.stop())
    watching = asyncio.create_task(plugin.watch())
    await asyncio.wait_for(asyncio.gather(stopping, watching), DEADLINE)
    assert sockets(kubelet_root) == []


async def test_a_kubelet_that_does_not_register_us_for_long_is_complained_of_with_what_is_known(
    kubelet_root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(kubelet_root) as plugin:
        assert plugin.describe_registration() == "the kubelet has not registered the driver yet"
        monkeypatch.setattr(kubelet_plugin, "REGISTRATION_PATIENCE_SECONDS", 0.05)
        watching = asyncio.create_task(plugin.watch())
        await eventually(lambda: "never asked" in caplog.text)
        registry = registration_socket(kubelet_root).parent
        assert plugin.describe_registration().endswith(f"never asked: does it watch {registry}?")
        await get_info(kubelet_root)
        assert "though it asked for our name" in plugin.describe_registration()
        await notify(kubelet_root, registered=False, error="no version in common")
        assert plugin.describe_registration().endswith("refuses to register the driver: no version in common")
        await notify(kubelet_root, registered=True)
        assert plugin.describe_registration() == ""
        watching.cancel()
