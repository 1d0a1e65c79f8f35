"""One NRI connection from registration to its end: which message means which hook.

The runtime sends one request at a time and waits two seconds for the answer, with every other pod of the
node behind it. So handlers run inline, on the one thread that reads the socket.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NoReturn, Protocol, Self, TypeVar

from google.protobuf.message import DecodeError, Message
from msgspec import Struct
from msgspec.structs import replace

from dranet.errors import ProtocolError
from dranet.model.facts import CharDevice
from dranet.model.gpus import find_cdi_names, is_gpu_variable, may_be_gpu_node, names_gpus
from dranet.model.sandbox import UNLIMITED, Container, ContainerAdjustment, Mount, PodSandbox, Rlimit
from dranet.pb import nri_pb2
from dranet.runtime.capabilities import EventForm, RuntimeCapabilities
from dranet.telemetry import Outcome
from dranet.wire.mux import DeadlineExceeded, Mux
from dranet.wire.ttrpc import MAX_RECEIVE_BYTES, Code, TtrpcConnection, TtrpcError

_NETWORK = "network"
"""The OCI runtime spec's name of the network namespace; absent for a pod on host networking."""

_CHAR = "c"
"""The type of a character device."""

_RUNNING = (nri_pb2.CONTAINER_RUNNING, nri_pb2.CONTAINER_PAUSED)

_RLIM_INFINITY = (1 << 64) - 1


def parse_pod(message: nri_pb2.PodSandbox) -> PodSandbox:
    """A pod sandbox as the runtime describes it.

    Raises:
        ProtocolError: it has no id.
    """
    if not message.id:
        raise ProtocolError("the runtime named a pod sandbox without an id")
    return PodSandbox(
        id=message.id,
        name=message.name,
        namespace=message.namespace,
        uid=message.uid,
        netns_path=_netns_path(message),
        pid=message.pid,
        annotations=dict(message.annotations),
    )


def _netns_path(message: nri_pb2.PodSandbox) -> str:
    return next((n.path for n in message.linux.namespaces if n.type == _NETWORK), "")


def parse_container(message: nri_pb2.Container) -> Container:
    """A container as the runtime describes it.

    Raises:
        ProtocolError: it has no id.
    """
    _check_container(message)
    return Container(
        id=message.id,
        name=message.name,
        pod_sandbox_id=message.pod_sandbox_id,
        mounts=tuple(map(_parse_mount, message.mounts)),
        rlimits=tuple(
            Rlimit(limit.type, _parse_amount(limit.soft), _parse_amount(limit.hard))
            for limit in message.rlimits
        ),
        devices=tuple(_parse_devices(message)),
        running=message.state in _RUNNING,
        env=dict(_parse_env(message)),
        memory_nodes=message.linux.resources.cpu.mems,
        cdi_devices=_parse_cdi_devices(message),
    )


def parse_listed_container(message: nri_pb2.Container, is_our_mount: Callable[[str], bool]) -> Container:
    """One of all containers of the node, with only what shows whose devices it has, and which GPUs.

    Raises:
        ProtocolError: it has no id.
    """
    _check_container(message)
    return Container(
        id=message.id,
        name=message.name,
        pod_sandbox_id=message.pod_sandbox_id,
        mounts=tuple(
            _parse_mount(mount)
            for mount in message.mounts
            if is_our_mount(mount.source) or names_gpus(mount.destination)
        ),
        devices=tuple(device for device in _parse_devices(message) if may_be_gpu_node(device.path)),
        running=message.state in _RUNNING,
        env={name: value for name, value in _parse_env(message) if is_gpu_variable(name)},
        cdi_devices=_parse_cdi_devices(message),
    )


def _parse_devices(message: nri_pb2.Container) -> Iterator[CharDevice]:
    for device in message.linux.devices:
        if device.type == _CHAR:
            yield CharDevice(device.path, device.major, device.minor)


def _parse_env(message: nri_pb2.Container) -> Iterator[tuple[str, str]]:
    """The last value of a repeated variable counts, as for the process."""
    for item in message.env:
        name, _, value = item.partition("=")
        yield name, value


def _parse_cdi_devices(message: nri_pb2.Container) -> tuple[str, ...]:
    """Those in the runtime's message, and those of annotations, by which older kubelets pass them."""
    named = (device.name for device in message.CDI_devices)
    return tuple(dict.fromkeys((*named, *find_cdi_names(message.annotations))))


def _check_container(message: nri_pb2.Container) -> None:
    if not message.id:
        raise ProtocolError("the runtime named a container without an id")


def _parse_mount(message: nri_pb2.Mount) -> Mount:
    return Mount(message.source, message.destination, message.type, tuple(message.options))


def _parse_amount(amount: int) -> int:
    return UNLIMITED if amount == _RLIM_INFINITY else amount


def build_adjustment(adjustment: ContainerAdjustment) -> nri_pb2.ContainerAdjustment:
    """What to add to a container. The runtime itself writes the device-cgroup rule of a device."""
    return nri_pb2.ContainerAdjustment(
        mounts=[_build_mount(mount) for mount in adjustment.mounts],
        env=[nri_pb2.KeyValue(key=key, value=value) for key, value in adjustment.env],
        linux=_build_linux(adjustment),
        rlimits=[_build_rlimit(limit) for limit in adjustment.rlimits],
    )


def _build_linux(adjustment: ContainerAdjustment) -> nri_pb2.LinuxContainerAdjustment:
    message = nri_pb2.LinuxContainerAdjustment(devices=[_build_device(d) for d in adjustment.devices])
    if adjustment.memory_nodes:
        message.resources.cpu.mems = adjustment.memory_nodes
    if adjustment.memory_policy is not None:
        message.memory_policy.mode = nri_pb2.MpolMode.Value(adjustment.memory_policy.mode)
        message.memory_policy.nodes = adjustment.memory_policy.nodes
    return message


def _build_mount(mount: Mount) -> nri_pb2.Mount:
    return nri_pb2.Mount(
        source=mount.source, destination=mount.destination, type=mount.type, options=mount.options
    )


def _build_device(device: CharDevice) -> nri_pb2.LinuxDevice:
    message = nri_pb2.LinuxDevice(path=device.path, type=_CHAR, major=device.major, minor=device.minor)
    if device.file_mode is not None:
        message.file_mode.value = device.file_mode
    return message


def _build_rlimit(limit: Rlimit) -> nri_pb2.POSIXRlimit:
    return nri_pb2.POSIXRlimit(
        type=limit.type, soft=_build_amount(limit.soft), hard=_build_amount(limit.hard)
    )


def _build_amount(amount: int) -> int:
    return _RLIM_INFINITY if amount == UNLIMITED else amount


log = logging.getLogger(__name__)

PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
"""Served by us."""
RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"
"""Served by the runtime."""
PLUGIN_STREAM = 1
RUNTIME_STREAM = 2

REGISTRATION_SECONDS = 30.0
"""How long registration and Synchronize may take. The runtime accepts plugins one after another and gives a
silent one 5 seconds, so a few of those in front of us are normal."""

MAX_SYNCHRONIZE_BYTES = MAX_RECEIVE_BYTES
"""All parts of one Synchronize together; 250 pods with annotations of 256 KiB each would fit."""


class RuntimeHooks(Protocol):
    """What the driver does when the runtime calls. Called on the NRI thread, one call at a time.

    A ``DranetError`` is answered as an error, with its text, and the runtime then fails the pod or the
    container (Stop and Remove go on regardless). The pod hooks return whether the pod was any of the
    driver's business; it only updates the metrics. Hooks must be idempotent: two copies of the driver are
    both called during a rolling update.
    """

    def connected(
        self, runtime_name: str, runtime_version: str, request_timeout_seconds: float | None
    ) -> None:
        """The runtime introduced itself; Synchronize follows.

        It waits ``request_timeout_seconds`` for the answer to a hook; ``None`` where it does not send it
        (before NRI 0.7).
        """

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


class Observer(Protocol):
    """Hears of each hook that was run (``dranet.telemetry.metrics.RuntimeMetrics``)."""

    def __call__(self, method: str, outcome: str, seconds: float) -> None:
        """``method`` is the hook's NRI name, whichever way it was called; ``outcome`` an ``Outcome``."""


class PluginIdentity(Struct, frozen=True):
    """Under which name, and at which place of the call order (two digits), the plugin registers."""

    name: str
    index: str


_POD_EVENTS: Mapping[int, str] = {
    nri_pb2.RUN_POD_SANDBOX: "RunPodSandbox",
    nri_pb2.STOP_POD_SANDBOX: "StopPodSandbox",
    nri_pb2.REMOVE_POD_SANDBOX: "RemovePodSandbox",
}
"""Events that come as ``StateChange``, or (NRI 0.12 and later) as an RPC of this name."""
_START_CONTAINER = "StartContainer"
"""Another of these; it is also about a container."""

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
            "Shutdown": _shutdown,
            "StateChange": self._state_change,
            "CreateContainer": self._create_container,
            _START_CONTAINER: self._start_container,
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

    def run(self, identity: PluginIdentity) -> NoReturn:
        """Register, then serve, until the connection ends.

        Raises:
            ConnectionLost: the runtime is gone.
            DeadlineExceeded: the runtime did not register and synchronize us in time.
            TtrpcError: the runtime refused us.
            ProtocolError: the peer is no NRI runtime.
        """
        self._register(identity)
        while True:
            self._connection.process()

    def _register(self, identity: PluginIdentity) -> None:
        # Configure and Synchronize come as requests, perhaps before the answer to our own call.
        deadline = time.monotonic() + REGISTRATION_SECONDS
        request = nri_pb2.RegisterPluginRequest(plugin_name=identity.name, plugin_idx=identity.index)
        answer = self._connection.start_call(
            RUNTIME_SERVICE, "RegisterPlugin", request.SerializeToString(), REGISTRATION_SECONDS
        )
        while not (answer.done and self._synchronized):
            try:
                self._connection.process(deadline - time.monotonic())
            except DeadlineExceeded as error:
                what = "synchronize" if answer.done else "register"
                raise DeadlineExceeded(
                    f"the runtime did not {what} us within {REGISTRATION_SECONDS:g} s"
                ) from error
            if answer.done:
                answer.result()

    def _handle(self, service: str, method: str, payload: bytes) -> bytes:
        if service != PLUGIN_SERVICE:
            raise TtrpcError(Code.UNIMPLEMENTED, f"no service {service}")
        try:
            if method in self._pod_hooks:
                self._check_introduced(method)
                self._note_event_form(EventForm.OWN_CALL)
                request = nri_pb2.PodSandboxRequest.FromString(payload)
                self._run_pod_hook(method, request.pod)
                return b""
            if method in self._methods:
                self._check_introduced(method)
                return self._methods[method](payload).SerializeToString()
        except DecodeError as error:
            raise TtrpcError(Code.INVALID_ARGUMENT, f"unreadable {method} request: {error}") from error
        # A runtime from NRI 0.12 on relies on this code to fall back to StateChange.
        raise TtrpcError(Code.UNIMPLEMENTED, f"no method {method}")

    def _check_introduced(self, method: str) -> None:
        """The hooks know the runtime before they are called."""
        if not self.introduced and method != "Configure":
            raise TtrpcError(Code.FAILED_PRECONDITION, f"{method} came before Configure")

    def _configure(self, payload: bytes) -> Message:
        request = nri_pb2.ConfigureRequest.FromString(payload)
        timeout_seconds = request.request_timeout / 1000 if request.request_timeout > 0 else None
        self.capabilities = RuntimeCapabilities(
            request.runtime_name,
            request.runtime_version,
            timeout_seconds,
            nri_version=request.nri_version,
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
        with self._observed("Synchronize"):
            self._hooks.synchronize(tuple(parts.pods), tuple(parts.containers))
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

    def _start_container(self, payload: bytes) -> Message:
        self._note_event_form(EventForm.OWN_CALL)
        request = nri_pb2.StartContainerRequest.FromString(payload)
        self._run_start_hook(request.pod, request.container)
        return nri_pb2.Empty()

    def _run_start_hook(self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> None:
        with self._observed(_START_CONTAINER) as observation:
            started = Container(container.id, container.name, container.pod_sandbox_id)
            if not self._hooks.start_container(parse_pod(pod), started):
                observation.outcome = Outcome.NOOP

    def _run_pod_hook(self, method: str, pod: nri_pb2.PodSandbox) -> None:
        with self._observed(method) as observation:
            if not self._pod_hooks[method](parse_pod(pod)):
                observation.outcome = Outcome.NOOP

    def _create_container(self, payload: bytes) -> Message:
        request = nri_pb2.CreateContainerRequest.FromString(payload)
        with self._observed("CreateContainer") as observation:
            container = parse_container(request.container)
            self._note_mounts(container)
            adjustment = self._hooks.create_container(parse_pod(request.pod), container)
            if adjustment == ContainerAdjustment():
                observation.outcome = Outcome.NOOP
        return nri_pb2.CreateContainerResponse(adjust=build_adjustment(adjustment))

    def _note_event_form(self, form: EventForm) -> None:
        if self.capabilities.event_form is not form:
            self.capabilities = replace(self.capabilities, event_form=form)

    def _note_mounts(self, container: Container) -> None:
        if not self.capabilities.shows_our_mounts and any(
            self._is_our_mount(mount.source) for mount in container.mounts
        ):
            self.capabilities = replace(self.capabilities, shows_our_mounts=True)

    def _observed(self, method: str) -> _Observation:
        return _Observation(self._observe, method)


class _PartialSynchronize:
    """What has come of a Synchronize so far."""

    def __init__(self, is_our_mount: IsOurMount) -> None:
        self._is_our_mount = is_our_mount
        self.pods: list[PodSandbox] = []
        self.containers: list[Container] = []
        self._bytes = 0

    def add(self, request: nri_pb2.SynchronizeRequest, size: int) -> None:
        """Take one more part, of this many bytes.

        Raises:
            TtrpcError: RESOURCE_EXHAUSTED, it never ends.
        """
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


class _Observation:
    """Times one hook; its caller may lower the outcome to NOOP, an exception makes it FAILED."""

    def __init__(self, observe: Observer, method: str) -> None:
        self._observe = observe
        self._method = method
        self._start = 0.0
        self.outcome = Outcome.SUCCESS

    def __enter__(self) -> Self:
        self._start = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.outcome = Outcome.FAILED
        self._observe(self._method, self.outcome, time.perf_counter() - self._start)


def _shutdown(_payload: bytes) -> Message:
    """The runtime is going down; what matters is the end of the connection that follows."""
    return nri_pb2.Empty()
