"""An administrator's shell: bash in the repository's folder, with the cluster's ``kubectl`` and ``helm``."""

from __future__ import annotations

import asyncio
import os
import shlex
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from e2e.access import E2eFailed
from e2e.cluster import build
from e2e.cluster.local import LocalCluster

REPOSITORY = Path(__file__).parents[2]
_SECONDS = 180.0
_ANSWER_SECONDS = 30.0


class Shell:
    """Runs commands as the documentation has them."""

    def __init__(self, cluster: LocalCluster, home: Path) -> None:
        folders = _find_programs(cluster)
        self._environment = {
            **os.environ,
            "HOME": str(home),
            "KUBECONFIG": str(cluster.plane.plan.kubeconfig("admin")),
            "PATH": ":".join([*map(str, folders), os.environ["PATH"]]),
        }

    async def run(self, command: str, stdin: str = "") -> str:
        """Return what it prints.

        Raises:
            E2eFailed: its exit code is not 0; with its output.
        """
        code, output, complaint = await self._finish(command, stdin)
        if code:
            raise E2eFailed(f"{command}: exit code {code}: {complaint or output}")
        return output

    async def fail(self, command: str) -> str:
        """Return the output of a command that has to fail."""
        code, output, complaint = await self._finish(command, "")
        assert code, f"{command}: {output}"
        return output + complaint

    async def _finish(self, command: str, stdin: str) -> tuple[int | None, str, str]:
        async with self._start(command, stderr=PIPE) as process, asyncio.timeout(_SECONDS):
            output, complaint = await process.communicate(stdin.encode())
        return process.returncode, output.decode(), complaint.decode()

    @asynccontextmanager
    async def ping(self, namespace: str, pod: str, address: str) -> AsyncIterator[None]:
        """Let the pod ping while the block runs; every packet has to be answered."""
        inside = shlex.quote(f"ping -i 0.2 {address} & read end; kill -INT $!; wait")
        command = f"exec kubectl exec -i --namespace {namespace} {pod} -- sh -c {inside}"
        async with self._start(command, stderr=STDOUT) as process:
            await _read_until(process, b"bytes from")
            yield
            output, _ = await process.communicate(b"\n")
        assert b", 0% packet loss" in output, output.decode()[-400:]

    @asynccontextmanager
    async def _start(self, command: str, stderr: int) -> AsyncIterator[Process]:
        """Kill it when the block fails."""
        process = await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c", command),
            cwd=REPOSITORY,
            env=self._environment,
            stdin=PIPE,
            stdout=PIPE,
            stderr=stderr,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _read_until(process: Process, text: bytes) -> None:
    assert process.stdout is not None
    output = b""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            while line := await process.stdout.readline():
                output += line
                if text in line:
                    return
    except TimeoutError:
        pass
    raise E2eFailed(f"expected {text.decode()!r}, but got: {output.decode()}")


def _find_programs(cluster: LocalCluster) -> list[Path]:
    """The folders of kubectl and helm; without one of them the test is skipped by its name."""
    kubernetes, helm = cluster.plane.kit.kubernetes.paths["kubelet"].parent, build.find_built(build.HELM)
    if not os.access(kubernetes / "kubectl", os.X_OK):
        pytest.skip(f"{kubernetes} has no kubectl")
    if helm is None:
        pytest.skip("`make cluster` has not built helm")
    return [kubernetes, helm]
