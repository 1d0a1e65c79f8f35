"""The driver under test as a container of the testbed's containerd, with the rights that its pod spec gives.

What a DaemonSet's pod is on a node: host network, its capabilities, its seccomp profile, its mounts and
nothing else. What it runs and sees of the machine is :mod:`~testbed.driver.pod_node`'s. Meets the
driver over the runtime, its sockets and signals alone; knows nothing of what it does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dranet.security import context as security
from testbed.cluster import Places, RuntimeFactory
from testbed.containerd.fetch import Toolchain
from testbed.containerd.runtime import ContainerdRuntime
from testbed.driver.pod_node import (
    Programs,
    build_view,
    list_machine_mounts,
    list_stand_ins,
    make_volumes,
    show_to_driver,
)
from testbed.driver.pod_spec import (
    CONTAINER,
    NodeView,
    PodSpec,
    build_container,
    build_pod_spec,
    build_sandbox_security,
    list_folders_to_make,
    read_pod_spec,
)
from testbed.driver.process import COMMAND, DriverExit, DriverFailed, DriverProcess
from testbed.node.node import Node
from testbed.pb import cri_pb2 as pb
from testbed.runtime.contract import ExecResult, PodRuntime, RuntimeFailure

_POLL_SECONDS = 0.02
_EXIT_SECONDS = 20.0


class DriverRuntime(ContainerdRuntime):
    """A containerd that also runs the driver. ``spec`` is what its pods are made from; one may change it
    between two starts."""

    def __init__(
        self,
        toolchain: Toolchain,
        places: Places,
        node: Node,
        spec: PodSpec,
        programs: Programs,
    ) -> None:
        work_dir = places.work_dir / "containerd"
        work_dir.mkdir(parents=True)
        super().__init__(toolchain, work_dir, places.nri_socket, places.cdi_dir, has_own_netns=False)
        self.places = places
        self.node = node
        self.spec = spec
        self.programs = programs
        self.config_maps: Mapping[str, Mapping[str, str]] = {}
        self.has_real_proc = False
        """Show it the processes of the testbed instead of the described hardware."""

    async def start(self) -> None:
        await super().start()
        if self.programs.archive is not None:
            await self.import_archive(self.programs.archive)
        show_to_driver(self.node, self.netns_twin)

    @property
    def netns_twin(self) -> Path:
        return self.places.work_dir / "netns-of-pods"

    def make_driver(self, settings: Mapping[str, str], log_file: Path) -> DriverPod:
        return DriverPod(self, settings, log_file)


def driver_in_a_pod(
    toolchain: Toolchain, manifests: Path | None = None, programs: Programs | None = None
) -> RuntimeFactory:
    """A containerd whose testbed has the driver as a container in it; made from the DaemonSet of rendered
    manifests, where some are given. Its programs are this machine's, unless an image is given."""
    own = programs or Programs()

    def make(places: Places, node: Node) -> PodRuntime:
        if manifests is None:
            return DriverRuntime(toolchain, places, node, build_pod_spec(), own)
        spec, config_maps = read_pod_spec(manifests)
        runtime = DriverRuntime(toolchain, places, node, spec, own)
        runtime.config_maps = config_maps
        return runtime

    return make


class DriverPod(DriverProcess):
    """One pod of the driver. As with a kubelet its sandbox lives on when its container ends, and the next
    start is another container in it."""

    def __init__(self, runtime: DriverRuntime, settings: Mapping[str, str], log_file: Path) -> None:
        cdi_dirs = f"/etc/cdi,{runtime.places.cdi_dir}"
        in_pod = {"procfs_root": security.HOST_PROC, "vendor_cdi_dirs": cdi_dirs}
        self._environment = {**settings, **in_pod}
        super().__init__({**settings, **in_pod}, log_file)
        self._runtime = runtime
        self._uid = settings.get("pod_uid") or str(uuid.uuid4())
        self._sandbox: pb.PodSandboxConfig | None = None
        self._sandbox_id = ""
        self._container_id = ""
        self._attempt = 0
        self._pid = 0
        self._exit_code: int | None = None

    @property
    def _was_started(self) -> bool:
        return self._attempt > 0

    @property
    def is_running(self) -> bool:
        return self._pid > 0 and _is_alive(self._pid)

    @property
    def pid(self) -> int:
        return self._pid if self.is_running else 0

    @property
    def exit_code(self) -> int | None:
        """The exit code of the last run that was waited for."""
        return None if self.is_running else self._exit_code

    async def run_in_container(self, *command: str) -> ExecResult:
        """As ``kubectl exec`` does: another process with the container's rights.

        Raises:
            RuntimeFailure: it does not run.
        """
        done = await self._runtime.cri.exec_sync(self._container_id, command)
        return ExecResult(
            done.exit_code, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        )

    async def run_dranet(self, *arguments: str) -> ExecResult:
        """A command of the driver's own in its container, as a person at ``kubectl exec`` would."""
        return await self.run_in_container(*self._runtime.programs.build_command(("dranet", *arguments)))

    async def renew(self) -> None:
        """The pod goes; the next start makes another one from the runtime's ``spec``."""
        await self._forget_container()
        if self._sandbox_id:
            await self._runtime.cri.stop_pod_sandbox(self._sandbox_id)
            await self._runtime.cri.remove_pod_sandbox(self._sandbox_id)
        self._sandbox, self._sandbox_id, self._uid = None, "", str(uuid.uuid4())

    async def _launch(self, command: Sequence[str], flags: Sequence[str]) -> None:
        """
        Raises:
            RuntimeFailure: the runtime refuses the pod or a container.
        """
        await self._forget_container()
        spec, view = self._runtime.spec, self._build_view()
        for folder in list_folders_to_make(spec, view):
            await asyncio.to_thread(Path(folder).mkdir, parents=True, exist_ok=True)
        if not self._sandbox_id:
            self._sandbox = self._build_sandbox(spec)
            self._sandbox_id = await self._runtime.cri.run_pod_sandbox(self._sandbox)
            await self._run_init_containers(spec, view)
        self._attempt += 1
        container = next(c for c in spec["containers"] if c["name"] == CONTAINER)
        own = container.get("command", ()) if tuple(command) == COMMAND else ()
        self._container_id = await self._run(container, view, command=(*(own or command), *flags))
        self._pid = await self._runtime.cri.fetch_container_pid(self._container_id)

    async def _run_init_containers(self, spec: PodSpec, view: NodeView) -> None:
        for container in spec.get("initContainers", ()):
            started = await self._run(container, view)
            status = await self._wait_exited(started, _EXIT_SECONDS)
            if status.exit_code != 0:
                raise RuntimeFailure(
                    f"init container {container['name']}: exit code {status.exit_code}: {self.log_tail()}"
                )
            await self._runtime.cri.remove_container(started)

    async def _run(self, container: Mapping[str, Any], view: NodeView, command: Sequence[str] = ()) -> str:
        assert self._sandbox is not None
        config = build_container(self._runtime.spec, container, view)
        config.metadata.attempt = self._attempt
        config.image.image = self._runtime.programs.image_of_container
        config.log_path = self.log_file.name
        own = [view.move(word) for word in command or config.command]
        del config.command[:]
        programs = self._runtime.programs
        config.command.extend(programs.build_command(own))
        config.mounts.extend(list_machine_mounts(programs, self._runtime.places, self._runtime.node))
        config.envs.extend(pb.KeyValue(key=key, value=value) for key, value in self._variables())
        cri = self._runtime.cri
        container_id = await cri.create_container(self._sandbox_id, config, self._sandbox)
        try:
            await cri.start_container(container_id)
        except RuntimeFailure:
            await cri.remove_container(container_id)
            raise
        return container_id

    def _variables(self) -> Iterator[tuple[str, str]]:
        """Settings in the environment, as the DaemonSet has them: commands by ``kubectl exec`` find them."""
        yield from (("DRANET_" + name.upper(), value) for name, value in self._environment.items())
        yield from self._runtime.programs.iter_variables()

    async def _end(self, number: signal.Signals, timeout_seconds: float) -> DriverExit:
        if not self.is_running:
            raise DriverFailed("the driver does not run")
        os.kill(self._pid, number)
        try:
            status = await self._wait_exited(self._container_id, timeout_seconds)
        except TimeoutError as error:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            await self._wait_exited(self._container_id, timeout_seconds)
            raise DriverFailed(
                f"the driver did not end within {timeout_seconds:g} s of {number.name}"
            ) from error
        self._exit_code = _as_of_a_child(status.exit_code)
        return DriverExit(self._exit_code, self.log_file.read_text(errors="replace"))

    async def _wait_exited(self, container_id: str, timeout_seconds: float) -> pb.ContainerStatus:
        async with asyncio.timeout(timeout_seconds):
            while True:
                status = await self._runtime.cri.fetch_container_status(container_id)
                if status.state == pb.CONTAINER_EXITED:
                    return status
                await asyncio.sleep(_POLL_SECONDS)

    async def _forget_container(self) -> None:
        if self._container_id:
            if self.is_running:
                os.kill(self._pid, signal.SIGKILL)
            await self._wait_exited(
                self._container_id, _EXIT_SECONDS
            )  # the runtime hears of it a moment later
            await self._runtime.cri.remove_container(self._container_id)
        self._container_id, self._pid = "", 0

    def _build_view(self) -> NodeView:
        runtime = self._runtime
        described = None if runtime.has_real_proc else runtime.node.procfs_root
        stand_ins = list_stand_ins(runtime.places, runtime.netns_twin, described)
        folder = runtime.places.work_dir / "volumes" / self._uid
        volumes = make_volumes(runtime.spec, runtime.config_maps, folder)
        return build_view(runtime.places, stand_ins, volumes, self._uid)

    def _build_sandbox(self, spec: PodSpec) -> pb.PodSandboxConfig:
        return pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(
                name=f"dranet-{self._uid[:8]}", uid=self._uid, namespace="dranet-system"
            ),
            log_directory=str(self.log_file.parent),
            dns_config=pb.DNSConfig(options=["ndots:1"]),
            linux=pb.LinuxPodSandboxConfig(
                cgroup_parent=f"/{self._runtime.layout.cgroup}",
                security_context=build_sandbox_security(spec),
            ),
        )


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"


def _as_of_a_child(code: int) -> int:
    """The runtime reports 137 where a parent gets -9."""
    return 128 - code if code > 128 else code
