"""The drivers of all nodes, in a few processes of this machine."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

PROCESSES = 2


@dataclass(frozen=True, slots=True)
class Traffic:
    """What all drivers asked since they were first started."""

    published: int = 0
    """Nodes whose slices are as wanted, now."""
    requests: Counter[str] = field(default_factory=Counter)
    """By verb, resource and status."""
    retries: Counter[str] = field(default_factory=Counter)
    watching: int = 0
    """Watches that are open now."""
    connections: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    slowest: float = 0.0
    """Seconds of the slowest request since the phase began."""
    last: float = 0.0
    """When the last answer came that began no watch, in unix seconds."""

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.published + other.published,
            self.requests + other.requests,
            self.retries + other.retries,
            self.watching + other.watching,
            self.connections + other.connections,
            self.bytes_out + other.bytes_out,
            self.bytes_in + other.bytes_in,
            max(self.slowest, other.slowest),
            max(self.last, other.last),
        )

    def since(self, before: Traffic) -> Traffic:
        return Traffic(
            self.published,
            self.requests - before.requests,
            self.retries - before.retries,
            self.watching,
            self.connections - before.connections,
            self.bytes_out - before.bytes_out,
            self.bytes_in - before.bytes_in,
            self.slowest,
            self.last,
        )

    def count(self, verb: str, *codes: int) -> int:
        """Return how many requests of a verb were answered with one of these statuses."""
        ends = tuple(f" {code}" for code in codes)
        return sum(
            count for key, count in self.requests.items() if key.startswith(f"{verb} ") and key.endswith(ends)
        )


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
            traffic += _read_traffic(answer)
        return traffic


def _read_traffic(answer: object) -> Traffic:
    assert isinstance(answer, dict)
    return Traffic(
        **{**answer, "requests": Counter(answer["requests"]), "retries": Counter(answer["retries"])}
    )


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
