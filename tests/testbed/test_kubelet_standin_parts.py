"""The stand-in kubelet's parts by themselves: plugin manager, pod reading, CDI choice, status, timings."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from dranet.errors import ProtocolError
from dranet.kubelet.pod_resources import PodDevices, PodResources
from dranet.kubelet.sockets import FolderWatch
from dranet.model.claim import AllocationResult, ClaimRef, PodRef
from dranet.pb import health_v1_pb2, registration_pb2
from testbed.kubelet.claims import pick_cdi_ids
from testbed.kubelet.client import PluginClient
from testbed.kubelet.health import HealthBoard
from testbed.kubelet.nouns import (
    KubeletDevice,
    KubeletOptions,
    Phase,
    PluginFailure,
    PodFailure,
    PodTimings,
)
from testbed.kubelet.plugins import PluginManager, RegistryWatch
from testbed.kubelet.podresources import CountedDevices, PodResourcesServer, build_resources
from testbed.kubelet.podspec import PodView, parse_pod
from testbed.kubelet.status import Progress, StartedContainer, build_status
from testbed.runtime.contract import RunningContainer

DEADLINE = 20.0
QUICK = KubeletOptions(
    registration_retry_seconds=0.02, registration_retry_cap_seconds=0.05, wipe_slices_after_seconds=0.05
)


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kr-") as name:
        yield Path(name)


async def eventually(condition: Callable[[], bool]) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE
    while not condition():
        assert loop.time() < deadline, "waited too long"
        await asyncio.sleep(0.005)


class RawPlugin:
    """A registration socket that says what a test wants, and an endpoint that only accepts connections."""

    def __init__(self, root: Path, **info: Any) -> None:
        self.endpoint = root / f"{info.get('name', 'dra.net')}.sock"
        self.info = registration_pb2.PluginInfo(
            **{
                "type": "DRAPlugin",
                "name": "dra.net",
                "endpoint": str(self.endpoint),
                "supported_versions": ["v1.DRAPlugin"],
                **info,
            }
        )
        self.socket = root / "plugins_registry" / f"{self.info.name or 'nameless'}-reg.sock"
        self.heard: list[tuple[bool, str]] = []
        self.unknown_methods = 0

    @asynccontextmanager
    async def running(self, *, endpoint: bool = True) -> AsyncIterator[RawPlugin]:
        """The endpoint first, as who is found by its registration socket is called at once."""
        servers = [await self._serve(path) for path in ([self.endpoint] if endpoint else []) + [self.socket]]
        try:
            yield self
        finally:
            for server in reversed(servers):
                await server.stop(0)

    async def _serve(self, path: Path) -> grpc.aio.Server:
        server = grpc.aio.server(handlers=[self._handler(), _Unknown(self)])
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        return server

    def _handler(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            "pluginregistration.Registration",
            {
                "GetInfo": grpc.unary_unary_rpc_method_handler(
                    self._get_info,
                    registration_pb2.InfoRequest.FromString,
                    registration_pb2.PluginInfo.SerializeToString,
                ),
                "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(
                    self._notify,
                    registration_pb2.RegistrationStatus.FromString,
                    registration_pb2.RegistrationStatusResponse.SerializeToString,
                ),
            },
        )

    async def _get_info(self, _request: object, _context: object) -> registration_pb2.PluginInfo:
        return self.info

    async def _notify(
        self, request: registration_pb2.RegistrationStatus, _context: object
    ) -> registration_pb2.RegistrationStatusResponse:
        self.heard.append((request.plugin_registered, request.error))
        return registration_pb2.RegistrationStatusResponse()


class _Unknown(grpc.GenericRpcHandler):
    """Asked last of all, so it sees the calls that nobody serves."""

    def __init__(self, plugin: RawPlugin) -> None:
        self._plugin = plugin

    def service(self, _details: grpc.HandlerCallDetails) -> None:
        self._plugin.unknown_methods += 1


class Wiped:
    """Which drivers' slices were wiped."""

    def __init__(self) -> None:
        self.drivers: list[str] = []

    async def __call__(self, driver: str) -> None:
        self.drivers.append(driver)


@asynccontextmanager
async def managing(
    root: Path, wiped: Wiped | None = None, options: KubeletOptions = QUICK
) -> AsyncIterator[PluginManager]:
    manager = PluginManager(root, options, wipe_slices=wiped or Wiped(), on_change=lambda: None)
    await manager.start()
    try:
        yield manager
    finally:
        await manager.stop()


def drivers(manager: PluginManager) -> list[str]:
    return [plugin.info.driver for plugin in manager.plugins if plugin.connected]


@pytest.mark.socket
async def test_a_socket_that_is_there_at_the_start_is_registered(root: Path) -> None:
    (root / "plugins_registry").mkdir()
    async with RawPlugin(root).running() as plugin, managing(root) as manager:
        await eventually(lambda: drivers(manager) == ["dra.net"])
        assert manager.find("dra.net").info.service == "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
        await eventually(lambda: plugin.heard == [(True, "")])


@pytest.mark.socket
async def test_a_socket_that_appears_later_is_registered_and_deregistered_when_it_vanishes(
    root: Path,
) -> None:
    async with managing(root) as manager:
        async with RawPlugin(root).running():
            await eventually(lambda: drivers(manager) == ["dra.net"])
        await eventually(lambda: manager.plugins == ())
        with pytest.raises(PluginFailure, match=r"DRA driver dra\.net is not registered"):
            manager.find("dra.net")


@pytest.mark.socket
@pytest.mark.parametrize(
    ("offered", "service"),
    [
        (["v1.DRAPlugin", "v1beta1.DRAPlugin"], "v1"),
        (["v1beta1.DRAPlugin", "v1.DRAPlugin"], "v1beta1"),
        (["v9.DRAPlugin", "v1beta1.DRAPlugin"], "v1beta1"),
    ],
)
async def test_the_first_known_service_of_the_plugins_own_list_is_taken(
    root: Path, offered: list[str], service: str
) -> None:
    async with managing(root) as manager, RawPlugin(root, supported_versions=offered).running():
        await eventually(lambda: drivers(manager) == ["dra.net"])
        assert manager.find("dra.net").info.service == f"k8s.io.kubelet.pkg.apis.dra.{service}.DRAPlugin"


@pytest.mark.socket
@pytest.mark.parametrize(
    ("offered", "health"),
    [
        (["v1.DRAPlugin"], ""),
        (["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"], "v1alpha1.DRAResourceHealth"),
        (
            ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth", "v1.DRAResourceHealth"],
            "v1.DRAResourceHealth",
        ),
    ],
)
async def test_the_health_service_is_the_newest_advertised_one_or_none(
    root: Path, offered: list[str], health: str
) -> None:
    async with managing(root) as manager, RawPlugin(root, supported_versions=offered).running():
        await eventually(lambda: drivers(manager) == ["dra.net"])
        assert manager.find("dra.net").info.health_service == health


@pytest.mark.socket
@pytest.mark.parametrize(
    ("info", "error"),
    [
        ({"type": "CSIPlugin"}, "no handler registered for plugin type: CSIPlugin"),
        ({"name": ""}, "DRA driver name is empty"),
        ({"supported_versions": ["v9.DRAPlugin"]}, r"\(v9\.DRAPlugin\) is known"),
        ({"supported_versions": []}, r"\(none\) is known"),
    ],
)
async def test_a_plugin_that_is_refused_hears_why_and_is_tried_again(
    root: Path, info: dict[str, Any], error: str
) -> None:
    async with managing(root) as manager, RawPlugin(root, **info).running() as plugin:
        await eventually(lambda: len(plugin.heard) >= 2)
        assert manager.plugins == ()
    assert {registered for registered, _ in plugin.heard} == {False}
    assert re.search(error, plugin.heard[0][1])


@pytest.mark.socket
async def test_a_plugin_that_mends_itself_is_registered_by_the_retry(root: Path) -> None:
    async with (
        managing(root) as manager,
        RawPlugin(root, supported_versions=["v9.DRAPlugin"]).running() as plugin,
    ):
        await eventually(lambda: bool(plugin.heard))
        plugin.info.supported_versions[:] = ["v1beta1.DRAPlugin"]
        await eventually(lambda: drivers(manager) == ["dra.net"])
        await eventually(lambda: plugin.heard[-1] == (True, ""))


@pytest.mark.socket
async def test_the_same_endpoint_twice_is_refused(root: Path) -> None:
    async with managing(root) as manager, RawPlugin(root).running() as first:
        await eventually(lambda: drivers(manager) == ["dra.net"])
        second = RawPlugin(root)
        second.socket = first.socket.with_name("second-reg.sock")
        async with second.running(endpoint=False):
            await eventually(lambda: bool(second.heard))
            assert len(manager.plugins) == 1
    assert second.heard[0] == (
        False,
        f"endpoint {first.endpoint} already registered for DRA driver dra.net",
    )


@pytest.mark.socket
async def test_what_is_no_socket_or_hidden_is_ignored_and_a_dead_socket_disturbs_nobody(root: Path) -> None:
    registry = root / "plugins_registry"
    registry.mkdir()
    (registry / "file").touch()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(registry / "dead-reg.sock"))
    with socket.socket(socket.AF_UNIX) as hidden:
        hidden.bind(str(registry / ".hidden"))
        async with managing(root) as manager, RawPlugin(root).running():
            await eventually(lambda: drivers(manager) == ["dra.net"])
            assert len(manager.plugins) == 1


@pytest.mark.socket
async def test_an_empty_endpoint_is_the_registration_socket_itself(root: Path) -> None:
    async with managing(root) as manager, RawPlugin(root, endpoint="").running() as plugin:
        await eventually(lambda: drivers(manager) == ["dra.net"])
        assert manager.find("dra.net").info.endpoint == plugin.socket


@pytest.mark.socket
async def test_an_old_kubelet_asks_for_health_again_and_again(root: Path) -> None:
    options = replace(QUICK, asks_unadvertised_health=True, health_retry_seconds=0.01)
    board = HealthBoard(options, lambda: None)
    async with managing(root, options=options) as manager, RawPlugin(root).running() as plugin:
        await eventually(lambda: drivers(manager) == ["dra.net"])
        assert manager.find("dra.net").info.health_service == "v1.DRAResourceHealth"
        board.follow(manager.plugins)
        await eventually(lambda: plugin.unknown_methods >= 3)
        await board.stop()


@pytest.mark.parametrize("given", [0, -5])
async def test_a_lease_that_the_plugin_does_not_give_is_the_kubelets_own(given: int) -> None:
    board = HealthBoard(replace(QUICK, health_lease_seconds=0.02), lambda: None)
    nic = KubeletDevice("dra.net", "node-1", "nic-1")
    entry = health_v1_pb2.DeviceHealth(
        device=health_v1_pb2.DeviceIdentifier(pool_name="node-1", device_name="nic-1"),
        health=health_v1_pb2.HEALTHY,
        health_check_timeout_seconds=given,
    )
    board._merge("dra.net", [entry])
    assert board.build_status(nic)["health"] == "Healthy"
    await eventually(lambda: board.build_status(nic)["health"] == "Unknown")
    await board.stop()


@pytest.mark.socket
async def test_a_socket_in_a_subfolder_is_registered_also_when_the_folder_comes_later(root: Path) -> None:
    first = RawPlugin(root, name="first")
    first.socket = root / "plugins_registry" / "made-before" / "first-reg.sock"
    later = RawPlugin(root, name="later")
    later.socket = root / "plugins_registry" / "made-later" / "deep" / "later-reg.sock"
    first.socket.parent.mkdir(parents=True)
    async with managing(root) as manager, first.running():
        await eventually(lambda: drivers(manager) == ["first"])
        later.socket.parent.mkdir(parents=True)
        async with later.running():
            await eventually(lambda: drivers(manager) == ["first", "later"])
        await eventually(lambda: drivers(manager) == ["first"])


@pytest.mark.socket
async def test_a_socket_in_a_hidden_folder_is_ignored(root: Path) -> None:
    hidden = RawPlugin(root, name="hidden")
    hidden.socket = root / "plugins_registry" / ".hidden" / "hidden-reg.sock"
    hidden.socket.parent.mkdir(parents=True)
    async with managing(root) as manager, hidden.running(), RawPlugin(root).running():
        await eventually(lambda: drivers(manager) == ["dra.net"])
        assert len(manager.plugins) == 1


@pytest.mark.socket
async def test_a_folder_that_is_made_in_one_that_is_about_to_be_followed_is_seen(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = root / "plugins_registry" / "new"
    new.mkdir(parents=True)
    enter = FolderWatch.__enter__

    def enter_late(watch: FolderWatch) -> FolderWatch:
        if watch._folder == new:
            (new / "deep").mkdir()
        return enter(watch)

    monkeypatch.setattr(FolderWatch, "__enter__", enter_late)
    watch = RegistryWatch(root / "plugins_registry")
    watch.scan()
    with socket.socket(socket.AF_UNIX) as plugin:
        plugin.bind(str(new / "deep" / "dra.net-reg.sock"))
        await asyncio.wait_for(watch.wait_changed(), DEADLINE)
        assert [path.name for path in watch.scan()] == ["dra.net-reg.sock"]
    await watch.stop()


def count_watches() -> int:
    """Open inotify descriptors alone: threads of earlier tests may still close others of this process."""
    targets = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile, as that of the listing itself
            targets.append(str(entry.readlink()))
    return targets.count("anon_inode:inotify")


async def test_the_registry_leaves_no_watch_behind(root: Path) -> None:
    before = count_watches()
    (root / "plugins_registry" / "folder").mkdir(parents=True)
    watch = RegistryWatch(root / "plugins_registry")
    watch.scan()
    assert count_watches() == before + 2
    (root / "plugins_registry" / "folder").rmdir()
    watch.scan()
    assert count_watches() == before + 1
    await watch.stop()
    assert count_watches() == before


@pytest.mark.socket
async def test_slices_are_wiped_a_while_after_each_loss_of_the_last_connection(root: Path) -> None:
    wiped = Wiped()
    async with managing(root, wiped) as manager:
        async with RawPlugin(root).running():
            await eventually(lambda: drivers(manager) == ["dra.net"])
            assert wiped.drivers == []
        await eventually(lambda: wiped.drivers == ["dra.net"])
        async with RawPlugin(root).running():
            await eventually(lambda: drivers(manager) == ["dra.net"])
        await eventually(lambda: wiped.drivers == ["dra.net"] * 2)


def hang_while_hanging_up(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """The first who hangs up on a plugin hangs until it is cancelled; set once it does."""
    hanging_up, hang_up = asyncio.Event(), PluginClient.close

    async def interrupted(plugin: PluginClient) -> None:
        if not hanging_up.is_set():
            hanging_up.set()
            await asyncio.Event().wait()
        await hang_up(plugin)

    monkeypatch.setattr(PluginClient, "close", interrupted)
    return hanging_up


@pytest.mark.socket
async def test_the_slices_of_a_driver_that_goes_while_its_registration_fails_are_wiped(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket vanishes, and so the registration is cancelled, in the middle of hanging up on it."""

    async def refuse(_request: object, context: grpc.aio.ServicerContext[object, object]) -> None:
        await context.abort(grpc.StatusCode.UNAVAILABLE)

    hanging_up = hang_while_hanging_up(monkeypatch)
    wiped, plugin = Wiped(), RawPlugin(root)
    monkeypatch.setattr(plugin, "_notify", refuse)
    async with managing(root, wiped) as manager, plugin.running():
        await eventually(hanging_up.is_set)
        plugin.socket.unlink()
        await eventually(lambda: wiped.drivers == ["dra.net"])
        assert manager.plugins == ()


@pytest.mark.socket
async def test_a_manager_that_stops_while_it_deregisters_a_plugin_leaves_no_connection(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging_up = hang_while_hanging_up(monkeypatch)
    async with managing(root) as manager, RawPlugin(root).running() as plugin:
        await eventually(lambda: drivers(manager) == ["dra.net"])
        plugin.socket.unlink()
        await eventually(hanging_up.is_set)
        await manager.stop()
        assert [task for task in asyncio.all_tasks() if task.get_name() == "connection of dra.net"] == []


@pytest.mark.socket
async def test_who_was_hung_up_on_cannot_be_called(root: Path) -> None:
    """As when the second driver of a pod leaves while the first one prepares."""
    async with managing(root) as manager, RawPlugin(root).running():
        await eventually(lambda: drivers(manager) == ["dra.net"])
        plugin = manager.find("dra.net")
        await plugin.close()
        with pytest.raises(PluginFailure, match="the connection was closed"):
            await plugin.prepare([ClaimRef("team", "nic", "a")])
        with pytest.raises(PluginFailure, match="the connection was closed"):
            await anext(plugin.watch_health())


@pytest.mark.socket
async def test_a_driver_that_comes_back_in_time_keeps_its_slices(root: Path) -> None:
    wiped = Wiped()
    patient = KubeletOptions(registration_retry_seconds=0.02, wipe_slices_after_seconds=3600)
    async with managing(root, wiped, patient) as manager:
        async with RawPlugin(root).running():
            await eventually(lambda: drivers(manager) == ["dra.net"])
        await eventually(lambda: manager.plugins == ())
        (due,) = manager._wiper._pending.values()  # whatever its time, so that a busy machine is not too late
        async with RawPlugin(root).running():
            await eventually(lambda: drivers(manager) == ["dra.net"])
            await eventually(due.cancelled)
            assert (wiped.drivers, manager._wiper._pending) == ([], {})


@pytest.mark.socket
async def test_a_plugin_that_was_never_reached_is_as_absent_as_one_that_left(root: Path) -> None:
    wiped = Wiped()
    async with managing(root, wiped) as manager, RawPlugin(root).running(endpoint=False):
        await eventually(lambda: bool(manager.plugins))
        await eventually(lambda: wiped.drivers == ["dra.net"])


@pytest.mark.socket
async def test_a_socket_put_in_place_of_another_is_a_new_plugin(root: Path) -> None:
    async with managing(root) as manager, RawPlugin(root).running() as first:
        await eventually(lambda: drivers(manager) == ["dra.net"])
        second = RawPlugin(root, endpoint=str(root / "second.sock"))
        second.endpoint, second.socket = root / "second.sock", root / "second-reg.sock"
        async with second.running():
            second.socket.rename(first.socket)
            await eventually(lambda: [p.info.endpoint for p in manager.plugins] == [second.endpoint])
            await eventually(lambda: second.heard == [(True, "")])


def pod(**changes: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "web", "namespace": "team", "uid": "p1", "annotations": {"a": "b"}},
        "spec": {
            "containers": [{"name": "main", "image": "web:1", "resources": {"claims": [{"name": "nic"}]}}],
            "resourceClaims": [{"name": "nic", "resourceClaimName": "the-nic"}],
        },
        "status": {},
        **changes,
    }


def test_a_pod_is_read_with_its_claims_commands_and_environment() -> None:
    spec = {
        "hostNetwork": True,
        "containers": [
            {
                "name": "main",
                "command": ["/bin/server"],
                "args": ["-v"],
                "env": [{"name": "A", "value": "1"}, {"name": "SECRET", "valueFrom": {}}],
                "resources": {"claims": [{"name": "nic", "request": "fast"}]},
            },
            {"name": "side"},
        ],
        "resourceClaims": [{"name": "nic", "resourceClaimName": "the-nic"}],
    }
    view = parse_pod(pod(spec=spec))
    main, side = view.containers
    assert (main.command, main.env, main.claims) == (("/bin/server", "-v"), (("A", "1"),), (("nic", "fast"),))
    assert (side.command, side.claims) == (("sleep", "infinity"), ())
    assert view.sandbox.host_network
    assert view.get_resolved_claims() == {"nic": "the-nic"}
    assert not view.deleting


def test_a_template_claim_is_awaited_then_named_by_the_status() -> None:
    spec = {"containers": [], "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "t"}]}
    with pytest.raises(PodFailure, match="'nic' was not made from its template yet"):
        parse_pod(pod(spec=spec)).get_resolved_claims()
    made = {"resourceClaimStatuses": [{"name": "nic", "resourceClaimName": "web-nic-x"}]}
    view = parse_pod(pod(spec=spec, status=made))
    assert view.get_resolved_claims() == {"nic": "web-nic-x"}
    assert view.template_claims == {"nic"}


def test_a_template_claim_that_is_not_needed_is_left_out() -> None:
    spec = {"containers": [], "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "t"}]}
    assert (
        parse_pod(pod(spec=spec, status={"resourceClaimStatuses": [{"name": "nic"}]})).get_resolved_claims()
        == {}
    )


def test_a_claim_for_extended_resources_reaches_its_container_only() -> None:
    status = {
        "extendedResourceClaimStatus": {
            "resourceClaimName": "web-extended",
            "requestMappings": [
                {
                    "containerName": "main",
                    "resourceName": "vendor/nic",
                    "requestName": "container-0-request-0",
                }
            ],
        }
    }
    spec = {"containers": [{"name": "main"}, {"name": "side"}]}
    view = parse_pod(pod(spec=spec, status=status))
    main, side = view.containers
    assert list(view.get_resolved_claims().values()) == ["web-extended"]
    assert [request for _, request in main.claims] == ["container-0-request-0"]
    assert side.claims == ()


def device(name: str, *requests: str) -> KubeletDevice:
    return KubeletDevice("dra.net", "node-1", name, requests, (f"dra.net/claim={name}",))


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ([("nics", "")], ["a", "b", "c"]),
        ([("nics", "fast")], ["a", "c"]),
        ([("nics", "slow")], ["b", "c"]),
        ([("nics", "fast"), ("nics", "slow")], ["a", "c", "b"]),
        ([("other", "")], []),
        ([], []),
    ],
)
def test_a_container_gets_the_devices_of_its_requests_each_once(
    asked: Sequence[tuple[str, str]], names: list[str]
) -> None:
    devices = {"nics": (device("a", "fast"), device("b", "slow"), device("c"))}
    assert pick_cdi_ids(asked, devices) == tuple(f"dra.net/claim={name}" for name in names)


NOW, BEFORE = "2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z"


def conditions(status: dict[str, Any]) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in status["conditions"]}


def test_a_waiting_pod_shows_why_on_the_container_that_failed() -> None:
    failure = PodFailure(
        "Failed", "Error: no such file", container="main", waiting_reason="CreateContainerError"
    )
    status = build_status(parse_pod(pod()), Progress(sandbox_ready=True, failure=failure), NOW)
    assert status["phase"] == "Pending"
    (container,) = status["containerStatuses"]
    assert container["state"] == {
        "waiting": {"reason": "CreateContainerError", "message": "Error: no such file"}
    }
    assert conditions(status)["PodReadyToStartContainers"] == "True"
    assert conditions(status)["Ready"] == "False"


def test_a_running_pod_is_ready_and_keeps_foreign_conditions_and_old_times() -> None:
    before = {
        "startTime": BEFORE,
        "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": BEFORE},
            {"type": "Initialized", "status": "True", "lastTransitionTime": BEFORE},
            {"type": "Ready", "status": "False", "lastTransitionTime": BEFORE},
        ],
    }
    started = StartedContainer(RunningContainer("c1", "main"), "stand-in://c1", NOW)
    progress = Progress(sandbox_ready=True, containers={"main": started})
    status = build_status(parse_pod(pod(status=before)), progress, NOW)
    assert status["phase"] == "Running"
    assert status["startTime"] == BEFORE
    assert conditions(status) == {
        "PodScheduled": "True",
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "ContainersReady": "True",
        "Ready": "True",
    }
    times = {condition["type"]: condition["lastTransitionTime"] for condition in status["conditions"]}
    assert (times["PodScheduled"], times["Initialized"], times["Ready"]) == (BEFORE, BEFORE, NOW)
    (container,) = status["containerStatuses"]
    assert container["containerID"] == "stand-in://c1"
    assert container["state"] == {"running": {"startedAt": NOW}}


def test_timings_keep_the_first_success_of_each_phase() -> None:
    timings = PodTimings()
    for phase in Phase:
        timings = timings.with_phase(phase, 1.0).with_phase(phase, 2.0)
    assert (timings.prepare_seconds, timings.sandbox_seconds, timings.containers_seconds) == (1.0, 1.0, 1.0)


def pod_with_limits(name: str, **limits: int) -> PodView:
    container = {
        "name": "main",
        "resources": {
            "claims": [{"name": "nic"}],
            "limits": {"cpu": "2", **{f"gpu.example/{kind}": str(count) for kind, count in limits.items()}},
        },
    }
    claims = [{"name": "nic", "resourceClaimName": f"claim-of-{name}"}]
    metadata = {"namespace": "team", "name": name, "uid": f"uid-{name}"}
    return parse_pod({"metadata": metadata, "spec": {"containers": [container], "resourceClaims": claims}})


def test_devices_by_number_are_given_once_each_and_taken_back() -> None:
    counted = CountedDevices()
    counted.offer("gpu.example/gpu", ["a", "b"])
    assert counted.give(pod_with_limits("first", gpu=1, other=3)) == {"main": {"gpu.example/gpu": ("a",)}}
    assert counted.give(pod_with_limits("second", gpu=1)) == {"main": {"gpu.example/gpu": ("b",)}}
    assert counted.give(pod_with_limits("first", gpu=1)) == {"main": {"gpu.example/gpu": ("a",)}}
    with pytest.raises(PodFailure, match="Requested: 1, Available: 0"):
        counted.give(pod_with_limits("third", gpu=1))
    counted.take_back("uid-second")
    assert counted.give(pod_with_limits("third", gpu=1)) == {"main": {"gpu.example/gpu": ("b",)}}


@pytest.mark.socket
async def test_the_pod_resources_socket_tells_what_the_drivers_client_reads(tmp_path: Path) -> None:
    counted, pods = CountedDevices(), [pod_with_limits("first", gpu=1), pod_with_limits("second", gpu=2)]
    counted.offer("gpu.example/gpu", ["a", "b", "c"])
    prepared = {"nic": (KubeletDevice("dra.net", "node", "nic-0"),)}
    given = {pod.uid: counted.give(pod) for pod in pods}
    server = PodResourcesServer(
        tmp_path, lambda: [build_resources(pod, given[pod.uid], prepared) for pod in pods]
    )
    await server.start()
    client = PodResources(tmp_path / "pod-resources" / "kubelet.sock")
    assert await client.read(PodRef("team", "second", "uid-second")) == PodDevices(
        (("gpu.example/gpu", "b"), ("gpu.example/gpu", "c")),
        (AllocationResult("", "dra.net", "node", "nic-0"),),
    )
    assert await client.read_givers() == {"gpu.example/gpu", "dra.net"}
    with pytest.raises(ProtocolError, match="does not know pod team/gone"):
        await client.read(PodRef("team", "gone", "uid"))
    await server.stop()
    await server.stop()
