"""The runtime's side of NRI by hand, on a real UNIX socket: a test says message by message what it does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest
from google.protobuf.message import Message

from dranet.model.claim import Container, ContainerAdjustment, PodSandbox
from dranet.pb import nri_pb2
from dranet.wire import ConnectionLost, Mux, TtrpcConnection, TtrpcError

PLUGIN = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME = "nri.pkg.api.v1alpha1.Runtime"
SECONDS = 10.0

RUN, STOP, REMOVE = nri_pb2.RUN_POD_SANDBOX, nri_pb2.STOP_POD_SANDBOX, nri_pb2.REMOVE_POD_SANDBOX


def pod_message(name: str = "web", runtime_handler: str = "") -> nri_pb2.PodSandbox:
    namespaces = [
        nri_pb2.LinuxNamespace(type="pid", path="/proc/7/ns/pid"),
        nri_pb2.LinuxNamespace(type="network", path="/run/netns/web"),
    ]
    return nri_pb2.PodSandbox(
        id=f"sandbox-{name}",
        name=name,
        namespace="shop",
        uid=f"uid-{name}",
        annotations={"a": "b"},
        linux=nri_pb2.LinuxPodSandbox(namespaces=namespaces),
        pid=7,
        runtime_handler=runtime_handler,
    )


WEB = PodSandbox(
    id="sandbox-web",
    name="web",
    namespace="shop",
    uid="uid-web",
    netns_path="/run/netns/web",
    pid=7,
    annotations={"a": "b"},
)


class RecordingHooks:
    """Hooks that note each call; a test may put an action in front of one."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.actions: dict[str, Callable[[], None]] = {}
        self.adjustment = ContainerAdjustment()
        self.containers: tuple[Container, ...] = ()
        self.ours = True
        self._called = threading.Condition()

    def wait_for(self, name: str, count: int = 1) -> list[tuple[object, ...]]:
        """Wait until a hook was called so often; return the calls."""
        with self._called:
            assert self._called.wait_for(lambda: len(self._of(name)) >= count, SECONDS), self.calls
            return self._of(name)

    def _of(self, name: str) -> list[tuple[object, ...]]:
        return [call for call in self.calls if call[0] == name]

    def _note(self, name: str, *arguments: object) -> None:
        with self._called:
            self.calls.append((name, *arguments))
            self._called.notify_all()
        self.actions.get(name, lambda: None)()

    def connected(
        self, runtime_name: str, runtime_version: str, request_timeout_seconds: float | None
    ) -> None:
        self._note("connected", runtime_name, runtime_version, request_timeout_seconds)

    def disconnected(self, reason: str) -> None:
        self._note("disconnected", reason)

    def synchronize(self, pods: Sequence[PodSandbox], containers: Sequence[Container]) -> None:
        self.containers = tuple(containers)
        self._note("synchronize", tuple(pods))

    def run_pod_sandbox(self, pod: PodSandbox) -> bool:
        self._note("run", pod)
        return self.ours

    def stop_pod_sandbox(self, pod: PodSandbox) -> bool:
        self._note("stop", pod)
        return self.ours

    def remove_pod_sandbox(self, pod: PodSandbox) -> bool:
        self._note("remove", pod)
        return self.ours

    def create_container(self, pod: PodSandbox, container: Container) -> ContainerAdjustment:
        self._note("create", pod, container)
        return self.adjustment

    def start_container(self, pod: PodSandbox, container: Container) -> bool:
        self._note("start", pod, container)
        return self.ours


class Link:
    """One accepted connection, the runtime's end."""

    def __init__(self, trunk: socket.socket, *, configure_first: bool = False) -> None:
        self.trunk = trunk
        self.mux = Mux(trunk)
        self.registered: nri_pb2.RegisterPluginRequest | None = None
        self.refusal: TtrpcError | None = None
        self.configured: Future[bytes] | None = None
        self._configure_first = configure_first
        self.connection = TtrpcConnection(self.mux, serve_stream=2, call_stream=1, handle=self._handle)

    def _handle(self, service: str, method: str, payload: bytes) -> bytes:
        assert (service, method) == (RUNTIME, "RegisterPlugin")
        self.registered = nri_pb2.RegisterPluginRequest.FromString(payload)
        if self._configure_first:  # the answer to RegisterPlugin leaves when this returns
            self.send_configure()
        if self.refusal is not None:
            raise self.refusal
        return b""

    def send_configure(self, request_timeout: int = 2000) -> None:
        """``request_timeout`` in milliseconds; 0 is not on the wire, as before NRI 0.7."""
        request = nri_pb2.ConfigureRequest(
            runtime_name="containerd", runtime_version="2.1.9", request_timeout=request_timeout
        )
        payload = request.SerializeToString()
        self.configured = self.connection.start_call(PLUGIN, "Configure", payload, SECONDS)

    def wait_registered(self) -> nri_pb2.RegisterPluginRequest:
        while self.registered is None:
            self.connection.process(SECONDS)
        return self.registered

    def wait_configured(self) -> nri_pb2.ConfigureResponse:
        assert self.configured is not None
        while not self.configured.done():
            self.connection.process(SECONDS)
        return nri_pb2.ConfigureResponse.FromString(self.configured.result())

    def call(self, method: str, request: Message, service: str = PLUGIN) -> bytes:
        return self.connection.call(service, method, request.SerializeToString(), SECONDS)

    def synchronize(self, *pods: nri_pb2.PodSandbox, more: bool = False) -> nri_pb2.SynchronizeResponse:
        answer = self.call("Synchronize", nri_pb2.SynchronizeRequest(pods=pods, more=more))
        return nri_pb2.SynchronizeResponse.FromString(answer)

    def state_change(self, event: nri_pb2.Event.ValueType, pod: nri_pb2.PodSandbox) -> None:
        self.call("StateChange", nri_pb2.StateChangeEvent(event=event, pod=pod))

    def create_container(self, *devices: nri_pb2.LinuxDevice) -> nri_pb2.ContainerAdjustment:
        container = nri_pb2.Container(
            id="c1",
            name="main",
            pod_sandbox_id="sandbox-web",
            mounts=[nri_pb2.Mount(source="/src", destination="/dst", type="bind", options=["ro", "bind"])],
            rlimits=[nri_pb2.POSIXRlimit(type="RLIMIT_NOFILE", soft=1024, hard=2**64 - 1)],
            linux=nri_pb2.LinuxContainer(devices=devices),
        )
        request = nri_pb2.CreateContainerRequest(pod=pod_message(), container=container)
        return nri_pb2.CreateContainerResponse.FromString(self.call("CreateContainer", request)).adjust

    def wait_closed(self) -> None:
        with pytest.raises(ConnectionLost):
            self.mux.receive(SECONDS)

    def close(self) -> None:
        self.mux.close()


class Socket:
    """The runtime's listening socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(SECONDS)
        self._links: list[Link] = []

    def accept(self, *, configure_first: bool = False) -> Link:
        trunk, _ = self._listener.accept()
        trunk.settimeout(None)
        self._links.append(Link(trunk, configure_first=configure_first))
        return self._links[-1]

    def admit(self, *pods: nri_pb2.PodSandbox) -> Link:
        """The whole handshake, in the usual order."""
        link = self.accept()
        link.wait_registered()
        link.send_configure()
        link.wait_configured()
        link.synchronize(*pods)
        return link

    def close(self) -> None:
        self._listener.close()
        for link in self._links:
            link.close()
        self.path.unlink()
