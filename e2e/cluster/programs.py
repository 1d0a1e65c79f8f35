"""Programs out of a folder: which are there, how old they are, how they are started, watched and ended."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dranet.errors import DranetError
from e2e.access import E2eFailed, LaneUnavailable

OLDEST = (1, 34)
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
_POLL_SECONDS = 0.1
_END_SECONDS = 15.0
_LAST_SECONDS = 5.0
"""At the end of the cluster: an API server waits for its watches, which are of no use any more."""
_TAIL_LINES = 6


@dataclass(frozen=True, slots=True)
class Found:
    """The programs of one folder, and the version that all of them have."""

    paths: Mapping[str, Path]
    version: str


def find_programs(folder: Path) -> Found:
    """Kubernetes' programs, which must be of one version that the driver supports.

    Raises:
        LaneUnavailable: some are missing, do not run, differ, or are too old; names them.
    """
    paths = {name: folder / name for name in KUBERNETES}
    missing = [name for name, path in paths.items() if not os.access(path, os.X_OK)]
    if missing:
        raise LaneUnavailable(f"KUBE_BIN_DIR={folder} has no {', '.join(missing)}")
    versions = {name: read_version(path) for name, path in paths.items()}
    if len(set(versions.values())) > 1:
        named = ", ".join(f"{name} {version}" for name, version in versions.items())
        raise LaneUnavailable(f"the programs of {folder} are of different versions: {named}")
    version = versions["kubelet"]
    if tuple(map(int, version.split(".")[:2])) < OLDEST:
        raise LaneUnavailable(f"{folder} has Kubernetes {version}; the driver needs 1.34 or newer")
    return Found(paths, version)


def read_version(program: Path) -> str:
    """The output of ``--version``: ``Kubernetes v1.36.2``, ``etcd Version: 3.5.16``.

    Raises:
        LaneUnavailable: it does not run here, or prints something else.
    """
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise LaneUnavailable(f"{program} --version: {error}") from error
    match = re.search(r"\bv?(\d+\.\d+\.\d+)", done.stdout)
    if match is None:
        raise LaneUnavailable(f"{program} --version prints {done.stdout.strip()!r}")
    return match[1]


class Programs:
    """Started one after the other, each with a log of its own; ended together, by pid, at the end."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[str, asyncio.subprocess.Process] = {}

    async def __aenter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(_end(process, _LAST_SECONDS) for process in self._running.values()))

    async def start(self, program: Path, flags: Sequence[str], name: str = "") -> None:
        """Start it under ``name``, by default the program's. One that is started again appends to its log."""
        name = name or program.name
        with self._log(name).open("ab") as log:
            self._running[name] = await asyncio.create_subprocess_exec(
                program, *flags, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
            )

    async def stop(self, name: str) -> None:
        """End it with SIGTERM, and with SIGKILL after :data:`_END_SECONDS`."""
        await _end(self._running.pop(name), _END_SECONDS)

    async def kill(self, name: str) -> None:
        """End it with SIGKILL."""
        process = self._running.pop(name)
        process.kill()
        await process.wait()

    def is_running(self, name: str) -> bool:
        """Whether it was started, and not ended here since."""
        return name in self._running

    def pid(self, name: str) -> int:
        return self._running[name].pid

    async def wait(self, name: str, look: Callable[[], Awaitable[str]], seconds: float) -> None:
        """Until ``look`` has no complaint.

        Raises:
            E2eFailed: the program ended, or not in time; with the end of its log.
        """
        complaint = ""
        try:
            async with asyncio.timeout(seconds):
                while complaint := await _try(look):
                    if self._running[name].returncode is not None:
                        raise E2eFailed(f"{name} ended by itself: {self._tail(name)}")
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError as error:
            text = (
                f"{name} is not ready after {seconds:g} s: {complaint}; its log ends with: {self._tail(name)}"
            )
            raise E2eFailed(text) from error

    def _tail(self, name: str) -> str:
        lines = self._log(name).read_text(errors="replace").splitlines()
        return " | ".join(lines[-_TAIL_LINES:])

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"


async def _try(look: Callable[[], Awaitable[str]]) -> str:
    try:
        return await look()
    except (DranetError, OSError) as error:
        return str(error)


async def _end(process: asyncio.subprocess.Process, seconds: float) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
