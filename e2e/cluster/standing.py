"""A cluster that stays until it is ended: ``make cluster-up`` and ``make cluster-down``.

It runs in a private tree behind a process of its own. The API server is reached through a port of the
machine's loopback; ``kubectl`` and ``helm`` find it by the kubeconfig in :attr:`Place.kubeconfig`.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from e2e.access import E2eFailed
from e2e.cluster import config, described_node, local
from e2e.cluster.config import Plan
from e2e.cluster.further_node import FirstNode, add_node, open_further_node
from e2e.cluster.local import ClusterKit, LocalCluster
from testbed.cli.shutdown import run_in_order
from testbed.isolation import WORK_DIR, run_isolated
from testbed.node.hardware import load_hardware

_STOP_SECONDS = 90.0
_READY = b"ready\n"
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Place:
    """Where the cluster's files are on the machine."""

    folder: Path

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def bin(self) -> Path:
        """``kubectl`` and ``helm`` of the cluster's version, and ``dranet`` of this checkout."""
        return self.folder / "bin"

    @property
    def lock(self) -> Path:
        """Locked while the cluster runs; its text is the process to end."""
        return self.folder / "lock"


def default_place() -> Place:
    return Place(Path(".cache/cluster").resolve())


def is_up(place: Place) -> bool:
    try:
        with place.lock.open("rb") as file:
            return not _try_lock(file)
    except FileNotFoundError:
        return False


def check_down(place: Place) -> None:
    """Raise E2eFailed where one runs."""
    if is_up(place):
        raise E2eFailed("the cluster is up already", hint="make cluster-down ends it")


def start(place: Place, kit: ClusterKit, hardware: str, programs: list[Path], nodes: int) -> None:
    """Start the process of the cluster and pass on its output until every node is ready.

    Raises:
        E2eFailed: one runs already, or it does not come up.
    """
    check_down(place)
    shutil.rmtree(place.folder, ignore_errors=True)
    place.logs.mkdir(parents=True)
    _link_programs(place, programs)
    words = ("--hardware", hardware, "--version", kit.minor, "--nodes", str(nodes))
    command = [sys.executable, "-m", "e2e.cluster", "serve", *words]
    with (place.logs / "cluster.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "E2E_IMAGE": str(kit.image)},
        )
    assert process.stdout is not None
    for line in process.stdout:
        if line == _READY:
            return
        sys.stdout.write(line.decode())
        sys.stdout.flush()
    code = process.wait()
    tail = (place.logs / "cluster.log").read_text(errors="replace").strip().splitlines()[-1:]
    raise E2eFailed(f"the cluster ended with exit code {code}: {' '.join(tail)}", hint=f"see {place.logs}")


def stop(place: Place) -> bool:
    """End it and wait until all of it is gone; false where no cluster ran.

    Raises:
        E2eFailed: it is still there after a minute and a half.
    """
    if not is_up(place):
        return False
    os.kill(int(place.lock.read_text()), signal.SIGTERM)
    deadline = time.monotonic() + _STOP_SECONDS
    while is_up(place):
        if time.monotonic() > deadline:
            raise E2eFailed(f"process {place.lock.read_text()} of the cluster does not end")
        time.sleep(0.1)
    return True


def serve(place: Place, hardware: str, kit: ClusterKit, nodes: int) -> int:
    """Run the cluster until SIGTERM; called in the process that :func:`start` makes."""
    with _hold(place), socket.create_server(("127.0.0.1", 0)) as listener:
        # The socket is the machine's; a process that holds it in the tree accepts what the machine sends.
        return run_isolated(lambda: run_in_order(_serve(place, hardware, kit, listener, nodes)))


def join(place: Place, hardware: str, kit: ClusterKit, number: int) -> int:
    """Run a further node until SIGTERM; called in a process inside the cluster's tree."""
    plan = Plan(
        local.folder_of_plan(WORK_DIR),
        described_node.choose_options(kit.control_plane.kubernetes.version).feature_gates,
    )
    first = FirstNode.read(plan, number)
    return run_isolated(lambda: run_in_order(_join(place, hardware, kit, first, number)))


async def _join(place: Place, hardware: str, kit: ClusterKit, first: FirstNode, number: int) -> None:
    logs = place.logs / config.node_name(number)
    async with open_further_node(kit, first, load_hardware(hardware), number, logs):
        await asyncio.Event().wait()


async def _serve(place: Place, hardware: str, kit: ClusterKit, listener: socket.socket, nodes: int) -> None:
    options = replace(described_node.choose_options(kit.control_plane.kubernetes.version), nodes=nodes)
    described = load_hardware(hardware)
    async with local.open_cluster(kit, described, WORK_DIR, place.logs, options) as cluster:
        for number in range(1, nodes):
            await add_node(cluster, number, hardware, kit.minor)
        await described_node.add_policies(cluster)
        _write_kubeconfig(place, cluster, listener.getsockname()[1])
        async with _forward(listener, config.SERVICE_ADDRESS, config.API_PORT):
            sys.stdout.buffer.write(_READY)
            sys.stdout.flush()
            await asyncio.Event().wait()


def _write_kubeconfig(place: Place, cluster: LocalCluster, port: int) -> None:
    plan = cluster.plane.plan
    token = plan.read_token("admin")
    place.kubeconfig.write_text(config.build_kubeconfig(plan, token, f"https://127.0.0.1:{port}"))
    place.kubeconfig.chmod(0o600)


@asynccontextmanager
async def _forward(listener: socket.socket, address: str, port: int) -> AsyncIterator[None]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, downstream = await asyncio.open_connection(address, port)
        await asyncio.gather(_copy(reader, downstream), _copy(upstream, writer), return_exceptions=True)

    async with await asyncio.start_server(serve, sock=listener):
        yield


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


def _link_programs(place: Place, programs: list[Path]) -> None:
    place.bin.mkdir()
    for program in programs:
        (place.bin / program.name).symlink_to(program)


@contextmanager
def _hold(place: Place) -> Iterator[None]:
    """Mark by a lock that the cluster runs; it goes with the process, however that ends."""
    with place.lock.open("wb") as file:
        if not _try_lock(file):
            raise E2eFailed("the cluster is up already")
        file.write(str(os.getpid()).encode())
        file.flush()
        yield


def _try_lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
