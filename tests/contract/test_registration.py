"""Sections 1.1 to 1.5: how the kubelet finds, registers, refuses and loses a plugin, and what it calls."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest

from dranet.errors import SettingsError
from dranet.kubelet.kubelet_plugin import KubeletPlugin, RegistrationServer
from dranet.pb import registration_pb2
from testbed.kubelet.client import PluginClient, PluginInfo
from testbed.kubelet.health import HealthBoard
from testbed.kubelet.nouns import KubeletOptions, PluginFailure
from tests.contract.calls import HEALTH_SERVICES, Calls, ask, eventually, refs
from tests.contract.kubelet_room import DRIVER, QUICK, Node, Room, Script, registered

pytestmark = pytest.mark.socket

# 1.1 what a plugin says of itself


async def test_get_info_says_type_name_endpoint_and_services_newest_first(root: Path) -> None:
    """1.1: type ``DRAPlugin``; the endpoint is an absolute path, never empty; DRA services before health."""
    async with Room(root).serving() as room:
        info = await room.calls.get_info()
    assert (info.type, info.name) == ("DRAPlugin", DRIVER)
    assert info.endpoint == str(room.calls.dra_socket)
    assert Path(info.endpoint).is_absolute()
    assert list(info.supported_versions) == [
        "v1.DRAPlugin",
        "v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    ]


@pytest.mark.parametrize("watched", [True, False])
async def test_only_what_is_served_is_advertised_and_all_of_it_answers(root: Path, watched: bool) -> None:
    """1.1: an advertised DRA service answers under its full gRPC name, which is another one; a health service
    answers under its own; without a source of health neither is advertised nor served."""
    async with Room(root, watched=watched).serving() as room:
        offered = list((await room.calls.get_info()).supported_versions)
        for version in ("v1.DRAPlugin", "v1beta1.DRAPlugin"):
            assert version in offered
            assert not (await room.calls.prepare([], version)).claims
        for service in HEALTH_SERVICES:
            assert (service in offered) is watched
            assert await _serves_health(room.calls, service) is watched


async def _serves_health(calls: Calls, service: str) -> bool:
    async with calls.watch_health(service) as stream:
        try:
            await anext(stream)
        except grpc.aio.AioRpcError as error:
            return error.code() is not grpc.StatusCode.UNIMPLEMENTED
        return True


async def test_an_advertised_name_is_not_a_service_name(root: Path) -> None:
    """1.1, 11.5: who calls the DRA service by its advertised name gets UNIMPLEMENTED."""
    async with Room(root).serving() as room:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(
                room.calls.dra_socket,
                "v1.DRAPlugin/NodePrepareResources",
                registration_pb2.InfoRequest(),
                registration_pb2.PluginInfo,
                5,
            )
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


# 1.3 the plugin watcher and the reconciler


async def test_the_kubelet_asks_admits_and_says_so_in_this_order(root: Path) -> None:
    """1.3: GetInfo, then the judgement, then NotifyRegistrationStatus(true)."""
    async with registered(root) as (room, node):
        assert node.manager.find(DRIVER).info.endpoint == room.calls.dra_socket
        capabilities = room.plugin.capabilities
        assert (capabilities.registered, capabilities.registration_error) == (True, "")
        assert capabilities.asked_at is not None
        assert capabilities.registered_at is not None
        assert capabilities.asked_at <= capabilities.registered_at


async def test_the_dra_socket_answers_before_the_kubelet_can_know_of_it(root: Path) -> None:
    """1.3, 4.1: the kubelet dials the endpoint the moment that it registers the plugin."""
    room, seen = Room(root), []

    async def call_at_once() -> None:
        await eventually(room.calls.registration_socket.exists)
        info = await room.calls.get_info()
        seen.append(await Calls(room.calls.registration_socket, Path(info.endpoint)).prepare(refs("u1")))

    async with asyncio.TaskGroup() as tasks:
        caller = tasks.create_task(call_at_once())
        async with room.serving():
            await caller
    assert len(seen[0].claims["u1"].devices) == 1


async def test_no_name_that_does_not_listen_is_ever_visible(root: Path) -> None:
    """1.3: the watcher acts on Create, so a name must not appear before its socket answers; it ignores names
    that begin with a dot, under one of which ours is bound."""
    room = Room(root)
    async with Node(root).running() as node:
        for _ in range(5):
            async with room.serving():
                await node.wait_registered()
                visible = [p.name for p in room.registry.iterdir() if not p.name.startswith(".")]
                assert visible == [f"{DRIVER}-reg.sock"]
            await eventually(lambda: node.manager.plugins == ())
    assert room.plugin.capabilities.registration_error == ""


async def test_a_kubelet_that_starts_later_finds_the_socket_that_is_there(root: Path) -> None:
    """1.3: at its start the kubelet walks the folder."""
    async with Room(root).serving() as room, Node(root).running() as node:
        await node.wait_registered()
        await eventually(lambda: room.plugin.capabilities.registered)


async def test_a_restarted_kubelet_registers_the_same_socket_again(root: Path) -> None:
    """1.3: every driver is registered again after a restart, without any change of its socket."""
    async with Room(root).serving() as room:
        inode = room.calls.registration_socket.stat().st_ino
        for _ in range(3):
            async with Node(root).running() as node:
                await node.wait_registered()
                await eventually(lambda: room.plugin.capabilities.registered)
                assert await node.manager.find(DRIVER).prepare(refs("u1"))
        assert room.calls.registration_socket.stat().st_ino == inode


async def test_a_socket_made_anew_is_another_plugin_and_not_the_same_twice(root: Path) -> None:
    """1.3, 1.4: remove and create of one path is deregister, then register; the endpoint is no duplicate."""
    async with registered(root) as (room, node):
        first, before = node.manager.find(DRIVER), room.plugin.capabilities.registered_at
        room.calls.registration_socket.unlink()
        await eventually(lambda: room.plugin.capabilities.registered_at not in (None, before))
        await node.wait_registered()
        assert node.manager.find(DRIVER) is not first
        assert room.plugin.capabilities.registration_error == ""


async def test_a_registry_folder_that_is_made_anew_is_served_again(root: Path) -> None:
    """1.3: a kubelet that was reset makes its folders anew and starts; our name is there again."""
    async with Room(root).serving() as room:
        async with Node(root).running() as node:
            await node.wait_registered()
        shutil.rmtree(room.registry)
        await eventually(room.calls.registration_socket.exists)
        assert room.plugin.capabilities.registered is None
        async with Node(root).running() as node:
            await node.wait_registered()
            await eventually(lambda: room.plugin.capabilities.registered)


async def test_a_refused_plugin_says_so_stays_and_is_registered_by_a_retry(root: Path) -> None:
    """1.3, 4.4: any failure is told as ``false`` with its text and the whole sequence is repeated; we
    remember the text, answer with a gRPC error and go on serving."""
    unknown = replace(QUICK, known_services=("v9.DRAPlugin",))
    async with Room(root).serving() as room:
        async with Node(root, unknown).running() as node:
            await eventually(lambda: room.plugin.capabilities.registered is False)
            assert "v1.DRAPlugin, v1beta1.DRAPlugin" in room.plugin.capabilities.registration_error
            first = room.plugin.capabilities.registered_at
            await eventually(lambda: room.plugin.capabilities.registered_at != first)
            with pytest.raises(PluginFailure, match="not registered"):
                node.manager.find(DRIVER)
        async with Node(root).running() as node:
            await node.wait_registered()
            await eventually(lambda: room.plugin.capabilities.registered)
            assert room.plugin.capabilities.registration_error == ""


async def test_the_answer_to_a_refusal_is_an_error_with_the_kubelets_words(root: Path) -> None:
    """4.4: OK when registered, else a gRPC error; the status is None before the first word."""
    async with Room(root).serving() as room:
        assert room.plugin.capabilities.registered is None
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await room.calls.notify(registered=False, error="no such handler")
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert refused.value.details() == "registration failed: no such handler"
        await room.calls.notify(registered=True)
        assert room.plugin.capabilities.registered is True


async def test_a_registration_that_is_repeated_changes_nothing(root: Path) -> None:
    """1.3: when the kubelet's Notify is lost it begins again with GetInfo; we serve already."""
    async with Room(root).serving() as room:
        infos = []
        for _ in range(3):
            infos.append(await room.calls.get_info())
            await room.calls.notify(registered=True)
        assert infos[0] == infos[1] == infos[2]
        assert (await room.calls.prepare(refs("u1"))).claims["u1"].devices


async def test_a_vanished_registration_socket_is_the_goodbye(root: Path) -> None:
    """1.3: socket gone, plugin deregistered by its name and endpoint; our own stop does that first."""
    async with Node(root).running() as node:
        async with Room(root).serving():
            await node.wait_registered()
        await eventually(lambda: node.manager.plugins == ())
        with pytest.raises(PluginFailure, match=f"{DRIVER} is not registered"):
            node.manager.find(DRIVER)


async def test_get_info_answers_within_its_second_under_load(root: Path) -> None:
    """1.3: cheap, without effects, any number of times; also while hundreds of Prepares wait."""
    async with Room(root).serving() as room:
        uids = [f"u{number}" for number in range(300)]
        room.script.hold(*uids)
        waiting = asyncio.create_task(room.calls.prepare_each(refs(*uids)))
        await eventually(lambda: len(room.plugin.list_calls()) == len(uids))
        for _ in range(50):  # one by one: of many at once each would wait for what this side makes of them
            assert (await room.calls.get_info()).name == DRIVER
        assert len(room.plugin.list_calls()) == len(uids)
        room.script.release()
        assert len(await waiting) == len(uids)


# 1.4 the DRA manager


@pytest.mark.parametrize(
    ("known", "called"),
    [
        (("v1.DRAPlugin", "v1beta1.DRAPlugin"), "v1.DRAPlugin"),
        (("v1beta1.DRAPlugin", "v1.DRAPlugin"), "v1.DRAPlugin"),
        (("v1beta1.DRAPlugin",), "v1beta1.DRAPlugin"),
    ],
)
async def test_the_first_service_of_our_list_that_the_kubelet_knows_is_called(
    root: Path, known: tuple[str, ...], called: str
) -> None:
    """1.4: the plugin's order decides, not the kubelet's; the older version alone works, too."""
    async with registered(root, replace(QUICK, known_services=known)) as (room, node):
        assert room.plugin.capabilities.dra_service == ""
        assert (await node.manager.find(DRIVER).prepare(refs("u1")))["u1"]
        await node.manager.find(DRIVER).unprepare(refs("u1"))
        assert room.plugin.capabilities.dra_service == called
        assert room.script.unprepared == [["u1"]]


KUBELETS = {
    "1.34": replace(
        QUICK, known_health_services=("v1alpha1.DRAResourceHealth",), asks_unadvertised_health=True
    ),
    "1.37": QUICK,
}


@pytest.mark.parametrize("version", KUBELETS)
async def test_each_generation_of_kubelets_prepares_and_watches_health(root: Path, version: str) -> None:
    """1.5: 1.34 to 1.36 speak v1 and health v1alpha1, 1.37 prefers health v1."""
    options = KUBELETS[version]
    board = HealthBoard(options, lambda: None)
    async with registered(root, options) as (room, node):
        board.follow(node.manager.plugins)
        (device,) = (await node.manager.find(DRIVER).prepare(refs("u1")))["u1"]
        await eventually(lambda: board.build_status(device)["health"] == "Healthy")
        assert room.plugin.capabilities.dra_service == "v1.DRAPlugin"
        assert room.plugin.capabilities.health_service == options.known_health_services[0]
        assert room.plugin.capabilities.health_streams == 1
        await board.stop()
        await eventually(lambda: room.plugin.capabilities.health_streams == 0)


async def test_the_same_endpoint_under_two_names_is_refused_and_hurts_nobody(root: Path) -> None:
    """1.4: ``endpoint already registered``; the first registration goes on."""
    async with registered(root) as (room, node):
        first = node.manager.find(DRIVER)
        versions = tuple((await room.calls.get_info()).supported_versions)
        second = RegistrationServer(room.registry / "again-reg.sock", DRIVER, room.calls.dra_socket, versions)
        await second.start()
        await eventually(lambda: "already registered" in second.observer.capabilities.registration_error)
        await second.stop()
        assert node.manager.plugins == (first,)
        assert await first.prepare(refs("u1"))


async def test_calls_go_to_the_newest_connected_instance(root: Path) -> None:
    """1.4, 4.2: several endpoints of one driver are kept; when the newest ends, the older one is called."""
    old, new = _instance(root, "a1"), _instance(root, "b2")
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(Node(root).running())
        await old[0].start()
        stack.push_async_callback(old[0].stop)
        await node.wait_registered()
        await new[0].start()
        await node.wait_registered(2)
        await node.manager.find(DRIVER).prepare(refs("u1"))
        await new[0].stop()
        await node.wait_registered(1)
        await node.manager.find(DRIVER).prepare(refs("u2"))
        assert node.wiped == []
    assert (new[1].prepared, old[1].prepared) == ([["u1"]], [["u2"]])


def _instance(root: Path, pod_uid: str) -> tuple[KubeletPlugin, Script]:
    """One of two instances, each with a folder of its own: this is about the kubelet's choice alone."""
    script = Script()
    plugin = KubeletPlugin(
        DRIVER,
        root / "plugins" / f"{DRIVER}-{pod_uid}" / "dra.sock",
        root / "plugins_registry" / f"{DRIVER}-{pod_uid}-reg.sock",
        script,
    )
    return plugin, script


async def test_the_kubelet_reconnects_when_our_plugin_folder_was_made_anew(root: Path) -> None:
    """1.4: the client reconnects by itself when the connection ends; nobody has to register again."""
    async with registered(root) as (room, node):
        plugin = node.manager.find(DRIVER)
        shutil.rmtree(room.folder)
        await eventually(room.calls.dra_socket.exists)
        assert await _prepare_with_retries(plugin)
        assert node.manager.find(DRIVER) is plugin


async def _prepare_with_retries(plugin: PluginClient) -> object:
    """As the kubelet: a call that goes out while the old connection ends is cut, and repeated."""
    for _ in range(10):
        with contextlib.suppress(PluginFailure):
            return await plugin.prepare(refs("u1"))
    return None


@pytest.mark.socket
async def test_the_kubelet_does_not_hang_up_on_a_driver_that_is_slow_to_take_its_connection(
    root: Path,
) -> None:
    """1.4: whoever begins anew on a busy node is no sooner connected, and its calls fail meanwhile."""
    opened: list[asyncio.StreamWriter] = []
    hung_up = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        await reader.read()
        hung_up.set()

    socket_path = root / "slow.sock"
    plugin = PluginClient(PluginInfo(DRIVER, socket_path, "", ""), QUICK, lambda _: None)
    async with await asyncio.start_unix_server(say_nothing, str(socket_path)):
        plugin.start()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(hung_up.wait(), 0.5)
        await plugin.close()
        for writer in opened:
            writer.close()
        await hung_up.wait()
    assert len(opened) == 1


async def test_slices_are_wiped_only_after_a_while_without_any_connection(root: Path) -> None:
    """1.4: a driver that comes back in time keeps them; one that stays away loses its own."""
    slow = replace(QUICK, wipe_slices_after_seconds=60.0)
    async with Node(root, slow).running() as node:
        async with Room(root).serving():
            await node.wait_registered()
        async with Room(root).serving():
            await node.wait_registered()
        assert node.wiped == []
    async with Node(root).running() as node:
        async with Room(root).serving():
            await node.wait_registered()
        await eventually(lambda: node.wiped == [DRIVER])


# Sockets that others could take


async def test_a_second_driver_cannot_steal_the_sockets_of_a_live_one(root: Path) -> None:
    """11.1: gRPC would bind over a live socket without a word; the second instance is refused by name."""
    async with registered(root) as (room, node):
        inodes = [path.stat().st_ino for path in (room.calls.registration_socket, room.calls.dra_socket)]
        with pytest.raises(SettingsError, match="another driver"):
            await Room(root).plugin.start()
        again = [path.stat().st_ino for path in (room.calls.registration_socket, room.calls.dra_socket)]
        assert again == inodes
        assert await node.manager.find(DRIVER).prepare(refs("u1"))


@pytest.mark.socket
async def test_our_stop_leaves_what_another_put_in_our_place(root: Path) -> None:
    """11.1: the classic end of an old server is to unlink the new one's socket."""
    room = Room(root)
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(root / "foreign.sock"))
        async with room.serving():
            (root / "foreign.sock").rename(room.calls.dra_socket)
        assert room.calls.dra_socket.is_socket()
        assert not room.calls.registration_socket.exists()


@pytest.mark.socket
async def test_a_dead_socket_of_a_killed_driver_is_replaced(root: Path) -> None:
    """4.1, 4.2: a crash leaves dead sockets; the next instance of the same names takes their place."""
    room = Room(root)
    room.folder.mkdir(parents=True)
    for path in (room.calls.registration_socket, room.calls.dra_socket):
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(str(path))
    async with Node(root).running() as node, room.serving():
        await node.wait_registered()
        assert await node.manager.find(DRIVER).prepare(refs("u1"))


async def test_a_kubelet_with_the_times_of_the_real_one_registers_us(root: Path) -> None:
    """1.3: dial 10 s, GetInfo 1 s, Notify 5 s, Prepare 45 s: the defaults of the kubelet that we play."""
    real = KubeletOptions()
    assert (real.dial_seconds, real.get_info_seconds, real.notify_seconds) == (10.0, 1.0, 5.0)
    assert (real.call_seconds, real.wipe_slices_after_seconds, real.health_retry_seconds) == (45.0, 30.0, 5.0)
    assert (real.registration_retry_seconds, real.registration_retry_cap_seconds) == (0.5, 120.0)
    async with registered(root, real) as (_, node):
        assert await node.manager.find(DRIVER).prepare(refs("u1"))
