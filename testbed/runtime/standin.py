"""A container runtime small enough to live in the testbed: real namespaces, real NRI, no images.

Implements :class:`~testbed.runtime.contract.PodRuntime` without anything installed but util-linux's
``nsenter``. Each pod has a real network namespace and a pause process in it; what plugins see over the NRI
socket, and what becomes of a pod when one fails, is ``runtime_nri``; CDI is ``runtime_cdi``. A container is
a record of what it was adjusted: its command is not run, and an exec runs on the node's own file system, in
the pod's network namespace. The real runtime is ``runtime_containerd``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dranet.pb import nri_pb2
from testbed.runtime.contract import (
    ContainerSpec,
    ExecResult,
    RunningContainer,
    RunningSandbox,
    RuntimeFailure,
    SandboxSpec,
)
from testbed.runtime.nri_link import EventForm, NriCapabilities
from testbed.runtime.nri_server import Adjustment, NriServer
from testbed.runtime.pod_netns import create_netns, held_netns, remove_netns
from testbed.runtime.standin_cdi import Injection, resolve

__all__ = ["EventForm", "NriCapabilities", "StandInRuntime"]

BeforeNetnsEnds = Callable[[str], Awaitable[None]]
"""Called with the path of a namespace that is about to end."""

_NOT_FOUND_EXIT = 127
_PAUSE_READY = "ready"
_PAUSE_SCRIPT = f"echo {_PAUSE_READY}; exec cat"
"""Lives until its standard input ends, which the death of the testbed also brings about."""


@dataclass(slots=True)
class _Sandbox:
    spec: SandboxSpec
    id: str
    netns: Path | None = None
    pause: subprocess.Popen[bytes] | None = None
    stopped: bool = False
    containers: dict[str, RunningContainer] = field(default_factory=dict)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def running(self) -> RunningSandbox:
        return RunningSandbox(self.id, str(self.netns or ""))

    @property
    def nri_namespaces(self) -> list[nri_pb2.LinuxNamespace]:
        """A pod on host networking has no ``network`` entry at all."""
        if self.netns is None:
            return []
        return [nri_pb2.LinuxNamespace(type="network", path=str(self.netns))]


class StandInRuntime:
    """One runtime.

    Args:
        nri_socket: where plugins will find NRI; made again at start.
        cdi_dir: the only folder searched for CDI specs; need not exist.
        netns_dir: each pod's namespace is pinned on a file below it.
        capabilities: what it stands in for: NRI version, event form, timeouts.
        before_netns_ends: awaited with a path of a pod's namespace after NRI's StopPodSandbox, when its name
            is gone already; does what the kernel does to physical NICs that are still in it.
    """

    def __init__(
        self,
        nri_socket: Path,
        cdi_dir: Path,
        netns_dir: Path,
        *,
        capabilities: NriCapabilities | None = None,
        before_netns_ends: BeforeNetnsEnds | None = None,
    ) -> None:
        self._cdi_dir = cdi_dir
        self._netns_dir = netns_dir
        self._nri = NriServer(nri_socket, capabilities or NriCapabilities())
        self._before_netns_ends = before_netns_ends
        self._sandboxes: dict[str, _Sandbox] = {}

    @property
    def name(self) -> str:
        return "stand-in"

    async def start(self) -> None:
        """Listen for plugins.

        Raises:
            RuntimeFailure: the NRI socket cannot be made.
        """
        try:
            await asyncio.to_thread(self._nri.start)
        except OSError as error:
            raise RuntimeFailure(f"cannot listen on the NRI socket: {error}") from error

    async def stop(self) -> None:
        """Remove every pod and hang up on every plugin."""
        async with contextlib.AsyncExitStack() as stack:  # one that fails does not keep the others
            stack.push_async_callback(asyncio.to_thread, self._nri.stop)
            for sandbox_id in self._sandboxes:
                stack.push_async_callback(self.remove_sandbox, sandbox_id)

    async def restart(self) -> None:
        """Restart the runtime, not the pods. Plugins lose their connection and find a new socket; pods from
        before give no Stop and Remove events any more, as with containerd."""
        await asyncio.to_thread(self._nri.restart)

    async def crash(self) -> None:
        """The same: what the stand-in is about to do is done in one go."""
        await self.restart()

    async def get_plugins(self) -> tuple[str, ...]:
        """``index-name`` of every plugin that gets events now."""
        return await asyncio.to_thread(lambda: self._nri.plugins)

    async def wait_plugins(self, count: int = 1, timeout_seconds: float = 10.0) -> None:
        """Wait until so many plugins are synchronized.

        Raises:
            RuntimeFailure: the time is over.
        """
        if not await asyncio.to_thread(self._nri.wait_plugins, count, timeout_seconds):
            raise RuntimeFailure(f"{count} NRI plugins wanted, {len(await self.get_plugins())} came")

    async def run_sandbox(self, spec: SandboxSpec) -> RunningSandbox:
        """Namespace, pause process, then the plugins; an error of theirs takes everything back."""
        sandbox_id = secrets.token_hex(32)
        sandbox = _Sandbox(spec, sandbox_id)
        self._sandboxes[sandbox.id] = sandbox
        try:
            await asyncio.to_thread(_create, sandbox, self._netns_dir)
            await asyncio.to_thread(self._nri.run_pod_sandbox, _build_pod(sandbox))
        except RuntimeFailure:
            await self.remove_sandbox(sandbox.id)
            raise
        return sandbox.running

    async def create_container(self, sandbox: RunningSandbox, spec: ContainerSpec) -> RunningContainer:
        """CDI, then the plugins, then what runc checks."""
        pod = self._sandboxes.get(sandbox.id)
        if pod is None or pod.stopped:
            raise RuntimeFailure(f"sandbox {sandbox.id[:12]} is not running")
        async with pod.turn:
            container = await asyncio.to_thread(self._create_container, pod, spec)
            pod.containers[container.id] = container
        return container

    def _create_container(self, pod: _Sandbox, spec: ContainerSpec) -> RunningContainer:
        injection = resolve(self._cdi_dir, spec.cdi_devices)
        container_id = secrets.token_hex(32)
        message = _build_container(pod, container_id, spec, injection)
        try:
            adjusted = _merge(injection, self._nri.create_container(pod.id, message))
            _check_mount_sources(adjusted)
            self._nri.start_container(pod.id, container_id)
        except RuntimeFailure:
            self._nri.forget_container(pod.id, container_id)
            raise
        return RunningContainer(
            id=container_id,
            name=spec.name,
            devices=adjusted.devices,
            env={**dict(spec.env), **adjusted.env},
            mounts=adjusted.mounts,
            memory_nodes=adjusted.memory_nodes,
        )

    async def exec_in_container(self, container: RunningContainer, command: Sequence[str]) -> ExecResult:
        """Run a command in the pod's network namespace, with the container's environment.

        Raises:
            RuntimeFailure: the container does not run.
        """
        sandbox = self._find_sandbox(container.id)
        argv = _enter(sandbox.netns, command)
        environment = {"PATH": os.environ.get("PATH", os.defpath), **container.env}
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
            )
        except OSError as error:
            return ExecResult(_NOT_FOUND_EXIT, "", f"{argv[0]}: {error.strerror}\n")
        stdout, stderr = await _communicate(process)
        return ExecResult(
            process.returncode or 0, stdout.decode(errors="replace"), stderr.decode(errors="replace")
        )

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """End the processes, call the plugins, then remove the namespace."""
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None:
            return
        async with sandbox.turn:
            if sandbox.stopped:
                return
            sandbox.containers.clear()
            await asyncio.to_thread(_end_pause, sandbox)
            await asyncio.to_thread(self._nri.stop_pod_sandbox, sandbox.id)
            await self._remove_netns(sandbox)
            sandbox.stopped = True

    async def _remove_netns(self, sandbox: _Sandbox) -> None:
        """The name goes first: as in the kernel, no program finds a namespace whose NICs are about to return,
        and a driver that starts right now cannot put one back into it."""
        if sandbox.netns is None:
            return
        with held_netns(sandbox.netns) as held:
            try:
                await asyncio.to_thread(remove_netns, sandbox.netns)
            except OSError as error:
                raise RuntimeFailure(str(error)) from error
            if held is not None and self._before_netns_ends is not None:
                await self._before_netns_ends(held)

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Stop it if it runs, call the plugins, forget it."""
        await self.stop_sandbox(sandbox_id)
        if self._sandboxes.pop(sandbox_id, None) is not None:
            await asyncio.to_thread(self._nri.remove_pod_sandbox, sandbox_id)

    def _find_sandbox(self, container_id: str) -> _Sandbox:
        for sandbox in self._sandboxes.values():
            if container_id in sandbox.containers:
                return sandbox
        raise RuntimeFailure(f"container {container_id[:12]} is not running")


def _create(sandbox: _Sandbox, netns_dir: Path) -> None:
    try:
        if not sandbox.spec.host_network:
            path = netns_dir / f"cni-{sandbox.id[:16]}"
            create_netns(path)
            sandbox.netns = path
        sandbox.pause = pause = subprocess.Popen(
            _enter(sandbox.netns, ("sh", "-c", _PAUSE_SCRIPT)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except OSError as error:
        raise RuntimeFailure(f"failed to create the sandbox: {error}") from error
    assert pause.stdout is not None
    # Plugins get its pid, so it must have entered the namespace before.
    answer = pause.stdout.readline().decode(errors="replace").strip()
    if answer != _PAUSE_READY:
        raise RuntimeFailure(f"failed to start the sandbox's pause process: {answer}")


def _end_pause(sandbox: _Sandbox) -> None:
    if sandbox.pause is not None:
        with sandbox.pause as process:  # closes the pipes and waits
            process.kill()
        sandbox.pause = None


def _enter(netns: Path | None, command: Sequence[str]) -> tuple[str, ...]:
    return tuple(command) if netns is None else ("nsenter", f"--net={netns}", "--", *command)


async def _communicate(process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    try:
        return await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise


def _build_pod(sandbox: _Sandbox) -> nri_pb2.PodSandbox:
    """What containerd sends: the pod's own labels and annotations, and a few of the runtime's."""
    spec = sandbox.spec
    runtime_annotations = {
        "io.kubernetes.cri.container-type": "sandbox",
        "io.kubernetes.cri.sandbox-id": sandbox.id,
        "io.kubernetes.cri.sandbox-name": spec.name,
        "io.kubernetes.cri.sandbox-namespace": spec.namespace,
        "io.kubernetes.cri.sandbox-uid": spec.uid,
    }
    return nri_pb2.PodSandbox(
        id=sandbox.id,
        name=spec.name,
        uid=spec.uid,
        namespace=spec.namespace,
        labels={**spec.labels, "io.cri-containerd.kind": "sandbox"},
        annotations={**spec.annotations, **runtime_annotations},
        linux=nri_pb2.LinuxPodSandbox(namespaces=sandbox.nri_namespaces),
        pid=sandbox.pause.pid if sandbox.pause is not None else 0,
    )


def _build_container(
    sandbox: _Sandbox, container_id: str, spec: ContainerSpec, injection: Injection
) -> nri_pb2.Container:
    namespaces = []
    if sandbox.netns is not None and sandbox.pause is not None:
        path = f"/proc/{sandbox.pause.pid}/ns/net"
        namespaces.append(nri_pb2.LinuxNamespace(type="network", path=path))
    return nri_pb2.Container(
        id=container_id,
        pod_sandbox_id=sandbox.id,
        name=spec.name,
        labels={"io.cri-containerd.kind": "container"},
        env=[f"{key}={value}" for key, value in {**dict(spec.env), **injection.env}.items()],
        mounts=[nri_pb2.Mount(destination=to, source=source) for to, source in injection.mounts.items()],
        linux=nri_pb2.LinuxContainer(namespaces=namespaces),
    )


def _merge(injection: Injection, adjustments: Sequence[Adjustment]) -> Injection:
    """The plugins' items over CDI's. Two plugins that set the same item fail the container, be they two
    instances of one."""
    devices, mounts, env = dict(injection.devices), dict(injection.mounts), dict(injection.env)
    memory: dict[str, str] = {}
    owners: dict[tuple[str, str], str] = {}
    for adjustment in adjustments:
        adjust = adjustment.adjust
        items = [
            *((devices, "device", d.path, f"{d.major}:{d.minor}") for d in adjust.linux.devices),
            *((mounts, "mount", m.destination, m.source) for m in adjust.mounts),
            *((env, "env", e.key, e.value) for e in adjust.env),
            *(({}, "rlimit", limit.type, str(limit.soft)) for limit in adjust.rlimits),
            *((memory, "memory", "nodes", nodes) for nodes in [adjust.linux.resources.cpu.mems] if nodes),
        ]
        for target, kind, key, value in items:
            if (owner := owners.get((kind, key))) is not None:
                raise RuntimeFailure(
                    f'plugins "{owner}" and "{adjustment.plugin}" both tried to set {kind} "{key}"'
                )
            target[key] = value
        owners.update({(kind, key): adjustment.plugin for _, kind, key, _ in items})
    return Injection(devices, mounts, env, memory.get("nodes", ""))


def _check_mount_sources(adjusted: Injection) -> None:
    for destination, source in adjusted.mounts.items():
        if not Path(source).exists():
            raise RuntimeFailure(
                "failed to create containerd task: OCI runtime create failed: runc create failed: unable to "
                f'start container process: error mounting "{source}" to rootfs at "{destination}": '
                f"stat {source}: no such file or directory"
            )
