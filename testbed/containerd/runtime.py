"""A real containerd and runc as the testbed's container runtime.

Talks the CRI to a containerd of its own, which in turn runs real pods with NRI and CDI switched on: the
counterpart that is not our own code. It must run inside the testbed's private mount, network and pid
namespaces (``isolation``): there the death of the tree's init ends every shim and container with it. Knows
nothing of claims, drivers or Kubernetes objects.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from testbed.containerd import node
from testbed.containerd.config import POD_SUBNET, Layout, render_cni_conflist, render_containerd_config
from testbed.containerd.cri import CallListener, CriClient, ignore_call
from testbed.containerd.fetch import Toolchain
from testbed.containerd.image import BUSYBOX_IMAGE
from testbed.pb import cri_pb2 as pb
from testbed.runtime.contract import (
    ContainerSpec,
    ExecResult,
    RunningContainer,
    RunningSandbox,
    RuntimeFailure,
    SandboxSpec,
)

_POLL_SECONDS = 0.02
_BOOT_SECONDS = 20.0
_STOP_SECONDS = 10.0
_EXIT_SECONDS = 10.0
_LOG_TAIL_LINES = 8

_INSPECT = """\
cat /proc/$$/environ; printf '\\0'
find /dev \\( -type c -o -type b \\) -exec stat -c '%n %t %T' {} +; printf '\\0\\0'
cat /proc/self/mountinfo
"""
"""Run inside a new container: the environment it was given, its device nodes, its mounts; between them two
NUL bytes (each variable ends with one already)."""


class ContainerdRuntime:
    """One containerd; implements :class:`~testbed.runtime.contract.PodRuntime`.

    ``work_dir`` must be short (sockets lie below it) and may be anywhere; the log stays there after the
    end. ``nri_socket`` is where plugins will find NRI, ``cdi_dir`` the only folder searched for CDI specs.
    ``on_call`` is called with the duration of each CRI call.
    """

    def __init__(
        self,
        toolchain: Toolchain,
        work_dir: Path,
        nri_socket: Path,
        cdi_dir: Path,
        *,
        has_nri: bool = True,
        has_own_netns: bool = True,
        pod_subnet: str = POD_SUBNET,
        on_call: CallListener = ignore_call,
    ) -> None:
        cgroup = node.CGROUP_PREFIX + secrets.token_hex(4)
        self._toolchain = toolchain
        self._version = toolchain.version
        self._layout = Layout(
            work_dir, toolchain.bin_dir, nri_socket, cdi_dir, cgroup, has_nri, has_own_netns, pod_subnet
        )
        self._on_call = on_call
        self._process: asyncio.subprocess.Process | None = None
        self._client: CriClient | None = None
        self._pods: dict[str, pb.PodSandboxConfig] = {}

    @property
    def name(self) -> str:
        """``containerd 1.7.24``."""
        return f"containerd {self._version}"

    @property
    def pid(self) -> int:
        """containerd's process id, 0 while it does not run."""
        return self._process.pid if self._process else 0

    @property
    def log_file(self) -> Path:
        return self._layout.log_file

    async def start(self) -> None:
        """Boot, import the images and wait until the CRI answers (about 0.5 s).

        Raises:
            ContainerdUnavailable: this machine does not give the rights; nothing was changed.
            RuntimeFailure: containerd did not come up; the text ends with its log.
        """
        node.check_rights()
        try:
            self._take_from_node()
            self._write_files()
            await self._boot()
            await self.import_archive(self._toolchain.image_archive)
            self._version = await self._fetch_version()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Remove every pod, end containerd and give the node back what was taken. Repeatable."""
        try:
            await self._remove_all_pods()
            await self._end_process()
        finally:
            await self._release_node()

    async def restart(self) -> None:
        """End containerd and boot it again on the same state; the pods live on meanwhile."""
        await self._end_process()
        await self._boot()

    async def crash(self) -> None:
        """As :meth:`restart`, by SIGKILL: what containerd was about to do is not done."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await self.restart()

    async def run_sandbox(self, spec: SandboxSpec) -> RunningSandbox:
        config = _sandbox_config(spec, self._layout.cgroup)
        sandbox_id = await self._cri.run_pod_sandbox(config)
        self._pods[sandbox_id] = config
        status = await self._cri.fetch_pod_sandbox_status(sandbox_id)
        return RunningSandbox(sandbox_id, _parse_netns_path(status.info["info"]))

    async def create_container(self, sandbox: RunningSandbox, spec: ContainerSpec) -> RunningContainer:
        """Create, start and look inside. A container that does not start is removed again."""
        pod = self._pods[sandbox.id]
        # The names of the last sandbox are taken while it exists.
        config = _container_config(spec, pod.metadata.attempt)
        container_id = await self._cri.create_container(sandbox.id, config, pod)
        try:
            await self._cri.start_container(container_id)
            return await self._inspect(container_id, spec.name)
        except RuntimeFailure:
            with contextlib.suppress(RuntimeFailure):
                await self._cri.stop_container(container_id, grace_seconds=0)
                await self._cri.remove_container(container_id)
            raise

    async def exec_in_container(self, container: RunningContainer, command: Sequence[str]) -> ExecResult:
        done = await self._cri.exec_sync(container.id, command)
        return ExecResult(
            done.exit_code, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        )

    async def stop_sandbox(self, sandbox_id: str) -> None:
        await self._cri.stop_pod_sandbox(sandbox_id)

    async def remove_sandbox(self, sandbox_id: str) -> None:
        await self._cri.stop_pod_sandbox(sandbox_id)
        await self._cri.remove_pod_sandbox(sandbox_id)
        self._pods.pop(sandbox_id, None)

    @property
    def cri(self) -> CriClient:
        """The connection, for containers that are not a pod's of the testbed; another one after a restart."""
        return self._cri

    @property
    def layout(self) -> Layout:
        """Where its files lie."""
        return self._layout

    @property
    def _cri(self) -> CriClient:
        if self._client is None:
            raise RuntimeFailure("containerd is not running")
        return self._client

    def _take_from_node(self) -> None:
        node.make_cgroups(self._layout.cgroup)
        node.set_loopback_up()
        node.mount_tmpfs(node.SHIM_SOCKETS_PARENT)
        node.mount_tmpfs(self._layout.volatile)

    async def _fetch_version(self) -> str:
        """What runs, in its own words, without the distribution's suffix (``1.7.24~ds1``)."""
        answer = await self._cri.fetch_version()
        return re.split("[~+-]", answer.runtime_version.removeprefix("v"))[0]

    def _write_files(self) -> None:
        layout = self._layout
        layout.cni_config_dir.mkdir()
        layout.cni_bin_dir.mkdir()
        for program in layout.bin_dir.iterdir():
            (layout.cni_bin_dir / program.name).symlink_to(program)
        (layout.cni_config_dir / "10-testbed.conflist").write_text(render_cni_conflist(layout))
        layout.config_file.write_text(render_containerd_config(layout, self._toolchain.version))

    async def _boot(self) -> None:
        layout = self._layout
        with layout.log_file.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                layout.bin_dir / "containerd",
                "--config",
                layout.config_file,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": f"{layout.bin_dir}:{os.environ.get('PATH', os.defpath)}"},
            )
        self._client = CriClient(layout.socket, self._on_call)
        await self._wait_serving(self._process, self._client)

    async def _wait_serving(self, process: asyncio.subprocess.Process, client: CriClient) -> None:
        """Until the CRI answers a call that it refuses while it still recovers its state."""
        refusal = "no answer"
        try:
            async with asyncio.timeout(_BOOT_SECONDS):
                while process.returncode is None:
                    try:
                        await client.list_pod_sandboxes()
                    except RuntimeFailure as failure:
                        refusal = str(failure)
                    else:
                        return
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError as error:
            raise RuntimeFailure(f"containerd does not serve: {refusal}: {self._log_tail()}") from error
        raise RuntimeFailure(f"containerd ended at once: {self._log_tail()}")

    async def import_archive(self, archive: Path) -> str:
        """Import its images under their names; return ctr's output.

        Raises:
            RuntimeFailure: with the words of the program that imports.
        """
        return await self._run_ctr("images", "import", str(archive))

    async def tag_image(self, name: str, *others: str) -> None:
        """Add names under which an image is found.

        Raises:
            RuntimeFailure: there is no image of that name.
        """
        await self._run_ctr("images", "tag", "--force", name, *others)

    async def _run_ctr(self, *words: str) -> str:
        process = await asyncio.create_subprocess_exec(
            self._layout.bin_dir / "ctr",
            *("--address", self._layout.socket, "--namespace", "k8s.io"),
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output = (await process.communicate())[0].decode(errors="replace")
        if process.returncode != 0:
            raise RuntimeFailure(f"ctr {' '.join(words[:2])}: {output.strip()}")
        return output

    async def _inspect(self, container_id: str, name: str) -> RunningContainer:
        try:
            done = await self._cri.exec_sync(container_id, ["/bin/busybox", "sh", "-c", _INSPECT])
        except RuntimeFailure as failure:
            raise await self._explain(container_id, name, str(failure)) from failure
        if done.exit_code != 0:
            raise await self._explain(container_id, name, done.stderr.decode(errors="replace"))
        environment, devices, mounts = done.stdout.decode(errors="replace").split("\0\0", 2)
        return RunningContainer(
            id=container_id,
            name=name,
            devices=_parse_devices(devices),
            env=_parse_environment(environment),
            mounts=_parse_mounts(mounts, node.read_mounts()),
            memory_nodes=_parse_memory_nodes(self._layout.read_oci_spec(container_id)),
        )

    async def _explain(self, container_id: str, name: str, refusal: str) -> RuntimeFailure:
        """Why it cannot be inspected: it may have ended before, or meanwhile."""
        code = await self._wait_exit_code(container_id)
        if code is None:
            return RuntimeFailure(f"cannot look into container {name}: {refusal}")
        return RuntimeFailure(f"container {name} ended at once, exit code {code}")

    async def _wait_exit_code(self, container_id: str) -> int | None:
        """The CRI hears of an exit a moment after runc; ``None`` where the container lives on."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_SECONDS):
                while True:
                    status = await self._cri.fetch_container_status(container_id)
                    if status.state == pb.CONTAINER_EXITED:
                        return status.exit_code
                    await asyncio.sleep(_POLL_SECONDS)
        return None

    async def _remove_all_pods(self) -> None:
        if self._client is None or self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(RuntimeFailure):
            for sandbox in await self._client.list_pod_sandboxes():
                with contextlib.suppress(RuntimeFailure):  # one stuck pod must not keep the others
                    await self.remove_sandbox(sandbox.id)

    async def _end_process(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
            await _wait_or_kill(self._process)
        self._process = None

    async def _release_node(self) -> None:
        """Kill by pid what the CRI did not remove, until nothing of this runtime is left."""
        left = await self._kill_leftovers()
        node.unmount_below(self._layout.volatile)
        node.unmount_below(node.SHIM_SOCKETS_PARENT)
        node.remove_cgroups(self._layout.cgroup)
        self._layout.nri_socket.unlink(missing_ok=True)
        shutil.rmtree(self._layout.volatile, ignore_errors=True)
        self._pods.clear()
        if left:
            raise RuntimeFailure(f"processes {sorted(left)} of containerd's pods do not die")

    async def _kill_leftovers(self) -> set[int]:
        """Pids that still live after the deadline; normally none."""
        layout = self._layout
        until = asyncio.get_running_loop().time() + _STOP_SECONDS
        while left := node.find_shims(layout.socket) | node.find_cgroup_processes(layout.cgroup):
            if asyncio.get_running_loop().time() > until:
                break
            node.kill(left)
            await asyncio.sleep(_POLL_SECONDS)
        return left

    def _log_tail(self) -> str:
        lines = self._layout.log_file.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_TAIL_LINES:])


async def _wait_or_kill(process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _sandbox_config(spec: SandboxSpec, cgroup: str) -> pb.PodSandboxConfig:
    network = pb.NODE if spec.host_network else pb.POD
    options = pb.NamespaceOption(network=network, pid=pb.CONTAINER, ipc=pb.POD)
    return pb.PodSandboxConfig(
        metadata=pb.PodSandboxMetadata(
            name=spec.name, uid=spec.uid, namespace=spec.namespace, attempt=spec.attempt
        ),
        hostname="" if spec.host_network else spec.name,
        dns_config=pb.DNSConfig(options=["ndots:1"]),
        labels=spec.labels,
        annotations=spec.annotations,
        linux=pb.LinuxPodSandboxConfig(
            cgroup_parent=f"/{cgroup}",
            security_context=pb.LinuxSandboxSecurityContext(namespace_options=options),
        ),
    )


def _container_config(spec: ContainerSpec, attempt: int) -> pb.ContainerConfig:
    return pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name=spec.name, attempt=attempt),
        image=pb.ImageSpec(image=BUSYBOX_IMAGE),
        command=spec.command,
        envs=[pb.KeyValue(key=key, value=value) for key, value in spec.env],
        CDI_devices=[pb.CDIDevice(name=name) for name in spec.cdi_devices],
    )


def _parse_netns_path(info: str) -> str:
    """The network namespace of a sandbox's OCI spec; empty on host networking, which has no such entry."""
    namespaces = json.loads(info)["runtimeSpec"]["linux"]["namespaces"]
    return next((str(n["path"]) for n in namespaces if n["type"] == "network" and "path" in n), "")


def _parse_memory_nodes(spec: str) -> str:
    """The memory nodes of a container's OCI spec; empty if it does not set them."""
    return str(json.loads(spec)["linux"].get("resources", {}).get("cpu", {}).get("mems", ""))


def _parse_environment(text: str) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in text.split("\0") if entry)
    return {key: value for key, _, value in pairs}


def _parse_devices(text: str) -> dict[str, str]:
    """Lines of ``path major minor``, the numbers in hexadecimal as stat(1) prints them."""
    fields = (line.rsplit(" ", 2) for line in text.splitlines() if line)
    return {path: f"{int(major, 16)}:{int(minor, 16)}" for path, major, minor in fields}


def _parse_mounts(inside: str, on_node: Sequence[node.Mount]) -> dict[str, str]:
    return {m.target: node.find_source_on_node(m, on_node) for m in node.parse_mountinfo(inside)}
