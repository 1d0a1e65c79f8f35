"""The NRI thread under peers and a process that go wrong: it stays, comes back, and never answers late.

The runtime's side is driven by hand over a real UNIX socket; the plugin is the real one, thread and all.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dranet import wire
from dranet.errors import KernelError
from dranet.model.claim import Container, Mount, PodSandbox
from dranet.pb import nri_pb2, ttrpc_pb2
from dranet.runtime import nri
from dranet.runtime.nri import NriListeners, NriPlugin
from dranet.wire import Code, ConnectionLost, FrameType, TtrpcError, encode_frame, encode_message
from tests.runtime.nri_peer import (
    PLUGIN,
    RUN,
    SECONDS,
    STOP,
    WEB,
    Link,
    RecordingHooks,
    Socket,
    pod_message,
)
from tests.support.processor_time import measure
from tests.support.waiting import wait_until

pytestmark = pytest.mark.process

OURS = "/var/lib/dranet/ready/claim-1"
RUNTIME_WAITS = 2.0
"""``plugin_request_timeout`` of containerd, in seconds."""


@pytest.fixture
def hooks() -> RecordingHooks:
    return RecordingHooks()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Socket]:
    listening = Socket(tmp_path / "nri.sock")
    yield listening
    listening.close()


def at_once(stopping: threading.Event, _seconds: float) -> bool:
    return stopping.wait(0.001)


def make_plugin(path: Path, hooks: RecordingHooks) -> NriPlugin:
    return NriPlugin(path, "dra.net", "10", hooks, is_our_mount=lambda source: source == OURS, wait=at_once)


@pytest.fixture
def plugin(tmp_path: Path, hooks: RecordingHooks) -> Iterator[NriPlugin]:
    """A started plugin that tries again at once."""
    made = make_plugin(tmp_path / "nri.sock", hooks)
    made.start()
    yield made
    made.stop()
    assert not made.fault, "it was told to end"


@pytest.fixture
def link(listener: Socket, plugin: NriPlugin) -> Link:
    """A connection past its handshake."""
    admitted = listener.admit()
    assert plugin.wait_ready(SECONDS)
    return admitted


# --- the thread -------------------------------------------------------------------------------------------


def ask_the_thread_to_end() -> None:
    sys.exit("a library thinks that this is a program")


def run_out_of_memory() -> None:
    raise MemoryError


@pytest.mark.parametrize("action", [ask_the_thread_to_end, run_out_of_memory])
def test_whatever_a_hook_raises_the_next_one_is_answered(
    listener: Socket, link: Link, hooks: RecordingHooks, plugin: NriPlugin, action: Callable[[], None]
) -> None:
    hooks.actions["run"] = action
    with pytest.raises((TtrpcError, ConnectionLost)):
        link.state_change(RUN, pod_message())
    if action is ask_the_thread_to_end:
        hooks.wait_for("disconnected")
        link = listener.admit()
    link.state_change(STOP, pod_message())
    assert plugin.is_ready


def test_no_memory_beside_a_connection_is_only_a_reason_to_connect_again(
    listener: Socket,
    tmp_path: Path,
    hooks: RecordingHooks,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = [MemoryError(), MemoryError()]
    real = NriPlugin._serve

    def serve(self: NriPlugin, made: nri.PluginSession) -> str:
        if failures:
            raise failures.pop()
        return real(self, made)

    monkeypatch.setattr(NriPlugin, "_serve", serve)
    plugin = make_plugin(tmp_path / "nri.sock", hooks)
    with caplog.at_level(logging.ERROR):
        plugin.start()
        listener.accept().wait_closed()
        listener.accept().wait_closed()
        listener.admit()
        assert plugin.wait_ready(SECONDS)
    plugin.stop()
    assert caplog.text.count("MemoryError") >= 2


def test_a_thread_that_cannot_be_had_at_start_ends_the_start_with_its_mend(
    tmp_path: Path, hooks: RecordingHooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(KernelError, match=r"can't start new thread \(raise the limit of processes"):
        make_plugin(tmp_path / "nri.sock", hooks).start()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_unasked_is_told_and_is_not_ready(
    tmp_path: Path, hooks: RecordingHooks, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is known that brings it about; here what waits between two attempts does."""
    deaths: list[str] = []

    def die(_stopping: threading.Event, _seconds: float) -> bool:
        raise SystemExit

    plugin = NriPlugin(
        tmp_path / "nri.sock",
        "dra.net",
        "10",
        hooks,
        listeners=NriListeners(died=lambda: deaths.append("told")),
        wait=die,
    )
    assert plugin.fault == "", "it has not begun"
    with caplog.at_level(logging.CRITICAL):
        plugin.start()
        wait_until(lambda: bool(plugin.fault), "its end is known")
    assert "the thread that answers the runtime is gone: cannot connect" in plugin.fault
    assert (deaths, plugin.is_ready) == (["told"], False)
    assert "no hook is answered any more" in caplog.text


# --- the way to the runtime -------------------------------------------------------------------------------


def make_folder(path: Path) -> None:
    path.mkdir()


def make_file(path: Path) -> None:
    path.touch()


def make_symlink_loop(path: Path) -> None:
    path.symlink_to(path)


def make_dangling_symlink(path: Path) -> None:
    path.symlink_to(path.with_name("gone"))


def make_datagram_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(path))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (make_folder, "it is no socket"),
        (make_file, "it is no socket"),
        (make_symlink_loop, "Too many levels of symbolic links"),
        (make_dangling_symlink, "No such file"),
        (make_datagram_socket, "Connection refused"),
    ],
)
def test_whatever_lies_at_the_sockets_path_it_says_so_and_finds_the_runtime_afterwards(
    tmp_path: Path, hooks: RecordingHooks, make: Callable[[Path], None], reason: str
) -> None:
    path = tmp_path / "nri.sock"
    make(path)
    plugin = make_plugin(path, hooks)
    plugin.start()
    wait_until(lambda: reason in plugin.last_failure, reason)
    assert str(path) in plugin.last_failure
    path.rmdir() if make is make_folder else path.unlink()
    listening = Socket(path)
    listening.admit()
    assert plugin.wait_ready(SECONDS)
    plugin.stop()
    listening.close()


def test_a_path_that_no_socket_can_have_is_told_and_does_not_end_it(
    tmp_path: Path, hooks: RecordingHooks
) -> None:
    plugin = make_plugin(tmp_path / ("x" * 120), hooks)
    plugin.start()
    wait_until(lambda: "path too long" in plugin.last_failure, "it says what is wrong")
    plugin.stop()


def test_a_socket_behind_a_symlink_is_as_good(
    listener: Socket, tmp_path: Path, hooks: RecordingHooks
) -> None:
    other = tmp_path / "other.sock"
    other.symlink_to(listener.path)
    plugin = make_plugin(other, hooks)
    plugin.start()
    listener.admit()
    assert plugin.wait_ready(SECONDS)
    plugin.stop()


# --- half messages ----------------------------------------------------------------------------------------


def a_request(method: str = "StateChange", payload: bytes = b"x" * 50, stream_id: int = 101) -> bytes:
    request = ttrpc_pb2.Request(service=PLUGIN, method=method, payload=payload).SerializeToString()
    return encode_message(1, encode_frame(stream_id, FrameType.REQUEST, request))


@pytest.mark.parametrize("length", [3, 8, 12, 18, 40], ids="bytes-{}".format)
def test_a_runtime_that_stops_in_the_middle_of_a_message_is_left(
    listener: Socket,
    link: Link,
    plugin: NriPlugin,
    hooks: RecordingHooks,
    monkeypatch: pytest.MonkeyPatch,
    length: int,
) -> None:
    monkeypatch.setattr(wire, "STALL_SECONDS", 0.05)
    link.trunk.sendall(a_request()[:length])
    link.wait_closed()
    hooks.wait_for("disconnected")
    assert "half a message" in plugin.last_failure
    listener.admit()
    assert plugin.wait_ready(SECONDS)


def test_a_message_that_never_ends_is_left_though_each_byte_comes_in_time(
    link: Link, plugin: NriPlugin, hooks: RecordingHooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "STALL_SECONDS", 0.1)
    link.trunk.sendall(struct.pack(">II", 1, 1 << 20))
    tick = threading.Event()
    deadline = time.monotonic() + SECONDS
    while not hooks._of("disconnected"):
        assert time.monotonic() < deadline
        try:
            link.trunk.sendall(b"\0")
        except OSError:
            break
        tick.wait(0.01)
    hooks.wait_for("disconnected")
    assert "half a message" in plugin.last_failure


def test_a_runtime_that_is_idle_between_two_messages_is_kept(
    link: Link, plugin: NriPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "STALL_SECONDS", 0.05)
    link.state_change(RUN, pod_message())
    hung_up = select.poll()
    hung_up.register(link.trunk, select.POLLIN | select.POLLRDHUP)
    assert not hung_up.poll(200), "four times as long as a message may take"
    link.state_change(STOP, pod_message())
    assert plugin.is_ready


def test_a_message_in_two_pieces_is_whole_when_the_second_one_comes(
    link: Link, hooks: RecordingHooks, plugin: NriPlugin
) -> None:
    change = nri_pb2.StateChangeEvent(event=RUN, pod=pod_message()).SerializeToString()
    whole = a_request(payload=change)
    link.trunk.sendall(whole[:30])
    link.trunk.sendall(whole[30:])
    assert hooks.wait_for("run") == [("run", WEB)]
    assert plugin.is_ready


# --- requests in odd orders -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    ["Synchronize", "StateChange", "RunPodSandbox", "StopPodSandbox", "CreateContainer", "Shutdown"],
)
def test_no_hook_is_called_before_it_knows_the_runtime(
    listener: Socket, plugin: NriPlugin, hooks: RecordingHooks, method: str
) -> None:
    link = listener.accept()
    link.wait_registered()
    with pytest.raises(TtrpcError, match="came before Configure") as caught:
        link.call(method, nri_pb2.Empty())
    assert caught.value.code == Code.FAILED_PRECONDITION
    assert hooks.calls == []
    assert not plugin.is_ready
    link.send_configure()
    link.wait_configured()
    link.synchronize()
    assert plugin.wait_ready(SECONDS)


def test_requests_that_come_while_one_is_answered_are_answered_after_it_in_order(
    link: Link, hooks: RecordingHooks
) -> None:
    answers = []
    for name in ("a", "b", "c"):
        event = nri_pb2.StateChangeEvent(event=RUN, pod=pod_message(name)).SerializeToString()
        answers.append(link.connection.start_call(PLUGIN, "StateChange", event, SECONDS))
    settled: list[int] = []
    while len(settled) < 3:
        link.connection.process(SECONDS)
        settled += [number for number, each in enumerate(answers) if each.done() and number not in settled]
    assert settled == [0, 1, 2]
    assert [call[1].name for call in hooks.wait_for("run", 3) if isinstance(call[1], PodSandbox)] == [
        "a",
        "b",
        "c",
    ]


def test_metadata_and_deadlines_of_a_request_change_nothing(link: Link, hooks: RecordingHooks) -> None:
    """containerd may send trace contexts; the field is not in our description of the message."""
    event = nri_pb2.StateChangeEvent(event=RUN, pod=pod_message()).SerializeToString()
    request = ttrpc_pb2.Request(service=PLUGIN, method="StateChange", payload=event, timeout_nano=-1)
    metadata = b"\x2a\x0b\x0a\x03key\x12\x04abcd"
    data = request.SerializeToString() + metadata * 2
    link.trunk.sendall(encode_message(1, encode_frame(101, FrameType.REQUEST, data)))
    assert hooks.wait_for("run") == [("run", WEB)]


def test_a_hook_is_not_run_again_for_a_stream_that_was_answered(link: Link, hooks: RecordingHooks) -> None:
    event = nri_pb2.StateChangeEvent(event=RUN, pod=pod_message()).SerializeToString()
    link.trunk.sendall(a_request(payload=event, stream_id=101) * 2)
    link.trunk.sendall(
        a_request(
            "StateChange", nri_pb2.StateChangeEvent(event=STOP, pod=pod_message()).SerializeToString(), 103
        )
    )
    hooks.wait_for("stop")
    assert len(hooks.wait_for("run")) == 1


def test_a_second_shutdown_or_none_makes_no_difference(
    listener: Socket, link: Link, plugin: NriPlugin
) -> None:
    for _ in range(2):
        assert link.call("Shutdown", nri_pb2.Empty()) == b""
    link.close()
    listener.admit()
    assert plugin.wait_ready(SECONDS)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(hostile=st.binary(max_size=200))
def test_whatever_a_runtime_says_the_next_one_is_served(
    listener: Socket, plugin: NriPlugin, hooks: RecordingHooks, hostile: bytes
) -> None:
    link = listener.accept()
    link.wait_registered()
    link.trunk.sendall(hostile)
    link.close()
    again = listener.admit(pod_message())
    again.state_change(RUN, pod_message())
    assert plugin.is_ready
    again.close()
    wait_until(lambda: not plugin.is_ready, "the loss is known")
    assert not plugin.fault
    hooks.calls.clear()


# --- Synchronize ------------------------------------------------------------------------------------------


def container_message(number: int, *sources: str, state: int = 3) -> nri_pb2.Container:
    return nri_pb2.Container(
        id=f"c{number}",
        name="main",
        pod_sandbox_id="sandbox-web",
        state=nri_pb2.ContainerState.ValueType(state),
        mounts=[
            nri_pb2.Mount(source=source, destination="/there", type="bind", options=["ro", "bind"])
            for source in sources
        ],
    )


def configured(listener: Socket) -> Link:
    link = listener.accept()
    link.wait_registered()
    link.send_configure()
    link.wait_configured()
    return link


def test_synchronize_tells_which_containers_run_and_which_mounts_of_ours_they_have(
    listener: Socket, plugin: NriPlugin, hooks: RecordingHooks
) -> None:
    link = configured(listener)
    containers = [
        container_message(1, "/etc/hosts", OURS, state=nri_pb2.CONTAINER_RUNNING),
        container_message(2, "/etc/hosts", state=nri_pb2.CONTAINER_CREATED),
        container_message(3, state=nri_pb2.CONTAINER_PAUSED),
    ]
    link.call("Synchronize", nri_pb2.SynchronizeRequest(pods=[pod_message()], containers=containers))
    assert plugin.wait_ready(SECONDS)
    assert hooks.containers == (
        Container("c1", "main", "sandbox-web", mounts=(Mount(OURS, "/there"),), running=True),
        Container("c2", "main", "sandbox-web"),
        Container("c3", "main", "sandbox-web", running=True),
    )


def test_of_existing_containers_no_more_is_kept_than_may_name_their_gpus(
    listener: Socket, plugin: NriPlugin, hooks: RecordingHooks
) -> None:
    given = "/var/run/nvidia-container-devices/GPU-1"
    container = container_message(1, "/etc/hosts")
    container.mounts.add(source="/dev/null", destination=given)
    container.env.extend(
        ["PATH=/bin", "SECRET=x", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=GPU-1"]
    )
    for path, minor in (("/dev/nvidia0", 0), ("/dev/null", 3)):
        container.linux.devices.add(path=path, type="c", major=195, minor=minor)
    container.CDI_devices.add(name="nvidia.com/gpu=GPU-1")
    container.annotations["cdi.k8s.io/plugin"] = "nvidia.com/gpu=GPU-1,nvidia.com/gpu=GPU-2"
    link = configured(listener)
    link.call("Synchronize", nri_pb2.SynchronizeRequest(pods=[pod_message()], containers=[container]))
    assert plugin.wait_ready(SECONDS)
    (kept,) = hooks.containers
    assert kept.env == {"NVIDIA_VISIBLE_DEVICES": "GPU-1"}, "the last one counts, as for the process"
    assert [device.path for device in kept.devices] == ["/dev/nvidia0"]
    assert [mount.destination for mount in kept.mounts] == [given]
    assert kept.cdi_devices == ("nvidia.com/gpu=GPU-1", "nvidia.com/gpu=GPU-2")


def test_containers_of_all_parts_are_told(listener: Socket, plugin: NriPlugin, hooks: RecordingHooks) -> None:
    link = configured(listener)
    for number in (1, 2, 3):
        part = nri_pb2.SynchronizeRequest(containers=[container_message(number)], more=number < 3)
        link.call("Synchronize", part)
    assert plugin.wait_ready(SECONDS)
    assert [container.id for container in hooks.containers] == ["c1", "c2", "c3"]


def test_a_pod_or_container_that_cannot_be_read_does_not_hide_the_others(
    listener: Socket, plugin: NriPlugin, hooks: RecordingHooks, caplog: pytest.LogCaptureFixture
) -> None:
    link = configured(listener)
    with caplog.at_level(logging.WARNING):
        link.call(
            "Synchronize",
            nri_pb2.SynchronizeRequest(
                pods=[nri_pb2.PodSandbox(name="nameless"), pod_message()],
                containers=[nri_pb2.Container(name="nameless"), container_message(1)],
            ),
        )
    assert plugin.wait_ready(SECONDS)
    assert hooks.wait_for("synchronize") == [("synchronize", (WEB,))]
    assert [container.id for container in hooks.containers] == ["c1"]
    assert caplog.text.count("left out of Synchronize") == 2


def test_a_synchronize_that_never_ends_takes_bounded_memory_and_the_next_one_begins_anew(
    listener: Socket, plugin: NriPlugin, hooks: RecordingHooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nri, "MAX_SYNCHRONIZE_BYTES", 20_000)
    link = configured(listener)

    def send_for_ever() -> None:
        for number in range(1000):
            link.synchronize(pod_message(f"p{number}", runtime_handler="x" * 1000), more=True)

    with pytest.raises(TtrpcError, match="over the limit of 20000 bytes") as caught:
        send_for_ever()
    assert caught.value.code == Code.RESOURCE_EXHAUSTED
    assert not plugin.is_ready
    link.synchronize(pod_message())
    assert plugin.wait_ready(SECONDS)
    assert hooks.wait_for("synchronize") == [("synchronize", (WEB,))]


def test_parts_of_a_connection_that_was_lost_are_not_told_to_the_next_one(
    listener: Socket, plugin: NriPlugin, hooks: RecordingHooks
) -> None:
    link = configured(listener)
    link.synchronize(pod_message("lost"), more=True)
    link.close()
    listener.admit(pod_message())
    assert plugin.wait_ready(SECONDS)
    assert hooks.wait_for("synchronize") == [("synchronize", (WEB,))]


def test_three_thousand_pods_are_synchronized_while_the_runtime_waits(
    listener: Socket, plugin: NriPlugin, hooks: RecordingHooks
) -> None:
    link = configured(listener)
    pods = [pod_message(f"p{number}") for number in range(3000)]
    mounts = [f"/var/lib/kubelet/pods/x/volumes/{number}" for number in range(15)]
    containers = [container_message(number, *mounts, OURS) for number in range(6000)]
    parts = [
        nri_pb2.SynchronizeRequest(pods=pods[part::10], containers=containers[part::10], more=part < 9)
        for part in range(10)  # of less than 4 MiB each
    ]

    def synchronize() -> None:
        for part in parts:
            link.call("Synchronize", part)

    assert measure(synchronize) < 400, "of this process, both sides: some two seconds, as the runtime waits"
    assert plugin.wait_ready(SECONDS)
    (told,) = [call[1] for call in hooks.wait_for("synchronize")]
    assert isinstance(told, tuple)
    assert (len(told), len(hooks.containers)) == (3000, 6000)


# --- a process that is busy with everything else ----------------------------------------------------------

BUSY = """
import asyncio, socket, struct, sys, threading
from pathlib import Path
from dranet.driver.executor import run_with_deadline
from dranet.model.claim import ContainerAdjustment
from dranet.runtime.nri import NriPlugin

netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
GET_LOOPBACK = struct.pack("=IHHIIBBHiIIi", 32, 18, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0)

class Hooks:
    def connected(self, *_): pass
    def disconnected(self, _): pass
    def synchronize(self, *_): pass
    def run_pod_sandbox(self, pod):
        run_with_deadline(ask_the_kernel, 1.2, "asking the kernel")
        return True
    stop_pod_sandbox = remove_pod_sandbox = run_pod_sandbox
    def create_container(self, *_): return ContainerAdjustment()

def ask_the_kernel():
    for _ in range(100):  # about what an attach sends
        netlink.send(GET_LOOPBACK)
        netlink.recv(65536)

def compute():
    while True:
        sum(range(1000))

plugin = NriPlugin(Path(sys.argv[1]), "busy", "10", Hooks())
plugin.start()
for _ in range(8):
    threading.Thread(target=compute, daemon=True).start()

async def saturate():
    while True:
        sum(range(1000))
        await asyncio.sleep(0)

asyncio.run(saturate())
"""


def test_threads_of_the_process_take_turns_often_from_the_start(tmp_path: Path) -> None:
    """What the test below sees the effect of, on some machines more than on others."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)  # Python's default
    plugin = make_plugin(tmp_path / "nri.sock", RecordingHooks())
    try:
        plugin.start()
        assert sys.getswitchinterval() == pytest.approx(0.0005)
    finally:
        plugin.stop()
        sys.setswitchinterval(before)


def test_a_hook_is_answered_in_time_though_loop_and_threads_of_the_driver_never_rest(
    listener: Socket,
) -> None:
    """A process of its own with the hook's usual hundred questions to the kernel; the peer is another one.

    A machine that stands still for a moment may use up the hook's time. Its error is an answer, too."""
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", BUSY, str(listener.path)], os.environ)
    try:
        link = listener.admit()
        took: list[float] = []
        late: list[str] = []
        for number in range(10):
            begin = time.monotonic()
            try:
                link.state_change(RUN, pod_message(str(number)))
            except TtrpcError as error:
                late.append(str(error))
            took.append(time.monotonic() - begin)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    assert max(took) < 0.85 * RUNTIME_WAITS, took
    assert all("still asking the kernel" in error for error in late), late
    assert len(late) <= 1, (late, took)
