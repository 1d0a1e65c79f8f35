"""The runtime's side of one NRI connection: register a plugin, synchronize it, send it events.

Differs by runtime version (:class:`NriCapabilities`). What a failure means for a pod is
``runtime_nri``; sockets are accepted there too.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from dranet.errors import ProtocolError
from dranet.pb import nri_pb2
from dranet.wire import MAX_RECEIVE_BYTES, MAX_SEND_BYTES, Code, Mux, TtrpcConnection, TtrpcError

_Answer = TypeVar("_Answer", bound=Message)

PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"
PLUGIN_STREAM = 1
RUNTIME_STREAM = 2

_ENTRY_BYTES = 16
_PART_BYTES = MAX_SEND_BYTES - 4096

_SPLIT_SYNCHRONIZE = (0, 7)
_TIMEOUTS_IN_CONFIGURE = (0, 7)
_MORE_EVENTS = (0, 10)
_VERSION_IN_CONFIGURE = (0, 12)


class EventForm(StrEnum):
    """How the events without a long-standing RPC of their own are sent."""

    STATE_CHANGE = "state-change"
    """As ``StateChange``: NRI up to 0.11, containerd up to 2.2."""
    RPC = "rpc"
    """One RPC per event, falling back to ``StateChange``: from NRI 0.12, containerd 2.3."""


@dataclass(frozen=True, slots=True)
class NriCapabilities:
    """What differs from one runtime version to the next."""

    nri_version: str = "0.8.0"
    runtime_name: str = "stand-in"
    runtime_version: str = "0"
    event_form: EventForm = EventForm.STATE_CHANGE
    stop_without_netns_path: bool = False
    """StopPodSandbox names no namespace: containerd 1.7."""
    request_timeout_seconds: float = 2.0
    """For one hook, and for all parts of one Synchronize."""
    registration_timeout_seconds: float = 5.0

    def is_at_least(self, version: tuple[int, int]) -> bool:
        """Whether the NRI version is this or a later one."""
        major, minor = self.nri_version.split(".")[:2]
        return (int(major), int(minor)) >= version

    @property
    def max_request_bytes(self) -> int:
        """Limit of one message. The oldest versions have none: containerd 1.7.24 sent 6 MB."""
        return MAX_SEND_BYTES if self.is_at_least(_SPLIT_SYNCHRONIZE) else MAX_RECEIVE_BYTES

    @property
    def event_mask(self) -> int:
        """Every event that this NRI version knows."""
        return 0x3FFF if self.is_at_least(_MORE_EVENTS) else 0x7FF


@dataclass(slots=True)
class _Registration:
    """The plugin's RegisterPlugin."""

    request: nri_pb2.RegisterPluginRequest = field(default_factory=nri_pb2.RegisterPluginRequest)
    done: bool = False
    refusal: TtrpcError | None = None

    def handle(self, service: str, method: str, payload: bytes) -> bytes:
        """Serve the plugin's only call."""
        if service != RUNTIME_SERVICE or method != "RegisterPlugin":
            raise TtrpcError(Code.UNIMPLEMENTED, f"{service}.{method} is not served here")
        try:
            self.request = nri_pb2.RegisterPluginRequest.FromString(payload)
        except DecodeError as error:
            raise TtrpcError(Code.INVALID_ARGUMENT, str(error)) from error
        self.done = True
        self.refusal = _find_refusal(self.request)
        if self.refusal is not None:
            raise self.refusal
        return b""


def _find_refusal(request: nri_pb2.RegisterPluginRequest) -> TtrpcError | None:
    index = request.plugin_idx
    if len(index) != 2 or not index.isascii() or not index.isdigit():
        return TtrpcError(Code.UNKNOWN, f"invalid plugin index {index!r}, must be 2 digits")
    if not request.plugin_name:
        return TtrpcError(Code.UNKNOWN, "invalid (empty) plugin name")
    return None


class PluginLink:
    """One connected plugin."""

    def __init__(self, trunk: socket.socket, capabilities: NriCapabilities) -> None:
        seconds = capabilities.request_timeout_seconds
        trunk.setsockopt(
            socket.SOL_SOCKET,
            socket.SO_SNDTIMEO,
            struct.pack("ll", *divmod(int(seconds * 1_000_000), 1_000_000)),
        )
        self._trunk = trunk
        self._capabilities = capabilities
        self._mux = Mux(trunk)
        self._registration = _Registration()
        self._connection = TtrpcConnection(
            self._mux,
            serve_stream=RUNTIME_STREAM,
            call_stream=PLUGIN_STREAM,
            handle=self._registration.handle,
            max_request_bytes=capabilities.max_request_bytes,
        )
        self._event_form = capabilities.event_form
        self.events = 0

    @property
    def name(self) -> str:
        request = self._registration.request
        return f"{request.plugin_idx}-{request.plugin_name}"

    @property
    def is_connected(self) -> bool:
        """Whether the plugin has not hung up."""
        poll = select.poll()
        poll.register(self._trunk, select.POLLRDHUP)
        return not poll.poll(0)

    def hang_up(self) -> None:
        """End the connection; calls that wait for this plugin fail. Any thread may call it."""
        with suppress(OSError):
            self._trunk.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._mux.close()

    def register(self) -> None:
        """Wait for RegisterPlugin, then Configure.

        Raises:
            ProtocolError: the plugin is silent, gone, or answered with nonsense.
        """
        deadline = time.monotonic() + self._capabilities.registration_timeout_seconds
        while not self._registration.done:
            self._connection.process(deadline - time.monotonic())
        if self._registration.refusal is not None:
            raise self._registration.refusal
        seconds = self._capabilities.request_timeout_seconds
        answer = self._call("Configure", self._build_configure(), nri_pb2.ConfigureResponse, seconds)
        self.events = answer.events or self._capabilities.event_mask
        unknown = self.events & ~self._capabilities.event_mask
        if unknown:
            raise ProtocolError(f"plugin {self.name} subscribes to unknown events {unknown:#x}")

    def _build_configure(self) -> nri_pb2.ConfigureRequest:
        capabilities = self._capabilities
        request = nri_pb2.ConfigureRequest(
            runtime_name=capabilities.runtime_name, runtime_version=capabilities.runtime_version
        )
        if capabilities.is_at_least(_TIMEOUTS_IN_CONFIGURE):
            request.registration_timeout = int(capabilities.registration_timeout_seconds * 1000)
            request.request_timeout = int(capabilities.request_timeout_seconds * 1000)
        if capabilities.is_at_least(_VERSION_IN_CONFIGURE):
            request.nri_version = capabilities.nri_version
        return request

    def synchronize(
        self, pods: Sequence[nri_pb2.PodSandbox], containers: Sequence[nri_pb2.Container] = ()
    ) -> None:
        """Send every pod and container, in as many messages as the size limit requires.

        Raises:
            ProtocolError: the plugin did not take it.
        """
        whole = nri_pb2.SynchronizeRequest(pods=pods, containers=containers)
        deadline = time.monotonic() + self._capabilities.request_timeout_seconds
        for part in _split(whole) if self._capabilities.is_at_least(_SPLIT_SYNCHRONIZE) else [whole]:
            remaining = deadline - time.monotonic()
            answer = self._call("Synchronize", part, nri_pb2.SynchronizeResponse, remaining)
            if answer.more != part.more:
                raise ProtocolError(f"plugin {self.name} does not understand a Synchronize in parts")

    def wants(self, event: int) -> bool:
        return bool(self.events & 1 << (event - 1))

    def send_pod_event(self, event: nri_pb2.Event.ValueType, pod: nri_pb2.PodSandbox) -> None:
        """In the form that this version and this plugin speak.

        Raises:
            ProtocolError: no good answer; a ``TtrpcError`` is the plugin's own.
        """
        seconds = self._capabilities.request_timeout_seconds
        if self._event_form is EventForm.RPC:
            try:
                self._call(_RPC_NAMES[event], nri_pb2.PodSandboxRequest(pod=pod), nri_pb2.Empty, seconds)
            except TtrpcError as error:
                if error.code != Code.UNIMPLEMENTED:
                    raise
                self._event_form = EventForm.STATE_CHANGE  # for good, as NRI 0.12 does
            else:
                return
        self._call("StateChange", nri_pb2.StateChangeEvent(event=event, pod=pod), nri_pb2.Empty, seconds)

    def start_container(self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> None:
        """Send that a container is made; same errors as :meth:`send_pod_event`."""
        seconds = self._capabilities.request_timeout_seconds
        if self._event_form is EventForm.RPC:
            request = nri_pb2.StartContainerRequest(pod=pod, container=container)
            try:
                self._call("StartContainer", request, nri_pb2.Empty, seconds)
            except TtrpcError as error:
                if error.code != Code.UNIMPLEMENTED:
                    raise
                self._event_form = EventForm.STATE_CHANGE
            else:
                return
        event = nri_pb2.StateChangeEvent(event=nri_pb2.START_CONTAINER, pod=pod, container=container)
        self._call("StateChange", event, nri_pb2.Empty, seconds)

    def create_container(
        self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container
    ) -> nri_pb2.ContainerAdjustment:
        """Ask for adjustments; same errors as :meth:`send_pod_event`."""
        request = nri_pb2.CreateContainerRequest(pod=pod, container=container)
        seconds = self._capabilities.request_timeout_seconds
        return self._call("CreateContainer", request, nri_pb2.CreateContainerResponse, seconds).adjust

    def _call(self, method: str, request: Message, answer: type[_Answer], timeout_seconds: float) -> _Answer:
        payload = self._connection.call(PLUGIN_SERVICE, method, request.SerializeToString(), timeout_seconds)
        try:
            return answer.FromString(payload)
        except DecodeError as error:
            raise ProtocolError(f"plugin {self.name}: unreadable answer to {method}: {error}") from error


_RPC_NAMES: dict[int, str] = {
    nri_pb2.RUN_POD_SANDBOX: "RunPodSandbox",
    nri_pb2.STOP_POD_SANDBOX: "StopPodSandbox",
    nri_pb2.REMOVE_POD_SANDBOX: "RemovePodSandbox",
}


def _split(whole: nri_pb2.SynchronizeRequest) -> list[nri_pb2.SynchronizeRequest]:
    """Parts that fit into one message each; one part at least."""
    parts = [nri_pb2.SynchronizeRequest()]
    room = _PART_BYTES
    for name in ("pods", "containers"):
        for entry in getattr(whole, name):
            size = entry.ByteSize() + _ENTRY_BYTES
            if size > room and room < _PART_BYTES:
                parts.append(nri_pb2.SynchronizeRequest())
                room = _PART_BYTES
            getattr(parts[-1], name).append(entry)
            room -= size
    for part in parts[:-1]:
        part.more = True
    return parts
