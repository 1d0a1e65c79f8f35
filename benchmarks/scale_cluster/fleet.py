"""The drivers of all nodes, in a few processes of this machine."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.scale_cluster.counting import Traffic

PROCESSES = 2


class Fleet:
    """Commands all processes at once."""

    def __init__(self, processes: Sequence[asyncio.subprocess.Process]) -> None:
        self._processes = processes

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    async def order(self, command: str) -> list[object]:
        return await asyncio.gather(*(_ask(process, command) for process in self._processes))

    async def read(self) -> Traffic:
        traffic = Traffic()
        for answer in await self.order("read"):
            assert isinstance(answer, dict)
            traffic += Traffic.from_json(answer)
        return traffic


async def _ask(process: asyncio.subprocess.Process, command: str) -> object:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{command}\n".encode())
    line = await process.stdout.readline()
    if not line:
        raise RuntimeError(f"a process of drivers ended at {command!r}")
    return json.loads(line)


@asynccontextmanager
async def open_fleet(kubeconfig: Path, tokens: Mapping[str, str], log: Path) -> AsyncIterator[Fleet]:
    """Start the processes, each with its share of the nodes; no driver runs yet."""
    shares = [dict(list(tokens.items())[number::PROCESSES]) for number in range(PROCESSES)]
    processes: list[asyncio.subprocess.Process] = []
    try:
        with log.open("wb") as errors:
            processes += [await _start(kubeconfig, share, errors.fileno()) for share in shares]
        yield Fleet(processes)
    finally:
        for process in processes:
            process.kill()
            await process.wait()


async def _start(kubeconfig: Path, tokens: Mapping[str, str], errors: int) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.scale_cluster.drivers"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=errors,
    )
    assert process.stdin is not None
    first = {"kubeconfig": str(kubeconfig), "tokens": tokens}
    process.stdin.write(json.dumps(first).encode() + b"\n")
    await process.stdin.drain()
    return process
