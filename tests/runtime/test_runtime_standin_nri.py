"""The stand-in's NRI side against the real plugin, over real sockets: who is called, what a failure means.

The expectations are those seen on containerd 1.7.24 and 2.1.9; the same plugin runs against the real one in
the runtime lane.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from dranet.errors import DeviceError
from dranet.model.claim import Container, ContainerAdjustment, PodSandbox
from dranet.model.facts import CharDevice
from dranet.pb import nri_pb2
from dranet.runtime.nri import NriPlugin
from dranet.wire import ConnectionLost, Mux, TtrpcConnection
from testbed.runtime.contract import RuntimeFailure
from testbed.runtime.nri_link import EventForm, NriCapabilities
from testbed.runtime.nri_server import NriServer

pytestmark = pytest.mark.socket

SECONDS = 10.0
PATIENT = NriCapabilities(request_timeout_seconds=SECONDS)

Call = tuple[str, str]


class Hooks:
    """Notes who was called with which pod, in a list that several may share."""

    def __init__(self, name: str, calls: list[Call]) -> None:
        self.name = name
        self.calls = calls
        self.pods: tuple[PodSandbox, ...] = ()
        self.containers: tuple[Container, ...] = ()
        self.stopped: PodSandbox | None = None
        self.shown: list[Container] = []
        self.devices: tuple[CharDevice, ...] = ()
        self.request_timeout_seconds: float | None = None
        self.fail_on = ""
        self.before: Callable[[str], None] = lambda _: None

    def _note(self, method: str, pod: PodSandbox) -> bool:
        self.calls.append((self.name, f"{method} {pod.name}"))
        self.before(method)
        if method == self.fail_on:
            raise DeviceError(f"{self.name} cannot {method}")
        return True

    def connected(
        self, runtime_name: str, runtime_version: str, request_timeout_seconds: float | None
    ) -> None:
        self.request_timeout_seconds = request_timeout_seconds
        self.calls.append((self.name, f"connected {runtime_name} {runtime_version}"))

    def disconnected(self, reason: str) -> None: ...

    def synchronize(self, pods: Sequence[PodSandbox], containers: Sequence[Container]) -> None:
        self.pods, self.containers = tuple(pods), tuple(containers)

    def run_pod_sandbox(self, pod: PodSandbox) -> bool:
        return self._note("run", pod)

    def stop_pod_sandbox(self, pod: PodSandbox) -> bool:
        self.stopped = pod
        return self._note("stop", pod)

    def remove_pod_sandbox(self, pod: PodSandbox) -> bool:
        return self._note("remove", pod)

    def create_container(self, pod: PodSandbox, container: Container) -> ContainerAdjustment:
        self._note("create", pod)
        self.shown.append(container)
        env = ((f"FROM_{self.name.upper()}", container.name),)
        return ContainerAdjustment(devices=self.devices, env=env)

    def start_container(self, pod: PodSandbox, container: Container) -> bool:
        del container
        return self._note("start", pod)


class Bench:
    """A server and the plugins of one test."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "nri.sock"
        self.calls: list[Call] = []
        self.server = NriServer(self.path, PATIENT)
        self._plugins: list[NriPlugin] = []

    def start(self, traits: NriCapabilities = PATIENT) -> NriServer:
        self.server = NriServer(self.path, traits)
        self.server.start()
        return self.server

    def join(self, name: str = "dranet", index: str = "10") -> Hooks:
        """Add a plugin and wait until it is synchronized."""
        hooks = Hooks(name, self.calls)
        plugin = NriPlugin(self.path, name, index, hooks, wait=lambda stopping, _: stopping.wait(0.001))
        count = len(self.server.plugins) + 1
        plugin.start()
        self._plugins.append(plugin)
        assert self.server.wait_plugins(count, SECONDS)
        self.calls.clear()
        return hooks

    def close(self) -> None:
        for plugin in self._plugins:
            plugin.stop()
        self.server.stop()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def pod(name: str = "web", annotation: str = "") -> nri_pb2.PodSandbox:
    network = nri_pb2.LinuxNamespace(type="network", path=f"/run/netns/{name}")
    return nri_pb2.PodSandbox(
        id=name,
        name=name,
        namespace="shop",
        uid=f"uid-{name}",
        annotations={"text": annotation},
        linux=nri_pb2.LinuxPodSandbox(namespaces=[network]),
        pid=7,
    )


CONTAINER = nri_pb2.Container(id="c1", name="main", pod_sandbox_id="web")


@pytest.mark.parametrize("form", list(EventForm))
def test_a_pods_life_reaches_the_plugin_in_either_event_form(bench: Bench, form: EventForm) -> None:
    server = bench.start(
        NriCapabilities(event_form=form, nri_version="0.12.0", request_timeout_seconds=SECONDS)
    )
    bench.join()
    server.run_pod_sandbox(pod())
    server.create_container("web", CONTAINER)
    server.stop_pod_sandbox("web")
    server.remove_pod_sandbox("web")
    assert [what for _, what in bench.calls] == ["run web", "create web", "stop web", "remove web"]


@pytest.mark.parametrize(("without", "path"), [(True, ""), (False, "/run/netns/web")])
def test_stop_names_the_namespace_unless_the_runtime_is_an_old_one(
    bench: Bench, without: bool, path: str
) -> None:
    traits = NriCapabilities(stop_without_netns_path=without, request_timeout_seconds=SECONDS)
    server = bench.start(traits)
    hooks = bench.join()
    server.run_pod_sandbox(pod())
    server.stop_pod_sandbox("web")
    assert hooks.stopped is not None
    assert (hooks.stopped.netns_path, hooks.stopped.pid) == (path, 0)


def test_plugins_are_called_in_the_order_of_their_index(bench: Bench) -> None:
    server = bench.start()
    bench.join("late", "90")
    bench.join("early", "05")
    assert server.plugins == ("05-early", "90-late")
    server.run_pod_sandbox(pod())
    assert bench.calls == [("early", "run web"), ("late", "run web")]
    adjustments = server.create_container("web", CONTAINER)
    assert [(a.plugin, a.adjust.env[0].key) for a in adjustments] == [
        ("05-early", "FROM_EARLY"),
        ("90-late", "FROM_LATE"),
    ]


def test_each_plugin_is_shown_what_those_before_it_add(bench: Bench) -> None:
    """As containerd does, also where both have the same name."""
    server = bench.start()
    first, second = bench.join("dranet"), bench.join("dranet")
    first.devices = (CharDevice("/dev/infiniband/uverbs0", 231, 192),)
    server.run_pod_sandbox(pod())
    server.create_container("web", CONTAINER)
    assert [container.devices for container in (*first.shown, *second.shown)] == [(), first.devices]
    assert not CONTAINER.linux.devices


def test_the_same_plugin_twice_is_called_twice(bench: Bench) -> None:
    server = bench.start()
    bench.join()
    bench.join()
    server.run_pod_sandbox(pod())
    assert bench.calls == [("dranet", "run web"), ("dranet", "run web")]


def test_a_late_plugin_is_told_of_the_pods_that_exist(bench: Bench) -> None:
    server = bench.start()
    server.run_pod_sandbox(pod("a"))
    server.run_pod_sandbox(pod("b"))
    server.run_pod_sandbox(pod("c"))
    server.stop_pod_sandbox("b")
    server.remove_pod_sandbox("c")
    hooks = bench.join()
    assert [(p.name, p.running) for p in hooks.pods] == [("a", True), ("b", False)]


@pytest.mark.parametrize("version", ["0.7.0", "0.8.0"])
def test_many_pods_are_told_in_parts(bench: Bench, version: str) -> None:
    traits = NriCapabilities(nri_version=version, request_timeout_seconds=SECONDS)
    server = bench.start(traits)
    for number in range(40):
        server.run_pod_sandbox(pod(f"p{number}", annotation="x" * 150_000))
    hooks = bench.join()
    assert [p.name for p in hooks.pods] == [f"p{number}" for number in range(40)]


@pytest.mark.parametrize(("version", "seconds"), [("0.6.1", None), ("0.8.0", SECONDS)])
def test_how_long_it_waits_is_told_from_nri_0_7_on(bench: Bench, version: str, seconds: float | None) -> None:
    bench.start(NriCapabilities(nri_version=version, request_timeout_seconds=SECONDS))
    assert bench.join().request_timeout_seconds == seconds


def test_an_error_at_run_fails_the_pod_and_is_followed_by_stop_and_remove(bench: Bench) -> None:
    server = bench.start()
    hooks = bench.join()
    hooks.fail_on = "run"
    with pytest.raises(RuntimeFailure, match=r"^rpc error: code = Unknown desc = dranet cannot run$"):
        server.run_pod_sandbox(pod())
    assert [what for _, what in bench.calls] == ["run web", "stop web", "remove web"]
    assert server.plugins == ("10-dranet",)
    assert bench.join("other", "20").pods == ()


def test_an_error_at_create_fails_the_container_and_the_connection_stays(bench: Bench) -> None:
    server = bench.start()
    hooks = bench.join()
    server.run_pod_sandbox(pod())
    hooks.fail_on = "create"
    with pytest.raises(RuntimeFailure, match="dranet cannot create"):
        server.create_container("web", CONTAINER)
    assert server.plugins == ("10-dranet",)


@pytest.mark.parametrize("method", ["stop", "remove"])
def test_an_error_at_the_end_does_not_keep_the_pod(bench: Bench, method: str) -> None:
    server = bench.start()
    bench.join().fail_on = method
    server.run_pod_sandbox(pod())
    server.stop_pod_sandbox("web")
    server.remove_pod_sandbox("web")
    assert bench.join("other", "20").pods == ()


def test_a_plugin_that_is_late_is_cut_off_and_the_pod_runs_without_it(bench: Bench) -> None:
    server = bench.start(NriCapabilities(request_timeout_seconds=0.2))
    hooks = bench.join()
    released = threading.Event()
    hooks.before = lambda method: assert_set(released) if method == "run" else None
    server.run_pod_sandbox(pod())  # no error: this is what "fail open" means
    assert server.plugins == ()
    assert server.create_container("web", CONTAINER) == ()
    hooks.before = lambda _: None
    released.set()
    assert server.wait_plugins(1, SECONDS)
    assert [p.name for p in hooks.pods] == ["web"]


def assert_set(event: threading.Event) -> None:
    assert event.wait(SECONDS)


def test_a_plugin_that_hangs_up_within_a_hook_does_not_fail_the_pod(bench: Bench) -> None:
    server = bench.start()
    with socket.socket(socket.AF_UNIX) as trunk:
        hang_up = threading.Thread(target=answer_once_then_hang_up, args=(trunk, bench.path))
        hang_up.start()
        assert server.wait_plugins(1, SECONDS)
        server.run_pod_sandbox(pod())
        hang_up.join()
    assert server.plugins == ()


def answer_once_then_hang_up(trunk: socket.socket, path: Path) -> None:
    """A plugin that registers, synchronizes and dies in its first hook."""

    def handle(_service: str, method: str, _payload: bytes) -> bytes:
        if method == "StateChange":
            trunk.shutdown(socket.SHUT_RDWR)
        return b""

    trunk.connect(str(path))
    connection = TtrpcConnection(Mux(trunk), serve_stream=1, call_stream=2, handle=handle)
    request = nri_pb2.RegisterPluginRequest(plugin_name="short-lived", plugin_idx="50")
    connection.start_call(
        "nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin", request.SerializeToString(), SECONDS
    )
    with suppress(ConnectionLost):
        while True:
            connection.process(SECONDS)


def test_a_client_that_never_registers_is_cut_off_and_the_next_one_served(bench: Bench) -> None:
    server = bench.start(NriCapabilities(registration_timeout_seconds=0.1, request_timeout_seconds=SECONDS))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(bench.path))
        bench.join()
        assert silent.recv(1) == b""
    assert server.plugins == ("10-dranet",)


@pytest.mark.parametrize(("name", "index"), [("", "10"), ("dranet", "1"), ("dranet", "x1")])
def test_a_bad_name_or_index_is_refused(bench: Bench, name: str, index: str) -> None:
    bench.start()
    refused = threading.Event()

    def wait(stopping: threading.Event, _seconds: float) -> bool:
        refused.set()
        return stopping.wait(SECONDS)

    plugin = NriPlugin(bench.path, name, index, Hooks(name, []), wait=wait)
    plugin.start()
    assert refused.wait(SECONDS)
    assert "invalid" in plugin.last_failure
    plugin.stop()


def test_pods_from_before_a_restart_are_synchronized_but_send_no_events(bench: Bench) -> None:
    server = bench.start()
    hooks = bench.join()
    server.run_pod_sandbox(pod("old"))
    server.restart()
    assert server.wait_plugins(1, SECONDS)
    server.run_pod_sandbox(pod("new"))
    bench.calls.clear()
    for name in ("old", "new"):
        server.stop_pod_sandbox(name)
        server.remove_pod_sandbox(name)
    assert [p.name for p in hooks.pods] == ["old"]
    assert [what for _, what in bench.calls] == ["stop new", "remove new"]


def test_stop_does_not_wait_for_a_client_that_never_registers(bench: Bench) -> None:
    server = bench.start(NriCapabilities(registration_timeout_seconds=600))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(bench.path))
        server.stop()
        assert silent.recv(1) == b""


def test_stop_hangs_up_on_a_client_that_was_not_taken_yet(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that takes it had no time so far: the kernel would reset what is in its queue."""
    may_accept, accept = threading.Event(), NriServer._accept

    def accept_late(server: NriServer, listener: socket.socket) -> None:
        assert_set(may_accept)
        accept(server, listener)

    monkeypatch.setattr(NriServer, "_accept", accept_late)
    server = bench.start()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(bench.path))
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        while server._listener is not None:
            stopping.join(0.01)
        may_accept.set()
        stopping.join()
        assert silent.recv(1) == b""


def test_a_socket_left_by_an_earlier_runtime_is_replaced(bench: Bench) -> None:
    bench.path.touch()
    bench.start()
    bench.join()
