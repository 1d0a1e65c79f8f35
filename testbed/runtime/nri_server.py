"""The runtime's side of NRI: accepts plugins, sends them pods and containers, takes their adjustments.

Stands in for containerd with the failure semantics seen on 1.7.24 and 2.1.9: one lock over every hook call,
so one request is in flight at a time; a plugin that is late or gone is dropped and the pod goes on without it
(*fail open*); an error answer fails the pod or container. Knows the pods that exist, because a plugin that
connects gets them; knows nothing of namespaces, processes or CDI. It sends the events of a network driver
only: a pod runs, stops, is removed; a container is created.
"""

from __future__ import annotations

import logging
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dranet.errors import ProtocolError
from dranet.pb import nri_pb2
from dranet.wire import Code, ConnectionLost, TtrpcError
from testbed.runtime.contract import RuntimeFailure
from testbed.runtime.nri_link import NriCapabilities, PluginLink

log = logging.getLogger(__name__)

_CODE_NAMES = {int(code): code.name.title().replace("_", "") for code in Code}


@dataclass(frozen=True, slots=True)
class Adjustment:
    """One plugin's answer to CreateContainer."""

    plugin: str
    adjust: nri_pb2.ContainerAdjustment


@dataclass(slots=True)
class _Pod:
    message: nri_pb2.PodSandbox
    sends_events: bool = True
    """Lost when the runtime restarts: containerd no longer sends events of older pods."""
    containers: dict[str, nri_pb2.Container] = field(default_factory=dict)
    """Created or running, with what plugins have added."""


class NriServer:
    """The NRI socket and the plugins behind it.

    Methods block, may be called from any thread, and take turns.
    """

    def __init__(self, socket_path: Path, capabilities: NriCapabilities) -> None:
        self._socket_path = socket_path
        self._capabilities = capabilities
        self._changed = threading.Condition(threading.RLock())
        self._plugins: list[PluginLink] = []
        self._registering: PluginLink | None = None
        self._pods: dict[str, _Pod] = {}
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None

    @property
    def plugins(self) -> tuple[str, ...]:
        """``index-name`` of every plugin that is synchronized and still connected, in call order."""
        with self._changed:
            return tuple(plugin.name for plugin in self._plugins if plugin.is_connected)

    def start(self) -> None:
        """Make the socket again, as a runtime does at each start, and accept plugins.

        Raises:
            OSError: no socket can be made there.
        """
        self._socket_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._socket_path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self._socket_path))
        listener.listen()
        self._listener = listener
        self._thread = threading.Thread(target=self._accept, args=(listener,), name="nri-accept", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Hang up on everybody, without a Shutdown call (as containerd does). The socket file stays."""
        listener, self._listener = self._listener, None
        if listener is None or self._thread is None:
            return
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # close() alone would not end accept()
        registering = self._registering
        if registering is not None:
            registering.hang_up()
        self._thread.join()
        listener.close()
        with self._changed:
            for plugin in self._plugins:
                plugin.close()
            self._plugins.clear()

    def restart(self) -> None:
        """What plugins see of a restart of the runtime: older pods are in Synchronize but send no events."""
        self.stop()
        with self._changed:
            for pod in self._pods.values():
                pod.sends_events = False
        self.start()

    def wait_plugins(self, count: int, timeout_seconds: float) -> bool:
        """Block until this many plugins are synchronized and connected; false when the time is over."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.plugins) >= count, timeout_seconds)

    def run_pod_sandbox(self, pod: nri_pb2.PodSandbox) -> None:
        """Announce a new pod.

        Raises:
            RuntimeFailure: a plugin answered with an error; Stop and Remove were sent after it.
        """
        with self._changed:
            self._pods[pod.id] = _Pod(pod)
            failure = self._send(nri_pb2.RUN_POD_SANDBOX, pod)
            if failure is not None:
                self.stop_pod_sandbox(pod.id)
                self.remove_pod_sandbox(pod.id)
                raise RuntimeFailure(failure)

    def stop_pod_sandbox(self, pod_id: str) -> None:
        """Announce that a pod's processes have ended; its network namespace must still be there."""
        with self._changed:
            pod = self._pods.get(pod_id)
            if pod is None:
                return
            pod.message.pid = 0
            pod.containers.clear()
            if self._capabilities.stop_without_netns_path:
                pod.message.ClearField("linux")
            if pod.sends_events:
                self._send(nri_pb2.STOP_POD_SANDBOX, pod.message)

    def remove_pod_sandbox(self, pod_id: str) -> None:
        """Announce that a pod is gone, and forget it."""
        with self._changed:
            pod = self._pods.pop(pod_id, None)
            if pod is not None and pod.sends_events:
                pod.message.ClearField("linux")
                self._send(nri_pb2.REMOVE_POD_SANDBOX, pod.message)

    def create_container(self, pod_id: str, container: nri_pb2.Container) -> tuple[Adjustment, ...]:
        """Collect the plugins' adjustments, in call order; each is shown what those before it add. Container
        events survive a restart.

        Raises:
            RuntimeFailure: a plugin answered with an error.
        """
        adjustments = []
        shown = nri_pb2.Container.FromString(container.SerializeToString())
        with self._changed:
            pod = self._pods[pod_id].message
            for plugin in self._subscribers(nri_pb2.CREATE_CONTAINER):
                try:
                    adjust = plugin.create_container(pod, shown)
                except TtrpcError as error:
                    raise RuntimeFailure(_describe(error)) from error
                except ProtocolError as error:
                    self._drop(plugin, error)
                else:
                    adjustments.append(Adjustment(plugin.name, adjust))
                    _add(shown, adjust)
            shown.state = nri_pb2.CONTAINER_CREATED
            self._pods[pod_id].containers[container.id] = shown
        return tuple(adjustments)

    def start_container(self, pod_id: str, container_id: str) -> None:
        """The OCI runtime has made it, with its mounts; it runs when this returns.

        Raises:
            RuntimeFailure: a plugin answered with an error.
        """
        with self._changed:
            pod = self._pods[pod_id]
            container = pod.containers[container_id]
            for plugin in self._subscribers(nri_pb2.START_CONTAINER):
                try:
                    plugin.start_container(pod.message, container)
                except TtrpcError as error:
                    raise RuntimeFailure(_describe(error)) from error
                except ProtocolError as error:
                    self._drop(plugin, error)
            container.state = nri_pb2.CONTAINER_RUNNING

    def forget_container(self, pod_id: str, container_id: str) -> None:
        """It could not be started, and is gone."""
        with self._changed:
            self._pods[pod_id].containers.pop(container_id, None)

    def _send(self, event: nri_pb2.Event.ValueType, pod: nri_pb2.PodSandbox) -> str | None:
        """Send an event to each subscriber; return the first plugin's refusal (later ones are not asked)."""
        for plugin in self._subscribers(event):
            try:
                plugin.send_pod_event(event, pod)
            except TtrpcError as error:
                log.warning("plugin %s: %s", plugin.name, error)
                return _describe(error)
            except ProtocolError as error:
                self._drop(plugin, error)
        return None

    def _subscribers(self, event: int) -> list[PluginLink]:
        return [plugin for plugin in self._plugins if plugin.wants(event)]

    def _drop(self, plugin: PluginLink, error: ProtocolError) -> None:
        """Fail open: what was asked of it goes on without it."""
        log.log(_level(error), "closing plugin %s: %s", plugin.name, error)
        plugin.close()
        self._plugins.remove(plugin)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                trunk, _ = listener.accept()
            except OSError:
                return  # stopped
            plugin = PluginLink(trunk, self._capabilities)
            self._registering = plugin
            if self._listener is not listener:
                plugin.hang_up()  # stop() may have looked before _registering was set
            try:
                self._admit(plugin)
            except ProtocolError as error:
                log.log(_level(error), "plugin %s not admitted: %s", plugin.name, error)
                plugin.close()
            finally:
                self._registering = None

    def _admit(self, plugin: PluginLink) -> None:
        plugin.register()
        with self._changed:  # as containerd 1.7.26 and later: no pod changes while a plugin is synchronized
            pods = self._pods.values()
            plugin.synchronize(
                [pod.message for pod in pods], [each for pod in pods for each in pod.containers.values()]
            )
            self._plugins.append(plugin)
            self._plugins.sort(key=lambda each: each.name[:2])
            self._changed.notify_all()


def _level(error: ProtocolError) -> int:
    """A plugin that hung up, or was killed, is daily life of a runtime; a late or confused one is not."""
    return logging.DEBUG if isinstance(error, ConnectionLost) else logging.WARNING


def _describe(error: TtrpcError) -> str:
    """As a kubelet prints a gRPC status."""
    return f"rpc error: code = {_CODE_NAMES.get(error.code, error.code)} desc = {error}"


def _add(shown: nri_pb2.Container, adjust: nri_pb2.ContainerAdjustment) -> None:
    """What the next plugin is shown. containerd appends, also a second limit of one type."""
    shown.mounts.extend(adjust.mounts)
    shown.rlimits.extend(adjust.rlimits)
    shown.linux.devices.extend(adjust.linux.devices)
    shown.env.extend(f"{variable.key}={variable.value}" for variable in adjust.env)
    shown.linux.resources.MergeFrom(adjust.linux.resources)
