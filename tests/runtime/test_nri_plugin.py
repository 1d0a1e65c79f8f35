"""The NRI plugin against a hand-driven runtime on a real UNIX socket.

The runtime's side here is thin on purpose: each test says message by message what the runtime does, in orders
that a well-behaved one rarely shows. The plugin is the real one, thread and all.
"""

from __future__ import annotations

import errno
import logging
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet.errors import DeviceError
from dranet.model.claim import (
    MEMLOCK,
    UNLIMITED,
    Container,
    ContainerAdjustment,
    MemoryPolicy,
    Mount,
    PodSandbox,
    Rlimit,
)
from dranet.model.facts import CharDevice
from dranet.pb import nri_pb2, ttrpc_pb2
from dranet.runtime.nri import EventForm, NriListeners, NriPlugin, RuntimeCapabilities, backoff_delays
from dranet.wire import Code, ConnectionLost, FrameType, TtrpcError, encode_frame, encode_message
from tests.runtime.nri_peer import (
    PLUGIN,
    REMOVE,
    RUN,
    SECONDS,
    STOP,
    WEB,
    Link,
    RecordingHooks,
    Socket,
    pod_message,
)

pytestmark = pytest.mark.socket


class Observations(list[tuple[str, str]]):
    """What the metrics would hear, without the times."""

    def __call__(self, method: str, outcome: str, seconds: float) -> None:
        assert seconds >= 0
        self.append((method, str(outcome)))


@pytest.fixture
def hooks() -> RecordingHooks:
    return RecordingHooks()


@pytest.fixture
def observations() -> Observations:
    return Observations()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Socket]:
    listening = Socket(tmp_path / "nri.sock")
    yield listening
    listening.close()


@pytest.fixture
def plugin(tmp_path: Path, hooks: RecordingHooks, observations: Observations) -> Iterator[NriPlugin]:
    """A started plugin that tries again at once."""
    plugin = NriPlugin(
        tmp_path / "nri.sock",
        "dra.net",
        "10",
        hooks,
        listeners=NriListeners(observations),
        is_our_mount=lambda source: source == "/src",
        wait=lambda stopping, _seconds: stopping.wait(0.001),
    )
    plugin.start()
    yield plugin
    plugin.stop()
    assert "stopped" in repr(plugin)


@pytest.fixture
def link(listener: Socket, plugin: NriPlugin) -> Link:
    """A connection past its handshake."""
    admitted = listener.admit()
    assert plugin.wait_ready(SECONDS)
    return admitted


@pytest.mark.parametrize("configure_first", [False, True])
def test_it_registers_whichever_comes_first_configure_or_the_answer(
    listener: Socket, plugin: NriPlugin, hooks: RecordingHooks, configure_first: bool
) -> None:
    link = listener.accept(configure_first=configure_first)
    registered = link.wait_registered()
    assert (registered.plugin_name, registered.plugin_idx) == ("dra.net", "10")
    if not configure_first:
        link.send_configure()
    # Run, stop, remove, create, start; nothing that a runtime may not know.
    assert link.wait_configured().events == 0b101111
    assert hooks.calls == [("connected", "containerd", "2.1.9", 2.0)]
    assert not plugin.is_ready
    link.synchronize()
    assert plugin.wait_ready(SECONDS)


@pytest.mark.parametrize(("milliseconds", "seconds"), [(5500, 5.5), (0, None), (-1, None)])
@pytest.mark.usefixtures("plugin")
@pytest.mark.smoke
def test_the_hooks_are_told_how_long_the_runtime_waits(
    listener: Socket, hooks: RecordingHooks, milliseconds: int, seconds: float | None
) -> None:
    link = listener.accept()
    link.wait_registered()
    link.send_configure(milliseconds)
    link.wait_configured()
    assert hooks.wait_for("connected") == [("connected", "containerd", "2.1.9", seconds)]


def test_it_is_ready_only_between_synchronize_and_the_loss_of_the_connection(
    link: Link, plugin: NriPlugin, hooks: RecordingHooks
) -> None:
    states = [plugin.is_ready]
    link.close()
    assert hooks.wait_for("disconnected") == [("disconnected", "the peer closed the connection")]
    states.append(plugin.is_ready)
    assert states == [True, False]
    assert plugin.last_failure == "the peer closed the connection"


def test_synchronize_tells_every_pod_running_or_stopped(
    listener: Socket, plugin: NriPlugin, hooks: RecordingHooks
) -> None:
    stopped = nri_pb2.PodSandbox(id="s2", name="old", namespace="shop", uid="u2")
    listener.admit(pod_message(), stopped)
    assert plugin.wait_ready(SECONDS)
    told = hooks.wait_for("synchronize")[0][1]
    assert told == (WEB, PodSandbox(id="s2", name="old", namespace="shop", uid="u2"))
    assert isinstance(told, tuple)
    assert [pod.running for pod in told] == [True, False]


def test_synchronize_in_parts_is_collected_and_told_once(
    listener: Socket, plugin: NriPlugin, hooks: RecordingHooks
) -> None:
    link = listener.accept()
    link.wait_registered()
    link.send_configure()
    link.wait_configured()
    assert link.synchronize(pod_message("a"), pod_message("b"), more=True).more
    assert link.synchronize(pod_message("c"), more=True).more
    assert not plugin.is_ready
    assert not link.synchronize(pod_message("d")).more
    assert plugin.wait_ready(SECONDS)
    (told,) = [call[1] for call in hooks.wait_for("synchronize")]
    assert isinstance(told, tuple)
    assert [pod.name for pod in told] == ["a", "b", "c", "d"]


def test_a_later_synchronize_starts_from_nothing(link: Link, hooks: RecordingHooks) -> None:
    link.synchronize(pod_message("only"))
    told = hooks.wait_for("synchronize", count=2)[1][1]
    assert isinstance(told, tuple)
    assert [pod.name for pod in told] == ["only"]


def test_pod_events_come_as_state_changes(link: Link, hooks: RecordingHooks) -> None:
    for event in (RUN, STOP, REMOVE):
        link.state_change(event, pod_message())
    assert hooks.calls[2:] == [("run", WEB), ("stop", WEB), ("remove", WEB)]


def test_pod_events_come_as_one_rpc_each(link: Link, hooks: RecordingHooks) -> None:
    for method in ("RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"):
        assert link.call(method, nri_pb2.PodSandboxRequest(pod=pod_message())) == b""
    assert hooks.calls[2:] == [("run", WEB), ("stop", WEB), ("remove", WEB)]


def test_an_event_that_nobody_asked_for_is_acknowledged(link: Link, hooks: RecordingHooks) -> None:
    link.call("StateChange", nri_pb2.StateChangeEvent(event=nri_pb2.CREATE_CONTAINER))
    assert [call[0] for call in hooks.calls] == ["connected", "synchronize"]


def test_a_pod_on_host_networking_has_no_netns_path(link: Link, hooks: RecordingHooks) -> None:
    pod = pod_message()
    pod.linux.namespaces.pop()
    link.state_change(RUN, pod)
    (call,) = hooks.wait_for("run")
    assert isinstance(call[1], PodSandbox)
    assert call[1].netns_path == ""


def test_an_adjustment_reaches_the_runtime_in_its_words(link: Link, hooks: RecordingHooks) -> None:
    hooks.adjustment = ContainerAdjustment(
        devices=(
            CharDevice("/dev/infiniband/uverbs0", 231, 192),
            CharDevice("/dev/infiniband/umad0", 231, 0, file_mode=0o600),
        ),
        env=(("NCCL_IB_HCA", "mlx5_0"),),
        mounts=(Mount("/var/lib/x", "/etc/x"),),
        rlimits=(Rlimit(MEMLOCK, soft=1 << 30, hard=UNLIMITED),),
    )
    adjust = link.create_container()
    first, second = adjust.linux.devices
    assert first == nri_pb2.LinuxDevice(path="/dev/infiniband/uverbs0", type="c", major=231, minor=192)
    assert not first.HasField("file_mode"), "the OCI runtime chooses"
    assert (second.path, second.file_mode.value) == ("/dev/infiniband/umad0", 0o600)
    assert list(adjust.rlimits) == [nri_pb2.POSIXRlimit(type="RLIMIT_MEMLOCK", soft=1 << 30, hard=2**64 - 1)]
    assert list(adjust.env) == [nri_pb2.KeyValue(key="NCCL_IB_HCA", value="mlx5_0")]
    assert list(adjust.mounts) == [
        nri_pb2.Mount(source="/var/lib/x", destination="/etc/x", type="bind", options=["ro", "bind"])
    ]
    assert hooks.wait_for("create") == [
        (
            "create",
            WEB,
            Container(
                "c1",
                "main",
                "sandbox-web",
                mounts=(Mount("/src", "/dst"),),
                rlimits=(Rlimit("RLIMIT_NOFILE", soft=1024, hard=UNLIMITED),),
            ),
        )
    ]


def test_memory_reaches_the_runtime_in_its_words_and_is_left_alone_otherwise(
    link: Link, hooks: RecordingHooks
) -> None:
    hooks.adjustment = ContainerAdjustment(memory_nodes="0-1,3")
    adjust = link.create_container()
    assert adjust.linux.resources.cpu.mems == "0-1,3"
    assert not adjust.linux.HasField("memory_policy")
    hooks.adjustment = ContainerAdjustment(memory_policy=MemoryPolicy("MPOL_INTERLEAVE", "0,1"))
    adjust = link.create_container()
    assert not adjust.linux.HasField("resources")
    # Field 12 of LinuxContainerAdjustment: mode 1 = 3 (MPOL_INTERLEAVE), nodes 2 = "0,1".
    assert adjust.linux.SerializeToString() == bytes.fromhex("620708031203302c31")


def test_a_container_is_told_with_the_devices_that_plugins_before_us_add(
    link: Link, hooks: RecordingHooks
) -> None:
    link.create_container(
        nri_pb2.LinuxDevice(path="/dev/infiniband/uverbs0", type="c", major=231, minor=192),
        nri_pb2.LinuxDevice(path="/dev/sda", type="b", major=8),
    )
    ((_, _, container),) = hooks.wait_for("create")
    assert isinstance(container, Container)
    assert container.devices == (CharDevice("/dev/infiniband/uverbs0", 231, 192),)


def test_traits_are_what_the_runtime_has_shown(plugin: NriPlugin, listener: Socket) -> None:
    assert plugin.capabilities == RuntimeCapabilities()
    link = listener.admit()
    introduced = RuntimeCapabilities("containerd", "2.1.9", 2.0)
    assert plugin.capabilities == introduced
    link.state_change(RUN, pod_message())
    assert plugin.capabilities == replace(introduced, event_form=EventForm.STATE_CHANGE)
    link.call("RunPodSandbox", nri_pb2.PodSandboxRequest(pod=pod_message()))
    assert plugin.capabilities == replace(introduced, event_form=EventForm.OWN_CALL)
    link.create_container()
    assert plugin.capabilities == replace(introduced, event_form=EventForm.OWN_CALL, shows_our_mounts=True)
    link.close()
    later = listener.accept()
    later.wait_registered()
    assert plugin.capabilities.shows_our_mounts, "of the last connection until the next one has begun"
    later.send_configure(request_timeout=0)
    later.wait_configured()
    assert plugin.capabilities == RuntimeCapabilities("containerd", "2.1.9", None)


def test_an_adjustment_of_more_than_4096_bytes_arrives_whole(link: Link, hooks: RecordingHooks) -> None:
    hooks.adjustment = ContainerAdjustment(env=(("TOPOLOGY", "x" * 100_000),))
    assert link.create_container().env[0].value == "x" * 100_000


@pytest.mark.parametrize(
    ("service", "method"),
    [
        (PLUGIN, "PostCreateContainer"),
        (PLUGIN, "UpdateContainer"),
        (PLUGIN, ""),
        ("other.Service", "Configure"),
    ],
)
def test_what_it_does_not_serve_is_unimplemented(link: Link, service: str, method: str) -> None:
    with pytest.raises(TtrpcError) as caught:
        link.call(method, nri_pb2.Empty(), service=service)
    assert caught.value.code == Code.UNIMPLEMENTED


@pytest.mark.parametrize(
    "method", ["Configure", "Synchronize", "StateChange", "RunPodSandbox", "CreateContainer"]
)
def test_an_unreadable_request_is_an_invalid_argument(link: Link, method: str) -> None:
    with pytest.raises(TtrpcError) as caught:
        link.connection.call(PLUGIN, method, b"\xff\xff\xff", SECONDS)
    assert caught.value.code == Code.INVALID_ARGUMENT


def test_a_pod_without_an_id_is_refused(link: Link, hooks: RecordingHooks) -> None:
    with pytest.raises(TtrpcError, match="without an id"):
        link.state_change(RUN, nri_pb2.PodSandbox(name="nameless"))
    assert not hooks._of("run")


def raise_key_error() -> None:
    raise KeyError("no such key")


def raise_busy() -> None:
    raise DeviceError("NIC eth1 is busy", hint="wait for pod shop/db")


def test_a_named_error_fails_the_pod_with_its_text_and_the_connection_stays(
    link: Link, hooks: RecordingHooks, plugin: NriPlugin
) -> None:
    hooks.actions["run"] = raise_busy
    with pytest.raises(TtrpcError, match=r"^NIC eth1 is busy \(wait for pod shop/db\)$"):
        link.state_change(RUN, pod_message())
    hooks.actions["create"] = raise_busy
    with pytest.raises(TtrpcError, match="NIC eth1 is busy"):
        link.create_container()
    link.state_change(STOP, pod_message())
    assert plugin.is_ready


def test_a_bug_in_a_hook_fails_the_pod_and_the_connection_stays(
    link: Link, hooks: RecordingHooks, plugin: NriPlugin, caplog: pytest.LogCaptureFixture
) -> None:
    hooks.actions["run"] = raise_key_error
    with caplog.at_level(logging.ERROR), pytest.raises(TtrpcError, match="no such key") as caught:
        link.state_change(RUN, pod_message())
    assert caught.value.code == Code.INTERNAL
    assert [record.exc_info is not None for record in caplog.records] == [True]
    link.state_change(STOP, pod_message())
    assert plugin.is_ready


def test_shutdown_is_acknowledged(link: Link) -> None:
    assert link.call("Shutdown", nri_pb2.Empty()) == b""


def test_each_hook_is_observed_under_one_name_whichever_way_it_came(
    link: Link, hooks: RecordingHooks, observations: Observations
) -> None:
    observations.clear()
    link.state_change(RUN, pod_message())
    link.call("RunPodSandbox", nri_pb2.PodSandboxRequest(pod=pod_message()))
    hooks.ours = False
    link.state_change(STOP, pod_message())
    link.create_container()
    hooks.actions["remove"] = raise_busy
    with pytest.raises(TtrpcError):
        link.state_change(REMOVE, pod_message())
    assert observations == [
        ("RunPodSandbox", "success"),
        ("RunPodSandbox", "success"),
        ("StopPodSandbox", "noop"),
        ("CreateContainer", "noop"),
        ("RemovePodSandbox", "failed"),
    ]


def test_a_connection_lost_within_a_hook_is_made_anew_and_synchronized(
    listener: Socket, link: Link, hooks: RecordingHooks, plugin: NriPlugin
) -> None:
    hooks.actions["run"] = link.close
    request = nri_pb2.StateChangeEvent(event=RUN, pod=pod_message()).SerializeToString()
    link.connection.start_call(PLUGIN, "StateChange", request, SECONDS)
    hooks.wait_for("disconnected")
    listener.admit(pod_message())
    assert plugin.wait_ready(SECONDS)
    assert [call[0] for call in hooks.calls[2:]] == ["run", "disconnected", "connected", "synchronize"]


def test_it_finds_the_new_socket_of_a_restarted_runtime(
    listener: Socket, hooks: RecordingHooks, plugin: NriPlugin, tmp_path: Path
) -> None:
    listener.admit()
    listener.close()
    hooks.wait_for("disconnected")
    again = Socket(tmp_path / "nri.sock")
    again.admit()
    assert plugin.wait_ready(SECONDS)
    again.close()
    listener.path.touch()  # for the fixture, which removes it


def test_a_stale_socket_file_that_nobody_listens_on_is_only_a_reason_to_wait(
    tmp_path: Path, hooks: RecordingHooks
) -> None:
    path = tmp_path / "nri.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    waited = threading.Event()

    def wait(stopping: threading.Event, _seconds: float) -> bool:
        waited.set()
        return stopping.wait(0.001)

    plugin = NriPlugin(path, "dra.net", "10", hooks, wait=wait)
    plugin.start()
    assert waited.wait(SECONDS)
    assert "Connection refused" in plugin.last_failure
    path.unlink()
    listening = Socket(path)
    listening.admit()
    assert plugin.wait_ready(SECONDS)
    plugin.stop()
    listening.close()


def test_a_refused_registration_is_tried_again(
    listener: Socket, plugin: NriPlugin, hooks: RecordingHooks
) -> None:
    link = listener.accept()
    link.refusal = TtrpcError(Code.UNKNOWN, "invalid plugin index")
    link.wait_registered()
    link.wait_closed()
    listener.admit()
    assert plugin.wait_ready(SECONDS)
    assert not hooks._of("disconnected")  # nobody had been told of that runtime


def test_an_error_in_synchronize_is_answered_and_leaves_it_unready(
    listener: Socket, plugin: NriPlugin, hooks: RecordingHooks
) -> None:
    hooks.actions["synchronize"] = raise_busy
    link = listener.accept()
    link.wait_registered()
    link.send_configure()
    link.wait_configured()
    with pytest.raises(TtrpcError, match="NIC eth1 is busy"):
        link.synchronize()
    assert not plugin.is_ready


def test_a_peer_that_speaks_no_mux_is_left(listener: Socket, plugin: NriPlugin) -> None:
    link = listener.accept()
    link.trunk.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    listener.admit()
    assert plugin.wait_ready(SECONDS)
    assert "NRI frame of" in plugin.last_failure


def test_a_bug_in_the_disconnected_hook_does_not_end_the_thread(
    listener: Socket, link: Link, plugin: NriPlugin, hooks: RecordingHooks, caplog: pytest.LogCaptureFixture
) -> None:
    hooks.actions["disconnected"] = raise_key_error
    with caplog.at_level(logging.ERROR):
        link.close()
        hooks.wait_for("disconnected")
        listener.admit()
        assert plugin.wait_ready(SECONDS)
    assert "disconnected hook" in caplog.text


def test_stop_lets_the_hook_in_progress_answer(link: Link, plugin: NriPlugin, hooks: RecordingHooks) -> None:
    go_on = threading.Event()
    hooks.actions["run"] = lambda: assert_set(go_on)
    request = nri_pb2.StateChangeEvent(event=RUN, pod=pod_message()).SerializeToString()
    answer = link.connection.start_call(PLUGIN, "StateChange", request, SECONDS)
    hooks.wait_for("run")
    stopping = threading.Thread(target=plugin.stop)
    stopping.start()
    go_on.set()
    while not answer.done():
        link.connection.process(SECONDS)
    assert answer.result() == b""
    link.wait_closed()
    stopping.join()
    assert not hooks._of("disconnected")


def assert_set(event: threading.Event) -> None:
    assert event.wait(SECONDS)


def test_stop_returns_even_if_a_hook_is_stuck(
    link: Link, plugin: NriPlugin, hooks: RecordingHooks, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()
    hooks.actions["run"] = lambda: assert_set(go_on)
    request = nri_pb2.StateChangeEvent(event=RUN, pod=pod_message()).SerializeToString()
    link.connection.start_call(PLUGIN, "StateChange", request, SECONDS)
    hooks.wait_for("run")
    with caplog.at_level(logging.ERROR):
        plugin.stop(timeout_seconds=0.01)
    assert "still running" in caplog.text
    go_on.set()


def test_waiting_for_a_runtime_that_is_not_there_ends_at_stop(tmp_path: Path, hooks: RecordingHooks) -> None:
    waiting = threading.Event()

    def wait(stopping: threading.Event, _seconds: float) -> bool:
        waiting.set()
        return stopping.wait(SECONDS)

    plugin = NriPlugin(tmp_path / "nowhere.sock", "dra.net", "10", hooks, wait=wait)
    plugin.start()
    assert waiting.wait(SECONDS)
    plugin.stop()
    assert not plugin._thread.is_alive()
    assert hooks.calls == []


def test_stopping_a_plugin_that_never_started_is_fine(tmp_path: Path, hooks: RecordingHooks) -> None:
    NriPlugin(tmp_path / "nri.sock", "dra.net", "10", hooks).stop()


def test_a_missing_runtime_is_logged_once_however_often_it_is_tried(
    tmp_path: Path, hooks: RecordingHooks, caplog: pytest.LogCaptureFixture
) -> None:
    delays: list[float] = []
    enough = threading.Event()

    def wait(_stopping: threading.Event, seconds: float) -> bool:
        delays.append(seconds)
        if len(delays) == 8:
            enough.set()
        return len(delays) == 8

    plugin = NriPlugin(tmp_path / "nri.sock", "dra.net", "10", hooks, wait=wait)
    with caplog.at_level(logging.INFO):
        plugin.start()
        assert enough.wait(SECONDS)
        plugin.stop()
    assert caplog.text.count("No such file") == 1
    for delay, nominal in zip(delays, (0.1, 0.2, 0.5, 1, 2, 5, 5, 5), strict=True):
        assert 0.8 * nominal <= delay <= 1.2 * nominal


def test_no_two_series_of_delays_move_in_step() -> None:
    one, other = backoff_delays(), backoff_delays()
    assert [next(one) for _ in range(6)] != [next(other) for _ in range(6)]


def test_the_delays_start_over_after_a_connection_that_worked(tmp_path: Path, hooks: RecordingHooks) -> None:
    delays: list[float] = []

    def wait(stopping: threading.Event, seconds: float) -> bool:
        delays.append(seconds)
        return stopping.wait(0.001)

    listening = Socket(tmp_path / "nri.sock")
    plugin = NriPlugin(listening.path, "dra.net", "10", hooks, wait=wait)
    plugin.start()
    for _ in range(3):
        listening.accept().close()
    listening.admit().close()
    listening.admit()
    plugin.stop()
    listening.close()
    assert delays[2] > 0.3
    assert delays[3] < 0.13


def test_a_large_synchronize_in_one_message_is_taken(
    listener: Socket, plugin: NriPlugin, hooks: RecordingHooks
) -> None:
    """containerd 1.7.24 sent 6 MB in one message."""
    link = listener.accept()
    link.wait_registered()
    link.send_configure()
    link.wait_configured()
    pods = [pod_message(f"p{number}", runtime_handler="x" * 150_000) for number in range(40)]
    request = ttrpc_pb2.Request(
        service=PLUGIN,
        method="Synchronize",
        payload=nri_pb2.SynchronizeRequest(pods=pods).SerializeToString(),
    ).SerializeToString()
    header = encode_frame(3, FrameType.REQUEST, b"")[4:]
    link.trunk.sendall(encode_message(1, len(request).to_bytes(4, "big") + header + request))
    assert plugin.wait_ready(SECONDS)
    told = hooks.wait_for("synchronize")[0][1]
    assert isinstance(told, tuple)
    assert len(told) == 40


def test_a_runtime_that_never_synchronizes_is_left(
    tmp_path: Path, hooks: RecordingHooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dranet.runtime.nri.REGISTRATION_SECONDS", 0.05)
    listening = Socket(tmp_path / "nri.sock")
    left = threading.Event()

    def wait(stopping: threading.Event, _seconds: float) -> bool:
        left.set()
        return stopping.wait(SECONDS)

    plugin = NriPlugin(listening.path, "dra.net", "10", hooks, wait=wait)
    plugin.start()
    link = listening.accept()
    with suppress(ConnectionLost):  # it may have left before we come to answer
        link.wait_registered()
    assert left.wait(SECONDS)
    assert re.fullmatch(r"the runtime did not (register|synchronize) us within 0.05 s", plugin.last_failure)
    plugin.stop()
    listening.close()


def test_it_outlives_a_shortage_of_descriptors(
    tmp_path: Path, hooks: RecordingHooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [OSError(errno.EMFILE, "Too many open files")]
    real = socket.socket

    def open_socket(*arguments: int) -> socket.socket:
        if refusals:
            raise refusals.pop()
        return real(*arguments)

    attempts: list[str] = []

    def wait(stopping: threading.Event, _seconds: float) -> bool:
        attempts.append(short.last_failure)
        return stopping.is_set() or len(attempts) == 2

    short = NriPlugin(tmp_path / "nri.sock", "dra.net", "10", hooks, wait=wait)
    monkeypatch.setattr("dranet.runtime.nri.socket.socket", open_socket)
    short._run()
    assert "Too many open files" in attempts[0]
    assert "No such file" in attempts[1]


def test_the_start_of_a_container_is_told_in_both_forms(
    listener: Socket, plugin: NriPlugin, hooks: RecordingHooks
) -> None:
    link = listener.admit()
    assert plugin.wait_ready(SECONDS)
    pod = nri_pb2.PodSandbox(id="s1", name="p", namespace="n", uid="u")
    container = nri_pb2.Container(id="c1", name="main", pod_sandbox_id="s1")
    own = nri_pb2.StartContainerRequest(pod=pod, container=container)
    event = nri_pb2.StateChangeEvent(event=nri_pb2.START_CONTAINER, pod=pod, container=container)
    for method, request in (("StartContainer", own), ("StateChange", event)):
        link.call(method, request)
    sandbox = PodSandbox("s1", "p", "n", "u")
    assert hooks.wait_for("start", 2) == [("start", sandbox, Container("c1", "main", "s1"))] * 2
