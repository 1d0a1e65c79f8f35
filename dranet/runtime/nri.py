"""The NRI plugin: one operating-system thread that stays connected to the container runtime.

The runtime makes a new socket at each start, sends one request at a time and waits two seconds for the
answer, with every other pod of the node behind it. So hooks run inline, on a thread of their own that nothing
else in the driver makes late: a late answer lets the pod start without its NIC."""

from __future__ import annotations

import errno
import logging
import random
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message
from msgspec import Struct
from msgspec.structs import replace

from dranet.errors import KernelError, ProtocolError
from dranet.model.claim import Container, ContainerAdjustment, PodSandbox
from dranet.pb import nri_pb2
from dranet.runtime.containers import build_adjustment, parse_container, parse_listed_container, parse_pod
from dranet.telemetry import Outcome
from dranet.wire import (
    MAX_RECEIVE_BYTES,
    Code,
    ConnectionLost,
    DeadlineExceeded,
    Mux,
    TtrpcConnection,
    TtrpcError,
)

log = logging.getLogger(__name__)

SEND_TIMEOUT_SECONDS = 2
"""A runtime that does not take our answer for this long has given us up already."""

TURN_SECONDS = 0.0005
"""How long a thread of this process may compute while another one waits for its turn (Python's default is ten
times that). A hook makes a hundred system calls and asks for a turn after each: with eight threads at work it
took up to 1.7 s by the default, and takes 0.1 s by this."""

_BACKOFF_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_JITTER = 0.2

Wait = Callable[[threading.Event, float], bool]
"""Wait for the event or the seconds, whichever is first; true when it was the event."""


class EventForm(StrEnum):
    STATE_CHANGE = "StateChange"
    """One call for all events (before NRI 0.12)."""
    OWN_CALL = "a call for each event"


class RuntimeCapabilities(Struct, frozen=True):
    """Capabilities of the runtime on the present connection, or on the last one."""

    name: str = ""
    """Empty until the first connection."""
    version: str = ""
    request_timeout_seconds: float | None = None
    """How long it waits for a hook; ``None`` where it is not sent (before NRI 0.7)."""
    event_form: EventForm | None = None
    """``None`` until it has reported a pod."""
    shows_our_mounts: bool = False
    """A container has come with a mount of one of our CDI devices: it reads our CDI specs, and plugins see
    what they add. False may only mean that no such container came yet."""
    nri_version: str = ""
    """Empty where it is not sent (before NRI 0.12)."""


PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"
PLUGIN_STREAM = 1
RUNTIME_STREAM = 2

REGISTRATION_SECONDS = 30.0
"""How long registration and Synchronize may take. The runtime accepts plugins one after another and gives a
silent one 5 seconds, so a few of those in front of us are normal."""

MAX_SYNCHRONIZE_BYTES = MAX_RECEIVE_BYTES
"""All parts of one Synchronize together; 250 pods with annotations of 256 KiB each would fit."""


class RuntimeHooks(Protocol):
    """Called on the NRI thread, one call at a time. A ``DranetError`` is answered as an error, with its text,
    and the runtime then fails the pod or the container (Stop and Remove go on regardless). The pod hooks
    return whether the pod was any of the driver's business, for the metrics. Hooks must be idempotent: two
    copies of the driver are both called during a rolling update."""

    def connected(
        self, runtime_name: str, runtime_version: str, request_timeout_seconds: float | None
    ) -> None:
        """The runtime introduced itself; Synchronize follows. It waits ``request_timeout_seconds`` for the
        answer to a hook; ``None`` where it does not send it (before NRI 0.7)."""

    def disconnected(self, reason: str) -> None:
        """The connection that ``connected`` announced is lost (not by ``stop``); it is being made again."""

    def synchronize(self, pods: Sequence[PodSandbox], containers: Sequence[Container]) -> None:
        """Every pod that exists, stopped ones included (``pid`` 0), and the containers that are created or
        running. These have only names, state and the mounts of our CDI devices: a node may have tens
        of thousands of others. Must be quick: defer the work."""

    def run_pod_sandbox(self, pod: PodSandbox) -> bool: ...

    def stop_pod_sandbox(self, pod: PodSandbox) -> bool: ...

    def remove_pod_sandbox(self, pod: PodSandbox) -> bool: ...

    def create_container(self, pod: PodSandbox, container: Container) -> ContainerAdjustment: ...

    def start_container(self, pod: PodSandbox, container: Container) -> bool:
        """The container is made, its mounts included, and its process is about to run. It has only the name
        and the id."""


Observer = Callable[[str, str, float], None]
"""Called after each hook with its NRI name, whichever way it was called, an ``Outcome``, and the seconds."""

_POD_EVENTS: Mapping[int, str] = {
    nri_pb2.RUN_POD_SANDBOX: "RunPodSandbox",
    nri_pb2.STOP_POD_SANDBOX: "StopPodSandbox",
    nri_pb2.REMOVE_POD_SANDBOX: "RemovePodSandbox",
}
"""Events that come as ``StateChange``, or (NRI 0.12 and later) as an RPC of this name."""
SUBSCRIPTION = sum(
    1 << (event - 1) for event in (*_POD_EVENTS, nri_pb2.CREATE_CONTAINER, nri_pb2.START_CONTAINER)
)
"""The events we ask for: exactly those that we have hooks for."""

_Message = TypeVar("_Message", bound=Message)
_Noun = TypeVar("_Noun")

PodHook = Callable[[PodSandbox], bool]
IsOurMount = Callable[[str], bool]
"""Whether a mount with this source is one that our CDI devices bring."""


class PluginSession:
    """One connection. Build it, then :meth:`run` it until it raises."""

    def __init__(
        self,
        mux: Mux,
        hooks: RuntimeHooks,
        observe: Observer,
        set_ready: Callable[[], None],
        is_our_mount: IsOurMount,
    ) -> None:
        self._hooks = hooks
        self._is_our_mount = is_our_mount
        self._observe = observe
        self._set_ready = set_ready
        self._pod_hooks: Mapping[str, PodHook] = {
            "RunPodSandbox": hooks.run_pod_sandbox,
            "StopPodSandbox": hooks.stop_pod_sandbox,
            "RemovePodSandbox": hooks.remove_pod_sandbox,
        }
        self._methods: Mapping[str, Callable[[bytes], Message]] = {
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "Shutdown": lambda _: nri_pb2.Empty(),  # what matters is the end of the connection that follows
            "StateChange": self._state_change,
            "CreateContainer": self._create_container,
            "StartContainer": self._start_container,
            **{event: partial(self._pod_event, event) for event in self._pod_hooks},
        }
        self._connection = TtrpcConnection(
            mux, serve_stream=PLUGIN_STREAM, call_stream=RUNTIME_STREAM, handle=self._handle
        )
        self._parts = _PartialSynchronize(is_our_mount)
        self._synchronized = False
        self.introduced = False
        """``connected`` has been called."""
        self.capabilities = RuntimeCapabilities()
        """Replaced as a whole, so any thread may look."""

    def run(self, name: str, index: str) -> NoReturn:
        """Register under this name and place in the call order, then serve, until the connection ends:
        ConnectionLost, DeadlineExceeded (not registered and synchronized in time), TtrpcError (we are
        refused), or ProtocolError (the peer is no NRI runtime)."""
        self._register(name, index)
        while True:
            self._connection.process()

    def _register(self, name: str, index: str) -> None:
        # Configure and Synchronize come as requests, perhaps before the answer to our own call.
        deadline = time.monotonic() + REGISTRATION_SECONDS
        request = nri_pb2.RegisterPluginRequest(plugin_name=name, plugin_idx=index)
        answer = self._connection.start_call(
            RUNTIME_SERVICE, "RegisterPlugin", request.SerializeToString(), REGISTRATION_SECONDS
        )
        while not (answer.done() and self._synchronized):
            try:
                self._connection.process(deadline - time.monotonic())
            except DeadlineExceeded as error:
                what = "synchronize" if answer.done() else "register"
                raise DeadlineExceeded(
                    f"the runtime did not {what} us within {REGISTRATION_SECONDS:g} s"
                ) from error
            if answer.done():
                answer.result()

    def _handle(self, service: str, method: str, payload: bytes) -> bytes:
        if service != PLUGIN_SERVICE:
            raise TtrpcError(Code.UNIMPLEMENTED, f"no service {service}")
        if method not in self._methods:
            # A runtime from NRI 0.12 on relies on this code to fall back to StateChange.
            raise TtrpcError(Code.UNIMPLEMENTED, f"no method {method}")
        if not self.introduced and method != "Configure":  # the hooks know the runtime before they are called
            raise TtrpcError(Code.FAILED_PRECONDITION, f"{method} came before Configure")
        try:
            return self._methods[method](payload).SerializeToString()
        except DecodeError as error:
            raise TtrpcError(Code.INVALID_ARGUMENT, f"unreadable {method} request: {error}") from error

    def _configure(self, payload: bytes) -> Message:
        request = nri_pb2.ConfigureRequest.FromString(payload)
        timeout_seconds = request.request_timeout / 1000 if request.request_timeout > 0 else None
        self.capabilities = RuntimeCapabilities(
            request.runtime_name, request.runtime_version, timeout_seconds, nri_version=request.nri_version
        )
        self._hooks.connected(request.runtime_name, request.runtime_version, timeout_seconds)
        self.introduced = True
        return nri_pb2.ConfigureResponse(events=SUBSCRIPTION)

    def _synchronize(self, payload: bytes) -> Message:
        # a failed one leaves nothing behind
        parts, self._parts = self._parts, _PartialSynchronize(self._is_our_mount)
        request = nri_pb2.SynchronizeRequest.FromString(payload)
        parts.add(request, len(payload))
        if request.more:
            self._parts = parts
            return nri_pb2.SynchronizeResponse(more=True)
        self._observed(
            "Synchronize", lambda: self._hooks.synchronize(tuple(parts.pods), tuple(parts.containers))
        )
        self._synchronized = True
        self._set_ready()
        return nri_pb2.SynchronizeResponse()

    def _state_change(self, payload: bytes) -> Message:
        self._note_event_form(EventForm.STATE_CHANGE)
        request = nri_pb2.StateChangeEvent.FromString(payload)
        method = _POD_EVENTS.get(request.event)
        if method is not None:  # an event that we did not subscribe to is ignored
            self._run_pod_hook(method, request.pod)
        elif request.event == nri_pb2.START_CONTAINER:
            self._run_start_hook(request.pod, request.container)
        return nri_pb2.Empty()

    def _pod_event(self, method: str, payload: bytes) -> Message:
        self._note_event_form(EventForm.OWN_CALL)
        self._run_pod_hook(method, nri_pb2.PodSandboxRequest.FromString(payload).pod)
        return nri_pb2.Empty()

    def _start_container(self, payload: bytes) -> Message:
        self._note_event_form(EventForm.OWN_CALL)
        request = nri_pb2.StartContainerRequest.FromString(payload)
        self._run_start_hook(request.pod, request.container)
        return nri_pb2.Empty()

    def _run_pod_hook(self, method: str, pod: nri_pb2.PodSandbox) -> None:
        self._observed(method, lambda: self._pod_hooks[method](parse_pod(pod)))

    def _run_start_hook(self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> None:
        started = Container(container.id, container.name, container.pod_sandbox_id)
        self._observed("StartContainer", lambda: self._hooks.start_container(parse_pod(pod), started))

    def _create_container(self, payload: bytes) -> Message:
        request = nri_pb2.CreateContainerRequest.FromString(payload)

        def create() -> ContainerAdjustment:
            container = parse_container(request.container)
            self._note_mounts(container)
            return self._hooks.create_container(parse_pod(request.pod), container)

        adjustment = self._observed("CreateContainer", create, noop=ContainerAdjustment())
        return nri_pb2.CreateContainerResponse(adjust=build_adjustment(adjustment))

    def _note_event_form(self, form: EventForm) -> None:
        if self.capabilities.event_form is not form:
            self.capabilities = replace(self.capabilities, event_form=form)

    def _note_mounts(self, container: Container) -> None:
        if not self.capabilities.shows_our_mounts and any(
            self._is_our_mount(mount.source) for mount in container.mounts
        ):
            self.capabilities = replace(self.capabilities, shows_our_mounts=True)

    def _observed(self, method: str, hook: Callable[[], _Noun], noop: object = False) -> _Noun:
        """Run a hook and report how it ended; the result ``noop`` is for pods without claims of ours."""
        start, outcome = time.perf_counter(), Outcome.FAILED
        try:
            result = hook()
            outcome = Outcome.NOOP if result == noop else Outcome.SUCCESS
        finally:
            self._observe(method, outcome, time.perf_counter() - start)
        return result


class _PartialSynchronize:
    def __init__(self, is_our_mount: IsOurMount) -> None:
        self._is_our_mount = is_our_mount
        self.pods: list[PodSandbox] = []
        self.containers: list[Container] = []
        self._bytes = 0

    def add(self, request: nri_pb2.SynchronizeRequest, size: int) -> None:
        self._bytes += size
        if self._bytes > MAX_SYNCHRONIZE_BYTES:
            limit = f"the parts of Synchronize are over the limit of {MAX_SYNCHRONIZE_BYTES} bytes"
            raise TtrpcError(Code.RESOURCE_EXHAUSTED, limit)
        self.pods += _parse_each(parse_pod, request.pods)
        parse = partial(parse_listed_container, is_our_mount=self._is_our_mount)
        self.containers += _parse_each(parse, request.containers)


def _parse_each(parse: Callable[[_Message], _Noun], messages: Iterable[_Message]) -> Iterator[_Noun]:
    """All that can be read: one odd entry must not hide the others."""
    for message in messages:
        try:
            yield parse(message)
        except ProtocolError as error:
            log.warning("left out of Synchronize: %s", error)


class NriListeners(Struct, frozen=True):
    hook_run: Observer = lambda *_: None
    """A hook was run."""
    died: Callable[[], None] = lambda: None
    """The thread ends although it was not asked to (see :attr:`NriPlugin.fault`)."""
    ready: Callable[[float], None] = lambda _: None
    """The runtime calls our hooks, after it did not for so many seconds."""


class NriPlugin:
    """Keeps the hooks connected to the runtime behind ``socket_path``, which need not exist yet. ``name`` has
    letters, digits and ``- _ . +``; ``index`` two digits: the runtime calls plugins in ascending order.
    ``hooks`` and ``listeners`` run on the plugin's thread; ``is_our_mount`` is for :attr:`capabilities`."""

    def __init__(
        self,
        socket_path: Path,
        name: str,
        index: str,
        hooks: RuntimeHooks,
        *,
        listeners: NriListeners | None = None,
        is_our_mount: IsOurMount = lambda _: False,
        wait: Wait = threading.Event.wait,
    ) -> None:
        self._socket_path = socket_path
        self._name, self._index = name, index
        self._hooks = hooks
        listeners = listeners or NriListeners()
        self._observe = listeners.hook_run
        self._is_our_mount = is_our_mount
        self._wait = wait
        self._on_death = listeners.died
        self._on_ready = listeners.ready
        self._away_since = time.monotonic()
        self._stopping = threading.Event()
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self._mux: Mux | None = None
        self._thread = threading.Thread(target=self._run, name="nri", daemon=True)
        self.last_failure = ""
        """Why the latest connection, or attempt at one, ended; empty before the first."""
        self._session: PluginSession | None = None
        self._last_capabilities = RuntimeCapabilities()

    def __repr__(self) -> str:
        state = "ready" if self.is_ready else "stopped" if self._stopping.is_set() else "connecting"
        return f"<NriPlugin {self._index}-{self._name} {self._socket_path} {state}>"

    @property
    def is_ready(self) -> bool:
        """Registered and synchronized: the runtime calls our hooks. False while there is no connection."""
        return self._ready.is_set()

    @property
    def fault(self) -> str:
        """Empty, or that the thread ended without a stop: only a new process will ever answer the
        runtime."""
        was_started = self._thread.ident is not None
        if was_started and not self._thread.is_alive() and not self._stopping.is_set():
            return f"the thread that answers the runtime is gone: {self.last_failure or 'no word of it'}"
        return ""

    @property
    def capabilities(self) -> RuntimeCapabilities:
        """What the runtime has shown on this connection or, without one, on the last one."""
        session = self._session
        return session.capabilities if session is not None and session.introduced else self._last_capabilities

    def wait_ready(self, timeout_seconds: float) -> bool:
        return self._ready.wait(timeout_seconds)

    def start(self) -> None:
        """Start the thread, and have all threads of the process take turns more often. Once only. Raises
        KernelError without a thread: a driver without it would attach nothing."""
        sys.setswitchinterval(TURN_SECONDS)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise KernelError(
                f"cannot start the thread that answers the runtime: {error}",
                hint="raise the limit of processes or of memory of the driver's container",
            ) from error

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Finish the hook in progress, answer it and leave; after ``timeout_seconds`` if it is stuck.
        Repeatable; fine before ``start``."""
        self._stopping.set()
        with self._lock:
            if self._mux is not None:
                self._mux.stop_reading()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)
            if self._thread.is_alive():
                log.error("a hook is still running after %s s; leaving it behind", timeout_seconds)

    def _run(self) -> None:
        try:
            self._stay_connected()
        finally:
            if not self._stopping.is_set():
                log.critical("the thread that answers the runtime ends, and no hook is answered any more")
                self._on_death()

    def _stay_connected(self) -> None:
        delays = backoff_delays()
        while not self._stopping.is_set():
            try:
                ending = self._serve_one_connection()
                self._note(ending)
                if ending.was_ready:
                    delays = backoff_delays()
            except BaseException as error:
                # No memory left, or our bug. The node needs the hooks more than it needs us to fall over.
                self.last_failure = f"internal error: {error!r}"
                log.exception("bug next to the NRI connection")
            if self._stopping.is_set() or self._wait(self._stopping, next(delays)):
                return

    def _serve_one_connection(self) -> _Closed:
        try:
            mux = self._connect()
        except ConnectionLost as error:
            return _Closed(str(error))
        try:
            session = PluginSession(mux, self._hooks, self._observe, self._note_ready, self._is_our_mount)
            self._session = session
            reason = self._serve(session)
            self._last_capabilities = self.capabilities
            return _Closed(reason, introduced=session.introduced, was_ready=self.is_ready)
        finally:
            if self._ready.is_set():
                self._away_since = time.monotonic()
            self._ready.clear()
            with self._lock:
                self._mux = None
            mux.close()

    def _note_ready(self) -> None:
        self._ready.set()
        self._on_ready(time.monotonic() - self._away_since)

    def _serve(self, session: PluginSession) -> str:
        """Until the connection ends; returns why. Not even a hook that asks the thread to end ends it."""
        try:
            session.run(self._name, self._index)
        except ProtocolError as error:
            return str(error)
        except BaseException as error:
            log.exception("bug on the NRI connection")
            return f"internal error: {error!r}"

    def _connect(self) -> Mux:
        try:
            trunk = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:  # no descriptor left now; this thread must outlive that
            raise ConnectionLost(f"cannot open a socket: {error.strerror}") from error
        try:
            # Also limits connect(), which blocks while the runtime's backlog is full.
            trunk.setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT_SECONDS, 0)
            )
            trunk.connect(str(self._socket_path))
        except OSError as error:
            trunk.close()
            raise ConnectionLost(f"cannot connect to {self._socket_path}: {self._describe(error)}") from error
        mux = Mux(trunk)
        with self._lock:
            if self._stopping.is_set():
                mux.stop_reading()
            self._mux = mux
        return mux

    def _describe(self, error: OSError) -> str:
        """The kernel refuses a path that is no socket with the error for a socket without a listener."""
        if error.errno == errno.ECONNREFUSED:
            try:
                if not stat.S_ISSOCK(self._socket_path.stat().st_mode):
                    return "it is no socket"
            except OSError as gone:
                return gone.strerror or str(gone)
        return error.strerror or str(error)

    def _note(self, ending: _Closed) -> None:
        """Notify the hooks of a lost runtime. One that was never there is logged, each reason once and not
        every five seconds."""
        previous, self.last_failure = self.last_failure, ending.reason
        if self._stopping.is_set():
            return
        if ending.introduced:
            try:
                self._hooks.disconnected(ending.reason)
            except Exception:
                log.exception("bug in the disconnected hook")
        elif ending.reason != previous:
            log.info("no NRI connection: %s; trying again until there is one", ending.reason)


class _Closed(NamedTuple):
    reason: str
    introduced: bool = False
    """The hooks know of the runtime."""
    was_ready: bool = False


def backoff_delays() -> Iterator[float]:
    """Seconds to wait before each next attempt: growing, capped, each a little off so that nodes and plugins
    do not move in step."""
    source = random.SystemRandom()
    for seconds in chain(_BACKOFF_SECONDS, repeat(_BACKOFF_SECONDS[-1])):
        yield seconds * source.uniform(1 - _JITTER, 1 + _JITTER)
